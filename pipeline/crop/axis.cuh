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
    int origin;                           // the image's pixel that is 0 here
    int extent;                           // the image's pixels
    float begin, scale, radius, inverse;  // inverse: 1 / radius
    float scale_low;                      // what `scale` lacks of the digits behind its last

    __device__ Axis(float low, float high, int extent, int size) : extent(extent) {
        const float whole = floorf(low);
        origin = (int)whole;
        const float sides = high - low, rounded_off = -low - (sides - high);
        scale = sides / (float)size;
        scale_low = (fmaf(-scale, (float)size, sides) + rounded_off) / (float)size;
        begin = low - whole + 0.5f * scale - 0.5f;
        radius = fmaxf(1.f, scale);
        inverse = 1.f / radius;
    }

    __device__ __forceinline__ float centre(int output) const { return fmaf((float)output, scale, begin); }

    // From a pixel to an output's centre: with all digits also where both are large.
    __device__ __forceinline__ float distance(int output, int pixel) const {
        return fmaf((float)output, scale, -(float)pixel) + fmaf((float)output, scale_low, begin);
    }

    // The nearest pixel that the image has.
    __device__ __forceinline__ int inside(int pixel) const {
        return smaller(larger(pixel, -origin), extent - 1 - origin);
    }
    // Pixels that an output sees, at most.
    __device__ __forceinline__ int taps() const { return (int)ceilf(2.f * radius); }
    __device__ __forceinline__ int first_seen(int output) const { return inside((int)ceilf(centre(output) - radius)); }
    __device__ __forceinline__ int last_seen(int output) const { return inside((int)floorf(centre(output) + radius)); }

    // The pixels from which on, and up to which, outputs from `begin` on and before `end` are made,
    // on the way of down.cuh.
    __device__ __forceinline__ int first_of(int begin) const {
        return scale > 1.f ? (int)floorf(centre(begin - 1)) + 1 : (int)floorf(centre(begin));
    }
    __device__ __forceinline__ int last_of(int end) const {
        return scale > 1.f ? (int)floorf(centre(end)) : (int)floorf(centre(end - 1)) + 1;
    }

    // The first output in [least, most] whose centre is not before a pixel, else `most`.
    __device__ __forceinline__ int output_from(int pixel, int least, int most) const {
        int output = smaller(larger((int)ceilf(__fdividef((float)pixel - begin, scale)), least), most);
        while (output > least && distance(output - 1, pixel) >= 0.f) --output;
        while (output < most && distance(output, pixel) < 0.f) ++output;
        return output;
    }

    // Of the pixels [first, end), in the eyes of an output.
    __device__ __forceinline__ float sum_of_weights(int output, int first, int end) const {
        float sum = 0.f;
#pragma unroll 1
        for (int pixel = first; pixel < end; ++pixel) sum += tent(distance(output, pixel), inverse);
        return sum;
    }
};
