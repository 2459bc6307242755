// approx -- the multiprocessor's own exp2 and reciprocal, one instruction each where exact ones
// take ten and more: to about 2^-22, for results that are rounded to bf16 or summed by the
// thousand. A host compiler can take this file too. Source: PTX ISA 9.0, "ex2.approx.ftz" and
// "rcp.approx.ftz".
#pragma once
#include <math.h>

#define LOG2_E 1.44269504f

/* 2^x; results below 2^-126 are 0. */
static __device__ __forceinline__ float exp2_approx(float x) {
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* 1 / x; results below 2^-126 are 0. */
static __device__ __forceinline__ float reciprocal_approx(float x) {
#ifdef __CUDACC__
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return 1.0f / x;
#endif
}

/* sigmoid(x) of -x log2(e), which callers have at hand. Where the exp overflows it is exactly 0. */
static __device__ __forceinline__ float sigmoid_of_log2(float minus_x_log2_e) {
    return reciprocal_approx(1.0f + exp2_approx(minus_x_log2_e));
}
