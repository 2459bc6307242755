/*
gemm_mma -- the program's own NVFP4 GEMM: what gemm.h defines, of two packed operands, through the
block-scaled mma.sync of RTX Blackwell. Serves where cuBLASLt has no NVFP4 kernel, and as a second
opinion on it.
  shapes    as gemm_cuda, K a multiple of 32; rows of any count
  dtypes    operands in FORM_PACKED, FORMAT_NVFP4; d bf16 or f32; bias as d; accumulation into f32
  numerics  sums by the step rule of fp4_step.h, 64 of k at a time in rising order, the same bits on
            every GPU; then one fused multiply-add alpha * sum + (bias + d), then one rounding
  errors    aborts on a shape, dtype, form or K mismatch
  scratch   none
  tests     test_gemm_mma.cpp: the kernel under a host simulation; test_gemm_mma_cuda.cu: on a GPU;
            scripts/check_opcodes.py: its machine code
*/
#ifndef LLMC_OPS_GEMM_MMA_H
#define LLMC_OPS_GEMM_MMA_H

#include "gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 1 where the instruction itself runs: sm_120 and sm_121, and a program built for them. Elsewhere
   gemm_mma_cuda does the same arithmetic in software, bit for bit and very slowly: for tests. */
int gemm_mma_available(const Device *dev);
void gemm_mma_cuda(Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                   GemmEpilogue epilogue);

#ifdef __cplusplus
}
#endif
#endif
