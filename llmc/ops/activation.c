/*
activation -- CPU reference of activation.h.
*/
#include "activation.h"

#include "fast_exp.h"
#include "row_io.h"

#define SQRT_2_OVER_PI 0.79788456f
#define GELU_CUBIC     0.044715f

const ActInfo act_info[NUM_ACTS] = {
    [ACT_GELU] = {"gelu", 1},
    [ACT_SWIGLU] = {"swiglu", 2},
    [ACT_RELU2] = {"relu2", 1},
};

/* Spans of up to SPAN values. `x` holds inputs_per_output spans: for swiglu the gate, then up. */
typedef struct {
    float *x[2], *dx[2];
    float *out, *dout;
    int64_t count;
} ActSpan;

// With 0.5 (1 + tanh(u)) = sigmoid(2u), gelu is x sigmoid(2u): one exp, and no cancellation for
// negative x. Where exp(-2u) overflows, sigmoid is exactly 0.
static void gelu_forward(ActSpan s) {
    const float *x = s.x[0];
    for (int64_t i = 0; i < s.count; i++) {
        float u = SQRT_2_OVER_PI * (x[i] + GELU_CUBIC * x[i] * x[i] * x[i]);
        s.out[i] = x[i] * fast_sigmoid(2.0f * u);
    }
}

static void gelu_backward(ActSpan s) {
    for (int64_t i = 0; i < s.count; i++) {
        // From |x| = 16 on the sigmoid is 0 or 1; beyond, x^2 could overflow and make 0 * inf.
        float x = s.x[0][i] > 16.0f ? 16.0f : s.x[0][i];
        x = x < -16.0f ? -16.0f : x;
        float u = SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x);
        float du = SQRT_2_OVER_PI * (1.0f + 3.0f * GELU_CUBIC * x * x);   // u = ...
        float y = fast_sigmoid(2.0f * u);
        // out = x * y(2u(x)): product rule, y' = y (1 - y)
        s.dx[0][i] = s.dout[i] * (y + x * y * (1.0f - y) * 2.0f * du);
    }
}

static void swiglu_forward(ActSpan s) {
    const float *gate = s.x[0], *up = s.x[1];
    for (int64_t i = 0; i < s.count; i++) s.out[i] = gate[i] * fast_sigmoid(gate[i]) * up[i];
}

static void swiglu_backward(ActSpan s) {
    const float *gate = s.x[0], *up = s.x[1];
    for (int64_t i = 0; i < s.count; i++) {
        float y = fast_sigmoid(gate[i]);
        // out = gate * y(gate) * up: product rule, y' = y (1 - y)
        s.dx[0][i] = s.dout[i] * up[i] * (y * (1.0f + gate[i] * (1.0f - y)));
        s.dx[1][i] = s.dout[i] * (gate[i] * y);   // out = (gate * y) * up
    }
}

static void relu2_forward(ActSpan s) {
    const float *x = s.x[0];
    for (int64_t i = 0; i < s.count; i++) s.out[i] = x[i] > 0.0f ? x[i] * x[i] : 0.0f;
}

static void relu2_backward(ActSpan s) {
    const float *x = s.x[0];
    for (int64_t i = 0; i < s.count; i++)
        s.dx[0][i] = x[i] > 0.0f ? s.dout[i] * 2.0f * x[i] : 0.0f;   // out = x^2 for x > 0, else 0
}

static const struct {
    void (*forward)(ActSpan);
    void (*backward)(ActSpan);
} act_spans[NUM_ACTS] = {
    [ACT_GELU] = {gelu_forward, gelu_backward},
    [ACT_SWIGLU] = {swiglu_forward, swiglu_backward},
    [ACT_RELU2] = {relu2_forward, relu2_backward},
};

void activation_check(Tensor out, Tensor x, ActKind kind) {
    CHECK((unsigned)kind < NUM_ACTS, "activation %d of %d", (int)kind, (int)NUM_ACTS);
    expect_bf16_or_f32(out, "activation out");
    tensor_expect(x, "activation x", out.dtype, out.rows,
                  out.cols * act_info[kind].inputs_per_output);
}

void activation_forward_cpu(Device *d, Tensor out, Tensor x, ActKind kind) {
    (void)d;
    activation_check(out, x, kind);
    int64_t F = out.cols;
#pragma omp parallel for
    for (int64_t n = 0; n < out.rows; n++) {
        float x_span[2][SPAN], out_span[SPAN];
        ActSpan s = {.x = {x_span[0], x_span[1]}, .out = out_span};
        for (int64_t c = 0; c < F; c += SPAN) {
            s.count = min_i64(SPAN, F - c);
            for (int i = 0; i < act_info[kind].inputs_per_output; i++)
                load_span(s.x[i], x, n * x.cols + i * F + c, s.count);
            act_spans[kind].forward(s);
            store_span(out, n * F + c, s.out, s.count);
        }
    }
}

void activation_backward_cpu(Device *d, Tensor dx, Tensor dout, Tensor x, ActKind kind) {
    (void)d;
    activation_check(dout, x, kind);
    activation_check(dout, dx, kind);
    int64_t F = dout.cols;
#pragma omp parallel for
    for (int64_t n = 0; n < dout.rows; n++) {
        float x_span[2][SPAN], dx_span[2][SPAN], dout_span[SPAN];
        ActSpan s = {
            .x = {x_span[0], x_span[1]}, .dx = {dx_span[0], dx_span[1]}, .dout = dout_span};
        for (int64_t c = 0; c < F; c += SPAN) {
            s.count = min_i64(SPAN, F - c);
            load_span(s.dout, dout, n * F + c, s.count);
            for (int i = 0; i < act_info[kind].inputs_per_output; i++)
                load_span(s.x[i], x, n * x.cols + i * F + c, s.count);
            act_spans[kind].backward(s);
            for (int i = 0; i < act_info[kind].inputs_per_output; i++)
                store_span(dx, n * x.cols + i * F + c, s.dx[i], s.count);
        }
    }
}

void residual_forward_cpu(Device *d, Tensor out, Tensor a, Tensor b) {
    (void)d;
    expect_bf16_or_f32(out, "residual out");
    tensor_expect(a, "residual a", out.dtype, out.rows, out.cols);
    tensor_expect(b, "residual b", out.dtype, out.rows, out.cols);
    int64_t total = tensor_count(out);
#pragma omp parallel for
    for (int64_t first = 0; first < total; first += SPAN) {
        float a_span[SPAN], b_span[SPAN];
        int64_t count = min_i64(SPAN, total - first);
        load_span(a_span, a, first, count);
        load_span(b_span, b, first, count);
        for (int64_t i = 0; i < count; i++) a_span[i] += b_span[i];
        store_span(out, first, a_span, count);
    }
}
