/*
selftest_ops -- every op that is no product and no quantiser: a row of the table says how it is
called, its formula in double, and its arguments. The formulas are those of ops/NAME.h, written as
plainly as they read and shared with no op.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "selftest_parts.h"

enum { MAX_ARGS = 10 };

typedef enum { ARG_IN, ARG_OUT, ARG_INOUT } ArgRole;

typedef enum {
    FILL_NAN,        // every byte 0xFF
    FILL_NORMAL,     // times `scale`
    FILL_POSITIVE,   // its magnitude
    FILL_IDS,        // integers below `scale`
    FILL_ROPE,       // the table of rotations
    FILL_STATE       // a StepState
} Fill;

/* An argument and how far from the formula it may be: relative to itself, absolutely, and relative
   to the argument's largest value; in bf16 one rounding more. DT_BF16 stands for the dtype of the
   model. */
typedef struct {
    const char *name;   // NULL: no more arguments
    ArgRole role;
    DType type;
    int rows, cols;
    Fill fill;
    double scale;
    double relative, absolute, of_largest;
} ArgSpec;

typedef struct {
    const Ops *ops;
    Device *device;
    Tensor t[MAX_ARGS];
    int kind;   // of the row
} OpCall;

/* x: the values of all arguments, which it changes as the op should. */
typedef void OpFormula(double *const *x, int kind);

typedef struct {
    const char *name;
    void (*call)(const OpCall *c);
    OpFormula *formula;
    int kind;
    ArgSpec args[MAX_ARGS];
} OpRow;

enum { B = 2, T = 37, N = B * T, C = 40, F = 56, VOCAB = 100, PADDED = 128, R16 = 48, C16 = 80 };
enum { NH = 4, NKV = 2, LONG = 10007 };
const AttentionDims selftest_attention[SELFTEST_ATTENTIONS] = {{B, T, NH, NKV, 64},
                                                               {B, T, NH, NKV, 128}};
static const float norm_eps = 1e-5f;
static const AdamWConfig adamw_config = {0.9f, 0.95f, 1e-8f, 0.1f};
static const Tensor no_tensor = {NULL, DT_F32, 0, 0};

// --- embedding ---

static void embedding(const OpCall *c) {
    const Tensor *t = c->t;
    c->ops->embedding_forward(c->device, t[0], t[3], t[4], t[5]);
    c->ops->embedding_backward(c->device, t[1], t[2], t[6], t[3]);
}

static void embedding_formula(double *const *x, int kind) {
    (void)kind;
    for (int n = 0; n < N; n++) {
        int id = (int)x[3][n];
        for (int i = 0; i < C; i++) {
            x[0][n * C + i] = x[4][id * C + i] + x[5][n % T * C + i];
            x[1][id * C + i] += x[6][n * C + i];
            x[2][n % T * C + i] += x[6][n * C + i];
        }
    }
}

// --- norms ---

static void norm(const OpCall *c) {
    const Tensor *t = c->t;
    int centred = c->kind == NORM_LAYERNORM;
    NormStats stats = {centred ? t[1] : no_tensor, t[2]};
    const NormOp *op = &c->ops->norm[c->kind];
    op->forward(c->device, t[0], stats, t[6], t[7], centred ? t[8] : no_tensor, norm_eps);
    op->backward(c->device, t[3], t[4], centred ? t[5] : no_tensor, t[9], t[6], t[7], stats);
}

