// quantize -- device helpers of the quantisers: pairs of bf16, the 16-point transform, rounding to
// E2M1 and its codes, random bits. No kernel. The scale arithmetic is nvfp4.h, one header for both
// devices. A host compiler can take this file too, after test/fibres.h, which defines CUDA's
// keywords and those of its functions that are used here.
#pragma once
#ifdef __CUDACC__
#include <cuda_bf16.h>
#endif
#include <stdint.h>

#include "../dtype.h"
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
static __device__ __forceinline__ uint32_t abs2(uint32_t pair) { return pair & 0x7FFF7FFFu; }

#ifdef __CUDACC__
static __device__ __forceinline__ __nv_bfloat162 as_bf16x2(uint32_t pair) {
    return *reinterpret_cast<__nv_bfloat162 *>(&pair);
}
static __device__ __forceinline__ uint32_t as_word(__nv_bfloat162 pair) {
    return *reinterpret_cast<uint32_t *>(&pair);
}
#endif

/* Rounds both to nearest even. A GPU knows one NaN of bf16, 0x7FFF. */
static __device__ __forceinline__ uint32_t pack_bf16x2(float low, float high) {
#ifdef __CUDACC__
    return as_word(__floats2bfloat162_rn(low, high));
#else
    uint32_t low_bits = low == low ? bf16_from_f32(low) : 0x7FFF;
    return (high == high ? bf16_from_f32(high) : 0x7FFFu) << 16 | low_bits;
#endif
}

/* The larger of each half, none negative; a NaN is kept. */
static __device__ __forceinline__ uint32_t max2(uint32_t a, uint32_t b) {
#ifdef __CUDACC__
    return as_word(__hmax2_nan(as_bf16x2(a), as_bf16x2(b)));
#else
    uint32_t low = (a & 0xFFFF) > (b & 0xFFFF) ? a & 0xFFFF : b & 0xFFFF;
    return (a >> 16 > b >> 16 ? a >> 16 : b >> 16) << 16 | low;
#endif
}

/* The product of each half, rounded to nearest even. */
static __device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b) {
#ifdef __CUDACC__
    return as_word(__hmul2_rn(as_bf16x2(a), as_bf16x2(b)));
#else
    return pack_bf16x2(low_f32(a) * low_f32(b), high_f32(a) * high_f32(b));
#endif
}

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

// --- maxima ---

enum { AMAX_THREADS = 256 };   // of a block that finds one

/* Magnitudes compare as the integers of their bits, so an integer maximum is exact and in any
   order. */
static __device__ inline void add_block_maximum(float *amax, uint32_t bits) {
    __shared__ uint32_t warp_max[AMAX_THREADS / 32];
    if (bits > 0x7F800000u) bits = 0x7FFFFFFFu;   // one NaN for all devices
    uint32_t most = __reduce_max_sync(0xFFFFFFFFu, bits);
    __syncthreads();   // of an earlier call's reads
    if (threadIdx.x % 32 == 0) warp_max[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    most =
        __reduce_max_sync(0xFFFFFFFFu, threadIdx.x < AMAX_THREADS / 32 ? warp_max[threadIdx.x] : 0);
    if (threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned *>(amax), most);
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

// --- codes of E2M1 ---

// FEAT_SM100_ALL and FEAT_SM120_ALL are what CUDA 12.8, older than the families, says of 100a and
// 120a.
#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
#define E2M1_CONVERT_NATIVE (__CUDA_ARCH_FAMILY_SPECIFIC__ >= 1000)
#elif defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM120_ALL)
#define E2M1_CONVERT_NATIVE 1
#else
#define E2M1_CONVERT_NATIVE 0
#endif

// The conversion in software belongs on GPUs that have no other. A target of sm_100 or later
// without its a or f suffix could do better and would do this in silence.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && !E2M1_CONVERT_NATIVE
#error "FP4 kernels need a family or specific target from sm_100 on: 100a, 103a or 120f, not 100"
#endif

/* Codes of eight values, the first in the lowest bits: nearest, ties to even, at most 6; NaN gives
   +6. Values that E2M1 has keep their value. */
static __device__ __forceinline__ uint32_t e2m1x8_encode(const float v[8]) {
    uint32_t codes = 0;
#if E2M1_CONVERT_NATIVE
    asm("{\n\t"
        ".reg .b8 byte<4>;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 byte0, %2, %1;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 byte1, %4, %3;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 byte2, %6, %5;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 byte3, %8, %7;\n\t"
        "mov.b32 %0, {byte0, byte1, byte2, byte3};\n\t"
        "}"
        : "=r"(codes)
        : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]), "f"(v[6]), "f"(v[7]));
#else
#pragma unroll
    for (int i = 0; i < 8; i++) {
        // 2^-126 makes 1 the smallest normal number, and the code of a magnitude its bits from 22.
        uint32_t bits = __float_as_uint(__fmul_rn(e2m1_nearest(v[i]), 0x1p-126f));
        uint32_t sign = v[i] == v[i] ? __float_as_uint(v[i]) >> 31 : 0;
        codes |= (sign << 3 | bits >> 22) << 4 * i;
    }
#endif
    return codes;
}

