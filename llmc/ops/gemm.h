/*
gemm -- every matrix product of a linear layer and of the output head.
  d[m,n] = alpha * sum_k a[m,k] * b[n,k]  (+ bias[n])  (+ d[m,n] when accumulating)
  alpha = product of the operands' tensor decode scales, read on the device; 1 for plain operands
  shapes    a.rows = M, b.rows = N, a.k = b.k = K; d (M,N); bias (1,N) or empty
  dtypes    operands in FORM_VALUES: both bf16, or both f32; or both in FORM_PACKED:
              NVFP4          GPUs with FP4 tensor cores only; K a multiple of 32
              E4M3, E5M2     GPUs with FP8 tensor cores only, one side at most E5M2; K and N
                             multiples of 16
            whose bias is into bf16 d only. d bf16 or f32; bias as d; accumulation into f32 d only
  numerics  f32 operands are multiplied as they are, never in TF32; f32 accumulation; FP8's, which
            is narrower within a tensor core of sm_90, is promoted to f32 as the products go on;
            bias added in f32, then one rounding; no split of K without a fixed-order f32 reduction.
            Sliced operands (accumulation into f32 only): the slices' products, each with alpha, are
            added to d in order
  errors    aborts on a shape, dtype or form mismatch (gemm_check); library errors: EXIT_DEVICE with
            shapes and text
  scratch   CPU: f32 copies of the operands; CUDA, f32 values into bf16: rows of d in f32; see
            OpLimits
  tests     test_ops_cpu.c, test_ops.cu gemm; test_gemm_descriptors.cu: what cuBLASLt is told;
            test_gemm_tune_cuda.cu: which algorithm it uses
*/
#ifndef LLMC_OPS_GEMM_H
#define LLMC_OPS_GEMM_H

#include "quantize.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Tensor bias;       // empty: none
    int accumulate;    // 1: add to d
} GemmEpilogue;

/* Parts to cut the contraction of packed operands into, so that a product of few tiles and a long k
   keeps all multiprocessors busy; 1 where that does not help, and on devices without FP4 units. */
int gemm_slices(const Device *dev, int64_t m, int64_t n, int64_t k);
void gemm_check(Tensor d, const QOperand *a, const QOperand *b, GemmEpilogue epilogue);
/* NULL, or why the library has no such product, in its words. Computes nothing. */
const char *gemm_error_cpu (Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                            GemmEpilogue epilogue);
const char *gemm_error_cuda(Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                            GemmEpilogue epilogue);
/* Lets the fastest algorithm that the library offers compute products of this kind from now on, as
   measured on these operands; d is destroyed. Does nothing for a kind whose algorithm is already
   measured or loaded. The CPU has one algorithm. */
void gemm_tune_cpu (Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                    GemmEpilogue epilogue);
void gemm_tune_cuda(Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                    GemmEpilogue epilogue);
/* The algorithms of all products so far as text (gemm_choices.h), "" on a CPU; caller frees. */
char *gemm_choices_save_cpu (Device *dev);
char *gemm_choices_save_cuda(Device *dev);
/* Products of kinds that are not measured yet get the text's algorithms; of several texts, those of
   the first that has the kind. Returns how many it took: none of another device's or library's. */
int gemm_choices_load_cpu (Device *dev, const char *text);
int gemm_choices_load_cuda(Device *dev, const char *text);
void gemm_cpu (Device *dev, Tensor d, const QOperand *a, const QOperand *b, GemmEpilogue epilogue);
void gemm_cuda(Device *dev, Tensor d, const QOperand *a, const QOperand *b, GemmEpilogue epilogue);

/* f32 row-major c (m,n) = alpha * op(a) op(b) + beta * c on one thread: op(a) is (m,k), stored
   (k,m) when trans_a; op(b) is (k,n), stored (n,k) when trans_b. Two implementations, one is
   linked: gemm_openblas.c, gemm_plain.c. */
typedef struct { int trans_a, trans_b; int64_t m, n, k; int64_t lda, ldb, ldc; float alpha,
                beta; } SgemmShape;
void sgemm_one_thread(SgemmShape s, const float *a, const float *b, float *c);
extern const char sgemm_name[];   // "OpenBLAS" or "plain loops", for the start-up lines

#ifdef __cplusplus
}
#endif
#endif
