// cross_entropy -- the kernel of the fused classifier. A host compiler can take this file too,
// after test/fibres.h.
#pragma once
#include "approx.cuh"
#include "copy_async.cuh"
#include "vec.cuh"

enum {
    ROW_THREADS = 512,
    ROW_WARPS = ROW_THREADS / WARP,
    ROW_BLOCKS = 2   // of a multiprocessor, at least: one loads and stores while the other computes
};

typedef struct {
    float *losses;            // (rows)
    bf16 *logits;             // (rows, cols), replaced by their gradient unless dloss is 0
    const int32_t *targets;   // (rows)
    int64_t rows, cols;
    int num_blocks;   // block b takes rows b, b + num_blocks, ...
    int resident;     // vectors of a row that shared memory holds; 0 unless `whole`
    int vocab;        // columns from here on are padding
    float dloss;
    bool whole;
} CrossEntropyArgs;

/* The vectors of a row. A thread takes every ROW_THREADS-th, always the same ones: it alone reads
   what it copied to shared memory and what it overwrites. */
typedef struct {
    bf16 *data;      // (cols) in global memory
    uint4 *shared;   // the first `resident`
    int cols, vocab, resident;
    bool whole;
} LogitsRow;

static __device__ __forceinline__ LogitsRow logits_row(const CrossEntropyArgs &a, int64_t n) {
    return {a.logits + n * a.cols,
            reinterpret_cast<uint4 *>(block_shared_memory()),
            (int)a.cols,
            a.vocab,
            a.resident,
            a.whole};
}

