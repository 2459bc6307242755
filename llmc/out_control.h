/*
out_control -- OutControl: which in-features of the linears fprop multiplies in MXFP8 beside what
the recipe quantises (ops/channels.h). Over the steps of precision.out_control.from to .to the
squares of each linear's inputs are summed, over all micro-steps and ranks; after the last one the
fraction of the features with the largest sums is chosen, the first of equals, and stays.
  numerics  sums are FP32 in an order of the device's own: features whose norms are as good as equal
            may be chosen differently on another one
  tests     test_channels.c
*/
#ifndef LLMC_OUT_CONTROL_H
#define LLMC_OUT_CONTROL_H

#include "config.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of step m->step, after its last micro-step, with m->channel_squares those of all ranks. */
void out_control_step(Model *m, const Config *c);
/* Features that a fraction of so many is; at least one. */
int64_t out_control_count(float fraction, int64_t features);
/* Linears that have chosen features, or will have. */
int out_control_linears(Model *m);

#ifdef __cplusplus
}
#endif
#endif
