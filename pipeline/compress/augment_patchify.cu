// The fused op: crops -> colours -> blur -> kept patches -> tokens of 768 values, in one launch.
//
// The definition is reference.py, the contract op.py. Compiled at run time for one patch side
// (SIDE) and one output type (OUT: 0 float, 1 bfloat16, 2 half), with THREADS threads a block.
//
// A block makes TOKENS tokens of one crop. Without blur and at p = 16 eight pixels go from global
// memory through registers to global memory. Otherwise float planes in shared memory are refined
// stage by stage: colours of the patch (with blur: and of its halo), blurred rows, blurred columns,
// shrunk rows, shrunk columns. Flipping left and right commutes with blur and shrink, so it is done
// where values are written.
//
// The shrink is the pseudo-inverse of the interpolation B (shrink.py), factored: A = (B^T B)^-1 B^T.
// B^T has two values a column, and B^T B is tridiagonal: 4 times fewer operations than with A.

#include "constants.cuh"
#include "colour.cuh"
#include "output.cuh"

constexpr int BASE = 16;
constexpr int VALUES = 3 * BASE * BASE;
constexpr int RADIUS = BLUR_RADIUS;
constexpr int REGION = SIDE + 2 * RADIUS;
constexpr int GROUP = 4;  // pixels that a thread colours at a time: 12 bytes

// Rows of a plane are padded so that a column of float4 lies in different banks.
__host__ __device__ constexpr int padded(int width) { return (width + GROUP - 1) / GROUP * GROUP; }
__host__ __device__ constexpr int pitch_of(int width) {
    return padded(width) / GROUP % 2 ? padded(width) : padded(width) + GROUP;
}
constexpr int PITCH = pitch_of(SIDE);
constexpr int REGION_PITCH = pitch_of(REGION);
constexpr int PATCH_FLOATS = 3 * SIDE * PITCH;
constexpr int REGION_FLOATS = 3 * REGION * REGION_PITCH;
constexpr int ROWS_FLOATS = 3 * REGION * PITCH;
constexpr int SHARED_FLOATS = REGION_FLOATS + ROWS_FLOATS;
static_assert(SHARED_FLOATS * sizeof(float) == SHARED_BYTES, "the launch takes another amount");
// Patches that fit into the shared memory that the blur of one needs.
constexpr int TOGETHER = SHARED_FLOATS / PATCH_FLOATS < 4 ? SHARED_FLOATS / PATCH_FLOATS : 4;
constexpr int RUN = SIDE <= 20 ? 4 : 8;  // blurred values that a thread makes at a time

struct Crop {
    const u8* bytes;
    int side;
    Augmentation augmentation;
};

// Where a patch lies in the crop as it is stored, before the flip.
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
    const int row = (int)place / grid, column = (int)place % grid;
    return {row * SIDE, (crop.augmentation.flip ? grid - 1 - column : column) * SIDE};
}

// ---- colours -> shared memory ----

__device__ __forceinline__ int reflected(int at, int side) {
    if (at < 0) at = -at;
    if (at >= side) at = 2 * side - 2 - at;
    return at < 0 ? 0 : at;  // a padding pixel far outside, which nothing uses
}

// Four pixels of a row, from column `left` on; columns outside the crop are reflected.
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
        x.r[i] = at[0];
        x.g[i] = at[1];
        x.b[i] = at[2];
    }
    return x;
}

__device__ __forceinline__ void put_four(float* to, const float* x) {
    *(float4*)to = make_float4(x[0], x[1], x[2], x[3]);
}

// Colours of a square with the given corner into three planes.
template <int WIDTH, int ROW_PITCH>
__device__ void colour_square(const Crop& crop, int top, int left, bool solarize, int thread, int threads, float* planes) {
    constexpr int GROUPS = padded(WIDTH) / GROUP;
    for (int item = thread; item < WIDTH * GROUPS; item += threads) {
        const int row = item / GROUPS, column = item % GROUPS * GROUP;
        Pixels<GROUP> x = four_pixels(crop, top + row, left + column);
        colour(x, crop.augmentation);
        if (solarize) {
#pragma unroll
            for (int i = 0; i < GROUP; ++i) {
                x.r[i] = solarized(x.r[i]);
                x.g[i] = solarized(x.g[i]);
                x.b[i] = solarized(x.b[i]);
            }
        }
        float* to = planes + row * ROW_PITCH + column;
        put_four(to, x.r);
        put_four(to + WIDTH * ROW_PITCH, x.g);
        put_four(to + 2 * WIDTH * ROW_PITCH, x.b);
    }
}

