/*
rmsnorm -- root-mean-square normalisation over the last axis.
  forward   rstd[n] = 1 / sqrt(mean_c(x[n,c]^2) + eps);  out[n,c] = x[n,c] * rstd[n] * w[c]
  residual  sum = x + branch, then forward of sum, bit for bit as the two ops
  backward  with g = dout * w, h = x * rstd:
            dx[n,c] += rstd[n] * (g[n,c] - h[n,c] * mean_c(g * h));  dw[c] += sum_n dout[n,c] *
            h[n,c]
  shapes    N rows, C cols; x, branch, sum, out, dout, dx (N,C); stats.rstd (N,1); w, dw (1,C);
            stats.mean, b and db are empty
  dtypes    x, branch, sum, out, dx, dout, w: bf16 or f32, equal; rstd, dw f32
  units     eps is added to the mean square, same units as x^2
  numerics  sums in f32, in an order that shape and device fix (deterministic); out, sum and dx
            round once to nearest even
  aliasing  sum may be x or branch; nothing else may alias
  errors    aborts on a shape or dtype mismatch (rmsnorm_check); never allocates
  source    Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4
  tests     test_ops.cu rmsnorm, test_ops_cpu.c, test_norm_sim.cpp
*/
#ifndef LLMC_OPS_RMSNORM_H
#define LLMC_OPS_RMSNORM_H

#include "norm.h"

#ifdef __cplusplus
extern "C" {
#endif

void rmsnorm_check(Tensor out, NormStats stats, Tensor x, Tensor w, Tensor b);
NormForward  rmsnorm_forward_cpu,  rmsnorm_forward_cuda;
NormResidual rmsnorm_residual_forward_cpu, rmsnorm_residual_forward_cuda;
NormBackward rmsnorm_backward_cpu, rmsnorm_backward_cuda;

#ifdef __cplusplus
}
#endif
#endif
