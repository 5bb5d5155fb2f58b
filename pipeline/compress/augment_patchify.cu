// Fused op: crops -> colours -> blur -> kept patches -> tokens of 768 values, in one launch.
//
// reference.py is the definition, op.py the contract. Compiled at run time for one patch side
// (SIDE) and one output type (OUT: 0 float, 1 bfloat16, 2 half), with THREADS threads per block.
//
// A block computes TOKENS tokens of one crop, in one of three ways:
// - p = 16 without blur: each thread moves eight pixels from global memory through registers to
//   global memory;
// - p > 16 without blur: the block stages the bytes of some patches in shared memory. Each thread
//   colours and shrinks a row of a patch, then shrinks two columns (shrink.cuh);
// - with blur: the block colours float planes of a patch with its halo, blurs them along rows and
//   columns in shared memory, and shrinks them (blur.cuh).
// A horizontal flip commutes with blur and shrink, so the flip happens in the final stores.

typedef unsigned char u8;
typedef unsigned int u32;
typedef long long i64;

#include "constants.cuh"
#include "ptx.cuh"
#include "colour.cuh"
#include "output.cuh"
#include "crop.cuh"
#include "shrink.cuh"
#include "blur.cuh"

// p = 16: eight pixels an item, 24 bytes in, three stores of eight values out.
struct Eight {
    static constexpr int COUNT = 8;

    u32 words[6];
    Out* to;

    __device__ __forceinline__ void load(const Crop& crop, const i64* keep_idx, i64 first, int item, Out* out) {
        const int half = item % 2, row = item / 2 % BASE;
        const i64 token = first + item / (2 * BASE);
        const Place place = place_of(keep_idx, token, crop);
        const int column = place.left + (crop.augmentation.flip ? 1 - half : half) * COUNT;
        const uint2* at = (const uint2*)(crop.bytes + ((place.top + row) * crop.side + column) * 3);
        const uint2 w0 = at[0], w1 = at[1], w2 = at[2];
        words[0] = w0.x, words[1] = w0.y, words[2] = w1.x;
        words[3] = w1.y, words[4] = w2.x, words[5] = w2.y;
        to = out + token * VALUES + row * BASE + half * COUNT;
    }

    // No colour changes: (byte / 255 - mean) / std, rounded as in the definition.
    __device__ __forceinline__ void store_moved(bool flip) const {
#pragma unroll
        for (int channel = 0; channel < 3; ++channel) {
            float plane[COUNT];
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const float value = divided(byte_as_float(words, 3 * i + channel), 255.f, 1.f / 255.f);
                plane[i] = divided(value - MEAN[channel], STD[channel], 1.f / STD[channel]);
            }
            store_eight(to + channel * BASE * BASE, plane, flip);
        }
    }

    __device__ __forceinline__ void store_coloured(const Augmentation& a) const {
        Pixels<COUNT> x = unpacked<COUNT>(words);
        colour(x, a);
        if (a.solarize) solarize(x);
#pragma unroll
        for (int channel = 0; channel < 3; ++channel) {
            float* plane = channel == 0 ? x.r : channel == 1 ? x.g : x.b;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) plane[i] = normalised(plane[i], channel);
            store_eight(to + channel * BASE * BASE, plane, a.flip);
        }
    }
};

__device__ void gathered_tokens(const Crop& crop, const i64* keep_idx, i64 first, int tokens, Out* out) {
    constexpr int AT_A_TIME = 2;  // items whose bytes are on their way together
    const Augmentation& a = crop.augmentation;
    const bool only_moves = a.only_moves();
    const int items = tokens * 2 * BASE;
    for (int item = threadIdx.x; item < items; item += AT_A_TIME * THREADS) {
        Eight eights[AT_A_TIME];
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i) {
            if (item + i * THREADS < items) eights[i].load(crop, keep_idx, first, item + i * THREADS, out);
        }
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i) {
            if (item + i * THREADS >= items) break;
            if (only_moves) {
                eights[i].store_moved(a.flip);
            } else {
                eights[i].store_coloured(a);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
augment_patchify(const u8* crops, const float* params, const i64* keep_idx, const float* gray_sums, Out* tokens, int kept, int side) {
    extern __shared__ __align__(16) float shared[];
    const int chunks = (kept + TOKENS - 1) / TOKENS;
    const i64 n = blockIdx.x / chunks;
    const int begin = blockIdx.x % chunks * TOKENS;
    const int count = kept - begin < TOKENS ? kept - begin : TOKENS;
    Crop crop{crops + n * side * side * 3, side, Augmentation(params + n * COLUMNS)};
    // Without jitter the sums are uninitialised and unused.
    float sum = 0.f;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) sum += gray_sums[n * PARTS + part];
    crop.augmentation.mean_gray = sum / (float)(side * side);
    const i64 first = n * kept + begin;
    if (crop.augmentation.sigma > 0.f) {
        blurred_tokens(crop, keep_idx, first, count, shared, tokens);
    } else if (SIDE == BASE) {
        gathered_tokens(crop, keep_idx, first, count, tokens);
    } else {
        shrunk_tokens(crop, keep_idx, first, count, shared, tokens);
    }
}

__device__ __forceinline__ void load_eight(const u8* bytes, int eight, uint2* words) {
    const uint2* at = (const uint2*)bytes + 3 * eight;
#pragma unroll
    for (int i = 0; i < 3; ++i) words[i] = at[i];
}

template <int K>
__device__ __forceinline__ float sum_of_grays(const u32* words, const Augmentation& a) {
    Pixels<K> x = unpacked<K>(words);
    jitter<true>(x, a);
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < K; ++i) sum += gray_of(x.r[i], x.g[i], x.b[i]);
    return sum;
}

// Sums of gray for the contrast step, over PARTS parts of each crop, one part per block. The gray is
// that of the image after the jitter steps before the contrast.
extern "C" __global__ void __launch_bounds__(GRAY_THREADS)
sum_gray(const u8* crops, const float* params, float* gray_sums, int side) {
    __shared__ float sums[GRAY_THREADS];
    const i64 n = blockIdx.x / PARTS;
    const int part = blockIdx.x % PARTS;
    const Augmentation a(params + n * COLUMNS);
    if (a.order < 0) return;
    const u8* bytes = crops + n * side * side * 3;
    const int pixels = side * side, first = part * GRAY_THREADS + threadIdx.x;
    float sum = 0.f;
    uint2 ahead[3];
    if (first < pixels / 8) load_eight(bytes, first, ahead);
    for (int eight = first; eight < pixels / 8; eight += PARTS * GRAY_THREADS) {
        const u32 words[6] = {ahead[0].x, ahead[0].y, ahead[1].x, ahead[1].y, ahead[2].x, ahead[2].y};
        if (eight + PARTS * GRAY_THREADS < pixels / 8) load_eight(bytes, eight + PARTS * GRAY_THREADS, ahead);
        sum += sum_of_grays<8>(words, a);
    }
    // The rest is a multiple of four pixels, because sides are even.
    if (pixels % 8 && first == 0) sum += sum_of_grays<4>((const u32*)bytes + 3 * (pixels / 4 - 1), a);
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int width = GRAY_THREADS / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0) gray_sums[n * PARTS + part] = sums[0];
}
