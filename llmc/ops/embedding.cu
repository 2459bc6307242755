// embedding -- token vectors and positions on a GPU. The backward pass sorts the tokens, so that
// all places of a token lie together and are added in their order, without atomics.
//
// Backward: (token, place) pairs are sorted by token, stably. The sorted list is cut into windows
// of WINDOW places; a window adds the rows of each token it holds. A token that lies within one
// window is done. Of a token that crosses windows, each window writes its part to one of its two
// partial rows: `carried` if the token began in an earlier window, else `begun`. A second kernel
// adds the parts, in order.
#include "embedding.h"

#include <cub/device/device_radix_sort.cuh>

#include "../device_cuda.cuh"
#include "scratch_cuda.cuh"
#include "vec.cuh"

// --- forward ---

typedef struct {
    bf16 *out;                       // (N, C)
    const int32_t *tokens;           // (N)
    const bf16 *table, *positions;   // (Vp, C), (Tmax, C) or NULL
    int64_t N, C;
    uint32_t T, row_vectors;
    bool whole;
} EmbeddingArgs;

/*
One vector of 8 columns a thread.
  bytes    4 per element: 2 read from the table, 2 written; positions come from L2
  limiter  memory bandwidth; measured: see dev/SPEED.md
*/
__global__ static void __launch_bounds__(FLAT_THREADS) embedding_forward_kernel(EmbeddingArgs e) {
    uint32_t vector = blockIdx.x * FLAT_THREADS + threadIdx.x;
    uint32_t n = vector / e.row_vectors;
    int64_t c = (int64_t)(vector % e.row_vectors) * VEC;
    if (n >= e.N) return;
    float sum[VEC], position[VEC] = {};
    load_vec(sum, e.table + (int64_t)e.tokens[n] * e.C + c, e.C - c, e.whole);
    const bf16 *position_row = e.positions + (int64_t)(n % e.T) * e.C;
    if (e.positions) load_vec(position, position_row + c, e.C - c, e.whole);
    for (int j = 0; j < VEC; j++) sum[j] += position[j];
    store_vec(e.out + (int64_t)n * e.C + c, sum, e.C - c, e.whole);
}

void embedding_forward_cuda(Device *d, Tensor out, Tensor tokens, Tensor table, Tensor positions) {
    embedding_check(out, tokens, table, positions);
    expect_bf16(out, "embedding out");
    EmbeddingArgs e = {(bf16 *)out.data,
                       (const int32_t *)tokens.data,
                       (const bf16 *)table.data,
                       (const bf16 *)positions.data,
                       out.rows,
                       out.cols,
                       (uint32_t)tokens.cols,
                       (uint32_t)ceil_div(out.cols, VEC),
                       false};
    e.whole = out.cols % VEC == 0 && whole_vectors(out) && whole_vectors(table) &&
              whole_vectors(positions);
    unsigned blocks = flat_blocks(e.N * e.row_vectors);
    embedding_forward_kernel<<<blocks, FLAT_THREADS, 0, device_cuda_stream(d)>>>(e);
    CUDA_CHECK_LAUNCH();
}

// --- backward: tokens ---

enum {
    WINDOW = 64,      // sorted places of one block
    ROWS_AHEAD = 4,   // loads in flight: their addresses do not depend on what they bring
    COLUMN_THREADS = 128,
    PART_BEGUN = 0,   // which of a window's partial rows
    PART_CARRIED = 1,
    NUM_PARTS = 2
};

// All of it in scratch, except dtable and dout.
typedef struct {
    float *dtable;                     // (Vp, C)
    const bf16 *dout;                  // (N, C)
    uint32_t *sorted_tokens;           // (N)
    int32_t *places, *sorted_places;   // (N)
    float *parts;                      // (windows, NUM_PARTS, C)
    void *sort_space;
    size_t sort_bytes;
    int64_t N, C;
    bool whole;
} TokenGradient;

static int token_bits(int64_t vocab) {
    int bits = 1;
    while (INT64_C(1) << bits < vocab) bits++;
    return bits;
}

static void sort_places(TokenGradient *g, const uint32_t *tokens, int64_t vocab,
                        cudaStream_t stream) {
    CUDA_CHECK(cub::DeviceRadixSort::SortPairs(g->sort_space, g->sort_bytes, tokens,
                                               g->sorted_tokens, g->places, g->sorted_places,
                                               (int)g->N, 0, token_bits(vocab), stream));
}

/* The next `bytes` of scratch; with base NULL only counts them. */
static void *take(char *base, size_t *used, size_t bytes) {
    char *p = base ? base + *used : NULL;
    *used += (size_t)round_up((int64_t)bytes, 256);
    return p;
}

