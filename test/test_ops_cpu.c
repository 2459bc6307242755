/*
test_ops_cpu -- the CPU references: forward passes against double (ops_double.h), sums, optimizer,
products; what is added to and what is overwritten; rounding to bf16; equal bits for every number
of threads. Gradients are in test_grads.c, quantisers in test_quantize.c.
*/
#include <float.h>
#include <omp.h>

#include "../llmc/ops/fast_exp.h"
#include "ops_double.h"

static const DType FLOATS[] = {DT_F32, DT_BF16};

/* Sizes that are multiples of nothing: chunks of rows, vector lanes and spans all have tails. */
static const int64_t ROWS_TESTED[] = {1, 3, 37, 130};
static const int64_t COLS_TESTED[] = {1, 17, 48, 1100};

static OpLimits limits_of(int64_t rows, int64_t cols) {
    OpLimits l = {.tokens = rows,
                  .max_cols = cols,
                  .padded_vocab = cols,
                  .logits_rows = rows,
                  .attention = {1, 1, 1, 1, 1}};
    return l;
}

// --- fast_exp ---

static void expect_exp(float x) {
    float got = fast_exp(x), exact = (float)exp((double)x);
    float ulp = exact < FLT_MIN ? ldexpf(1.0f, -149) : nextafterf(exact, INFINITY) - exact;
    if (isinf(exact)) EXPECT(got == exact, "exp(%a) is %g", x, got);
    else EXPECT_NEAR(got, exp((double)x), 2.0 * ulp, "exp(%a), an ulp is %g", x, ulp);
}

CASE(fast_exp_within_2_ulp) {
    for (uint32_t bits = 0; bits < 0x7F800000u; bits += 1021) {   // all magnitudes, both signs
        expect_exp(f32_from_bits(bits));
        expect_exp(-f32_from_bits(bits));
    }
    for (int i = -104 * 64; i <= 89 * 64; i++) expect_exp((float)i / 64.0f);
    expect_exp(88.7228317f);   // the largest that does not overflow
    EXPECT_BITS(&(float){fast_exp(0.0f)}, &(float){1.0f}, 4, "exp(0)");
    EXPECT(fast_exp(-INFINITY) == 0.0f && fast_exp(-200.0f) == 0.0f);
    EXPECT(fast_exp(INFINITY) == INFINITY && fast_exp(88.73f) == INFINITY);
    EXPECT(isnan(fast_exp(NAN)) && isnan(fast_exp(-NAN)));
}

// --- embedding ---

CASE(embedding_adds_positions_and_rounds_once) {
    for (int type_at = 0; type_at < ARRAY_LEN(FLOATS); type_at++) {
        DType dtype = FLOATS[type_at];
        for (int cols_at = 0; cols_at < ARRAY_LEN(COLS_TESTED); cols_at++) {
            int64_t C = COLS_TESTED[cols_at];
            Tensor tokens = random_ids(2, 5, 11), table = random_tensor(dtype, 11, C);
            Tensor positions = random_tensor(dtype, 7, C), out = new_tensor(dtype, 10, C);
            double *want = case_doubles(10 * C);
            for (int learned = 0; learned < 2; learned++) {
                for (int64_t i = 0; i < 10 * C; i++)
                    want[i] = get(table, (int64_t)get(tokens, i / C) * C + i % C) +
                              (learned ? get(positions, i / C % 5 * C + i % C) : 0.0);
                ops_cpu.embedding_forward(NULL, out, tokens, table,
                                          learned ? positions : NO_TENSOR);
                expect_close(out, want, 1e-7, "embedding");
            }
            case_free();
        }
    }
}

CASE(embedding_backward_adds_to_gradients) {
    int32_t ids[] = {2, 0, 2, 2};
    float dout_values[] = {1, 10, 100, 1000}, table_values[] = {0.5f, 0.25f, 0, 0};
    float position_values[] = {7, 0, 9};
    Tensor tokens = tensor_view(ids, DT_I32, 2, 2), dout = tensor_view(dout_values, DT_F32, 4, 1);
    Tensor dtable = tensor_view(table_values, DT_F32, 4, 1);
    Tensor dpositions = tensor_view(position_values, DT_F32, 3, 1);
    ops_cpu.embedding_backward(NULL, dtable, dpositions, dout, tokens);
    expect_close(dtable, (double[]){10.5, 0.25, 1101, 0}, 0.0, "dtable");
    expect_close(dpositions, (double[]){108, 1010, 9}, 0.0, "dpositions");
    ops_cpu.embedding_backward(NULL, dtable, NO_TENSOR, dout, tokens);
    expect_close(dtable, (double[]){20.5, 0.25, 2202, 0}, 0.0, "dtable, no positions");
}

// --- norms ---

