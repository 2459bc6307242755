/*
oscillation -- CPU reference of oscillation.h.
*/
#include "oscillation.h"

#include <math.h>

#include "row_io.h"

Oscillation oscillation_place(Arena *a, int64_t rows, int64_t cols) {
    Oscillation o;
    o.last_w = arena_tensor(a, DT_F32, rows, cols);
    o.last_q = arena_tensor(a, DT_F32, rows, cols);
    o.moved_w = arena_tensor(a, DT_F32, rows, cols);
    o.moved_q = arena_tensor(a, DT_F32, rows, cols);
    return o;
}

void oscillation_check(const Oscillation *o, Tensor like) {
    tensor_expect(o->last_w, "oscillation last_w", DT_F32, like.rows, like.cols);
    tensor_expect(o->last_q, "oscillation last_q", DT_F32, like.rows, like.cols);
    tensor_expect(o->moved_w, "oscillation moved_w", DT_F32, like.rows, like.cols);
    tensor_expect(o->moved_q, "oscillation moved_q", DT_F32, like.rows, like.cols);
}

void oscillation_reset_check(const Oscillation *o, Tensor master, Tensor value) {
    oscillation_check(o, master);
    tensor_expect(master, "oscillation master", DT_F32, value.rows, value.cols);
    expect_bf16_or_f32(value, "oscillation value");
    CHECK(value.dtype == DT_BF16 || value.data == master.data,
          "f32 values must be the master weights themselves");
}

void oscillation_accumulate_cpu(Device *d, Oscillation o, Tensor w, Tensor q) {
    (void)d;
    oscillation_check(&o, w);
    tensor_expect(q, "oscillation q", DT_F32, w.rows, w.cols);
    const float *now_w = (const float *)w.data, *now_q = (const float *)q.data;
    float *last_w = (float *)o.last_w.data, *last_q = (float *)o.last_q.data;
    float *moved_w = (float *)o.moved_w.data, *moved_q = (float *)o.moved_q.data;
    int64_t count = tensor_count(w);
#pragma omp parallel for
    for (int64_t i = 0; i < count; i++) {
        moved_w[i] += fabsf(now_w[i] - last_w[i]);
        moved_q[i] += fabsf(now_q[i] - last_q[i]);
        last_w[i] = now_w[i];
        last_q[i] = now_q[i];
    }
}

void oscillation_reset_cpu(Device *d, Oscillation o, Tensor master, Tensor value, float threshold,
                           int64_t *count, const StepState *state) {
    (void)d;
    oscillation_reset_check(&o, master, value);
    *count = 0;
    if (state->stop_votes > 0.0f) return;
    const float *last_q = (const float *)o.last_q.data;
    const float *moved_w = (const float *)o.moved_w.data;
    const float *moved_q = (const float *)o.moved_q.data;
    float *weights = (float *)master.data;
    int64_t total = tensor_count(master), num_reset = 0;
#pragma omp parallel for reduction(+ : num_reset)
    for (int64_t i = 0; i < total; i++) {
        if (!(moved_q[i] > 0.0f && moved_q[i] >= threshold * moved_w[i])) continue;
        weights[i] = last_q[i];
        if (value.dtype == DT_BF16) ((bf16_t *)value.data)[i] = bf16_from_f32(last_q[i]);
        num_reset++;
    }
    *count = num_reset;
}
