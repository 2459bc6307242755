/*
CUDA attention, own kernels and cuDNN, against the CPU reference (test_ops_cpu.c compares that with
plain loops in double). Bounds are derived, not tuned. With u = 2^-8, the largest relative error of
rounding to bf16:
  out     p is rounded before it meets v: |error| <= u * sum_j p |v|. got and want are each rounded
          once more, so they differ by up to 2 ulp of want where nothing else does.
  dv      likewise u * sum_i p |dout|, 2 ulp
  dq, dk  ds is rounded: u * sum |ds| |k| * scale, u * sum |ds| |q| * scale, 2 ulp
  f32     dot products of HS terms in another order: HS * 2^-22 of the sum of magnitudes (tensor
          cores may truncate). Of s, it is a relative error of p; dp - delta has its own. 2^x, log2
          and their scaled arguments: (4 + |s| + |lse|) * 2^-22 of p.
cuDNN rounds each head's dk and dv of a group once more, u of the same sums again: u counts twice.
These hold for each element, and are wide where many terms cancel. The normalised mean square error
is the tight check: rounding errors of p (or ds), got and want are independent and at most u^2 each,
so NMSE <= 3 u^2 = 4.6e-5.
*/
#include "test.h"

#include "../llmc/common.h"
#include "../llmc/device.h"
#include "../llmc/ops/attention.cuh"
#include "../llmc/ops/attention_cudnn.h"
#include "../llmc/ops/scratch_cpu.h"
#include "../llmc/rng.h"

static const double ROUND_BF16 = 1.0 / 256;
static const double ROUND_F32 = 1.0 / (1 << 22);
static const double MAX_NMSE = 3 * ROUND_BF16 * ROUND_BF16;

typedef enum { FLASH, CUDNN, CUDNN_ANY_ORDER, NUM_IMPLEMENTATIONS } Implementation;
// As attention_cuda_select calls them; the last one's sums run in any order.
static const char *const implementation_names[] = {"flash", "cudnn", "cudnn"};

typedef enum { LOGITS_NORMAL, LOGITS_LARGE, LOGITS_NEGATIVE, NUM_LOGITS } Logits;

static Device *cpu, *gpu;

// --- data ---

static float normal_at(uint64_t index, uint32_t stream) {
    const Philox4 w = philox4x32_10(rng_group_counter(index, stream, 0), 1234, 5678);
    const double radius = sqrt(-2 * log(1.0 - (double)rng_uniform(w.w[0])));
    return (float)(radius * cos(6.283185307179586 * (double)rng_uniform(w.w[1])));
}

static Tensor host_tensor(DType type, int64_t rows, int64_t cols) {
    return tensor_view(xmalloc(dtype_bytes(type, rows * cols)), type, rows, cols);
}

static float value_at(Tensor t, int64_t row, int64_t col) {
    const int64_t at = row * t.cols + col;
    return t.dtype == DT_BF16 ? bf16_to_f32(((bf16_t *)t.data)[at]) : ((float *)t.data)[at];
}

// Normal values; scores have the standard deviation 1, or 12 and so reach past 60 (LARGE), or lie
// about -120, where exp(0 - lse) of a score that is wrongly taken for 0 overflows (NEGATIVE).
static void fill_qkv(Tensor qkv, AttentionDims a, Logits logits) {
    const float spread = logits == LOGITS_LARGE ? sqrtf(12) : 1;
    const int num_scored = a.num_heads + a.num_kv_heads;   // heads of q and k
#pragma omp parallel for
    for (int64_t i = 0; i < tensor_count(qkv); i++) {
        const int head = (int)(i % qkv.cols / a.head_dim);
        float x = normal_at((uint64_t)i, 1) * (head < num_scored ? spread : 1);
        if (logits == LOGITS_NEGATIVE && head < num_scored && i % a.head_dim == 0)
            x = sqrtf(120 * sqrtf((float)a.head_dim)) * (head < a.num_heads ? 1.0f : -1.0f);
        ((bf16_t *)qkv.data)[i] = bf16_from_f32(x);
    }
}

