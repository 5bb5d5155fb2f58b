// Sums of colours -> bytes of the crop.

// 2^23 plus a value: its low byte is the value, rounded to the nearest, even in the middle.
__device__ __forceinline__ u32 rounded(float sum, float norm) {
    return __float_as_uint(fmaf(sum, norm, TWO_TO_23));
}

// Where a tile's pixels go.
struct Out {
    u8* first_row;  // of the strip, from column 0 on
    int size;       // pixels of a row
    Tile tile;
    bool in_words;

    // Whether any thread of this warp has one of the tile's columns.
    __device__ __forceinline__ bool has_column() const {
        return tile.begin + (int)(threadIdx.x / WARP * WARP) < tile.end;
    }

    // The warp's pixels in a row of the strip: sums of colours times `norm`.
    __device__ __forceinline__ void put(int row, const float (&sums)[3], float norm) const {
        const int x = tile.begin + (int)threadIdx.x;
        u8* at = first_row + 3 * (row * size + x);
        const u32 r = rounded(sums[0], norm), g = rounded(sums[1], norm), b = rounded(sums[2], norm);
        if (in_words) {
            put_words(at, x, __byte_perm(__byte_perm(r, g, 0x0040u), b, 0x0410u));
        } else if (x < tile.end) {
            store_global_byte(at, r);
            store_global_byte(at + 1, g);
            store_global_byte(at + 2, b);
        }
    }

    // Three threads of four write four pixels, three words.
    __device__ __forceinline__ void put_words(u8* at, int x, u32 pixel) const {
        const u32 next = __shfl_down_sync(0xFFFFFFFFu, pixel, 1);
        const int third = x % 4;
        const u32 word = __byte_perm(pixel, next, third == 0 ? 0x4210u : third == 1 ? 0x5421u : 0x6542u);
        // Pixel x begins in byte 3 x, and its word `third` bytes further on.
        if (x < tile.end && third < 3) store_global_word(at + third, word);
    }
};
