// bench_ops_cuda -- time of each CUDA op at the sizes of GPT-2 124M, and of some at those of larger
// models, beside what the machine can do: GB/s in percent of a measured copy for ops that memory
// limits, TFLOP/s in percent of the device's dense BF16 peak for products. Not a test: it checks
// nothing.
//   build/cuda/dev/bench_ops_cuda [tokens [word]...]
// 65536 tokens take about 20 GiB; words pick the ops whose name contains one of them.
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "../llmc/common.h"
#include "../llmc/ops.h"
#include "../llmc/rng.h"

enum {
    T = 1024,
    C = 768,
    F = 4 * C,
    HEADS = 12,
    HEAD_DIM = 64,
    VOCAB = 50257,
    PADDED_VOCAB = 50304,
    PARAMETERS = 124475904,   // padded, a multiple of 128
    PATTERN = 1 << 20,        // random values before they repeat
    WARM_UP = 3,
    REPEATS = 20
};

static Device *device;
static int64_t N;   // tokens
static AttentionDims dims;
static Tensor x, y, z, wide, wide2, gated, gated2, qkv, dqkv, lse, w, b, logits, losses, tokens;
static Tensor table, positions, dtable, dpositions, dw, db, dwide, rope_table, weight, dweight;
static Tensor wide_bias, scalars, zeros;
static NormStats stats;
static AdamWTensors adamw;
static StepState *state;
static uint8_t *scales[2];   // block scales of a packed row and token operand
static float *maxima;        // their amax

static const Tensor no_tensor = {NULL, DT_F32, 0, 0};

/* About normal values (integers below VOCAB for i32); the pattern repeats, which no kernel sees. */
static Tensor random_tensor(DType dtype, int64_t rows, int64_t cols) {
    static float pattern[PATTERN];
    static uint8_t bytes[PATTERN * sizeof(float)];
    Tensor t = tensor_view(NULL, dtype, rows, cols);
    t.data = device_alloc(device, tensor_bytes(t), "benchmark tensor");
    for (int i = 0; pattern[PATTERN - 1] == 0.0f && i < PATTERN; i++) {
        Philox4 draw = philox4x32_10(rng_group_counter((uint64_t)i, 0, 0), 1, 0);
        for (int j = 0; j < 4; j++) pattern[i] += 1.7320508f * (rng_uniform(draw.w[j]) - 0.5f);
    }
    for (int i = 0; i < PATTERN; i++) {
        if (dtype == DT_BF16) ((bf16_t *)bytes)[i] = bf16_from_f32(pattern[i]);
        if (dtype == DT_F32) ((float *)bytes)[i] = pattern[i];
        if (dtype == DT_I32) ((int32_t *)bytes)[i] = bits_from_f32(pattern[i]) / 7 % VOCAB;
    }
    size_t total = tensor_bytes(t), pattern_bytes = dtype_bytes(dtype, PATTERN);
    for (size_t at = 0; at < total; at += pattern_bytes) {
        size_t left = total - at < pattern_bytes ? total - at : pattern_bytes;
        device->upload(device, (char *)t.data + at, bytes, left);
    }
    return t;
}

