// test_ops -- every CUDA op against its CPU reference, except the quantisers, which
// test_quantize_cuda.cu takes. Contents are random; sizes are chosen to reach every branch of a
// launch, with the reason beside them. Tolerances: f32 outputs NMSE 1e-10, bf16 outputs 1 ulp
// (attention 2) plus what the f32 rounding of a sum's terms leaves where the sum cancels.
#include "../llmc/ops/attention.cuh"
#include "../llmc/ops/scratch_cuda.cuh"
#include "ops_compare.h"

// --- embedding ---

typedef struct {
    int B, T, C, vocab, table_rows, has_positions;
} EmbeddingCase;

static const EmbeddingCase embedding_cases[] = {
    {1, 1, 8, 3, 8, 1},            // a single token
    {2, 37, 24, 50, 64, 1},        // the last window is not full
    {4, 256, 40, 2, 16, 1},        // tokens that cross many windows
    {1, 130, 16, 1, 8, 0},         // one token everywhere, no positions
    {3, 100, 30, 1000, 1024, 1},   // columns no multiple of a vector; most tokens occur once
    {2, 64, 2056, 7, 8, 1},        // columns beyond one block's, the last block not full
};

static void embedding_forward(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    const EmbeddingCase *c = (const EmbeddingCase *)how;
    ops->embedding_forward(d, t[0], t[1], t[2], c->has_positions ? t[3] : no_tensor);
}

static void embedding_backward(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    const EmbeddingCase *c = (const EmbeddingCase *)how;
    ops->embedding_backward(d, t[0], c->has_positions ? t[1] : no_tensor, t[2], t[3]);
}

CASE(embedding) {
    FOR_SHAPES_AND_SEEDS(embedding_cases) {
        const EmbeddingCase *c = &embedding_cases[s];
        int64_t N = (int64_t)c->B * c->T;
        Shape shape = {N, c->C};
        OpTest t = op_test(limits_of(N, c->C, c->table_rows), seed);
        add_out(&t, "out", DT_BF16, N, c->C, same_bits);   // one addition, one rounding
        add_ids(&t, "tokens", c->B, c->T, c->vocab);
        add_in(&t, "table", DT_BF16, c->table_rows, c->C);
        add_in(&t, "positions", DT_BF16, c->T + 3, c->C);
        compare_op(&t, embedding_forward, c, describe(shape, seed));
        op_test_end(&t);
        t = op_test(limits_of(N, c->C, c->table_rows), seed);
        add_random(&t, "dtable", ARG_INOUT, shaped(DT_F32, c->table_rows, c->C), 1, f32_close);
        add_random(&t, "dpositions", ARG_INOUT, shaped(DT_F32, c->T + 3, c->C), 1, f32_close);
        add_in(&t, "dout", DT_BF16, N, c->C);
        add_ids(&t, "tokens", c->B, c->T, c->vocab);
        compare_op(&t, embedding_backward, c, describe(shape, seed));
        op_test_end(&t);
    }
}

// --- norms ---

static const Shape norm_shapes[] = {
    {1, 8},        // one vector
    {3, 30},       // columns no multiple of a vector: value by value; rows no multiple of a block's
    {37, 768},     // three vectors a thread; two partial sums, the second of five rows
    {1000, 384},   // lanes that hold fewer vectors than others; many partial sums
    {70, 1032},    // two warps a row, the second nearly empty; four vectors a thread
    {5, 4096},     // four warps a row
    {33, 8192},    // the widest row, a block's
    {300, 4090},   // wide rows value by value
    {40000, 8},    // a thread has more rows than are under way to it, whichever GPU
};

static const float norm_eps = 1e-5f;

static void norm_forward(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    NormKind kind = *(const NormKind *)how;
    int centred = kind == NORM_LAYERNORM;
    NormStats stats = {centred ? t[4] : no_tensor, t[3]};
    ops->norm[kind].forward(d, t[0], stats, t[1], t[2], centred ? t[5] : no_tensor, norm_eps);
}

