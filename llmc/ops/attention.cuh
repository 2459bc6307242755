// attention.cuh -- which implementation of CUDA attention runs, and the scratch it needs. The
// operation itself is declared in attention.h. Two implementations stand behind it: cuDNN, where it
// is compiled in and has deterministic plans, and the own kernels of attention_flash.cu.
#pragma once
#include <stddef.h>

#include "attention.h"

#ifdef __cplusplus
extern "C" {
#endif

// Decides for these dims and returns the scratch bytes that both passes need.
// Called at start-up with a CUDA device open. Other dims are decided at their first use, within the
// scratch there is then.
size_t attention_cuda_scratch_bytes(AttentionDims dims, int any_order);

// What the dims of the last attention_cuda_scratch_bytes run on: "cuDNN 9.14.0", or "flash ..."
// with the reason; "undecided" before that.
const char *attention_cuda_name(void);

// "auto" (cuDNN where it can), "cudnn" (die where it cannot) or "flash", for decisions from now on.
void attention_cuda_select(const char *name);

#ifdef __cplusplus
}
#endif
