/*
step_state -- CPU reference of step_decide: whether this step's update is applied, and how much
the gradient is scaled down.
*/
#include "step_state.h"

#include <math.h>

void step_decide_cpu(Device *d, StepState *state) {
    (void)d;
    float clip = state->grad_clip, norm = state->grad_norm;
    float scale = clip > 0.0f && norm > clip ? clip / norm : 1.0f, applied = norm * scale;
    state->nonfinite = !isfinite(state->loss) || !isfinite(norm) || !isfinite(applied * applied);
    state->skip = state->nonfinite || state->loss > state->loss_limit ||
                  norm > state->grad_norm_limit || state->stop_votes > 0.0f;
    state->grad_scale = scale;
}
