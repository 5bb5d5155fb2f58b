// Down the image: rows of a thread's column, one after the other -> rows of the crop.
//
// SHRINKS, scale > 1: outputs are `scale` apart and reach as far, so a row between two of them is
// shared by these, in shares that add up to one. The upper one ends with the first row beyond the
// lower. The first to end is the one before those that are wanted.
// Else an output lies between two rows and ends with the lower one.
template <int TAPS, bool SHRINKS>
struct Down {
    const Across<TAPS> across;
    int made;               // outputs that have ended, of those that are wanted
    float now[3], next[3];  // sums of the upper and of the lower output; or the last row, and nothing

    __device__ __forceinline__ Down(const Axis& along, const Tile& tile) : across(along, tile), made(SHRINKS ? -1 : 0) {
#pragma unroll
        for (int i = 0; i < 3; ++i) now[i] = next[i] = 0.f;
    }

    __device__ __forceinline__ void row(const u8* bytes, const Row row, float scale, int count, Out& out) {
        float x[3];
        if (out.is_busy) across.sum(bytes, row.at, x);
        // Where it shrinks more than one only as outputs are a row apart but for the last digits.
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
            next[i] = fmaf(row.place, x[i], next[i]);
        }
    }
};