/* The statistics are computed first: they are inputs of the backward pass, and outputs here. */
static void norm_backward(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    NormKind kind = *(const NormKind *)how;
    int centred = kind == NORM_LAYERNORM;
    NormStats stats = {centred ? t[4] : no_tensor, t[3]};
    ops->norm[kind].forward(d, t[0], stats, t[1], t[2], centred ? t[5] : no_tensor, norm_eps);
    ops->norm[kind].backward(d, t[6], t[7], centred ? t[8] : no_tensor, t[9], t[1], t[2], stats);
}

enum { NORM_SUM = 6, NORM_BRANCH, NORM_PARTS };   // arguments after those of a norm

/* The norm of a residual, which on each device has the bits of the two ops one after the other. */
static void norm_residual(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    NormKind kind = *(const NormKind *)how;
    int centred = kind == NORM_LAYERNORM;
    NormStats stats = {centred ? t[4] : no_tensor, t[3]};
    Residual r = {t[NORM_SUM], t[1], t[NORM_BRANCH]};
    ops->norm[kind].residual_forward(d, t[0], stats, r, t[2], centred ? t[5] : no_tensor, norm_eps);
    Tensor parts[4] = {t[NORM_PARTS], t[NORM_PARTS + 1], t[NORM_PARTS + 2], t[NORM_PARTS + 3]};
    stats = {centred ? parts[3] : no_tensor, parts[2]};
    ops->residual_forward(d, parts[0], t[1], t[NORM_BRANCH]);
    ops->norm[kind].forward(d, parts[1], stats, parts[0], t[2], centred ? t[5] : no_tensor,
                            norm_eps);
    const Tensor whole[4] = {r.sum, t[0], t[3], t[4]};
    for (int i = 0; i < 3 + centred; i++) {
        size_t bytes = tensor_bytes(whole[i]);
        void *got = xmalloc(bytes), *want = xmalloc(bytes);
        d->download(d, got, whole[i].data, bytes);
        d->download(d, want, parts[i].data, bytes);
        EXPECT_BITS(got, want, bytes, "part %d on %s, %lld columns", i, ops->name,
                    (long long)t[1].cols);
        free(got), free(want);
    }
}

static void add_norm_args(OpTest *t, NormKind kind, Shape s) {
    int64_t N = s.rows, C = s.cols;
    // h * w and b may cancel: f32 keeps terms of up to about 16 to 2^-22 of that.
    add_out(t, "out", DT_BF16, N, C, within_ulps(1, 4e-6));
    add_in(t, "x", DT_BF16, N, C);
    add_in(t, "w", DT_BF16, 1, C);
    add_out(t, "rstd", DT_F32, N, 1, f32_close);
    if (kind == NORM_LAYERNORM) {
        // A mean is a cancelling sum of C values of about 1, divided by C.
        add_out(t, "mean", DT_F32, N, 1, within_ulps(0, 1e-6));
        add_in(t, "b", DT_BF16, 1, C);
    } else {
        add_in(t, "unused mean", DT_F32, N, 1);
        add_in(t, "unused b", DT_BF16, 1, C);
    }
}

static void compare_norm_residual(NormKind kind) {
    FOR_SHAPES_AND_SEEDS(norm_shapes) {
        Shape shape = norm_shapes[s];
        int64_t N = shape.rows, C = shape.cols;
        Tolerance mean_close = kind == NORM_LAYERNORM ? within_ulps(0, 1e-6) : same_bits;
        OpTest t = op_test(limits_of(N, C, 16), seed);
        add_norm_args(&t, kind, shape);
        add_out(&t, "sum", DT_BF16, N, C, same_bits);
        add_in(&t, "branch", DT_BF16, N, C);
        add_out(&t, "sum of the parts", DT_BF16, N, C, same_bits);
        add_out(&t, "out of the parts", DT_BF16, N, C, within_ulps(1, 4e-6));
        add_out(&t, "rstd of the parts", DT_F32, N, 1, f32_close);
        add_out(&t, "mean of the parts", DT_F32, N, 1, mean_close);
        compare_op(&t, norm_residual, &kind, describe(shape, seed));
        op_test_end(&t);
    }
}