// ---- blur, in shared memory ----

struct Taps {
    float weight[RADIUS + 1];  // of the centre and of one side

    __device__ explicit Taps(float sigma) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i <= RADIUS; ++i) {
            weight[i] = expf(-0.5f * (i / sigma) * (i / sigma));
            sum += i ? 2.f * weight[i] : weight[i];
        }
#pragma unroll
        for (int i = 0; i <= RADIUS; ++i) weight[i] /= sum;
    }

    // RUN blurred values from RUN + 2 RADIUS neighbouring ones.
    __device__ __forceinline__ void blur(const float* in, float* out) const {
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            float sum = weight[0] * in[i + RADIUS];
#pragma unroll
            for (int k = 1; k <= RADIUS; ++k) sum = fmaf(weight[k], in[i + RADIUS - k] + in[i + RADIUS + k], sum);
            out[i] = sum;
        }
    }
};

// Blurs along the rows: planes [3][REGION][REGION_PITCH] -> [3][REGION][PITCH].
__device__ void blur_rows(const float* region, const Taps& taps, float* rows) {
    constexpr int RUNS = (padded(SIDE) + RUN - 1) / RUN;
    for (int item = threadIdx.x; item < 3 * REGION * RUNS; item += THREADS) {
        const int line = item % (3 * REGION), column = item / (3 * REGION) * RUN;
        float in[RUN + 2 * RADIUS], out[RUN];
#pragma unroll
        for (int i = 0; i < RUN + 2 * RADIUS; i += GROUP) {
            const float4 four = *(const float4*)(region + line * REGION_PITCH + column + i);
            in[i] = four.x, in[i + 1] = four.y, in[i + 2] = four.z, in[i + 3] = four.w;
        }
        taps.blur(in, out);
#pragma unroll
        for (int i = 0; i < RUN; i += GROUP) put_four(rows + line * PITCH + column + i, out + i);
    }
}

// Blurs along the columns: planes [3][REGION][PITCH] -> [3][SIDE][PITCH], and solarizes.
__device__ void blur_columns(const float* rows, const Taps& taps, bool solarize, float* planes) {
    constexpr int RUNS = (SIDE + RUN - 1) / RUN;
    for (int item = threadIdx.x; item < 3 * SIDE * RUNS; item += THREADS) {
        const int column = item % SIDE, channel = item / SIDE % 3, top = item / (3 * SIDE) * RUN;
        const float* from = rows + channel * REGION * PITCH + column;
        float in[RUN + 2 * RADIUS], out[RUN];
#pragma unroll
        for (int i = 0; i < RUN + 2 * RADIUS; ++i) in[i] = top + i < REGION ? from[(top + i) * PITCH] : 0.f;
        taps.blur(in, out);
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            if (top + i < SIDE) {
                planes[(channel * SIDE + top + i) * PITCH + column] = solarize ? solarized(out[i]) : out[i];
            }
        }
    }
}

// ---- shrink, in shared memory, and output ----

// 16 values from SIDE ones: (B^T B)^-1 B^T. Row i of B has two values, at LEFT[i] and beside it.
template <class Line>
__device__ __forceinline__ void shrink_line(const Line& line, float* y) {
#pragma unroll
    for (int j = 0; j < BASE; ++j) y[j] = 0.f;
#pragma unroll
    for (int i = 0; i < SIDE; ++i) {
        const float value = line.at(i);
        y[SHRINK_LEFT[i]] = fmaf(1.f - SHRINK_WEIGHT[i], value, y[SHRINK_LEFT[i]]);
        y[SHRINK_LEFT[i] + 1] = fmaf(SHRINK_WEIGHT[i], value, y[SHRINK_LEFT[i] + 1]);
    }
    // L D L^T y' = y: down, across, up.
#pragma unroll
    for (int j = 1; j < BASE; ++j) y[j] = fmaf(-SHRINK_LOWER[j], y[j - 1], y[j]);
#pragma unroll
    for (int j = 0; j < BASE; ++j) y[j] *= SHRINK_INVERSE_DIAGONAL[j];
#pragma unroll
    for (int j = BASE - 2; j >= 0; --j) y[j] = fmaf(-SHRINK_LOWER[j + 1], y[j + 1], y[j]);
}

