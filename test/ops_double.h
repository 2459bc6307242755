/*
ops_double -- the ops once more, in double and as plainly as the formulas read, for tests to compare
with; and what such tests need: tensors filled at random, and a device with just enough scratch.
Forward passes only: gradients are compared with central differences of these.
*/
#ifndef TEST_OPS_DOUBLE_H
#define TEST_OPS_DOUBLE_H

#include <math.h>
#include <stdlib.h>

#include "../llmc/common.h"
#include "../llmc/ops.h"
#include "../llmc/rng.h"
#include "test.h"

// --- memory of a case: freed all at once ---

static struct {
    void *blocks[1024];
    int count;
    uint64_t draws;   // so that no two tensors of a case hold the same values
} case_memory;

static inline void *case_alloc(size_t bytes) {
    CHECK(case_memory.count < ARRAY_LEN(case_memory.blocks), "too many tensors in a case");
    void *p = aligned_alloc(256, (size_t)round_up((int64_t)bytes + 1, 256));
    memset(p, 0, bytes);
    case_memory.blocks[case_memory.count++] = p;
    return p;
}

static inline void case_free(void) {
    while (case_memory.count > 0) free(case_memory.blocks[--case_memory.count]);
    case_memory.draws = 0;
}

static inline double *case_doubles(int64_t count) {
    return (double *)case_alloc((size_t)count * sizeof(double));
}

/* A CPU device whose scratch fits these limits exactly, and holds NaNs in the beginning. */
static inline Device *case_device(OpLimits limits) {
    Device *d = (Device *)case_alloc(sizeof(Device));
    d->kind = DEVICE_CPU;
    size_t bytes = ops_cpu.scratch_bytes(&limits);
    device_set_scratch(d, case_alloc(bytes), bytes);
    memset(d->scratch, 0xFF, bytes);
    return d;
}

// --- tensors ---

static inline Tensor new_tensor(DType dtype, int64_t rows, int64_t cols) {
    return tensor_view(case_alloc(dtype_bytes(dtype, rows * cols)), dtype, rows, cols);
}

static inline double get(Tensor t, int64_t i) {
    if (t.dtype == DT_I32) return ((const int32_t *)t.data)[i];
    return t.dtype == DT_F32 ? ((const float *)t.data)[i]
                             : bf16_to_f32(((const bf16_t *)t.data)[i]);
}

static inline void put(Tensor t, int64_t i, double value) {
    if (t.dtype == DT_F32) ((float *)t.data)[i] = (float)value;
    if (t.dtype == DT_BF16) ((bf16_t *)t.data)[i] = bf16_from_f32((float)value);
    if (t.dtype == DT_I32) ((int32_t *)t.data)[i] = (int32_t)value;
}

static inline double uniform(void) {
    Philox4 draw = philox4x32_10(rng_group_counter(case_memory.draws++, 0, 0), 7, 0);
    return rng_uniform(draw.w[0]);
}

/* Uniform in [-1, 1); every value is also one of bf16, so that both dtypes get equal inputs. */
static inline Tensor random_tensor(DType dtype, int64_t rows, int64_t cols) {
    Tensor t = new_tensor(dtype, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++)
        put(t, i, bf16_to_f32(bf16_from_f32((float)(2.0 * uniform() - 1.0))));
    return t;
}

/* Integers in [0, below). */
static inline Tensor random_ids(int64_t rows, int64_t cols, int below) {
    Tensor t = new_tensor(DT_I32, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) put(t, i, floor(uniform() * below));
    return t;
}

/* The same values in another dtype. */
static inline Tensor copy_tensor(Tensor t, DType dtype) {
    Tensor copy = new_tensor(dtype, t.rows, t.cols);
    for (int64_t i = 0; i < tensor_count(t); i++) put(copy, i, get(t, i));
    return copy;
}

static inline double *to_doubles(Tensor t) {
    double *values = case_doubles(tensor_count(t));
    for (int64_t i = 0; i < tensor_count(t); i++) values[i] = get(t, i);
    return values;
}

static const Tensor NO_TENSOR = {NULL, DT_F32, 0, 0};

/* Half the distance of bf16 values around x: what rounding to nearest may change. */
static inline double bf16_half_ulp(double x) {
    int exponent;
    frexp(x, &exponent);
    return ldexp(1.0, exponent - 9);
}

/* Each value within `tolerance`, plus for bf16 one rounding to nearest. */
static inline void expect_close(Tensor got, const double *want, double tolerance,
                                const char *what) {
    for (int64_t i = 0; i < tensor_count(got); i++) {
        double rounding = got.dtype == DT_BF16 ? bf16_half_ulp(want[i]) : 0.0;
        EXPECT_NEAR(get(got, i), want[i], tolerance + rounding, "%s (%lld,%lld) of (%lld,%lld) %s",
                    what, (long long)(i / got.cols), (long long)(i % got.cols), (long long)got.rows,
                    (long long)got.cols, dtype_info[got.dtype].name);
    }
}

