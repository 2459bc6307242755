// attention_flash -- the own CUDA kernels of attention.h, flash-style, for tensor cores from sm_80
// on. How a warp multiplies 16x16 blocks is in attention_tile.cuh; whether these kernels or cuDNN
// run is decided in attention.cu.  Four warps share a block, and every kernel has the same shape: a
// block owns rows (queries or keys), keeps them in registers as factors of the tensor core, and
// walks along the other side in tiles of 64 rows, two tiles a step, while the next step's tiles
// arrive in the second half of shared memory. Nothing is summed across blocks, so every sum has one
// fixed order and both passes are deterministic. The backward pass therefore has two kernels, one
// that owns keys (dk, dv) and one that owns queries (dq); both compute the probabilities again: 7
// products where a single kernel with atomics would have 5.
#include "attention_flash.h"

#include <math.h>

#include "../device_cuda.cuh"
#include "attention_tile.cuh"
#include "vec.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, TILE = 64 };

static constexpr float LOG2_E = 1.44269504088896341f, LN_2 = 0.69314718055994531f;

typedef struct {
    AttentionDims dims;
    const bf16 *qkv;    // (B*T, (NH + 2 NKV) * HS)
    bf16 *out;          // (B*T, NH*HS)
    float *lse;         // (B*NH, T)
    float scale_log2;   // log2(e) / sqrt(HS): exp(s) = 2^(q.k * scale_log2)
} ForwardArgs;

typedef struct {
    AttentionDims dims;
    const bf16 *qkv;   // as above
    const bf16 *out, *dout;
    const float *lse;
    float2 *row_stats;   // (B*NH, T): log2(e) * lse and delta
    bf16 *dqkv;
    float scale, scale_log2;
} BackwardArgs;

static __host__ __device__ __forceinline__ int64_t qkv_cols(const AttentionDims &d) {
    return (int64_t)(d.num_heads + 2 * d.num_kv_heads) * d.head_dim;
}

// Where sequence b begins in one of the head-sized column ranges of qkv or dqkv: query heads, key
// heads, value heads.
static __host__ __device__ __forceinline__ int64_t qkv_offset(const AttentionDims &d, int b,
                                                              int range) {
    return (int64_t)b * d.T * qkv_cols(d) + (int64_t)range * d.head_dim;
}
static __host__ __device__ __forceinline__ int key_range(const AttentionDims &d, int kv_head) {
    return d.num_heads + kv_head;
}
static __host__ __device__ __forceinline__ int value_range(const AttentionDims &d, int kv_head) {
    return d.num_heads + d.num_kv_heads + kv_head;
}

static __device__ __forceinline__ Slice qkv_slice(const bf16 *qkv, const AttentionDims &d, int b,
                                                  int range) {
    Slice s = {qkv + qkv_offset(d, b, range), qkv_cols(d), d.T, d.head_dim};
    return s;
}
static __device__ __forceinline__ Slice out_slice(const bf16 *out, const AttentionDims &d, int b,
                                                  int head) {
    const int64_t stride = (int64_t)d.num_heads * d.head_dim;
    Slice s = {out + b * d.T * stride + (int64_t)head * d.head_dim, stride, d.T, d.head_dim};
    return s;
}

// Elements of a tile of TILE rows, and of a stage: two such tiles, or one of twice the rows.
template <int HD> static __host__ __device__ constexpr int tile_elements(void) {
    return TILE * (HD + TILE_PADDING);
}
template <int HD> static __host__ __device__ constexpr int stage_elements(void) {
    return 2 * tile_elements<HD>();
}
template <int HD> static constexpr size_t shared_bytes(void) {
    return 2 * stage_elements<HD>() * sizeof(bf16);
}
enum { STATS_BYTES = 2 * TILE * sizeof(float2) };   // of the dk, dv kernel, behind the stages

// Starts fetching rows [row0, row0 + TILE) of two slices into one stage.
template <int HD>
static __device__ __forceinline__ void stage_fetch(bf16 *stage, const Slice &x, const Slice &y,
                                                   int row0) {
    tile_fetch<HD, TILE, THREADS>(stage, x, row0);
    tile_fetch<HD, TILE, THREADS>(stage + tile_elements<HD>(), y, row0);
}