struct Row {
    const float* from;

    // Four at a time; the compiler keeps what neighbouring values share.
    __device__ __forceinline__ float at(int i) const {
        const float4 four = *(const float4*)(from + i / GROUP * GROUP);
        return i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
    }
};

struct Column {
    const float* from;

    __device__ __forceinline__ float at(int i) const { return from[i * PITCH]; }
};

__device__ __forceinline__ float normalised(float value, int channel) {
    return fmaf(value, 1.f / STD[channel], -MEAN[channel] / STD[channel]);
}

// Rows of `tokens` patches, in place: the first 16 values of each row become the shrunk ones.
__device__ void shrink_rows(float* planes, int tokens) {
    for (int line = threadIdx.x; line < tokens * 3 * SIDE; line += THREADS) {
        float y[BASE];
        shrink_line(Row{planes + line * PITCH}, y);
#pragma unroll
        for (int j = 0; j < BASE; j += GROUP) put_four(planes + line * PITCH + j, y + j);
    }
}

// Columns of `tokens` patches, normalised and written out.
__device__ void shrink_columns(const float* planes, int tokens, bool flip, Out* to) {
    for (int item = threadIdx.x; item < tokens * 3 * BASE; item += THREADS) {
        const int column = item % BASE, channel = item / BASE % 3, token = item / (3 * BASE);
        float y[BASE];
        shrink_line(Column{planes + (token * 3 + channel) * SIDE * PITCH + column}, y);
        Out* at = to + token * VALUES + channel * BASE * BASE + (flip ? BASE - 1 - column : column);
#pragma unroll
        for (int j = 0; j < BASE; ++j) store_one(at + j * BASE, normalised(y[j], channel));
    }
}

// A finished 16 x 16 patch, normalised and written out.
__device__ void write_patch(const float* planes, bool flip, Out* to) {
    for (int item = threadIdx.x; item < VALUES; item += THREADS) {
        const int column = item % BASE, row = item / BASE % BASE, channel = item / (BASE * BASE);
        const float value = planes[(channel * SIDE + row) * PITCH + (flip ? BASE - 1 - column : column)];
        store_one(to + item, normalised(value, channel));
    }
}

// ---- the three ways of a token ----

__device__ void blurred_tokens(const Crop& crop, const i64* keep_idx, i64 first, int tokens, float* shared, Out* out) {
    float* region = shared;
    float* rows = shared + REGION_FLOATS;
    const Augmentation& a = crop.augmentation;
    const Taps taps(a.sigma);
    for (int t = 0; t < tokens; ++t) {
        const Place place = place_of(keep_idx, first + t, crop);
        colour_square<REGION, REGION_PITCH>(crop, place.top - RADIUS, place.left - RADIUS, false, threadIdx.x, THREADS, region);
        __syncthreads();
        blur_rows(region, taps, rows);
        __syncthreads();
        blur_columns(rows, taps, a.solarize, region);
        __syncthreads();
        Out* to = out + (first + t) * VALUES;
        if (SIDE == BASE) {
            write_patch(region, a.flip, to);
        } else {
            shrink_rows(region, 1);
            __syncthreads();
            shrink_columns(region, 1, a.flip, to);
        }
        __syncthreads();
    }
}

__device__ void shrunk_tokens(const Crop& crop, const i64* keep_idx, i64 first, int tokens, float* shared, Out* out) {
    const Augmentation& a = crop.augmentation;
    for (int t = 0; t < tokens; t += TOGETHER) {
        const int here = tokens - t < TOGETHER ? tokens - t : TOGETHER;
        // The threads are shared out among the tokens.
        constexpr int EACH = THREADS < TOGETHER ? 1 : THREADS / TOGETHER;
        for (int token = threadIdx.x / EACH; token < here; token += (THREADS + EACH - 1) / EACH) {
            const Place place = place_of(keep_idx, first + t + token, crop);
            colour_square<SIDE, PITCH>(crop, place.top, place.left, a.solarize, threadIdx.x % EACH, EACH, shared + token * PATCH_FLOATS);
        }
        __syncthreads();
        shrink_rows(shared, here);
        __syncthreads();
        shrink_columns(shared, here, a.flip, out + (first + t) * VALUES);
        __syncthreads();
    }
}

