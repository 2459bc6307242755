// gemm_plan -- descriptors and algorithms of gemm_plan.cuh, which explains them.
#include "gemm_plan.cuh"

#include <cstring>

#include "common.h"

// --- keys and errors ---

static const char *type_name(int32_t type) {
    switch (type) {
    case CUDA_R_4F_E2M1: return "packed nvfp4";
    case CUDA_R_8F_E4M3: return "packed e4m3";
    case CUDA_R_8F_E5M2: return "packed e5m2";
    case CUDA_R_32F: return "f32";
    default: return "bf16";
    }
}

void gemm_plan_check(cublasStatus_t status, const GemmKey *key, const char *call) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    die(EXIT_DEVICE,
        "%s failed: %s; product of a (%lld,%lld) in %s, k %s, and b (%lld,%lld) in %s, k %s, into "
        "%s%s%s, %d slices, pointers aligned to %d, %d, %d bytes; CUBLASLT_LOG_LEVEL=5 shows them "
        "all",
        call, cublasLtGetStatusString(status), (long long)key->m, (long long)key->k,
        type_name(key->a_type), key->a_k_contiguous ? "contiguous" : "strided", (long long)key->n,
        (long long)key->k, type_name(key->b_type), key->b_k_contiguous ? "contiguous" : "strided",
        type_name(key->d_type), key->has_bias ? " with bias" : "",
        key->accumulate ? ", accumulating" : "", key->slices, key->a_align, key->b_align,
        key->d_align);
}
#define GEMM_CHECK(key, call) gemm_plan_check((call), (key), #call)