CASE(norms_match_double) {
    for (int type_at = 0; type_at < ARRAY_LEN(FLOATS); type_at++) {
        DType dtype = FLOATS[type_at];
        for (int at = 0; at < ARRAY_LEN(ROWS_TESTED) * ARRAY_LEN(COLS_TESTED); at++) {
            int64_t N = ROWS_TESTED[at / ARRAY_LEN(COLS_TESTED)];
            int64_t C = COLS_TESTED[at % ARRAY_LEN(COLS_TESTED)];
            Device *d = case_device(limits_of(N, C));
            Tensor x = random_tensor(dtype, N, C), w = random_tensor(dtype, 1, C);
            Tensor b = random_tensor(dtype, 1, C), out = new_tensor(dtype, N, C);
            NormStats stats = {new_tensor(DT_F32, N, 1), new_tensor(DT_F32, N, 1)};
            double *want = case_doubles(N * C);
            double tolerance = 1e-6 + (double)C * 0x1p-24;   // rounding of sums over C
            double_layernorm(want, to_doubles(x), to_doubles(w), to_doubles(b), N, C, 1e-5f);
            ops_cpu.norm[NORM_LAYERNORM].forward(d, out, stats, x, w, b, 1e-5f);
            expect_close(out, want, tolerance, "layernorm");
            double_rmsnorm(want, to_doubles(x), to_doubles(w), N, C, 1e-6f);
            ops_cpu.norm[NORM_RMSNORM].forward(d, out, stats, x, w, NO_TENSOR, 1e-6f);
            expect_close(out, want, tolerance, "rmsnorm");
            case_free();
        }
    }
}

/* The rounded sum is what is normalised. */
CASE(norm_of_a_residual_has_the_bits_of_its_parts) {
    for (int at = 0; at < ARRAY_LEN(FLOATS) * NUM_NORMS; at++) {
        DType dtype = FLOATS[at / NUM_NORMS];
        int64_t N = 37, C = 48;
        const NormOp *op = &ops_cpu.norm[at % NUM_NORMS];
        Device *d = case_device(limits_of(N, C));
        Tensor x = random_tensor(dtype, N, C), branch = random_tensor(dtype, N, C);
        Tensor w = random_tensor(dtype, 1, C), b = random_tensor(dtype, 1, C);
        Tensor sum[2], out[2];
        NormStats stats[2];
        for (int i = 0; i < 2; i++) {
            sum[i] = new_tensor(dtype, N, C);
            out[i] = new_tensor(dtype, N, C);
            stats[i].mean = new_tensor(DT_F32, N, 1);
            stats[i].rstd = new_tensor(DT_F32, N, 1);
        }
        if (at % NUM_NORMS == NORM_RMSNORM) b = NO_TENSOR;
        op->residual_forward(d, out[0], stats[0], (Residual){sum[0], x, branch}, w, b, 1e-5f);
        ops_cpu.residual_forward(d, sum[1], x, branch);
        op->forward(d, out[1], stats[1], sum[1], w, b, 1e-5f);
        EXPECT_BITS(sum[0].data, sum[1].data, tensor_bytes(sum[0]), "sum");
        EXPECT_BITS(out[0].data, out[1].data, tensor_bytes(out[0]), "out");
        EXPECT_BITS(stats[0].rstd.data, stats[1].rstd.data, N * 4, "rstd");
        if (at % NUM_NORMS == NORM_LAYERNORM)
            EXPECT_BITS(stats[0].mean.data, stats[1].mean.data, N * 4, "mean");
        case_free();
    }
}

CASE(norm_stats_are_mean_and_rstd) {
    Device *d = case_device(limits_of(1, 4));
    Tensor x = new_tensor(DT_F32, 1, 4), w = new_tensor(DT_F32, 1, 4),
           out = new_tensor(DT_F32, 1, 4);
    NormStats stats = {new_tensor(DT_F32, 1, 1), new_tensor(DT_F32, 1, 1)};
    for (int c = 0; c < 4; c++) put(x, c, c);   // mean 1.5, variance 1.25, mean square 3.5
    ops_cpu.norm[NORM_LAYERNORM].forward(d, out, stats, x, w, w, 2.75f);
    EXPECT_NEAR(get(stats.mean, 0), 1.5, 0.0);
    EXPECT_NEAR(get(stats.rstd, 0), 0.5, 0.0);
    put(stats.mean, 0, -3.0);
    ops_cpu.norm[NORM_RMSNORM].forward(d, out, stats, x, w, NO_TENSOR, 0.5f);
    EXPECT_NEAR(get(stats.mean, 0), -3.0, 0.0, "rmsnorm leaves the mean alone");
    EXPECT_NEAR(get(stats.rstd, 0), 0.5, 0.0);
    EXPECT_EQ_I64(strcmp(norm_names[NORM_LAYERNORM], "layernorm"), 0);
    EXPECT_EQ_I64(strcmp(norm_names[NORM_RMSNORM], "rmsnorm"), 0);
    case_free();
}

// --- activation ---