static void norm_row_formula(double *const *x, int centred, int n) {
    const double *in = x[6] + n * C, *w = x[7], *dout = x[9] + n * C;
    double mean = 0, square = 0, mean_g = 0, mean_gh = 0, h[C];
    for (int i = 0; i < C && centred; i++) mean += in[i] / C;
    for (int i = 0; i < C; i++) square += (in[i] - mean) * (in[i] - mean) / C;
    double rstd = 1 / sqrt(square + norm_eps);
    for (int i = 0; i < C; i++) {
        h[i] = (in[i] - mean) * rstd;
        x[0][n * C + i] = h[i] * w[i] + (centred ? x[8][i] : 0);
        mean_g += centred ? dout[i] * w[i] / C : 0;
        mean_gh += dout[i] * w[i] * h[i] / C;
    }
    for (int i = 0; i < C; i++) {
        x[3][n * C + i] += rstd * (dout[i] * w[i] - mean_g - h[i] * mean_gh);
        x[4][i] += dout[i] * h[i];
        if (centred) x[5][i] += dout[i];
    }
    if (centred) x[1][n] = mean;
    x[2][n] = rstd;
}

static void norm_formula(double *const *x, int kind) {
    for (int n = 0; n < N; n++) norm_row_formula(x, kind == NORM_LAYERNORM, n);
}

// --- rope and attention ---

static void rope(const OpCall *c) {
    c->ops->rope_forward(c->device, c->t[0], c->t[2], selftest_attention[c->kind]);
    c->ops->rope_backward(c->device, c->t[1], c->t[2], selftest_attention[c->kind]);
}

static void rope_formula(double *const *x, int kind) {
    int HS = selftest_attention[kind].head_dim, cols = (NH + 2 * NKV) * HS;
    for (int i = 0; i < N * (NH + NKV) * HS / 2; i++) {
        int n = i / ((NH + NKV) * HS / 2), pair = i % (HS / 2);
        int64_t at = n * cols + i / (HS / 2) % (NH + NKV) * HS + pair;
        double turned_cos = x[2][n % T * HS + pair], turned_sin = x[2][n % T * HS + HS / 2 + pair];
        for (int back = 0; back < 2; back++) {
            double *a = &x[back][at], *b = a + HS / 2, was = *a;
            double sine = back ? -turned_sin : turned_sin;
            *a = was * turned_cos - *b * sine;
            *b = was * sine + *b * turned_cos;
        }
    }
}

/* The backward pass starts from the device's own out and lse. */
static void attention(const OpCall *c) {
    const Tensor *t = c->t;
    AttentionDims dims = selftest_attention[c->kind];
    c->ops->attention_forward(c->device, t[0], t[1], t[3], dims);
    c->ops->attention_backward(c->device, t[2], t[4], t[0], t[1], t[3], dims);
}

