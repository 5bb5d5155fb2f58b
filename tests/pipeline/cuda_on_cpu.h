// Enough of CUDA to run the project's kernels as C++ threads: a test of what they compute, without a GPU.

#include <pthread.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __align__(x)
#define __launch_bounds__(...)

struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct Index { unsigned x; };

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

static thread_local Index threadIdx{0}, blockIdx{0};
static pthread_barrier_t barrier;

inline void __syncthreads() { pthread_barrier_wait(&barrier); }
inline void __trap() { abort(); }

inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    unsigned char bytes[8];
    memcpy(bytes, &low, 4);
    memcpy(bytes + 4, &high, 4);
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= (unsigned)bytes[selector >> 4 * i & 7] << 8 * i;
    return result;
}

inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
    return bits % 32 ? low >> bits % 32 | high << (32 - bits % 32) : low;
}

inline float __saturatef(float x) { return x < 0.f ? 0.f : x > 1.f ? 1.f : x; }
inline float __fdividef(float a, float b) { return a / b; }

template <int WORDS>
void copy_words(unsigned* to, const unsigned* from) {
    memcpy(to, from, 4 * WORDS);
}
inline void wait_for_copies() {}

// Runs a kernel: every block in turn, its threads at the same time.
template <class Kernel>
void launch(unsigned blocks, unsigned threads, Kernel kernel) {
    pthread_barrier_init(&barrier, nullptr, threads);
    std::vector<std::thread> running;
    for (unsigned t = 0; t < threads; ++t) {
        running.emplace_back([=] {
            threadIdx.x = t;
            for (unsigned b = 0; b < blocks; ++b) {
                blockIdx.x = b;
                kernel();
                __syncthreads();
            }
        });
    }
    for (std::thread& thread : running) thread.join();
    pthread_barrier_destroy(&barrier);
}