CASE(activations_match_double) {
    for (int type_at = 0; type_at < ARRAY_LEN(FLOATS); type_at++) {
        DType dtype = FLOATS[type_at];
        for (int at = 0; at < NUM_ACTS * ARRAY_LEN(COLS_TESTED); at++) {
            ActKind kind = (ActKind)(at % NUM_ACTS);
            int64_t F = COLS_TESTED[at / NUM_ACTS], N = 7;
            Tensor x = random_tensor(dtype, N, F * act_info[kind].inputs_per_output);
            for (int64_t i = 0; i < tensor_count(x); i++) put(x, i, 6.0 * get(x, i));
            Tensor out = new_tensor(dtype, N, F);
            double *want = case_doubles(N * F);
            double_activation(want, to_doubles(x), kind, N, F);
            ops_cpu.activation_forward(NULL, out, x, kind);
            expect_close(out, want, 1e-5, act_info[kind].name);
            case_free();
        }
    }
}

/* gelu and relu2 of one value, and the derivatives. */
static float act_at(ActKind kind, float x, float *derivative) {
    float out, one = 1.0f;
    Tensor x_tensor = tensor_view(&x, DT_F32, 1, 1), out_tensor = tensor_view(&out, DT_F32, 1, 1);
    ops_cpu.activation_forward(NULL, out_tensor, x_tensor, kind);
    ops_cpu.activation_backward(NULL, tensor_view(derivative, DT_F32, 1, 1),
                                tensor_view(&one, DT_F32, 1, 1), x_tensor, kind);
    return out;
}

CASE(gelu_and_relu2_of_huge_values) {
    static const float huge[] = {20.0f, 1e6f, 1e20f, 3e38f};
    float derivative;
    for (int at = 0; at < ARRAY_LEN(huge); at++) {
        float x = huge[at];
        EXPECT_NEAR(act_at(ACT_GELU, x, &derivative), x, 0.0);
        EXPECT_NEAR(derivative, 1.0, 0.0, "gelu at %g", x);
        EXPECT_NEAR(act_at(ACT_GELU, -x, &derivative), 0.0, 0.0, "gelu at -%g", x);
        EXPECT_NEAR(derivative, 0.0, 0.0, "gelu at -%g", x);
        EXPECT_NEAR(act_at(ACT_RELU2, -x, &derivative), 0.0, 0.0, "relu2 at -%g", x);
        EXPECT_NEAR(derivative, 0.0, 0.0, "relu2 at -%g", x);
    }
    EXPECT(isnan(act_at(ACT_GELU, NAN, &derivative)) && isnan(derivative), "gelu hides a NaN");
    EXPECT_NEAR(act_at(ACT_RELU2, 3.0f, &derivative), 9.0, 0.0);
    EXPECT_NEAR(derivative, 6.0, 0.0);
}

CASE(activation_and_residual_in_place) {
    Tensor x = random_tensor(DT_BF16, 5, 34), dout = random_tensor(DT_BF16, 5, 17);
    Tensor dx = new_tensor(DT_BF16, 5, 34), b = random_tensor(DT_BF16, 5, 34);
    Tensor x_copy = copy_tensor(x, DT_BF16), sum = new_tensor(DT_BF16, 5, 34);
    ops_cpu.activation_backward(NULL, dx, dout, x, ACT_SWIGLU);
    ops_cpu.activation_backward(NULL, x, dout, x, ACT_SWIGLU);
    EXPECT_BITS(x.data, dx.data, tensor_bytes(x), "dx over x");
    ops_cpu.residual_forward(NULL, sum, x_copy, b);
    for (int64_t i = 0; i < tensor_count(sum); i++) {
        float want = (float)(get(x_copy, i) + get(b, i));
        EXPECT_EQ_I64(((bf16_t *)sum.data)[i], bf16_from_f32(want), "residual %lld", (long long)i);
    }
    ops_cpu.residual_forward(NULL, x_copy, x_copy, b);
    EXPECT_BITS(x_copy.data, sum.data, tensor_bytes(sum), "out over a");
    case_free();
}

// --- cross entropy ---

CASE(cross_entropy_matches_double_and_ignores_padding) {
    for (int type_at = 0; type_at < ARRAY_LEN(FLOATS); type_at++) {
        DType dtype = FLOATS[type_at];
        for (int rows_at = 0; rows_at < ARRAY_LEN(ROWS_TESTED); rows_at++) {
            int64_t N = ROWS_TESTED[rows_at];
            int64_t Vp = 48;
            int V = 37;
            Device *d = case_device(limits_of(N, Vp));
            Tensor logits = random_tensor(dtype, N, Vp), targets = random_ids(N, 1, V);
            for (int64_t i = 0; i < N * Vp; i++)
                put(logits, i, i % Vp < V ? 10.0 * get(logits, i) : 1e30);
            Tensor losses = new_tensor(DT_F32, N, 1), before = copy_tensor(logits, dtype);
            double *x = to_doubles(logits), *want = case_doubles(N),
                   *dlogits = case_doubles(N * Vp);
            double_cross_entropy(want, x, targets, N, Vp, V);
            ops_cpu.cross_entropy(d, losses, logits, targets, V, 0.0f);
            expect_close(losses, want, 1e-5, "evaluation loss");
            EXPECT_BITS(logits.data, before.data, tensor_bytes(logits), "dloss 0 changes logits");
            ops_cpu.cross_entropy(d, losses, logits, targets, V, 0.5f);
            expect_close(losses, want, 1e-5, "loss");
            for (int64_t i = 0; i < N * Vp; i++) {
                int64_t n = i / Vp, v = i % Vp, target = (int64_t)get(targets, n);
                double softmax = exp(x[i] - want[n] - x[n * Vp + target]);   // want = lse - logit
                dlogits[i] = v < V ? 0.5 * (softmax - (v == target)) : 0.0;
            }
            expect_close(logits, dlogits, 1e-6, "dlogits");
            case_free();
        }
    }
}

