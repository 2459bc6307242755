/*
test_grads -- the backward pass of every op against central differences of its forward pass in
double (ops_double.h); in bf16 against the same call in f32. Whole models are compared with an
independent automatic differentiation in test_model.c.
*/
#include "ops_double.h"

static const double STEP = 1e-5;        // central differences in double: error about 1e-9
static const double TOLERANCE = 2e-5;   // sums in f32 of values of magnitude 1

/* The loss of a case, sum over i of weights[i] * out[i], as a function of inputs held elsewhere. */
typedef struct {
    void (*forward)(double *out);
    double *out, *weights;
    int64_t count;
} Loss;

static double loss_value(const Loss *l) {
    double sum = 0.0;
    l->forward(l->out);
    for (int64_t i = 0; i < l->count; i++) sum += l->weights[i] * l->out[i];
    return sum;
}

/* `got` must be what it held before plus d loss / d input. Every stride-th element is tested. */
static void expect_gradient(Tensor got, const double *before, double *input, const Loss *l,
                            int64_t stride, const char *what) {
    for (int64_t i = 0; i < tensor_count(got); i += stride) {
        double value = input[i];
        input[i] = value + STEP;
        double above = loss_value(l);
        input[i] = value - STEP;
        double below = loss_value(l);
        input[i] = value;
        EXPECT_NEAR(get(got, i), before[i] + (above - below) / (2.0 * STEP), TOLERANCE,
                    "%s element %lld of (%lld,%lld)", what, (long long)i, (long long)got.rows,
                    (long long)got.cols);
    }
}

/* bf16 results are the f32 results of equal inputs, rounded once. */
static void expect_rounded(Tensor bf16, Tensor f32, const char *what) {
    expect_close(bf16, to_doubles(f32), 1e-6, what);
}

static Loss loss_of(void (*forward)(double *), Tensor dout) {
    Loss l = {forward, case_doubles(tensor_count(dout)), to_doubles(dout), tensor_count(dout)};
    return l;
}

// --- norms ---

static struct {
    NormKind kind;
    int64_t N, C;
    double *x, *w, *b;
} norm;

static const float NORM_EPS = 0.01f;

static void norm_forward(double *out) {
    if (norm.kind == NORM_LAYERNORM)
        double_layernorm(out, norm.x, norm.w, norm.b, norm.N, norm.C, NORM_EPS);
    else double_rmsnorm(out, norm.x, norm.w, norm.N, norm.C, NORM_EPS);
}

typedef struct {
    Tensor x, w, b, dout, dx, dw, db;
} NormTensors;

static NormTensors norm_tensors(int64_t N, int64_t C) {
    NormTensors t = {random_tensor(DT_F32, N, C), random_tensor(DT_F32, 1, C),
                     random_tensor(DT_F32, 1, C), random_tensor(DT_F32, N, C),
                     random_tensor(DT_F32, N, C), random_tensor(DT_F32, 1, C),
                     random_tensor(DT_F32, 1, C)};
    return t;
}

static void run_norm(Device *d, NormKind kind, NormTensors t) {
    NormStats stats = {new_tensor(DT_F32, t.x.rows, 1), new_tensor(DT_F32, t.x.rows, 1)};
    Tensor out = new_tensor(t.x.dtype, t.x.rows, t.x.cols);
    int shift = kind == NORM_LAYERNORM;
    ops_cpu.norm[kind].forward(d, out, stats, t.x, t.w, shift ? t.b : NO_TENSOR, NORM_EPS);
    ops_cpu.norm[kind].backward(d, t.dx, t.dw, shift ? t.db : NO_TENSOR, t.dout, t.x, t.w, stats);
}

static void expect_norm_gradients(NormKind kind, int64_t N, int64_t C) {
    OpLimits limits = {.tokens = N, .max_cols = C, .attention = {1, 1, 1, 1, 1}};
    Device *d = case_device(limits);
    NormTensors t = norm_tensors(N, C), half = t;
    half.x = copy_tensor(t.x, DT_BF16);
    half.w = copy_tensor(t.w, DT_BF16);
    half.b = copy_tensor(t.b, DT_BF16);
    half.dout = copy_tensor(t.dout, DT_BF16);
    half.dx = copy_tensor(t.dx, DT_BF16);
    half.dw = copy_tensor(t.dw, DT_F32);
    half.db = copy_tensor(t.db, DT_F32);
    norm.kind = kind;
    norm.N = N;
    norm.C = C;
    norm.x = to_doubles(t.x);
    norm.w = to_doubles(t.w);
    norm.b = to_doubles(t.b);
    double *dx = to_doubles(t.dx), *dw = to_doubles(t.dw), *db = to_doubles(t.db);
    Loss loss = loss_of(norm_forward, t.dout);
    run_norm(d, kind, t);
    expect_gradient(t.dx, dx, norm.x, &loss, 1 + N * C / 97, "dx");
    expect_gradient(t.dw, dw, norm.w, &loss, 1 + C / 13, "dw");
    if (kind == NORM_LAYERNORM) expect_gradient(t.db, db, norm.b, &loss, 1 + C / 13, "db");
    else expect_close(t.db, db, 0.0, "db, which rmsnorm has not");
    run_norm(d, kind, half);
    expect_rounded(half.dx, t.dx, "dx");
    expect_close(half.dw, to_doubles(t.dw), 1e-5, "dw of bf16");
    case_free();
}