static void make_tensors(void) {
    x = random_tensor(DT_BF16, N, C);
    y = random_tensor(DT_BF16, N, C);
    z = random_tensor(DT_BF16, N, C);
    wide = random_tensor(DT_BF16, N, F);
    wide2 = random_tensor(DT_BF16, N, F);
    gated = random_tensor(DT_BF16, N, 2 * F);
    gated2 = random_tensor(DT_BF16, N, 2 * F);
    qkv = random_tensor(DT_BF16, N, 3 * C);
    dqkv = random_tensor(DT_BF16, N, 3 * C);
    lse = random_tensor(DT_F32, (int64_t)dims.B * HEADS, T);
    w = random_tensor(DT_BF16, 1, C);
    b = random_tensor(DT_BF16, 1, C);
    wide_bias = random_tensor(DT_BF16, 1, F);
    logits = random_tensor(DT_BF16, N, PADDED_VOCAB);
    losses = random_tensor(DT_F32, N, 1);
    tokens = random_tensor(DT_I32, dims.B, T);
    zeros = random_tensor(DT_I32, N, 1);
    device->zero(device, zeros.data, tensor_bytes(zeros));
    table = random_tensor(DT_BF16, PADDED_VOCAB, C);
    positions = random_tensor(DT_BF16, T, C);
    dtable = random_tensor(DT_F32, PADDED_VOCAB, C);
    dpositions = random_tensor(DT_F32, T, C);
    dw = random_tensor(DT_F32, 1, C);
    db = random_tensor(DT_F32, 1, C);
    dwide = random_tensor(DT_F32, 1, F);
    rope_table = random_tensor(DT_F32, T, HEAD_DIM);
    weight = random_tensor(DT_BF16, F, C);
    dweight = random_tensor(DT_F32, F, C);
    scalars = random_tensor(DT_F32, 1, 4);
    stats.mean = random_tensor(DT_F32, N, 1);
    stats.rstd = random_tensor(DT_F32, N, 1);
    adamw.value = random_tensor(DT_BF16, 1, PARAMETERS);
    adamw.master = random_tensor(DT_F32, 1, PARAMETERS);
    adamw.m = random_tensor(DT_F32, 1, PARAMETERS);
    adamw.v = random_tensor(DT_F32, 1, PARAMETERS);
    device->zero(device, adamw.v.data, tensor_bytes(adamw.v));   // a mean of squares
    adamw.grad = random_tensor(DT_F32, 1, PARAMETERS);
}

static void make_state(void) {
    StepState host = {};
    host.lr = 1e-4f;
    host.bias_correction1 = host.bias_correction2 = host.grad_scale = 1.0f;
    state = (StepState *)device_alloc(device, sizeof(host), "step state");
    device->upload(device, state, &host, sizeof(host));
}

static void make_scales(void) {
    static const float host[2] = {4, 4};
    scales[0] = (uint8_t *)device_alloc(device, quantize_scales_bytes(N, F), "block scales");
    scales[1] = (uint8_t *)device_alloc(device, quantize_scales_bytes(F, N), "block scales");
    maxima = (float *)device_alloc(device, sizeof(host), "maxima");
    device->upload(device, maxima, host, sizeof(host));
}

static void open_device(int argc, char **argv) {
    device = device_cuda_open(0);
    N = round_up(argc > 1 ? strtoll(argv[1], NULL, 10) : 65536, T);
    dims.B = (int)(N / T);
    dims.T = T;
    dims.num_heads = dims.num_kv_heads = HEADS;
    dims.head_dim = HEAD_DIM;
    OpLimits limits = {};
    limits.tokens = limits.logits_rows = N;
    limits.dim = limits.cols_divisor = C;
    limits.max_cols = 2 * F;
    limits.max_weight = (int64_t)PADDED_VOCAB * C;
    limits.padded_vocab = PADDED_VOCAB;
    limits.num_elements = PARAMETERS;
    limits.attention = dims;
    size_t bytes = ops_cuda.scratch_bytes(&limits);
    device_set_scratch(device, device_alloc(device, bytes, "scratch"), bytes);
    make_tensors();
    make_state();
    make_scales();
}

// --- what is timed ---

