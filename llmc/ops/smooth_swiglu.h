/*
smooth_swiglu -- SwiGLU whose rows are divided by a scale of their own, so that outliers of `up` do
not reach what quantises the result, and the op that multiplies a product's rows by those scales
again. In real arithmetic both together are the plain activation and its linear.
  forward     x = [gate | up];  scale[n] = max_f |up[n,f]|, 1 where that is 0
              out[n,f] = gate * sigmoid(gate) * (up / scale[n])
  backward    scale is a constant: dgate = dout * (up / scale) * (sigmoid(gate) (1 + gate (1 -
              sigmoid(gate)))), dup = dout * (gate * sigmoid(gate)) / scale
  scale_rows  out[n,c] = x[n,c] * scale[n] + b[c]; b may be empty
  shapes      out, dout (N,F); x, dx (N,2F) of the activation; scale (N,1); scale_rows: x, out
              (N,C), b (1,C)
  dtypes      bf16 or f32, all equal; scale f32
  numerics    f32 arithmetic, one rounding to nearest even; scales are the same on all devices
  aliasing    dx may be x; out of scale_rows may be its x
  errors      aborts on a shape or dtype mismatch
  source      arXiv:2409.12517 (Smooth-SwiGLU, by channel); by token, and with a scale that is no
              part of the graph, as dev/NUMERICS.md 5b has it
  tests       test_smooth_swiglu.c; test_smooth_swiglu_sim.cpp; test_ops_extras_cuda.cu
*/
#ifndef LLMC_OPS_SMOOTH_SWIGLU_H
#define LLMC_OPS_SMOOTH_SWIGLU_H

#include "../tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

void smooth_swiglu_check(Tensor out, Tensor scale, Tensor x);
void smooth_swiglu_forward_cpu(Device *d, Tensor out, Tensor scale, Tensor x);
void smooth_swiglu_forward_cuda(Device *d, Tensor out, Tensor scale, Tensor x);
void smooth_swiglu_backward_cpu(Device *d, Tensor dx, Tensor dout, Tensor scale, Tensor x);
void smooth_swiglu_backward_cuda(Device *d, Tensor dx, Tensor dout, Tensor scale, Tensor x);

void scale_rows_check(Tensor out, Tensor x, Tensor scale, Tensor b);
void scale_rows_cpu(Device *d, Tensor out, Tensor x, Tensor scale, Tensor b);
void scale_rows_cuda(Device *d, Tensor out, Tensor x, Tensor scale, Tensor b);

#ifdef __cplusplus
}
#endif
#endif