static double dot(const double *a, const double *b, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* One query: token i of sequence b, head h. */
static void attention_query_formula(double *const *x, int HS, int b, int h, int i) {
    int stride = (NH + 2 * NKV) * HS, kv = h / (NH / NKV);
    int64_t query = (int64_t)(b * T + i) * stride + h * HS, row = (b * T + i) * NH * HS + h * HS;
    int64_t key = (int64_t)b * T * stride + (NH + kv) * HS, value = key + NKV * HS;
    double scale = 1 / sqrt((double)HS), p[T], total = 0;
    double *out = x[0] + row;
    const double *dout = x[4] + row;
    for (int j = 0; j <= i; j++) {
        p[j] = exp(dot(x[3] + query, x[3] + key + (int64_t)j * stride, HS) * scale);
        total += p[j];
    }
    x[1][(b * NH + h) * T + i] = log(total);
    for (int c = 0; c < HS; c++) out[c] = 0;
    for (int j = 0; j <= i; j++)
        for (int c = 0; c < HS; c++) out[c] += p[j] / total * x[3][value + (int64_t)j * stride + c];
    double delta = dot(dout, out, HS);
    for (int j = 0; j <= i; j++) {
        int64_t at = (int64_t)j * stride;
        double ds = p[j] / total * (dot(dout, x[3] + value + at, HS) - delta) * scale;
        for (int c = 0; c < HS; c++) {
            x[2][value + at + c] += p[j] / total * dout[c];
            x[2][query + c] += ds * x[3][key + at + c];
            x[2][key + at + c] += ds * x[3][query + c];
        }
    }
}

static void attention_formula(double *const *x, int kind) {
    int HS = selftest_attention[kind].head_dim;
    for (int i = 0; i < N * (NH + 2 * NKV) * HS; i++) x[2][i] = 0;
    for (int i = 0; i < N * NH; i++)
        attention_query_formula(x, HS, i / (NH * T), i / T % NH, i % T);
}

// --- activations, residual, loss ---

static void activation(const OpCall *c) {
    c->ops->activation_forward(c->device, c->t[0], c->t[2], (ActKind)c->kind);
    c->ops->activation_backward(c->device, c->t[1], c->t[3], c->t[2], (ActKind)c->kind);
}

static void activation_formula(double *const *x, int kind) {
    for (int i = 0; i < N * F; i++) {
        double dout = x[3][i], v = x[2][i];
        if (kind == ACT_GELU) {
            double s = sqrt(2 / M_PI), y = tanh(s * (v + 0.044715 * v * v * v));
            x[0][i] = 0.5 * v * (1 + y);
            x[1][i] = dout * 0.5 * (1 + y + v * (1 - y * y) * s * (1 + 3 * 0.044715 * v * v));
        } else if (kind == ACT_RELU2) {
            x[0][i] = v > 0 ? v * v : 0;
            x[1][i] = v > 0 ? dout * 2 * v : 0;
        } else {
            int gate = i / F * 2 * F + i % F, up = gate + F;
            double g = x[2][gate], s = 1 / (1 + exp(-g));
            x[0][i] = g * s * x[2][up];
            x[1][gate] = dout * x[2][up] * s * (1 + g * (1 - s));
            x[1][up] = dout * g * s;
        }
    }
}

/* Both ways, and rows multiplied by the scales: those of dout. */
static void smooth_swiglu(const OpCall *c) {
    const Tensor *t = c->t;
    c->ops->smooth_swiglu_forward(c->device, t[0], t[1], t[4]);
    c->ops->smooth_swiglu_backward(c->device, t[2], t[5], t[1], t[4]);
    c->ops->scale_rows(c->device, t[3], t[5], t[1], t[6]);
}

static void smooth_swiglu_formula(double *const *x, int kind) {
    (void)kind;
    for (int n = 0; n < N; n++) {
        const double *gate = x[4] + n * 2 * F, *up = gate + F;
        double scale = 0;
        for (int f = 0; f < F; f++) scale = fmax(scale, fabs(up[f]));
        x[1][n] = scale;
        for (int f = 0; f < F; f++) {
            int i = n * F + f, at = n * 2 * F + f;
            double g = gate[f], s = 1 / (1 + exp(-g));
            x[0][i] = g * s * up[f] / scale;
            x[2][at] = x[5][i] * up[f] / scale * s * (1 + g * (1 - s));
            x[2][at + F] = x[5][i] * g * s / scale;
            x[3][i] = x[5][i] * scale + x[6][f];
        }
    }
}

static void residual(const OpCall *c) {
    c->ops->residual_forward(c->device, c->t[0], c->t[1], c->t[2]);
}

static void residual_formula(double *const *x, int kind) {
    (void)kind;
    for (int i = 0; i < N * C; i++) x[0][i] = x[1][i] + x[2][i];
}

/* kind 1: evaluation, which leaves the logits alone. */
static void cross_entropy(const OpCall *c) {
    c->ops->cross_entropy(c->device, c->t[0], c->t[1], c->t[2], VOCAB, c->kind ? 0.0f : 0.125f);
}

static void cross_entropy_formula(double *const *x, int kind) {
    for (int n = 0; n < N; n++) {
        double *logits = x[1] + n * PADDED, sum = 0;
        int target = (int)x[2][n];
        for (int v = 0; v < VOCAB; v++) sum += exp(logits[v]);
        x[0][n] = log(sum) - logits[target];
        for (int v = 0; v < PADDED && !kind; v++)
            logits[v] = v < VOCAB ? (exp(logits[v]) / sum - (v == target)) * 0.125 : 0;
    }
}

// --- sums ---

static void column_sum(const OpCall *c) { c->ops->column_sum(c->device, c->t[0], c->t[1]); }

static void column_sum_formula(double *const *x, int kind) {
    (void)kind;
    for (int i = 0; i < N * C; i++) x[0][i % C] += x[1][i];
}

static void sums(const OpCall *c) {
    c->ops->sum(c->device, (float *)c->t[0].data, c->t[3], 0.375f);
    c->ops->global_norm(c->device, (float *)c->t[1].data, c->t[3]);
    c->ops->distance(c->device, (float *)c->t[2].data, c->t[3], c->t[4]);
}

static void sums_formula(double *const *x, int kind) {
    (void)kind;
    double square = 0, difference = 0;
    for (int i = 0; i < LONG; i++) {
        x[0][0] += 0.375 * x[3][i];
        square += x[3][i] * x[3][i];
        difference += (x[3][i] - x[4][i]) * (x[3][i] - x[4][i]);
    }
    x[1][0] = sqrt(square);
    x[2][0] = sqrt(difference);
}

static void hadamard(const OpCall *c) {
    Hadamard h = {16, SIGNS_FIXED, 0, 0, NULL};
    c->ops->hadamard(c->device, c->t[0], c->t[2], 0, h);
    c->ops->hadamard(c->device, c->t[1], c->t[2], 1, h);
}

static void hadamard_formula(double *const *x, int kind) {
    (void)kind;
    for (int i = 0; i < R16 * C16; i++) {
        int row = i / C16, col = i % C16;
        x[0][i] = x[1][i] = 0;
        for (int r = 0; r < 16; r++) {
            double sign = 0xD7E8 >> r & 1 ? -0.25 : 0.25;
            double across = __builtin_parity((unsigned)(r & col & 15)) ? -sign : sign;
            double down = __builtin_parity((unsigned)(r & row & 15)) ? -sign : sign;
            x[0][i] += across * x[2][row * C16 + (col & ~15) + r];
            x[1][i] += down * x[2][((row & ~15) + r) * C16 + col];
        }
    }
}

// --- the optimizer step ---

static StepState optimizer_state(int skip) {
    StepState s;
    memset(&s, 0, sizeof(s));
    s.lr = 6e-4f;
    s.bias_correction1 = 0.19f;
    s.bias_correction2 = 0.0975f;
    s.grad_clip = 1.0f;
    s.loss_limit = 10.0f;
    s.grad_norm_limit = 100.0f;
    s.grad_scale = 0.7f;
    s.skip = skip;
    return s;
}

/* kind 1: a step that is skipped. A model in f32 trains its values themselves. */
static void adamw(const OpCall *c) {
    const Tensor *t = c->t;
    int in_place = t[0].dtype == DT_F32;
    AdamWTensors tensors = {in_place ? t[1] : t[0], t[1], t[2], t[3], t[4]};
    c->ops->adamw(c->device, tensors, adamw_config, (const StepState *)t[5].data);
    if (in_place && !c->kind) c->device->copy(c->device, t[0].data, t[1].data, tensor_bytes(t[0]));
}

static void adamw_formula(double *const *x, int kind) {
    StepState s = optimizer_state(kind);
    double beta1 = adamw_config.beta1, beta2 = adamw_config.beta2;
    for (int i = 0; i < LONG && !kind; i++) {
        double g = x[4][i] * s.grad_scale;
        x[2][i] = beta1 * x[2][i] + (1 - beta1) * g;
        x[3][i] = beta2 * x[3][i] + (1 - beta2) * g * g;
        double update =
            x[2][i] / s.bias_correction1 / (sqrt(x[3][i] / s.bias_correction2) + adamw_config.eps) +
            adamw_config.weight_decay * x[1][i];
        x[1][i] -= s.lr * update;
        x[0][i] = x[1][i];
    }
}

// --- the table ---

// clang-format off
#define IN(name, type, rows, cols)  {name, ARG_IN, type, rows, cols, FILL_NORMAL, 1, 0, 0, 0}
#define IDS(name, rows, cols, below) {name, ARG_IN, DT_I32, rows, cols, FILL_IDS, below, 0, 0, 0}
#define OUT(name, type, rows, cols, relative, absolute) \
    {name, ARG_OUT, type, rows, cols, FILL_NAN, 0, relative, absolute, 0}
#define INOUT(name, type, rows, cols, scale, relative, absolute) \
    {name, ARG_INOUT, type, rows, cols, FILL_NORMAL, scale, relative, absolute, 0}
// f32 keeps the terms of a cancelling sum, up to about 16, to 2^-22 of that.
#define NORM_ARGS {OUT("out", DT_BF16, N, C, 1e-6, 4e-6), OUT("mean", DT_F32, N, 1, 0, 1e-6), \
    OUT("rstd", DT_F32, N, 1, 1e-6, 0), INOUT("dx", DT_BF16, N, C, 1, 1e-6, 8e-6), \
    INOUT("dw", DT_F32, 1, C, 1, 1e-6, 1e-5), INOUT("db", DT_F32, 1, C, 1, 1e-6, 1e-5), \
    IN("x", DT_BF16, N, C), IN("w", DT_BF16, 1, C), IN("b", DT_BF16, 1, C), \
    IN("dout", DT_BF16, N, C)}
