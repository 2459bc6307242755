// gemm -- every matrix product on a GPU, through cuBLASLt. What it computes is in gemm.h; here is
// how row-major operands become cuBLASLt's column-major ones, and which algorithm runs. No own
// kernel multiplies matrices.
//
// A row-major (r,c) matrix is a column-major (c,r) one with leading dimension c. So
//   d[m,n] = sum_k a[m,k] b[n,k]   becomes   D (N x M) = B (N x K) . A (K x M),
// cuBLASLt's first operand is b, its second is a, and the bias along n runs along its rows, which
// is what its bias epilogue adds.
//   b stored (N,K) is column-major (K x N): transposed; stored (K,N) it is (N x K): as it is
//   a stored (M,K) is column-major (K x M): as it is; stored (K,M) it is (M x K): transposed
#include "gemm.h"

#include <cstdlib>
#include <cstring>

#include "../device_cuda.cuh"

enum { GEMM_PLAN_SLOTS = 1024 };   // a power of two; a model needs a few dozen

// What an algorithm is chosen for. Every byte counts in a comparison, so there is no padding.
typedef struct {
    int64_t m, n, k;
    int32_t a_type, b_type, d_type;   // cudaDataType_t
    int32_t a_k_contiguous, b_k_contiguous;
    int32_t has_bias, accumulate;
    int32_t a_align, b_align, d_align;   // of the pointers, bytes
} GemmKey;

typedef struct {
    GemmKey key;
    cublasLtMatmulDesc_t desc;   // NULL: the slot is free
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
} GemmPlan;

typedef struct {
    GemmPlan slots[GEMM_PLAN_SLOTS];
    int count;
} GemmPlans;

static void gemm_library_check(cublasStatus_t status, const GemmKey *key, const char *call) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    die(EXIT_DEVICE,
        "%s failed: %s; product of a (%lld,%lld), k %s, and b (%lld,%lld), k %s, into %s%s%s, "
        "pointers aligned to %d, %d, %d bytes",
        call, cublasLtGetStatusString(status), (long long)key->m, (long long)key->k,
        key->a_k_contiguous ? "contiguous" : "strided", (long long)key->n, (long long)key->k,
        key->b_k_contiguous ? "contiguous" : "strided", key->d_type == CUDA_R_32F ? "f32" : "bf16",
        key->has_bias ? " with bias" : "", key->accumulate ? ", accumulating" : "", key->a_align,
        key->b_align, key->d_align);
}
#define GEMM_CHECK(key, call) gemm_library_check((call), (key), #call)

// --- plans ---

static cudaDataType_t cuda_type(DType t) {
    CHECK(t == DT_F32 || t == DT_BF16, "no GEMM of %s on CUDA", dtype_info[t].name);
    return t == DT_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

static int32_t pointer_align(const void *p) {
    int32_t align = 256;   // more tells cuBLASLt nothing
    while ((uintptr_t)p % (uintptr_t)align) align /= 2;
    return align;
}

static GemmKey gemm_key(Tensor d, const QOperand *a, const QOperand *b, GemmEpilogue epilogue) {
    GemmKey key;
    memset(&key, 0, sizeof(key));
    key.m = a->rows;
    key.n = b->rows;
    key.k = a->k;
    key.a_type = cuda_type(a->dtype);
    key.b_type = cuda_type(b->dtype);
    key.d_type = cuda_type(d.dtype);
    key.a_k_contiguous = a->k_contiguous;
    key.b_k_contiguous = b->k_contiguous;
    key.has_bias = !tensor_empty(epilogue.bias);
    key.accumulate = epilogue.accumulate;
    key.a_align = pointer_align(a->data);
    key.b_align = pointer_align(b->data);
    key.d_align = pointer_align(d.data);
    return key;
}

static uint64_t hash_key(const GemmKey *key) {
    const uint8_t *bytes = (const uint8_t *)key;
    uint64_t hash = 0xCBF29CE484222325u;   // FNV-1a
    for (size_t i = 0; i < sizeof(*key); i++) hash = (hash ^ bytes[i]) * 0x100000001B3u;
    return hash;
}

static void set_attribute(GemmPlan *p, cublasLtMatmulDescAttributes_t which, const void *value,
                          size_t bytes) {
    GEMM_CHECK(&p->key, cublasLtMatmulDescSetAttribute(p->desc, which, value, bytes));
}

static void set_preference(GemmPlan *p, cublasLtMatmulPreference_t preference,
                           cublasLtMatmulPreferenceAttributes_t which, const void *value,
                           size_t bytes) {
    GEMM_CHECK(&p->key, cublasLtMatmulPreferenceSetAttribute(preference, which, value, bytes));
}

static void describe_product(GemmPlan *p, const void *bias) {
    const GemmKey *key = &p->key;
    GEMM_CHECK(key, cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    cublasLtPointerMode_t pointers = CUBLASLT_POINTER_MODE_DEVICE;
    set_attribute(p, CUBLASLT_MATMUL_DESC_POINTER_MODE, &pointers, sizeof(pointers));
    cublasOperation_t first = key->b_k_contiguous ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = key->a_k_contiguous ? CUBLAS_OP_N : CUBLAS_OP_T;
    set_attribute(p, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first));
    set_attribute(p, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second));
    if (key->has_bias) {
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        set_attribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
        set_attribute(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &key->d_type, sizeof(key->d_type));
        // The heuristic looks at it too, so it is set before that is asked.
        set_attribute(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
    }
}

static void describe_operand(GemmPlan *p, cublasLtMatrixLayout_t *layout, int32_t type,
                             int64_t rows, int64_t cols) {
    GEMM_CHECK(&p->key, cublasLtMatrixLayoutCreate(layout, (cudaDataType_t)type, (uint64_t)rows,
                                                   (uint64_t)cols, rows));
}

static void describe_operands(GemmPlan *p) {
    const GemmKey *key = &p->key;
    int64_t m = key->m, n = key->n, k = key->k;
    describe_operand(p, &p->b, key->b_type, key->b_k_contiguous ? k : n,
                     key->b_k_contiguous ? n : k);
    describe_operand(p, &p->a, key->a_type, key->a_k_contiguous ? k : m,
                     key->a_k_contiguous ? m : k);
    describe_operand(p, &p->d, key->d_type, n, m);
}

/* Takes cuBLASLt's first choice among the deterministic algorithms that fit the workspace. */
static void choose_algorithm(Device *dev, GemmPlan *p) {
    const GemmKey *key = &p->key;
    size_t workspace_bytes;
    device_cuda_workspace(dev, &workspace_bytes);
    // Parts of a split K are added in f32 and in a fixed order, or K is not split.
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t first = (uint32_t)key->b_align, second = (uint32_t)key->a_align;
    uint32_t out = (uint32_t)key->d_align;
    cublasLtMatmulPreference_t want;
    GEMM_CHECK(key, cublasLtMatmulPreferenceCreate(&want));
    set_preference(p, want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                   sizeof(workspace_bytes));
    set_preference(p, want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                   sizeof(reductions));
    set_preference(p, want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &first, sizeof(first));
    set_preference(p, want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &second, sizeof(second));
    set_preference(p, want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out, sizeof(out));
    set_preference(p, want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out, sizeof(out));
    cublasLtMatmulHeuristicResult_t found;
    int num_found = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        device_cuda_cublaslt(dev), p->desc, p->b, p->a, p->d, p->d, want, 1, &found, &num_found);
    if (status == CUBLAS_STATUS_SUCCESS && num_found == 0) status = CUBLAS_STATUS_NOT_SUPPORTED;
    gemm_library_check(status, key, "cublasLtMatmulAlgoGetHeuristic");
    GEMM_CHECK(key, cublasLtMatmulPreferenceDestroy(want));
    p->algo = found.algo;
    p->workspace_bytes = found.workspaceSize;
}