// All 16-row factors of a warp along HD, from its rows of a tile.
template <int HD>
static __device__ __forceinline__ void load_left_rows(Frag (&f)[HD / 16], const bf16 *tile,
                                                      int row) {
#pragma unroll
    for (int k = 0; k < HD / 16; k++) f[k] = load_left<HD>(tile, row, 16 * k);
}

// The four lanes of a quad hold one row of an Accum.
static __device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
static __device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

// --- forward ---

// How many 16-row blocks of queries a warp owns: two where registers allow it, since each key and
// value that comes from shared memory then serves twice as many products.
template <int HD> static __host__ __device__ constexpr int query_blocks(void) {
    return HD <= 64 ? 2 : 1;
}

// The running softmax of a warp's 16 rows: this lane's two of them.
struct SoftmaxRows {
    float max[2];   // of the scores before scaling
    float sum[2];   // of 2^((score - max) * scale_log2) over this lane's columns
};

// Turns the scores of one tile into unnormalised probabilities and rescales what was summed before.
// A row's maximum is finite from the first tile on, because every query sees key 0.
template <int N, int D>
static __device__ __forceinline__ void softmax_step(Accum (&s)[N], Accum (&o)[D], SoftmaxRows &rows,
                                                    float scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float max = rows.max[half];
#pragma unroll
        for (int i = 0; i < 4 * N; i++)
            max = fmaxf(max, s[i / 4].v[i % 4 / 2 * 4 + 2 * half + i % 2]);
        max = quad_max(max);
        const float shift = max * scale_log2,
                    shrink = exp2_fast(rows.max[half] * scale_log2 - shift);
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 4 * N; i++) {
            float &p = s[i / 4].v[i % 4 / 2 * 4 + 2 * half + i % 2];
            p = exp2_fast(fmaf(p, scale_log2, -shift));
            sum += p;
        }
        rows.max[half] = max;
        rows.sum[half] = rows.sum[half] * shrink + sum;
#pragma unroll
        for (int i = 0; i < 4 * D; i++) o[i / 4].v[i % 4 / 2 * 4 + 2 * half + i % 2] *= shrink;
    }
}

// Scores of keys that come after the query get no probability.
template <int N>
static __device__ __forceinline__ void mask_scores(Accum (&s)[N], int query0, int key0) {
    const int lane = lane_id();
#pragma unroll
    for (int i = 0; i < 8 * N; i++)
        if (key0 + i / 8 * 16 + accum_col(lane, i % 8) > query0 + accum_row(lane, i % 8))
            s[i / 8].v[i % 8] = -INFINITY;
}

// Writes out and lse of a warp's 16 rows from query0 on.
template <int HD>
static __device__ __forceinline__ void forward_finish(const ForwardArgs &a, int b, int head,
                                                      int query0, const Accum (&o)[HD / 16],
                                                      const SoftmaxRows &rows) {
    const Slice shape = out_slice(a.out, a.dims, b, head);
    float mult[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float sum = quad_sum(rows.sum[half]);
        const int query = query0 + accum_row(lane_id(), 2 * half);
        mult[half] = 1.0f / sum;
        if (lane_id() % 4 == 0 && query < a.dims.T)
            a.lse[((int64_t)b * a.dims.num_heads + head) * a.dims.T + query] =
                (rows.max[half] * a.scale_log2 + log2f(sum)) * LN_2;
    }
    store_rows<HD>(a.out + (shape.data - a.out), shape, query0, o, mult);
}

