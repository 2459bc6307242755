/*
gemm_rates -- how fast the device at hand multiplies the shapes of a model's linears, with what the
plan chose and in BF16; and, on the way, by which of the library's algorithms (ops->gemm_tune), for
these and for the head. Measures before the model's memory is taken, on operands of its own.
*/
#ifndef LLMC_GEMM_RATES_H
#define LLMC_GEMM_RATES_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* FLOP/s of one GEMM, quantising apart; 0: not measured (no memory for it, or it runs in
   software). Equal where the plan is BF16 or its emulation. */
typedef struct {
    double planned, bf16;
} GemmRate;

/* Of GEMM g of linear `id` at [id * NUM_GEMMS + g], over micro-batches of `tokens`. After
   model_measure, for training. NULL on a CPU, which measures nothing. Caller frees. */
GemmRate *gemm_rates_measure(Model *m, int64_t tokens);

#ifdef __cplusplus
}
#endif
#endif