static void copy(void) { device->copy(device, gated2.data, gated.data, tensor_bytes(gated)); }
static void residual(void) { ops_cuda.residual_forward(device, z, x, y); }
static void gelu_forward(void) { ops_cuda.activation_forward(device, wide2, wide, ACT_GELU); }
static void gelu_backward(void) {
    Tensor dx = tensor_view(gated.data, DT_BF16, N, F);
    ops_cuda.activation_backward(device, dx, wide2, wide, ACT_GELU);
}
static void relu2_forward(void) { ops_cuda.activation_forward(device, wide2, wide, ACT_RELU2); }
static void swiglu_forward(void) { ops_cuda.activation_forward(device, wide2, gated, ACT_SWIGLU); }
static void swiglu_backward(void) {
    ops_cuda.activation_backward(device, gated2, wide2, gated, ACT_SWIGLU);
}
static void layernorm_forward(void) {
    ops_cuda.norm[NORM_LAYERNORM].forward(device, y, stats, x, w, b, 1e-5f);
}
static void layernorm_backward(void) {
    ops_cuda.norm[NORM_LAYERNORM].backward(device, z, dw, db, y, x, w, stats);
}
static void rmsnorm_forward(void) {
    ops_cuda.norm[NORM_RMSNORM].forward(device, y, stats, x, w, no_tensor, 1e-5f);
}
static void rmsnorm_backward(void) {
    ops_cuda.norm[NORM_RMSNORM].backward(device, z, dw, no_tensor, y, x, w, stats);
}
static void rope(void) { ops_cuda.rope_forward(device, qkv, rope_table, dims); }
static void embedding_forward(void) {
    ops_cuda.embedding_forward(device, z, tokens, table, positions);
}
static void embedding_backward(void) {
    ops_cuda.embedding_backward(device, dtable, dpositions, x, tokens);
}
static void cross_entropy(void) {
    Tensor targets = tensor_view(tokens.data, DT_I32, N, 1);
    ops_cuda.cross_entropy(device, losses, logits, targets, VOCAB, 1.0f / (float)N);
}
static void column_sum(void) { ops_cuda.column_sum(device, dwide, wide); }
static void global_norm(void) { ops_cuda.global_norm(device, (float *)scalars.data, adamw.grad); }
static void optimizer(void) {
    AdamWConfig config = {0.9f, 0.95f, 1e-8f, 0.1f};
    ops_cuda.adamw(device, adamw, config, state);
}
static void attention_forward(void) { ops_cuda.attention_forward(device, z, lse, qkv, dims); }
static void attention_backward(void) {
    ops_cuda.attention_backward(device, dqkv, y, z, lse, qkv, dims);
}

static void product(Tensor d, Tensor a, Tensor b_values, int a_k, int b_k, GemmEpilogue epilogue) {
    QOperand left = operand_from_tensor(a, FORMAT_BF16, a_k);
    QOperand right = operand_from_tensor(b_values, FORMAT_BF16, b_k);
    ops_cuda.gemm(device, d, &left, &right, epilogue);
}
static void fprop(void) { product(wide2, x, weight, 1, 1, {no_tensor, 0}); }
static void fprop_bias(void) { product(wide2, x, weight, 1, 1, {wide_bias, 0}); }
static void dgrad(void) { product(z, wide, weight, 1, 0, {no_tensor, 0}); }
static void wgrad(void) { product(dweight, wide, x, 0, 0, {no_tensor, 1}); }
static void head_fprop(void) { product(logits, x, table, 1, 1, {no_tensor, 0}); }
static void head_dgrad(void) { product(z, logits, table, 1, 0, {no_tensor, 0}); }
static void head_wgrad(void) { product(dtable, logits, x, 0, 0, {no_tensor, 1}); }
/* As fprop, with the tensor scales of two quantised operands. */
static void fprop_scaled(void) {
    QOperand left = operand_from_tensor(x, FORMAT_NVFP4, 1);
    QOperand right = operand_from_tensor(weight, FORMAT_NVFP4, 1);
    left.amax = (float *)scalars.data;
    right.amax = (float *)scalars.data + 1;
    left.dequant_div = right.dequant_div = 6.0f * 448.0f;
    ops_cuda.gemm(device, wide2, &left, &right, {no_tensor, 0});
}