// grid     one block of 4 warps per 128 queries (64 where HD > 64), head, sequence; the longest
//          rows first
// traffic  reads q once, k and v once per block of queries (from L2), writes out once
// limit    tensor cores, then shared memory: 4*HD FLOP per score against one 2^x and 4*HD / (16 or
//          32) bytes
template <int HD> static __global__ void __launch_bounds__(THREADS) forward_kernel(ForwardArgs a) {
    constexpr int M = query_blocks<HD>(), QUERIES = 16 * M * WARPS;
    static_assert(QUERIES <= 2 * TILE, "the queries pass through one stage");
    extern __shared__ __align__(16) bf16 shared[];
    const int b = blockIdx.z, head = blockIdx.y,
              kv_head = head / (a.dims.num_heads / a.dims.num_kv_heads);
    const int block_query0 = (gridDim.x - 1 - blockIdx.x) * QUERIES;
    const int warp_row = threadIdx.x / 32 * 16 * M, query0 = block_query0 + warp_row;
    const Slice keys = qkv_slice(a.qkv, a.dims, b, key_range(a.dims, kv_head));
    const Slice values = qkv_slice(a.qkv, a.dims, b, value_range(a.dims, kv_head));

    bf16 *query_stage = shared + stage_elements<HD>();
    tile_fetch<HD, QUERIES, THREADS>(query_stage, qkv_slice(a.qkv, a.dims, b, head), block_query0);
    stage_fetch<HD>(shared, keys, values, 0);
    copy_async_wait();
    __syncthreads();
    Frag q[M][HD / 16];
#pragma unroll
    for (int m = 0; m < M; m++) load_left_rows<HD>(q[m], query_stage, warp_row + 16 * m);

    Accum o[M][HD / 16] = {};
    SoftmaxRows rows[M];
#pragma unroll
    for (int m = 0; m < M; m++) rows[m] = {{-INFINITY, -INFINITY}, {0, 0}};
    const int end = min(block_query0 + QUERIES, a.dims.T);
    for (int key0 = 0, stage = 0; key0 < end; key0 += TILE, stage ^= 1) {
        copy_async_wait();
        __syncthreads();   // this step's tiles are complete, and the other stage is free
        if (key0 + TILE < end)
            stage_fetch<HD>(shared + (stage ^ 1) * stage_elements<HD>(), keys, values, key0 + TILE);
        if (key0 >= query0 + 16 * M) continue;   // every score of this warp would be masked
        const bf16 *k = shared + stage * stage_elements<HD>(), *v = k + tile_elements<HD>();

        Accum s[M][TILE / 16] = {};
#pragma unroll
        for (int d = 0; d < HD / 16; d++) {
#pragma unroll
            for (int n = 0; n < TILE / 16; n++) {
                const Frag f = load_right_transposed<HD>(k, 16 * n, 16 * d);
#pragma unroll
                for (int m = 0; m < M; m++) multiply_add(s[m][n], q[m][d], f);
            }
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            if (key0 + TILE > query0 + 16 * m) mask_scores(s[m], query0 + 16 * m, key0);
            softmax_step(s[m], o[m], rows[m], a.scale_log2);
        }
#pragma unroll
        for (int n = 0; n < TILE / 16; n++) {
            Frag p[M];
#pragma unroll
            for (int m = 0; m < M; m++) p[m] = to_left(s[m][n]);
#pragma unroll
            for (int d = 0; d < HD / 16; d++) {
                const Frag f = load_right<HD>(v, 16 * n, 16 * d);
#pragma unroll
                for (int m = 0; m < M; m++) multiply_add(o[m][d], p[m], f);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++) forward_finish<HD>(a, b, head, query0 + 16 * m, o[m], rows[m]);
}

// --- backward ---

// grid     16 lanes per token and head
// traffic  reads out, dout once, writes 8 bytes per token and head; limited by memory bandwidth
static __global__ void row_stats_kernel(BackwardArgs a) {
    const int HS = a.dims.head_dim, NH = a.dims.num_heads, lane = threadIdx.x % 16;
    const int64_t item =
        ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 16;   // token * NH + head
    const bool inside = item < (int64_t)a.dims.B * a.dims.T * NH;
    float delta = 0;
    if (inside && VEC * lane < HS) {
        float out[VEC], dout[VEC];
        load_vec(out, a.out + item * HS + VEC * lane, VEC, true);
        load_vec(dout, a.dout + item * HS + VEC * lane, VEC, true);
#pragma unroll
        for (int i = 0; i < VEC; i++) delta += out[i] * dout[i];
    }
#pragma unroll
    for (int step = 8; step > 0; step /= 2) delta += __shfl_xor_sync(0xFFFFFFFFu, delta, step);
    if (inside && lane == 0) {
        const int64_t token = item / NH;
        const int head = item % NH;
        const int64_t row = (token / a.dims.T * NH + head) * a.dims.T + token % a.dims.T;
        a.row_stats[row] = make_float2(LOG2_E * a.lse[row], delta);
    }
}

// Of one score: its probability p and the gradient p * (dp - delta); none where the key comes after
// the query. Beyond the end of a sequence q, dout and stats are zero, so dp and both results'
// products are zero as well.
static __device__ __forceinline__ void score_gradient(float &s, float &dp, float2 stats,
                                                      float scale_log2, bool visible) {
    const float p = visible ? exp2_fast(fmaf(s, scale_log2, -stats.x)) : 0.0f;
    dp = p * (dp - stats.y);
    s = p;
}

// What the dk, dv kernel walks along: every query tile from the keys' own on, for each query head
// of the group.
typedef struct {
    int first_tile, num_tiles, num_steps;
} QueryWalk;
static __host__ __device__ __forceinline__ QueryWalk query_walk(const AttentionDims &d,
                                                                int key_tile) {
    QueryWalk w;
    w.first_tile = key_tile;
    w.num_tiles = (d.T + TILE - 1) / TILE - key_tile;
    w.num_steps = w.num_tiles * (d.num_heads / d.num_kv_heads);
    return w;
}

// Starts fetching one step's q, dout and row stats.
template <int HD>
static __device__ __forceinline__ void query_fetch(const BackwardArgs &a, bf16 *stage,
                                                   float2 *stats, int b, int head, int query0) {
    stage_fetch<HD>(stage, qkv_slice(a.qkv, a.dims, b, head), out_slice(a.dout, a.dims, b, head),
                    query0);
    if (threadIdx.x < TILE) {
        const bool inside = query0 + (int)threadIdx.x < a.dims.T;
        const float2 *row = a.row_stats + ((int64_t)b * a.dims.num_heads + head) * a.dims.T;
        copy_async_8(stats + threadIdx.x, inside ? row + query0 + threadIdx.x : row, inside);
    }
}

// grid     one block of 4 warps per 64 keys, key/value head, sequence; walks the group's query
//          heads one by one
// traffic  reads k, v once, q and dout once per block of keys (from L2), writes dk, dv once
// limit    tensor cores, then shared memory: 8*HD FLOP per score against one 2^x and HD / 2 bytes
template <int HD>
static __global__ void __launch_bounds__(THREADS) key_gradient_kernel(BackwardArgs a) {
    extern __shared__ __align__(16) bf16 shared[];
    float2 *stats = (float2 *)(shared + 2 * stage_elements<HD>());   // one tile's for each stage
    const int b = blockIdx.z, kv_head = blockIdx.y, group = a.dims.num_heads / a.dims.num_kv_heads;
    const int block_key0 = blockIdx.x * TILE, warp_row = threadIdx.x / 32 * 16,
              key0 = block_key0 + warp_row;
    const Slice keys = qkv_slice(a.qkv, a.dims, b, key_range(a.dims, kv_head));
    const Slice values = qkv_slice(a.qkv, a.dims, b, value_range(a.dims, kv_head));
    const QueryWalk walk = query_walk(a.dims, blockIdx.x);
    const int lane = lane_id();

    bf16 *key_stage = shared + stage_elements<HD>();
    stage_fetch<HD>(key_stage, keys, values, block_key0);
    query_fetch<HD>(a, shared, stats, b, kv_head * group, walk.first_tile * TILE);
    copy_async_wait();
    __syncthreads();
    Frag k[HD / 16], v[HD / 16];
    load_left_rows<HD>(k, key_stage, warp_row);
    load_left_rows<HD>(v, key_stage + tile_elements<HD>(), warp_row);

    Accum dk[HD / 16] = {}, dv[HD / 16] = {};
    for (int step = 0, stage = 0; step < walk.num_steps; step++, stage ^= 1) {
        copy_async_wait();
        __syncthreads();   // this step's tiles are complete, and the other stage is free
        if (const int next = step + 1; next < walk.num_steps)
            query_fetch<HD>(a, shared + (stage ^ 1) * stage_elements<HD>(),
                            stats + (stage ^ 1) * TILE, b, kv_head * group + next / walk.num_tiles,
                            (walk.first_tile + next % walk.num_tiles) * TILE);
        const bf16 *q = shared + stage * stage_elements<HD>(), *dout = q + tile_elements<HD>();
        const int query0 = (walk.first_tile + step % walk.num_tiles) * TILE;
#pragma unroll 1
        for (int n = 0; n < TILE; n += 16) {
            if (query0 + n + 16 <= key0)
                continue;            // these queries come before all of this warp's keys
            Accum s = {}, dp = {};   // keys x queries
#pragma unroll
            for (int d = 0; d < HD / 16; d++) {
                multiply_add(s, k[d], load_right_transposed<HD>(q, n, 16 * d));
                multiply_add(dp, v[d], load_right_transposed<HD>(dout, n, 16 * d));
            }
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const int i = n + accum_col(lane, e);
                score_gradient(s.v[e], dp.v[e], stats[stage * TILE + i], a.scale_log2,
                               query0 + i >= key0 + accum_row(lane, e));
            }
            const Frag p = to_left(s), ds = to_left(dp);
#pragma unroll
            for (int d = 0; d < HD / 16; d++) {
                multiply_add(dv[d], p, load_right<HD>(dout, n, 16 * d));
                multiply_add(dk[d], ds, load_right<HD>(q, n, 16 * d));
            }
        }
    }
    const float key_mult[2] = {a.scale, a.scale}, value_mult[2] = {1, 1};
    store_rows<HD>(a.dqkv + qkv_offset(a.dims, b, key_range(a.dims, kv_head)), keys, key0, dk,
                   key_mult);
    store_rows<HD>(a.dqkv + qkv_offset(a.dims, b, value_range(a.dims, kv_head)), values, key0, dv,
                   value_mult);
}

// grid     one block of 4 warps per 64 queries, head, sequence; the longest rows first
// traffic  reads q, dout once, k and v once per block of queries (from L2), writes dq once
// limit    tensor cores, then shared memory: 6*HD FLOP per score against one 2^x and 3*HD / 8 bytes
template <int HD>
static __global__ void __launch_bounds__(THREADS) query_gradient_kernel(BackwardArgs a) {
    extern __shared__ __align__(16) bf16 shared[];
    const int b = blockIdx.z, head = blockIdx.y,
              kv_head = head / (a.dims.num_heads / a.dims.num_kv_heads);
    const int block_query0 = (gridDim.x - 1 - blockIdx.x) * TILE;
    const int warp_row = threadIdx.x / 32 * 16, query0 = block_query0 + warp_row;
    const Slice queries = qkv_slice(a.qkv, a.dims, b, head);
    const Slice keys = qkv_slice(a.qkv, a.dims, b, key_range(a.dims, kv_head));
    const Slice values = qkv_slice(a.qkv, a.dims, b, value_range(a.dims, kv_head));
    const int lane = lane_id();

    bf16 *query_stage = shared + stage_elements<HD>();
    stage_fetch<HD>(query_stage, queries, out_slice(a.dout, a.dims, b, head), block_query0);
    stage_fetch<HD>(shared, keys, values, 0);
    copy_async_wait();
    __syncthreads();
    Frag q[HD / 16], dout[HD / 16];
    load_left_rows<HD>(q, query_stage, warp_row);
    load_left_rows<HD>(dout, query_stage + tile_elements<HD>(), warp_row);
    float2 stats[2];   // of this lane's two rows
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int query = query0 + accum_row(lane, 2 * half);
        const float2 *row = a.row_stats + ((int64_t)b * a.dims.num_heads + head) * a.dims.T;
        stats[half] = query < a.dims.T ? row[query] : make_float2(0, 0);
    }

    Accum dq[HD / 16] = {};
    const int end = min(block_query0 + TILE, a.dims.T);
    for (int tile0 = 0, stage = 0; tile0 < end; tile0 += TILE, stage ^= 1) {
        copy_async_wait();
        __syncthreads();   // this step's tiles are complete, and the other stage is free
        if (tile0 + TILE < end)
            stage_fetch<HD>(shared + (stage ^ 1) * stage_elements<HD>(), keys, values,
                            tile0 + TILE);
        const bf16 *k = shared + stage * stage_elements<HD>(), *v = k + tile_elements<HD>();
#pragma unroll 1
        for (int n = 0; n < TILE && tile0 + n < query0 + 16;
             n += 16) {              // up to this warp's last query
            Accum s = {}, dp = {};   // queries x keys
#pragma unroll
            for (int d = 0; d < HD / 16; d++) {
                multiply_add(s, q[d], load_right_transposed<HD>(k, n, 16 * d));
                multiply_add(dp, dout[d], load_right_transposed<HD>(v, n, 16 * d));
            }
#pragma unroll
            for (int e = 0; e < 8; e++)
                score_gradient(s.v[e], dp.v[e], stats[e / 2 % 2], a.scale_log2,
                               tile0 + n + accum_col(lane, e) <= query0 + accum_row(lane, e));
            const Frag ds = to_left(dp);
#pragma unroll
            for (int d = 0; d < HD / 16; d++) multiply_add(dq[d], ds, load_right<HD>(k, n, 16 * d));
        }
    }
    const float mult[2] = {a.scale, a.scale};
    store_rows<HD>(a.dqkv + qkv_offset(a.dims, b, head), queries, query0, dq, mult);
}