static void compare_norm(NormKind kind) {
    FOR_SHAPES_AND_SEEDS(norm_shapes) {
        Shape shape = norm_shapes[s];
        int64_t N = shape.rows, C = shape.cols;
        OpTest t = op_test(limits_of(N, C, 16), seed);
        add_norm_args(&t, kind, shape);
        compare_op(&t, norm_forward, &kind, describe(shape, seed));
        // Terms of dx are of order 1 and up to about 16; f32 keeps them to 2^-23 of that, and the
        // two means enter with the error of their sums.
        add_random(&t, "dx", ARG_INOUT, shaped(DT_BF16, N, C), 1, within_ulps(1, 8e-6));
        add_random(&t, "dw", ARG_INOUT, shaped(DT_F32, 1, C), 1, f32_close);
        add_random(&t, "db", kind == NORM_LAYERNORM ? ARG_INOUT : ARG_IN, shaped(DT_F32, 1, C), 1,
                   f32_close);
        add_in(&t, "dout", DT_BF16, N, C);
        compare_op(&t, norm_backward, &kind, describe(shape, seed));
        op_test_end(&t);
    }
}

CASE(layernorm) { compare_norm(NORM_LAYERNORM); }
CASE(rmsnorm) { compare_norm(NORM_RMSNORM); }
CASE(layernorm_of_a_residual) { compare_norm_residual(NORM_LAYERNORM); }
CASE(rmsnorm_of_a_residual) { compare_norm_residual(NORM_RMSNORM); }

// --- rope ---

static const AttentionDims rope_dims[] = {
    {1, 1, 1, 1, 16},      // one vector of pairs a head
    {2, 37, 4, 2, 64},     // grouped heads, so fewer key heads than query heads
    {3, 20, 3, 1, 24},     // pairs no multiple of a vector
    {1, 100, 2, 2, 128},   // the widest head
};

static void rope_forward(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    ops->rope_forward(d, t[0], t[1], *(const AttentionDims *)how);
}

static void rope_backward(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    ops->rope_backward(d, t[0], t[1], *(const AttentionDims *)how);
}

CASE(rope) {
    FOR_SHAPES_AND_SEEDS(rope_dims) {
        AttentionDims dims = rope_dims[s];
        Shape shape = {(int64_t)dims.B * dims.T, attention_qkv_cols(dims)};
        OpTest t = op_test(limits_of(shape.rows, shape.cols, 16), seed);
        add_random(&t, "qkv", ARG_INOUT, shaped(DT_BF16, shape.rows, shape.cols), 1, same_bits);
        int table = add_in(&t, "table", DT_F32, dims.T + 5, dims.head_dim);
        rope_fill_table((float *)t.args[table].initial, dims.T + 5, dims.head_dim, 10000.0);
        compare_op(&t, rope_forward, &dims, describe(shape, seed));
        compare_op(&t, rope_backward, &dims, describe(shape, seed));
        op_test_end(&t);
    }
}

// --- attention ---

static const AttentionDims attention_cases[] = {
    {2, 1, 4, 2, 64},       // one token
    {2, 37, 4, 2, 16},      // no multiple of a tile, grouped heads
    {1, 37, 6, 6, 32},      // no grouping
    {2, 128, 4, 1, 64},     // exact tiles, one key/value head
    {1, 128, 2, 2, 128},    // the widest head
    {1, 1000, 2, 1, 64},    // many tiles, the last not full
    {1, 1000, 1, 1, 128},   // likewise with the widest head
};

static void attention_forward(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    ops->attention_forward(d, t[0], t[1], t[2], *(const AttentionDims *)how);
}

/* The gradient starts from each device's own out and lse. */
static void attention_backward(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    AttentionDims dims = *(const AttentionDims *)how;
    ops->attention_forward(d, t[0], t[1], t[2], dims);
    ops->attention_backward(d, t[3], t[4], t[0], t[1], t[2], dims);
}

// Rounding the probabilities p to bf16 (unit 2^-9) leaves at most 2^-9 max |v| in an element of
// out; v is about normal, and the first rows of out are rows of v, so that the largest of out is
// near it. In the backward pass p, ds and out are rounded, and the largest gradient bounds the
// sums. NMSE: each rounding, and the last one on either side, adds about (2^-9)^2 / 3 = 1.3e-6.
static const Tolerance attention_close = {TOLERATE_ULPS, 1e-5, 2, 0, 1.0 / 256, NULL};

