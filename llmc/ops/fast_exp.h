/*
fast_exp -- exp of an f32 by arithmetic alone, so that loops over it vectorise; the C library's
expf is a call per element. Within 2 ulp of the exact value everywhere, subnormal results
included; exp(-inf) = 0, overflow gives inf, NaN stays NaN (test_ops_cpu.c fast_exp).
Needs arithmetic as written: no -ffast-math.
  source  argument reduction of Cody & Waite 1980, "Software Manual for the Elementary Functions"
*/
#ifndef LLMC_OPS_FAST_EXP_H
#define LLMC_OPS_FAST_EXP_H

#include "../dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 2^n for n in [-126, 127], n given modulo 2^32. */
static inline float exp2_of_int(uint32_t n) { return f32_from_bits((n + 127u) << 23); }

static inline float fast_exp(float x) {
    const float to_integer = 12582912.0f;   // 1.5 * 2^23: adding it rounds to an integer
    const float log2_e = 1.44269504f;
    const float ln2_high = 0.693145752f;   // 15 bits, so that n * ln2_high is exact
    const float ln2_low = 1.42860677e-6f;
    x = x > 89.0f ? 89.0f : x;       // exp(89) is inf already
    x = x < -104.0f ? -104.0f : x;   // exp(-104) is 0 already; a NaN passes both lines
    // exp(x) = 2^n exp(r), |r| <= ln(2) / 2
    float shifted = x * log2_e + to_integer;
    float n = shifted - to_integer;
    float r = (x - n * ln2_high) - n * ln2_low;
    float tail = 1.0f / 5040.0f;   // Taylor series; what follows is below 2^-27 of the sum
    tail = tail * r + 1.0f / 720.0f;
    tail = tail * r + 1.0f / 120.0f;
    tail = tail * r + 1.0f / 24.0f;
    tail = tail * r + 1.0f / 6.0f;
    tail = tail * r + 0.5f;
    float y = 1.0f + (r + r * r * tail);
    // n reaches from -150 to 128; two factors keep both of them normal numbers.
    uint32_t n_bits = bits_from_f32(shifted) - bits_from_f32(to_integer);
    uint32_t half = (uint32_t)((int32_t)n_bits >> 1);
    return y * exp2_of_int(half) * exp2_of_int(n_bits - half);
}

static inline float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

#ifdef __cplusplus
}
#endif
#endif