CASE(norm_gradients) {
    static const int64_t sizes[][2] = {{1, 1}, {1, 17}, {3, 48}, {37, 17}, {130, 5}};
    for (int i = 0; i < ARRAY_LEN(sizes); i++) {
        expect_norm_gradients(NORM_LAYERNORM, sizes[i][0], sizes[i][1]);
        expect_norm_gradients(NORM_RMSNORM, sizes[i][0], sizes[i][1]);
    }
}

// --- activation ---

static struct {
    ActKind kind;
    int64_t N, F;
    double *x;
} act;

static void act_forward(double *out) { double_activation(out, act.x, act.kind, act.N, act.F); }

CASE(activation_gradients) {
    static const int64_t cols[] = {1, 17, 1100};
    for (int i = 0; i < ARRAY_LEN(cols) * NUM_ACTS; i++) {
        ActKind kind = (ActKind)(i % NUM_ACTS);
        int64_t N = 3, F = cols[i / NUM_ACTS], x_cols = F * act_info[kind].inputs_per_output;
        Tensor x = random_tensor(DT_F32, N, x_cols), dout = random_tensor(DT_F32, N, F);
        Tensor dx = random_tensor(DT_F32, N, x_cols), half_dx = random_tensor(DT_BF16, N, x_cols);
        for (int64_t e = 0; e < tensor_count(x); e++) put(x, e, 4.0 * get(x, e));
        act.kind = kind;
        act.N = N;
        act.F = F;
        act.x = to_doubles(x);
        Loss loss = loss_of(act_forward, dout);
        ops_cpu.activation_backward(NULL, dx, dout, x, kind);
        double *zero = case_doubles(tensor_count(dx));   // dx is overwritten
        expect_gradient(dx, zero, act.x, &loss, 1 + N * F / 97, act_info[kind].name);
        ops_cpu.activation_backward(NULL, half_dx, copy_tensor(dout, DT_BF16),
                                    copy_tensor(x, DT_BF16), kind);
        expect_rounded(half_dx, dx, act_info[kind].name);
        case_free();
    }
}

// --- cross entropy ---

static struct {
    int64_t N, Vp, V;
    double *logits;
    Tensor targets;
} classifier;

static void classifier_forward(double *losses) {
    double_cross_entropy(losses, classifier.logits, classifier.targets, classifier.N, classifier.Vp,
                         classifier.V);
}

CASE(cross_entropy_gradients) {
    int64_t N = 5, Vp = 48, V = 37;
    OpLimits limits = {.padded_vocab = Vp, .attention = {1, 1, 1, 1, 1}};
    Tensor logits = random_tensor(DT_F32, N, Vp), targets = random_ids(N, 1, (int)V);
    Tensor dout = new_tensor(DT_F32, N, 1), losses = new_tensor(DT_F32, N, 1);
    for (int64_t n = 0; n < N; n++) put(dout, n, 0.25);
    classifier.N = N;
    classifier.Vp = Vp;
    classifier.V = V;
    classifier.targets = targets;
    classifier.logits = to_doubles(logits);
    Loss loss = loss_of(classifier_forward, dout);
    ops_cpu.cross_entropy(case_device(limits), losses, logits, targets, (int)V, 0.25f);
    expect_gradient(logits, case_doubles(N * Vp), classifier.logits, &loss, 1, "dlogits");
    case_free();
}

// --- attention and rope ---

static struct {
    AttentionDims dims;
    double *qkv;
    int64_t count;
} attention;

static void attention_forward(double *out) {
    double_attention(out, NULL, attention.qkv, attention.dims);
}

static const AttentionDims ATTENTIONS[] = {
    {1, 1, 1, 1, 2}, {2, 3, 4, 2, 5}, {1, 37, 2, 1, 16}, {1, 70, 4, 2, 6}, {1, 130, 2, 2, 3},
};

