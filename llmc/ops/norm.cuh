// norm -- the kernels behind layernorm.cu and rmsnorm.cu: one template, because rmsnorm is
// layernorm without the mean and the shift. CENTERED 1: layernorm, 0: rmsnorm. What they compute is
// in layernorm.h and rmsnorm.h; not an op of its own.
#pragma once
#include "../device_cuda.cuh"
#include "norm.h"
#include "reduce.cuh"
#include "scratch_cuda.cuh"
#include "vec.cuh"

enum {
    NORM_ROW_VECS = 4,      // vectors of a row that one thread keeps in registers
    NORM_BLOCK_WARPS = 4,   // at least; more when a row needs them
    NORM_MAX_WARPS = 8,     // of a row, so that a block's registers hold it
    NORM_MAX_COLS = NORM_MAX_WARPS * WARP * NORM_ROW_VECS * VEC,   // 8192
    NORM_PARTIAL_ROWS = 16,          // rows behind one partial sum of dw and db, at least
    NORM_BACKWARD_REGISTERS = 168,   // three blocks of four warps fit a multiprocessor
    NORM_MAX_PARTIALS = 1536         // a warp each: those blocks on all of an H200's 132
};

/* As few warps a row as hold it, a power of two. */
static inline RowGroups norm_row_groups(int64_t cols) {
    CHECK(cols <= NORM_MAX_COLS, "a norm of %lld columns; CUDA kernels take up to %d",
          (long long)cols, NORM_MAX_COLS);
    RowGroups groups = {1, NORM_BLOCK_WARPS};
    while ((int64_t)groups.warps * WARP * NORM_ROW_VECS * VEC < cols) groups.warps *= 2;
    groups.rows = (int)max_i64(1, NORM_BLOCK_WARPS / groups.warps);
    return groups;
}

static inline int norm_block_threads(RowGroups groups) { return groups.warps * groups.rows * WARP; }

typedef struct {
    bf16 *out;            // (rows, cols)
    float *mean, *rstd;   // (rows); mean only when centred
    const bf16 *x;        // (rows, cols)
    const bf16 *w, *b;    // (cols); b only when centred
    int64_t rows, cols;
    float eps;
    RowGroups groups;
    bool whole;
} NormForwardArgs;

/*
One row a group of warps (one warp up to 1024 columns), held packed in registers between the passes.
  bytes    4 per element: 2 read, 2 written; w and b come from the caches
  limiter  memory bandwidth; measured: see dev/SPEED.md
*/
template <bool CENTERED>
__global__ void __launch_bounds__(NORM_MAX_WARPS *WARP) norm_forward_kernel(NormForwardArgs a) {
    __shared__ float shared[NORM_MAX_WARPS];
    int row_threads = a.groups.warps * WARP, at = (int)threadIdx.x % row_threads;
    int64_t row = (int64_t)blockIdx.x * a.groups.rows + threadIdx.x / row_threads;
    int64_t cols = row < a.rows ? a.cols : 0;   // an absent row only takes part in the barriers
    const bf16 *x = a.x + row * a.cols;
    uint4 packed[NORM_ROW_VECS];
    float v[VEC], mean = 0.0f, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < NORM_ROW_VECS; i++) {
        int64_t c = (int64_t)(i * row_threads + at) * VEC;
        packed[i] = load_packed(x + c, cols - c, a.whole);
    }
    if (CENTERED) {
#pragma unroll
        for (int i = 0; i < NORM_ROW_VECS; i++) {
            unpack(v, packed[i]);   // zeros beyond the row
            for (int j = 0; j < VEC; j++) sum += v[j];
        }
        mean = row_sum(sum, a.groups, shared) / (float)a.cols;
        sum = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < NORM_ROW_VECS; i++) {
        int64_t c = (int64_t)(i * row_threads + at) * VEC;
        unpack(v, packed[i]);
        for (int j = 0; j < VEC; j++) {
            if (c + j < cols) sum += (v[j] - mean) * (v[j] - mean);
        }
    }
    float variance = row_sum(sum, a.groups, shared) / (float)a.cols;
    float rstd = 1.0f / sqrtf(variance + a.eps);
    if (row >= a.rows) return;   // no barrier follows
    if (at == 0) {
        if (CENTERED) a.mean[row] = mean;
        a.rstd[row] = rstd;
    }
