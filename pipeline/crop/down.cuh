// Down the columns: rows of bytes -> rows of floats in the ring, one for each output row.
//
// A thread has PIECES times four neighbouring bytes of a row, whatever colours they are, and goes
// down the image with them. Each byte is fetched and made a float once: it takes part in at most two
// outputs at a time (Shrinking), or an output lies between two of them (Growing).

constexpr float TWO_TO_23 = 8388608.f;
constexpr int PIECE = 4 * THREADS;  // bytes from a thread's piece to its next

// What a thread reads of each row: each piece lies in two aligned words. Only words that hold bytes
// that are needed are touched, so nothing outside the image's own words.
struct Column {
    const u8* top;  // the first byte of the first piece in the image's first row
    u32 pitch;      // bytes of a row
    int rest;       // bytes of the tile's rows from there on; none if not positive

    __device__ __forceinline__ const u8* row(int y, const Axis& axis) const {
        return top + (u64)(u32)(axis.inside(y) + axis.origin) * pitch;
    }
    __device__ __forceinline__ bool has(int piece) const { return rest > piece * PIECE; }
};

// STEPS rows of a column, on their way from memory.
struct Ahead {
    u32 low[STEPS][PIECES], high[STEPS][PIECES];
    u32 shifts;  // in bits, a byte for each row

    __device__ __forceinline__ void load(const u8* at, int rest, int step) {
        const u32 skip = (u32)((size_t)at % 4);
        const u8* aligned = at - skip;
        shifts = (shifts & ~(0xFFu << 8 * step)) | skip << (8 * step + 3);
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            low[step][p] = rest > p * PIECE ? global_word(aligned + p * PIECE) : 0u;
            high[step][p] = rest > p * PIECE + 4 - (int)skip ? global_word(aligned + p * PIECE + 4) : 0u;
        }
    }

    // A byte becomes the low bits of the mantissa of 2^23: conversions of integers are slower.
    __device__ __forceinline__ void as_floats(int step, int piece, float (&x)[4]) const {
        const u32 shift = shifts >> 8 * step;  // of it the low 5 bits
        const u32 word = __funnelshift_r(low[step][piece], high[step][piece], shift);
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7650u | i)) - TWO_TO_23;
    }
};

// Rows of outputs on their way to across.cuh. Slots are used one after the other, and again.
struct Ring {
    float* mine;  // the floats of the thread's first piece in slot 0
    int slot;
    int made;

    __device__ __forceinline__ void put(int piece, const float (&x)[4]) {
        *(float4*)(mine + slot * SPAN + piece * PIECE) = make_float4(x[0], x[1], x[2], x[3]);
    }
    __device__ __forceinline__ void next_row() {
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        ++made;
    }
};

// scale > 1. Outputs are `scale` apart and reach as far: a row between two of them is shared by
// these, in shares that add up to one. A step is a row of the image, and ends one output at most:
// where rounding makes it pass two, the second ends a step later, with a share of about nothing more.
struct Shrinking {
    const Axis& axis;
    const int begin;          // the first output that is wanted
    int output, y;            // the upper of the two outputs; the next row
    float now[PIECES][4], next[PIECES][4];  // their sums
    float now_sum, next_sum;  // of their weights
    Ahead ahead;

    __device__ Shrinking(const Axis& axis, const Column& column, int begin) : axis(axis), begin(begin) {
        output = begin - 1;
        y = (int)floorf(axis.centre(output)) + 1;
        now_sum = next_sum = 0.f;
#pragma unroll
        for (int i = 0; i < 4 * PIECES; ++i) now[i / 4][i % 4] = next[i / 4][i % 4] = 0.f;
        ahead.shifts = 0u;
        fetch(column);
    }

    __device__ __forceinline__ void fetch(const Column& column) {
        if (column.rest <= 0) return;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) ahead.load(column.row(y + step, axis), column.rest, step);
    }

    __device__ __forceinline__ void steps(const Column& column, int count, Ring& ring) {
        float upper = axis.centre(output), lower = axis.centre(output + 1);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const float at = (float)(y + step);
            if (at > lower) {
                if (output >= begin && ring.made < count) put_row(column, ring);
#pragma unroll
                for (int i = 0; i < 4 * PIECES; ++i) now[i / 4][i % 4] = next[i / 4][i % 4], next[i / 4][i % 4] = 0.f;
                now_sum = next_sum, next_sum = 0.f;
                ++output;
                upper = lower;
                lower = axis.centre(output + 1);
            }
            const float share = (at - upper) * axis.inverse, other = 1.f - share;
            now_sum += other;
            next_sum += share;
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
                if (!column.has(p)) break;
                float x[4];
                ahead.as_floats(step, p, x);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    now[p][i] = fmaf(other, x[i], now[p][i]);
                    next[p][i] = fmaf(share, x[i], next[p][i]);
                }
            }
        }
        y += STEPS;
    }

    __device__ __forceinline__ void put_row(const Column& column, Ring& ring) const {
        const float norm = __fdividef(1.f, now_sum);
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            if (!column.has(p)) break;
            const float x[4] = {now[p][0] * norm, now[p][1] * norm, now[p][2] * norm, now[p][3] * norm};
            ring.put(p, x);
        }
        ring.next_row();
    }
};

// scale <= 1. An output lies between two rows of the image. A step is an output, which needs at most
// one row more than the one before it: were its row two further on, which only rounding can make of
// a step that is no longer than one, it is made of the rows before, a millionth of a row beyond them.
struct Growing {
    const Axis& axis;
    int output, y;             // the next output; the upper of the two rows
    float above[PIECES][4], below[PIECES][4];  // the two rows
    Ahead ahead;

    __device__ Growing(const Axis& axis, const Column& column, int begin) : axis(axis) {
        output = begin;
        y = (int)floorf(axis.centre(begin)) - 1;
        ahead.shifts = 0u;
        if (column.rest > 0) ahead.load(column.row(y + 1, axis), column.rest, 0);
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
#pragma unroll
            for (int i = 0; i < 4; ++i) above[p][i] = below[p][i] = 0.f;
            if (column.has(p)) ahead.as_floats(0, p, below[p]);
        }
        fetch(column);
    }

    __device__ __forceinline__ int upper_row(int output, int before) const {
        return smaller((int)floorf(axis.centre(output)), before + 1);
    }

    __device__ __forceinline__ void fetch(const Column& column) {
        if (column.rest <= 0) return;
        int before = y;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int row = upper_row(output + step, before);
            if (row != before) ahead.load(column.row(row + 1, axis), column.rest, step);
            before = row;
        }
    }

    __device__ __forceinline__ void steps(const Column& column, int count, Ring& ring) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (ring.made == count) break;
            const int row = upper_row(output + step, y);
            const bool is_new = row != y;
            y = row;
            const float share = axis.centre(output + step) - (float)row;
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
                if (!column.has(p)) break;
                if (is_new) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) above[p][i] = below[p][i];
                    ahead.as_floats(step, p, below[p]);
                }
                float x[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) x[i] = fmaf(share, below[p][i] - above[p][i], above[p][i]);
                ring.put(p, x);
            }
            ring.next_row();
        }
        output += STEPS;
    }
};