CASE(cross_entropy_of_large_logits_is_finite) {
    Device *d = case_device(limits_of(1, 4));
    float x[] = {1e4f, -1e4f, 0, 0}, loss;
    int32_t target = 1;
    Tensor logits = tensor_view(x, DT_F32, 1, 4), losses = tensor_view(&loss, DT_F32, 1, 1);
    Tensor targets = tensor_view(&target, DT_I32, 1, 1);
    ops_cpu.cross_entropy(d, losses, logits, targets, 3, 1.0f);
    EXPECT_NEAR(loss, 2e4, 0.0);
    expect_close(logits, (double[]){1, -1, 0, 0}, 0.0, "dlogits");
    target = 3;
    EXPECT_ABORTS("target 3", ops_cpu.cross_entropy(d, losses, logits, targets, 3, 1.0f));
    case_free();
}

// --- attention and rope ---

static const AttentionDims ATTENTIONS[] = {
    {1, 1, 1, 1, 2}, {2, 3, 4, 2, 5}, {1, 37, 2, 1, 16}, {2, 70, 6, 2, 8}, {1, 130, 3, 3, 17},
};

static Device *attention_device(AttentionDims a) {
    OpLimits limits = limits_of(1, 1);
    limits.attention = a;
    return case_device(limits);
}

CASE(attention_matches_double) {
    for (int type_at = 0; type_at < ARRAY_LEN(FLOATS); type_at++) {
        DType dtype = FLOATS[type_at];
        for (int dims_at = 0; dims_at < ARRAY_LEN(ATTENTIONS); dims_at++) {
            AttentionDims a = ATTENTIONS[dims_at];
            int64_t rows = (int64_t)a.B * a.T, cols = (int64_t)a.num_heads * a.head_dim;
            Tensor qkv = random_tensor(dtype, rows, attention_qkv_cols(a));
            for (int64_t i = 0; i < tensor_count(qkv); i++) put(qkv, i, 2.0 * get(qkv, i));
            Tensor out = new_tensor(dtype, rows, cols);
            Tensor lse = new_tensor(DT_F32, (int64_t)a.B * a.num_heads, a.T);
            double *want = case_doubles(rows * cols), *want_lse = case_doubles(tensor_count(lse));
            double_attention(want, want_lse, to_doubles(qkv), a);
            ops_cpu.attention_forward(attention_device(a), out, lse, qkv, a);
            expect_close(out, want, 3e-6, "attention");
            expect_close(lse, want_lse, 3e-6, "lse");
            case_free();
        }
    }
}

CASE(attention_of_large_scores_is_finite) {
    AttentionDims a = {1, 2, 1, 1, 1};
    // Scores of row 0: 9e4; of row 1: -9e4 and -3e4.
    float qkv_values[] = {300, 300, 5, -300, 100, 7}, out_values[2], lse_values[2];
    Tensor qkv = tensor_view(qkv_values, DT_F32, 2, 3), out = tensor_view(out_values, DT_F32, 2, 1);
    Tensor lse = tensor_view(lse_values, DT_F32, 1, 2);
    ops_cpu.attention_forward(attention_device(a), out, lse, qkv, a);
    expect_close(out, (double[]){5, 7}, 0.0, "out");
    expect_close(lse, (double[]){9e4, -3e4}, 0.0, "lse");
    case_free();
}

CASE(rope_turns_queries_and_keys_only) {
    float angles[2 * 2];
    rope_fill_table(angles, 2, 2, 10000.0);
    EXPECT_NEAR(angles[2], cos(1.0), 1e-7);
    EXPECT_NEAR(angles[3], sin(1.0), 1e-7);
    for (int type_at = 0; type_at < ARRAY_LEN(FLOATS); type_at++) {
        DType dtype = FLOATS[type_at];
        AttentionDims a = {2, 37, 4, 2, 6};
        Tensor table = new_tensor(DT_F32, 40, 6);
        rope_fill_table((float *)table.data, 40, 6, 100.0);
        Tensor qkv = random_tensor(dtype, (int64_t)a.B * a.T, attention_qkv_cols(a));
        double *want = to_doubles(qkv), *before = to_doubles(qkv);
        double_rope(want, a, 100.0);
        ops_cpu.rope_forward(NULL, qkv, table, a);
        expect_close(qkv, want, 1e-6, "rope");
        ops_cpu.rope_backward(NULL, qkv, table, a);
        expect_close(qkv, before, dtype == DT_F32 ? 1e-6 : 0.008, "rope and back");   // bf16: 2 ulp
        case_free();
    }
}