// --- launching ---

// One row for each width that heads are padded to inside the kernels.
typedef struct {
    int head_dim, queries_per_block;
    size_t shared_bytes;
    void (*forward)(ForwardArgs);
    void (*key_gradient)(BackwardArgs);
    void (*query_gradient)(BackwardArgs);
} FlashKernels;

#define FLASH_KERNELS(HD)                                                                          \
    {                                                                                              \
        HD, 16 * query_blocks<HD>() * WARPS, shared_bytes<HD>(), forward_kernel<HD>,               \
            key_gradient_kernel<HD>, query_gradient_kernel<HD>                                     \
    }
static const FlashKernels flash_kernels[] = {
    FLASH_KERNELS(16), FLASH_KERNELS(32), FLASH_KERNELS(64), FLASH_KERNELS(96), FLASH_KERNELS(128)};

static const FlashKernels *flash_kernels_for(AttentionDims d) {
    CHECK(d.head_dim % 8 == 0 && d.B <= 65535 && d.num_heads <= 65535,
          "CUDA attention of %d sequences, %d heads of %d: the head size must be a multiple of 8",
          d.B, d.num_heads, d.head_dim);
    for (int i = 0; i < ARRAY_LEN(flash_kernels); i++)
        if (d.head_dim <= flash_kernels[i].head_dim) return &flash_kernels[i];
    CHECK(0, "CUDA attention with heads of %d: at most 128", d.head_dim);
    return NULL;
}