static void compare_attention(const char *implementation) {
    attention_cuda_select(implementation);
    FOR_SHAPES_AND_SEEDS(attention_cases) {
        AttentionDims dims = attention_cases[s];
        int64_t N = (int64_t)dims.B * dims.T, cols = attention_qkv_cols(dims);
        int64_t out_cols = (int64_t)dims.num_heads * dims.head_dim;
        Shape shape = {dims.T, dims.head_dim};
        OpLimits limits = limits_of(N, cols, 16);
        limits.attention = dims;
        OpTest t = op_test(limits, seed);   // asks for the scratch, which decides who computes
        add_out(&t, "out", DT_BF16, N, out_cols, attention_close);
        add_out(&t, "lse", DT_F32, (int64_t)dims.B * dims.num_heads, dims.T, f32_close);
        add_in(&t, "qkv", DT_BF16, N, cols);
        compare_op(&t, attention_forward, &dims, describe(shape, seed));
        add_out(&t, "dqkv", DT_BF16, N, cols, attention_close);
        add_in(&t, "dout", DT_BF16, N, out_cols);
        compare_op(&t, attention_backward, &dims, describe(shape, seed));
        op_test_end(&t);
    }
    attention_cuda_select("auto");
}

CASE(attention_flash) { compare_attention("flash"); }
CASE(attention_auto) { compare_attention("auto"); }   // cuDNN, where it is compiled in

// --- activation and residual ---

static const Shape activation_shapes[] = {
    {1, 8},        // one vector
    {5, 13},       // nothing is a multiple of a vector; gated: the second half starts in the middle
    {3, 30},       // gated: rows of 60 values, halves of no whole number of vectors
    {64, 384},     // whole vectors
    {700, 1032},   // many blocks, the last not full
};

static void act_forward(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    ops->activation_forward(d, t[0], t[1], *(const ActKind *)how);
}

static void act_backward(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    ops->activation_backward(d, t[0], t[1], t[2], *(const ActKind *)how);
}

static void act_backward_in_place(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    ops->activation_backward(d, t[0], t[1], t[0], *(const ActKind *)how);
}

static void compare_activation(ActKind kind) {
    FOR_SHAPES_AND_SEEDS(activation_shapes) {
        Shape shape = activation_shapes[s];
        int64_t N = shape.rows, F = shape.cols, inputs = F * act_info[kind].inputs_per_output;
        Tensor x = shaped(DT_BF16, N, inputs);
        // A factor of the gradient may cancel, such as 1 - y: f32 keeps its terms to 2^-23.
        Tolerance close = within_ulps(1, 2e-6);
        OpTest t = op_test(limits_of(N, inputs, 16), seed);
        add_out(&t, "out", DT_BF16, N, F, close);
        add_random(&t, "x", ARG_IN, x, 3, same_bits);   // reaches where the sigmoid is flat
        compare_op(&t, act_forward, &kind, describe(shape, seed));
        op_test_end(&t);
        t = op_test(limits_of(N, inputs, 16), seed);
        add_out(&t, "dx", DT_BF16, N, inputs, close);
        add_in(&t, "dout", DT_BF16, N, F);
        add_random(&t, "x", ARG_IN, x, 3, same_bits);
        compare_op(&t, act_backward, &kind, describe(shape, seed));
        op_test_end(&t);
        t = op_test(limits_of(N, inputs, 16), seed);
        add_random(&t, "x, then dx", ARG_INOUT, x, 3, close);
        add_in(&t, "dout", DT_BF16, N, F);
        compare_op(&t, act_backward_in_place, &kind, describe(shape, seed));
        op_test_end(&t);
    }
}

CASE(gelu) { compare_activation(ACT_GELU); }
CASE(swiglu) { compare_activation(ACT_SWIGLU); }
CASE(relu2) { compare_activation(ACT_RELU2); }

static void residual(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    (void)how;
    ops->residual_forward(d, t[0], t[1], t[2]);
    ops->residual_forward(d, t[1], t[1], t[2]);   // in place
}

CASE(residual) {
    FOR_SHAPES_AND_SEEDS(activation_shapes) {
        Shape shape = activation_shapes[s];
        OpTest t = op_test(limits_of(shape.rows, shape.cols, 16), seed);
        add_out(&t, "out", DT_BF16, shape.rows, shape.cols, same_bits);
        add_random(&t, "a", ARG_INOUT, shaped(DT_BF16, shape.rows, shape.cols), 1, same_bits);
        add_in(&t, "b", DT_BF16, shape.rows, shape.cols);
        compare_op(&t, residual, NULL, describe(shape, seed));
        op_test_end(&t);
    }
}

