// Down the image: rows of a thread's column, one after the other -> rows of the crop.
//
// scale > 1: outputs are `scale` apart and reach as far, so a row between two of them is shared by
// these, in shares that add up to one. The upper one ends with the first row beyond the lower. The
// first to end is the one before those that are wanted.
// scale <= 1: an output lies between two rows and ends with the lower one.
template <int TAPS>
struct Down {
    const Across<TAPS> across;
    const bool shrinks;
    int made;               // outputs that have ended, of those that are wanted
    float now[3], next[3];  // sums of the upper and of the lower output; or the last row, and nothing

    __device__ __forceinline__ Down(const Axis& along, const Axis& axis, const Tile& tile)
        : across(along, tile), shrinks(axis.scale > 1.f), made(shrinks ? -1 : 0) {
#pragma unroll
        for (int i = 0; i < 3; ++i) now[i] = next[i] = 0.f;
    }

    __device__ __forceinline__ void row(const u8* bytes, const Row& row, float scale, int count, const Out& out) {
        float x[3];
        if (out.is_busy) across.sum(bytes + row.at, x);
        // More than one also where scale > 1 but for the last digits.
#pragma unroll 1
        for (int ended = 0; ended < row.ends; ++ended, ++made) {
            float sums[3];
            if (shrinks) {
#pragma unroll
                for (int i = 0; i < 3; ++i) sums[i] = now[i] * row.norm, now[i] = next[i], next[i] = 0.f;
            } else {
                const float share = fmaf((float)ended, scale, row.place);
#pragma unroll
                for (int i = 0; i < 3; ++i) sums[i] = fmaf(share, x[i] - now[i], now[i]);
            }
            if (made >= 0 && made < count && out.is_busy) out.put(made, sums);
        }
        const float upper = shrinks ? 1.f - row.place : 1.f;
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            now[i] = fmaf(upper, x[i], shrinks ? now[i] : 0.f);
            next[i] = fmaf(row.place, x[i], next[i]);
        }
    }
};