// --- sums ---

CASE(column_sum_adds_to_db) {
    for (int type_at = 0; type_at < ARRAY_LEN(FLOATS); type_at++) {
        DType dtype = FLOATS[type_at];
        for (int rows_at = 0; rows_at < ARRAY_LEN(ROWS_TESTED); rows_at++) {
            int64_t N = ROWS_TESTED[rows_at];
            int64_t C = 17;
            Tensor dout = random_tensor(dtype, N, C), db = random_tensor(DT_F32, 1, C);
            double *want = to_doubles(db);
            for (int64_t i = 0; i < N * C; i++) want[i % C] += get(dout, i);
            ops_cpu.column_sum(case_device(limits_of(N, C)), db, dout);
            expect_close(db, want, 1e-5, "db");
            case_free();
        }
    }
}

CASE(sum_and_global_norm) {
    float x[] = {3, 4, -12}, out = 100.0f;
    ops_cpu.sum(NULL, &out, tensor_view(x, DT_F32, 3, 1), 0.5f);
    EXPECT_NEAR(out, 97.5, 0.0, "sum is added, scaled");
    ops_cpu.global_norm(NULL, &out, tensor_view(x, DT_F32, 1, 3));
    EXPECT_NEAR(out, 13.0, 0.0, "the norm overwrites");
    Tensor many = random_tensor(DT_F32, 1, 100003);
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < many.cols; i++) {
        sum += get(many, i);
        squares += get(many, i) * get(many, i);
    }
    out = 0.0f;
    ops_cpu.sum(NULL, &out, many, 1.0f);
    EXPECT_NEAR(out, sum, 1e-4);
    ops_cpu.global_norm(NULL, &out, many);
    EXPECT_NEAR(out, sqrt(squares), 1e-4);
    case_free();
}

CASE(distance) {
    float a[] = {3, 4, -12}, b[] = {3, 0, -9}, out = 100.0f;
    ops_cpu.distance(NULL, &out, tensor_view(a, DT_F32, 1, 3), tensor_view(b, DT_F32, 1, 3));
    EXPECT_NEAR(out, 5.0, 0.0, "it overwrites");
    Tensor x = random_tensor(DT_F32, 1, 100003), y = random_tensor(DT_F32, 1, 100003);
    double squares = 0.0;
    for (int64_t i = 0; i < x.cols; i++) squares += pow(get(x, i) - get(y, i), 2);
    ops_cpu.distance(NULL, &out, x, y);
    EXPECT_NEAR(out, sqrt(squares), 1e-4);
    ops_cpu.distance(NULL, &out, x, x);
    EXPECT_NEAR(out, 0.0, 0.0);
    EXPECT_ABORTS("distance b", ops_cpu.distance(NULL, &out, x, tensor_view(b, DT_F32, 1, 3)));
    case_free();
}

CASE(convert_and_add) {
    // 257: between bf16 256 and 258, a tie to even; 1027: past one span.
    float few[] = {257.0f, 1.0f, -3.0e-3f}, back[3];
    bf16_t rounded[3];
    Tensor f32 = tensor_view(few, DT_F32, 1, 3), bf16 = tensor_view(rounded, DT_BF16, 1, 3);
    ops_cpu.convert(NULL, bf16, f32);
    ops_cpu.convert(NULL, tensor_view(back, DT_F32, 1, 3), bf16);
    EXPECT_NEAR(back[0], 256.0, 0.0);
    EXPECT_NEAR(back[2], bf16_to_f32(bf16_from_f32(-3.0e-3f)), 0.0);
    ops_cpu.add(NULL, f32, bf16);
    EXPECT_NEAR(few[0], 513.0, 0.0);
    Tensor x = random_tensor(DT_F32, 1, 1027), y = random_tensor(DT_BF16, 1, 1027);
    Tensor sum = new_tensor(DT_F32, 1, 1027);
    ops_cpu.convert(NULL, sum, x);
    ops_cpu.add(NULL, sum, y);
    for (int64_t i = 0; i < x.cols; i++)
        EXPECT_NEAR(get(sum, i), (float)(get(x, i) + get(y, i)), 0.0, "element %lld", (long long)i);
    EXPECT_ABORTS("convert x", ops_cpu.convert(NULL, sum, f32));
    EXPECT_ABORTS("add out", ops_cpu.add(NULL, bf16, f32));
    case_free();
}

// --- optimizer ---

