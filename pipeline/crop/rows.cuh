// Rows of the image on their way to shared memory: a ring of GROUPS times STEPS rows, of which the
// threads work on one group while the others come.

constexpr int STEPS = 4, GROUPS = 3;
// With the bytes that share 16 with the tile's first, and what whole words take behind its last.
constexpr int ROW = SPAN + 32;

struct __align__(16) Ring {
    u8 bytes[GROUPS][STEPS * ROW];
};

// Columns [begin, end) of a crop, and the image's pixels [first, last] that they see.
struct Tile {
    int begin, end, first, last;
};

// A tile's part of the image's rows.
struct Source {
    const u8* top;  // the tile's first byte in the image's pixel row 0 of the axis
    u32 pitch;      // bytes of a row
    int count;      // bytes of the tile's rows

    __device__ __forceinline__ Source(const u8* bytes, const Axis& along, const Axis& down, const Tile& tile, int width)
        : top(bytes + 3 * (i64)(along.origin + tile.first) + (i64)down.origin * 3 * width), pitch(3u * width), count(3 * (tile.last + 1 - tile.first)) {}

    // Bytes before the first that share its 16.
    __device__ __forceinline__ u32 skip(int y) const { return ((u32)(u64)top + (u32)y * pitch) % 16; }
    __device__ __forceinline__ const u8* row(int y) const { return top + (i64)y * pitch; }
};

// A warp copies a row at a time. Only 16 bytes that hold some that are needed are touched.
struct Fetch {
    const Source& source;
    const Axis& axis;
    Ring& ring;
    int y;           // the next row
    const int last;  // no row beyond is needed
    int group;       // the next to be copied to

    __device__ __forceinline__ Fetch(const Source& source, const Axis& axis, int first, int last, Ring& ring)
        : source(source), axis(axis), ring(ring), y(first), last(last), group(0) {
#pragma unroll 1
        for (int i = 0; i < GROUPS - 1; ++i) copy_group();
    }

    __device__ __forceinline__ void copy_group() {
#pragma unroll 1
        for (int step = threadIdx.x / WARP; step < STEPS; step += blockDim.x / WARP) {
            if (y + step > last) break;
            const int seen = axis.inside(y + step);
            const u32 skip = source.skip(seen);
            const u8* from = source.row(seen) - skip;
            const int count = source.count + (int)skip;
            u8* to = ring.bytes[group] + step * ROW;
#pragma unroll 1
            for (int at = 16 * (threadIdx.x % WARP); at < count; at += 16 * WARP) {
                copy_16(to + at, from + at, smaller(16, count - at));
            }
        }
        end_of_group();
        y += STEPS;
        group = group + 1 == GROUPS ? 0 : group + 1;
    }

    // The slots of the next STEPS rows, which are there. Those of the rows before them are free.
    __device__ __forceinline__ const u8* next_rows() {
        wait_for_groups<GROUPS - 2>();
        __syncthreads();
        copy_group();
        return ring.bytes[group];
    }

    // All threads are done with the ring.
    __device__ __forceinline__ void finish() {
        wait_for_groups<0>();
        __syncthreads();
    }
};
