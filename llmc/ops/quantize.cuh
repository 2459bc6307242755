// quantize -- device helpers of the quantisers: the 16-point transform, rounding to E2M1, random
// bits. No kernel. The scale arithmetic is nvfp4.h, one header for both devices.
#pragma once
#include <cuda_bf16.h>
#include <stdint.h>

#include "../rng.h"
#include "nvfp4.h"
#include "quantize.h"

// --- pairs of bf16 in a word: the lower column in the low half ---

static __device__ __forceinline__ float low_f32(uint32_t pair) {
    return __uint_as_float(pair << 16);
}
static __device__ __forceinline__ float high_f32(uint32_t pair) {
    return __uint_as_float(pair & 0xFFFF0000u);
}

static __device__ __forceinline__ __nv_bfloat162 as_bf16x2(uint32_t pair) {
    return *reinterpret_cast<__nv_bfloat162 *>(&pair);
}
static __device__ __forceinline__ uint32_t as_word(__nv_bfloat162 pair) {
    return *reinterpret_cast<uint32_t *>(&pair);
}
/* Rounds both to nearest even. */
static __device__ __forceinline__ uint32_t pack_bf16x2(float low, float high) {
    return as_word(__floats2bfloat162_rn(low, high));
}
/* The larger of each half; a NaN is kept. */
static __device__ __forceinline__ uint32_t max2(uint32_t a, uint32_t b) {
    return as_word(__hmax2_nan(as_bf16x2(a), as_bf16x2(b)));
}
static __device__ __forceinline__ uint32_t abs2(uint32_t pair) { return pair & 0x7FFF7FFFu; }

// --- Hadamard ---

/* hadamard16 of hadamard.h after the signs and before the factor 0.25, which callers apply. */
static __device__ __forceinline__ void hadamard16_butterflies(float v[16]) {
#pragma unroll
    for (int stride = 1; stride < 16; stride *= 2) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            if (i & stride) continue;
            float a = v[i], b = v[i + stride];
            v[i] = __fadd_rn(a, b);
            v[i + stride] = __fsub_rn(a, b);
        }
    }
}

/* The sign bits that element i of a group flips in both halves of a word. */
static __device__ __forceinline__ uint32_t flip_signs2(uint32_t sign_mask, int i) {
    return sign_mask >> i & 1 ? 0x80008000u : 0;
}

/* The transform of two columns of 16 rows, still without the factor 0.25. */
static __device__ __forceinline__ void
transform_columns(float low[16], float high[16], const uint32_t word[16], uint32_t sign_mask) {
#pragma unroll
    for (int r = 0; r < 16; r++) {
        uint32_t signed_pair = word[r] ^ flip_signs2(sign_mask, r);
        low[r] = low_f32(signed_pair);
        high[r] = high_f32(signed_pair);
    }
    hadamard16_butterflies(low);
    hadamard16_butterflies(high);
}

// --- rounding to E2M1 ---

// Adding 1.5 * 2^23 steps leaves whole steps; a step is half the power of two of the number, and
// that of 1 below it. The products inside these fma are exact.
#define E2M1_BIG 6291456.0f   // 0.75 * 2^23

static __device__ __forceinline__ float e2m1_clamp(float y) {
    return fminf(fabsf(y), 6.0f);
}   // NaN: 6
static __device__ __forceinline__ float e2m1_binade(float magnitude) {
    return __uint_as_float(__float_as_uint(fmaxf(magnitude, 1.0f)) & 0x7F800000u);
}

/* Magnitude of y rounded to nearest even. */
static __device__ __forceinline__ float e2m1_nearest(float y) {
    float a = e2m1_clamp(y), binade = e2m1_binade(a);
    return __fmaf_rn(-E2M1_BIG, binade, __fmaf_rn(E2M1_BIG, binade, a));
}

/* Magnitude of y plus a random part of a step, rounded down: up exactly where the oracle
   e2m1_encode_stochastic goes up, because rounding a sum towards zero never lifts it onto the next
   value. half_dither: offset + draw / 2^(bits + 1); the offset leaves with the large number. */
static __device__ __forceinline__ float e2m1_stochastic(float y, float half_dither, float offset) {
    float a = e2m1_clamp(y), binade = e2m1_binade(a);
    float sum = __fmaf_rz(half_dither, binade, a);
    return __fmaf_rn(-(E2M1_BIG + offset), binade, __fmaf_rz(E2M1_BIG, binade, sum));
}

/* Code of a magnitude of E2M1, without sign. */
static __device__ __forceinline__ uint32_t e2m1_magnitude_code(float q) {
    return q < 1.0f ? (uint32_t)(q * 2.0f) : (__float_as_uint(q) >> 22) - 252u;
}

// --- random bits ---

/* The keys of Philox's rounds, worked out by the host: as kernel arguments they cost nothing. */
typedef struct {
    uint32_t word[PHILOX_ROUNDS][2];
} RoundKeys;

static inline RoundKeys round_keys(uint64_t seed) {
    RoundKeys keys;
    for (uint32_t i = 0; i < PHILOX_ROUNDS; i++) {
        keys.word[i][0] = (uint32_t)seed + i * PHILOX_BUMP0;
        keys.word[i][1] = (uint32_t)(seed >> 32) + i * PHILOX_BUMP1;
    }
    return keys;
}

static __device__ __forceinline__ Philox4 draw_group(const Quantizer &q, const RoundKeys &keys,
                                                     uint64_t group, uint32_t sub_draw) {
    Philox4 c = rng_group_counter(group, q.tag | sub_draw, q.state->step);
#pragma unroll
    for (int i = 0; i < PHILOX_ROUNDS; i++)
        c = philox4x32_round(c, keys.word[i][0], keys.word[i][1]);
    return c;
}

// A float of 2^14 has steps of 1/512: with a byte in its lowest bits it is the offset of 8-bit
// dither plus byte / 512. A sum with it is cut to 256ths of an E2M1 step, which is what 8 bits see.
#define DITHER8_OFFSET 16384.0f

static __device__ __forceinline__ float half_dither8(uint32_t word, int byte) {
    return __uint_as_float(__byte_perm(word, __float_as_uint(DITHER8_OFFSET), 0x7650u + byte));
}

/* Group of random bits of the operand's block; as quantize_group of the CPU. */
static __device__ __forceinline__ uint64_t draw_group_index(const Quantizer &q, int64_t cols,
                                                            int64_t row, int64_t block) {
    int64_t base = q.rows_are_tokens ? q.state->token_base : 0;
    if (q.token_operand) return (uint64_t)((base / 16 + block) * cols + row);
    return (uint64_t)((base + row) * (cols / 16) + block);
}
