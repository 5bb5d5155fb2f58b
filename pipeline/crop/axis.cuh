// One axis of a window: positions of outputs among the image's pixels (definition.py).

__device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }

// The weight of a pixel at a distance from a centre, before weights are scaled to a sum of 1.
__device__ __forceinline__ float tent(float distance, float inverse_radius) {
    return fmaxf(0.f, fmaf(-fabsf(distance), inverse_radius, 1.f));
}

// Pixel 0 is the pixel in which the window begins, so the digits of a float resolve positions in the
// window, however far the window is from the image's origin.
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

    // Right but for its last digits: far out it may lie on the wrong side of a pixel, so what decides
    // is `distance`.
    __device__ __forceinline__ float centre(int output) const { return fmaf((float)output, scale, begin); }

    // From a pixel to an output's centre, as exact as a float can be that is as small.
    __device__ __forceinline__ float distance(int output, int pixel) const {
        return fmaf((float)output, scale, -(float)pixel) + fmaf((float)output + 0.5f, scale_low, begin);
    }

    // Nearest pixel inside the image.
    __device__ __forceinline__ int inside(int pixel) const {
        return smaller(larger(pixel, -origin), extent - 1 - origin);
    }
    // Most pixels that an output reads.
    __device__ __forceinline__ int taps() const { return (int)ceilf(2.f * radius); }
    __device__ __forceinline__ int first_seen(int output) const { return inside(first_within(output, radius)); }
    __device__ __forceinline__ int last_seen(int output) const { return inside((int)ceilf(centre(output) + radius)); }

    // The first pixel that is less than so far before an output's centre, or behind it.
    __device__ __forceinline__ int first_within(int output, float reach) const {
        int pixel = (int)ceilf(centre(output) - reach);
        while (distance(output, pixel - 1) < reach) --pixel;
        while (distance(output, pixel) >= reach) ++pixel;
        return pixel;
    }

    // The first and the last row that down.cuh needs for outputs [begin, end).
    __device__ __forceinline__ int first_row(int begin) const {
        return scale > 1.f ? first_within(begin - 1, 0.f) : first_within(begin, 0.f) - 1;
    }
    __device__ __forceinline__ int last_row(int end) const {
        return scale > 1.f ? first_within(end, 0.f) - 1 : first_within(end - 1, 0.f);
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
    __device__ __forceinline__ float sum_of_weights(int output) const {
        const int first = first_within(output, radius);
        return sum_of_weights(output, first, first + taps());
    }
};
