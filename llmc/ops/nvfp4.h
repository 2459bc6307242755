/*
nvfp4 -- the scale arithmetic of quantize.h, step by step, for C and CUDA alike: one expression,
one rounding. Where a sum follows a product, the product is exact: a compiler that contracts them
changes nothing. The rounding to E4M3 is branch-free so that loops over
blocks vectorise; e4m3_encode is the oracle it is tested against.
*/
#ifndef LLMC_OPS_NVFP4_H
#define LLMC_OPS_NVFP4_H

#include <float.h>
#include <stdint.h>
#include <string.h>

#include "../recipe.h"

#ifdef __CUDACC__
#define NVFP4_HD __host__ __device__ static inline
#else
#define NVFP4_HD static inline
#endif

#define NVFP4_BLOCK 16

/* What a tensor's maximum and the cell's options say for all its blocks. */
typedef struct {
    float quant_mult;     // S_enc
    float dequant_mult;   // S_dec
    // s = (amax_b / block_div) * block_mult * headroom_mult
    float block_div;       // arithmetic 2: 1, arithmetic 1: 6
    float block_mult;      // arithmetic 2: S_enc * f32(1/6), arithmetic 1: S_enc
    float headroom_mult;   // 17/16 with headroom, else 1
} Nvfp4Tensor;

NVFP4_HD uint32_t nvfp4_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
NVFP4_HD float nvfp4_float(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* S_enc. An amax of infinity or NaN gives NaN, and so do then all scales. */
NVFP4_HD float nvfp4_quant_mult(float amax, int top_scale) {
    if (!(amax <= FLT_MAX)) return nvfp4_float(0x7FFFFFFFu);
    if (amax == 0.0f) return 1.0f;
    float mult = 6.0f * (float)top_scale / amax;
    return mult > FLT_MAX ? FLT_MAX : mult;
}

NVFP4_HD Nvfp4Tensor nvfp4_tensor(float amax, const Operand *how) {
    Nvfp4Tensor t;
    t.quant_mult = nvfp4_quant_mult(amax, how->top_scale ? how->top_scale : 448);
    t.dequant_mult = 1.0f / t.quant_mult;
    t.block_div = how->arithmetic == 1 ? 6.0f : 1.0f;
    t.block_mult = how->arithmetic == 1 ? t.quant_mult : t.quant_mult * (1.0f / 6.0f);
    t.headroom_mult = how->headroom ? 17.0f / 16.0f : 1.0f;
    return t;
}

/* s: the block scale before it is rounded. */
NVFP4_HD float nvfp4_raw_scale(Nvfp4Tensor t, float block_amax) {
    float amax = t.block_div == 1.0f ? block_amax : block_amax / t.block_div;
    float s = amax * t.block_mult * t.headroom_mult;
    return s > FLT_MAX ? FLT_MAX : s;
}

/* The E4M3 value nearest to s >= 0, ties to even, at most 448; NaN stays NaN. Adding 1.5 * 2^23
   steps pushes out what lies below one step, an eighth of s's power of two. */
NVFP4_HD float nvfp4_round_scale(float s) {
    s = s > 448.0f ? 448.0f : s;
    float normal = s > 0.015625f ? s : 0.015625f;   // below 2^-6 the step no longer shrinks
    float big = nvfp4_float(nvfp4_bits(normal) & 0x7F800000u) * (1.5f * 1048576.0f);
    return (s + big) - big;
}

/* The code of an E4M3 value >= 0. */
NVFP4_HD uint8_t nvfp4_scale_code(float scale) {
    if (scale != scale) return 0x7F;
    if (scale < 0.015625f) return (uint8_t)(scale * 512.0f);
    return (uint8_t)((nvfp4_bits(scale) >> 20) - (120u << 3));   // exponent bias 127 becomes 7
}

/* coeff: what the elements of a block are multiplied by; `scale` is the rounded one. */
NVFP4_HD float nvfp4_element_mult(Nvfp4Tensor t, float scale) {
    float mult = 1.0f / (scale * t.dequant_mult);
    return mult > FLT_MAX ? FLT_MAX : mult;
}

#endif
