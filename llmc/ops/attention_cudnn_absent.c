/*
attention_cudnn_absent -- stands in for attention_cudnn.cpp where the build found no cuDNN or no
frontend.
*/
#include "../common.h"
#include "attention_cudnn.h"

const char *attention_cudnn_version(void) { return NULL; }

CudnnSupport attention_cudnn_prepare(AttentionDims dims, int any_order) {
    (void)any_order;
    (void)dims;
    CudnnSupport support = {.refusal = "this program was built without cuDNN"};
    return support;
}

void attention_cudnn_forward(Device *d, Tensor out, Tensor lse, Tensor qkv, AttentionDims dims) {
    (void)d, (void)out, (void)lse, (void)qkv, (void)dims;
    CHECK(0, "attention by cuDNN, which this program was built without");
}

void attention_cudnn_backward(Device *d, Tensor dqkv, Tensor dout, Tensor out, Tensor lse,
                              Tensor qkv, AttentionDims dims) {
    (void)d, (void)dqkv, (void)dout, (void)out, (void)lse, (void)qkv, (void)dims;
    CHECK(0, "attention by cuDNN, which this program was built without");
}
