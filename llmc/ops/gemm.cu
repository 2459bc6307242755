// gemm -- every matrix product on a GPU, through cuBLASLt. What it computes is in gemm.h, how it is
// described to cuBLASLt in gemm_plan.cuh, which algorithm computes it in gemm_plans.cuh and
// gemm_tune.cu. Here is the call. No kernel here multiplies matrices; the program's own one is
// gemm_mma.
#include "gemm.h"

#include "../device_cuda.cuh"
#include "gemm_plans.cuh"

const char *gemm_error_cuda(Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                            GemmEpilogue epilogue) {
    cublasStatus_t status = gemm_plans_get(dev, d, a, b, epilogue)->status;
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
    if (!a->amax && !b->amax) return &scalars->one;
    gemm_alpha_kernel<<<1, 1, 0, device_cuda_stream(dev)>>>(&scalars->alpha, a->amax, b->amax,
                                                            operand_alpha_mult(a, b));
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

void gemm_cuda(Device *dev, Tensor d, const QOperand *a, const QOperand *b, GemmEpilogue epilogue) {
    int has_units = format_is_fp8(a->format) ? dev->native_fp8 : dev->native_fp4;
    CHECK(a->form == FORM_VALUES || has_units, "gemm: packed %s, and %s has no tensor cores for it",
          formats[a->format].name, dev->name);
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