/* Row operand and transformed token operand of `values`, in memory that has room for both forms. */
static void quantize(Tensor values, OperandForm form, Rounding rounding) {
    QOperand operands[2];
    Quantizer how[2];
    void *const memory[2] = {wide2.data, gated2.data};
    for (int token = 0; token < 2; token++) {
        QOperand q = operand_from_tensor(values, FORMAT_NVFP4, form == FORM_PACKED || !token);
        q.form = form;
        q.rows = token ? values.cols : values.rows;
        q.k = token ? values.rows : values.cols;
        q.data = memory[token];
        q.scales = form == FORM_PACKED ? scales[token] : NULL;
        q.amax = maxima + token;
        q.dequant_div = 6.0f * 448.0f;
        operands[token] = q;
        Quantizer h = {};
        h.how = formats[FORMAT_NVFP4].cell;
        h.how.hadamard = token ? 16 : 0;
        h.how.rounding = rounding;
        h.token_operand = token;
        h.rows_are_tokens = 1;
        h.state = state;
        how[token] = h;
    }
    ops_cuda.quantize_pair(device, &operands[0], &how[0], &operands[1], &how[1], values);
}
static void quantize_values(void) { quantize(x, FORM_VALUES, ROUND_NEAREST); }
static void quantize_codes(void) { quantize(x, FORM_PACKED, ROUND_NEAREST); }
static void quantize_values_sr(void) { quantize(x, FORM_VALUES, ROUND_STOCHASTIC); }
static void quantize_codes_sr(void) { quantize(x, FORM_PACKED, ROUND_STOCHASTIC); }
static void quantize_wide_values(void) { quantize(wide, FORM_VALUES, ROUND_NEAREST); }
static void quantize_wide_codes(void) { quantize(wide, FORM_PACKED, ROUND_NEAREST); }
static void quantize_wide_values_sr(void) { quantize(wide, FORM_VALUES, ROUND_STOCHASTIC); }
static void quantize_wide_codes_sr(void) { quantize(wide, FORM_PACKED, ROUND_STOCHASTIC); }

// --- what is timed at other sizes ---

/* Rows and columns of the tensor that an op writes, or of the one that it sums. */
typedef struct {
    int64_t rows, cols;
} Size;

/* A part of a tensor, each time the next one: nothing is left in the L2 from the call before. */
static Tensor next_part(Tensor of, int64_t rows, int64_t cols) {
    static int64_t turn;
    int64_t parts = tensor_count(of) / (rows * cols);
    CHECK(parts > 0, "(%lld,%lld) does not fit", (long long)rows, (long long)cols);
    char *data = (char *)of.data + dtype_bytes(of.dtype, turn++ % parts * rows * cols);
    return tensor_view(data, of.dtype, rows, cols);
}
static void cross_entropy_of(Size s) {
    Tensor targets = tensor_rows(zeros, 0, s.rows);
    int vocab = (int)s.cols - 47;   // GPT-2's padding
    ops_cuda.cross_entropy(device, tensor_rows(losses, 0, s.rows),
                           next_part(logits, s.rows, s.cols), targets, vocab, 1e-5f);
}
template <ActKind KIND> static void activation_forward_of(Size s) {
    Tensor in = next_part(gated, s.rows, s.cols * act_info[KIND].inputs_per_output);
    ops_cuda.activation_forward(device, next_part(wide2, s.rows, s.cols), in, KIND);
}
template <ActKind KIND> static void activation_backward_of(Size s) {
    int64_t inputs = s.cols * act_info[KIND].inputs_per_output;
    ops_cuda.activation_backward(device, next_part(gated2, s.rows, inputs),
                                 next_part(wide2, s.rows, s.cols), next_part(gated, s.rows, inputs),
                                 KIND);
}
static NormStats norm_stats(Size s) {
    return {tensor_rows(stats.mean, 0, s.rows), tensor_rows(stats.rstd, 0, s.rows)};
}
template <NormKind KIND> static Tensor norm_shift(Size s) {
    return KIND == NORM_LAYERNORM ? next_part(weight, 1, s.cols) : no_tensor;
}
template <NormKind KIND> static void norm_forward_of(Size s) {
    Tensor out = next_part(gated2, s.rows, s.cols), in = next_part(gated, s.rows, s.cols);
    ops_cuda.norm[KIND].forward(device, out, norm_stats(s), in, next_part(weight, 1, s.cols),
                                norm_shift<KIND>(s), 1e-5f);
}
template <NormKind KIND> static void norm_residual_of(Size s) {
    Tensor out = next_part(gated2, s.rows, s.cols), sum = next_part(wide2, s.rows, s.cols);
    Residual r = {sum, next_part(gated, s.rows, s.cols), next_part(wide, s.rows, s.cols)};
    ops_cuda.norm[KIND].residual_forward(device, out, norm_stats(s), r,
                                         next_part(weight, 1, s.cols), norm_shift<KIND>(s), 1e-5f);
}
template <NormKind KIND> static void norm_backward_of(Size s) {
    Tensor dx = next_part(gated2, s.rows, s.cols), dout = next_part(wide, s.rows, s.cols);
    Tensor dscale = tensor_view(dtable.data, DT_F32, 1, s.cols);
    Tensor dshift = tensor_view((float *)dtable.data + s.cols, DT_F32, 1, s.cols);
    ops_cuda.norm[KIND].backward(device, dx, dscale, KIND == NORM_LAYERNORM ? dshift : no_tensor,
                                 dout, next_part(gated, s.rows, s.cols),
                                 next_part(weight, 1, s.cols), norm_stats(s));
}
static void column_sum_of(Size s) {
    Tensor sums = tensor_view(dtable.data, DT_F32, 1, s.cols);
    ops_cuda.column_sum(device, sums, next_part(gated, s.rows, s.cols));
}