typedef struct {
    AttentionDims dims;
    Logits logits;
    Tensor qkv, dout;        // inputs
    Tensor out, lse, dqkv;   // results
} Problem;

static Problem make_problem(AttentionDims a, Logits logits) {
    const int64_t rows = (int64_t)a.B * a.T, out_cols = (int64_t)a.num_heads * a.head_dim;
    Problem p = {a,
                 logits,
                 host_tensor(DT_BF16, rows, attention_qkv_cols(a)),
                 host_tensor(DT_BF16, rows, out_cols),
                 host_tensor(DT_BF16, rows, out_cols),
                 host_tensor(DT_F32, (int64_t)a.B * a.num_heads, a.T),
                 host_tensor(DT_BF16, rows, attention_qkv_cols(a))};
    fill_qkv(p.qkv, a, logits);
#pragma omp parallel for
    for (int64_t i = 0; i < tensor_count(p.dout); i++)
        ((bf16_t *)p.dout.data)[i] = bf16_from_f32(normal_at((uint64_t)i, 2));
    return p;
}

static void free_problem(Problem *p) {
    free(p->qkv.data);
    free(p->dout.data);
    free(p->out.data);
    free(p->lse.data);
    free(p->dqkv.data);
}

static void set_scratch(Device *d, size_t bytes) {
    if (d->scratch_bytes >= bytes) return;
    if (d->scratch) d->free(d, d->scratch);
    device_set_scratch(d, device_alloc(d, bytes, "scratch"), bytes);
}

// The reference; its out and lse are also what both backward passes read.
static Problem reference_problem(AttentionDims a, Logits logits) {
    Problem p = make_problem(a, logits);
    set_scratch(cpu, attention_scratch_cpu(a));
    attention_forward_cpu(cpu, p.out, p.lse, p.qkv, a);
    attention_backward_cpu(cpu, p.dqkv, p.dout, p.out, p.lse, p.qkv, a);
    return p;
}

// --- the same on the GPU ---

static Tensor upload(Tensor host) {
    const size_t bytes = tensor_bytes(host);
    Tensor t = tensor_view(device_alloc(gpu, bytes, "test"), host.dtype, host.rows, host.cols);
    gpu->upload(gpu, t.data, host.data, bytes);
    return t;
}

// A device tensor of NaNs: what is not written shows.
static Tensor poisoned(Tensor shape) {
    void *nans = xmalloc(tensor_bytes(shape));
    memset(nans, 0xFF, tensor_bytes(shape));
    Tensor t = upload(tensor_view(nans, shape.dtype, shape.rows, shape.cols));
    free(nans);
    return t;
}

static Tensor download(Tensor device) {
    Tensor t = host_tensor(device.dtype, device.rows, device.cols);
    gpu->download(gpu, t.data, device.data, tensor_bytes(device));
    gpu->free(gpu, device.data);
    return t;
}

// Whether this implementation takes these dims; prepares it if so.
static int select_implementation(Implementation which, AttentionDims a) {
    int any_order = which == CUDNN_ANY_ORDER;
    if (which != FLASH && !attention_cudnn_prepare(a, any_order).runs) return 0;
    attention_cuda_select(implementation_names[which]);
    set_scratch(gpu, attention_cuda_scratch_bytes(a, any_order));
    EXPECT(strncmp(attention_cuda_name(), which == FLASH ? "flash" : "cuDNN", 5) == 0, "%s runs",
           attention_cuda_name());
    return 1;
}

static void run_forward(const Problem *p, Tensor *out, Tensor *lse) {
    Tensor qkv = upload(p->qkv), gpu_out = poisoned(p->out), gpu_lse = poisoned(p->lse);
    attention_forward_cuda(gpu, gpu_out, gpu_lse, qkv, p->dims);
    *out = download(gpu_out);
    *lse = download(gpu_lse);
    gpu->free(gpu, qkv.data);
}

