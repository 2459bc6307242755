/*
fp4_step -- one output of one mma.sync m16n8k64 of kind mxf4nvf4, scale_vec::4X, bit for bit, for C
and CUDA alike: c + sum of 64 products of E2M1 codes, whose four blocks of 16 each have a UE4M3
scale on either side. What the instruction's emulations are made of; no quantiser and no GEMM.

  block     dot = 4 * sum of its 16 products (an integer, |dot| <= 2304); with the scales'
            significands (8 + m, or m below 2^-6) and exponents it adds
            P * 2^X,  P = dot * sig_a * sig_b,  X = exp_a + exp_b - 8
  takes part  a block takes part when both significands are non-zero and so is one product at least
  quantum   2^lsb, lsb = max(X of the blocks that take part - 27, exponent of c - 35)
  result    every addend cut toward zero to multiples of the quantum, added exactly, the sum cut
            toward zero to f32 (at most FLT_MAX); a zero sum is +0
  special   NaN scale (0x7F) or NaN c: 0x7FFFFFFF; an infinite c stays; bit 7 of a scale is ignored
  source    PTX leaves the arithmetic open; the rule is that of public bit-exact models of the
            instruction, checked by their authors on RTX 5090, RTX PRO 6000 and B200
            (microsoft/MMA-Sim, arXiv 2511.10909; blocks whose products are all zero do not take
            part). A sum beyond FLT_MAX has no evidence; it needs a c beyond 2^127.
  tests     test_fp4_step.c: against big integers; test_gemm_mma_cuda.cu: GPU equal to CPU
*/
#ifndef LLMC_OPS_FP4_STEP_H
#define LLMC_OPS_FP4_STEP_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define FP4_HD __host__ __device__ static inline
#else
#define FP4_HD static inline
#endif

#define FP4_STEP_K      64
#define FP4_STEP_BLOCKS 4

#define FP4_NAN_BITS 0x7FFFFFFFu

// --- products ---