#pragma unroll
    for (int i = 0; i < NORM_ROW_VECS; i++) {
        int64_t c = (int64_t)(i * row_threads + at) * VEC;
        if (c >= cols) break;
        float w[VEC], b[VEC];
        load_vec(w, a.w + c, cols - c, a.whole);
        if (CENTERED) load_vec(b, a.b + c, cols - c, a.whole);
        unpack(v, packed[i]);
        for (int j = 0; j < VEC; j++) {
            v[j] = CENTERED ? (v[j] - mean) * rstd * w[j] + b[j] : v[j] * rstd * w[j];
        }
        store_vec(a.out + row * a.cols + c, v, cols - c, a.whole);
    }
}

template <bool CENTERED>
static void norm_forward(Device *d, Tensor out, NormStats stats, Tensor x, Tensor w, Tensor b,
                         float eps) {
    expect_bf16(x, "x of a norm");
    NormForwardArgs a = {};
    a.out = (bf16 *)out.data;
    a.mean = (float *)stats.mean.data;
    a.rstd = (float *)stats.rstd.data;
    a.x = (const bf16 *)x.data;
    a.w = (const bf16 *)w.data;
    a.b = (const bf16 *)b.data;
    a.rows = x.rows;
    a.cols = x.cols;
    a.eps = eps;
    a.groups = norm_row_groups(x.cols);
    a.whole = whole_vectors(out) && whole_vectors(x) && whole_vectors(w) && whole_vectors(b) &&
              x.cols % VEC == 0;
    int64_t blocks = ceil_div(x.rows, a.groups.rows);
    norm_forward_kernel<CENTERED>
        <<<(unsigned)blocks, norm_block_threads(a.groups), 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}

typedef struct {
    bf16 *dx;                   // (rows, cols), accumulated
    float *partials;            // (num_partials, 2 or 1, cols): dw, and db when centred
    const bf16 *dout, *x;       // (rows, cols)
    const bf16 *w;              // (cols)
    const float *mean, *rstd;   // (rows); mean only when centred
    int64_t rows, cols;
    int64_t partial_rows, num_partials;
    RowGroups groups;
    bool whole;
} NormBackwardArgs;

/* One row of the backward pass; adds its share of dw and db. x and dout are read a second time for
   dx, from L1: the registers are taken by dw and db. */
template <bool CENTERED>
static __device__ __forceinline__ void
norm_backward_row(NormBackwardArgs a, int64_t row, float dw[NORM_ROW_VECS][VEC],
                  float db[NORM_ROW_VECS][VEC], float *shared) {
    int row_threads = a.groups.warps * WARP, at = (int)threadIdx.x % row_threads;
    bool present = row < a.rows;
    int64_t cols = present ? a.cols : 0;
    const bf16 *x_row = a.x + row * a.cols, *dout_row = a.dout + row * a.cols;
    bf16 *dx_row = a.dx + row * a.cols;
    float mean = CENTERED && present ? a.mean[row] : 0.0f, rstd = present ? a.rstd[row] : 0.0f;
    float sum_g = 0.0f, sum_gh = 0.0f, x[VEC], dout[VEC], w[VEC];
#pragma unroll
    for (int i = 0; i < NORM_ROW_VECS; i++) {
        int64_t c = (int64_t)(i * row_threads + at) * VEC;
        load_vec(w, a.w + c, cols - c, a.whole);
        load_vec(x, x_row + c, cols - c, a.whole);
        load_vec(dout, dout_row + c, cols - c, a.whole);   // 0 beyond the row, so all below is 0
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            float h = (x[j] - mean) * rstd, g = dout[j] * w[j];
            sum_g += g;
            sum_gh += g * h;
            dw[i][j] += dout[j] * h;
            if (CENTERED) db[i][j] += dout[j];
        }
    }
    float mean_g = CENTERED ? row_sum(sum_g, a.groups, shared) / (float)a.cols : 0.0f;
    float mean_gh = row_sum(sum_gh, a.groups, shared) / (float)a.cols;
