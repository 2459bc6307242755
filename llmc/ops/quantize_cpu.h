/*
quantize_cpu -- the CPU implementations behind amax_pair_cpu and quantize_pair_cpu, apart so that a
test can hold one against the other. Not for other callers: quantize.h is the op.
*/
#ifndef LLMC_OPS_QUANTIZE_CPU_H
#define LLMC_OPS_QUANTIZE_CPU_H

#include "quantize.h"

#ifdef __cplusplus
extern "C" {
#endif

/* quantize.c: plain, one block at a time, every option and form. */
void amax_reference(QOperand *o, const Quantizer *how, Tensor x);
void quantize_reference(QOperand *o, const Quantizer *how, Tensor x);

/* quantize_fast.c: vectorised, both operands from one read of x (either may be NULL).
   quantize_pair_fast takes FORM_VALUES only, and only a finite *amax. */
void amax_pair_fast(QOperand *row, const Quantizer *row_how, QOperand *token,
                    const Quantizer *token_how, Tensor x);
void quantize_pair_fast(QOperand *row, const Quantizer *row_how, QOperand *token,
                        const Quantizer *token_how, Tensor x);

/* quantize_fp8.c: an operand of a format without blocks, in either form. Its maximum is found by
   the functions above. */
void quantize_fp8_cpu(QOperand *o, const Quantizer *how, Tensor x);

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
