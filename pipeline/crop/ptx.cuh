// What only PTX can say: that an address from the table is one of global memory.

__device__ __forceinline__ u32 global_word(const u8* at) {
    u32 word;
    asm("ld.global.nc.u32 %0, [%1];" : "=r"(word) : "l"(at));
    return word;
}

__device__ __forceinline__ void store_global_word(u8* at, u32 word) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(at), "r"(word) : "memory");
}

__device__ __forceinline__ void store_global_byte(u8* at, u32 byte) {
    asm volatile("st.global.u8 [%0], %1;" ::"l"(at), "r"(byte) : "memory");
}