static cudaDataType_t cuda_type(DType t) {
    CHECK(t == DT_F32 || t == DT_BF16, "no GEMM of %s on CUDA", dtype_info[t].name);
    return t == DT_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

/* Of packed codes; -1: there is none. */
static int32_t code_type(FormatId format) {
    switch (formats[format].cell.elem) {
    case DT_E2M1: return CUDA_R_4F_E2M1;
    case DT_E4M3: return CUDA_R_8F_E4M3;
    case DT_E5M2: return CUDA_R_8F_E5M2;
    default: return -1;
    }
}

static int32_t operand_type(const QOperand *q) {
    return q->form == FORM_PACKED ? code_type(q->format) : cuda_type(q->dtype);
}

static int32_t pointer_align(const void *p) {
    int32_t align = 256;   // more tells cuBLASLt nothing
    while ((uintptr_t)p % (uintptr_t)align) align /= 2;
    return align;
}

/* Rows start at 16 bytes. Other products of values take a library path that rounds the product to
   bf16 before it adds the bias: seen on sm_90 with cuBLASLt 13.1. Other packed ones have no kernel.
   ops->limits_error refuses such models. */
static void check_rows_aligned(const char *matrix, int64_t cols, int64_t divisor) {
    CHECK(cols % divisor == 0, "gemm: rows of %s are %lld values, not a multiple of %lld", matrix,
          (long long)cols, (long long)divisor);
}

static void check_values(const char *matrix, const QOperand *q) {
    check_rows_aligned(matrix, q->k_contiguous ? q->k : q->rows, 8);
}

static void check_packed(const char *matrix, const QOperand *q) {
    CHECK(code_type(q->format) >= 0, "gemm: packed operand %s is %s, not NVFP4, E4M3 or E5M2",
          matrix, formats[q->format].name);
    int blocks = format_has_blocks(q->format);
    int has_scales = !blocks || (q->scales && (uintptr_t)q->scales % 16 == 0);
    CHECK(q->k_contiguous && q->amax && has_scales,
          "gemm: packed operand %s is strided, or lacks its scales at a multiple of 16 bytes",
          matrix);
    check_rows_aligned(matrix, q->k / quantize_num_slices(q), blocks ? 32 : 16);
}

/* What cuBLASLt has no product of, whatever the device. */
static void check_packed_pair(Tensor d, const QOperand *a, const QOperand *b,
                              GemmEpilogue epilogue) {
    CHECK(format_is_fp8(a->format) == format_is_fp8(b->format), "gemm: packed %s by packed %s",
          formats[a->format].name, formats[b->format].name);
    CHECK(code_type(a->format) != CUDA_R_8F_E5M2 || code_type(b->format) != CUDA_R_8F_E5M2,
          "gemm: both operands are packed e5m2");
    if (format_is_fp8(a->format)) check_rows_aligned("d", d.cols, 16);
    // Its bias of packed operands is bf16 whatever d is, not "as d".
    CHECK(tensor_empty(epilogue.bias) || d.dtype == DT_BF16,
          "gemm: packed operands take a bias into bf16 only");
}

static void check_operand(const char *matrix, const QOperand *q) {
    if (q->form == FORM_PACKED) check_packed(matrix, q);
    else check_values(matrix, q);
}

static int has_block_scales(const GemmKey *key) { return key->a_type == CUDA_R_4F_E2M1; }

static int is_fp8(const GemmKey *key) {
    return key->a_type == CUDA_R_8F_E4M3 || key->a_type == CUDA_R_8F_E5M2;
}

GemmKey gemm_plan_key(Tensor d, const QOperand *a, const QOperand *b, GemmEpilogue epilogue) {
    gemm_check(d, a, b, epilogue);
    check_operand("a", a);
    check_operand("b", b);
    check_rows_aligned("d", d.cols, 8);
    if (a->form == FORM_PACKED) check_packed_pair(d, a, b, epilogue);
    CHECK(!gemm_values_are_f32(a) || d.dtype == DT_F32,
          "gemm: cuBLASLt multiplies f32 values into f32, not %s", dtype_info[d.dtype].name);
    GemmKey key;
    memset(&key, 0, sizeof(key));
    key.m = a->rows;
    key.n = b->rows;
    key.slices = quantize_num_slices(a);
    key.k = a->k / key.slices;
    key.a_type = operand_type(a);
    key.b_type = operand_type(b);
    key.d_type = cuda_type(d.dtype);
    key.a_k_contiguous = a->k_contiguous;
    key.b_k_contiguous = b->k_contiguous;
    key.has_bias = !tensor_empty(epilogue.bias);
    key.accumulate = epilogue.accumulate && key.slices == 1;
    key.a_align = pointer_align(a->data);
    key.b_align = pointer_align(b->data);
    key.d_align = pointer_align(d.data);
    return key;
}

// --- descriptors ---

static void set_attribute(GemmPlan *p, cublasLtMatmulDescAttributes_t which, const void *value,
                          size_t bytes) {
    GEMM_CHECK(&p->key, cublasLtMatmulDescSetAttribute(p->desc, which, value, bytes));
}

static void set_pointer(GemmPlan *p, cublasLtMatmulDescAttributes_t which, const void *pointer) {
    set_attribute(p, which, &pointer, sizeof(pointer));
}

static void describe_product(GemmPlan *p) {
    const GemmKey *key = &p->key;
    GEMM_CHECK(key, cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    cublasLtPointerMode_t pointers = CUBLASLT_POINTER_MODE_DEVICE;   // of alpha and beta
    set_attribute(p, CUBLASLT_MATMUL_DESC_POINTER_MODE, &pointers, sizeof(pointers));
    cublasOperation_t first = key->b_k_contiguous ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = key->a_k_contiguous ? CUBLAS_OP_N : CUBLAS_OP_T;
    set_attribute(p, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first));
    set_attribute(p, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second));
    if (is_fp8(key)) {
        int8_t fast = 0;
        set_attribute(p, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast));
    }
    if (has_block_scales(key)) {
        cublasLtMatmulMatrixScale_t scales = CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
        set_attribute(p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &scales, sizeof(scales));
        set_attribute(p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &scales, sizeof(scales));
    }
    if (key->has_bias) {
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        set_attribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
        set_attribute(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &key->d_type, sizeof(key->d_type));
    }
}

