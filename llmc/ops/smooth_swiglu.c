/*
smooth_swiglu -- CPU reference of smooth_swiglu.h.
*/
#include "smooth_swiglu.h"

#include <math.h>

#include "fast_exp.h"
#include "row_io.h"

void smooth_swiglu_check(Tensor out, Tensor scale, Tensor x) {
    expect_bf16_or_f32(out, "smooth_swiglu out");
    tensor_expect(x, "smooth_swiglu x", out.dtype, out.rows, 2 * out.cols);
    tensor_expect(scale, "smooth_swiglu scale", DT_F32, out.rows, 1);
}

static float row_scale(Tensor x, int64_t n) {
    float up[SPAN], most = 0.0f;
    int64_t F = x.cols / 2;
    for (int64_t c = 0; c < F; c += SPAN) {
        int64_t count = min_i64(SPAN, F - c);
        load_span(up, x, n * x.cols + F + c, count);
        for (int64_t i = 0; i < count; i++) most = fmaxf(most, fabsf(up[i]));
    }
    return most == 0.0f ? 1.0f : most;
}

void smooth_swiglu_forward_cpu(Device *d, Tensor out, Tensor scale, Tensor x) {
    (void)d;
    smooth_swiglu_check(out, scale, x);
    int64_t F = out.cols;
#pragma omp parallel for
    for (int64_t n = 0; n < out.rows; n++) {
        float gate[SPAN], up[SPAN], s = row_scale(x, n);
        ((float *)scale.data)[n] = s;
        for (int64_t c = 0; c < F; c += SPAN) {
            int64_t count = min_i64(SPAN, F - c);
            load_span(gate, x, n * x.cols + c, count);
            load_span(up, x, n * x.cols + F + c, count);
            for (int64_t i = 0; i < count; i++)
                gate[i] = gate[i] * fast_sigmoid(gate[i]) * (up[i] / s);
            store_span(out, n * F + c, gate, count);
        }
    }
}

void smooth_swiglu_backward_cpu(Device *d, Tensor dx, Tensor dout, Tensor scale, Tensor x) {
    (void)d;
    smooth_swiglu_check(dout, scale, x);
    smooth_swiglu_check(dout, scale, dx);
    int64_t F = dout.cols;
#pragma omp parallel for
    for (int64_t n = 0; n < dout.rows; n++) {
        float gate[SPAN], up[SPAN], grad[SPAN], s = ((const float *)scale.data)[n];
        for (int64_t c = 0; c < F; c += SPAN) {
            int64_t count = min_i64(SPAN, F - c), at = n * x.cols + c;
            load_span(grad, dout, n * F + c, count);
            load_span(gate, x, at, count);
            load_span(up, x, at + F, count);
            for (int64_t i = 0; i < count; i++) {
                float g = gate[i], y = fast_sigmoid(g);
                // out = (gate * y(gate)) * (up / s): product rule, y' = y (1 - y)
                gate[i] = grad[i] * (up[i] / s) * (y * (1.0f + g * (1.0f - y)));
                up[i] = grad[i] * (g * y) / s;
            }
            store_span(dx, at, gate, count);
            store_span(dx, at + F, up, count);
        }
    }
}

void scale_rows_check(Tensor out, Tensor x, Tensor scale, Tensor b) {
    expect_bf16_or_f32(out, "scale_rows out");
    tensor_expect(x, "scale_rows x", out.dtype, out.rows, out.cols);
    tensor_expect(scale, "scale_rows scale", DT_F32, out.rows, 1);
    if (!tensor_empty(b)) tensor_expect(b, "scale_rows b", out.dtype, 1, out.cols);
}

void scale_rows_cpu(Device *d, Tensor out, Tensor x, Tensor scale, Tensor b) {
    (void)d;
    scale_rows_check(out, x, scale, b);
#pragma omp parallel for
    for (int64_t n = 0; n < out.rows; n++) {
        float row[SPAN], bias[SPAN] = {0}, s = ((const float *)scale.data)[n];
        for (int64_t c = 0; c < out.cols; c += SPAN) {
            int64_t count = min_i64(SPAN, out.cols - c);
            load_span(row, x, n * x.cols + c, count);
            if (!tensor_empty(b)) load_span(bias, b, c, count);
            for (int64_t i = 0; i < count; i++) row[i] = row[i] * s + bias[i];
            store_span(out, n * out.cols + c, row, count);
        }
    }
}
