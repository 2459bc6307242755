// channels -- kernels of channels.h. A host compiler can take this file too, after test/fibres.h.
#pragma once
#include "cell.h"
#include "channels.h"
#include "vec.cuh"

// NULL where an op has no such tensor.
typedef struct {
    const bf16 *x;   // (rows, cols)
    bf16 *out;       // drop
    float *values;   // add: of the operand
    const float *chosen;
    int64_t rows, cols;
    float *sums;   // squares; advance: total
    float *current;
    StepRange steps;
    const StepState *state;   // device memory
    float *amax;              // add: NULL where the operand has none
    float dequant_div;
    Cell cell;
} ChannelArgs;

enum { SQUARES_LANES = 8 };   // rows that are added side by side

/*
A warp's lanes take neighbouring columns, SQUARES_LANES warps every eighth row each; their sums are
added in order. In steps outside of the range nothing is read.
  bytes    2 per element read
  limiter  latency where a model has few columns; in the steps of the range alone
*/
__global__ static void __launch_bounds__(WARP *SQUARES_LANES)
    channel_squares_kernel(ChannelArgs a) {
    __shared__ float sums[SQUARES_LANES][WARP];
    int64_t step = (int64_t)a.state->step + 1;
    if (step < a.steps.from || step > a.steps.to) return;
    int lane = threadIdx.x % WARP, first = threadIdx.x / WARP;
    int64_t col = (int64_t)blockIdx.x * WARP + lane;
    float sum = 0.0f;
    for (int64_t n = first; n < a.rows && col < a.cols; n += SQUARES_LANES) {
        float v = float_of(a.x[n * a.cols + col]);
        sum += v * v;
    }
    sums[first][lane] = sum;
    __syncthreads();
    if (first > 0 || col >= a.cols) return;
    for (int i = 1; i < SQUARES_LANES; i++) sum += sums[i][lane];
    a.sums[col] += sum;
}

/* An element a thread. */
__global__ static void __launch_bounds__(FLAT_THREADS) channels_advance_kernel(ChannelArgs a) {
    int64_t c = (int64_t)blockIdx.x * FLAT_THREADS + threadIdx.x;
    if (c >= a.cols) return;
    if (!(a.state->stop_votes > 0.0f)) a.sums[c] += a.current[c];
    a.current[c] = 0.0f;
}

/*
A vector of 8 elements a thread; rows are whole vectors (cols a multiple of 8).
  bytes    4 per element: 2 read, 2 written
  limiter  memory bandwidth
*/
__global__ static void __launch_bounds__(FLAT_THREADS) channels_drop_kernel(ChannelArgs a) {
    int64_t at = ((int64_t)blockIdx.x * FLAT_THREADS + threadIdx.x) * VEC;
    if (at >= a.rows * a.cols) return;
    float v[VEC], chosen[VEC];
    load_vec(v, a.x + at, VEC, true);
    load_vec(chosen, a.chosen + at % a.cols, VEC, true);
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = chosen[i] != 0.0f ? 0.0f : v[i];
    store_vec(a.out + at, v, VEC, true);
}

/* One thread: the scale of a tensor whose other elements are all 0. */
__global__ static void channels_scale_kernel(ChannelArgs a) {
    if (*a.amax == 0.0f) *a.amax = a.dequant_div;
}

/*
A warp a group of 32 neighbours; only chosen elements are written.
  bytes    2 per element read, 4 written where it is chosen
  limiter  memory bandwidth
*/
__global__ static void __launch_bounds__(FLAT_THREADS) channels_add_kernel(ChannelArgs a) {
    int64_t groups = (a.cols + CHANNEL_GROUP - 1) / CHANNEL_GROUP;
    int64_t group = (int64_t)blockIdx.x * (FLAT_THREADS / WARP) + threadIdx.x / WARP;
    int64_t col = group % groups * CHANNEL_GROUP + threadIdx.x % WARP;
    int64_t at = group / groups * a.cols + col;
    bool is_inside = group < a.rows * groups && col < a.cols;
    bool is_chosen = is_inside && a.chosen[col] != 0.0f;
    float x = is_chosen ? float_of(a.x[at]) : 0.0f, most = cell_magnitude(x);
    most = warp_max(most != most ? 0.0f : most);   // as the reference, which compares
    if (!is_chosen) return;
    float dequant_mult = 1.0f / a.dequant_div;
    if (a.amax) dequant_mult *= *a.amax;
    CellTensor tensor = cell_tensor(&a.cell, 0.0f);
    CellScale scale = cell_scale(&a.cell, tensor, most, 0.0f, 0);
    float q = cell_round(&a.cell, cell_quotient(&a.cell, tensor, scale, x), 0);
    a.values[at] = cell_value(&a.cell, scale, q) / dequant_mult;
}