static const struct {
    const char *name;
    void (*run)(Size);
    Size size;
    int bytes;   // per element of that size
} sized[] = {
    {"cross_entropy", cross_entropy_of, {65536, 50304}, 4},
    {"cross_entropy", cross_entropy_of, {16384, 50304}, 4},
    {"cross_entropy", cross_entropy_of, {16384, 32768}, 4},
    {"cross_entropy", cross_entropy_of, {16384, 131072}, 4},
    {"gelu_forward", activation_forward_of<ACT_GELU>, {65536, 3072}, 4},
    {"gelu_forward", activation_forward_of<ACT_GELU>, {16384, 6400}, 4},
    {"gelu_backward", activation_backward_of<ACT_GELU>, {65536, 3072}, 6},
    {"gelu_backward", activation_backward_of<ACT_GELU>, {16384, 6400}, 6},
    {"swiglu_forward", activation_forward_of<ACT_SWIGLU>, {16384, 5632}, 6},
    {"swiglu_backward", activation_backward_of<ACT_SWIGLU>, {16384, 5632}, 10},
    {"relu2_forward", activation_forward_of<ACT_RELU2>, {16384, 5632}, 4},
    {"relu2_backward", activation_backward_of<ACT_RELU2>, {16384, 5632}, 6},
    {"layernorm_forward", norm_forward_of<NORM_LAYERNORM>, {65536, 768}, 4},
    {"layernorm_forward", norm_forward_of<NORM_LAYERNORM>, {32768, 1024}, 4},
    {"layernorm_forward", norm_forward_of<NORM_LAYERNORM>, {16384, 1600}, 4},
    {"layernorm_forward", norm_forward_of<NORM_LAYERNORM>, {16384, 2048}, 4},
    {"layernorm_forward", norm_forward_of<NORM_LAYERNORM>, {8192, 4096}, 4},
    {"layernorm_residual", norm_residual_of<NORM_LAYERNORM>, {65536, 768}, 8},
    {"layernorm_residual", norm_residual_of<NORM_LAYERNORM>, {32768, 1024}, 8},
    {"layernorm_residual", norm_residual_of<NORM_LAYERNORM>, {16384, 1600}, 8},
    {"layernorm_residual", norm_residual_of<NORM_LAYERNORM>, {16384, 2048}, 8},
    {"layernorm_residual", norm_residual_of<NORM_LAYERNORM>, {8192, 4096}, 8},
    {"layernorm_backward", norm_backward_of<NORM_LAYERNORM>, {65536, 768}, 8},
    {"layernorm_backward", norm_backward_of<NORM_LAYERNORM>, {32768, 1024}, 8},
    {"layernorm_backward", norm_backward_of<NORM_LAYERNORM>, {16384, 1600}, 8},
    {"layernorm_backward", norm_backward_of<NORM_LAYERNORM>, {16384, 2048}, 8},
    {"layernorm_backward", norm_backward_of<NORM_LAYERNORM>, {8192, 4096}, 8},
    {"rmsnorm_forward", norm_forward_of<NORM_RMSNORM>, {65536, 768}, 4},
    {"rmsnorm_forward", norm_forward_of<NORM_RMSNORM>, {32768, 1024}, 4},
    {"rmsnorm_forward", norm_forward_of<NORM_RMSNORM>, {16384, 1600}, 4},
    {"rmsnorm_forward", norm_forward_of<NORM_RMSNORM>, {16384, 2048}, 4},
    {"rmsnorm_forward", norm_forward_of<NORM_RMSNORM>, {8192, 4096}, 4},
    {"rmsnorm_residual", norm_residual_of<NORM_RMSNORM>, {65536, 768}, 8},
    {"rmsnorm_residual", norm_residual_of<NORM_RMSNORM>, {32768, 1024}, 8},
    {"rmsnorm_residual", norm_residual_of<NORM_RMSNORM>, {16384, 1600}, 8},
    {"rmsnorm_residual", norm_residual_of<NORM_RMSNORM>, {16384, 2048}, 8},
    {"rmsnorm_residual", norm_residual_of<NORM_RMSNORM>, {8192, 4096}, 8},
    {"rmsnorm_backward", norm_backward_of<NORM_RMSNORM>, {65536, 768}, 8},
    {"rmsnorm_backward", norm_backward_of<NORM_RMSNORM>, {32768, 1024}, 8},
    {"rmsnorm_backward", norm_backward_of<NORM_RMSNORM>, {16384, 1600}, 8},
    {"rmsnorm_backward", norm_backward_of<NORM_RMSNORM>, {16384, 2048}, 8},
    {"rmsnorm_backward", norm_backward_of<NORM_RMSNORM>, {8192, 4096}, 8},
    {"column_sum", column_sum_of, {65536, 768}, 2},
    {"column_sum", column_sum_of, {65536, 2304}, 2},
    {"column_sum", column_sum_of, {65536, 3072}, 2},
    {"column_sum", column_sum_of, {16384, 1600}, 2},
    {"column_sum", column_sum_of, {16384, 4800}, 2},
    {"column_sum", column_sum_of, {16384, 6400}, 2},
};

