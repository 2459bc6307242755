/*
amax -- maxima of tensors that a recipe keeps from step to step (recipe.h AmaxRule), one slot an
operand. amax_pair writes the tensor's own maximum to a slot's in_use; amax_settle records it, and
puts there what the operand is quantised with; amax_advance ends a step.
  delayed   in use: the largest of the last 1024 steps, not this one; until there is one `initial`,
            which makes the scale 1. A step without a maximum (0) leaves all as it was; one that is
            not finite enters the history as 0 and leaves what is in use (dev/NUMERICS.md 5d)
  held      in steps divisible by 50, and until something is held, the tensor's own; its largest
            over that step is what later steps use (dev/NUMERICS.md 5h)
The step is StepState's, on the device: nothing here waits for the host. Maxima have no sign, so
they compare as the integers of their bits, and NaN is the largest.
  errors    amax_settle and amax_advance abort on a rule that keeps nothing
  scratch   none
  source    NVIDIA TransformerEngine's delayed scaling and arXiv:2609.02846, as specified there
  tests     test_amax.c; test_amax_cuda.cu: the same bits on a GPU
*/
#ifndef LLMC_OPS_AMAX_H
#define LLMC_OPS_AMAX_H

#include "../recipe.h"
#include "step_state.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    AMAX_HISTORY = 1024,   // steps that delayed scaling looks back
    AMAX_HOLD = 50,        // steps from one sample of a held maximum to the next
    AMAX_MAX_SLOTS = NUM_GEMMS * NUM_SIDES
};

/* All but rule and initial are device memory; zeroed, current to history know nothing. */
typedef struct {
    AmaxRule rule;
    float initial;
    float *in_use;
    float *current;   // largest of this step so far
    float *kept;      // what earlier steps leave to use; 0: nothing yet
    float *history;   // delayed: AMAX_HISTORY steps, the latest last; else not looked at
} AmaxSlot;

typedef struct {
    AmaxSlot slot[AMAX_MAX_SLOTS];
    int count;
} AmaxSlots;

void amax_check(const AmaxSlots *slots);
/* record 0: evaluation, which leaves no trace. */
void amax_settle_cpu (Device *d, AmaxSlots slots, const StepState *state, int record);
void amax_settle_cuda(Device *d, AmaxSlots slots, const StepState *state, int record);
/* At the end of the step that `state` names, with `current` that of all micro-steps and ranks. A
   step that is dropped (stop_votes) leaves no trace. */
void amax_advance_cpu (Device *d, AmaxSlots slots, const StepState *state);
void amax_advance_cuda(Device *d, AmaxSlots slots, const StepState *state);

#ifdef __cplusplus
}
#endif
#endif
