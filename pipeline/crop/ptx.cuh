// What only PTX can say: copies that nobody waits for, and that an address from the table is one of
// global memory.

// 16 bytes from and to addresses that are multiples of 16, of which only the first `bytes` are read.
__device__ __forceinline__ void copy_16(u8* to, const u8* from, int bytes) {
    const u32 shared = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(bytes) : "memory");
}

// What this thread copies until here is one group.
__device__ __forceinline__ void end_of_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for this thread's groups but the last LATER.
template <int LATER>
__device__ __forceinline__ void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

__device__ __forceinline__ void store_global_word(u8* at, u32 word) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(at), "r"(word) : "memory");
}

__device__ __forceinline__ void store_global_byte(u8* at, u32 byte) {
    asm volatile("st.global.u8 [%0], %1;" ::"l"(at), "r"(byte) : "memory");
}
