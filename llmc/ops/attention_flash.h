/*
attention_flash -- the own CUDA kernels of attention, as attention.cu calls them. They take every
shape that attention.h allows on CUDA.
*/
#ifndef LLMC_OPS_ATTENTION_FLASH_H
#define LLMC_OPS_ATTENTION_FLASH_H

#include "attention.h"

#ifdef __cplusplus
extern "C" {
#endif

size_t attention_flash_scratch_bytes(AttentionDims dims);
/* As attention_forward_cuda and attention_backward_cuda, on checked tensors. */
void attention_flash_forward(Device *d, Tensor out, Tensor lse, Tensor qkv, AttentionDims dims);
void attention_flash_backward(Device *d, Tensor dqkv, Tensor dout, Tensor out, Tensor lse,
                              Tensor qkv, AttentionDims dims);

#ifdef __cplusplus
}
#endif
#endif