static Tensor run_backward(const Problem *p) {
    Tensor qkv = upload(p->qkv), dout = upload(p->dout), out = upload(p->out), lse = upload(p->lse);
    Tensor dqkv = poisoned(p->dqkv);
    attention_backward_cuda(gpu, dqkv, dout, out, lse, qkv, p->dims);
    Tensor host = download(dqkv);
    void *inputs[] = {qkv.data, dout.data, out.data, lse.data};
    for (int i = 0; i < 4; i++) gpu->free(gpu, inputs[i]);
    return host;
}

// --- bounds ---

// How far results may be off beside 2 ulp of their own, f64, shaped as the tensors they are for.
typedef struct {
    double *out, *lse, *dqkv;
} Bounds;

static Bounds make_bounds(const Problem *p) {
    Bounds b = {(double *)xmalloc(sizeof(double) * (size_t)tensor_count(p->out)),
                (double *)xmalloc(sizeof(double) * (size_t)tensor_count(p->lse)),
                (double *)xmalloc(sizeof(double) * (size_t)tensor_count(p->dqkv))};
    return b;
}

static void free_bounds(Bounds *b) {
    free(b->out);
    free(b->lse);
    free(b->dqkv);
}

// A dot product and the sum of its terms' magnitudes.
typedef struct {
    double sum, magnitude;
} Dot;

static Dot dot_rows(const float *a, const float *b, int count) {
    Dot d = {0, 0};
    for (int c = 0; c < count; c++) {
        const double term = (double)a[c] * (double)b[c];
        d.sum += term;
        d.magnitude += fabs(term);
    }
    return d;
}

static void add_magnitudes(double *sums, double weight, const float *x, int count) {
    for (int c = 0; c < count; c++) sums[c] += weight * fabs((double)x[c]);
}

static float *as_floats(Tensor t) {
    float *values = (float *)xmalloc(sizeof(float) * (size_t)tensor_count(t));
    for (int64_t i = 0; i < tensor_count(t); i++) values[i] = value_at(t, 0, i);
    return values;
}

// One query head of one sequence. u counts the roundings to bf16 of the implementation.
static void bound_head(const Problem *p, const float *qkv, const float *out, const float *dout,
                       int b, int head, double u, Bounds *bounds) {
    const AttentionDims a = p->dims;
    const int HS = a.head_dim, kv_head = head / (a.num_heads / a.num_kv_heads);
    const double scale = 1 / sqrt((double)HS), sum_error = HS * ROUND_F32;
    const int64_t q_col = (int64_t)head * HS, k_col = (int64_t)(a.num_heads + kv_head) * HS;
    const int64_t v_col = k_col + (int64_t)a.num_kv_heads * HS;
    for (int i = 0; i < a.T; i++) {
        const int64_t row = (int64_t)b * a.T + i, at = row * p->qkv.cols,
                      out_at = row * p->out.cols + q_col;
        const int64_t lse_at = ((int64_t)b * a.num_heads + head) * a.T + i;
        const double lse = (double)((float *)p->lse.data)[lse_at];
        const Dot delta = dot_rows(dout + out_at, out + out_at, HS);
        for (int j = 0; j <= i; j++) {
            const int64_t key_at = ((int64_t)b * a.T + j) * p->qkv.cols;
            const Dot s = dot_rows(qkv + at + q_col, qkv + key_at + k_col, HS);
            const Dot dp = dot_rows(dout + out_at, qkv + key_at + v_col, HS);
            const double prob = exp(s.sum * scale - lse), ds = prob * (dp.sum - delta.sum);
            const double s_error = sum_error * s.magnitude * scale;
            const double p_error = s_error + (4 + fabs(s.sum * scale) + fabs(lse)) * ROUND_F32;
            const double ds_error =
                fabs(ds) * (u + p_error) + prob * sum_error * (dp.magnitude + delta.magnitude);
            // an error of lse moves all of a row's p alike, and cancels in out but for its own size
            add_magnitudes(bounds->out + out_at, prob * (u + 2 * p_error), qkv + key_at + v_col,
                           HS);
            add_magnitudes(bounds->dqkv + at + q_col, ds_error * scale, qkv + key_at + k_col, HS);
            add_magnitudes(bounds->dqkv + key_at + k_col, ds_error * scale, qkv + at + q_col, HS);
            add_magnitudes(bounds->dqkv + key_at + v_col, prob * (u + p_error), dout + out_at, HS);
            bounds->lse[lse_at] += prob * p_error;   // d lse / d s = p
        }
    }
}

