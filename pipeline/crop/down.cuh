// Down the image: rows of a thread's column, one after the other -> rows of the crop.

// scale > 1. Outputs are `scale` apart and reach as far: a row between two of them is shared by
// these, in shares that add up to one. A row ends one output at most: where rounding makes it pass
// two, the second ends a row later, with a share of about nothing more.
struct Shrinking {
    const Axis& axis;
    const Out& out;
    const int begin, count;  // outputs that are wanted
    int y, made;             // the next row; outputs that are made
    int output;              // the upper of the two outputs
    float now[3], next[3];      // their sums
    float now_sum, next_sum;  // of their weights

    __device__ __forceinline__ Shrinking(const Axis& axis, int begin, int count, const Out& out)
        : axis(axis), out(out), begin(begin), count(count), made(0), output(begin - 1) {
        y = (int)floorf(axis.centre(output)) + 1;
        now_sum = next_sum = 0.f;
#pragma unroll
        for (int i = 0; i < 3; ++i) now[i] = next[i] = 0.f;
    }

    // The one behind it ends the last output, with any values.
    __device__ __forceinline__ int last_row() const { return (int)floorf(axis.centre(begin + count)); }

    template <class Columns>
    __device__ __forceinline__ void row(const Columns& across, const u8* bytes, bool is_busy) {
        const float at = (float)y, lower = axis.centre(output + 1);
        if (at > lower) end_output(is_busy);
        const float share = (at - axis.centre(output)) * axis.inverse, other = 1.f - share;
        now_sum += other;
        next_sum += share;
        if (is_busy) {
            float x[3];
            across.sum(bytes, x);
#pragma unroll
            for (int i = 0; i < 3; ++i) {
                now[i] = fmaf(other, x[i], now[i]);
                next[i] = fmaf(share, x[i], next[i]);
            }
        }
        ++y;
    }

    __device__ __forceinline__ void end_output(bool is_busy) {
        const bool is_wanted = output >= begin && made < count;
        if (is_wanted && is_busy) out.put(made, now, __fdividef(1.f, now_sum));
#pragma unroll
        for (int i = 0; i < 3; ++i) now[i] = next[i], next[i] = 0.f;
        now_sum = next_sum, next_sum = 0.f;
        made += is_wanted;
        ++output;
    }
};

// scale <= 1. An output lies between two rows of the image.
struct Growing {
    const Axis& axis;
    const Out& out;
    const int begin, count;
    int y, made;
    float above[3], below[3];  // the two rows

    __device__ __forceinline__ Growing(const Axis& axis, int begin, int count, const Out& out)
        : axis(axis), out(out), begin(begin), count(count), made(0) {
        y = (int)floorf(axis.centre(begin));
#pragma unroll
        for (int i = 0; i < 3; ++i) below[i] = 0.f;
    }

    __device__ __forceinline__ int last_row() const { return (int)floorf(axis.centre(begin + count - 1)) + 1; }

    template <class Columns>
    __device__ __forceinline__ void row(const Columns& across, const u8* bytes, bool is_busy) {
#pragma unroll
        for (int i = 0; i < 3; ++i) above[i] = below[i];
        if (is_busy) across.sum(bytes, below);
        for (; made < count; ++made) {
            const float share = axis.centre(begin + made) - (float)(y - 1);
            if (share >= 1.f) break;
            float x[3];
#pragma unroll
            for (int i = 0; i < 3; ++i) x[i] = fmaf(share, below[i] - above[i], above[i]);
            if (is_busy) out.put(made, x, 1.f);
        }
        ++y;
    }
};
