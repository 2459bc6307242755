/*
quantize_cpu -- the CPU implementations behind amax_pair_cpu and quantize_pair_cpu, apart so that a
test can hold one against the other. Not for other callers: quantize.h is the op.
*/
#ifndef LLMC_OPS_QUANTIZE_CPU_H
#define LLMC_OPS_QUANTIZE_CPU_H

#include "quantize_count.h"

#ifdef __cplusplus
extern "C" {
#endif

/* quantize_cell.c: plain, one block at a time, every cell with blocks and every form; and a tensor
   that is only converted. */
void amax_reference(QOperand *o, const Quantizer *how, Tensor x);
void quantize_reference(QOperand *o, const Quantizer *how, Tensor x);

/* quantize_cell.c: quantize_count of an operand with blocks; of `o` rows, k and amax count. */
void quantize_count_blocks(QuantizeCounts *counts, QOperand *o, const Quantizer *how, Tensor x);
/* How far above the largest number an element counts as clipped. */
#define QUANTIZE_SATURATED (1.0f + 0x1p-20f)

/* quantize_fast.c: vectorised, both operands from one read of x (either may be NULL), which is no
   source. The maxima are of elements as they are or under a plain cell's transform.
   quantize_pair_fast takes plain cells, bf16 FORM_VALUES without a mask, and a finite *amax. */
void amax_pair_fast(QOperand *row, const Quantizer *row_how, QOperand *token,
                    const Quantizer *token_how, Tensor x);
void quantize_pair_fast(QOperand *row, const Quantizer *row_how, QOperand *token,
                        const Quantizer *token_how, Tensor x);

/* quantize_fp8.c: an operand of a format without blocks, in either form. Its maximum is found by
   the functions above. */
void quantize_fp8_cpu(QOperand *o, const Quantizer *how, Tensor x);

/* `count` elements of x from element `at` on, `stride` apart, as the quantiser sees them; the
   maximum of a source is read where it is. In quantize_cell.c. */
void quantize_load(float *v, const Quantizer *q, Tensor x, int64_t at, int64_t stride, int count);

/* Philox calls for the dither of 16 elements: 24 bits take a whole word each. */
static inline int quantize_num_subdraws(int bits) { return bits == 24 ? 4 : bits / 8; }

/* The group of random bits of row `row`, 16-block `block` of the operand; rng.h has the layout.
   */
static inline uint64_t quantize_group(const Quantizer *q, int64_t cols, int64_t row,
                                      int64_t block) {
    int64_t base = q->rows_are_tokens ? q->state->token_base + q->first_row : 0;
    if (q->token_operand) return (uint64_t)((base / 16 + block) * cols + row);
    return (uint64_t)((base + row) * (cols / 16) + block);
}

#ifdef __cplusplus
}
#endif
#endif
