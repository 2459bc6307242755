/*
reduce -- sums in a fixed order.
  column_sum   db[c] += sum_n dout[n,c]                 bias gradient: dout (N,C) bf16 or f32, db
               (1,C) f32
  sum          *out += scale * sum_i x[i]               losses: x f32 of any shape
  global_norm  *out = sqrt(sum_i x[i]^2)                gradients: x f32 (1,n); squares and sums in
               f32 on CUDA blocks,
                                                        partial sums added in double
  distance     *out = sqrt(sum_i (a[i] - b[i])^2)       a, b f32 (1,n); as global_norm
  numerics  deterministic: the order depends only on the shape
  errors    aborts on a shape or dtype mismatch
  scratch   partial sums, see OpLimits
  tests     test_ops.cu, test_row_ops_sim.cpp column_sum; test_ops.cu sum_and_global_norm,
            distance
*/
#ifndef LLMC_OPS_REDUCE_H
#define LLMC_OPS_REDUCE_H

#include "../tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

void column_sum_cpu (Device *d, Tensor db, Tensor dout);
void column_sum_cuda(Device *d, Tensor db, Tensor dout);
void sum_cpu (Device *d, float *out, Tensor x, float scale);
void sum_cuda(Device *d, float *out, Tensor x, float scale);
void global_norm_cpu (Device *d, float *out, Tensor x);
void global_norm_cuda(Device *d, float *out, Tensor x);
void distance_cpu (Device *d, float *out, Tensor a, Tensor b);
void distance_cuda(Device *d, float *out, Tensor a, Tensor b);

#ifdef __cplusplus
}
#endif
#endif
