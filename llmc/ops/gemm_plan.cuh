// gemm_plan -- one kind of matrix product as cuBLASLt wants it described: descriptor, layouts and
// algorithm. Multiplies nothing (gemm.cu does), and describes without a driver or a GPU, so that a
// test can read what cuBLASLt was told.
//
// A row-major (r,c) matrix is a column-major (c,r) one with leading dimension c. So
//   d[m,n] = sum_k a[m,k] b[n,k]   becomes   D (N x M) = B (N x K) . A (K x M),
// cuBLASLt's first operand is b, its second is a, and the bias along n runs along its rows, which
// is what its bias epilogue adds.
//   b stored (N,K) is column-major (K x N): transposed; stored (K,N) it is (N x K): as it is
//   a stored (M,K) is column-major (K x M): as it is; stored (K,M) it is (M x K): transposed
//
// Values in f32 are multiplied as they are (COMPUTE_32F: fused multiply-adds, no TF32), into f32.
//
// Packed operands are k contiguous: the one arrangement (transposed, as it is) that cuBLASLt has
// for NVFP4 everywhere, and for FP8 before sm_100, with leading dimension K in elements. Slices of
// K are a strided batch, codes and scales of each slice behind those of the one before, into
// partial sums that gemm.cu adds to d in order.
//   NVFP4       CUDA_R_4F_E2M1; one E4M3 scale for 16 of k, in the 128 x 4 tiles of
//               quantize_scale_offset, which are cuBLASLt's VEC16_UE4M3
//   E4M3, E5M2  CUDA_R_8F_E4M3, CUDA_R_8F_E5M2; the tensors' scales are in alpha, so cuBLASLt is
//               given none. Its fast accumulation, which on sm_90 leaves sums in the tensor core's
//               few bits, is off
#pragma once
#include <cublasLt.h>

#include "gemm.h"
#include "gemm_choices.h"

typedef struct {
    GemmKey key;
    cublasLtMatmulDesc_t desc;   // NULL: there is no plan here
    cublasLtMatrixLayout_t a, b, d;
    cublasStatus_t status;   // of the choice; the rest is set where it is SUCCESS
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
    int settled;     // 1: measured, or taken from a text; not to be measured
    double tflops;   // as measured; 0: not measured
} GemmPlan;

enum { GEMM_MAX_CANDIDATES = 16 };
typedef struct {
    cublasLtMatmulHeuristicResult_t items[GEMM_MAX_CANDIDATES];   // cuBLASLt's favourites first
    int count;
} GemmCandidates;

static inline int gemm_values_are_f32(const QOperand *q) {
    return q->form == FORM_VALUES && q->dtype == DT_F32;
}
/* The key of a product; CHECKs what cuBLASLt and this program ask of the operands. */
GemmKey gemm_plan_key(Tensor d, const QOperand *a, const QOperand *b, GemmEpilogue epilogue);
/* Makes everything but the algorithm. */
void gemm_plan_describe(GemmPlan *p, GemmKey key);
/* Tells the descriptor where this product's scales and bias are: before an algorithm is chosen,
   which depends on them being set, and before each product. */
void gemm_plan_point(GemmPlan *p, const QOperand *a, const QOperand *b, Tensor bias);
/* Up to `most` of the deterministic algorithms that fit the workspace; returns what the library
   said. */
cublasStatus_t gemm_plan_candidates(const GemmPlan *p, cublasLtHandle_t cublaslt,
                                    size_t workspace_bytes, int most, GemmCandidates *out);
/* Takes cuBLASLt's first choice among them; returns what the library said. */
cublasStatus_t gemm_plan_choose(GemmPlan *p, cublasLtHandle_t cublaslt, size_t workspace_bytes);
/* Takes this algorithm, whoever proposes it, where the library says that it computes this product
   within the workspace, and it is deterministic. Returns whether it did. */
int gemm_plan_adopt(GemmPlan *p, cublasLtHandle_t cublaslt, const cublasLtMatmulAlgo_t *algo,
                    size_t workspace_bytes);
void gemm_plan_destroy(GemmPlan *p);

/* Dies with EXIT_DEVICE, the library's text, and the product's shapes. */
void gemm_plan_check(cublasStatus_t status, const GemmKey *key, const char *call);