/* Lays out the scratch from `base` and returns its size; base NULL only measures. */
static size_t place_scratch(TokenGradient *g, char *base, int64_t vocab) {
    sort_places(g, NULL, vocab, NULL);   // without sort_space it only says how much it needs
    size_t used = 0, list_bytes = (size_t)g->N * sizeof(int32_t);
    int64_t part_rows = ceil_div(g->N, WINDOW) * NUM_PARTS;
    g->sorted_tokens = (uint32_t *)take(base, &used, list_bytes);
    g->places = (int32_t *)take(base, &used, list_bytes);
    g->sorted_places = (int32_t *)take(base, &used, list_bytes);
    g->parts = (float *)take(base, &used, (size_t)(part_rows * g->C) * sizeof(float));
    g->sort_space = take(base, &used, g->sort_bytes);
    return used;
}

size_t embedding_scratch_cuda(int64_t tokens, int64_t cols, int64_t vocab) {
    TokenGradient g = {};
    g.N = tokens;
    g.C = cols;
    return place_scratch(&g, NULL, vocab);
}

/* 4 bytes a place: small beside the rest. */
__global__ static void list_places_kernel(int32_t *places, int64_t N) {
    int64_t n = (int64_t)blockIdx.x * FLAT_THREADS + threadIdx.x;
    if (n < N) places[n] = (int32_t)n;
}

static __device__ bool token_continues(const uint32_t *sorted, int64_t N, int64_t place) {
    return place + 1 < N && sorted[place + 1] == sorted[place];
}

/* Adds this thread's sum of one token in one window to where it belongs. [first, last] are the
   token's places in the window, and c the first column. */
static __device__ __forceinline__ void store_token_part(const TokenGradient &g, float sum[VEC],
                                                        int64_t first, int64_t last, int64_t c) {
    bool carried =
        first % WINDOW == 0 && first > 0 && token_continues(g.sorted_tokens, g.N, first - 1);
    if (!carried && !token_continues(g.sorted_tokens, g.N, last)) {
        float *at = g.dtable + (int64_t)g.sorted_tokens[first] * g.C + c;
        float old[VEC];
        load_vec(old, at, g.C - c, g.whole);
        for (int j = 0; j < VEC; j++) sum[j] += old[j];
        store_vec(at, sum, g.C - c, g.whole);
        return;
    }
    int64_t part = first / WINDOW * NUM_PARTS + (carried ? PART_CARRIED : PART_BEGUN);
    store_vec(g.parts + part * g.C + c, sum, g.C - c, g.whole);
}

/*
Block (x, y): window x, columns of vectors y * COLUMN_THREADS on, one vector a thread.
  bytes    2 per element of dout, 8 per element of the touched rows of dtable
  limiter  memory bandwidth; measured: see dev/SPEED.md
*/
__global__ static void __launch_bounds__(COLUMN_THREADS) token_window_kernel(TokenGradient g) {
    int64_t c = ((int64_t)blockIdx.y * COLUMN_THREADS + threadIdx.x) * VEC;
    if (c >= g.C) return;
    int64_t begin = (int64_t)blockIdx.x * WINDOW;
    int64_t end = begin + WINDOW < g.N ? begin + WINDOW : g.N, first = begin;
    float sum[VEC] = {};
    for (int64_t i = begin; i < end; i += ROWS_AHEAD) {
        uint4 rows[ROWS_AHEAD];
#pragma unroll
        for (int k = 0; k < ROWS_AHEAD; k++) {
            if (i + k >= end) break;
            const bf16 *row = g.dout + (int64_t)g.sorted_places[i + k] * g.C;
            rows[k] = load_packed(row + c, g.C - c, g.whole);
        }
#pragma unroll
        for (int k = 0; k < ROWS_AHEAD; k++) {
            if (i + k >= end) break;
            float v[VEC];
            unpack(v, rows[k]);
            for (int j = 0; j < VEC; j++) sum[j] += v[j];
            bool goes_on = i + k + 1 < end && token_continues(g.sorted_tokens, g.N, i + k);
            if (goes_on) continue;
            store_token_part(g, sum, first, i + k, c);
            for (int j = 0; j < VEC; j++) sum[j] = 0.0f;
            first = i + k + 1;
        }
    }
}

/*
Block (x, y) as above: if a token begins in window x and goes on beyond it, adds its parts in order.
  bytes    4 per element of the partial rows
  limiter  latency of the longest token's parts; measured: see dev/SPEED.md
*/
__global__ static void __launch_bounds__(COLUMN_THREADS) token_parts_kernel(TokenGradient g) {
    int64_t c = ((int64_t)blockIdx.y * COLUMN_THREADS + threadIdx.x) * VEC;
    int64_t begin = (int64_t)blockIdx.x * WINDOW, last = begin + WINDOW - 1;
    if (c >= g.C || last >= g.N || !token_continues(g.sorted_tokens, g.N, last)) return;
    uint32_t token = g.sorted_tokens[last];
    if (begin > 0 && g.sorted_tokens[begin - 1] == token) return;   // began in an earlier window
    float sum[VEC], part[VEC];
    int64_t window = blockIdx.x;
    load_vec(sum, g.parts + (window * NUM_PARTS + PART_BEGUN) * g.C + c, g.C - c, g.whole);
    do {
        window++;
        last += WINDOW;
        load_vec(part, g.parts + (window * NUM_PARTS + PART_CARRIED) * g.C + c, g.C - c, g.whole);
        for (int j = 0; j < VEC; j++) sum[j] += part[j];
    } while (last + 1 < g.N && g.sorted_tokens[last] == token &&
             g.sorted_tokens[last + 1] == token);
    float *at = g.dtable + (int64_t)token * g.C + c;
    load_vec(part, at, g.C - c, g.whole);
    for (int j = 0; j < VEC; j++) sum[j] += part[j];
    store_vec(at, sum, g.C - c, g.whole);
}