CASE(step_decide_clips_and_skips) {
    static const struct {
        float clip, loss, loss_limit, norm, norm_limit, scale;
        int skip, nonfinite;
    } rows[] = {
        // clip loss      limit     norm      limit     scale skip nonfinite
        {1.0f, 2.0f, INFINITY, 4.0f, INFINITY, 0.25f, 0, 0},
        {1.0f, 2.0f, INFINITY, 0.5f, INFINITY, 1.0f, 0, 0},
        {0.0f, 2.0f, INFINITY, 4.0f, INFINITY, 1.0f, 0, 0},
        {1.0f, 2.0f, 1.5f, 1.0f, INFINITY, 1.0f, 1, 0},
        {1.0f, 2.0f, 2.0f, 2.0f, 2.0f, 0.5f, 0, 0},
        {1.0f, 2.0f, INFINITY, 4.0f, 3.0f, 0.25f, 1, 0},
        {1.0f, NAN, INFINITY, 1.0f, INFINITY, 1.0f, 1, 1},
        {1.0f, 2.0f, INFINITY, NAN, INFINITY, 1.0f, 1, 1},
        {1.0f, INFINITY, INFINITY, 0.0f, INFINITY, 1.0f, 1, 1},
        {0.0f, 2.0f, INFINITY, 0x1.fffffep63f, INFINITY, 1.0f, 0, 0},
        {0.0f, 2.0f, INFINITY, 0x1p64f, INFINITY, 1.0f, 1, 1},
        {1.0f, 2.0f, INFINITY, 0x1p64f, INFINITY, 0x1p-64f, 0, 0},
        {0x1p65f, 2.0f, INFINITY, 0x1p66f, INFINITY, 0.5f, 1, 1},
    };
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        StepState s = {.grad_clip = rows[i].clip,
                       .loss = rows[i].loss,
                       .loss_limit = rows[i].loss_limit,
                       .grad_norm = rows[i].norm,
                       .grad_norm_limit = rows[i].norm_limit,
                       .skip = 7,
                       .nonfinite = 7};
        ops_cpu.step_decide(NULL, &s);
        EXPECT_EQ_I64(s.skip, rows[i].skip, "row %d", i);
        EXPECT_EQ_I64(s.nonfinite, rows[i].nonfinite, "row %d", i);
        EXPECT_NEAR(s.grad_scale, rows[i].scale, 0.0, "row %d", i);
    }
    StepState stopped = {.loss_limit = INFINITY, .grad_norm_limit = INFINITY, .stop_votes = 1.0f};
    ops_cpu.step_decide(NULL, &stopped);
    EXPECT_EQ_I64(stopped.skip, 1, "a rank votes to stop");
}

static AdamWTensors random_adamw(DType dtype, int64_t count) {
    AdamWTensors t = {.master = random_tensor(DT_F32, 1, count),
                      .m = random_tensor(DT_F32, 1, count),
                      .v = random_tensor(DT_F32, 1, count),
                      .grad = random_tensor(DT_F32, 1, count)};
    for (int64_t i = 0; i < count; i++) put(t.v, i, fabs(get(t.v, i)));
    t.value = dtype == DT_F32 ? t.master : new_tensor(dtype, 1, count);
    return t;
}

CASE(adamw_matches_double) {
    for (int type_at = 0; type_at < ARRAY_LEN(FLOATS); type_at++) {
        DType dtype = FLOATS[type_at];
        AdamWTensors t = random_adamw(dtype, 2500);
        double *master = to_doubles(t.master), *m = to_doubles(t.m), *v = to_doubles(t.v);
        AdamWConfig config = {0.75f, 0.875f, 1e-3f, 0.125f};
        StepState s = {
            .lr = 0.0625f, .bias_correction1 = 0.5f, .bias_correction2 = 0.25f, .grad_scale = 0.5f};
        for (int step = 0; step < 3; step++) {
            ops_cpu.adamw(NULL, t, config, &s);
            for (int64_t i = 0; i < 2500; i++) {
                double g = get(t.grad, i) * 0.5;
                m[i] = 0.75 * m[i] + 0.25 * g;
                v[i] = 0.875 * v[i] + 0.125 * g * g;
                master[i] -=
                    0.0625 * (m[i] / 0.5 / (sqrt(v[i] / 0.25) + 1e-3f) + 0.125 * master[i]);
            }
            expect_close(t.m, m, 1e-6, "m");
            expect_close(t.v, v, 1e-6, "v");
            expect_close(t.master, master, 2e-6, "master");
            expect_close(t.value, to_doubles(t.master), 0.0, "value");
        }
        s.skip = 1;
        ops_cpu.adamw(NULL, t, config, &s);
        expect_close(t.master, master, 2e-6, "master after a skipped step");
        expect_close(t.m, m, 1e-6, "m after a skipped step");
        case_free();
    }
}

// --- products ---

typedef struct {
    int64_t m, n, k;
    DType in, out;
    int a_k_contiguous, b_k_contiguous, accumulate, bias;
} GemmCase;

static OpLimits gemm_limits(GemmCase g) {
    OpLimits l = limits_of(1, max_i64(g.n, 1));
    l.tokens = g.k;
    l.max_weight = g.n * g.k;
    return l;
}

