// Across a row of the image: its bytes -> a thread's column of it, three colours.

constexpr int ANY = 0;  // in place of a number of taps
constexpr float TWO_TO_23 = 8388608.f;

// 2^23 plus a byte, which becomes the low bits of the mantissa: conversions of integers are slower.
__device__ __forceinline__ float above_2_23(u32 word, int byte) {
    return __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7650u | byte));
}

__device__ __forceinline__ int column_of(const Tile& tile) {
    return smaller(tile.begin + (int)threadIdx.x, tile.end - 1);
}

// A column is made of TAPS neighbouring pixels, with weights that are the same in all rows.
template <int TAPS>
struct Across {
    float weights[TAPS];
    u32 first_byte;

    __device__ __forceinline__ Across(const Axis& axis, const Tile& tile) {
        const int column = column_of(tile), nearest = axis.first_within(column, axis.radius);
        const int first = larger(tile.first, smaller(nearest, tile.last + 1 - TAPS));
        // Of pixels that the image has not, in whose place the nearest is seen.
        const float before = axis.sum_of_weights(column, nearest, tile.first);
        const float behind = axis.sum_of_weights(column, tile.last + 1, nearest + TAPS);
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < TAPS; ++i) {
            const int pixel = first + i;
            weights[i] = pixel > tile.last ? 0.f : tent(axis.distance(column, pixel), axis.inverse);
            if (pixel == tile.first) weights[i] += before;
            if (pixel == tile.last) weights[i] += behind;
            sum += weights[i];
        }
        const float norm = __fdividef(1.f, sum);
#pragma unroll
        for (int i = 0; i < TAPS; ++i) weights[i] *= norm;
        first_byte = 3 * (first - tile.first);
    }

    // `row`: the tile's first byte in `bytes`, which begin at a multiple of 4.
    __device__ __forceinline__ void sum(const u8* bytes, u32 row, float (&sums)[3]) const {
        constexpr int WORDS = (3 * TAPS + 3) / 4;
        const u32 at = row + first_byte;
        const u32* aligned = (const u32*)(bytes + (at & ~3u));
        u32 words[WORDS + 1];
#pragma unroll
        for (int i = 0; i <= WORDS; ++i) words[i] = aligned[i];
#pragma unroll
        for (int i = 0; i < WORDS; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], 8 * at);
#pragma unroll
        for (int i = 0; i < 3 * TAPS; ++i) {
            const float raised = above_2_23(words[i / 4], i % 4);
            // The first is brought down within its fma, which rounds once; the others before theirs.
            sums[i % 3] = i < 3 ? fmaf(weights[0], raised, weights[0] * -TWO_TO_23) : fmaf(weights[i / 3], raised - TWO_TO_23, sums[i % 3]);
        }
    }
};

// As many as there are, each weight anew in every row.
template <>
struct Across<ANY> {
    const Axis& axis;
    const Tile& tile;
    const int column, nearest;
    const float norm;

    __device__ __forceinline__ Across(const Axis& axis, const Tile& tile)
        : axis(axis), tile(tile), column(column_of(tile)), nearest(axis.first_within(column, axis.radius)), norm(1.f / axis.sum_of_weights(column)) {}

    __device__ __forceinline__ void sum(const u8* bytes, u32 row, float (&sums)[3]) const {
        sums[0] = sums[1] = sums[2] = 0.f;
        for (int pixel = nearest; pixel < nearest + axis.taps(); ++pixel) {
            const float weight = norm * tent(axis.distance(column, pixel), axis.inverse);
            const u8* from = bytes + row + 3 * (smaller(larger(pixel, tile.first), tile.last) - tile.first);
#pragma unroll
            for (int i = 0; i < 3; ++i) sums[i] = fmaf(weight, (float)from[i], sums[i]);
        }
    }
};
