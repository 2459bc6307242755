/*
dtype -- names and sizes of the number types, and the conversions of the small ones: the oracle of
the program. Every function here follows its format's definition one value at a time; nothing here
is meant to be fast.
*/
#include "dtype.h"

#include <math.h>

#include "common.h"

// clang-format off
const DTypeInfo dtype_info[NUM_DTYPES] = {
    //           name    bits  safetensors
    [DT_F32]  = {"f32",  32,   "F32"},
    [DT_BF16] = {"bf16", 16,   "BF16"},
    [DT_I32]  = {"i32",  32,   "I32"},
    [DT_U8]   = {"u8",   8,    "U8"},
    [DT_E2M1] = {"e2m1", 4,    NULL},
    [DT_E4M3] = {"e4m3", 8,    "F8_E4M3"},
};
// clang-format on

size_t dtype_bytes(DType t, int64_t count) {
    int64_t bits = count * dtype_info[t].bits;
    CHECK(count >= 0 && bits % 8 == 0, "%lld values of %s do not fill whole bytes",
          (long long)count, dtype_info[t].name);
    return (size_t)(bits / 8);
}

// --- E2M1 ---

enum { E2M1_TOP = 7, E2M1_SIGN = 8 };
static const float e2m1_magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

float e2m1_decode(uint8_t code) {
    float magnitude = e2m1_magnitudes[code & E2M1_TOP];
    return code & E2M1_SIGN ? -magnitude : magnitude;
}

static uint8_t with_sign(uint8_t magnitude_code, float x) {
    return signbit(x) ? magnitude_code | E2M1_SIGN : magnitude_code;
}

uint8_t e2m1_encode(float x) {
    if (isnan(x)) return E2M1_TOP;
    float a = fabsf(x);
    uint8_t code = 0;
    while (code < E2M1_TOP) {
        float midpoint = 0.5f * (e2m1_magnitudes[code] + e2m1_magnitudes[code + 1]);   // exact
        int upwards = code & 1;   // a tie goes to the even code
        if (a < midpoint || (a == midpoint && !upwards)) break;
        code++;
    }
    return with_sign(code, x);
}

uint8_t e2m1_encode_stochastic(float x, uint32_t draw, int bits) {
    if (isnan(x)) return E2M1_TOP;
    float a = fabsf(x);
    if (a >= E2M1_MAX) return with_sign(E2M1_TOP, x);
    uint8_t code = 0;
    while (a >= e2m1_magnitudes[code + 1]) code++;
    // Exact: the neighbours are within a factor of two (or the lower one is 0), and the step is a
    // power of two.
    float step = e2m1_magnitudes[code + 1] - e2m1_magnitudes[code];
    float frac = (a - e2m1_magnitudes[code]) / step;
    uint32_t one = 1u << bits;
    if ((uint32_t)(frac * (float)one) + draw >= one) code++;
    return with_sign(code, x);
}

// --- E4M3 ---

enum { E4M3_NAN = 0x7F, E4M3_TOP = 0x7E, E4M3_SIGN = 0x80, E4M3_MIN_EXPONENT = -6 };

float e4m3_decode(uint8_t code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    // All ones: a GPU's NaN, so that devices agree on the bits they store.
    if ((code & E4M3_NAN) == E4M3_NAN) return f32_from_bits(code & E4M3_SIGN ? ~0u : 0x7FFFFFFFu);
    float magnitude = exponent == 0 ? ldexpf((float)mantissa, E4M3_MIN_EXPONENT - 3)
                                    : ldexpf((float)(8 + mantissa), exponent - 7 - 3);
    return code & E4M3_SIGN ? -magnitude : magnitude;
}

uint8_t e4m3_encode(float x) {
    if (isnan(x)) return E4M3_NAN;
    uint8_t sign = signbit(x) ? E4M3_SIGN : 0;
    float a = fabsf(x);
    if (a >= E4M3_MAX) return sign | E4M3_TOP;
    int exponent = a > 0x1p-6f ? ilogbf(a) : E4M3_MIN_EXPONENT;   // of the leading bit of a
    // a in units of its last kept bit: 8..16 for a normal number, 16 being the next exponent's 8;
    // below 8 for a subnormal one. Scaling by a power of two is exact, rintf takes ties to even.
    int significand = (int)rintf(ldexpf(a, 3 - exponent));
    return sign | (uint8_t)((exponent - E4M3_MIN_EXPONENT) * 8 + significand);
}
