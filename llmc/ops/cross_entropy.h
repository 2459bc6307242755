/*
cross_entropy -- fused classifier: loss of the logits and, in the same place, their gradient.
  forward   losses[n] = log(sum_{v<V} exp(logits[n,v])) - logits[n,targets[n]]
  backward  logits[n,v] <- (softmax(logits[n])[v] - [v == targets[n]]) * dloss for v < V, 0 for V <=
            v < Vp
  shapes    logits (N,Vp), Vp >= V the padded vocabulary; targets (N,1), losses (N,1)
  dtypes    logits bf16 or f32; targets i32; losses f32
  units     losses in nats; dloss = 1 / (tokens of the optimizer step) makes the gradient that of
            the mean; dloss 0: evaluation, logits are left alone
  numerics  sums in f32, fixed order; padded columns take no part
  errors    aborts on a shape or dtype mismatch (cross_entropy_check); targets must be in [0, V)
  tests     test_ops.cu, test_row_ops_sim.cpp cross_entropy
*/
#ifndef LLMC_OPS_CROSS_ENTROPY_H
#define LLMC_OPS_CROSS_ENTROPY_H

#include "../tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

void cross_entropy_check(Tensor losses, Tensor logits, Tensor targets, int vocab);
void cross_entropy_cpu (Device *d, Tensor losses, Tensor logits, Tensor targets, int vocab,
                        float dloss);
void cross_entropy_cuda(Device *d, Tensor losses, Tensor logits, Tensor targets, int vocab,
                        float dloss);

#ifdef __cplusplus
}
#endif
#endif
