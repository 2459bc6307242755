/*
channels -- OutControl: of the input of a product few channels, those with the largest norm, are
kept out of what is quantised and multiplied in MXFP8 beside it, as are the same channels of the
weight. A channel is a column of x (N,C) and of w (OC,C); chosen[c] is 1 for one that was chosen,
else 0.
  squares  from step `from` to step `to` (counted from 1): sums[c] += sum_n x[n,c]^2
  advance  total += current, but not in a step that is dropped (stop_votes); then current = 0
  drop     out = x, chosen channels 0: what the recipe quantises
  add      to the decoded values of that, at chosen channels: the element in MXFP8 (ops/cell.h,
           power-of-two scale by ceil), divided by the operand's decode scale. Chosen elements of 32
           neighbouring columns of a row, from a multiple of 32 on, share a scale. Where the rest of
           the tensor is 0 and so has no scale, its maximum becomes dequant_div: a scale of 1
  shapes    x, out (R,C); sums, total, current, chosen (1,C); the operand (R,C), k_contiguous
  dtypes    x bf16 or f32, out as x; values of the operand and all else f32
  numerics  add: E4M3 times a power of two is exact, its quotient by the decode scale one FP32
            rounding; drop, add: the same bits on all devices. squares: FP32, in an order that
            depends on the shape and the device alone
  errors    aborts on a shape or dtype mismatch
  source    TetraJet-v2's OutControl as specified in dev/NUMERICS.md 5g
  tests     test_channels.c; test_channels_sim.cpp; test_ops_extras_cuda.cu
*/
#ifndef LLMC_OPS_CHANNELS_H
#define LLMC_OPS_CHANNELS_H

#include "quantize.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CHANNEL_GROUP = 32 };

typedef struct {
    int64_t from, to;
} StepRange;   // both included, steps counted from 1

void channel_squares_check(Tensor sums, Tensor x);
void channels_advance_check(Tensor total, Tensor current);
void channels_drop_check(Tensor out, Tensor x, Tensor chosen);
void channels_add_check(const QOperand *q, Tensor x, Tensor chosen);
void channel_squares_cpu(Device *d, Tensor sums, Tensor x, StepRange steps, const StepState *state);
void channel_squares_cuda(Device *d, Tensor sums, Tensor x, StepRange steps,
                          const StepState *state);
void channels_advance_cpu(Device *d, Tensor total, Tensor current, const StepState *state);
void channels_advance_cuda(Device *d, Tensor total, Tensor current, const StepState *state);
void channels_drop_cpu(Device *d, Tensor out, Tensor x, Tensor chosen);
void channels_drop_cuda(Device *d, Tensor out, Tensor x, Tensor chosen);
void channels_add_cpu(Device *d, const QOperand *q, Tensor x, Tensor chosen);
void channels_add_cuda(Device *d, const QOperand *q, Tensor x, Tensor chosen);

#ifdef __cplusplus
}
#endif
#endif
