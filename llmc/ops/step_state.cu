// step_state -- step_decide on a GPU: the decision is taken where its inputs lie, so the host does
// not wait for it.
#include "step_state.h"

#include "../device_cuda.cuh"

/* One thread; a few bytes. */
__global__ static void step_decide_kernel(StepState *state) {
    float clip = state->grad_clip, norm = state->grad_norm;
    float scale = clip > 0.0f && norm > clip ? clip / norm : 1.0f, applied = norm * scale;
    state->nonfinite = !isfinite(state->loss) || !isfinite(norm) || !isfinite(applied * applied);
    state->skip = state->nonfinite || state->loss > state->loss_limit ||
                  norm > state->grad_norm_limit || state->stop_votes > 0.0f;
    state->grad_scale = scale;
}

void step_decide_cuda(Device *d, StepState *state) {
    step_decide_kernel<<<1, 1, 0, device_cuda_stream(d)>>>(state);
    CUDA_CHECK_LAUNCH();
}