static void expect_product(GemmCase g, float *a_amax, float *b_amax) {
    Tensor a = g.a_k_contiguous ? random_tensor(g.in, g.m, g.k) : random_tensor(g.in, g.k, g.m);
    Tensor b = g.b_k_contiguous ? random_tensor(g.in, g.n, g.k) : random_tensor(g.in, g.k, g.n);
    Tensor d = random_tensor(g.out, g.m, g.n), bias = random_tensor(g.out, 1, g.n);
    QOperand a_operand = operand_from_tensor(a, FORMAT_BF16, g.a_k_contiguous);
    QOperand b_operand = operand_from_tensor(b, FORMAT_BF16, g.b_k_contiguous);
    a_operand.amax = a_amax;
    b_operand.amax = b_amax;
    // Without a maximum of its own an operand may still have a scale.
    a_operand.dequant_div = a_amax ? 6.0f * 448.0f : 0.75f;
    b_operand.dequant_div = b_amax ? 6.0f * 448.0f : 1.0f;
    double alpha = (a_amax ? *a_amax / 2688.0 : 1.0 / 0.75) * (b_amax ? *b_amax / 2688.0 : 1.0);
    double *want = case_doubles(g.m * g.n);
    for (int64_t i = 0; i < g.m * g.n; i++) {
        int64_t row = i / g.n, col = i % g.n;
        for (int64_t k = 0; k < g.k; k++)
            want[i] += get(a, g.a_k_contiguous ? row * g.k + k : k * g.m + row) *
                       get(b, g.b_k_contiguous ? col * g.k + k : k * g.n + col);
        want[i] = alpha * want[i] + (g.bias ? get(bias, col) : 0.0);
        if (g.accumulate) want[i] += get(d, i);
        else put(d, i, NAN);
    }
    GemmEpilogue epilogue = {g.bias ? bias : NO_TENSOR, g.accumulate};
    ops_cpu.gemm(case_device(gemm_limits(g)), d, &a_operand, &b_operand, epilogue);
    expect_close(d, want, 1e-5, "gemm");
    case_free();
}

CASE(gemm_matches_double) {
    static const int64_t sizes[][3] = {{1, 1, 1}, {3, 37, 17}, {70, 48, 33}, {130, 1100, 3}};
    for (int i = 0; i < ARRAY_LEN(sizes) * 32; i++) {
        const int64_t *size = sizes[i / 32];
        GemmCase g = {size[0],
                      size[1],
                      size[2],
                      i & 1 ? DT_F32 : DT_BF16,
                      i & 2 ? DT_F32 : DT_BF16,
                      i >> 2 & 1,
                      i >> 3 & 1,
                      (i & 2) && (i >> 4 & 1),
                      i >> 4 & 1};
        expect_product(g, NULL, NULL);
    }
}

CASE(gemm_alpha_is_read_from_the_amaxes) {
    float a_amax = 2688.0f * 3.0f, b_amax = 1344.0f;
    GemmCase g = {5, 7, 16, DT_BF16, DT_F32, 1, 1, 1, 1};
    expect_product(g, &a_amax, &b_amax);   // alpha 1.5
    expect_product(g, &a_amax, NULL);
    expect_product(g, NULL, &b_amax);
}

// --- what callers may not do ---

CASE(mismatches_abort) {
    Device *d = case_device(limits_of(4, 4));
    Tensor f32 = new_tensor(DT_F32, 4, 4), bf16 = new_tensor(DT_BF16, 4, 4);
    Tensor ids = new_tensor(DT_I32, 4, 1), vector = new_tensor(DT_F32, 1, 4);
    QOperand a = operand_from_tensor(bf16, FORMAT_BF16, 1),
             b = operand_from_tensor(f32, FORMAT_F32, 1);
    GemmEpilogue add = {NO_TENSOR, 1}, plain = {NO_TENSOR, 0};
    EXPECT_ABORTS("residual b", ops_cpu.residual_forward(d, f32, f32, bf16));
    EXPECT_ABORTS("activation x", ops_cpu.activation_forward(d, f32, f32, ACT_SWIGLU));
    EXPECT_ABORTS("logits", ops_cpu.cross_entropy(d, vector, ids, ids, 3, 0.0f));
    EXPECT_ABORTS("vocabulary of 5",
                  cross_entropy_check(tensor_view(f32.data, DT_F32, 4, 1), f32, ids, 5));
    EXPECT_ABORTS("both must be bf16", ops_cpu.gemm(d, f32, &a, &b, plain));
    EXPECT_ABORTS("accumulates into bf16", ops_cpu.gemm(d, bf16, &a, &a, add));
    EXPECT_ABORTS("column_sum db", ops_cpu.column_sum(d, f32, bf16));
    EXPECT_ABORTS("3 query heads, 2",
                  attention_check(f32, f32, f32, (AttentionDims){1, 4, 3, 2, 1}));
    EXPECT_ABORTS("sequences of 5", rope_check(new_tensor(DT_F32, 5, 6), new_tensor(DT_F32, 4, 2),
                                               (AttentionDims){1, 5, 1, 1, 2}));
    EXPECT_ABORTS("positions",
                  embedding_check(f32, tensor_view(ids.data, DT_I32, 1, 4), f32, vector));
    EXPECT_ABORTS("b must be empty",
                  rmsnorm_check(f32, (NormStats){ids, tensor_view(f32.data, DT_F32, 4, 1)}, f32,
                                vector, vector));
    AdamWTensors t = random_adamw(DT_F32, 4);
    t.value = random_tensor(DT_F32, 1, 4);
    EXPECT_ABORTS("master weights themselves", adamw_check(t));
    case_free();
}