// p = 16: eight pixels a thread, 24 bytes in, three stores of eight values out.
__device__ void gathered_tokens(const Crop& crop, const i64* keep_idx, i64 first, int tokens, Out* out) {
    constexpr int EIGHT = 8;
    const Augmentation& a = crop.augmentation;
    const bool only_moves = a.only_moves();
    for (int item = threadIdx.x; item < tokens * 2 * BASE; item += THREADS) {
        const int half = item % 2, row = item / 2 % BASE;
        const i64 token = first + item / (2 * BASE);
        const Place place = place_of(keep_idx, token, crop);
        const int column = place.left + (a.flip ? 1 - half : half) * EIGHT;
        const uint2* at = (const uint2*)(crop.bytes + ((place.top + row) * crop.side + column) * 3);
        const uint2 w0 = at[0], w1 = at[1], w2 = at[2];
        const u32 words[6] = {w0.x, w0.y, w1.x, w1.y, w2.x, w2.y};
        Pixels<EIGHT> x = unpacked<EIGHT>(words);
        if (!only_moves) colour(x, a);
        Out* to = out + token * VALUES + row * BASE + half * EIGHT;
#pragma unroll
        for (int channel = 0; channel < 3; ++channel) {
            float* plane = channel == 0 ? x.r : channel == 1 ? x.g : x.b;
#pragma unroll
            for (int i = 0; i < EIGHT; ++i) {
                if (only_moves) {
                    plane[i] = divided(divided(plane[i], 255.f, 1.f / 255.f) - MEAN[channel], STD[channel], 1.f / STD[channel]);
                } else {
                    plane[i] = normalised(a.solarize ? solarized(plane[i]) : plane[i], channel);
                }
            }
            store_eight(to + channel * BASE * BASE, plane, a.flip);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
augment_patchify(const u8* crops, const float* params, const i64* keep_idx, const float* gray_sums, Out* tokens, int kept, int side) {
    extern __shared__ __align__(16) float shared[];
    const int chunks = (kept + TOKENS - 1) / TOKENS;
    const i64 n = blockIdx.x / chunks;
    const int begin = blockIdx.x % chunks * TOKENS;
    const int count = kept - begin < TOKENS ? kept - begin : TOKENS;
    Crop crop{crops + n * side * side * 3, side, Augmentation(params + n * COLUMNS)};
    if (crop.augmentation.order >= 0) {
        float sum = 0.f;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) sum += gray_sums[n * PARTS + part];
        crop.augmentation.mean_gray = sum / (float)(side * side);
    }
    const i64 first = n * kept + begin;
    if (crop.augmentation.sigma > 0.f) {
        blurred_tokens(crop, keep_idx, first, count, shared, tokens);
    } else if (SIDE == BASE) {
        gathered_tokens(crop, keep_idx, first, count, tokens);
    } else {
        shrunk_tokens(crop, keep_idx, first, count, shared, tokens);
    }
}

// The gray that the contrast blends with: sums over PARTS parts of each crop, of the gray of the
// image after those steps of the jitter that come before the contrast. One part a block.
extern "C" __global__ void __launch_bounds__(THREADS)
sum_gray(const u8* crops, const float* params, float* gray_sums, int side) {
    __shared__ float sums[THREADS];
    const i64 n = blockIdx.x / PARTS;
    const int part = blockIdx.x % PARTS;
    const Augmentation a(params + n * COLUMNS);
    if (a.order < 0) return;
    const u32* words = (const u32*)(crops + n * side * side * 3);
    const int groups = side * side / GROUP, step = PARTS * THREADS;
    float sum = 0.f;
    for (int group = part * THREADS + threadIdx.x; group < groups; group += step) {
        const u32 three[3] = {words[3 * group], words[3 * group + 1], words[3 * group + 2]};
        Pixels<GROUP> x = unpacked<GROUP>(three);
        scale(x, 1.f / 255.f);
        jitter<true>(x, a);
#pragma unroll
        for (int i = 0; i < GROUP; ++i) sum += gray_of(x.r[i], x.g[i], x.b[i]);
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int width = THREADS / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0) gray_sums[n * PARTS + part] = sums[0];
}
