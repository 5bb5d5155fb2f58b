// Rows of the image on their way to shared memory: a ring of GROUPS times STEPS rows, of which the
// threads work on one group while the others come. With each comes what all threads want to know of
// it, so that one warp finds it out.

constexpr int STEPS = 8, GROUPS = 2;
// With the bytes that share 16 with the tile's first, and what whole words take behind its last.
constexpr int ROW = SPAN + 32;

struct __align__(16) Row {
    u32 at;    // the tile's first byte, in the ring
    int ends;  // outputs that end here, as down.cuh tells
    // scale > 1: its share of the lower one of the two outputs that it lies between, and 1 / the sum
    // of the weights of what ends. Else how far below the row above the first lies that ends, and 0.
    float place, norm;
};

struct __align__(16) Ring {
    u8 bytes[GROUPS * STEPS * ROW];
    Row rows[GROUPS * STEPS];
};

// Columns [begin, end) of a crop, and the image's pixels [first, last] that they see.
struct Tile {
    int begin, end, first, last;
};

// A tile's part of the image's rows.
struct Source {
    const u8* top;  // the tile's first byte in the row that is 0 on the axis
    u32 pitch;      // bytes of a row
    int count;      // bytes of the tile's rows

    __device__ __forceinline__ Source(const u8* bytes, const Axis& along, const Axis& down, const Tile& tile, int width)
        : top(bytes + 3 * (i64)(along.origin + tile.first) + (i64)down.origin * 3 * width), pitch(3u * width), count(3 * (tile.last + 1 - tile.first)) {}

    __device__ __forceinline__ const u8* row(int y) const { return top + (i64)y * pitch; }
};

// Rows one after the other, from those that outputs [begin, begin + count) see first.
struct Fetch {
    const Source& source;
    const Axis& axis;
    Ring& ring;
    const int begin, end, last;  // no row beyond `last` is needed
    int y, group;                // the next row, and where it goes

    __device__ __forceinline__ Fetch(const Source& source, const Axis& axis, int begin, int count, Ring& ring)
        : source(source), axis(axis), ring(ring), begin(begin), end(begin + count), last(axis.last_row(begin + count)), y(axis.first_row(begin)), group(0) {}

    // Threads of the last warp tell of a row each; a warp copies a row at a time. Only 16 bytes that
    // hold some that are needed are touched.
    __device__ __forceinline__ void copy_group() {
        const int from_end = blockDim.x - 1 - threadIdx.x;
        if (from_end < STEPS) ring.rows[group * STEPS + from_end] = about(y + from_end, group * STEPS + from_end);
#pragma unroll 1
        for (int step = threadIdx.x / WARP; step < STEPS && y + step <= last; step += blockDim.x / WARP) {
            u8* to = ring.bytes + (group * STEPS + step) * ROW;
            const u8* from = source.row(axis.inside(y + step));
            const int skip = skipped(from), count = source.count + skip;
#pragma unroll 1
            for (int at = 16 * (threadIdx.x % WARP); at < count; at += 16 * WARP) {
                copy_16(to + at, from - skip + at, smaller(16, count - at));
            }
        }
        end_of_group();
        y += STEPS;
        group = group + 1 == GROUPS ? 0 : group + 1;
    }

    // Bytes before it that share its 16.
    __device__ __forceinline__ int skipped(const u8* at) const { return (u32)(size_t)at % 16; }

    __device__ __forceinline__ Row about(int row, int slot) const {
        const u32 at = slot * ROW + skipped(source.row(axis.inside(row)));
        // Where it shrinks, an output ends behind the centre of the next.
        const int first = axis.output_from(row - 1, begin, end + 1), now = axis.output_from(row, begin, end + 1);
        Row about{at, now - first, axis.distance(first, row - 1), 0.f};
        if (axis.scale > 1.f) {
            about.place = -axis.distance(now - 1, row) * axis.inverse;
            if (about.ends) about.norm = 1.f / axis.sum_of_weights(now - 2);
        }
        return about;
    }

    // The oldest group, once it is there for all threads. They are then done with the one before it,
    // whose place the next `copy_group` takes; GROUPS - 1 must have been called before.
    __device__ __forceinline__ const Row* next_rows() const {
        wait_for_groups<GROUPS - 2>();
        __syncthreads();
        return ring.rows + (group + 1 == GROUPS ? 0 : group + 1) * STEPS;
    }

    // Nothing is on its way any more, and all threads are done with the ring.
    __device__ __forceinline__ void finish() {
        wait_for_groups<0>();
        __syncthreads();
    }
};