// More than 48 KiB of dynamic shared memory must be asked for.
static void allow_shared(const void *kernel, size_t bytes) {
    CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
}

void attention_flash_forward(Device *d, Tensor out, Tensor lse, Tensor qkv, AttentionDims dims) {
    const FlashKernels *kernels = flash_kernels_for(dims);
    ForwardArgs a;
    a.dims = dims;
    a.qkv = (const bf16 *)qkv.data;
    a.out = (bf16 *)out.data;
    a.lse = (float *)lse.data;
    a.scale_log2 = (float)(M_LOG2E / sqrt((double)dims.head_dim));
    dim3 grid((unsigned)ceil_div(dims.T, kernels->queries_per_block), dims.num_heads, dims.B);
    allow_shared((const void *)kernels->forward, kernels->shared_bytes);
    kernels->forward<<<grid, THREADS, kernels->shared_bytes, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}

size_t attention_flash_scratch_bytes(AttentionDims d) {
    return sizeof(float2) * d.B * d.num_heads * d.T;
}

void attention_flash_backward(Device *d, Tensor dqkv, Tensor dout, Tensor out, Tensor lse,
                              Tensor qkv, AttentionDims dims) {
    const FlashKernels *kernels = flash_kernels_for(dims);
    const cudaStream_t stream = device_cuda_stream(d);
    BackwardArgs a;
    a.dims = dims;
    a.qkv = (const bf16 *)qkv.data;
    a.out = (const bf16 *)out.data;
    a.dout = (const bf16 *)dout.data;
    a.lse = (const float *)lse.data;
    a.row_stats = (float2 *)device_scratch(d, attention_flash_scratch_bytes(dims));
    a.dqkv = (bf16 *)dqkv.data;
    a.scale = (float)(1 / sqrt((double)dims.head_dim));
    a.scale_log2 = (float)(M_LOG2E / sqrt((double)dims.head_dim));

    const int64_t lanes = (int64_t)16 * dims.B * dims.T * dims.num_heads;
    row_stats_kernel<<<(unsigned)ceil_div(lanes, 256), 256, 0, stream>>>(a);
    CUDA_CHECK_LAUNCH();

    const unsigned tiles = (unsigned)ceil_div(dims.T, TILE);
    dim3 key_grid(tiles, dims.num_kv_heads, dims.B), query_grid(tiles, dims.num_heads, dims.B);
    allow_shared((const void *)kernels->key_gradient, kernels->shared_bytes + STATS_BYTES);
    kernels->key_gradient<<<key_grid, THREADS, kernels->shared_bytes + STATS_BYTES, stream>>>(a);
    CUDA_CHECK_LAUNCH();
    allow_shared((const void *)kernels->query_gradient, kernels->shared_bytes);
    kernels->query_gradient<<<query_grid, THREADS, kernels->shared_bytes, stream>>>(a);
    CUDA_CHECK_LAUNCH();
}