static Bounds bounds_of(const Problem *p, Implementation which) {
    Bounds bounds = make_bounds(p);
    const AttentionDims a = p->dims;
    const int group = a.num_heads / a.num_kv_heads;
    const double u = which != FLASH ? 2 * ROUND_BF16 : ROUND_BF16;
    float *qkv = as_floats(p->qkv), *out = as_floats(p->out), *dout = as_floats(p->dout);
#pragma omp parallel for
    for (int task = 0; task < a.B * a.num_kv_heads; task++)   // a group's heads share dk and dv
        for (int g = 0; g < group; g++)
            bound_head(p, qkv, out, dout, task / a.num_kv_heads, task % a.num_kv_heads * group + g,
                       u, &bounds);
    free(qkv);
    free(out);
    free(dout);
    return bounds;
}

// --- comparison ---

static double ulp_bf16(double x) {
    int exponent;
    frexp(x, &exponent);   // x in [2^(exponent-1), 2^exponent)
    return ldexp(1, (exponent < -125 ? -125 : exponent) - 8);
}

static void expect_within(Tensor got, Tensor want, const double *bound, const char *what) {
    for (int64_t row = 0; row < want.rows; row++) {
        for (int64_t col = 0; col < want.cols; col++) {
            const double g = value_at(got, row, col), w = value_at(want, row, col);
            const double ulps = want.dtype == DT_BF16 ? 2 * ulp_bf16(w) : 0;
            EXPECT_NEAR(g, w, ulps + bound[row * want.cols + col], "%s row %lld column %lld", what,
                        (long long)row, (long long)col);
        }
    }
}

// Over columns [begin, end) of all rows.
static double nmse(Tensor got, Tensor want, int64_t begin, int64_t end) {
    double error = 0, power = 0;
    for (int64_t row = 0; row < want.rows; row++) {
        for (int64_t col = begin; col < end; col++) {
            const double g = value_at(got, row, col), w = value_at(want, row, col);
            error += (g - w) * (g - w);
            power += w * w;
        }
    }
    return error / power;
}

static void expect_nmse(Tensor got, Tensor want, int64_t begin, int64_t end, double limit,
                        const char *what) {
    const double error = nmse(got, want, begin, end);
    EXPECT(error <= limit, "%s: NMSE %.3g, at most %.3g", what, error, limit);
}

// --- cases ---

static int num_failures(void) { return test_state.failures; }

static void check_forward(const Problem *want, const Bounds *bounds, const char *what) {
    Tensor out, lse, out_again, lse_again;
    run_forward(want, &out, &lse);
    run_forward(want, &out_again, &lse_again);
    expect_within(out, want->out, bounds->out, "out");
    expect_within(lse, want->lse, bounds->lse, "lse");
    expect_nmse(out, want->out, 0, out.cols, MAX_NMSE, "out");
    expect_nmse(lse, want->lse, 0, lse.cols, 1e-10, "lse");
    EXPECT_BITS(out_again.data, out.data, tensor_bytes(out), "out of a second run, %s", what);
    EXPECT_BITS(lse_again.data, lse.data, tensor_bytes(lse), "lse of a second run, %s", what);
    void *results[] = {out.data, lse.data, out_again.data, lse_again.data};
    for (int i = 0; i < 4; i++) free(results[i]);
}