// --- timing ---

/* Mean of one run of many, after a few that warm up. */
template <typename Run> static double time_ms(Run run) {
    for (int i = 0; i < WARM_UP; i++) run();
    device->synchronize(device);
    double begin = now_ms();
    for (int i = 0; i < REPEATS; i++) run();
    device->synchronize(device);
    return (now_ms() - begin) / REPEATS;
}

typedef struct {
    const char *name;
    void (*run)(void);
    double bytes;   // that must move; 0: limited by arithmetic
    double flops;
} Bench;

static void print_bandwidth(const char *name, double ms, double bytes, double copy_gb_s) {
    double gb_s = bytes / ms * 1e-6;
    printf("%-28s %9.4f ms  %7.1f GB/s     %5.1f %% of copy\n", name, ms, gb_s,
           100.0 * gb_s / copy_gb_s);
}

static void print_bench(Bench bench, double copy_gb_s) {
    double ms = time_ms(bench.run);
    if (bench.bytes > 0) {
        print_bandwidth(bench.name, ms, bench.bytes, copy_gb_s);
    } else {
        double tflops = bench.flops / ms * 1e-9, peak = device->peak_bf16_flops * 1e-12;
        printf("%-28s %9.4f ms  %7.1f TFLOP/s  ", bench.name, ms, tflops);
        if (peak > 0) printf("%5.1f %% of peak\n", 100.0 * tflops / peak);
        else printf("  n/a of peak\n");
    }
}

static void print_sized(int i, double copy_gb_s) {
    char name[64];
    Size size = sized[i].size;
    snprintf(name, sizeof(name), "%s %lldx%lld", sized[i].name, (long long)size.rows,
             (long long)size.cols);
    double ms = time_ms([=] { sized[i].run(size); });
    print_bandwidth(name, ms, (double)size.rows * (double)size.cols * sized[i].bytes, copy_gb_s);
}

/* Whether a name contains one of the words, or there are none. */
static bool is_wanted(const char *name, int num_words, char **words) {
    bool found = num_words <= 0;
    for (int i = 0; i < num_words; i++) found |= strstr(name, words[i]) != NULL;
    return found;
}