#define ROPE_ARGS(HS) {INOUT("qkv", DT_BF16, N, (NH + 2 * NKV) * HS, 1, 0, 1e-6), \
    INOUT("dqkv", DT_BF16, N, (NH + 2 * NKV) * HS, 1, 0, 1e-6), \
    {"table", ARG_IN, DT_F32, T, HS, FILL_ROPE, 0, 0, 0, 0}}
// A GPU rounds p and ds to bf16: at most 2^-9 of the largest value in each of two products.
#define ATTENTION_ARGS(HS) { \
    {"out", ARG_OUT, DT_BF16, N, NH * HS, FILL_NAN, 0, 0x1p-8, 0, 0x1p-8}, \
    OUT("lse", DT_F32, B * NH, T, 1e-5, 1e-5), \
    {"dqkv", ARG_OUT, DT_BF16, N, (NH + 2 * NKV) * HS, FILL_NAN, 0, 0x1p-8, 0, 0x1p-8}, \
    IN("qkv", DT_BF16, N, (NH + 2 * NKV) * HS), IN("dout", DT_BF16, N, NH * HS)}
#define ACTIVATION_ARGS(inputs) {OUT("out", DT_BF16, N, F, 4e-6, 4e-6), \
    OUT("dx", DT_BF16, N, inputs, 4e-6, 4e-6), \
    {"x", ARG_IN, DT_BF16, N, inputs, FILL_NORMAL, 3, 0, 0, 0}, IN("dout", DT_BF16, N, F)}
