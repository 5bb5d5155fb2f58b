// What leaves augment_patchify: float32, bfloat16 or half, rounded to nearest even, once.
// Conversions are PTX, so that no CUDA header is needed where the code is compiled.

#if OUT == 0
typedef float Out;
#else
typedef unsigned short Out;
#endif

// a / divisor, rounded as IEEE asks for, given the divisor's rounded reciprocal: for the bytes and
// the constants that occur here (a test goes through all of them).
__device__ __forceinline__ float divided(float a, float divisor, float reciprocal) {
    const float quotient = a * reciprocal;
    return fmaf(fmaf(-divisor, quotient, a), reciprocal, quotient);
}

#if OUT != 0
__device__ __forceinline__ u32 two_as_half(float low, float high) {
    u32 both;
#if OUT == 1
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
    return both;
}
#endif

__device__ __forceinline__ void store_one(Out* to, float value) {
#if OUT == 0
    *to = value;
#else
    *to = (Out)two_as_half(value, 0.f);
#endif
}

// Eight neighbouring values, reversed for a flipped crop; `to` is aligned to 16 bytes.
__device__ __forceinline__ void store_eight(Out* to, const float* x, bool reverse) {
#if OUT == 0
    const float4 front = reverse ? make_float4(x[7], x[6], x[5], x[4]) : make_float4(x[0], x[1], x[2], x[3]);
    const float4 back = reverse ? make_float4(x[3], x[2], x[1], x[0]) : make_float4(x[4], x[5], x[6], x[7]);
    ((float4*)to)[0] = front;
    ((float4*)to)[1] = back;
#else
    if (reverse) {
        *(uint4*)to = make_uint4(two_as_half(x[7], x[6]), two_as_half(x[5], x[4]), two_as_half(x[3], x[2]), two_as_half(x[1], x[0]));
    } else {
        *(uint4*)to = make_uint4(two_as_half(x[0], x[1]), two_as_half(x[2], x[3]), two_as_half(x[4], x[5]), two_as_half(x[6], x[7]));
    }
#endif
}
