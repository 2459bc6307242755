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
// Packed NVFP4 operands are CUDA_R_4F_E2M1, k contiguous: the one arrangement (transposed, as it
// is) that cuBLASLt has for them, with leading dimension K in elements. One E4M3 scale for 16 of k,
// in the 128 x 4 tiles of quantize_scale_offset, which are cuBLASLt's VEC16_UE4M3. Slices of K are a
// strided batch, codes and scales of each slice behind those of the one before, into partial sums
// that gemm.cu adds to d in order.
#pragma once
#include <cublasLt.h>

#include "gemm.h"

// What an algorithm is chosen for. Every byte counts in a comparison, so there is no padding.
typedef struct {
    int64_t m, n, k;                  // k of one slice
    int32_t a_type, b_type, d_type;   // cudaDataType_t; CUDA_R_4F_E2M1 says FORM_PACKED
    int32_t a_k_contiguous, b_k_contiguous;
    int32_t has_bias, accumulate, slices;
    int32_t a_align, b_align, d_align;   // of the pointers, bytes
    int32_t unused;                      // zero: no hole for a comparison to meet
} GemmKey;

typedef struct {
    GemmKey key;
    cublasLtMatmulDesc_t desc;   // NULL: there is no plan here
    cublasLtMatrixLayout_t a, b, d;
    cublasStatus_t status;       // of the choice; the rest is set where it is SUCCESS
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
} GemmPlan;

/* The key of a product; CHECKs what cuBLASLt and this program ask of the operands. */
GemmKey gemm_plan_key(Tensor d, const QOperand *a, const QOperand *b, GemmEpilogue epilogue);
/* Makes everything but the algorithm. */
void gemm_plan_describe(GemmPlan *p, GemmKey key);
/* Tells the descriptor where this product's scales and bias are: before an algorithm is chosen,
   which depends on them being set, and before each product. */
void gemm_plan_point(GemmPlan *p, const QOperand *a, const QOperand *b, Tensor bias);
/* Takes cuBLASLt's first choice among the deterministic algorithms that fit the workspace; returns
   what the library said. */
cublasStatus_t gemm_plan_choose(GemmPlan *p, cublasLtHandle_t cublaslt, size_t workspace_bytes);
void gemm_plan_destroy(GemmPlan *p);

/* Dies with EXIT_DEVICE, the library's text, and the product's shapes. */
void gemm_plan_check(cublasStatus_t status, const GemmKey *key, const char *call);
