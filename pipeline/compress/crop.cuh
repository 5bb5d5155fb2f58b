// Crop in global memory, and the positions of its kept patches.

constexpr int BASE = 16;
constexpr int VALUES = 3 * BASE * BASE;
constexpr int GROUP = 4;  // values of a row that move together

struct Crop {
    const u8* bytes;
    int side;
    Augmentation augmentation;
};

// Position of a patch in the stored crop, before the flip.
struct Place {
    int top, left;
};

__device__ __forceinline__ Place place_of(const i64* keep_idx, i64 token, const Crop& crop) {
    const int grid = crop.side / SIDE;
    const i64 place = keep_idx[token];
    if (place < 0 || place >= grid * grid) {
        printf("accelssl: keep_idx has %lld at token %lld: need 0 to %d.\n", place, token, grid * grid - 1);
        __trap();
    }
    // Half a place away from any whole number: exact, and a fifth of the cost of an integer division.
    const int row = (int)(((float)place + 0.5f) * (1.f / (float)grid));
    const int column = (int)place - row * grid;
    return {row * SIDE, (crop.augmentation.flip ? grid - 1 - column : column) * SIDE};
}

__device__ __forceinline__ int reflected(int at, int side) {
    if (at < 0) at = -at;
    if (at >= side) at = 2 * side - 2 - at;
    return at < 0 ? 0 : at;  // a padding pixel far outside, which nothing uses
}

// Four pixels of a row, from column `left` on; pixels outside the crop are reflected.
__device__ __forceinline__ Pixels<GROUP> four_pixels(const Crop& crop, int row, int left) {
    const u8* line = crop.bytes + reflected(row, crop.side) * crop.side * 3;
    if (left >= 0 && left + GROUP <= crop.side) {
        const u8* at = line + 3 * left;
        const u32 skip = (u32)((size_t)at % 4);
        const u32* aligned = (const u32*)(at - skip);
        u32 words[3] = {aligned[0], aligned[1], aligned[2]};
        if (skip) {
            const u32 next = aligned[3];
            words[0] = __funnelshift_r(words[0], words[1], 8 * skip);
            words[1] = __funnelshift_r(words[1], words[2], 8 * skip);
            words[2] = __funnelshift_r(words[2], next, 8 * skip);
        }
        return unpacked<GROUP>(words);
    }
    Pixels<GROUP> x;
#pragma unroll
    for (int i = 0; i < GROUP; ++i) {
        const u8* at = line + 3 * reflected(left + i, crop.side);
        x.r[i] = at[0] * (1.f / 255.f);
        x.g[i] = at[1] * (1.f / 255.f);
        x.b[i] = at[2] * (1.f / 255.f);
    }
    return x;
}

__device__ __forceinline__ void put_four(float* to, const float* x) {
    *(float4*)to = make_float4(x[0], x[1], x[2], x[3]);
}

__device__ __forceinline__ float normalised(float value, int channel) {
    return fmaf(value, 1.f / STD[channel], -MEAN[channel] / STD[channel]);
}
