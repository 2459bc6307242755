// rope -- rotary positions on a GPU, in place on the query and key heads of qkv; contract in
// attention.h. Bit for bit what attention.c computes: every product is rounded by itself.
#include "attention.h"

#include "../device_cuda.cuh"
#include "vec.cuh"

typedef struct {
    bf16 *qkv;            // (rows, cols)
    const float *table;   // (Tmax, head_dim): cosines, then sines
    int64_t rows, cols;
    uint32_t T, num_heads;          // query and key heads
    uint32_t pairs, head_vectors;   // head_dim / 2, and vectors of 8 pairs in a head
    float direction;                // 1: forward, -1: backward
    bool whole;
} RopeArgs;

/*
One vector of 8 pairs a thread.
  bytes    4 per element of q and k: 2 read, 2 written; the table comes from the caches
  limiter  memory bandwidth; measured: see dev/SPEED.md
*/
__global__ static void __launch_bounds__(FLAT_THREADS) rope_kernel(RopeArgs r) {
    uint32_t vector = blockIdx.x * FLAT_THREADS + threadIdx.x;
    uint32_t head_at = vector / r.head_vectors, head = head_at % r.num_heads;
    uint32_t row = head_at / r.num_heads;
    if (row >= r.rows) return;
    uint32_t first = vector % r.head_vectors * VEC;   // pair
    int64_t left = r.pairs - first;
    const float *cosines = r.table + (int64_t)(row % r.T) * (2 * r.pairs) + first;
    bf16 *at = r.qkv + (int64_t)row * r.cols + head * (2 * r.pairs) + first;
    float a[VEC], b[VEC], cosine[VEC], sine[VEC];
    load_vec(a, at, left, r.whole);
    load_vec(b, at + r.pairs, left, r.whole);
    load_vec(cosine, cosines, left, r.whole);
    load_vec(sine, cosines + r.pairs, left, r.whole);
    for (int j = 0; j < VEC; j++) {
        float s = r.direction * sine[j];
        float turned = __fsub_rn(__fmul_rn(a[j], cosine[j]), __fmul_rn(b[j], s));
        b[j] = __fadd_rn(__fmul_rn(a[j], s), __fmul_rn(b[j], cosine[j]));
        a[j] = turned;
    }
    store_vec(at, a, left, r.whole);
    store_vec(at + r.pairs, b, left, r.whole);
}

static void rotate(Device *d, Tensor qkv, Tensor table, AttentionDims dims, float direction) {
    rope_check(qkv, table, dims);
    expect_bf16(qkv, "rope qkv");
    RopeArgs r = {};
    r.qkv = (bf16 *)qkv.data;
    r.table = (const float *)table.data;
    r.rows = qkv.rows;
    r.cols = qkv.cols;
    r.T = (uint32_t)dims.T;
    r.num_heads = (uint32_t)(dims.num_heads + dims.num_kv_heads);
    r.pairs = (uint32_t)dims.head_dim / 2;
    r.head_vectors = (uint32_t)ceil_div(r.pairs, VEC);
    r.direction = direction;
    r.whole = whole_vectors(qkv) && whole_vectors(table) && r.pairs % VEC == 0;
    unsigned blocks = flat_blocks(r.rows * r.num_heads * r.head_vectors);
    rope_kernel<<<blocks, FLAT_THREADS, 0, device_cuda_stream(d)>>>(r);
    CUDA_CHECK_LAUNCH();
}

void rope_forward_cuda(Device *d, Tensor qkv, Tensor table, AttentionDims dims) {
    rotate(d, qkv, table, dims, 1.0f);
}

void rope_backward_cuda(Device *d, Tensor dqkv, Tensor table, AttentionDims dims) {
    rotate(d, dqkv, table, dims, -1.0f);
}
