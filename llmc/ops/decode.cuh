// decode -- the kernel of decode.h: an element a thread. A host compiler can take this file too,
// after test/fibres.h.
#pragma once
#include "cell.h"
#include "decode.h"
#include "vec.cuh"

typedef struct {
    QOperand q;
    float *out;
    Minifloat elem, scale;   // FORM_PACKED: of codes and of block scales
    int block;               // elements of a block scale; 0: there are none
    int64_t padded_cols;     // of the tiled scales
} DecodeArgs;

static inline DecodeArgs decode_args(Tensor out, const QOperand *q) {
    DecodeArgs a = {};
    a.q = *q;
    a.out = (float *)out.data;
    if (q->form == FORM_VALUES) return a;
    const Operand *cell = &formats[q->format].cell;
    a.elem = minifloat(cell->elem);
    if (!q->scales) return a;
    a.scale = minifloat(cell->scale);
    a.block = cell->block;
    a.padded_cols = round_up(ceil_div(q->k, cell->block), 4);
    return a;
}

/* The number that a code stands for; beyond the largest one NaN. */
static __device__ __forceinline__ float decode_number(Minifloat f, uint32_t code) {
    int bits = f.exponent_bits + f.mantissa_bits;
    uint32_t magnitude = code & ((1u << bits) - 1), field = magnitude >> f.mantissa_bits;
    uint32_t mantissa = magnitude & ((1u << f.mantissa_bits) - 1);
    if (field) mantissa |= 1u << f.mantissa_bits;
    int exponent = (int)(field ? field : 1) - f.bias - f.mantissa_bits;
    float value = (float)mantissa * cell_power_of_two(exponent);
    if (value > f.max) return cell_nan();
    return code >> bits & 1 ? -value : value;
}

/* As quantize_scale_offset. */
static __device__ __forceinline__ int64_t decode_scale_offset(int64_t r, int64_t c,
                                                              int64_t padded_cols) {
    int64_t tile = r / 128 * (padded_cols / 4) + c / 4;
    return tile * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4;
}

/* Without the tensor's scale. */
static __device__ __forceinline__ float decode_element(const DecodeArgs &a, int64_t row,
                                                       int64_t k) {
    const QOperand &q = a.q;
    if (q.form == FORM_VALUES) {
        int64_t at = q.k_contiguous ? row * q.k + k : k * q.rows + row;
        return q.dtype == DT_F32 ? ((const float *)q.data)[at]
                                 : float_of(((const bf16 *)q.data)[at]);
    }
    const uint8_t *codes = (const uint8_t *)q.data;
    int64_t at = row * q.k + k;
    if (!a.block) return decode_number(a.elem, codes[at]);
    uint32_t pair = codes[at / 2];
    float element = decode_number(a.elem, at % 2 ? pair >> 4 : pair & 15);
    int64_t scale = decode_scale_offset(row, k / a.block, a.padded_cols);
    return element * decode_number(a.scale, q.scales[scale]);
}

/*
Element `at` of out a thread, rows after rows.
  bytes    4 written, 0.6 to 4 read
  limiter  memory bandwidth; once a step at most, in a share of the steps
*/
__global__ static void __launch_bounds__(FLAT_THREADS) decode_kernel(DecodeArgs a) {
    int64_t at = (int64_t)blockIdx.x * FLAT_THREADS + threadIdx.x;
    if (at >= a.q.rows * a.q.k) return;
    float scale = 1.0f / a.q.dequant_div;
    if (a.q.amax) scale *= *a.q.amax;
    a.out[at] = decode_element(a, at / a.q.k, at % a.q.k) * scale;
}

/*
Eight elements of packed NVFP4 a thread: one word of codes and their block's scale. k is a multiple
of 16, so that the eight are of one row and block.
  bytes    2 written, 0.56 read per element
  limiter  memory bandwidth
*/
__global__ static void __launch_bounds__(FLAT_THREADS)
    decode_values_kernel(DecodeArgs a, bf16 *out) {
    int64_t i = (int64_t)blockIdx.x * FLAT_THREADS + threadIdx.x, at = i * VEC;
    if (at >= a.q.rows * a.q.k) return;
    int64_t row = at / a.q.k, block = at % a.q.k / a.block;
    float scale =
        decode_number(a.scale, a.q.scales[decode_scale_offset(row, block, a.padded_cols)]);
    uint32_t codes = ((const uint32_t *)a.q.data)[i];
    float v[VEC];
    for (int j = 0; j < VEC; j++) v[j] = decode_number(a.elem, codes >> 4 * j & 15) * scale;
    store_vec(out + at, v, VEC, true);
}
