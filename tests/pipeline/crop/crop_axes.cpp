// The crop's rows and columns one axis at a time, some thousand windows a second: what crop.cu makes
// of a line of pixels that are 0 or 255, against sums in float64. Prints the outputs that it looked at
// and those that are wrong. Compiled with -DSPAN, -DTHREADS and the folder of the sources.

#include "cuda_on_cpu.h"

#include <random>

typedef unsigned char u8;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
constexpr int WARP = 32;
static Index blockDim{WARP};

inline void copy_16(u8*, const u8*, int) {}
inline void end_of_group() {}
template <int LATER>
inline void wait_for_groups() {}

#include "axis.cuh"
#include "rows.cuh"
#include "across.cuh"
#define Across OneColumn  // for down.cuh, whose rows are not made of bytes here

static const u8* line;
static int row_now, last_row;

template <int>
struct OneColumn {
    const Axis& axis;
    OneColumn(const Axis& axis, const Tile&) : axis(axis) {}
    void sum(const u8*, u32, float (&sums)[3]) const {
        sums[0] = row_now > last_row ? 255.f : line[axis.inside(row_now) + axis.origin];
        sums[1] = sums[2] = 0.f;
    }
};

struct Out {
    std::vector<float> put_here;
    const bool is_busy = true;
    void put(const float (&colours)[3]) { put_here.push_back(colours[0]); }
};

#include "down.cuh"
#undef Across

struct Window {
    float low, high;
    int extent, size;
    double scale() const { return ((double)high - low) / size; }
};

// Of outputs [begin, begin + count) by Fetch and Down.
template <bool SHRINKS>
std::vector<float> rows(const Axis& axis, int begin, int count) {
    const Tile tile{0, 1, 0, 0};
    static u8 pixel[8];
    const Source source(pixel, axis, axis, tile, 1);
    Ring* ring = nullptr;
    Fetch fetch(source, axis, begin, count, *ring);
    Down<1, SHRINKS> down(axis, tile);
    Out out;
    last_row = fetch.last;
    for (int y = fetch.y; down.made < count; ++y) {
        row_now = y;
        down.row(nullptr, fetch.about(y, 0), axis.scale, count, out);
    }
    return out.put_here;
}

// Of all columns, by Across: its first colour is the line, read with two bytes between.
template <int TAPS>
std::vector<float> columns(const Axis& axis, const Window& window) {
    const Tile tile{0, window.size, axis.first_seen(0), axis.last_seen(window.size - 1)};
    std::vector<u8> bytes(3 * (tile.last + 1 - tile.first) + 64, 255);
    for (int x = tile.first; x <= tile.last; ++x) bytes[3 * (x - tile.first)] = line[x + axis.origin];
    std::vector<float> made;
    for (int x = 0; x < window.size; ++x) {
        threadIdx.x = x;
        float sums[3];
        Across<TAPS>(axis, tile).sum(bytes.data(), 0, sums);
        made.push_back(sums[0]);
    }
    return made;
}

double exact(const Window& window, int output) {
    const double centre = window.low + (output + 0.5) * window.scale() - 0.5, radius = fmax(1., window.scale());
    double sum = 0., weights = 0.;
    for (int pixel = (int)ceil(centre - radius); pixel <= (int)floor(centre + radius); ++pixel) {
        const double weight = fmax(0., 1. - fabs(pixel - centre) / radius);
        sum += weight * line[pixel < 0 ? 0 : pixel >= window.extent ? window.extent - 1 : pixel];
        weights += weight;
    }
    return sum / weights;
}

static long looked_at, wrong;

void compare(const char* what, const Window& window, int begin, const std::vector<float>& made) {
    for (size_t i = 0; i < made.size(); ++i, ++looked_at) {
        const double error = fabs(made[i] - exact(window, begin + (int)i));
        if (error <= 3e-4 * fmax(1., window.scale() / 8)) continue;
        if (++wrong < 20) printf("%s: %.9g to %.9g of %d, size %d, strip at %d, output %zu: %g\n", what, window.low, window.high, window.extent, window.size, begin, begin + i, error);
    }
}

void look_at(const Window& window, int strip) {
    const Axis axis(window.low, window.high, window.extent, window.size);
    for (int begin = 0; begin < window.size; begin += strip) {
        const int count = smaller(strip, window.size - begin);
        const auto made = axis.scale > 1.f ? rows<true>(axis, begin, count) : rows<false>(axis, begin, count);
        if ((int)made.size() != count) ++wrong;
        compare("rows", window, begin, made);
    }
    const int taps = axis.taps();
    compare("columns", window, 0, taps <= 2 ? columns<2>(axis, window) : taps == 3 ? columns<3>(axis, window) : taps == 4 ? columns<4>(axis, window) : taps <= 6 ? columns<6>(axis, window) : columns<ANY>(axis, window));
}

// Whole images, whole pixels, any fractions, and scales near 1.
Window drawn(std::mt19937_64& random) {
    std::uniform_real_distribution<double> uniform(0., 1.);
    const int size = 16 + random() % 497;
    int extent = random() % 4 ? 1 + random() % 700 : 1 + random() % 3000;
    double low = 0., length = extent;
    switch (random() % 4) {
        case 1: low = random() % extent, length = 1 + random() % (extent - (int)low); break;
        case 2: low = uniform(random) * extent * 0.9, length = uniform(random) * (extent - low); break;
        case 3: length = size * (1. + (random() % 2 ? 1. : -1.) * pow(10., -7. + 4. * uniform(random))), extent = (int)ceil(length) + random() % 50, low = uniform(random) * (extent - length);
    }
    return Window{(float)low, fminf((float)(low + length), (float)extent), extent, size};
}

int main(int, char** arguments) {
    std::mt19937_64 random(atoi(arguments[1]));
    std::vector<u8> pixels(5000);
    for (u8& pixel : pixels) pixel = random() % 2 ? 255 : 0;
    line = pixels.data();
    for (int i = 0; i < atoi(arguments[2]); ++i) {
        const Window window = drawn(random);
        if (window.low < window.high) look_at(window, random() % 2 ? 16 : 48);
    }
    // The central windows of evaluation, as windows.py cuts them.
    for (int extent = 256; extent <= 800; ++extent) {
        for (int other = 256; other <= 800; other += 11) {
            const int shortest = extent < other ? extent : other, resized = 256 * extent / shortest;
            const double scale = (double)extent / resized, low = nearbyint((resized - 224) / 2.);
            look_at(Window{(float)(low * scale), (float)((low + 224) * scale), extent, 224}, 16);
        }
    }
    printf("looked at %ld, wrong %ld\n", looked_at, wrong);
    return looked_at == 0 || wrong != 0;
}
