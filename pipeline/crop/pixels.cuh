// Sums of colours -> bytes of the crop.

// 2^23 plus a value: its low byte is the value, rounded to the nearest, even in the middle.
__device__ __forceinline__ u32 rounded(float value) { return __float_as_uint(value + TWO_TO_23); }

// Where a thread's pixels go. In words, three threads of four write four pixels: pixel x begins in
// byte 3 x, and its word x % 4 bytes further on.
struct Out {
    u8* at;     // in the strip's next row
    int pitch;  // bytes of a row
    u32 order;  // of the bytes of the thread's pixel and the next one's, as __byte_perm takes it
    bool in_words;
    bool is_mine;  // whether this thread writes
    bool is_busy;  // whether a thread of this warp has a column

    __device__ __forceinline__ Out(u8* first_row, int size, const Tile& tile, bool in_words) : pitch(3 * size), in_words(in_words) {
        const int x = tile.begin + (int)threadIdx.x, third = x % 4;
        at = first_row + 3 * x + (in_words ? third : 0);
        order = third == 0 ? 0x4210u : third == 1 ? 0x5421u : 0x6542u;
        is_mine = x < tile.end && (!in_words || third < 3);
        is_busy = x - (int)(threadIdx.x % WARP) < tile.end;
    }

    // A row's; for all threads of a warp together.
    __device__ __forceinline__ void put(const float (&colours)[3]) {
        const u32 r = rounded(colours[0]), g = rounded(colours[1]), b = rounded(colours[2]);
        if (in_words) {
            const u32 pixel = __byte_perm(__byte_perm(r, g, 0x0040u), b, 0x0410u);
            const u32 word = __byte_perm(pixel, __shfl_down_sync(0xFFFFFFFFu, pixel, 1), order);
            if (is_mine) store_global_word(at, word);
        } else if (is_mine) {
            store_global_byte(at, r);
            store_global_byte(at + 1, g);
            store_global_byte(at + 2, b);
        }
        at += pitch;
    }
};
