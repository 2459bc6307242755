/*
activation -- the nonlinearity of an MLP, and the residual addition.
  forward   gelu    out = 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3)
            relu2   out = max(x, 0)^2
            swiglu  x = [gate | up];  out = gate * sigmoid(gate) * up
  backward  dx = dout * d out / d x, overwritten; swiglu: dx = [dgate | dup]
  residual  out = a + b
  shapes    out, dout (N,F); x, dx (N,F), for swiglu (N,2F); residual: all (N,C)
  dtypes    bf16 or f32, all equal
  numerics  f32 arithmetic, one rounding to nearest even
  aliasing  residual: out may be a or b; dx may be x
  errors    aborts on a shape or dtype mismatch (activation_check)
  source    Hendrycks & Gimpel 2016, arXiv:1606.08415 (gelu); So et al. 2021, arXiv:2109.08668
            (relu2); Shazeer 2020, arXiv:2002.05202 (swiglu)
  tests     test_ops.cu gelu, swiglu, relu2, residual; test_row_ops_sim.cpp activations
*/
#ifndef LLMC_OPS_ACTIVATION_H
#define LLMC_OPS_ACTIVATION_H

#include "../tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { ACT_GELU, ACT_SWIGLU, ACT_RELU2, NUM_ACTS } ActKind;
typedef struct {
    const char *name;
    int inputs_per_output;   // 2 for a gated activation: columns of x for one column of out
} ActInfo;
extern const ActInfo act_info[NUM_ACTS];

void activation_check(Tensor out, Tensor x, ActKind kind);
void activation_forward_cpu (Device *d, Tensor out, Tensor x, ActKind kind);
void activation_forward_cuda(Device *d, Tensor out, Tensor x, ActKind kind);
void activation_backward_cpu (Device *d, Tensor dx, Tensor dout, Tensor x, ActKind kind);
void activation_backward_cuda(Device *d, Tensor dx, Tensor dout, Tensor x, ActKind kind);

void residual_forward_cpu (Device *d, Tensor out, Tensor a, Tensor b);
void residual_forward_cuda(Device *d, Tensor out, Tensor a, Tensor b);

#ifdef __cplusplus
}
#endif
#endif