/* A vector that is not in shared memory, or that has padding, which reads as -inf. */
static __device__ uint4 edge_vector(const LogitsRow &row, int v) {
    const uint32_t minus_inf = 0xFF80;
    int left = row.vocab - v * VEC;
    uint4 packed = v < row.resident
                       ? load_shared_16(row.shared + v)
                       : load_packed(row.data + v * VEC, row.cols - v * VEC, row.whole);
    uint32_t w[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (left <= 2 * i) w[i] = minus_inf << 16 | minus_inf;
        else if (left == 2 * i + 1) w[i] = (w[i] & 0xFFFF) | minus_inf << 16;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* visit(v, packed) for each vector of this thread, in ascending order. */
template <typename Visit>
static __device__ __forceinline__ void for_vectors(const LogitsRow &row, Visit visit) {
    int whole = row.vocab / VEC, all = (row.cols + VEC - 1) / VEC;
    int inner = row.resident < whole ? row.resident : whole;
    int v = (int)threadIdx.x;
#pragma unroll 2
    for (; v < inner; v += ROW_THREADS) visit(v, load_shared_16(row.shared + v));
#pragma unroll 1
    for (; v < all; v += ROW_THREADS) visit(v, edge_vector(row, v));
}

/* Starts the copy of a vector, when shared memory holds it. */
static __device__ __forceinline__ void fetch(const LogitsRow &row, int v) {
    if (v < row.resident) copy_async_16(row.shared + v, row.data + (int64_t)v * VEC, true);
}

// --- loss ---

typedef struct {
    float maximum, sum;   // sum of exp(x - maximum)
} SoftmaxSum;

static __device__ __forceinline__ float exp_of_difference(float x, float maximum) {
    return exp2_approx((x - maximum) * LOG2_E);
}

/* Of the vectors of this warp; all of padding: {-inf, 0}. */
static __device__ __forceinline__ SoftmaxSum softmax_sum_of_warp(const LogitsRow &row) {
    uint32_t largest = 0xFF80FF80;   // two of -inf
    for_vectors(row, [&](int, uint4 p) {
        uint32_t pairs = max_bf16x2(max_bf16x2(p.x, p.y), max_bf16x2(p.z, p.w));
        largest = max_bf16x2(largest, pairs);
    });
    SoftmaxSum s = {warp_max(fmaxf(low_float(largest), high_float(largest))), 0.0f};
    float base = s.maximum == -INFINITY ? 0.0f : s.maximum;   // -inf less -inf is no number
    for_vectors(row, [&](int, uint4 packed) {
        float x[VEC];
        unpack(x, packed);
#pragma unroll
        for (int j = 0; j < VEC; j++) s.sum += exp_of_difference(x[j], base);
    });
    s.sum = warp_sum(s.sum);
    return s;
}

/* Of the row; one barrier. `shared` is not written again before the barrier of the next row. */
static __device__ __forceinline__ SoftmaxSum softmax_sum_of_block(SoftmaxSum own,
                                                                  SoftmaxSum *shared) {
    int lane = (int)threadIdx.x % WARP;
    if (lane == 0) shared[threadIdx.x / WARP] = own;
    __syncthreads();
    SoftmaxSum part = {-INFINITY, 0.0f};
    if (lane < ROW_WARPS) part = shared[lane];
    float maximum = warp_max(part.maximum);
    return {maximum, warp_sum(part.sum * exp_of_difference(part.maximum, maximum))};
}

// --- gradient ---

typedef struct {
    float maximum, scale;   // of exp(x - maximum)
    float dloss;
    int target;
} LogitsGrad;

static __device__ __forceinline__ void store_gradient(const LogitsRow &row, const LogitsGrad &grad,
                                                      int v, uint4 packed) {
    float x[VEC];
    unpack(x, packed);
#pragma unroll
    for (int j = 0; j < VEC; j++) x[j] = exp_of_difference(x[j], grad.maximum) * grad.scale;
    if (v * VEC + VEC > row.vocab) {
#pragma unroll
        for (int j = 0; j < VEC; j++)
            if (v * VEC + j >= row.vocab) x[j] = 0.0f;   // also where the scale is NaN
    }
    // loss = log(sum of exp) - logit of the target: softmax, minus 1 at the target
    if (v == grad.target / VEC) {
#pragma unroll
        for (int j = 0; j < VEC; j++) x[j] -= j == grad.target % VEC ? grad.dloss : 0.0f;
    }
    store_vec(row.data + (int64_t)v * VEC, x, row.cols - v * VEC, row.whole);
}

/*
A block stays and takes row after row. A row lies in shared memory (100 KB at a vocabulary of 50304;
two blocks a multiprocessor), where three passes read it: maximum, sum, gradient. The last one frees
it vector by vector for the next row, whose loads then run under the stores of this one. What does
not fit, from 57000 columns on, is read again from global memory, mostly L2, in each pass.
  bytes    4 per logit: 2 read, 2 written; 2 when dloss is 0
  limiter  memory bandwidth; then exp, two a logit: 58 % of the time that memory takes on an H200
*/
__global__ static void __launch_bounds__(ROW_THREADS, ROW_BLOCKS)
    cross_entropy_kernel(CrossEntropyArgs a) {
    __shared__ SoftmaxSum shared[2][ROW_WARPS];   // of even and of odd rounds
    int all = (int)((a.cols + VEC - 1) / VEC), round = 0;
    for (int v = (int)threadIdx.x; v < all; v += ROW_THREADS) fetch(logits_row(a, blockIdx.x), v);
    copy_async_commit();
    for (int64_t n = blockIdx.x; n < a.rows; n += a.num_blocks) {
        LogitsRow row = logits_row(a, n), next = logits_row(a, n + a.num_blocks);
        if (n + a.num_blocks >= a.rows) next.resident = 0;
        int target = a.targets[n];
        // Read before the barrier: after it is overwritten.
        float target_logit = threadIdx.x == 0 ? float_of(row.data[target]) : 0.0f;
        copy_async_wait<0>();
        SoftmaxSum total = softmax_sum_of_block(softmax_sum_of_warp(row), shared[round]);
        round = 1 - round;
        if (threadIdx.x == 0) a.losses[n] = logf(total.sum) + total.maximum - target_logit;
        LogitsGrad grad = {total.maximum, 1.0f / total.sum * a.dloss, a.dloss, target};
        for_vectors(row, [&](int v, uint4 packed) {
            if (a.dloss != 0.0f) store_gradient(row, grad, v, packed);
            fetch(next, v);
        });
        copy_async_commit();
    }
}
