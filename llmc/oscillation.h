/*
oscillation -- OsciReset: weights whose rounded values swing between two codes are set to these
(ops/oscillation.h). In steps start + i * period + j, counted from 0:
  j = 0         the weights, and what fprop multiplies for them, are noted
  j = 1..window what both moved since the step before is summed
  j = window    weights whose ratio reaches the threshold are reset
It comes before the step's update: Q(w) is then still what this step multiplied, so its gradient is
that of the weight that stands there now, and no operand has to be made for it. Of a weight that is
transformed before it is rounded, Q(w) is the inverse of the transform.
  tests     test_oscillation.c
*/
#ifndef LLMC_OSCILLATION_H
#define LLMC_OSCILLATION_H

#include "config.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of step m->step, whose weights' operands are those of model_begin_step. */
void oscillation_step(Model *m, const Config *c);
/* Weights that are looked at. */
int64_t oscillation_weights(const Model *m);

#ifdef __cplusplus
}
#endif
#endif