static void check_backward(const Problem *want, const Bounds *bounds, int repeats,
                           const char *what) {
    const AttentionDims a = want->dims;
    const int64_t dk = (int64_t)a.num_heads * a.head_dim,
                  dv = dk + (int64_t)a.num_kv_heads * a.head_dim;
    Tensor dqkv = run_backward(want), again = run_backward(want);
    expect_within(dqkv, want->dqkv, bounds->dqkv, "dqkv");
    // Two places where nothing but rounding is left, and only the bounds say something: dq and dk
    // of one token, and dq along a component that all keys share, as sum_j ds = 0.
    if (a.T > 1 && want->logits != LOGITS_NEGATIVE)
        expect_nmse(dqkv, want->dqkv, 0, dk, MAX_NMSE, "dq");
    if (a.T > 1) expect_nmse(dqkv, want->dqkv, dk, dv, MAX_NMSE, "dk");
    expect_nmse(dqkv, want->dqkv, dv, dqkv.cols, MAX_NMSE, "dv");
    if (repeats)
        EXPECT_BITS(again.data, dqkv.data, tensor_bytes(dqkv), "dqkv of a second run, %s", what);
    free(dqkv.data);
    free(again.data);
}

// Returns 0 where the implementation does not take these dims.
static int check(Implementation which, AttentionDims a, Logits logits) {
    if (!select_implementation(which, a)) return 0;
    char what[128];
    snprintf(what, sizeof(what), "%s B %d T %d NH %d NKV %d HS %d logits %d",
             implementation_names[which], a.B, a.T, a.num_heads, a.num_kv_heads, a.head_dim,
             logits);
    const int before = num_failures();
    Problem want = reference_problem(a, logits);
    Bounds bounds = bounds_of(&want, which);
    check_forward(&want, &bounds, what);
    check_backward(&want, &bounds, which != CUDNN_ANY_ORDER, what);
    if (num_failures() > before) printf("  failed: %s\n", what);
    free_bounds(&bounds);
    free_problem(&want);
    return 1;
}

// Every T, HS and grouping, in pairs that differ; T below, at and between tiles of 64 and 128.
static const AttentionDims small_dims[] = {
    {1, 1, 1, 1, 8},     {2, 1, 4, 2, 64},   {3, 16, 4, 4, 16},  {1, 16, 6, 1, 128},
    {2, 37, 4, 2, 8},    {1, 37, 1, 1, 80},  {2, 64, 4, 4, 64},  {1, 64, 6, 1, 32},
    {1, 128, 4, 2, 128}, {3, 128, 4, 4, 64}, {1, 128, 6, 1, 32}, {2, 128, 1, 1, 8},
    {1, 128, 6, 1, 80},  {1, 200, 4, 2, 80}, {2, 200, 6, 1, 16}, {1, 200, 1, 1, 64},
    {1, 200, 4, 4, 128}};
static const AttentionDims large_dims[] = {
    {1, 1000, 4, 4, 64},  {1, 1000, 1, 1, 128}, {1, 1000, 4, 2, 32}, {2, 1024, 4, 4, 64},
    {1, 1024, 4, 2, 128}, {1, 1024, 6, 1, 80},  {1, 1024, 1, 1, 16}};

static void check_all(Implementation which, const AttentionDims *dims, int count, Logits logits) {
    if (which != FLASH && !attention_cudnn_version()) {
        printf("  not tested: %s\n", attention_cudnn_prepare(dims[0], 0).refusal);
        return;
    }
    int taken = 0;
    for (int i = 0; i < count; i++) taken += check(which, dims[i], logits);
    if (which != FLASH) printf("  cuDNN took %d of %d shapes\n", taken, count);
    EXPECT(which != FLASH || taken == count);
}

CASE(flash_small) { check_all(FLASH, small_dims, ARRAY_LEN(small_dims), LOGITS_NORMAL); }
CASE(flash_large) { check_all(FLASH, large_dims, ARRAY_LEN(large_dims), LOGITS_NORMAL); }
CASE(flash_large_logits) { check_all(FLASH, small_dims, ARRAY_LEN(small_dims), LOGITS_LARGE); }
CASE(flash_negative_logits) {
    check_all(FLASH, small_dims, ARRAY_LEN(small_dims), LOGITS_NEGATIVE);
}
CASE(cudnn_small) { check_all(CUDNN, small_dims, ARRAY_LEN(small_dims), LOGITS_NORMAL); }
CASE(cudnn_large) { check_all(CUDNN, large_dims, ARRAY_LEN(large_dims), LOGITS_NORMAL); }
CASE(cudnn_large_logits) { check_all(CUDNN, small_dims, ARRAY_LEN(small_dims), LOGITS_LARGE); }
CASE(cudnn_negative_logits) {
    check_all(CUDNN, small_dims, ARRAY_LEN(small_dims), LOGITS_NEGATIVE);
}

