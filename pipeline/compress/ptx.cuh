// Instructions in PTX, so that compiling needs no CUDA header.

// Copy one, two or four words from global to shared memory without waiting.
template <int WORDS>
__device__ __forceinline__ void copy_words(u32* to, const u32* from) {
    const u32 shared = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from), "n"(4 * WORDS) : "memory");
}

// Wait for this thread's copies.
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ __forceinline__ u32 two_as_bfloat16(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ __forceinline__ u32 two_as_float16(float low, float high) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
