/*
convert -- values from one dtype to the other, and sums of both: for gradients on their way between
ranks.
  convert  out[i] = x[i], rounded to nearest even where out is bf16 and x f32
  add      out[i] += x[i]
  shapes   all (1,n)
  dtypes   convert: out and x bf16 or f32; add: out f32, x bf16 or f32
  errors   aborts on a shape or dtype mismatch
  tests    test_ops_cpu.c convert_and_add; test_ops_extras_cuda.cu convert_and_add
*/
#ifndef LLMC_OPS_CONVERT_H
#define LLMC_OPS_CONVERT_H

#include "../tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

void convert_check(Tensor out, Tensor x);
void add_check(Tensor out, Tensor x);
void convert_cpu (Device *d, Tensor out, Tensor x);
void convert_cuda(Device *d, Tensor out, Tensor x);
void add_cpu (Device *d, Tensor out, Tensor x);
void add_cuda(Device *d, Tensor out, Tensor x);

#ifdef __cplusplus
}
#endif
#endif
