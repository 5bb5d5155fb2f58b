// Across the rows: rows of floats in the ring -> pixels of the crop. A thread has a column of them.

// Columns [begin, end) of a crop, and the image's pixels [first, last] that they see.
struct Tile {
    int begin, end, first, last;
};

// What `across` needs, in shared memory: registers are full of what is on its way from the image.
struct __align__(16) Across {
    float begin, scale, radius, inverse;  // of the axis
    Tile tile;
    u8* out;  // the tile's first row, from column 0 on
    bool in_words;
};

// 2^23 plus a value: its low byte is the value, rounded to the nearest, even in the middle.
__device__ __forceinline__ u32 rounded(float sum, float norm) {
    return __float_as_uint(fmaf(sum, norm, TWO_TO_23));
}

struct Pixel {
    u32 r, g, b;  // in the low bytes
};

// A row of pixels, one a thread, from the row's first on. `mine_too`: this thread has one.
__device__ __forceinline__ void store_bytes(u8* row, int x, bool mine_too, const Pixel& pixel) {
    if (!mine_too) return;
    store_global_byte(row + 3 * x, pixel.r);
    store_global_byte(row + 3 * x + 1, pixel.g);
    store_global_byte(row + 3 * x + 2, pixel.b);
}

// In words: three threads of four write four pixels.
__device__ __forceinline__ void store_words(u8* row, int x, bool mine_too, const Pixel& pixel) {
    const u32 mine = __byte_perm(__byte_perm(pixel.r, pixel.g, 0x0040u), pixel.b, 0x0410u);
    const u32 next = __shfl_down_sync(0xFFFFFFFFu, mine, 1);
    const int third = x % 4;
    const u32 word = __byte_perm(mine, next, third == 0 ? 0x4210u : third == 1 ? 0x5421u : 0x6542u);
    // Four pixels are three words: pixel x begins in byte 3 x, and its word `third` bytes further on.
    if (mine_too && third < 3) store_global_word(row + 3 * x + third, word);
}

// `rows` (at most STEPS) neighbouring rows of the tile, `row` being the first, from as many
// neighbouring slots.
__device__ __forceinline__ void across(const float* slots, const Across& plan, int row, int rows, int size) {
    const int lane = threadIdx.x % WARP;
    const Tile tile = plan.tile;
    const float radius = plan.radius, inverse = plan.inverse;
    const int taps = (int)ceilf(2.f * radius);
    for (int left = tile.begin + (int)threadIdx.x - lane; left < tile.end; left += THREADS) {
        const float centre = fmaf((float)smaller(left + lane, tile.end - 1), plan.scale, plan.begin);
        float distance = ceilf(centre - radius), weights = 0.f;
        int pixel = (int)distance;
        distance -= centre;
        float r[STEPS], g[STEPS], b[STEPS];
#pragma unroll
        for (int i = 0; i < STEPS; ++i) r[i] = g[i] = b[i] = 0.f;
        for (int tap = 0; tap < taps; ++tap) {
            const float weight = tent(distance, inverse);
            const int at = smaller(larger(pixel, tile.first), tile.last) - tile.first;
            const float* from = slots + 3 * at;
            weights += weight;
            distance += 1.f;
            ++pixel;
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                r[i] = fmaf(weight, from[i * SPAN], r[i]);
                g[i] = fmaf(weight, from[i * SPAN + 1], g[i]);
                b[i] = fmaf(weight, from[i * SPAN + 2], b[i]);
            }
        }
        const float norm = __fdividef(1.f, weights);
        const int x = left + lane;
        const bool mine_too = x < tile.end, in_words = plan.in_words;
        u8* out = plan.out + row * 3 * size;
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            if (i >= rows) break;
            const Pixel sum{rounded(r[i], norm), rounded(g[i], norm), rounded(b[i], norm)};
            if (in_words) {
                store_words(out + i * 3 * size, x, mine_too, sum);
            } else {
                store_bytes(out + i * 3 * size, x, mine_too, sum);
            }
        }
    }
}