int main(int argc, char **argv) {
    open_device(argc, argv);
    double n = (double)N, nc = n * C, nf = n * F, p = PARAMETERS;
    double nv = n * PADDED_VOCAB;
    // Tokens are drawn from all of the vocabulary: so many rows of dtable are touched.
    double touched = VOCAB * (1.0 - exp(-n / VOCAB));
    double attention = (double)dims.B * HEADS * T * T * HEAD_DIM;   // flops of a causal product
    double packed = 2 + 2 * 9.0 / 16;   // read; codes and scales of two operands written
    const Bench benches[] = {
        {"residual (N,C)", residual, 6 * nc, 0},
        {"gelu_forward (N,F)", gelu_forward, 4 * nf, 0},
        {"gelu_backward (N,F)", gelu_backward, 6 * nf, 0},
        {"relu2_forward (N,F)", relu2_forward, 4 * nf, 0},
        {"swiglu_forward (N,F)", swiglu_forward, 6 * nf, 0},
        {"swiglu_backward (N,F)", swiglu_backward, 10 * nf, 0},
        {"layernorm_forward (N,C)", layernorm_forward, 4 * nc, 0},
        {"layernorm_backward (N,C)", layernorm_backward, 8 * nc, 0},
        {"rmsnorm_forward (N,C)", rmsnorm_forward, 4 * nc, 0},
        {"rmsnorm_backward (N,C)", rmsnorm_backward, 8 * nc, 0},
        {"rope (N,3C)", rope, 8 * nc, 0},
        {"embedding_forward (N,C)", embedding_forward, 4 * nc, 0},
        {"embedding_backward (N,C)", embedding_backward, 4 * nc + 8 * touched * C, 0},
        {"cross_entropy (N,V)", cross_entropy, 4 * nv, 0},
        {"column_sum (N,F)", column_sum, 2 * nf, 0},
        {"global_norm (124M)", global_norm, 4 * p, 0},
        {"adamw (124M)", optimizer, 30 * p, 0},
        {"quantize values (N,C)", quantize_values, 6 * nc, 0},
        {"quantize codes (N,C)", quantize_codes, packed * nc, 0},
        {"quantize values (N,C) SR", quantize_values_sr, 6 * nc, 0},
        {"quantize codes (N,C) SR", quantize_codes_sr, packed * nc, 0},
        {"quantize values (N,F)", quantize_wide_values, 6 * nf, 0},
        {"quantize codes (N,F)", quantize_wide_codes, packed * nf, 0},
        {"quantize values (N,F) SR", quantize_wide_values_sr, 6 * nf, 0},
        {"quantize codes (N,F) SR", quantize_wide_codes_sr, packed * nf, 0},
        {"attention_forward", attention_forward, 0, 2 * attention},
        {"attention_backward", attention_backward, 0, 5 * attention},
        {"fprop (N,F,C)", fprop, 0, 2 * nc * F},
        {"fprop (N,F,C) + bias", fprop_bias, 0, 2 * nc * F},
        {"fprop (N,F,C) scaled", fprop_scaled, 0, 2 * nc * F},
        {"dgrad (N,C,F)", dgrad, 0, 2 * nc * F},
        {"wgrad (F,C,N), f32 += ", wgrad, 0, 2 * nc * F},
        {"head fprop (N,V,C)", head_fprop, 0, 2 * nv * C},
        {"head dgrad (N,C,V)", head_dgrad, 0, 2 * nv * C},
        {"head wgrad (V,C,N), f32 +=", head_wgrad, 0, 2 * nv * C},
    };
    double copy_gb_s = 2.0 * (double)tensor_bytes(gated) / time_ms(copy) * 1e-6;
    printf("%s, N = %lld, C = %d, F = %d, V = %d; mean of %d; device copy %.1f GB/s\n",
           device->name, (long long)N, C, F, PADDED_VOCAB, REPEATS, copy_gb_s);
    for (int i = 0; i < ARRAY_LEN(benches); i++)
        if (is_wanted(benches[i].name, argc - 2, argv + 2)) print_bench(benches[i], copy_gb_s);
    for (int i = 0; i < ARRAY_LEN(sized); i++) {
        if (sized[i].size.rows <= N && is_wanted(sized[i].name, argc - 2, argv + 2))
            print_sized(i, copy_gb_s);
    }
    device->close(device);
    return 0;
}