// --- the formulas of ops/NAME.h ---

static inline void double_layernorm(double *out, const double *x, const double *w, const double *b,
                                    int64_t N, int64_t C, double eps) {
    for (int64_t n = 0; n < N; n++) {
        double mean = 0.0, variance = 0.0;
        for (int64_t c = 0; c < C; c++) mean += x[n * C + c] / (double)C;
        for (int64_t c = 0; c < C; c++) variance += pow(x[n * C + c] - mean, 2.0) / (double)C;
        for (int64_t c = 0; c < C; c++)
            out[n * C + c] = (x[n * C + c] - mean) / sqrt(variance + eps) * w[c] + b[c];
    }
}

static inline void double_rmsnorm(double *out, const double *x, const double *w, int64_t N,
                                  int64_t C, double eps) {
    for (int64_t n = 0; n < N; n++) {
        double square = 0.0;
        for (int64_t c = 0; c < C; c++) square += x[n * C + c] * x[n * C + c] / (double)C;
        for (int64_t c = 0; c < C; c++) out[n * C + c] = x[n * C + c] / sqrt(square + eps) * w[c];
    }
}

static inline void double_activation(double *out, const double *x, ActKind kind, int64_t N,
                                     int64_t F) {
    int64_t stride = F * act_info[kind].inputs_per_output;
    for (int64_t n = 0; n < N; n++) {
        for (int64_t c = 0; c < F; c++) {
            double v = x[n * stride + c];
            double *y = &out[n * F + c];
            if (kind == ACT_GELU)
                *y = 0.5 * v * (1.0 + tanh(sqrt(2.0 / M_PI) * (v + 0.044715 * v * v * v)));
            if (kind == ACT_SWIGLU) *y = v / (1.0 + exp(-v)) * x[n * stride + F + c];
            if (kind == ACT_RELU2) *y = v > 0.0 ? v * v : 0.0;
        }
    }
}

/* losses (N) of logits (N,Vp); columns from V on take no part. */
static inline void double_cross_entropy(double *losses, const double *logits, Tensor targets,
                                        int64_t N, int64_t Vp, int64_t V) {
    for (int64_t n = 0; n < N; n++) {
        double sum = 0.0;
        for (int64_t v = 0; v < V; v++) sum += exp(logits[n * Vp + v]);
        losses[n] = log(sum) - logits[n * Vp + (int64_t)get(targets, n)];
    }
}

/* out (B*T, NH*HS), lse (B*NH, T); lse may be NULL. */
static inline void double_attention(double *out, double *lse, const double *qkv, AttentionDims a) {
    int64_t HS = a.head_dim, NH = a.num_heads, stride = attention_qkv_cols(a);
    for (int64_t at = 0; at < a.B * NH * a.T; at++) {
        int64_t b = at / a.T / NH, h = at / a.T % NH, i = at % a.T;
        int64_t kv = h / (NH / a.num_kv_heads);
        const double *sequence = qkv + b * a.T * stride, *q = sequence + i * stride + h * HS;
        double *o = out + (b * a.T + i) * NH * HS + h * HS, sum = 0.0;
        for (int64_t c = 0; c < HS; c++) o[c] = 0.0;
        for (int64_t j = 0; j <= i; j++) {
            const double *k = sequence + j * stride + (NH + kv) * HS;
            const double *v = k + a.num_kv_heads * HS;
            double score = 0.0;
            for (int64_t c = 0; c < HS; c++) score += q[c] * k[c];
            double p = exp(score / sqrt((double)HS));
            for (int64_t c = 0; c < HS; c++) o[c] += p * v[c];
            sum += p;
        }
        for (int64_t c = 0; c < HS; c++) o[c] /= sum;
        if (lse) lse[at] = log(sum);
    }
}

/* In place on qkv, from the angles themselves. */
static inline void double_rope(double *qkv, AttentionDims a, double theta) {
    int64_t HS = a.head_dim, stride = attention_qkv_cols(a);
    for (int64_t n = 0; n < a.B * a.T; n++) {
        for (int64_t h = 0; h < a.num_heads + a.num_kv_heads; h++) {
            for (int64_t i = 0; i < HS / 2; i++) {
                double *first = qkv + n * stride + h * HS + i, *second = first + HS / 2;
                double angle = (double)(n % a.T) * pow(theta, -2.0 * (double)i / (double)HS);
                double turned = *first * cos(angle) - *second * sin(angle);
                *second = *first * sin(angle) + *second * cos(angle);
                *first = turned;
            }
        }
    }
}

#endif
