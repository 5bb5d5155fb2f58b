// p x p patches -> 16 x 16: A X A^T with A = pinv(B), B the interpolation from 16 to p (shrink.py).
//
// Factored, A = (B^T B)^-1 B^T: row i of B has two values, at LEFT[i] and beside it, so B^T is two
// multiplications per pixel; B^T B is tridiagonal, and its factors L D L^T are compile-time constants.
// The factored form needs a quarter of the operations of a product with A.

// Rows of shrunk values, channel by channel. Their distance puts columns, which 8 threads per channel
// read, into different banks.
constexpr int SHRUNK_PITCH = 20;
constexpr int SHRUNK_CHANNEL = (SIDE * SHRUNK_PITCH + 15) / 32 * 32 + 16;
constexpr int SHRUNK_FLOATS = 3 * SHRUNK_CHANNEL;

// Staged row of a patch, in units as wide as its alignment allows. A row of 30 px may begin in the
// middle of a word; the copy begins with this word. The pitch is an odd number of units, so rows
// that neighbouring threads read are in different banks.
constexpr int UNIT_WORDS = SIDE == 48 ? 4 : SIDE % 8 == 0 ? 2 : 1;
constexpr int ROW_WORDS = (3 * SIDE + (SIDE % 4 ? 2 : 0) + 3) / 4;
constexpr int ROW_UNITS = ROW_WORDS / UNIT_WORDS;
constexpr int ROW_PITCH = (ROW_UNITS | 1) * UNIT_WORDS;
static_assert(ROW_WORDS % UNIT_WORDS == 0, "whole units");

constexpr int WARP = 32;

static_assert(SIDE == BASE || CHUNK * SIDE <= THREADS, "a thread for each row of a chunk's patches");

template <int N>
__device__ __forceinline__ void add_to_line(float (&y)[BASE], int first, const float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if (first + i < SIDE) {
            const int left = SHRINK_LEFT[first + i];
            const float weight = SHRINK_WEIGHT[first + i];
            if (weight != 1.f) y[left] = fmaf(1.f - weight, x[i], y[left]);
            if (weight != 0.f) y[left + 1] = fmaf(weight, x[i], y[left + 1]);
        }
    }
}

// B^T B = L D L^T: down, across, up.
__device__ __forceinline__ void solve_line(float (&y)[BASE]) {
#pragma unroll
    for (int j = 1; j < BASE; ++j) y[j] = fmaf(-SHRINK_LOWER[j], y[j - 1], y[j]);
#pragma unroll
    for (int j = 0; j < BASE; ++j) y[j] *= SHRINK_INVERSE_DIAGONAL[j];
#pragma unroll
    for (int j = BASE - 2; j >= 0; --j) y[j] = fmaf(-SHRINK_LOWER[j + 1], y[j + 1], y[j]);
}

__device__ __forceinline__ void put_line(float* to, const float (&y)[BASE]) {
#pragma unroll
    for (int j = 0; j < BASE; j += GROUP) put_four(to + j, y + j);
}

// One warp copies the bytes of a patch; each thread copies one unit of every ROWS-th row.
__device__ __forceinline__ void stage_bytes(const Crop& crop, const Place& place, u32* staged) {
    constexpr int ROWS = WARP / ROW_UNITS;
    const int lane = threadIdx.x % WARP, unit = lane % ROW_UNITS;
    if (lane >= ROWS * ROW_UNITS) return;
    const u8* from = crop.bytes + ((place.top + lane / ROW_UNITS) * crop.side + place.left) * 3;
    u32* to = staged + lane / ROW_UNITS * ROW_PITCH + unit * UNIT_WORDS;
#pragma unroll 4
    for (int row = lane / ROW_UNITS; row < SIDE; row += ROWS) {
        const u8* begin = SIDE % 4 ? from - (size_t)from % 4 : from;
        copy_words<UNIT_WORDS>(to, (const u32*)begin + unit * UNIT_WORDS);
        from += ROWS * crop.side * 3;
        to += ROWS * ROW_PITCH;
    }
}

// Words of a staged row; words beyond its end are zero.
template <int COUNT>
__device__ __forceinline__ void staged_words(const u32* row, int first, u32 (&words)[COUNT]) {
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
        const int word = first + k, in_unit = word % UNIT_WORDS;
        if (word >= ROW_WORDS) {
            words[k] = 0u;
        } else if (UNIT_WORDS == 4) {
            const uint4 unit = *(const uint4*)(row + word - in_unit);
            words[k] = in_unit == 0 ? unit.x : in_unit == 1 ? unit.y : in_unit == 2 ? unit.z : unit.w;
        } else if (UNIT_WORDS == 2) {
            const uint2 unit = *(const uint2*)(row + word - in_unit);
            words[k] = in_unit == 0 ? unit.x : unit.y;
        } else {
            words[k] = row[word];
        }
    }
}

