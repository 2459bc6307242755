/*
decode -- an operand of a GEMM as what it stands for: codes or decoded values, with the tensor's
scale.
  out[r,k] = value(r,k) * fl(*amax * fl(1 / dequant_div)), without amax value * fl(1 / dequant_div);
             of an operand that is the tensor itself: the tensor
  values    out[r,k] = value(r,k) of packed NVFP4: what FORM_VALUES holds of the same operand
  shapes    operand (rows, k), in one piece; out (rows, k), whatever the operand's layout
  dtypes    out f32; values: bf16
  numerics  one FP32 rounding for each of the products; the same bits on all devices
  errors    aborts on a shape mismatch and on an operand in slices (decode_check), values on any
            other operand (decode_values_check)
  tests     test_oscillation.c; test_oscillation_sim.cpp; test_ops_extras_cuda.cu
*/
#ifndef LLMC_OPS_DECODE_H
#define LLMC_OPS_DECODE_H

#include "quantize.h"

#ifdef __cplusplus
extern "C" {
#endif

void decode_check(Tensor out, const QOperand *q);
void decode_cpu(Device *d, Tensor out, const QOperand *q);
void decode_cuda(Device *d, Tensor out, const QOperand *q);
void decode_values_check(Tensor out, const QOperand *q);
void decode_values_cpu(Device *d, Tensor out, const QOperand *q);
void decode_values_cuda(Device *d, Tensor out, const QOperand *q);

#ifdef __cplusplus
}
#endif
#endif
