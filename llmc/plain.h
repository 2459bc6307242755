/*
plain -- lets chosen GEMMs of all linears multiply the tensors themselves, in the model's own dtype,
for a while: a BF16 validation of quantised weights, or a BF16 backward pass under a quantised
forward pass. Neither changes what is trained, nor what the other GEMMs multiply; weight operands
come back as they were. What backward then reads and forward does not keep, it works out again, as
memory.recompute does; so no memory is needed for it.
  tests     test_telemetry.c
*/
#ifndef LLMC_PLAIN_H
#define LLMC_PLAIN_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Linear *linears;          // as they were, by id
    RecomputeLevel *levels;   // by branch
} PlainPeriod;

/* gemms: a bit 1 << GemmKind for each. Only views change: nothing runs on the device. */
PlainPeriod plain_begin(Model *m, unsigned gemms);
void plain_end(Model *m, PlainPeriod *period);

#ifdef __cplusplus
}
#endif
#endif
