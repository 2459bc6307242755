// reduce -- the last stage of sums over rows, shared by column_sum and the gradients of the norms.
#pragma once
#include "../device_cuda.cuh"

// dst[c] += sum_p partials[p * stride + c] for c < cols, in an order fixed by `num` alone.
// dst, partials: f32 in device memory.
typedef struct {
    const float *data;
    int64_t num, stride;
} PartialRows;
void add_partial_rows(Device *d, float *dst, PartialRows partials, int64_t cols);