#define CROSS_ENTROPY_ARGS {OUT("losses", DT_F32, N, 1, 1e-6, 1e-5), \
    INOUT("logits", DT_BF16, N, PADDED, 3, 4e-6, 2e-7), IDS("targets", N, 1, VOCAB)}
#define ADAMW_ARGS {INOUT("value", DT_BF16, 1, LONG, 1, 1e-6, 1e-7), \
    INOUT("master", DT_F32, 1, LONG, 1, 1e-6, 1e-7), \
    INOUT("m", DT_F32, 1, LONG, 0.01, 1e-6, 1e-8), \
    {"v", ARG_INOUT, DT_F32, 1, LONG, FILL_POSITIVE, 1e-4, 1e-6, 0, 0}, \
    {"grad", ARG_IN, DT_F32, 1, LONG, FILL_NORMAL, 0.01, 0, 0, 0}, \
    {"state", ARG_IN, DT_U8, 1, sizeof(StepState), FILL_STATE, 0, 0, 0, 0}}

static const OpRow op_rows[] = {
    {"embedding", embedding, embedding_formula, 0,
     {OUT("out", DT_BF16, N, C, 1e-7, 0), INOUT("dtable", DT_F32, PADDED, C, 1, 1e-6, 2e-6),
      INOUT("dpositions", DT_F32, T, C, 1, 1e-6, 1e-6), IDS("tokens", B, T, VOCAB),
      IN("table", DT_BF16, PADDED, C), IN("positions", DT_BF16, T, C),
      IN("dout", DT_BF16, N, C)}},
    {"layernorm", norm, norm_formula, NORM_LAYERNORM, NORM_ARGS},
    {"rmsnorm", norm, norm_formula, NORM_RMSNORM, NORM_ARGS},
    {"rope, head_dim 64", rope, rope_formula, 0, ROPE_ARGS(64)},
    {"rope, head_dim 128", rope, rope_formula, 1, ROPE_ARGS(128)},
    {"attention, head_dim 64", attention, attention_formula, 0, ATTENTION_ARGS(64)},
    {"attention, head_dim 128", attention, attention_formula, 1, ATTENTION_ARGS(128)},
    {"gelu", activation, activation_formula, ACT_GELU, ACTIVATION_ARGS(F)},
    {"swiglu", activation, activation_formula, ACT_SWIGLU, ACTIVATION_ARGS(2 * F)},
    {"relu2", activation, activation_formula, ACT_RELU2, ACTIVATION_ARGS(F)},
    {"smooth_swiglu, scale_rows", smooth_swiglu, smooth_swiglu_formula, 0,
     {OUT("out", DT_BF16, N, F, 4e-6, 4e-6), OUT("scale", DT_F32, N, 1, 0, 0),
      OUT("dx", DT_BF16, N, 2 * F, 4e-6, 4e-6), OUT("scaled", DT_BF16, N, F, 4e-6, 4e-6),
      {"x", ARG_IN, DT_BF16, N, 2 * F, FILL_NORMAL, 3, 0, 0, 0}, IN("dout", DT_BF16, N, F),
      IN("b", DT_BF16, 1, F)}},
    {"residual", residual, residual_formula, 0,
     {OUT("out", DT_BF16, N, C, 1e-7, 0), IN("a", DT_BF16, N, C), IN("b", DT_BF16, N, C)}},
    {"cross_entropy", cross_entropy, cross_entropy_formula, 0, CROSS_ENTROPY_ARGS},
    {"cross_entropy, evaluation", cross_entropy, cross_entropy_formula, 1, CROSS_ENTROPY_ARGS},
    {"column_sum", column_sum, column_sum_formula, 0,
     {INOUT("db", DT_F32, 1, C, 1, 1e-6, 1e-5), IN("dout", DT_BF16, N, C)}},
    {"sum, global_norm, distance", sums, sums_formula, 0,
     {INOUT("sum", DT_F32, 1, 1, 1, 1e-6, 0), OUT("norm", DT_F32, 1, 1, 1e-6, 0),
      OUT("distance", DT_F32, 1, 1, 1e-6, 0),
      {"x", ARG_IN, DT_F32, 1, LONG, FILL_POSITIVE, 1, 0, 0, 0}, IN("y", DT_F32, 1, LONG)}},
    {"hadamard", hadamard, hadamard_formula, 0,
     {OUT("across", DT_BF16, R16, C16, 1e-6, 1e-6), OUT("down", DT_BF16, R16, C16, 1e-6, 1e-6),
      IN("x", DT_BF16, R16, C16)}},
    {"adamw", adamw, adamw_formula, 0, ADAMW_ARGS},
    {"adamw, skipped", adamw, adamw_formula, 1, ADAMW_ARGS},
};
// clang-format on

