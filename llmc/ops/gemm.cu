// gemm -- every matrix product on a GPU, through cuBLASLt. What it computes is in gemm.h, how it is
// described to cuBLASLt in gemm_plan.cuh, which algorithm computes it in gemm_plans.cuh and
// gemm_tune.cu. Here is the call. No kernel here multiplies matrices; the program's own one is
// gemm_mma.
#include "gemm.h"

#include "../device_cuda.cuh"
#include "gemm_plans.cuh"
#include "scratch_cuda.cuh"

const char *gemm_error_cuda(Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                            GemmEpilogue epilogue) {
    GemmPart part = gemm_part(dev, d, a, epilogue, 0);
    cublasStatus_t status = gemm_plans_get(dev, part.d, &part.a, b, part.epilogue)->status;
    return status == CUBLAS_STATUS_SUCCESS ? NULL : cublasLtGetStatusString(status);
}

// --- the product ---

/* alpha = amax_a * amax_b * mult; a missing amax counts as 1. One thread, a few bytes: its launch
   is all it costs. */
__global__ static void gemm_alpha_kernel(float *alpha, const float *amax_a, const float *amax_b,
                                         float mult) {
    float a = amax_a ? *amax_a : 1.0f, b = amax_b ? *amax_b : 1.0f;
    *alpha = __fmul_rn(__fmul_rn(a, b), mult);
}

/* Where cuBLASLt finds alpha: the constant 1 for plain operands. */
static const float *prepare_alpha(Device *dev, const QOperand *a, const QOperand *b) {
    DeviceScalars *scalars = device_cuda_scalars(dev);
    float mult = operand_alpha_mult(a, b);
    if (!a->amax && !b->amax && mult == 1.0f) return &scalars->one;
    gemm_alpha_kernel<<<1, 1, 0, device_cuda_stream(dev)>>>(&scalars->alpha, a->amax, b->amax,
                                                            mult);
    CUDA_CHECK_LAUNCH();
    return &scalars->alpha;
}

/* d += the slices' products, in order. bytes 4 (slices + 2) an element; limiter: memory. */
__global__ static void add_partials_kernel(float *d, const float *partials, int64_t count,
                                           int slices) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float sum = d[i];
    for (int s = 0; s < slices; s++) sum += partials[s * count + i];
    d[i] = sum;
}

static void add_partials(Device *dev, Tensor d, const float *partials, int slices) {
    int64_t count = tensor_count(d);
    const int threads = 256;
    add_partials_kernel<<<(unsigned)ceil_div(count, threads), threads, 0,
                          device_cuda_stream(dev)>>>((float *)d.data, partials, count, slices);
    CUDA_CHECK_LAUNCH();
}

/* One call of cuBLASLt. */
static void multiply(Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                     GemmEpilogue epilogue) {
    GemmPlan *p = gemm_plans_get(dev, d, a, b, epilogue);
    gemm_plan_check(p->status, &p->key, "cublasLtMatmulAlgoGetHeuristic");
    const float *alpha = prepare_alpha(dev, a, b);
    DeviceScalars *scalars = device_cuda_scalars(dev);
    const float *beta = p->key.accumulate ? &scalars->one : &scalars->zero;
    size_t workspace_bytes;
    char *workspace = (char *)device_cuda_workspace(dev, &workspace_bytes);
    void *out = d.data;
    if (p->key.slices > 1) out = workspace + workspace_bytes - gemm_partial_bytes(&p->key);
    cublasStatus_t status = cublasLtMatmul(device_cuda_cublaslt(dev), p->desc, alpha, b->data, p->b,
                                           a->data, p->a, beta, out, p->d, out, p->d, &p->algo,
                                           workspace, p->workspace_bytes, device_cuda_stream(dev));
    gemm_plan_check(status, &p->key, "cublasLtMatmul");
    if (p->key.slices > 1) add_partials(dev, d, (const float *)out, p->key.slices);
}

// --- f32 values into bf16 ---

static const size_t SUM_BYTES = (size_t)64 << 20;   // of a part's rows: far more than fills a GPU

size_t gemm_scratch_cuda(int64_t rows, int64_t cols) {
    size_t bytes = (size_t)(rows * cols) * sizeof(float), row = (size_t)cols * sizeof(float);
    size_t most = row > SUM_BYTES ? row : SUM_BYTES;
    return bytes < most ? bytes : most;
}

GemmPart gemm_part(Device *dev, Tensor d, const QOperand *a, GemmEpilogue epilogue, int64_t row) {
    GemmPart part = {d, *a, epilogue};
    if (!gemm_values_are_f32(a) || d.dtype == DT_F32) return part;
    int64_t rows = max_i64(1, (int64_t)(SUM_BYTES / sizeof(float)) / d.cols);
    rows = min_i64(rows, d.rows - row);
    if (rows < d.rows) part.a = quantize_rows(a, row, rows);
    part.d =
        tensor_view(device_scratch(dev, gemm_scratch_cuda(rows, d.cols)), DT_F32, rows, d.cols);
    part.epilogue.bias.data = NULL;
    return part;
}

/* d = the sums + bias, rounded; two columns a thread. bytes 6 an element; limiter: memory. */
__global__ static void round_sums_kernel(__nv_bfloat162 *d, const float2 *sums,
                                         const __nv_bfloat162 *bias, int64_t count, int64_t cols) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float2 sum = sums[i];
    if (bias) {
        float2 add = __bfloat1622float2(bias[i % cols]);
        sum = make_float2(sum.x + add.x, sum.y + add.y);
    }
    d[i] = __float22bfloat162_rn(sum);
}

static void round_sums(Device *dev, Tensor d, int64_t row, Tensor sums, Tensor bias) {
    int64_t count = tensor_count(sums) / 2, cols = d.cols / 2;
    const int threads = 256;
    round_sums_kernel<<<(unsigned)ceil_div(count, threads), threads, 0, device_cuda_stream(dev)>>>(
        (__nv_bfloat162 *)d.data + row * cols, (const float2 *)sums.data,
        (const __nv_bfloat162 *)bias.data, count, cols);
    CUDA_CHECK_LAUNCH();
}

void gemm_cuda(Device *dev, Tensor d, const QOperand *a, const QOperand *b, GemmEpilogue epilogue) {
    int has_units = format_is_fp8(a->format) ? dev->native_fp8 : dev->native_fp4;
    CHECK(a->form == FORM_VALUES || has_units, "gemm: packed %s, and %s has no tensor cores for it",
          formats[a->format].name, dev->name);
    gemm_check(d, a, b, epilogue);
    for (int64_t row = 0; row < d.rows;) {
        GemmPart part = gemm_part(dev, d, a, epilogue, row);
        multiply(dev, part.d, &part.a, b, part.epilogue);
        if (part.d.dtype != d.dtype) round_sums(dev, d, row, part.d, epilogue.bias);
        row += part.d.rows;
    }
}
