/*
adamw -- one optimizer step with decoupled weight decay over a range of the flat parameter arrays.
  g = grad * state.grad_scale;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
  update = (m / bias_correction1) / (sqrt(v / bias_correction2) + eps) + weight_decay * master
  master -= lr * update;  value = master, rounded to nearest even when it is bf16
  Nothing is written when state.skip is set.
  shapes    all (1,n)
  dtypes    grad, master, m, v f32; value bf16, or f32 and then the same memory as master
  numerics  f32 throughout, no contraction of multiply and add
  errors    aborts on a shape or dtype mismatch (adamw_check)
  source    Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2
  tests     test_ops.c adamw
*/
#ifndef LLMC_OPS_ADAMW_H
#define LLMC_OPS_ADAMW_H

#include "../tensor.h"
#include "step_state.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { Tensor value, master, m, v, grad; } AdamWTensors;
typedef struct { float beta1, beta2, eps, weight_decay; } AdamWConfig;

void adamw_check(AdamWTensors t);
void adamw_cpu (Device *d, AdamWTensors t, AdamWConfig config, const StepState *state);
void adamw_cuda(Device *d, AdamWTensors t, AdamWConfig config, const StepState *state);

#ifdef __cplusplus
}
#endif
#endif
