/*
recipe_inputs -- the tensors that test/make_recipe_vectors.py quantises, by the same formulas on
integers: bf16 numbers that reach every branch of a cell's arithmetic.
*/
#ifndef TEST_RECIPE_INPUTS_H
#define TEST_RECIPE_INPUTS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "../llmc/common.h"
#include "../llmc/tensor.h"

static inline uint32_t input_mix(uint32_t i, uint32_t seed) {
    uint32_t h = i * 0x9E3779B9u + seed;
    h ^= h >> 16;
    h *= 0x85EBCA6Bu;
    h ^= h >> 13;
    h *= 0xC2B2AE35u;
    return h ^ h >> 16;
}

/* A bf16 number of a biased exponent that may lie outside: cut to a subnormal, held at 254. */
static inline bf16_t input_number(uint32_t sign, int exponent, uint32_t mantissa) {
    uint32_t magnitude = (uint32_t)min_i64(exponent, 254) << 7 | mantissa;
    if (exponent < 1) magnitude = (mantissa | 0x80u) >> min_i64(1 - exponent, 8);
    return (bf16_t)(magnitude | sign << 15);
}

static inline int input_trailing_zeros(uint32_t x, int most) {
    return __builtin_ctz(x | 1u << most);
}

static inline Tensor input_new(int rows, int cols) {
    return tensor_view(xmalloc(dtype_bytes(DT_BF16, rows * cols)), DT_BF16, rows, cols);
}

/* Numbers below 2^(base + 1), mostly within 8 binades; tiles of 16 x 16 that are zero, tiny, on the
   edge of what a scale reaches, larger, or full of ties; outliers; a row and a column of zeros.
   Free its data. */
static inline Tensor input_tensor(int rows, int cols, uint32_t seed, int base) {
    Tensor x = input_new(rows, cols);
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < cols; c++) {
            uint32_t i = (uint32_t)(r * cols + c), h = input_mix(i, seed), mantissa = h & 0x7F;
            uint32_t tile = input_mix((uint32_t)(r / 16 * 4096 + c / 16), seed ^ 0xA5A5A5A5u);
            uint32_t kind = tile % 16;
            int exponent = 127 + base - input_trailing_zeros(h >> 7 & 0xFFFF, 8);
            if (kind == 1) exponent -= 40;
            if (kind == 2 || kind > 13) exponent -= 4 + (int)((tile >> 8) % 12);
            if (kind == 3) exponent += 2;
            if (kind == 4) {
                exponent = 127 + base - (int)(h >> 7 & 3);
                mantissa &= 0x60;
            }
            if (input_mix(i, seed ^ 0x5EED) % 997 == 0) exponent += 3;
            int zero = kind == 0 || r == 37 || c == 77;
            ((bf16_t *)x.data)[i] =
                zero ? (bf16_t)(h >> 31 << 15) : input_number(h >> 31, exponent, mantissa);
        }
    }
    return x;
}

enum { INPUT_BLOCK_ROWS = 32, INPUT_BLOCK_COLS = 256 };   // 512 blocks of 16

/* Zeros of both signs. Free its data. */
static inline Tensor input_zeros(uint32_t seed) {
    Tensor x = input_new(INPUT_BLOCK_ROWS, INPUT_BLOCK_COLS);
    for (uint32_t i = 0; i < INPUT_BLOCK_ROWS * INPUT_BLOCK_COLS; i++)
        ((bf16_t *)x.data)[i] = (bf16_t)(input_mix(i, seed) >> 31 << 15);
    return x;
}

/* Blocks of 16 with every bf16 significand as their maximum, over 12 binades, under a maximum of
   the tensor for which the order of operations shows in scales. Free its data. */
static inline Tensor input_every_maximum(uint32_t seed) {
    Tensor x = input_new(96, INPUT_BLOCK_COLS);
    for (uint32_t i = 0; i < 96 * INPUT_BLOCK_COLS; i++) {
        uint32_t h = input_mix(i, seed), block = i / 16, mantissa = h & 0x7F;
        int exponent = 127 - (int)(block / 128);
        if (i % 16 == 0) mantissa = block % 128;
        else exponent -= 1 + input_trailing_zeros(h >> 7 & 0xFFFF, 8);
        ((bf16_t *)x.data)[i] =
            i ? input_number(h >> 31, exponent, mantissa) : input_number(h >> 31, 128, 42);
    }
    return x;
}

/* A block of multiples of a quarter of its scale: the numbers of E2M1 and the ties between. */
static inline float input_tie(uint32_t i, uint32_t h, uint32_t block, int base) {
    static const uint8_t quarters[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 22, 24};
    int quarter = i % 16 == 0 ? 24 : quarters[h % 16];
    float magnitude =
        i == 0 ? ldexpf(2688.0f, base) : ldexpf((float)quarter, (int)(block % 18) - 9 + base - 2);
    return i != 0 && h >> 31 ? -magnitude : magnitude;
}

/* Largest magnitude about 2^base; blocks of up to 35 binades less, and a few of zeros; or all of
   ties, under a maximum of 2688 2^base. Free its data. */
static inline Tensor input_blocks(int index, int base, int ties) {
    Tensor x = input_new(INPUT_BLOCK_ROWS, INPUT_BLOCK_COLS);
    uint32_t seed = 0xB10Cu + (uint32_t)index;
    for (uint32_t i = 0; i < INPUT_BLOCK_ROWS * INPUT_BLOCK_COLS; i++) {
        uint32_t h = input_mix(i, seed), block = input_mix(i / 16, seed ^ 0xA5A5A5A5u);
        int down = block % 4 == 0 ? 0 : (int)((block >> 8) % 36);
        int exponent = 127 + base - down - input_trailing_zeros(h >> 7 & 0xFFFF, 8);
        bf16_t value = input_number(h >> 31, exponent, h & 0x7F);
        if (block % 32 == 5) value = (bf16_t)(h >> 31 << 15);
        ((bf16_t *)x.data)[i] = ties ? bf16_from_f32(input_tie(i, h, block, base)) : value;
    }
    return x;
}

#endif