// --- running a row ---

/* The arguments of a row on the host: contents before, and what a device made of them. */
typedef struct {
    ArgSpec spec[MAX_ARGS];
    int count;
    void *before[MAX_ARGS], *got[MAX_ARGS], *reference[MAX_ARGS];
    double *want[MAX_ARGS];
} Args;

static int64_t arg_count(const ArgSpec *s) { return (int64_t)s->rows * s->cols; }

static double arg_value(const ArgSpec *s, const void *data, int64_t i) {
    if (s->type == DT_I32) return ((const int32_t *)data)[i];
    if (s->type == DT_U8) return ((const uint8_t *)data)[i];
    return selftest_read(data, s->type, i);
}

static void fill_arg(const ArgSpec *s, void *data, int kind, uint32_t stream) {
    memset(data, 0xFF, dtype_bytes(s->type, arg_count(s)));
    if (s->fill == FILL_NAN) return;
    if (s->fill == FILL_ROPE) {
        rope_fill_table((float *)data, s->rows, s->cols, 10000.0);
        return;
    }
    if (s->fill == FILL_STATE) {
        StepState state = optimizer_state(kind);
        memcpy(data, &state, sizeof(state));
        return;
    }
    for (int64_t i = 0; i < arg_count(s); i++) {
        float value = selftest_normal(stream, (uint64_t)i) * (float)s->scale;
        if (s->fill == FILL_POSITIVE) value = fabsf(value);
        if (s->type == DT_I32) ((int32_t *)data)[i] = (int)fabsf(value * 1000) % (int)s->scale;
        else if (s->type == DT_BF16) ((bf16_t *)data)[i] = bf16_from_f32(value);
        else ((float *)data)[i] = value;
    }
}