// Colours and shrinks the row of a patch whose words are given, beginning `skip` (0 or 2) bytes in.
__device__ __forceinline__ void shrink_row(const u32* staged, u32 skip, const Augmentation& a, float (&r)[BASE], float (&g)[BASE], float (&b)[BASE]) {
#pragma unroll
    for (int j = 0; j < BASE; ++j) r[j] = g[j] = b[j] = 0.f;
    constexpr int COUNT = SIDE == 20 ? 4 : 8, WORDS = 3 * COUNT / 4;
#pragma unroll
    for (int i = 0; i < SIDE; i += COUNT) {
        const int word = 3 * i / 4;
        u32 words[WORDS + (SIDE % 4 ? 1 : 0)];
        staged_words(staged, word, words);
        if (SIDE % 4) {
#pragma unroll
            for (int k = 0; k < WORDS; ++k) words[k] = __funnelshift_r(words[k], words[k + 1], 8 * skip);
        }
        Pixels<COUNT> x = unpacked<COUNT>(words);
        colour(x, a);
        if (a.solarize) solarize(x);
        add_to_line(r, i, x.r);
        add_to_line(g, i, x.g);
        add_to_line(b, i, x.b);
    }
    solve_line(r);
    solve_line(g);
    solve_line(b);
}

__device__ __forceinline__ void store_columns(Out* to, const float (&left)[BASE], const float (&right)[BASE], int channel) {
#pragma unroll
    for (int j = 0; j < BASE; ++j) {
        store_two(to + j * BASE, normalised(left[j], channel), normalised(right[j], channel));
    }
}

// Columns of `tokens` patches, two a thread, normalised and written out. ROW, CHANNEL and TOKEN are
// how far apart rows, channels and tokens lie.
template <int ROW, int CHANNEL, int TOKEN>
__device__ void shrink_columns(const float* shrunk, int tokens, bool flip, Out* to) {
    constexpr int PAIRS = BASE / 2;
    for (int item = threadIdx.x; item < tokens * 3 * PAIRS; item += THREADS) {
        const int pair = item % PAIRS, channel = item / PAIRS % 3, token = item / (3 * PAIRS);
        const float* from = shrunk + token * TOKEN + channel * CHANNEL + 2 * pair;
        float y0[BASE], y1[BASE];
#pragma unroll
        for (int j = 0; j < BASE; ++j) y0[j] = y1[j] = 0.f;
#pragma unroll
        for (int i = 0; i < SIDE; ++i) {
            const float2 two = *(const float2*)(from + i * ROW);
            const float x0[1] = {two.x}, x1[1] = {two.y};
            add_to_line(y0, i, x0);
            add_to_line(y1, i, x1);
        }
        solve_line(y0);
        solve_line(y1);
        Out* at = to + token * VALUES + channel * BASE * BASE;
        if (flip) {
            store_columns(at + BASE - 2 - 2 * pair, y1, y0, channel);
        } else {
            store_columns(at + 2 * pair, y0, y1, channel);
        }
    }
}

// The bytes of the next patches, at most a chunk of them, a warp for each.
__device__ __forceinline__ void stage_chunk(const Crop& crop, const i64* keep_idx, i64 first, int tokens, u32* staged) {
    for (int token = threadIdx.x / WARP; token < CHUNK && token < tokens; token += THREADS / WARP) {
        stage_bytes(crop, place_of(keep_idx, first + token, crop), staged + token * SIDE * ROW_PITCH);
    }
}

// Chunks of patches, with one thread per row. The bytes of the next chunk are fetched while the
// threads compute the columns of this chunk.
__device__ void shrunk_tokens(const Crop& crop, const i64* keep_idx, i64 first, int tokens, float* shared, Out* out) {
    float* shrunk = shared;
    u32* staged = (u32*)(shared + CHUNK * SHRUNK_FLOATS);
    const int token = threadIdx.x / SIDE, row = threadIdx.x % SIDE;
    stage_chunk(crop, keep_idx, first, tokens, staged);
    for (int t = 0; t < tokens; t += CHUNK) {
        const int here = tokens - t < CHUNK ? tokens - t : CHUNK;
        u32 skip = 0;
        if (SIDE % 4 && token < here) {
            const Place place = place_of(keep_idx, first + t + token, crop);
            skip = (u32)((size_t)(crop.bytes + ((place.top + row) * crop.side + place.left) * 3) % 4);
        }
        wait_for_copies();
        __syncthreads();
        if (token < here) {
            float r[BASE], g[BASE], b[BASE];
            shrink_row(staged + (token * SIDE + row) * ROW_PITCH, skip, crop.augmentation, r, g, b);
            float* to = shrunk + token * SHRUNK_FLOATS + row * SHRUNK_PITCH;
            put_line(to, r);
            put_line(to + SHRUNK_CHANNEL, g);
            put_line(to + 2 * SHRUNK_CHANNEL, b);
        }
        __syncthreads();
        stage_chunk(crop, keep_idx, first + t + CHUNK, tokens - t - CHUNK, staged);
        shrink_columns<SHRUNK_PITCH, SHRUNK_CHANNEL, SHRUNK_FLOATS>(shrunk, here, crop.augmentation.flip, out + (first + t) * VALUES);
    }
}
