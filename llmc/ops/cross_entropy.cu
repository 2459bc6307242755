// cross_entropy -- the fused classifier on a GPU: one block a row, loss and gradient in one kernel.
#include "cross_entropy.h"

#include "../device_cuda.cuh"
#include "vec.cuh"

enum { ROW_THREADS = 512 };

typedef struct {
    float *losses;            // (rows)
    bf16 *logits;             // (rows, cols), replaced by their gradient unless dloss is 0
    const int32_t *targets;   // (rows)
    int64_t cols;
    int vocab;   // columns from here on are padding
    float dloss;
    bool whole;
} CrossEntropyArgs;

static __device__ __forceinline__ float exp_of_difference(float x, float maximum) {
    const float log2_e = 1.44269504f;
    return exp2f((x - maximum) * log2_e);
}

typedef struct {
    float maximum, sum;   // sum of exp(x - maximum)
} SoftmaxSum;

/* This thread's share of a row. */
static __device__ SoftmaxSum softmax_sum_of_thread(const bf16 *row, int vocab, bool whole) {
    SoftmaxSum s = {-INFINITY, 0.0f};
#pragma unroll 2
    for (int c = (int)threadIdx.x * VEC; c < vocab; c += ROW_THREADS * VEC) {
        float v[VEC], largest = s.maximum;
        load_vec(v, row + c, vocab - c, whole);
        for (int j = 0; j < VEC; j++) {
            if (c + j >= vocab) v[j] = -INFINITY;
            largest = fmaxf(largest, v[j]);
        }
        s.sum *= s.maximum == largest ? 1.0f : exp_of_difference(s.maximum, largest);
        s.maximum = largest;
        for (int j = 0; j < VEC; j++) s.sum += exp_of_difference(v[j], largest);
    }
    return s;
}

/*
A row is read twice, first for maximum and sum, then for the gradient; the second time it mostly
comes from L2 (100 KB a row at a vocabulary of 50304).
  bytes    4 per logit: 2 read from memory, 2 written; 2 when dloss is 0
  limiter  memory bandwidth, with two exps per logit not far behind; measured: see dev/SPEED.md
*/
__global__ static void __launch_bounds__(ROW_THREADS) cross_entropy_kernel(CrossEntropyArgs a) {
    __shared__ float shared[ROW_THREADS / WARP];
    bf16 *row = a.logits + (int64_t)blockIdx.x * a.cols;
    int target = a.targets[blockIdx.x];
    // Read before the barriers: after them it is overwritten.
    float target_logit = threadIdx.x == 0 ? __bfloat162float(row[target]) : 0.0f;
    SoftmaxSum own = softmax_sum_of_thread(row, a.vocab, a.whole);
    float maximum = block_max(own.maximum, shared);
    float sum = block_sum(own.sum * exp_of_difference(own.maximum, maximum), shared);
    if (threadIdx.x == 0) a.losses[blockIdx.x] = logf(sum) + maximum - target_logit;
    if (a.dloss == 0.0f) return;
    float scale = 1.0f / sum;
    for (int64_t c = (int64_t)threadIdx.x * VEC; c < a.cols; c += ROW_THREADS * VEC) {
        float v[VEC];
        load_vec(v, row + c, a.cols - c, a.whole);
        for (int j = 0; j < VEC; j++) {
            // loss = log(sum of exp) - logit of the target: softmax, minus 1 at the target
            v[j] = exp_of_difference(v[j], maximum) * scale * a.dloss;
            if (c + j == target) v[j] -= a.dloss;
            if (c + j >= a.vocab) v[j] = 0.0f;
        }
        store_vec(row + c, v, a.cols - c, a.whole);
    }
}

void cross_entropy_cuda(Device *d, Tensor losses, Tensor logits, Tensor targets, int vocab,
                        float dloss) {
    cross_entropy_check(losses, logits, targets, vocab);
    expect_bf16(logits, "cross_entropy logits");
    CrossEntropyArgs a = {(float *)losses.data,
                          (bf16 *)logits.data,
                          (const int32_t *)targets.data,
                          logits.cols,
                          vocab,
                          dloss,
                          whole_vectors(logits)};
    cross_entropy_kernel<<<(unsigned)logits.rows, ROW_THREADS, 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}
