/*
dtype -- number types and their exact conversion and rounding. This is the oracle: written for
reading, one value at a time; what must be fast (the files of ops/) has its own code and is tested
against this bit for bit.
  source  OCP 8-bit floating point and Microscaling (MX) specifications v1.0; PTX ISA, cvt;
          dev/NUMERICS.md 1.1-1.4
*/
#ifndef LLMC_DTYPE_H
#define LLMC_DTYPE_H

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    DT_F32,
    DT_BF16,
    DT_I32,
    DT_U8,      // raw bytes, packed codes
    DT_E2M1,    // FP4, two a byte, even element in the low nibble
    DT_E4M3,    // FP8 "fn": no infinity, 0x7F is NaN, largest 448
    DT_E5M2,    // FP8: 0x7C is infinity, beyond it NaN, largest 57344
    DT_E1M2,    // 4 bits, uniform: 0, .25 ... 1.75
    DT_E8M0,    // block scale: a power of two, 2^(code - 127)
    DT_UE5M3,   // block scales without a sign; see minifloat
    DT_E1M6,
    DT_E2M5,
    DT_E3M4,
    DT_E6M1,
    NUM_DTYPES
} DType;

typedef struct {
    const char *name;
    int bits;
    const char *safetensors;   // name in a safetensors header, NULL where the format has none
} DTypeInfo;

extern const DTypeInfo dtype_info[NUM_DTYPES];

/* Bytes of `count` values; count is even for DT_E2M1. Dies with EXIT_OOM from 2^60 bytes on. */
size_t dtype_bytes(DType t, int64_t count);

/* --- bfloat16: 1 sign, 8 exponent, 7 mantissa bits; nearest even; NaN stays NaN (quiet) --- */
typedef uint16_t bf16_t;

static inline float f32_from_bits(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t bits_from_f32(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline float bf16_to_f32(bf16_t x) { return f32_from_bits((uint32_t)x << 16); }
static inline bf16_t bf16_from_f32(float x) {
    uint32_t u = bits_from_f32(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (bf16_t)((u >> 16) | 0x40);
    return (bf16_t)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

/* --- E2M1: codes 0..15 = sign << 3 | index into {0, .5, 1, 1.5, 2, 3, 4, 6} --- */
#define E2M1_MAX 6.0f
float e2m1_decode(uint8_t code);
/* Nearest, ties to even, saturating at +-6; NaN gives +6 (code 7); the sign of zero is kept. */
uint8_t e2m1_encode(float x);
/* Stochastic: up with probability floor(2^bits * frac) / 2^bits, where frac is the place of |x|
   between its neighbours and `draw` is uniform in [0, 2^bits), bits <= 24 (dev/NUMERICS.md 3.3).
   Saturating; NaN gives +6. */
uint8_t e2m1_encode_stochastic(float x, uint32_t draw, int bits);

/* --- E4M3 (fn): nearest even, saturating to 448; NaN gives 0x7F; the sign is kept --- */
#define E4M3_MAX 448.0f
float e4m3_decode(uint8_t code);
uint8_t e4m3_encode(float x);

/* --- E5M2: nearest even, infinity too saturating to 57344; NaN gives 0x7F; the sign is kept --- */
#define E5M2_MAX 57344.0f
float e5m2_decode(uint8_t code);
uint8_t e5m2_encode(float x);

/* --- small floating point numbers as data: elements and block scales of any format --- */

/* value = m * 2^(1 - bias - mantissa_bits) where the exponent field e is 0, else
   (1 + m / 2^mantissa_bits) * 2^(e - bias). Of E8M0, whose codes have no zero, the rules of
   ops/cell.h are what rounds; of f32 and bf16 nothing is rounded. */
typedef struct {
    int exponent_bits, mantissa_bits, bias;
    float max;   // largest number, at which rounding saturates
    float min;   // smallest above zero
} Minifloat;
/* CHECKs that the type is one of these. */
Minifloat minifloat(DType t);

#ifdef __cplusplus
}
#endif
#endif