CASE(cudnn_in_any_order) {
    check_all(CUDNN_ANY_ORDER, large_dims, ARRAY_LEN(large_dims), LOGITS_NORMAL);
}

// Dims that nobody announced run too, with what scratch there is.
CASE(dims_not_announced) {
    attention_cuda_select("auto");
    set_scratch(gpu, attention_cuda_scratch_bytes(large_dims[3], 0));
    const AttentionDims prompt = {1, 5, 4, 4, 64};
    Problem want = reference_problem(prompt, LOGITS_NORMAL);
    Bounds bounds = bounds_of(&want, FLASH);
    check_forward(&want, &bounds, "a prompt");
    free_bounds(&bounds);
    free_problem(&want);
}

// --- speed ---

// Milliseconds of one pass, mean of many.
static double time_pass(const Problem *p, int backward) {
    enum { WARM_UP = 3, RUNS = 20 };
    Tensor qkv = upload(p->qkv), dout = upload(p->dout), out = poisoned(p->out),
           lse = poisoned(p->lse);
    Tensor dqkv = poisoned(p->dqkv);
    double begin = 0;
    attention_forward_cuda(gpu, out, lse, qkv, p->dims);
    for (int i = 0; i < WARM_UP + RUNS; i++) {
        if (i == WARM_UP) {
            gpu->synchronize(gpu);
            begin = now_ms();
        }
        if (backward) attention_backward_cuda(gpu, dqkv, dout, out, lse, qkv, p->dims);
        else attention_forward_cuda(gpu, out, lse, qkv, p->dims);
    }
    gpu->synchronize(gpu);
    const double ms = (now_ms() - begin) / RUNS;
    void *tensors[] = {qkv.data, dout.data, out.data, lse.data, dqkv.data};
    for (int i = 0; i < 5; i++) gpu->free(gpu, tensors[i]);
    return ms;
}

// The causal half counts: forward 2 products, 2 * 2 * B*NH*HS * T*T / 2 FLOP, backward 5 products
// whatever the implementation does, 2.5 times as many.
CASE(speed) {
    static const AttentionDims dims[] = {{64, 1024, 12, 12, 64}, {16, 2048, 16, 16, 128}};
    for (int i = 0; i < ARRAY_LEN(dims); i++) {
        const AttentionDims a = dims[i];
        Problem p = make_problem(a, LOGITS_NORMAL);
        const double flops = 2.0 * a.B * a.num_heads * a.head_dim * a.T * a.T;
        for (int which = 0; which < NUM_IMPLEMENTATIONS; which++) {
            if (!select_implementation((Implementation)which, a)) {
                printf("  %s does not run: %s\n", implementation_names[which],
                       attention_cudnn_prepare(a, 0).refusal);
                continue;
            }
            const double forward = time_pass(&p, 0), backward = time_pass(&p, 1);
            printf(
                "  %-5s%s B %d T %d NH %d HS %d: forward %.3f ms, %.0f TFLOP/s; backward %.3f ms, "
                "%.0f TFLOP/s\n",
                implementation_names[which], which == CUDNN_ANY_ORDER ? " in any order" : "", a.B,
                a.T, a.num_heads, a.head_dim, forward, flops / forward * 1e-9, backward,
                2.5 * flops / backward * 1e-9);
        }
        free_problem(&p);
    }
}

int main(int argc, char **argv) {
    if (device_cuda_count() == 0) {
        printf("no CUDA device\n0 passed, 1 failed\n");
        return 1;
    }
    cpu = device_cpu_open(0);
    gpu = device_cuda_open(0);
    const int status = test_run(argc, argv);
    gpu->close(gpu);
    cpu->close(cpu);
    return status;
}