CASE(attention_gradients) {
    for (int i = 0; i < ARRAY_LEN(ATTENTIONS); i++) {
        AttentionDims a = ATTENTIONS[i];
        OpLimits limits = {.attention = a};
        Device *d = case_device(limits);
        int64_t rows = (int64_t)a.B * a.T, cols = (int64_t)a.num_heads * a.head_dim;
        Tensor qkv = random_tensor(DT_F32, rows, attention_qkv_cols(a));
        Tensor out = new_tensor(DT_F32, rows, cols), dout = random_tensor(DT_F32, rows, cols);
        Tensor lse = new_tensor(DT_F32, (int64_t)a.B * a.num_heads, a.T);
        Tensor dqkv = random_tensor(DT_F32, rows, qkv.cols);   // is overwritten
        attention.dims = a;
        attention.qkv = to_doubles(qkv);
        Loss loss = loss_of(attention_forward, dout);
        ops_cpu.attention_forward(d, out, lse, qkv, a);
        ops_cpu.attention_backward(d, dqkv, dout, out, lse, qkv, a);
        expect_gradient(dqkv, case_doubles(tensor_count(dqkv)), attention.qkv, &loss,
                        1 + tensor_count(dqkv) / 499, "dqkv");
        // Equal out in both dtypes, else delta would differ by more than a rounding.
        Tensor half_dqkv = new_tensor(DT_BF16, rows, qkv.cols),
               half_out = copy_tensor(out, DT_BF16);
        ops_cpu.attention_backward(d, half_dqkv, copy_tensor(dout, DT_BF16), half_out, lse,
                                   copy_tensor(qkv, DT_BF16), a);
        ops_cpu.attention_backward(d, dqkv, dout, copy_tensor(half_out, DT_F32), lse, qkv, a);
        expect_rounded(half_dqkv, dqkv, "dqkv");
        case_free();
    }
}

static void rope_forward(double *out) {
    memcpy(out, attention.qkv, (size_t)attention.count * sizeof(double));
    double_rope(out, attention.dims, 100.0);
}

CASE(rope_gradients) {
    AttentionDims a = {2, 7, 4, 2, 6};
    Tensor table = new_tensor(DT_F32, a.T, a.head_dim);
    rope_fill_table((float *)table.data, a.T, a.head_dim, 100.0);
    Tensor qkv = random_tensor(DT_F32, (int64_t)a.B * a.T, attention_qkv_cols(a));
    Tensor dqkv = random_tensor(DT_F32, qkv.rows, qkv.cols);
    attention.dims = a;
    attention.qkv = to_doubles(qkv);
    attention.count = tensor_count(qkv);
    Loss loss = loss_of(rope_forward, dqkv);
    ops_cpu.rope_backward(NULL, dqkv, table, a);
    expect_gradient(dqkv, case_doubles(attention.count), attention.qkv, &loss, 1, "dqkv");
    case_free();
}

// --- embedding ---

static struct {
    int64_t N, T, C;
    double *table, *positions;
    Tensor tokens;
} embedding;

static void embedding_forward(double *out) {
    for (int64_t i = 0; i < embedding.N * embedding.C; i++) {
        int64_t n = i / embedding.C, c = i % embedding.C;
        out[i] = embedding.table[(int64_t)get(embedding.tokens, n) * embedding.C + c] +
                 embedding.positions[n % embedding.T * embedding.C + c];
    }
}

CASE(embedding_gradients) {
    static const int64_t cols[] = {1, 17, 150};
    for (int i = 0; i < ARRAY_LEN(cols); i++) {
        int64_t C = cols[i];
        embedding.N = 10;
        embedding.T = 5;
        embedding.C = C;
        embedding.tokens = random_ids(2, 5, 4);
        embedding.table = case_doubles(4 * C);
        embedding.positions = case_doubles(7 * C);
        Tensor dout = random_tensor(DT_F32, 10, C), dtable = random_tensor(DT_F32, 4, C);
        Tensor dpositions = random_tensor(DT_F32, 7, C);
        double *table_before = to_doubles(dtable), *positions_before = to_doubles(dpositions);
        Loss loss = loss_of(embedding_forward, dout);
        ops_cpu.embedding_backward(NULL, dtable, dpositions, dout, embedding.tokens);
        expect_gradient(dtable, table_before, embedding.table, &loss, 1, "dtable");
        expect_gradient(dpositions, positions_before, embedding.positions, &loss, 1, "dpositions");
        case_free();
    }
}

TEST_MAIN_END
