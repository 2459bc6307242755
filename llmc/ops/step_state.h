/*
step_state -- everything that changes from micro-step to micro-step, in one struct in device memory:
kernels read it through a pointer, so the same recorded launches serve every step. The host writes
the first group before each micro-step; step_decide fills the second group once per optimizer step,
and the host reads it back after the update.

step_decide(state): grad_scale = min(1, grad_clip / grad_norm), or 1 when grad_clip is 0.
nonfinite = loss, grad_norm or the square, in f32, of grad_norm * grad_scale is not finite: above
1.8e19, the root of FLT_MAX, AdamW's average of squares could become infinite, and stay so.
skip = nonfinite, or loss or grad_norm above its limit, or a rank votes to stop (its gradient is not
whole then).
  tests     test_ops.c step_decide
*/
#ifndef LLMC_OPS_STEP_STATE_H
#define LLMC_OPS_STEP_STATE_H

#include "../device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    // place of this micro-batch's first token in the step's global batch
    int64_t token_base;
    uint32_t step;               // optimizer step from 0: counter word of every random draw
    float lr;                    // learning rate of this step
    float bias_correction1;      // 1 - beta1^(step+1)
    float bias_correction2;      // 1 - beta2^(step+1)
    float grad_clip;             // largest global gradient norm; 0: no clipping
    float loss_limit;            // guard: skip the update above this loss (infinity: never)
    float grad_norm_limit;       // guard: skip the update above this norm (infinity: never)
    float loss;                  // mean over the step's tokens, accumulated over micro-steps from 0
    float stop_votes;            // ranks asked to stop; behind loss: one all-reduce sums both
    float grad_norm;             // of the whole gradient, before clipping
    float grad_scale;            // factor that clips
    int32_t skip;                // 1: the update is not applied
    int32_t nonfinite;           // 1: loss, norm or the scaled norm's square was not finite
} StepState;

void step_decide_cpu(Device *d, StepState *state);
void step_decide_cuda(Device *d, StepState *state);

#ifdef __cplusplus
}
#endif
#endif
