/*
quantize_count -- what quantising does to the elements of an operand, counted on the host: how many
are clipped, how many are lost. It runs the CPU reference, so by quantize.h's contract the counts
are those of any device's codes, given the same elements, maximum and draws.
  saturated    |y| > E (1 + 2^-20), with y the element times its block's multiplier and E the
               largest number of the format; the margin is for the roundings of y. Only where the
               block scale is not 0: there, every code is the largest and stands for 0
  underflowed  not 0, but its code or its block's scale is
  zero_scales  of `blocks`, one for each row of a square tile; formats without blocks have none
  source       dev/NUMERICS.md 2 and 10
  tests        test_quantize_count.c
*/
#ifndef LLMC_OPS_QUANTIZE_COUNT_H
#define LLMC_OPS_QUANTIZE_COUNT_H

#include "quantize.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t elements, zeros;   // that are 0 as they come to be rounded
    int64_t saturated, underflowed;
    int64_t blocks, zero_scales;
} QuantizeCounts;

/* Adds those of the operand that `how` makes of x with the tensor's maximum `amax`, which cells
   without a tensor scale do not look at. x, how->state and how->source_amax are host memory. */
void quantize_count(QuantizeCounts *counts, const Quantizer *how, Tensor x, float amax);

#ifdef __cplusplus
}
#endif
#endif
