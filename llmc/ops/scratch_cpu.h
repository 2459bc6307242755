/*
scratch_cpu -- bytes of scratch that each CPU reference asks of device_scratch: the op and the table
of ops (ops_cpu.c) call the same formula. All depend on the number of OpenMP threads. Ops that are
not named here need none.
*/
#ifndef LLMC_OPS_SCRATCH_CPU_H
#define LLMC_OPS_SCRATCH_CPU_H

#include "attention.h"

#ifdef __cplusplus
extern "C" {
#endif

size_t layernorm_scratch_cpu(int64_t cols);
size_t rmsnorm_scratch_cpu(int64_t cols);
size_t column_sum_scratch_cpu(int64_t cols);
size_t cross_entropy_scratch_cpu(int64_t padded_vocab);
size_t attention_scratch_cpu(AttentionDims dims);
/* Of a product with `n` columns and contraction `k`, whose operand b has `b_count` elements. */
size_t gemm_scratch_cpu(int64_t n, int64_t k, int64_t b_count);

#ifdef __cplusplus
}
#endif
#endif