// --- cross_entropy ---

typedef struct {
    int64_t rows, padded;
    int vocab;
    float dloss;
} ClassifierCase;

static const ClassifierCase classifier_cases[] = {
    {5, 128, 100, 0.125f},       // fewer columns than threads, padding inside a vector
    {4, 30, 27, 1.0f},           // rows no multiple of a vector
    {3, 50304, 50257, 0.01f},    // GPT-2's
    {7, 4096, 4096, 1.0f},       // exactly one vector a thread, no padding
    {2, 32128, 32000, 0.0f},     // evaluation: logits stay
    {1300, 1032, 1025, 1.0f},    // rows in turns, whichever GPU
    {3, 131072, 131000, 1.0f},   // more than shared memory holds
};

static void cross_entropy(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    const ClassifierCase *c = (const ClassifierCase *)how;
    ops->cross_entropy(d, t[0], t[1], t[2], c->vocab, c->dloss);
}

CASE(cross_entropy) {
    FOR_SHAPES_AND_SEEDS(classifier_cases) {
        const ClassifierCase *c = &classifier_cases[s];
        Shape shape = {c->rows, c->padded};
        OpTest t = op_test(limits_of(c->rows, 64, c->padded), seed);
        add_out(&t, "losses", DT_F32, c->rows, 1, f32_close);
        // At the target, softmax - 1: what f32 keeps of terms up to dloss.
        Tolerance close = within_ulps(1, 1e-6 * c->dloss);
        add_random(&t, "logits", ARG_INOUT, shaped(DT_BF16, c->rows, c->padded), 3,
                   c->dloss == 0.0f ? same_bits : close);
        add_ids(&t, "targets", c->rows, 1, c->vocab);
        compare_op(&t, cross_entropy, c, describe(shape, seed));
        op_test_end(&t);
    }
}

// --- gemm ---

typedef struct {
    int64_t M, N, K;
} Product;

static const Product products[] = {
    {40, 56, 72},       // rows start at 16 bytes, nothing is a multiple of a tile
    {64, 64, 64},       // one tile
    {200, 136, 40},     // multiples of a vector, of no tile
    {1, 96, 136},       // one row
    {96, 64, 8192},     // a weight gradient: few tiles and a long contraction tempt to split it
    {192, 768, 1024},   // many tiles
};

typedef struct {
    DType values, d_type;
    // scaled: 1: both operands bring a tensor scale; 2: a constant one without amax
    int bias, accumulate, scaled;
} ProductKind;

static const ProductKind product_kinds[] = {
    {DT_BF16, DT_BF16, 0, 0, 0}, {DT_BF16, DT_BF16, 1, 0, 0}, {DT_BF16, DT_F32, 0, 0, 0},
    {DT_BF16, DT_F32, 0, 1, 0},  {DT_BF16, DT_BF16, 0, 0, 1}, {DT_BF16, DT_BF16, 1, 0, 1},
    {DT_BF16, DT_F32, 0, 0, 1},  {DT_BF16, DT_F32, 0, 1, 1},  {DT_F32, DT_BF16, 0, 0, 1},
    {DT_F32, DT_BF16, 1, 0, 1},  {DT_F32, DT_F32, 0, 0, 0},   {DT_F32, DT_F32, 0, 1, 1},
    {DT_BF16, DT_BF16, 0, 0, 2},
};

typedef struct {
    Product size;
    ProductKind kind;
    int a_k_contiguous, b_k_contiguous;
} GemmCase;

/* Arguments of a product, as their places in an OpTest. */
enum { GEMM_D, GEMM_A, GEMM_B, GEMM_BIAS, GEMM_AMAX_A, GEMM_AMAX_B };

static QOperand gemm_operand(Tensor values, int k_contiguous, Tensor amax, int scaled) {
    QOperand q = operand_from_tensor(values, FORMAT_BF16, k_contiguous);
    if (!scaled) return q;
    q.format = FORMAT_NVFP4;
    q.amax = scaled == 1 ? (float *)amax.data : NULL;
    q.dequant_div = scaled == 1 ? 6.0f * 448.0f : 0.75f;
    return q;
}