static void args_make(Args *a, const OpRow *row, DType model) {
    memset(a, 0, sizeof(*a));
    for (; a->count < MAX_ARGS && row->args[a->count].name; a->count++) {
        int i = a->count;
        ArgSpec *s = &a->spec[i];
        *s = row->args[i];
        if (s->type == DT_BF16 && row->call != hadamard) s->type = model;
        size_t bytes = dtype_bytes(s->type, arg_count(s));
        a->before[i] = xmalloc(bytes);
        a->got[i] = xmalloc(bytes);
        a->reference[i] = xmalloc(bytes);
        a->want[i] = (double *)xmalloc((size_t)arg_count(s) * sizeof(double));
        fill_arg(s, a->before[i], row->kind, (uint32_t)(16 + i));
        for (int64_t j = 0; j < arg_count(s); j++) a->want[i][j] = arg_value(s, a->before[i], j);
    }
}

static void args_free(Args *a) {
    for (int i = 0; i < a->count; i++) {
        free(a->before[i]), free(a->got[i]), free(a->reference[i]), free(a->want[i]);
    }
}

static void args_run(const Args *a, const OpRow *row, const Ops *ops, Device *d,
                     void *const *results) {
    OpCall c = {ops, d, {{0}}, row->kind};
    for (int i = 0; i < a->count; i++) {
        const ArgSpec *s = &a->spec[i];
        c.t[i] = tensor_view(NULL, s->type, s->rows, s->cols);
        c.t[i].data = device_alloc(d, tensor_bytes(c.t[i]), s->name);
        d->upload(d, c.t[i].data, a->before[i], tensor_bytes(c.t[i]));
    }
    row->call(&c);
    for (int i = 0; i < a->count; i++) {
        d->download(d, results[i], c.t[i].data, tensor_bytes(c.t[i]));
        d->free(d, c.t[i].data);
    }
}

