/*
optimizer -- one AdamW step over the whole ParamTable: the global gradient norm, the decision
whether to apply the step, OutControl and OsciReset where they are asked for (out_control.h,
oscillation.h), and two updates, of the decayed matrices and of the rest.
*/
#ifndef LLMC_OPTIMIZER_H
#define LLMC_OPTIMIZER_H

#include "config.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gradients hold the sum over all micro-steps and ranks, state->loss the mean loss. Fills the
   second group of the StepState and, unless it says skip, updates master, m, v and value. */
void optimizer_step(Model *m, const Config *c);
/* Its stages, for ranks (parallel.h): with the gradient's norm in the StepState the decision and
   what depends on it, then updates, of everything or of tensors (1,n) that weight decay applies to
   or not. */
void optimizer_decide(Model *m, const Config *c);
void optimizer_update_all(Model *m, const Config *c);
void optimizer_update(Model *m, const Config *c, AdamWTensors tensors, int decays);
/* What the host writes into the StepState before the first micro-step of optimizer step `step`. */
StepState optimizer_state(const Config *c, int64_t step, float lr, float loss_limit,
                          float grad_norm_limit);

#ifdef __cplusplus
}
#endif
#endif