/* Byte i of the result is byte (selector >> 4 i) & 7 of the eight bytes low, high. */
FP4_HD uint32_t fp4_pick_bytes(uint32_t low, uint32_t high, uint32_t selector) {
#ifdef __CUDA_ARCH__
    return __byte_perm(low, high, selector);
#else
    uint64_t bytes = (uint64_t)high << 32 | low;
    uint32_t picked = 0;
    for (int i = 0; i < 4; i++)
        picked |= (uint32_t)(bytes >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
    return picked;
#endif
}

/* The four codes of the low half word as four signed bytes: twice their values. */
FP4_HD uint32_t fp4_twice_values(uint32_t codes) {
    uint32_t magnitudes = codes & 0x7777u;
    uint32_t plus = fp4_pick_bytes(0x03020100u, 0x0C080604u, magnitudes);
    uint32_t minus = fp4_pick_bytes(0xFDFEFF00u, 0xF4F8FAFCu, magnitudes);
    return fp4_pick_bytes(plus, minus, 0x3210u + ((codes & 0x8888u) >> 1));
}

/* sum + the product of four signed bytes with four. */
FP4_HD int32_t fp4_dot4(uint32_t a, uint32_t b, int32_t sum) {
#ifdef __CUDA_ARCH__
    return __dp4a((int)a, (int)b, sum);
#else
    for (int i = 0; i < 32; i += 8) sum += (int8_t)(a >> i & 0xFF) * (int8_t)(b >> i & 0xFF);
    return sum;
#endif
}

/* sum + four times the sum of eight products of codes. */
FP4_HD int32_t fp4_dot8(uint32_t a, uint32_t b, int32_t sum) {
    sum = fp4_dot4(fp4_twice_values(a), fp4_twice_values(b), sum);
    return fp4_dot4(fp4_twice_values(a >> 16), fp4_twice_values(b >> 16), sum);
}

/* Bit 4 i is set when code i is not a zero. */
FP4_HD uint32_t fp4_nonzero(uint32_t codes) {
    return (codes | codes >> 1 | codes >> 2) & 0x11111111u;
}

// --- alignment and rounding ---

/* value * 2^shift, cut toward zero; shift <= 27, or value 0. */
FP4_HD int64_t fp4_align(int64_t value, int shift) {
    if (value == 0 || shift < -62) return 0;
    if (shift >= 0) return value * ((int64_t)1 << shift);
    return value < 0 ? -(-value >> -shift) : value >> -shift;
}

FP4_HD int fp4_leading_zeros(uint64_t x) {
#ifdef __CUDA_ARCH__
    return __clzll((long long)x);
#else
    return __builtin_clzll(x);
#endif
}

FP4_HD float fp4_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* sum * 2^lsb, cut toward zero; lsb >= -161. */
FP4_HD float fp4_round(int64_t sum, int lsb) {
    if (sum == 0) return 0.0f;
    uint32_t sign = sum < 0 ? 0x80000000u : 0;
    uint64_t magnitude = (uint64_t)(sum < 0 ? -sum : sum);
    int zeros = fp4_leading_zeros(magnitude);
    int exponent = 63 - zeros + lsb;
    if (exponent > 127) return fp4_float(sign | 0x7F7FFFFFu);
    uint32_t significand = (uint32_t)(magnitude << zeros >> 40);   // 24 bits, the top one set
    if (exponent < -149) return fp4_float(sign);
    if (exponent < -126) return fp4_float(sign | significand >> (-126 - exponent));
    return fp4_float(sign | (((uint32_t)(exponent + 126) << 23) + significand));
}

// --- the step ---

/* Significand and exponent of a UE4M3 scale: its value is significand * 2^(exponent - 3). */
typedef struct {
    int significand, exponent;
} Fp4Scale;

FP4_HD Fp4Scale fp4_scale(uint32_t code) {
    int exponent = (int)(code >> 3 & 15), mantissa = (int)(code & 7);
    Fp4Scale s = {exponent ? 8 + mantissa : mantissa, (exponent ? exponent : 1) - 7};
    return s;
}

/* Whether one of the four scales of a word is NaN. */
FP4_HD int fp4_scales_nan(uint32_t scales) {
    return (((scales & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u) != 0;
}

/* a, b: 64 codes, code k in bits 4 (k % 8)... of word k / 8. Scale words: block i in byte i. */
FP4_HD float fp4_step(float c, const uint32_t *a, const uint32_t *b, uint32_t scales_a,
                      uint32_t scales_b) {
    uint32_t c_bits;
    memcpy(&c_bits, &c, 4);
    uint32_t c_magnitude = c_bits & 0x7FFFFFFFu;
    if (c_magnitude > 0x7F800000u || fp4_scales_nan(scales_a) || fp4_scales_nan(scales_b))
        return fp4_float(FP4_NAN_BITS);
    if (c_magnitude == 0x7F800000u) return c;
    int c_field = (int)(c_magnitude >> 23);
    int c_exponent = (c_field ? c_field : 1) - 127;
    int64_t c_significand = (int64_t)(c_magnitude & 0x7FFFFFu) | (c_field ? 0x800000 : 0);
    int lsb = c_exponent - 35;
    int64_t product[FP4_STEP_BLOCKS];
    int weight[FP4_STEP_BLOCKS];
    for (int i = 0; i < FP4_STEP_BLOCKS; i++) {
        Fp4Scale sa = fp4_scale(scales_a >> 8 * i), sb = fp4_scale(scales_b >> 8 * i);
        int significand = sa.significand * sb.significand;
        uint32_t nonzero = (fp4_nonzero(a[2 * i]) & fp4_nonzero(b[2 * i])) |
                           (fp4_nonzero(a[2 * i + 1]) & fp4_nonzero(b[2 * i + 1]));
        product[i] = fp4_dot8(a[2 * i + 1], b[2 * i + 1], fp4_dot8(a[2 * i], b[2 * i], 0));
        product[i] *= significand;
        weight[i] = sa.exponent + sb.exponent - 8;
        if (significand && nonzero && weight[i] - 27 > lsb) lsb = weight[i] - 27;
    }
    int64_t sum = fp4_align(c_bits >> 31 ? -c_significand : c_significand, c_exponent - 23 - lsb);
    for (int i = 0; i < FP4_STEP_BLOCKS; i++) sum += fp4_align(product[i], weight[i] - lsb);
    return fp4_round(sum, lsb);
}

#endif