#pragma unroll
    for (int i = 0; i < NORM_ROW_VECS; i++) {
        int64_t c = (int64_t)(i * row_threads + at) * VEC;
        if (c >= cols) break;
        float dx[VEC];
        load_vec(dx, dx_row + c, cols - c, a.whole);
        load_vec(w, a.w + c, cols - c, a.whole);
        load_vec(x, x_row + c, cols - c, a.whole);
        load_vec(dout, dout_row + c, cols - c, a.whole);
        for (int j = 0; j < VEC; j++) {
            float h = (x[j] - mean) * rstd, g = dout[j] * w[j];
            dx[j] += rstd * (CENTERED ? g - mean_g - h * mean_gh : g - h * mean_gh);
        }
        store_vec(dx_row + c, dx, cols - c, a.whole);
    }
}

/*
A group of warps takes partial_rows consecutive rows and keeps its columns' dw and db in registers.
  bytes    8 per element: dout, x, dx read, dx written; partial sums are less than a tenth of it
  limiter  memory bandwidth; registers hold occupancy down; measured: see dev/SPEED.md
*/
template <bool CENTERED>
__global__ void __maxnreg__(NORM_BACKWARD_REGISTERS) norm_backward_kernel(NormBackwardArgs a) {
    __shared__ float shared[NORM_MAX_WARPS];
    int row_threads = a.groups.warps * WARP, at = (int)threadIdx.x % row_threads;
    int64_t partial = (int64_t)blockIdx.x * a.groups.rows + threadIdx.x / row_threads;
    float dw[NORM_ROW_VECS][VEC] = {}, db[NORM_ROW_VECS][VEC] = {};
    for (int64_t i = 0; i < a.partial_rows; i++) {
        norm_backward_row<CENTERED>(a, partial * a.partial_rows + i, dw, db, shared);
    }
    if (partial >= a.num_partials) return;
    float *out = a.partials + partial * a.cols * (CENTERED ? 2 : 1);
#pragma unroll
    for (int i = 0; i < NORM_ROW_VECS; i++) {
        int64_t c = (int64_t)(i * row_threads + at) * VEC;
        if (c >= a.cols) break;
        store_vec(out + c, dw[i], a.cols - c, a.whole);
        if (CENTERED) store_vec(out + a.cols + c, db[i], a.cols - c, a.whole);
    }
}

static inline int64_t norm_partial_rows(int64_t rows) {
    return max_i64(NORM_PARTIAL_ROWS, ceil_div(rows, NORM_MAX_PARTIALS));
}

template <bool CENTERED>
static void norm_backward(Device *d, Tensor dx, Tensor dw, Tensor db, Tensor dout, Tensor x,
                          Tensor w, NormStats stats) {
    expect_bf16(x, "x of a norm");
    NormBackwardArgs a = {};
    a.dx = (bf16 *)dx.data;
    a.partials = (float *)device_scratch(d, norm_scratch_cuda(x.rows, x.cols));
    a.dout = (const bf16 *)dout.data;
    a.x = (const bf16 *)x.data;
    a.w = (const bf16 *)w.data;
    a.mean = (const float *)stats.mean.data;
    a.rstd = (const float *)stats.rstd.data;
    a.rows = x.rows;
    a.cols = x.cols;
    a.partial_rows = norm_partial_rows(x.rows);
    a.num_partials = ceil_div(x.rows, a.partial_rows);
    a.groups = norm_row_groups(x.cols);
    a.whole = whole_vectors(dx) && whole_vectors(dout) && whole_vectors(x) && whole_vectors(w) &&
              x.cols % VEC == 0;
    int64_t blocks = ceil_div(a.num_partials, a.groups.rows);
    norm_backward_kernel<CENTERED>
        <<<(unsigned)blocks, norm_block_threads(a.groups), 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
    PartialRows rows = {a.partials, a.num_partials, x.cols * (CENTERED ? 2 : 1)};
    add_partial_rows(d, (float *)dw.data, rows, x.cols);
    rows.data = a.partials + x.cols;
    if (CENTERED) add_partial_rows(d, (float *)db.data, rows, x.cols);
}
