/*
adamw -- CPU reference of adamw.h.
*/
#include "adamw.h"

#include <math.h>

#include "row_io.h"

void adamw_check(AdamWTensors t) {
    int64_t count = t.master.cols;
    tensor_expect(t.master, "adamw master", DT_F32, 1, count);
    tensor_expect(t.m, "adamw m", DT_F32, 1, count);
    tensor_expect(t.v, "adamw v", DT_F32, 1, count);
    tensor_expect(t.grad, "adamw grad", DT_F32, 1, count);
    expect_bf16_or_f32(t.value, "adamw value");
    tensor_expect(t.value, "adamw value", t.value.dtype, 1, count);
    CHECK(t.value.dtype == DT_BF16 || t.value.data == t.master.data,
          "f32 values must be the master weights themselves");
}

static void update_span(float *master, float *m, float *v, const float *grad, int64_t count,
                        const AdamWConfig *config, const StepState *state) {
    float beta1 = config->beta1, beta2 = config->beta2, eps = config->eps;
    float correction1 = state->bias_correction1, correction2 = state->bias_correction2;
    float lr = state->lr, grad_scale = state->grad_scale, weight_decay = config->weight_decay;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * grad_scale;
        m[i] = beta1 * m[i] + (1.0f - beta1) * g;
        v[i] = beta2 * v[i] + (1.0f - beta2) * (g * g);
        float update =
            (m[i] / correction1) / (sqrtf(v[i] / correction2) + eps) + weight_decay * master[i];
        master[i] -= lr * update;
    }
}

void adamw_cpu(Device *d, AdamWTensors t, AdamWConfig config, const StepState *state) {
    (void)d;
    adamw_check(t);
    if (state->skip) return;
    float *master = (float *)t.master.data, *m = (float *)t.m.data, *v = (float *)t.v.data;
    const float *grad = (const float *)t.grad.data;
    int64_t total = t.master.cols;
#pragma omp parallel for
    for (int64_t i = 0; i < total; i += SPAN) {
        int64_t count = min_i64(SPAN, total - i);
        update_span(master + i, m + i, v + i, grad + i, count, &config, state);
        if (t.value.dtype == DT_BF16) store_span(t.value, i, master + i, count);
    }
}
