// scratch_cuda -- bytes of scratch that each CUDA op asks of device_scratch: the op and the table
// of ops (ops_cuda.cu) call the same formula, which never falls when a size grows. Attention
// declares its own; ops that are not named here need none.
#pragma once
#include <stddef.h>
#include <stdint.h>

// tokens: rows of dout; cols: of dout; vocab: rows of dtable.
size_t embedding_scratch_cuda(int64_t tokens, int64_t cols, int64_t vocab);
// Of both norms.
size_t norm_scratch_cuda(int64_t rows, int64_t cols);
size_t column_sum_scratch_cuda(int64_t cols);
// Of products of f32 values into bf16, up to (rows, cols).
size_t gemm_scratch_cuda(int64_t rows, int64_t cols);
// Of sum and global_norm.
size_t sum_scratch_cuda(void);