static void gemm(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    const GemmCase *c = (const GemmCase *)how;
    QOperand a = gemm_operand(t[GEMM_A], c->a_k_contiguous, t[GEMM_AMAX_A], c->kind.scaled);
    QOperand b = gemm_operand(t[GEMM_B], c->b_k_contiguous, t[GEMM_AMAX_B], c->kind.scaled);
    GemmEpilogue epilogue = {c->kind.bias ? t[GEMM_BIAS] : no_tensor, c->kind.accumulate};
    ops->gemm(d, t[GEMM_D], &a, &b, epilogue);
}

/* What f32 accumulation may leave in each element of d: (K / 16 + 1) 2^-23 of the sum of the
   magnitudes of its terms. A bf16 tensor core instruction adds 16 products to the accumulator and
   cuts the sum off to f32 (dev/NUMERICS.md 8.3), an error below 2^-23 of what is summed so far. Of
   f32 values, whose products are added one at a time, K 2^-24. The sum is a product of magnitudes,
   on the CPU. */
static float *gemm_bound(OpTest *t, const GemmCase *c) {
    Tensor magnitudes[GEMM_AMAX_B + 1];
    for (int i = 0; i <= GEMM_AMAX_B; i++) {
        Arg *arg = &t->args[i];
        magnitudes[i] = arg->cpu;
        for (int64_t j = 0; j < tensor_count(arg->cpu); j++) {
            float x = value_at(arg->initial, arg->cpu.dtype, j);
            set_value(arg->cpu.data, arg->cpu.dtype, j, fabsf(x));
        }
    }
    Product p = c->size;
    float *bound = (float *)xmalloc((size_t)(p.M * p.N) * sizeof(float));
    if (c->kind.accumulate)
        memcpy(bound, magnitudes[GEMM_D].data, (size_t)(p.M * p.N) * sizeof(float));
    magnitudes[GEMM_D] = tensor_view(bound, DT_F32, p.M, p.N);
    GemmCase sums = *c;
    sums.kind.bias = 0;
    gemm(&ops_cpu, t->cpu, magnitudes, &sums);
    double steps = c->kind.values == DT_F32 ? 0.5 * (double)(p.K + 2) : (double)(p.K / 16 + 1);
    for (int64_t i = 0; i < p.M * p.N; i++) {
        if (c->kind.bias) bound[i] += value_at(magnitudes[GEMM_BIAS].data, DT_BF16, i % p.N);
        bound[i] *= (float)(steps * ldexp(1.0, -23));
    }
    return bound;
}

static void compare_gemm(const GemmCase *c, uint64_t seed) {
    Product p = c->size;
    OpLimits limits = limits_of(max_i64(p.M, p.K), max_i64(p.N, p.K), 16);
    limits.max_weight = p.N * p.K;
    limits.f32_values = c->kind.values == DT_F32;
    OpTest t = op_test(limits, seed);
    Tolerance close = within_ulps(c->kind.d_type == DT_BF16 ? 1 : 0, 0);
    if (c->kind.d_type == DT_F32) close.nmse = f32_close.nmse;
    Tensor d = shaped(c->kind.d_type, p.M, p.N);
    if (c->kind.accumulate) add_random(&t, "d", ARG_INOUT, d, 1, close);
    else add_arg(&t, "d", ARG_OUT, d, close);
    add_in(&t, "a", c->kind.values, c->a_k_contiguous ? p.M : p.K, c->a_k_contiguous ? p.K : p.M);
    add_in(&t, "b", c->kind.values, c->b_k_contiguous ? p.N : p.K, c->b_k_contiguous ? p.K : p.N);
    add_in(&t, "bias", DT_BF16, 1, p.N);
    int at_a = add_in(&t, "amax_a", DT_F32, 1, 1), at_b = add_in(&t, "amax_b", DT_F32, 1, 1);
    *(float *)t.args[at_a].initial = 37.5f;
    *(float *)t.args[at_b].initial = 611.0f;
    float *bound = gemm_bound(&t, c);
    t.args[GEMM_D].tolerance.bound = bound;
    char about[128];
    snprintf(about, sizeof(about), "%s (%lld,%lld,%lld), a k %d, b k %d, bias %d, scaled %d",
             dtype_info[c->kind.values].name, (long long)p.M, (long long)p.N, (long long)p.K,
             c->a_k_contiguous, c->b_k_contiguous, c->kind.bias, c->kind.scaled);
    compare_op(&t, gemm, c, about);
    free(bound);
    op_test_end(&t);
}

