// Windows of decoded images -> crops: the definition is definition.py, the contract crop.py.
//
// A block makes some neighbouring rows of one crop (a strip), in tiles: as many of its columns as
// see no more than SPAN bytes of a row of the image. Down the columns first (down.cuh): then every
// byte of the image is fetched, in words, and made a float once; then across (across.cuh). Between
// the two lies a ring of SLOTS rows in shared memory. STEPS rows go into it at a time while the next
// are on their way from memory, and leave it STEPS at a time.
// Compiled at run time with THREADS threads a block, of which BLOCKS are to be on a multiprocessor,
// and PIECES of a row for each thread.

typedef unsigned char u8;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

constexpr int WARP = 32;
constexpr int STEPS = 4;
constexpr int SPAN = 4 * THREADS * PIECES;
// Rows that slow threads still read, at most STEPS - 1 that wait, and those of the next steps: so
// one barrier for each STEPS is enough.
constexpr int SLOTS = 3 * STEPS;

#include "ptx.cuh"
#include "axis.cuh"
#include "down.cuh"
#include "across.cuh"
#include "huge.cuh"

static_assert(SHARED_BYTES == sizeof(Across) + sizeof(float) * SLOTS * SPAN, "as kernel_source.py counts it");
static_assert(sizeof(double) * 4 * THREADS <= SHARED_BYTES, "as huge.cuh needs it");

// Columns of a tile, so that they see at most SPAN bytes: the first and the last reach `radius`
// beyond their centres. A multiple of four where that may be. 0: not even one column fits.
__device__ __forceinline__ int tile_columns(const Axis& axis, int size) {
    const float room = (float)(SPAN / 3 - 2) - 2.f * axis.radius;
    if (room < 0.f) return 0;
    const int most = room >= axis.scale * (float)size ? size : (int)(room / axis.scale) + 1;
    if (most >= size) return size;
    const int tiles = (size + most - 1) / most, even = ((size + tiles - 1) / tiles + 3) / 4 * 4;
    return even <= most ? even : most < 4 ? most : most / 4 * 4;
}

// Rows [begin, begin + count) of one tile.
template <class Down>
__device__ __forceinline__ void tile_rows(const Axis& axis, const Column& column, int begin, int count, int size, float* ring_memory, const Across& plan) {
    Ring ring{ring_memory + 4 * threadIdx.x, 0, 0};
    Down rows(axis, column, begin);
    int done = 0;
    while (done < count) {
        rows.steps(column, count, ring);
        if (ring.made < count) rows.fetch(column);
        __syncthreads();
        while (ring.made - done >= STEPS || (ring.made == count && done < count)) {
            across(ring_memory + done % SLOTS * SPAN, plan, done, smaller(STEPS, count - done), size);
            done += STEPS;
        }
    }
    __syncthreads();
}

// ptrs_N, sizes_N2 (height, width), windows_VN4 (top, left, bottom, right) -> crops_VNHWC. Blocks
// are numbered so that views of an image are near each other in time: it is then in the L2 cache.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
crop(const i64* ptrs, const int* sizes, const float* windows, u8* crops, int n, int views, int size, int strip) {
    extern __shared__ __align__(16) float shared[];
    const int strips = (size + strip - 1) / strip;
    const int image = blockIdx.x / strips / views, view = blockIdx.x / strips % views;
    const int begin = blockIdx.x % strips * strip, count = smaller(strip, size - begin);
    const i64 place = (i64)view * n + image;
    const float* window = windows + 4 * place;
    const int width = sizes[2 * image + 1];
    const Axis down(window[0], window[2], sizes[2 * image], size), along(window[1], window[3], width, size);
    const u8* bytes = (const u8*)ptrs[image];
    u8* out = crops + (place * size + begin) * size * 3;
    const int columns = tile_columns(along, size);
    if (!columns) {
        huge_scale(bytes, 3 * (i64)width, down, along, begin, count, size, (double*)shared, out);
        return;
    }
    Across& plan = *(Across*)shared;
    float* ring_memory = shared + sizeof(Across) / sizeof(float);
    for (int left = 0; left < size; left += columns) {
        const int right = smaller(left + columns, size);
        const Tile tile{left, right, along.first_seen(left), along.last_seen(right - 1)};
        if (threadIdx.x == 0) {
            const bool in_words = size % 4 == 0 && (columns % 4 == 0 || columns == size);
            plan = Across{along.begin, along.scale, along.radius, along.inverse, tile, out, in_words};
        }
        const int mine = 4 * threadIdx.x;
        const Column column{bytes + 3 * (along.origin + tile.first) + mine, 3u * width, 3 * (tile.last + 1 - tile.first) - mine};
        if (down.scale > 1.f) {
            tile_rows<Shrinking>(down, column, begin, count, size, ring_memory, plan);
        } else {
            tile_rows<Growing>(down, column, begin, count, size, ring_memory, plan);
        }
    }
}
