// gemm -- every matrix product on a GPU, through cuBLASLt. What it computes is in gemm.h, how it is
// described to cuBLASLt in gemm_plan.cuh. Here are the plans of a model's products, each made once,
// and the call. No kernel here multiplies matrices; the program's own one is gemm_mma.
#include "gemm.h"

#include <cstdlib>
#include <cstring>

#include "../device_cuda.cuh"
#include "gemm_plan.cuh"

enum { GEMM_PLAN_SLOTS = 1024 };   // a power of two; a model needs a few dozen

typedef struct {
    GemmPlan slots[GEMM_PLAN_SLOTS];
    int count;
} GemmPlans;

// --- plans ---

static uint64_t hash_key(const GemmKey *key) {
    const uint8_t *bytes = (const uint8_t *)key;
    uint64_t hash = 0xCBF29CE484222325u;   // FNV-1a
    for (size_t i = 0; i < sizeof(*key); i++) hash = (hash ^ bytes[i]) * 0x100000001B3u;
    return hash;
}

static void destroy_plans(void *data) {
    GemmPlans *plans = (GemmPlans *)data;
    for (int i = 0; i < GEMM_PLAN_SLOTS; i++) {
        if (plans->slots[i].desc) gemm_plan_destroy(&plans->slots[i]);
    }
    free(plans);
}

/* The place of this key: its plan, or the free slot (desc NULL) where it belongs. */
static GemmPlan *plan_slot(Device *dev, GemmKey key) {
    DeviceAttachment *attachment = device_cuda_attachment(dev, ATTACHMENT_GEMM);
    if (!attachment->data) {
        attachment->data = xmalloc(sizeof(GemmPlans));
        attachment->destroy = destroy_plans;
    }
    GemmPlans *plans = (GemmPlans *)attachment->data;
    uint64_t at = hash_key(&key) % GEMM_PLAN_SLOTS;
    while (plans->slots[at].desc) {
        if (memcmp(&plans->slots[at].key, &key, sizeof(key)) == 0) return &plans->slots[at];
        at = (at + 1) % GEMM_PLAN_SLOTS;
    }
    CHECK(plans->count + 1 < GEMM_PLAN_SLOTS, "more than %d kinds of GEMM", GEMM_PLAN_SLOTS - 1);
    plans->count++;
    return &plans->slots[at];
}

/* Of the partial sums of slices, which take the end of the workspace. */
static size_t partial_bytes(const GemmKey *key) {
    int64_t count = key->slices == 1 ? 0 : key->slices * key->m * key->n;
    return (size_t)round_up(count * (int64_t)sizeof(float), 256);
}

/* The plan of this product, made at its first use, with this product's pointers. What the library
   said of it is in status. */
static GemmPlan *prepare_plan(Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                              GemmEpilogue epilogue) {
    GemmKey key = gemm_plan_key(d, a, b, epilogue);
    GemmPlan *p = plan_slot(dev, key);
    int is_new = !p->desc;
    if (is_new) gemm_plan_describe(p, key);
    gemm_plan_point(p, a, b, epilogue.bias);
    if (is_new) {
        size_t workspace_bytes;
        device_cuda_workspace(dev, &workspace_bytes);
        CHECK(partial_bytes(&key) <= workspace_bytes / 2, "gemm: %d slices of %lld x %lld",
              key.slices, (long long)key.m, (long long)key.n);
        workspace_bytes -= partial_bytes(&key);
        p->status = gemm_plan_choose(p, device_cuda_cublaslt(dev), workspace_bytes);
    }
    return p;
}

const char *gemm_error_cuda(Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                            GemmEpilogue epilogue) {
    cublasStatus_t status = prepare_plan(dev, d, a, b, epilogue)->status;
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
    CHECK(a->form == FORM_VALUES || dev->native_fp4,
          "gemm: packed operands, and %s has no FP4 tensor cores", dev->name);
    GemmPlan *p = prepare_plan(dev, d, a, b, epilogue);
    gemm_plan_check(p->status, &p->key, "cublasLtMatmulAlgoGetHeuristic");
    const float *alpha = prepare_alpha(dev, a, b);
    DeviceScalars *scalars = device_cuda_scalars(dev);
    const float *beta = p->key.accumulate ? &scalars->one : &scalars->zero;
    size_t workspace_bytes;
    char *workspace = (char *)device_cuda_workspace(dev, &workspace_bytes);
    void *out = d.data;
    if (p->key.slices > 1) out = workspace + workspace_bytes - partial_bytes(&p->key);
    cublasStatus_t status = cublasLtMatmul(device_cuda_cublaslt(dev), p->desc, alpha, b->data, p->b,
                                           a->data, p->a, beta, out, p->d, out, p->d, &p->algo,
                                           workspace, p->workspace_bytes, device_cuda_stream(dev));
    gemm_plan_check(status, &p->key, "cublasLtMatmul");
    if (p->key.slices > 1) add_partials(dev, d, (const float *)out, p->key.slices);
}
