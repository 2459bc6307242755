/*
layernorm -- normalisation over the last axis with learned scale and shift.
  forward   mean[n] = mean_c(x[n,c]);  rstd[n] = 1 / sqrt(mean_c((x[n,c] - mean[n])^2) + eps)
            out[n,c] = (x[n,c] - mean[n]) * rstd[n] * w[c] + b[c]
  residual  sum = x + branch, then forward of sum, bit for bit as the two ops
  backward  with g = dout * w, h = (x - mean) * rstd:
            dx[n,c] += rstd[n] * (g[n,c] - mean_c(g) - h[n,c] * mean_c(g * h))
            dw[c] += sum_n dout[n,c] * h[n,c];  db[c] += sum_n dout[n,c]
  shapes    N rows, C cols; x, branch, sum, out, dout, dx (N,C); stats (N,1); w, b, dw, db (1,C)
  dtypes    x, branch, sum, out, dx, dout, w, b: bf16 or f32, equal; stats, dw, db f32
  units     eps is added to the variance
  numerics  sums in f32, in an order that shape and device fix (deterministic); out, sum and dx
            round once to nearest even
  aliasing  sum may be x or branch; dx may be the residual gradient that dout was made from, never
            dout itself; nothing else may alias
  errors    aborts on a shape or dtype mismatch (layernorm_check); never allocates
  source    Ba et al. 2016, arXiv:1607.06450
  tests     test_ops.cu layernorm, test_ops_cpu.c, test_norm_sim.cpp
*/
#ifndef LLMC_OPS_LAYERNORM_H
#define LLMC_OPS_LAYERNORM_H

#include "norm.h"

#ifdef __cplusplus
extern "C" {
#endif

void layernorm_check(Tensor out, NormStats stats, Tensor x, Tensor w, Tensor b);
NormForward  layernorm_forward_cpu,  layernorm_forward_cuda;
NormResidual layernorm_residual_forward_cpu, layernorm_residual_forward_cuda;
NormBackward layernorm_backward_cpu, layernorm_backward_cuda;

#ifdef __cplusplus
}
#endif
#endif