// --- threads ---

/* Every op that splits work among threads, on equal inputs; the outputs one after the other. */
static int collect_outputs(Tensor *outputs) {
    enum { N = 130, C = 48, F = 100, VOCAB = 37 };
    AttentionDims a = {2, 65, 6, 2, 6};   // (6 + 4) * 6 = 60 columns
    OpLimits limits = {
        .tokens = N,
        .max_cols = F,
        .max_weight = F * C,
        .logits_rows = N,
        .padded_vocab = C,
        .num_elements = 5000,
        .attention = a,
    };
    Device *d = case_device(limits);
    Tensor x = random_tensor(DT_BF16, N, C), w = random_tensor(DT_BF16, 1, C);
    Tensor out = new_tensor(DT_BF16, N, C), dx = random_tensor(DT_BF16, N, C);
    Tensor dw = random_tensor(DT_F32, 1, C), db = random_tensor(DT_F32, 1, C);
    NormStats stats = {new_tensor(DT_F32, N, 1), new_tensor(DT_F32, N, 1)};
    ops_cpu.norm[NORM_LAYERNORM].forward(d, out, stats, x, w, w, 1e-5f);
    ops_cpu.norm[NORM_LAYERNORM].backward(d, dx, dw, db, out, x, w, stats);
    ops_cpu.norm[NORM_RMSNORM].backward(d, dx, dw, NO_TENSOR, out, x, w, stats);
    ops_cpu.column_sum(d, db, x);
    Tensor qkv = random_tensor(DT_BF16, N, 60), att = new_tensor(DT_BF16, N, 36);
    Tensor lse = new_tensor(DT_F32, 12, 65), dqkv = new_tensor(DT_BF16, N, 60);
    ops_cpu.attention_forward(d, att, lse, qkv, a);
    ops_cpu.attention_backward(d, dqkv, att, att, lse, qkv, a);
    Tensor weight = random_tensor(DT_BF16, F, C), y = new_tensor(DT_BF16, N, F);
    Tensor dweight = random_tensor(DT_F32, F, C);
    QOperand x_row = operand_from_tensor(x, FORMAT_BF16, 1),
             x_token = operand_from_tensor(x, FORMAT_BF16, 0);
    QOperand w_row = operand_from_tensor(weight, FORMAT_BF16, 1);
    ops_cpu.gemm(d, y, &x_row, &w_row, (GemmEpilogue){NO_TENSOR, 0});
    QOperand y_token = operand_from_tensor(y, FORMAT_BF16, 0);
    ops_cpu.gemm(d, dweight, &y_token, &x_token, (GemmEpilogue){NO_TENSOR, 1});
    Tensor targets = random_ids(N, 1, VOCAB), losses = new_tensor(DT_F32, N, 1);
    Tensor ids = tensor_view(targets.data, DT_I32, 2, 65), dtable = random_tensor(DT_F32, VOCAB, C);
    Tensor dpositions = random_tensor(DT_F32, 65, C), scalars = new_tensor(DT_F32, 1, 2);
    ops_cpu.embedding_backward(d, dtable, dpositions, x, ids);
    ops_cpu.cross_entropy(d, losses, x, targets, VOCAB, 0.25f);
    ops_cpu.sum(d, (float *)scalars.data, dweight, 1.0f);
    ops_cpu.global_norm(d, (float *)scalars.data + 1, tensor_view(dweight.data, DT_F32, 1, F * C));
    const Tensor all[] = {out, dx,      dw,     db,         att,    lse, dqkv,
                          y,   dweight, dtable, dpositions, losses, x,   scalars};
    memcpy(outputs, all, sizeof(all));
    return ARRAY_LEN(all);
}

CASE(equal_bits_for_any_number_of_threads) {
    Tensor one[32], more[32];
    int threads_before = omp_get_max_threads();
    omp_set_num_threads(1);
    int count = collect_outputs(one);
    for (int threads = 2; threads <= 5; threads++) {
        omp_set_num_threads(threads);
        case_memory.draws = 0;
        collect_outputs(more);
        for (int i = 0; i < count; i++)
            EXPECT_BITS(more[i].data, one[i].data, tensor_bytes(one[i]), "output %d, %d threads", i,
                        threads);
    }
    omp_set_num_threads(threads_before);
    case_free();
}

TEST_MAIN_END
