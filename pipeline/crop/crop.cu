// Windows of decoded images -> crops. definition.py is the definition, crop.py the contract.
//
// A block computes some neighbouring rows of one crop (a strip), tile by tile. A tile has as many
// columns as read at most SPAN bytes of a row of the image, with one thread per column. While
// shared memory receives further rows of the image (rows.cuh), each thread sums the pixels of a row
// for its column (across.cuh), and adds these sums down the image in registers (down.cuh).
// Compiled at run time for at most THREADS threads per block and BLOCKS blocks per multiprocessor. A
// launch has whole warps, with at least one thread for each column of a tile.

typedef unsigned char u8;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

constexpr int WARP = 32;

#include "ptx.cuh"
#include "axis.cuh"
#include "rows.cuh"
#include "across.cuh"
#include "pixels.cuh"
#include "down.cuh"
#include "huge.cuh"

static_assert(SHARED_BYTES >= sizeof(Ring) && SHARED_BYTES >= sizeof(double) * 4 * THREADS, "kernel_source.py counts it");

// Columns of a tile, so that they see at most SPAN bytes: the first and the last reach `radius`
// beyond their centres. A multiple of four where that may be. 0: not even one column fits.
__device__ __forceinline__ int tile_columns(const Axis& axis, int size) {
    const float room = (float)(SPAN / 3 - 2) - 2.f * axis.radius;
    if (room < 0.f) return 0;
    const int fit = room >= axis.scale * (float)size ? size : (int)(room / axis.scale) + 1;
    const int most = smaller(fit, (int)blockDim.x);
    if (most >= size) return size;
    const int tiles = (size + most - 1) / most, even = ((size + tiles - 1) / tiles + 3) / 4 * 4;
    return even <= most ? even : most < 4 ? most : most / 4 * 4;
}

// Rows [begin, begin + count) of one tile.
template <int TAPS, bool SHRINKS>
__device__ __forceinline__ void tile_rows(const Axis& along, const Axis& axis, const Tile& tile, const Source& source, int begin, int count, Ring& ring, Out& out) {
    Down<TAPS, SHRINKS> down(along, tile);
    Fetch fetch(source, axis, begin, count, ring);
    // Copies begin at one place, because the instruction cache cannot hold the code twice.
    for (int ahead = 1 - GROUPS; down.made < count; ++ahead) {
        const Row* rows = ahead < 0 ? nullptr : fetch.next_rows();
        fetch.copy_group();
        if (ahead < 0) continue;
#pragma unroll 1
        for (int step = 0; step < STEPS; ++step) down.row(ring.bytes, rows[step], axis.scale, count, out);
    }
    fetch.finish();
}

template <int TAPS>
__device__ __forceinline__ void tile_with_taps(const Axis& along, const Axis& axis, const Tile& tile, const Source& source, int begin, int count, Ring& ring, Out& out) {
    if (axis.scale > 1.f) {
        tile_rows<TAPS, true>(along, axis, tile, source, begin, count, ring, out);
    } else {
        tile_rows<TAPS, false>(along, axis, tile, source, begin, count, ring, out);
    }
}

// ptrs_N, sizes_N2 (height, width), windows_VN4 (top, left, bottom, right) -> crops_VNHWC. Blocks
// are numbered so that views of an image run at nearly the same time and share the L2 cache.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
crop(const i64* ptrs, const int* sizes, const float* windows, u8* crops, int n, int views, int size, int strip) {
    extern __shared__ __align__(16) u8 shared[];
    const int strips = (size + strip - 1) / strip;
    const int image = blockIdx.x / strips / views, view = blockIdx.x / strips % views;
    const int begin = blockIdx.x % strips * strip, count = smaller(strip, size - begin);
    const i64 place = (i64)view * n + image;
    const float* window = windows + 4 * place;
    const int width = sizes[2 * image + 1];
    const Axis down(window[0], window[2], sizes[2 * image], size), along(window[1], window[3], width, size);
    const u8* bytes = (const u8*)ptrs[image];
    u8* first_row = crops + (place * size + begin) * size * 3;
    const int columns = tile_columns(along, size);
    if (!columns) {
        huge_scale(bytes, 3 * (i64)width, down, along, begin, count, size, (double*)shared, first_row);
        return;
    }
    const int taps = along.taps();
    const bool in_words = size % 4 == 0 && (columns % 4 == 0 || columns == size);
    for (int left = 0; left < size; left += columns) {
        const int right = smaller(left + columns, size);
        const Tile tile{left, right, along.first_seen(left), along.last_seen(right - 1)};
        const Source source(bytes, along, down, tile, width);
        Out out(first_row, size, tile, in_words);
        Ring& ring = *(Ring*)shared;
        if (taps <= 2) {
            tile_with_taps<2>(along, down, tile, source, begin, count, ring, out);
        } else if (taps == 3) {
            tile_with_taps<3>(along, down, tile, source, begin, count, ring, out);
        } else if (taps == 4) {
            tile_with_taps<4>(along, down, tile, source, begin, count, ring, out);
        } else if (taps <= 6) {
            tile_with_taps<6>(along, down, tile, source, begin, count, ring, out);
        } else {
            tile_with_taps<ANY>(along, down, tile, source, begin, count, ring, out);
        }
    }
}