CASE(gemm) {
    uint64_t seed = 0;   // of each product its own
    for (int s = 0; s < ARRAY_LEN(products); s++) {
        for (int k = 0; k < ARRAY_LEN(product_kinds); k++) {
            for (int layout = 0; layout < 4; layout++) {
                GemmCase c = {products[s], product_kinds[k], layout & 1, layout >> 1};
                // Stored as (K, M), a single row of the product is a column: not for a GPU.
                if (!c.a_k_contiguous && c.size.M % 8 != 0) continue;
                compare_gemm(&c, ++seed);
            }
        }
    }
}

/* More f32 sums than scratch holds: rows of d one part after the other. */
CASE(gemm_of_f32_values_in_parts) {
    ProductKind kind = {DT_F32, DT_BF16, 1, 0, 1};
    GemmCase c = {{22000, 768, 40}, kind, 1, 1};
    REQUIRE(gemm_scratch_cuda(2 * c.size.M, c.size.N) == gemm_scratch_cuda(c.size.M, c.size.N),
            "one part holds it all");
    compare_gemm(&c, 1);
}

// --- reduce ---

static const Shape column_shapes[] = {
    {1, 8},        // one row
    {100, 30},     // columns no multiple of a vector
    {1000, 768},   // exact spans of columns
    {5000, 264},   // a third span that is nearly empty, splits with an uneven number of rows
    {70, 2052},    // whole vectors in no row but the first
};

static void column_sum(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    (void)how;
    ops->column_sum(d, t[0], t[1]);
}

static void compare_column_sum(DType type) {
    FOR_SHAPES_AND_SEEDS(column_shapes) {
        Shape shape = column_shapes[s];
        OpTest t = op_test(limits_of(shape.rows, shape.cols, 16), seed);
        add_random(&t, "db", ARG_INOUT, shaped(DT_F32, 1, shape.cols), 1, f32_close);
        add_in(&t, "dout", type, shape.rows, shape.cols);
        compare_op(&t, column_sum, NULL, describe(shape, seed));
        op_test_end(&t);
    }
}

CASE(column_sum_bf16) { compare_column_sum(DT_BF16); }
CASE(column_sum_f32) { compare_column_sum(DT_F32); }

static const Shape sum_shapes[] = {
    {1, 1},          // one value
    {1, 1001},       // one block, the last vector not full
    {1, 100003},     // several blocks
    {1, 10000000},   // as many blocks as there may be
};

static void sum(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    (void)how;
    ops->sum(d, (float *)t[0].data, t[1], 0.37f);
}

static void global_norm(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    (void)how;
    ops->global_norm(d, (float *)t[0].data, t[1]);
}

static void distance(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    (void)how;
    ops->distance(d, (float *)t[0].data, t[1], t[2]);
}

CASE(distance) {
    FOR_SHAPES_AND_SEEDS(sum_shapes) {
        Shape shape = sum_shapes[s];
        OpTest t = op_test(limits_of(shape.rows, shape.cols, 16), seed);
        add_out(&t, "distance", DT_F32, 1, 1, f32_close);
        add_in(&t, "a", DT_F32, shape.rows, shape.cols);
        add_in(&t, "b", DT_F32, shape.rows, shape.cols);
        compare_op(&t, distance, NULL, describe(shape, seed));
        op_test_end(&t);
    }
}

