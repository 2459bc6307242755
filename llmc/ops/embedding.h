/*
embedding -- token vectors, plus learned positions where the model has them.
  forward   out[b*T+t,c] = table[tokens[b,t],c] + positions[t,c]
  backward  dtable[tokens[b,t],c] += dout[b*T+t,c];  dpositions[t,c] += sum_b dout[b*T+t,c]
  shapes    tokens (B,T); out, dout (B*T,C); table, dtable (Vp,C); positions, dpositions (Tmax,C)
            with Tmax >= T, or empty
  dtypes    tokens i32; out, dout, table, positions bf16 or f32, equal; gradients f32
  numerics  the sum is f32, rounded once; gradients of a token are added in the order of its places
            (deterministic)
  errors    aborts on a shape or dtype mismatch; token ids are the loader's business and must be in
            [0, Vp)
  scratch   CUDA: sort buffers, see OpLimits
  tests     test_ops.c embedding
*/
#ifndef LLMC_OPS_EMBEDDING_H
#define LLMC_OPS_EMBEDDING_H

#include "../tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

void embedding_check(Tensor out, Tensor tokens, Tensor table, Tensor positions);
void embedding_forward_cpu (Device *d, Tensor out, Tensor tokens, Tensor table, Tensor positions);
void embedding_forward_cuda(Device *d, Tensor out, Tensor tokens, Tensor table, Tensor positions);
void embedding_backward_cpu (Device *d, Tensor dtable, Tensor dpositions, Tensor dout,
                             Tensor tokens);
void embedding_backward_cuda(Device *d, Tensor dtable, Tensor dpositions, Tensor dout,
                             Tensor tokens);

#ifdef __cplusplus
}
#endif
#endif
