// Output of augment_patchify: float32, bfloat16 or half, rounded once to nearest even.

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

#if OUT == 1
#define two_as_half two_as_bfloat16
#else
#define two_as_half two_as_float16
#endif

// Two neighbouring values; `to` is aligned to two of them.
__device__ __forceinline__ void store_two(Out* to, float left, float right) {
#if OUT == 0
    *(float2*)to = make_float2(left, right);
#else
    *(u32*)to = two_as_half(left, right);
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