static void destroy_plans(void *data) {
    GemmPlans *plans = (GemmPlans *)data;
    for (int i = 0; i < GEMM_PLAN_SLOTS; i++) {
        GemmPlan *p = &plans->slots[i];
        if (!p->desc) continue;
        GEMM_CHECK(&p->key, cublasLtMatrixLayoutDestroy(p->d));
        GEMM_CHECK(&p->key, cublasLtMatrixLayoutDestroy(p->b));
        GEMM_CHECK(&p->key, cublasLtMatrixLayoutDestroy(p->a));
        GEMM_CHECK(&p->key, cublasLtMatmulDescDestroy(p->desc));
    }
    free(plans);
}

/* The plan for this key, made at its first use. */
static GemmPlan *find_plan(Device *dev, GemmKey key, const void *bias) {
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
    GemmPlan *p = &plans->slots[at];
    p->key = key;
    describe_product(p, bias);
    describe_operands(p);
    choose_algorithm(dev, p);
    return p;
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

/* Products whose rows do not start at 16 bytes take a library path that rounds the product to bf16
   before it adds the bias: seen on sm_90 with cuBLASLt 13.1. ops->limits_error refuses such
   models. */
static void check_rows_aligned(const char *matrix, int64_t cols) {
    CHECK(cols % 8 == 0, "gemm: rows of %s are %lld values, not a multiple of 8", matrix,
          (long long)cols);
}

void gemm_cuda(Device *dev, Tensor d, const QOperand *a, const QOperand *b, GemmEpilogue epilogue) {
    gemm_check(d, a, b, epilogue);
    CHECK(a->form == FORM_VALUES && a->dtype == DT_BF16,
          "CUDA multiplies decoded values in bf16, not form %d in %s", (int)a->form,
          dtype_info[a->dtype].name);
    check_rows_aligned("a", a->k_contiguous ? a->k : a->rows);
    check_rows_aligned("b", b->k_contiguous ? b->k : b->rows);
    check_rows_aligned("d", d.cols);
    const void *bias = epilogue.bias.data;
    GemmPlan *p = find_plan(dev, gemm_key(d, a, b, epilogue), bias);
    if (bias) set_attribute(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
    const float *alpha = prepare_alpha(dev, a, b);
    DeviceScalars *scalars = device_cuda_scalars(dev);
    const float *beta = epilogue.accumulate ? &scalars->one : &scalars->zero;
    size_t workspace_bytes;
    void *workspace = device_cuda_workspace(dev, &workspace_bytes);
    cublasStatus_t status = cublasLtMatmul(
        device_cuda_cublaslt(dev), p->desc, alpha, b->data, p->b, a->data, p->a, beta, d.data, p->d,
        d.data, p->d, &p->algo, workspace, p->workspace_bytes, device_cuda_stream(dev));
    gemm_library_check(status, &p->key, "cublasLtMatmul");
}