static void describe_operand(GemmPlan *p, cublasLtMatrixLayout_t *layout, int32_t type,
                             int64_t rows, int64_t cols) {
    GEMM_CHECK(&p->key, cublasLtMatrixLayoutCreate(layout, (cudaDataType_t)type, (uint64_t)rows,
                                                   (uint64_t)cols, rows));
    int32_t count = p->key.slices;
    int64_t stride = rows * cols;
    if (count == 1) return;
    GEMM_CHECK(&p->key, cublasLtMatrixLayoutSetAttribute(
                            *layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
    GEMM_CHECK(&p->key,
               cublasLtMatrixLayoutSetAttribute(
                   *layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)));
}

void gemm_plan_describe(GemmPlan *p, GemmKey key) {
    int64_t m = key.m, n = key.n, k = key.k;
    p->key = key;
    describe_product(p);
    describe_operand(p, &p->b, key.b_type, key.b_k_contiguous ? k : n, key.b_k_contiguous ? n : k);
    describe_operand(p, &p->a, key.a_type, key.a_k_contiguous ? k : m, key.a_k_contiguous ? m : k);
    describe_operand(p, &p->d, key.d_type, n, m);
}

void gemm_plan_point(GemmPlan *p, const QOperand *a, const QOperand *b, Tensor bias) {
    if (p->key.has_bias) set_pointer(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.data);
    if (!has_block_scales(&p->key)) return;
    set_pointer(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b->scales);
    set_pointer(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a->scales);
}

void gemm_plan_destroy(GemmPlan *p) {
    GEMM_CHECK(&p->key, cublasLtMatrixLayoutDestroy(p->d));
    GEMM_CHECK(&p->key, cublasLtMatrixLayoutDestroy(p->a));
    GEMM_CHECK(&p->key, cublasLtMatrixLayoutDestroy(p->b));
    GEMM_CHECK(&p->key, cublasLtMatmulDescDestroy(p->desc));
}

// --- algorithms ---

static void set_preference(const GemmKey *key, cublasLtMatmulPreference_t preference,
                           cublasLtMatmulPreferenceAttributes_t which, const void *value,
                           size_t bytes) {
    GEMM_CHECK(key, cublasLtMatmulPreferenceSetAttribute(preference, which, value, bytes));
}

cublasStatus_t gemm_plan_candidates(const GemmPlan *p, cublasLtHandle_t cublaslt,
                                    size_t workspace_bytes, int most, GemmCandidates *out) {
    const GemmKey *key = &p->key;
    // Parts of a split K are added in f32 and in a fixed order, or K is not split.
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t first = (uint32_t)key->b_align, second = (uint32_t)key->a_align;
    uint32_t d_align = (uint32_t)key->d_align;
    cublasLtMatmulPreference_t want;
    GEMM_CHECK(key, cublasLtMatmulPreferenceCreate(&want));
    set_preference(key, want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                   sizeof(workspace_bytes));
    set_preference(key, want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                   sizeof(reductions));
    set_preference(key, want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &first, sizeof(first));
    set_preference(key, want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &second, sizeof(second));
    set_preference(key, want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &d_align,
                   sizeof(d_align));
    set_preference(key, want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d_align,
                   sizeof(d_align));
    out->count = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        cublaslt, p->desc, p->b, p->a, p->d, p->d, want, most, out->items, &out->count);
    GEMM_CHECK(key, cublasLtMatmulPreferenceDestroy(want));
    if (status == CUBLAS_STATUS_SUCCESS && out->count == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    return status;
}

cublasStatus_t gemm_plan_choose(GemmPlan *p, cublasLtHandle_t cublaslt, size_t workspace_bytes) {
    GemmCandidates found;
    cublasStatus_t status = gemm_plan_candidates(p, cublaslt, workspace_bytes, 1, &found);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    p->algo = found.items[0].algo;
    p->workspace_bytes = found.items[0].workspaceSize;
    return status;
}

/* The parts of a split K, if it is split, are summed in f32 and in a fixed order. */
static int sums_in_order(const cublasLtMatmulAlgo_t *algo) {
    uint32_t scheme;
    size_t written;
    cublasStatus_t status = cublasLtMatmulAlgoConfigGetAttribute(
        algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme), &written);
    return status == CUBLAS_STATUS_SUCCESS && (scheme == CUBLASLT_REDUCTION_SCHEME_NONE ||
                                               scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

int gemm_plan_adopt(GemmPlan *p, cublasLtHandle_t cublaslt, const cublasLtMatmulAlgo_t *algo,
                    size_t workspace_bytes) {
    cublasLtMatmulHeuristicResult_t checked;
    if (!sums_in_order(algo)) return 0;
    cublasStatus_t status =
        cublasLtMatmulAlgoCheck(cublaslt, p->desc, p->b, p->a, p->d, p->d, algo, &checked);
    if (status != CUBLAS_STATUS_SUCCESS || checked.workspaceSize > workspace_bytes) return 0;
    p->algo = *algo;
    p->workspace_bytes = checked.workspaceSize;
    return 1;
}
