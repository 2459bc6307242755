// oscillation -- kernels of oscillation.h: an element a thread. A host compiler can take this file
// too, after test/fibres.h.
#pragma once
#include "oscillation.h"
#include "vec.cuh"

typedef struct {
    float *last_w, *last_q, *moved_w, *moved_q;
    const float *w, *q;   // accumulate
    float *master;        // reset, from here on
    bf16 *value;
    float threshold;
    unsigned long long *count;
    const StepState *state;   // device memory
    int64_t total;
} OscillationArgs;

static inline OscillationArgs oscillation_args(const Oscillation *o) {
    OscillationArgs a = {};
    a.last_w = (float *)o->last_w.data;
    a.last_q = (float *)o->last_q.data;
    a.moved_w = (float *)o->moved_w.data;
    a.moved_q = (float *)o->moved_q.data;
    a.total = tensor_count(o->last_w);
    return a;
}

/*
  bytes    40 per element: 24 read, 16 written
  limiter  memory bandwidth; once a step at most
*/
__global__ static void __launch_bounds__(FLAT_THREADS)
    oscillation_accumulate_kernel(OscillationArgs a) {
    int64_t i = (int64_t)blockIdx.x * FLAT_THREADS + threadIdx.x;
    if (i >= a.total) return;
    float w = a.w[i], q = a.q[i];
    a.moved_w[i] += fabsf(w - a.last_w[i]);
    a.moved_q[i] += fabsf(q - a.last_q[i]);
    a.last_w[i] = w;
    a.last_q[i] = q;
}

/*
Counts by integers, whose sum knows no order; *count starts as 0.
  bytes    8 per element read, 10 more where it is reset
  limiter  memory bandwidth; once a period
*/
__global__ static void __launch_bounds__(FLAT_THREADS) oscillation_reset_kernel(OscillationArgs a) {
    int64_t i = (int64_t)blockIdx.x * FLAT_THREADS + threadIdx.x;
    if (i >= a.total || a.state->stop_votes > 0.0f) return;
    float moved_q = a.moved_q[i];
    if (!(moved_q > 0.0f && moved_q >= a.threshold * a.moved_w[i])) return;
    a.master[i] = a.last_q[i];
    a.value[i] = round_bf16(a.last_q[i]);
    atomicAdd(a.count, 1ull);
}