// cvt.rs belongs to these two targets alone, not to their family; FEAT_SM100_ALL as above.
#if defined(__CUDA_ARCH_SPECIFIC__)
#define E2M1_CONVERT_RANDOM (__CUDA_ARCH_SPECIFIC__ == 1000 || __CUDA_ARCH_SPECIFIC__ == 1030)
#elif defined(__CUDA_ARCH_FEAT_SM100_ALL)
#define E2M1_CONVERT_RANDOM 1
#else
#define E2M1_CONVERT_RANDOM 0
#endif

#if E2M1_CONVERT_RANDOM
/* As e2m1x8_encode, rounded stochastically: a word of random bits serves four values, 8 bits each.
   The convert takes the value of the highest code first. */
static __device__ __forceinline__ uint32_t e2m1x8_encode_random(const float v[8], uint32_t draw0,
                                                                uint32_t draw1) {
    uint32_t codes;
    asm("{\n\t"
        ".reg .b16 four<2>;\n\t"
        "cvt.rs.satfinite.e2m1x4.f32 four0, {%4, %3, %2, %1}, %9;\n\t"
        "cvt.rs.satfinite.e2m1x4.f32 four1, {%8, %7, %6, %5}, %10;\n\t"
        "mov.b32 %0, {four0, four1};\n\t"
        "}"
        : "=r"(codes)
        : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]), "f"(v[6]), "f"(v[7]),
          "r"(draw0), "r"(draw1));
    return codes;
}
#endif

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
    int64_t base = q.rows_are_tokens ? q.state->token_base + q.first_row : 0;
    if (q.token_operand) return (uint64_t)((base / 16 + block) * cols + row);
    return (uint64_t)((base + row) * (cols / 16) + block);
}

// --- scales in the tiled layout ---

/* Byte of the scales of blocks [4 group, 4 group + 4) of a row, which are one aligned word; as
   quantize_scale_offset. */
static __device__ __forceinline__ int64_t scale_word_offset(int64_t row, int64_t group, int64_t k) {
    int64_t tile = row / 128 * ((k + 63) / 64) + group;
    return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4;
}

/* Whether scales of no block lie among those of the operand. No kernel writes all of them. */
static inline bool scales_have_padding(const QOperand *o) {
    return o->form == FORM_PACKED && (o->rows % 128 || o->k % 64);
}

// --- any cell: quantize_cell.cu ---

/* Makes one operand of whatever cell, or finds its maximum, which must have been zeroed. x is bf16
   or f32. */
void quantize_cell_cuda(Device *d, const QOperand *o, const Quantizer *how, Tensor x,
                        int only_amax);
