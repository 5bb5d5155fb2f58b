// One axis of a window: where outputs lie among the image's pixels (definition.py).

__device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }

// The weight of a pixel at a distance from a centre, before weights are scaled to a sum of 1.
__device__ __forceinline__ float tent(float distance, float inverse_radius) {
    return fmaxf(0.f, fmaf(-fabsf(distance), inverse_radius, 1.f));
}

// Pixels are counted from the one that the window begins in: the digits of a float are then spent
// on the window and not on where in the image it lies.
struct Axis {
    int origin;                            // the image's pixel that is 0 here
    int extent;                            // the image's pixels
    float begin, scale, radius, inverse;  // inverse: 1 / radius

    __device__ Axis(float low, float high, int extent, int size) : extent(extent) {
        const float whole = floorf(low);
        origin = (int)whole;
        scale = (high - low) / (float)size;
        begin = low - whole + 0.5f * scale - 0.5f;
        radius = fmaxf(1.f, scale);
        inverse = 1.f / radius;
    }

    __device__ __forceinline__ float centre(int output) const { return fmaf((float)output, scale, begin); }

    // The nearest pixel that the image has.
    __device__ __forceinline__ int inside(int pixel) const {
        return smaller(larger(pixel, -origin), extent - 1 - origin);
    }
    // Pixels that an output sees, at most.
    __device__ __forceinline__ int taps() const { return (int)ceilf(2.f * radius); }
    __device__ __forceinline__ int first_seen(int output) const { return inside((int)ceilf(centre(output) - radius)); }
    __device__ __forceinline__ int last_seen(int output) const { return inside((int)floorf(centre(output) + radius)); }
};