CASE(sum_and_global_norm) {
    FOR_SHAPES_AND_SEEDS(sum_shapes) {
        Shape shape = sum_shapes[s];
        OpTest t = op_test(limits_of(shape.rows, shape.cols, 16), seed);
        add_random(&t, "sum", ARG_INOUT, shaped(DT_F32, 1, 1), 1, f32_close);
        int x = add_in(&t, "losses", DT_F32, shape.rows, shape.cols);
        float *losses = (float *)t.args[x].initial;
        for (int64_t i = 0; i < shape.cols; i++) losses[i] = fabsf(losses[i]);   // as losses are
        compare_op(&t, sum, NULL, describe(shape, seed));
        op_test_end(&t);
        t = op_test(limits_of(shape.rows, shape.cols, 16), seed);
        add_out(&t, "norm", DT_F32, 1, 1, f32_close);
        add_in(&t, "x", DT_F32, shape.rows, shape.cols);
        compare_op(&t, global_norm, NULL, describe(shape, seed));
        op_test_end(&t);
    }
}

// --- the optimizer step ---

static StepState step_state(float loss, float grad_norm, float grad_clip) {
    StepState state;
    memset(&state, 0, sizeof(state));
    state.lr = 6e-4f;
    state.bias_correction1 = 0.19f;
    state.bias_correction2 = 0.0975f;
    state.grad_clip = grad_clip;
    state.loss_limit = 10.0f;
    state.grad_norm_limit = 100.0f;
    state.loss = loss;
    state.grad_norm = grad_norm;
    state.grad_scale = 0.7f;
    return state;
}

static void step_decide(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    (void)how;
    ops->step_decide(d, (StepState *)t[0].data);
}

CASE(step_decide) {
    const struct {
        const char *about;
        float loss, grad_norm, grad_clip;
    } cases[] = {
        {"clipped", 3.0f, 2.0f, 1.0f},          {"below the clip", 3.0f, 0.5f, 1.0f},
        {"no clipping", 3.0f, 50.0f, 0.0f},     {"no gradient", 3.0f, 0.0f, 1.0f},
        {"loss too large", 11.0f, 1.0f, 1.0f},  {"norm too large", 3.0f, 101.0f, 1.0f},
        {"loss NaN", NAN, 1.0f, 1.0f},          {"norm infinite", 3.0f, INFINITY, 1.0f},
        {"square infinite", 3.0f, 2e19f, 0.0f},
    };
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        StepState state = step_state(cases[i].loss, cases[i].grad_norm, cases[i].grad_clip);
        OpTest t = op_test(limits_of(16, 16, 16), 1);
        add_bytes(&t, "state", ARG_INOUT, &state, sizeof(state));
        compare_op(&t, step_decide, NULL, cases[i].about);
        op_test_end(&t);
    }
}

static const Shape adamw_shapes[] = {
    {1, 1},        // less than a vector
    {1, 4096},     // exact blocks
    {1, 100003},   // the last vector and the last block not full
};

static void adamw(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    (void)how;
    AdamWTensors tensors = {t[0], t[1], t[2], t[3], t[4]};
    AdamWConfig config = {0.9f, 0.95f, 1e-8f, 0.1f};
    ops->adamw(d, tensors, config, (const StepState *)t[5].data);
}

CASE(adamw) {
    FOR_SHAPES_AND_SEEDS(adamw_shapes) {
        for (int skip = 0; skip < 2; skip++) {
            Shape shape = adamw_shapes[s];
            StepState state = step_state(3.0f, 1.0f, 1.0f);
            state.skip = skip;
            Tensor f32 = shaped(DT_F32, 1, shape.cols);
            OpTest t = op_test(limits_of(1, shape.cols, 16), seed);
            add_random(&t, "value", ARG_INOUT, shaped(DT_BF16, 1, shape.cols), 1, same_bits);
            add_random(&t, "master", ARG_INOUT, f32, 1, same_bits);
            add_random(&t, "m", ARG_INOUT, f32, 0.01f, same_bits);
            int v = add_random(&t, "v", ARG_INOUT, f32, 1e-4f, same_bits);
            add_random(&t, "grad", ARG_IN, f32, 0.01f, same_bits);
            add_bytes(&t, "state", ARG_IN, &state, sizeof(state));
            float *second = (float *)t.args[v].initial;
            for (int64_t i = 0; i < shape.cols; i++) second[i] = fabsf(second[i]);   // of squares
            compare_op(&t, adamw, NULL, skip ? "skipped" : describe(shape, seed));
            op_test_end(&t);
        }
    }
}

int main(int argc, char **argv) { return op_test_main(argc, argv); }
