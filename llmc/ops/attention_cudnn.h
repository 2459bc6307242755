/*
attention_cudnn -- the small door between attention.cu and cuDNN, so that the C++ of cuDNN's
frontend stays in one file. attention_cudnn.cpp is behind it where cuDNN was found,
attention_cudnn_absent.c where not.
*/
#ifndef LLMC_OPS_ATTENTION_CUDNN_H
#define LLMC_OPS_ATTENTION_CUDNN_H

#include "attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int runs;                 // 1 where both passes have plans
    size_t workspace_bytes;   // the larger of the two
    char refusal[256];        // why not, where runs is 0
} CudnnSupport;

/* "9.14.0", the library that is loaded; NULL where cuDNN is not compiled in. */
const char *attention_cudnn_version(void);
/* Builds the plans for these dims on the current CUDA device, or finds those built before. With
   any_order the backward pass need not repeat its bits. Passes run the plans that were prepared
   last. */
CudnnSupport attention_cudnn_prepare(AttentionDims dims, int any_order);
/* As attention_forward_cuda and attention_backward_cuda, for dims that were prepared and run. */
void attention_cudnn_forward(Device *d, Tensor out, Tensor lse, Tensor qkv, AttentionDims dims);
void attention_cudnn_backward(Device *d, Tensor dqkv, Tensor dout, Tensor out, Tensor lse,
                              Tensor qkv, AttentionDims dims);

#ifdef __cplusplus
}
#endif
#endif
