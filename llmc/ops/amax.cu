// amax -- maxima kept from step to step on a GPU: a thread a slot, and for a history a block.
#include "amax.h"

#include "../device_cuda.cuh"

static __device__ uint32_t bits_of(float v) { return __float_as_uint(v); }

static __device__ bool is_sampled(float kept, const StepState *state) {
    return kept == 0.0f || state->step % AMAX_HOLD == 0;
}

/* One thread a slot. Two operands may share what is kept of one tensor, so the maximum is atomic.
 */
__global__ static void amax_settle_kernel(AmaxSlots slots, const StepState *state, int record) {
    if (threadIdx.x >= slots.count) return;
    const AmaxSlot s = slots.slot[threadIdx.x];
    float own = *s.in_use, kept = *s.kept;
    if (record) atomicMax(reinterpret_cast<unsigned *>(s.current), bits_of(own));
    if (s.rule == AMAX_DELAYED) *s.in_use = kept == 0.0f ? s.initial : kept;
    else *s.in_use = is_sampled(kept, state) ? own : kept;
}

/*
A block a slot; of a history a thread an element. The step is over: nothing else reads a slot.
  bytes    8 an element of the history
  limiter  latency
*/
__global__ static void __launch_bounds__(AMAX_HISTORY)
    amax_advance_kernel(AmaxSlots slots, const StepState *state) {
    __shared__ unsigned most;
    const AmaxSlot s = slots.slot[blockIdx.x];
    int i = threadIdx.x;
    float last = *s.current, kept = *s.kept;
    if (i == 0) most = 0;
    __syncthreads();   // all have read `current`
    if (i == 0) *s.current = 0.0f;
    if (last == 0.0f || state->stop_votes > 0.0f) return;
    bool usable = isfinite(last);
    if (s.rule == AMAX_HELD) {
        if (i == 0 && usable && is_sampled(kept, state)) *s.kept = last;
        return;
    }
    float mine = i + 1 < AMAX_HISTORY ? s.history[i + 1] : usable ? last : 0.0f;
    atomicMax(&most, bits_of(mine));
    __syncthreads();   // all have read the history
    s.history[i] = mine;
    if (i == 0 && usable) *s.kept = __uint_as_float(most);
}

void amax_settle_cuda(Device *d, AmaxSlots slots, const StepState *state, int record) {
    amax_check(&slots);
    if (slots.count == 0) return;
    amax_settle_kernel<<<1, 32, 0, device_cuda_stream(d)>>>(slots, state, record);
    CUDA_CHECK_LAUNCH();
}

void amax_advance_cuda(Device *d, AmaxSlots slots, const StepState *state) {
    amax_check(&slots);
    if (slots.count == 0) return;
    amax_advance_kernel<<<slots.count, AMAX_HISTORY, 0, device_cuda_stream(d)>>>(slots, state);
    CUDA_CHECK_LAUNCH();
}
