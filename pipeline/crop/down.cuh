// Down the image: rows of a thread's column, one after the other -> rows of the crop.
//
// SHRINKS, scale > 1: outputs are `scale` apart and reach as far, so a row between two of them is
// shared by these, in shares that add up to one. The upper one ends with the first row beyond the
// lower. The first row lies between the output before those that are wanted and the first of these.
// Else an output lies between two rows and ends with the lower one; several may.
template <int TAPS, bool SHRINKS>
struct Down {
    const Across<TAPS> across;
    int made;               // wanted outputs that have ended; -1 before the one before them has
    float now[3], next[3];  // SHRINKS: sums of the upper and the lower output. Else the row before, -

    __device__ __forceinline__ Down(const Axis& along, const Tile& tile) : across(along, tile), made(SHRINKS ? -1 : 0) {
#pragma unroll
        for (int i = 0; i < 3; ++i) now[i] = next[i] = 0.f;
    }

    __device__ __forceinline__ void row(const u8* bytes, const Row row, float scale, int count, Out& out) {
        float x[3];
        if (out.is_busy) across.sum(bytes, row.at, x);
        // SHRINKS: one at most, or two where scale is 1 but for its last digits.
#pragma unroll 1
        for (int ended = 0; ended < row.ends; ++ended, ++made) {
            float sums[3];
            const float share = SHRINKS ? row.norm : fmaf((float)ended, scale, row.place);
#pragma unroll
            for (int i = 0; i < 3; ++i) {
                sums[i] = SHRINKS ? now[i] * share : fmaf(share, x[i] - now[i], now[i]);
                if (SHRINKS) now[i] = next[i], next[i] = 0.f;
            }
            if (made >= 0 && made < count && out.is_busy) out.put(sums);
        }
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            now[i] = SHRINKS ? fmaf(1.f - row.place, x[i], now[i]) : x[i];
            if (SHRINKS) next[i] = fmaf(row.place, x[i], next[i]);
        }
    }
};
