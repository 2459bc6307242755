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
    [DT_E5M2] = {"e5m2", 8,    "F8_E5M2"},
    [DT_E1M2] = {"e1m2", 4,    NULL},
    [DT_E8M0] = {"e8m0", 8,    "F8_E8M0"},
    [DT_UE5M3] = {"ue5m3", 8,  NULL},
    [DT_E1M6] = {"e1m6", 8,    NULL},
    [DT_E2M5] = {"e2m5", 8,    NULL},
    [DT_E3M4] = {"e3m4", 8,    NULL},
    [DT_E6M1] = {"e6m1", 8,    NULL},
};

static const struct {
    DType type;
    Minifloat minifloat;
} minifloats[] = {
    //        exponent mantissa bias max          min
    {DT_E2M1,  {2, 1, 1,   6.0f,       0.5f}},
    {DT_E1M2,  {1, 2, 1,   1.75f,      0.25f}},
    {DT_E4M3,  {4, 3, 7,   448.0f,     0x1p-9f}},
    {DT_E5M2,  {5, 2, 15,  57344.0f,   0x1p-16f}},
    {DT_UE5M3, {5, 3, 15,  61440.0f,   0x1p-17f}},
    {DT_E1M6,  {1, 6, 0,   3.96875f,   0x1p-5f}},
    {DT_E2M5,  {2, 5, 1,   7.875f,     0x1p-5f}},
    {DT_E3M4,  {3, 4, 3,   31.0f,      0x1p-6f}},
    {DT_E6M1,  {6, 1, 31,  0x1.8p32f,  0x1p-31f}},
    {DT_E8M0,  {8, 0, 127, 0x1p127f,   0x1p-127f}},
    {DT_BF16,  {8, 7, 127, 0x1.FEp127f, 0x1p-133f}},
    {DT_F32,   {8, 23, 127, 0x1.FFFFFEp127f, 0x1p-149f}},
};
// clang-format on

size_t dtype_bytes(DType t, int64_t count) {
    int64_t bits;
    if (__builtin_mul_overflow(count, (int64_t)dtype_info[t].bits, &bits)) {
        die(EXIT_OOM, "%lld values of %s need 2^60 bytes or more: " SMALLER_RUN, (long long)count,
            dtype_info[t].name);
    }
    CHECK(count >= 0 && bits % 8 == 0, "%lld values of %s do not fill whole bytes",
          (long long)count, dtype_info[t].name);
    return (size_t)(bits / 8);
}

Minifloat minifloat(DType t) {
    for (int i = 0; i < ARRAY_LEN(minifloats); i++)
        if (minifloats[i].type == t) return minifloats[i].minifloat;
    CHECK(0, "%s is no floating point number", dtype_info[t].name);
    return minifloats[0].minifloat;
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

// --- E4M3 and E5M2 ---

enum { FP8_NAN = 0x7F, FP8_SIGN = 0x80, E4M3_TOP = 0x7E, E5M2_TOP = 0x7B, E5M2_INFINITY = 0x7C };
enum { E4M3_MANTISSA = 3, E4M3_MIN_EXPONENT = -6, E5M2_MANTISSA = 2, E5M2_MIN_EXPONENT = -14 };

static float with_sign_of(uint8_t code, float magnitude) {
    return code & FP8_SIGN ? -magnitude : magnitude;
}

/* All ones: a GPU's NaN, so that devices agree on the bits they store. */
static float fp8_nan(uint8_t code) { return f32_from_bits(code & FP8_SIGN ? ~0u : 0x7FFFFFFFu); }

/* Magnitude of a code that is finite. */
static float fp8_magnitude(uint8_t code, int mantissa_bits, int min_exponent) {
    int one = 1 << mantissa_bits;
    int exponent = (code & FP8_NAN) >> mantissa_bits, mantissa = code & (one - 1);
    if (exponent == 0) return ldexpf((float)mantissa, min_exponent - mantissa_bits);
    return ldexpf((float)(one + mantissa), exponent - 1 + min_exponent - mantissa_bits);
}

float e4m3_decode(uint8_t code) {
    if ((code & FP8_NAN) == FP8_NAN) return fp8_nan(code);
    return with_sign_of(code, fp8_magnitude(code, E4M3_MANTISSA, E4M3_MIN_EXPONENT));
}

float e5m2_decode(uint8_t code) {
    if ((code & FP8_NAN) > E5M2_INFINITY) return fp8_nan(code);
    if ((code & FP8_NAN) == E5M2_INFINITY) return with_sign_of(code, INFINITY);
    return with_sign_of(code, fp8_magnitude(code, E5M2_MANTISSA, E5M2_MIN_EXPONENT));
}

/* Code of the nearest number to a magnitude below the largest. */
static uint8_t fp8_nearest(float a, int mantissa_bits, int min_exponent) {
    // Of a's leading bit.
    int exponent = a > ldexpf(1.0f, min_exponent) ? ilogbf(a) : min_exponent;
    // a in units of its last kept bit: between one and two times 2^mantissa_bits for a normal
    // number, the upper end being the next exponent's lower one; less for a subnormal one. Scaling
    // by a power of two is exact, rintf takes ties to even.
    int significand = (int)rintf(ldexpf(a, mantissa_bits - exponent));
    return (uint8_t)(((exponent - min_exponent) << mantissa_bits) + significand);
}

uint8_t e4m3_encode(float x) {
    if (isnan(x)) return FP8_NAN;
    uint8_t sign = signbit(x) ? FP8_SIGN : 0;
    if (fabsf(x) >= E4M3_MAX) return sign | E4M3_TOP;
    return sign | fp8_nearest(fabsf(x), E4M3_MANTISSA, E4M3_MIN_EXPONENT);
}

uint8_t e5m2_encode(float x) {
    if (isnan(x)) return FP8_NAN;
    uint8_t sign = signbit(x) ? FP8_SIGN : 0;
    if (fabsf(x) >= E5M2_MAX) return sign | E5M2_TOP;
    return sign | fp8_nearest(fabsf(x), E5M2_MANTISSA, E5M2_MIN_EXPONENT);
}