static void add_token_gradient(Device *d, Tensor dtable, Tensor dout, Tensor tokens) {
    cudaStream_t stream = device_cuda_stream(d);
    TokenGradient g = {};
    g.dtable = (float *)dtable.data;
    g.dout = (const bf16 *)dout.data;
    g.N = dout.rows;
    g.C = dout.cols;
    g.whole = g.C % VEC == 0 && whole_vectors(dout) && whole_vectors(dtable);
    size_t bytes = embedding_scratch_cuda(g.N, g.C, dtable.rows);
    place_scratch(&g, (char *)device_scratch(d, bytes), dtable.rows);
    list_places_kernel<<<flat_blocks(g.N), FLAT_THREADS, 0, stream>>>(g.places, g.N);
    CUDA_CHECK_LAUNCH();
    sort_places(&g, (const uint32_t *)tokens.data, dtable.rows, stream);
    dim3 grid((unsigned)ceil_div(g.N, WINDOW), (unsigned)ceil_div(g.C, COLUMN_THREADS * VEC));
    token_window_kernel<<<grid, COLUMN_THREADS, 0, stream>>>(g);
    CUDA_CHECK_LAUNCH();
    token_parts_kernel<<<grid, COLUMN_THREADS, 0, stream>>>(g);
    CUDA_CHECK_LAUNCH();
}

// --- backward: positions ---

typedef struct {
    float *dpositions;   // (Tmax, C)
    const bf16 *dout;    // (B, T, C)
    int64_t B, T, C;
    uint32_t row_vectors;
    bool whole;
} PositionGradient;

/*
One vector of one position a thread, which adds over the sequences.
  bytes    2 per element of dout
  limiter  memory bandwidth; measured: see dev/SPEED.md
*/
__global__ static void __launch_bounds__(FLAT_THREADS) position_kernel(PositionGradient p) {
    uint32_t vector = blockIdx.x * FLAT_THREADS + threadIdx.x;
    int64_t t = vector / p.row_vectors, c = (int64_t)(vector % p.row_vectors) * VEC;
    if (t >= p.T) return;
    float sum[VEC], v[VEC];
    load_vec(sum, p.dpositions + t * p.C + c, p.C - c, p.whole);
#pragma unroll 4
    for (int64_t b = 0; b < p.B; b++) {
        load_vec(v, p.dout + (b * p.T + t) * p.C + c, p.C - c, p.whole);
        for (int j = 0; j < VEC; j++) sum[j] += v[j];
    }
    store_vec(p.dpositions + t * p.C + c, sum, p.C - c, p.whole);
}

static void add_position_gradient(Device *d, Tensor dpositions, Tensor dout, Tensor tokens) {
    PositionGradient p = {(float *)dpositions.data,
                          (const bf16 *)dout.data,
                          tokens.rows,
                          tokens.cols,
                          dout.cols,
                          (uint32_t)ceil_div(dout.cols, VEC),
                          false};
    p.whole = p.C % VEC == 0 && whole_vectors(dout) && whole_vectors(dpositions);
    unsigned blocks = flat_blocks(p.T * p.row_vectors);
    position_kernel<<<blocks, FLAT_THREADS, 0, device_cuda_stream(d)>>>(p);
    CUDA_CHECK_LAUNCH();
}

void embedding_backward_cuda(Device *d, Tensor dtable, Tensor dpositions, Tensor dout,
                             Tensor tokens) {
    tensor_expect(tokens, "embedding tokens", DT_I32, tokens.rows, tokens.cols);
    tensor_expect(dout, "embedding dout", DT_BF16, tensor_count(tokens), dout.cols);
    tensor_expect(dtable, "embedding dtable", DT_F32, dtable.rows, dout.cols);
    add_token_gradient(d, dtable, dout, tokens);
    if (tensor_empty(dpositions)) return;
    tensor_expect(dpositions, "embedding dpositions", DT_F32, dpositions.rows, dout.cols);
    CHECK(dpositions.rows >= tokens.cols, "%lld positions for sequences of %lld tokens",
          (long long)dpositions.rows, (long long)tokens.cols);
    add_position_gradient(d, dpositions, dout, tokens);
}