/* One argument against what it should be; `factor` 2 where that has been rounded too. */
static void compare_arg(SelftestWorst *w, const ArgSpec *s, const void *got, const double *want,
                        double factor) {
    double largest = 0;
    for (int64_t i = 0; i < arg_count(s); i++) largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < arg_count(s); i++) {
        double value = arg_value(s, got, i), bound = 0;
        if (isnan(value) && isnan(want[i])) continue;   // left alone, as it should
        if (s->role != ARG_IN) {
            double rounding = s->type == DT_BF16 ? 0x1.01p-8 : 0;
            bound = factor * ((s->relative + rounding) * fabs(want[i]) + s->absolute +
                              s->of_largest * largest);
        }
        selftest_compare(w, fabs(value - want[i]), bound, s->name, i / s->cols, i % s->cols);
    }
}

static void run_row(Selftest *t, const OpRow *row) {
    Args a;
    SelftestWorst worst = {0};
    args_make(&a, row, t->options->model->config.dtype);
    args_run(&a, row, t->ops, t->device, a.got);
    row->formula(a.want, row->kind);
    for (int i = 0; i < a.count; i++) compare_arg(&worst, &a.spec[i], a.got[i], a.want[i], 1);
    if (t->reference) {
        args_run(&a, row, &ops_cpu, t->reference, a.reference);
        for (int i = 0; i < a.count; i++) {
            for (int64_t j = 0; j < arg_count(&a.spec[i]); j++)
                a.want[i][j] = arg_value(&a.spec[i], a.reference[i], j);
            compare_arg(&worst, &a.spec[i], a.got[i], a.want[i], 2);
        }
    }
    const char *against = t->reference ? "formulas, CPU" : "formulas";
    char *note = row->call == attention
                     ? format_string("%s (%s)", against, t->ops->attention_name())
                     : xstrdup(against);
    SelftestRow line = {row->name, 0, note};
    selftest_judge(t, line, &worst);
    free(note);
    args_free(&a);
}

// --- step_decide: what it decides is no matter of rounding ---

typedef struct {
    const char *about;
    float loss, grad_norm, grad_clip, stop_votes;
    int skip, nonfinite;
    float grad_scale;
} Decision;

static const Decision decisions[] = {
    {"clipped", 3, 2, 1, 0, 0, 0, 0.5f},
    {"below the clip", 3, 0.5f, 1, 0, 0, 0, 1},
    {"no clipping", 3, 50, 0, 0, 0, 0, 1},
    {"loss too large", 11, 1, 1, 0, 1, 0, 1},
    {"norm too large", 3, 128, 1, 0, 1, 0, 0.0078125f},
    {"asked to stop", 3, 1, 1, 1, 1, 0, 1},
    {"loss NaN", NAN, 1, 1, 0, 1, 1, 1},
    {"norm infinite", 3, INFINITY, 1, 0, 1, 1, 0},
    {"norm squared infinite", 3, 0x1p64f, 0, 0, 1, 1, 1},
};

static void run_step_decide(Selftest *t) {
    Device *d = t->device;
    SelftestWorst worst = {0};
    StepState *there = (StepState *)device_alloc(d, sizeof(StepState), "step state");
    for (int i = 0; i < ARRAY_LEN(decisions); i++) {
        const Decision *c = &decisions[i];
        StepState s = optimizer_state(0);
        s.loss = c->loss;
        s.grad_norm = c->grad_norm;
        s.grad_clip = c->grad_clip;
        s.stop_votes = c->stop_votes;
        d->upload(d, there, &s, sizeof(s));
        t->ops->step_decide(d, there);
        d->download(d, &s, there, sizeof(s));
        selftest_compare(&worst, abs(s.skip - c->skip), 0, c->about, i, 0);
        selftest_compare(&worst, abs(s.nonfinite - c->nonfinite), 0, c->about, i, 1);
        selftest_compare(&worst, fabs((double)s.grad_scale - c->grad_scale), 0, c->about, i, 2);
    }
    d->free(d, there);
    SelftestRow line = {"step_decide", 0, "known decisions"};
    selftest_judge(t, line, &worst);
}

void selftest_ops(Selftest *t) {
    for (int i = 0; i < ARRAY_LEN(op_rows); i++) run_row(t, &op_rows[i]);
    run_step_decide(t);
}
