// Gaussian blur of a patch with its halo, in shared memory.

constexpr int RADIUS = BLUR_RADIUS;
constexpr int REGION = SIDE + 2 * RADIUS;
constexpr int RUN = SIDE <= 20 ? 4 : 8;  // blurred values that a thread makes at a time

// Rows of a plane are padded so that a column of float4 lies in different banks.
__host__ __device__ constexpr int padded(int width) { return (width + GROUP - 1) / GROUP * GROUP; }
__host__ __device__ constexpr int pitch_of(int width) {
    return padded(width) / GROUP % 2 ? padded(width) : padded(width) + GROUP;
}
constexpr int REGION_PITCH = pitch_of(REGION);
constexpr int PLANE = REGION * REGION_PITCH;

// Colours of a patch and its halo -> planes [3][REGION][REGION_PITCH].
__device__ void colour_region(const Crop& crop, const Place& place, float* planes) {
    constexpr int GROUPS = padded(REGION) / GROUP;
    for (int item = threadIdx.x; item < REGION * GROUPS; item += THREADS) {
        const int row = item / GROUPS, column = item % GROUPS * GROUP;
        Pixels<GROUP> x = four_pixels(crop, place.top - RADIUS + row, place.left - RADIUS + column);
        colour(x, crop.augmentation);
        float* to = planes + row * REGION_PITCH + column;
        put_four(to, x.r);
        put_four(to + PLANE, x.g);
        put_four(to + 2 * PLANE, x.b);
    }
}

struct Taps {
    float weight[RADIUS + 1];  // of the centre and of one side

    __device__ explicit Taps(float sigma) {
        const float precision = 1.f / sigma;
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i <= RADIUS; ++i) {
            weight[i] = expf(-0.5f * (i * precision) * (i * precision));
            sum += i ? 2.f * weight[i] : weight[i];
        }
        const float scale = 1.f / sum;
#pragma unroll
        for (int i = 0; i <= RADIUS; ++i) weight[i] *= scale;
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

// Along the rows, in place: column i becomes what was around column i + RADIUS. Whole rows at a
// time, so that nothing is overwritten before all of it was read.
__device__ void blur_rows(float* planes, const Taps& taps) {
    constexpr int RUNS = (SIDE + RUN - 1) / RUN, AT_A_TIME = THREADS / RUNS;
    for (int first = 0; first < 3 * REGION; first += AT_A_TIME) {
        const int line = first + threadIdx.x % AT_A_TIME, column = threadIdx.x / AT_A_TIME * RUN;
        const bool at_work = line < 3 * REGION && column < SIDE;
        float* from = planes + line * REGION_PITCH + column;
        float in[RUN + 2 * RADIUS], out[RUN];
        if (at_work) {
#pragma unroll
            for (int i = 0; i < RUN + 2 * RADIUS; i += GROUP) {
                const float4 four = *(const float4*)(from + i);
                in[i] = four.x, in[i + 1] = four.y, in[i + 2] = four.z, in[i + 3] = four.w;
            }
            taps.blur(in, out);
        }
        __syncthreads();
        if (at_work) {
#pragma unroll
            for (int i = 0; i < RUN; i += GROUP) put_four(from + i, out + i);
        }
    }
}

// Along the columns, in place: row i becomes what was around row i + RADIUS. Then solarizes.
__device__ void blur_columns(float* planes, const Taps& taps, bool solarize) {
    constexpr int RUNS = (SIDE + RUN - 1) / RUN, AT_A_TIME = THREADS / RUNS;
    for (int first = 0; first < 3 * SIDE; first += AT_A_TIME) {
        const int line = first + threadIdx.x % AT_A_TIME, top = threadIdx.x / AT_A_TIME * RUN;
        const bool at_work = line < 3 * SIDE && top < SIDE;
        float* from = planes + line / SIDE * PLANE + top * REGION_PITCH + line % SIDE;
        float in[RUN + 2 * RADIUS], out[RUN];
        if (at_work) {
#pragma unroll
            for (int i = 0; i < RUN + 2 * RADIUS; ++i) in[i] = top + i < REGION ? from[i * REGION_PITCH] : 0.f;
            taps.blur(in, out);
        }
        __syncthreads();
        if (at_work) {
#pragma unroll
            for (int i = 0; i < RUN; ++i) {
                if (top + i < SIDE) from[i * REGION_PITCH] = solarize ? solarized(out[i]) : out[i];
            }
        }
    }
}

// Rows of a blurred patch, in place: the first 16 columns become the shrunk row.
__device__ void shrink_blurred_rows(float* planes) {
    for (int line = threadIdx.x; line < 3 * SIDE; line += THREADS) {
        float* row = planes + line / SIDE * PLANE + line % SIDE * REGION_PITCH;
        float y[BASE];
#pragma unroll
        for (int j = 0; j < BASE; ++j) y[j] = 0.f;
#pragma unroll
        for (int i = 0; i < SIDE; i += GROUP) {
            const float4 four = *(const float4*)(row + i);
            const float x[GROUP] = {four.x, four.y, four.z, four.w};
            add_to_line(y, i, x);
        }
        solve_line(y);
        put_line(row, y);
    }
}

// A finished 16 x 16 patch, normalised and written out.
__device__ void write_patch(const float* planes, bool flip, Out* to) {
    for (int item = threadIdx.x; item < VALUES / 2; item += THREADS) {
        const int column = item % (BASE / 2) * 2, row = item / (BASE / 2) % BASE, channel = item / (BASE * BASE / 2);
        const float* line = planes + channel * PLANE + row * REGION_PITCH;
        const float left = line[flip ? BASE - 1 - column : column], right = line[flip ? BASE - 2 - column : column + 1];
        store_two(to + 2 * item, normalised(left, channel), normalised(right, channel));
    }
}

__device__ void blurred_tokens(const Crop& crop, const i64* keep_idx, i64 first, int tokens, float* planes, Out* out) {
    const Augmentation& a = crop.augmentation;
    const Taps taps(a.sigma);
    for (int t = 0; t < tokens; ++t) {
        colour_region(crop, place_of(keep_idx, first + t, crop), planes);
        __syncthreads();
        blur_rows(planes, taps);
        __syncthreads();
        blur_columns(planes, taps, a.solarize);
        __syncthreads();
        Out* to = out + (first + t) * VALUES;
        if (SIDE == BASE) {
            write_patch(planes, a.flip, to);
        } else {
            shrink_blurred_rows(planes);
            __syncthreads();
            shrink_columns<REGION_PITCH, PLANE, 0>(planes, 1, a.flip, to);
        }
        __syncthreads();
    }
}

constexpr int BLUR_FLOATS = 3 * PLANE;
constexpr int PLAIN_FLOATS = SIDE == BASE ? 0 : CHUNK * (SHRUNK_FLOATS + SIDE * ROW_PITCH);
static_assert((BLUR_FLOATS > PLAIN_FLOATS ? BLUR_FLOATS : PLAIN_FLOATS) * 4 == SHARED_BYTES, "the launch takes another amount");
