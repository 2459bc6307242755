// reduce -- sums on a GPU, in two stages: blocks write partial sums, the second stage adds them.
// The split depends on the shape alone and no sum is left to atomics, so the order is always the
// same.
#include "reduce.h"

#include "../device_cuda.cuh"
#include "column_sum.cuh"
#include "scratch_cuda.cuh"
#include "vec.cuh"

// --- column sums ---

size_t column_sum_scratch_cuda(int64_t cols) {
    int64_t spans = ceil_div(cols, COLUMN_SPAN);
    return (size_t)(max_i64(COLUMN_BLOCKS, spans) * COLUMN_SPAN) * sizeof(float);
}

template <typename T> static void launch_column_sum(Device *d, ColumnSums a, Tensor dout) {
    bool whole = whole_vectors(dout) && dout.cols % VEC == 0;
    auto kernel = whole ? column_sum_kernel<T, true> : column_sum_kernel<T, false>;
    unsigned blocks = (unsigned)(a.spans * a.splits);
    kernel<<<blocks, COLUMN_THREADS, 0, device_cuda_stream(d)>>>(a, (const T *)dout.data);
    CUDA_CHECK_LAUNCH();
}

void column_sum_cuda(Device *d, Tensor db, Tensor dout) {
    CHECK(dout.dtype == DT_BF16 || dout.dtype == DT_F32, "column_sum of %s",
          dtype_info[dout.dtype].name);
    tensor_expect(db, "column_sum db", DT_F32, 1, dout.cols);
    float *partials = (float *)device_scratch(d, column_sum_scratch_cuda(dout.cols));
    ColumnSums a = column_sums((float *)db.data, partials, dout.rows, dout.cols);
    if (dout.dtype == DT_BF16) launch_column_sum<bf16>(d, a, dout);
    else launch_column_sum<float>(d, a, dout);
}

// --- sums of everything ---

enum {
    SUM_BLOCKS = 1024,   // partial sums at most: one a thread of the second stage
    SUM_THREADS = 256,
    SUM_VECTORS = 4   // vectors a thread, at least: a small tensor takes few blocks
};

typedef enum { SUM_VALUES, SUM_SQUARES, SUM_DIFFERENCES } Summand;   // the last: their squares

static unsigned sum_blocks(int64_t count) {
    return (unsigned)min_i64(SUM_BLOCKS, ceil_div(count, SUM_THREADS * SUM_VECTORS * VEC));
}

size_t sum_scratch_cuda(void) { return SUM_BLOCKS * sizeof(double); }

/*
A grid of fixed size strides over x, 8 values a thread at a time; f32 within a block.
  bytes    4 per element, 8 of differences
  limiter  memory bandwidth; measured: see dev/SPEED.md
*/
template <Summand SUMMAND>
__global__ static void __launch_bounds__(SUM_THREADS)
    sum_kernel(double *partials, const float *x, const float *y, int64_t count, bool whole) {
    __shared__ float shared[SUM_THREADS / WARP];
    int64_t stride = (int64_t)gridDim.x * SUM_THREADS * VEC;
    float sum = 0.0f;
#pragma unroll 4
    for (int64_t i = ((int64_t)blockIdx.x * SUM_THREADS + threadIdx.x) * VEC; i < count;
         i += stride) {
        float v[VEC], w[VEC];
        load_vec(v, x + i, count - i, whole);
        if (SUMMAND == SUM_DIFFERENCES) {
            load_vec(w, y + i, count - i, whole);
            for (int j = 0; j < VEC; j++) v[j] -= w[j];
        }
        for (int j = 0; j < VEC; j++) sum += SUMMAND == SUM_VALUES ? v[j] : v[j] * v[j];
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/* One block: total of at most one partial sum a thread, in double; returned to all threads. */
static __device__ double total_of_partials(const double *partials, int num) {
    __shared__ double shared[SUM_BLOCKS];
    int i = threadIdx.x;
    shared[i] = i < num ? partials[i] : 0.0;
    __syncthreads();
    for (int half = SUM_BLOCKS / 2; half > 0; half /= 2) {
        if (i < half) shared[i] += shared[i + half];
        __syncthreads();
    }
    return shared[0];
}

/* Second stages: one block, 8 KB; a launch is what they cost. */
__global__ static void add_total_kernel(float *out, const double *partials, int num, float scale) {
    double total = total_of_partials(partials, num);
    if (threadIdx.x == 0) *out += (float)(scale * total);
}

__global__ static void norm_of_total_kernel(float *out, const double *partials, int num) {
    double total = total_of_partials(partials, num);
    if (threadIdx.x == 0) *out = (float)sqrt(total);
}

/* y is for differences alone. */
template <Summand SUMMAND> static double *launch_sum(Device *d, Tensor x, Tensor y) {
    double *partials = (double *)device_scratch(d, sum_scratch_cuda());
    int64_t count = tensor_count(x);
    sum_kernel<SUMMAND><<<sum_blocks(count), SUM_THREADS, 0, device_cuda_stream(d)>>>(
        partials, (const float *)x.data, (const float *)y.data, count,
        whole_vectors(flat(x)) && whole_vectors(flat(y)));
    CUDA_CHECK_LAUNCH();
    return partials;
}

void sum_cuda(Device *d, float *out, Tensor x, float scale) {
    tensor_expect(x, "sum x", DT_F32, x.rows, x.cols);
    double *partials = launch_sum<SUM_VALUES>(d, x, x);
    int num = (int)sum_blocks(tensor_count(x));
    add_total_kernel<<<1, SUM_BLOCKS, 0, device_cuda_stream(d)>>>(out, partials, num, scale);
    CUDA_CHECK_LAUNCH();
}

void global_norm_cuda(Device *d, float *out, Tensor x) {
    tensor_expect(x, "global_norm x", DT_F32, 1, x.cols);
    double *partials = launch_sum<SUM_SQUARES>(d, x, x);
    int num = (int)sum_blocks(tensor_count(x));
    norm_of_total_kernel<<<1, SUM_BLOCKS, 0, device_cuda_stream(d)>>>(out, partials, num);
    CUDA_CHECK_LAUNCH();
}

void distance_cuda(Device *d, float *out, Tensor a, Tensor b) {
    tensor_expect(a, "distance a", DT_F32, 1, a.cols);
    tensor_expect(b, "distance b", DT_F32, 1, a.cols);
    double *partials = launch_sum<SUM_DIFFERENCES>(d, a, b);
    int num = (int)sum_blocks(tensor_count(a));
    norm_of_total_kernel<<<1, SUM_BLOCKS, 0, device_cuda_stream(d)>>>(out, partials, num);
    CUDA_CHECK_LAUNCH();
}
