/*
fp8 -- the arithmetic of operands with one scale for a tensor, E4M3 or E5M2, step by step, for C and
CUDA alike: one expression, one rounding. Where a sum follows a product, the product is exact: a
compiler that contracts them changes nothing. Rounding is branch-free, so that loops vectorise;
e4m3_encode and e5m2_encode are the oracles it is tested against.
*/
#ifndef LLMC_OPS_FP8_H
#define LLMC_OPS_FP8_H

#include "nvfp4.h"

/* A format's numbers, as rounding needs them. */
typedef struct {
    float max, min_normal;
    float big;        // 1.5 * 2^23 steps of numbers in [1, 2)
    float substeps;   // of numbers below min_normal: how many make 1
    int shift;        // mantissa bits that f32 has more
    uint32_t bias;    // difference of the exponents' biases, in codes
} Fp8Format;

NVFP4_HD Fp8Format fp8_format(DType elem) {
    Fp8Format e4m3 = {E4M3_MAX, 0x1p-6f, 1.5f * 0x1p20f, 0x1p9f, 20, (127 - 7) << 3};
    Fp8Format e5m2 = {E5M2_MAX, 0x1p-14f, 1.5f * 0x1p21f, 0x1p16f, 21, (127 - 15) << 2};
    return elem == DT_E4M3 ? e4m3 : e5m2;
}

/* What elements are multiplied by. */
NVFP4_HD float fp8_scale(Fp8Format f, float amax) {
    if (!(amax > 0.0f && amax <= FLT_MAX)) return 1.0f;
    float scale = f.max / amax;
    return scale > FLT_MAX ? FLT_MAX : scale;
}

/* |y| rounded to nearest, ties to even, at most the largest number, which NaN gives too. Adding
   1.5 * 2^23 steps pushes out what lies below one step. */
NVFP4_HD float fp8_round(Fp8Format f, float y) {
    uint32_t bits = nvfp4_bits(y) & 0x7FFFFFFFu, most = nvfp4_bits(f.max);
    float a = nvfp4_float(bits < most ? bits : most);
    float normal = a > f.min_normal ? a : f.min_normal;   // below it the step no longer shrinks
    float big = nvfp4_float(nvfp4_bits(normal) & 0x7F800000u) * f.big;
    return (a + big) - big;
}

NVFP4_HD int fp8_is_nan(float y) { return (nvfp4_bits(y) & 0x7FFFFFFFu) > 0x7F800000u; }

/* The code of the number nearest to y, which keeps y's sign; NaN gives 0x7F. */
NVFP4_HD uint8_t fp8_code(Fp8Format f, float y) {
    float a = fp8_round(f, y);
    uint32_t normal = (nvfp4_bits(a) >> f.shift) - f.bias;
    uint32_t code = a < f.min_normal ? (uint32_t)(int32_t)(a * f.substeps) : normal;
    return (uint8_t)(fp8_is_nan(y) ? 0x7Fu : code | (nvfp4_bits(y) >> 24 & 0x80u));
}

/* The bf16 bits of what fp8_code stands for: every such number is one of bf16. */
NVFP4_HD uint16_t fp8_value(Fp8Format f, float y) {
    uint32_t bits = nvfp4_bits(fp8_round(f, y)) | (nvfp4_bits(y) & 0x80000000u);
    return (uint16_t)(fp8_is_nan(y) ? 0x7FFFu : bits >> 16);
}

#endif
