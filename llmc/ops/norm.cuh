// norm -- the kernels behind layernorm.cu and rmsnorm.cu, and the choice of their instance: one
// template, because rmsnorm is layernorm without the mean and the shift. CENTERED 1: layernorm, 0:
// rmsnorm. What they compute is in layernorm.h and rmsnorm.h; not an op of its own, and launched by
// norm_launch.cuh. A host compiler can take this file too, see vec.cuh.
//
// A row is shared by a group of warps, as few as hold it (one up to 1024 columns); a block has as
// many rows at a time as it has groups. While a group works on a row, its next rows are on their
// way to shared memory: neither registers nor the number of warps bound the bytes in flight.
#pragma once
#include "copy_async.cuh"
#include "norm.h"
#include "vec.cuh"

enum {
    NORM_THREADS = 256,
    NORM_WARPS = NORM_THREADS / WARP,
    NORM_MAX_VECS = 4,                                    // of a row that one thread has
    NORM_MAX_COLS = NORM_THREADS * NORM_MAX_VECS * VEC,   // 8192: a row fits a block
    NORM_BLOCKS = 2,   // of a multiprocessor, with up to 128 registers a thread
    // Rows of a group in shared memory, one worked on and the others coming, times arrays. 6 of
    // four vectors a thread are 96 KB; a block of any GPU may have 99, two of an H200 113 each.
    NORM_QUEUED = 6,
    NORM_PARTIAL_ROWS = 4,   // that a thread adds up for a partial sum of dw and db, at least
    NORM_PARTIALS = NORM_BLOCKS * 132,   // at most, one a block: all blocks of an H200 at once
    NORM_SUM_THREADS = 512,              // of the kernel that adds the partial sums
    NORM_SUM_WARPS = NORM_SUM_THREADS / WARP
};

/* How rows are dealt out. */
typedef struct {
    int64_t rows;
    int cols;
    int row_threads;   // that share a row: whole warps, a power of two
    int blocks;        // of the launch; a block has NORM_THREADS / row_threads rows at a time
    int vecs;          // of a row in one thread, at most NORM_MAX_VECS
    bool whole;        // all accesses are of whole vectors
} NormShape;

static inline NormShape norm_shape(int64_t rows, int64_t cols, bool whole) {
    CHECK(cols <= NORM_MAX_COLS, "a norm of %lld columns; CUDA kernels take up to %d",
          (long long)cols, NORM_MAX_COLS);
    NormShape s = {rows, (int)cols, WARP, 0, NORM_MAX_VECS, whole};
    while (s.row_threads * NORM_MAX_VECS * VEC < cols) s.row_threads *= 2;
    s.vecs = (int)ceil_div(cols, s.row_threads * VEC);
    return s;
}

static inline int64_t norm_block_rows(NormShape s) { return NORM_THREADS / s.row_threads; }

// --- what the kernels share ---

/* A thread's place: its group's number in the block, its own in the group; its rows are row,
   row + step, ...; its vector i begins at column first + i * stride. */
typedef struct {
    int group, at;
    int first, stride;
    int64_t row, step;
} NormPlace;

static __device__ __forceinline__ NormPlace norm_place(const NormShape &s) {
    NormPlace p;
    int block_rows = NORM_THREADS / s.row_threads;
    p.group = (int)threadIdx.x / s.row_threads;
    p.at = (int)threadIdx.x % s.row_threads;
    p.first = p.at * VEC;
    p.stride = s.row_threads * VEC;
    p.row = (int64_t)blockIdx.x * block_rows + p.group;
    p.step = (int64_t)s.blocks * block_rows;
    return p;
}

/* What a vector holds from column `c` on; nothing beyond the row. WHOLE: it ends within the row. */
template <bool WHOLE>
static __device__ __forceinline__ uint4 load_columns(const bf16 *row, int c, int cols) {
    if (!WHOLE) return load_packed(row + c, cols - c, false);
    return c < cols ? *reinterpret_cast<const uint4 *>(row + c) : make_uint4(0, 0, 0, 0);
}

template <bool WHOLE>
static __device__ __forceinline__ void store_columns(bf16 *row, uint4 packed, int c, int cols) {
    if (WHOLE) {
        *reinterpret_cast<uint4 *>(row + c) = packed;
        return;
    }
    const uint32_t w[4] = {packed.x, packed.y, packed.z, packed.w};
    uint16_t *bits = reinterpret_cast<uint16_t *>(row + c);
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        if (c + j < cols) bits[j] = (uint16_t)(w[j / 2] >> (j % 2 * 16));
    }
}

/* A thread's vectors of ARRAYS arrays (rows, cols) on their way through shared memory, row by row.
   A thread reads only what it put there itself: no barrier is needed. Vectors beyond the row are
   not put there and must not be read. */
template <int ARRAYS, int VECS, bool WHOLE> struct RowQueue {
    enum {
        STAGES = NORM_QUEUED / ARRAYS,
        STAGE_VECTORS = ARRAYS * VECS * NORM_THREADS,
        BYTES = STAGES * STAGE_VECTORS * 16
    };
    const bf16 *arrays[ARRAYS];
    int stage;   // of the row that is worked on

    static __device__ __forceinline__ uint4 *slot(int stage, int array, int i) {
        uint4 *own = reinterpret_cast<uint4 *>(block_shared_memory()) + threadIdx.x;
        return own + stage * STAGE_VECTORS + (array * VECS + i) * NORM_THREADS;
    }

    /* Starts the copies of the row that will be worked on `ahead` rows from now, if it exists. */
    __device__ __forceinline__ void fetch(const NormShape &s, const NormPlace &p, int64_t row,
                                          int ahead) {
        int to = stage + ahead < STAGES ? stage + ahead : stage + ahead - STAGES;
        if (row < s.rows) {
#pragma unroll
            for (int n = 0; n < ARRAYS * VECS; n++) {
                int c = p.first + n % VECS * p.stride;
                const bf16 *from = arrays[n / VECS] + row * s.cols;
                if (c >= s.cols) continue;
                if (WHOLE) copy_async_16(slot(to, n / VECS, n % VECS), from + c, true);
                else
                    store_shared_16(slot(to, n / VECS, n % VECS),
                                    load_columns<false>(from, c, s.cols));
            }
        }
        copy_async_commit();   // also if empty: rows are counted by groups
    }

    __device__ __forceinline__ void open(const NormShape &s, const NormPlace &p) {
        stage = 0;
#pragma unroll
        for (int i = 0; i < STAGES - 1; i++) fetch(s, p, p.row + i * p.step, i);
    }

    /* The row at hand has come, the next ones are on their way. */
    __device__ __forceinline__ void receive(const NormShape &s, const NormPlace &p, int64_t row) {
        fetch(s, p, row + (STAGES - 1) * p.step, STAGES - 1);
        copy_async_wait<STAGES - 1>();
    }

    __device__ __forceinline__ uint4 vector(int array, int i) const {
        return load_shared_16(slot(stage, array, i));
    }

    __device__ __forceinline__ void next(void) { stage = stage + 1 < STAGES ? stage + 1 : 0; }
};

/* All threads of group `group` of a block wait for each other. */
static __device__ __forceinline__ void group_barrier(int group, int threads) {
#ifdef __CUDACC__
    // Barrier 0 is that of __syncthreads.
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "r"(threads) : "memory");
#else
    fibre_barrier(1 + group, threads);
#endif
}

/* Sums over the threads of a row go through two sets of slots in turn: with one barrier a sum, a
   fast warp may write its next sum while a slow one still reads this. */
typedef struct {
    float (*slots)[NORM_WARPS];   // two sets for each of COUNT sums
    int turn;                     // 0, 1
} RowSums;

/* COUNT sums at once, the same tree every time; all threads of the row get them. */
template <int COUNT>
static __device__ __forceinline__ void row_sums(float x[COUNT], RowSums *sums, const NormShape &s,
                                                const NormPlace &p) {
#pragma unroll
    for (int n = 0; n < COUNT; n++) x[n] = warp_sum(x[n]);
    if (s.row_threads == WARP) return;
    float(*slots)[NORM_WARPS] = sums->slots + sums->turn * COUNT;
    int warps = s.row_threads / WARP, first = p.group * warps;
    sums->turn ^= 1;
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        if (threadIdx.x % WARP == 0) slots[n][threadIdx.x / WARP] = x[n];
    }
    group_barrier(p.group, s.row_threads);
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        x[n] = 0.0f;
        for (int i = 0; i < NORM_WARPS; i++) {
            if (i < warps) x[n] += slots[n][first + i];
        }
    }
}

/* Rounded to bf16, as residual_forward does. */
static __device__ __forceinline__ uint4 add_packed(uint4 a, uint4 b) {
    float x[VEC], y[VEC];
    unpack(x, a);
    unpack(y, b);
#pragma unroll
    for (int j = 0; j < VEC; j++) x[j] += y[j];
    return pack(x);
}

// --- forward ---

typedef struct {
    bf16 *out;            // (rows, cols)
    float *mean, *rstd;   // (rows); mean only when centred
    bf16 *sum;            // (rows, cols), x + branch: only with a residual
    const bf16 *x;        // (rows, cols)
    const bf16 *branch;   // (rows, cols), only with a residual
    const bf16 *w, *b;    // (cols); b only when centred
    float eps;
    NormShape shape;
} NormForwardArgs;

typedef struct {
    float mean, rstd;
} RowStats;

/* Of a row of which a thread holds v, zeros beyond the row; leaves v - mean. */
template <bool CENTERED, int VECS, bool WHOLE>
static __device__ __forceinline__ RowStats norm_row_stats(float v[VECS][VEC], RowSums *sums,
                                                          const NormShape &s, const NormPlace &p,
                                                          float eps) {
    RowStats stats = {0.0f, 0.0f};
    if (CENTERED) {
        float sum[1] = {0.0f};
#pragma unroll
        for (int i = 0; i < VECS; i++) {
            sum[0] += ((v[i][0] + v[i][1]) + (v[i][2] + v[i][3])) +
                      ((v[i][4] + v[i][5]) + (v[i][6] + v[i][7]));
        }
        row_sums<1>(sum, sums, s, p);
        stats.mean = sum[0] / (float)s.cols;
    }
    float squares[1] = {0.0f};
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        int c = p.first + i * p.stride;
        if (c >= s.cols) break;
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            if (CENTERED && (WHOLE || c + j < s.cols)) v[i][j] -= stats.mean;
            part = fmaf(v[i][j], v[i][j], part);
        }
        squares[0] += part;
    }
    row_sums<1>(squares, sums, s, p);
    stats.rstd = 1.0f / sqrtf(squares[0] / (float)s.cols + eps);
    return stats;
}

/*
Rows are dealt out in turn to groups of warps, which hold one in registers between the passes; w and
b stay in registers, packed. With a RESIDUAL the row is the rounded sum, which is stored too. Every
fused multiplication is written as one: the compiler has no choice that could make the norm of a sum
differ from the norm of a tensor.
  bytes    4 per element: 2 read, 2 written; with a residual 8: 4 read, 4 written
  limiter  memory bandwidth; measured: see dev/SPEED.md
*/
template <bool CENTERED, bool RESIDUAL, int VECS, bool WHOLE>
__global__ void __launch_bounds__(NORM_THREADS, NORM_BLOCKS)
    norm_forward_kernel(NormForwardArgs a) {
    __shared__ float slots[2][NORM_WARPS];
    const NormShape &s = a.shape;
    NormPlace p = norm_place(s);
    RowSums sums = {slots, 0};
    RowQueue<1 + RESIDUAL, VECS, WHOLE> queue = {{a.x}, 0};
    if (RESIDUAL) queue.arrays[RESIDUAL] = a.branch;   // the last array
    queue.open(s, p);
    uint4 w[VECS], b[VECS];
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        w[i] = load_columns<WHOLE>(a.w, p.first + i * p.stride, s.cols);
        if (CENTERED) b[i] = load_columns<WHOLE>(a.b, p.first + i * p.stride, s.cols);
    }
    for (int64_t row = p.row; row < s.rows; row += p.step, queue.next()) {
        queue.receive(s, p, row);
        float v[VECS][VEC];
#pragma unroll
        for (int i = 0; i < VECS; i++) {
            int c = p.first + i * p.stride;
            uint4 packed = make_uint4(0, 0, 0, 0);
            if (c < s.cols) packed = queue.vector(0, i);
            if (RESIDUAL && c < s.cols) {
                packed = add_packed(packed, queue.vector(RESIDUAL, i));
                store_columns<WHOLE>(a.sum + row * s.cols, packed, c, s.cols);
            }
            unpack(v[i], packed);
        }
        RowStats stats = norm_row_stats<CENTERED, VECS, WHOLE>(v, &sums, s, p, a.eps);
        if (p.at == 0) {
            if (CENTERED) a.mean[row] = stats.mean;
            a.rstd[row] = stats.rstd;
        }
#pragma unroll
        for (int i = 0; i < VECS; i++) {
            int c = p.first + i * p.stride;
            if (c >= s.cols) break;
            float scale[VEC], shift[VEC];
            unpack(scale, w[i]);
            if (CENTERED) unpack(shift, b[i]);
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                float h = v[i][j] * stats.rstd;
                v[i][j] = CENTERED ? fmaf(h, scale[j], shift[j]) : h * scale[j];
            }
            store_columns<WHOLE>(a.out + row * s.cols, pack(v[i]), c, s.cols);
        }
    }
}

// --- backward ---

typedef struct {
    bf16 *dx;                   // (rows, cols), accumulated
    float *dw, *db;             // (cols), accumulated; db only when centred
    float *partials;            // (blocks, 2 or 1, cols): of dw, and of db when centred
    const bf16 *dout, *x;       // (rows, cols)
    const bf16 *w;              // (cols)
    const float *mean, *rstd;   // (rows); mean only when centred
    NormShape shape;
} NormBackwardArgs;

template <bool CENTERED>
static __device__ __forceinline__ RowStats load_stats(const NormBackwardArgs &a, int64_t row) {
    RowStats stats = {0.0f, 0.0f};
    if (row >= a.shape.rows) return stats;
    if (CENTERED) stats.mean = a.mean[row];
    stats.rstd = a.rstd[row];
    return stats;
}

static __device__ __forceinline__ uint4 float_bits(const float v[4]) {
    return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                      __float_as_uint(v[3]));
}

/* The sums of the block's groups, in their order, through shared memory that no copy uses any more;
   sum[i] is of the thread's vector i. */
template <int VECS>
static __device__ __forceinline__ void store_block_sums(float *out, const float sum[VECS][VEC],
                                                        const NormShape &s) {
    float *shared = reinterpret_cast<float *>(block_shared_memory());
    copy_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        float *own = shared + (i * NORM_THREADS + threadIdx.x) * VEC;
        store_shared_16(own, float_bits(sum[i]));
        store_shared_16(own + VEC / 2, float_bits(sum[i] + VEC / 2));
    }
    __syncthreads();
    int group_cols = s.row_threads * VEC;   // of one vector of each thread
    for (int c = (int)threadIdx.x; c < s.cols; c += NORM_THREADS) {
        const float *part = shared + c / group_cols * NORM_THREADS * VEC + c % group_cols;
        float total = 0.0f;
        for (int g = 0; g < NORM_THREADS / s.row_threads; g++)
            total += load_shared_4(part + g * group_cols);
        out[c] = total;
    }
}

/*
Rows are dealt out in turn to groups of warps. A thread adds the dw and db of its columns up in
registers, for all its rows; x and dout are read from shared memory twice, before and after the sums
over the row.
  bytes    8 per element: dout, x, dx read, dx written; partial sums are a few percent of it
  limiter  memory bandwidth; measured: see dev/SPEED.md
*/
template <bool CENTERED, int VECS, bool WHOLE>
__global__ void __launch_bounds__(NORM_THREADS, NORM_BLOCKS)
    norm_backward_kernel(NormBackwardArgs a) {
    enum { X, DOUT, DX, GH = 0, G = 1, SUMS = CENTERED ? 2 : 1 };
    __shared__ float slots[2 * SUMS][NORM_WARPS];
    const NormShape &s = a.shape;
    NormPlace p = norm_place(s);
    RowSums sums = {slots, 0};
    RowQueue<3, VECS, WHOLE> queue = {{a.x, a.dout, a.dx}, 0};
    queue.open(s, p);
    float dw[VECS][VEC] = {}, db[VECS][VEC] = {};
    RowStats stats = load_stats<CENTERED>(a, p.row);
    for (int64_t row = p.row; row < s.rows; row += p.step, queue.next()) {
        RowStats next_stats = load_stats<CENTERED>(a, row + p.step);
        queue.receive(s, p, row);
        float sum[2] = {0.0f, 0.0f};   // of g * h and g
        float x[VEC], dout[VEC], w[VEC], dx[VEC];
#pragma unroll
        for (int i = 0; i < VECS; i++) {
            int c = p.first + i * p.stride;
            if (c >= s.cols) break;
            unpack(x, queue.vector(X, i));
            unpack(dout, queue.vector(DOUT, i));   // 0 beyond the row, so all below is 0
            unpack(w, load_columns<WHOLE>(a.w, c, s.cols));
            float part[2] = {0.0f, 0.0f};
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                float h = (x[j] - stats.mean) * stats.rstd, g = dout[j] * w[j];
                part[GH] = fmaf(g, h, part[GH]);
                if (CENTERED) part[G] += g;
                dw[i][j] = fmaf(dout[j], h, dw[i][j]);
                if (CENTERED) db[i][j] += dout[j];
            }
            sum[GH] += part[GH];
            sum[G] += part[G];
        }
        row_sums<SUMS>(sum, &sums, s, p);
        float mean_gh = sum[GH] / (float)s.cols, mean_g = sum[G] / (float)s.cols;
#pragma unroll
        for (int i = 0; i < VECS; i++) {
            int c = p.first + i * p.stride;
            if (c >= s.cols) break;
            unpack(x, queue.vector(X, i));
            unpack(dout, queue.vector(DOUT, i));
            unpack(dx, queue.vector(DX, i));
            unpack(w, load_columns<WHOLE>(a.w, c, s.cols));
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                float h = (x[j] - stats.mean) * stats.rstd, g = dout[j] * w[j];
                dx[j] = fmaf(stats.rstd, fmaf(-h, mean_gh, g - mean_g), dx[j]);
            }
            store_columns<WHOLE>(a.dx + row * s.cols, pack(dx), c, s.cols);
        }
        stats = next_stats;
    }
    float *out = a.partials + (int64_t)blockIdx.x * s.cols * (CENTERED ? 2 : 1);
    store_block_sums<VECS>(out, dw, s);
    if (CENTERED) store_block_sums<VECS>(out + s.cols, db, s);
}

/*
A block has 32 columns of dw and db, one a lane; its warps share the partial sums, then warp 0 adds
the warps.
  bytes    4 per partial sum, which the L2 still holds
  limiter  latency; measured: see dev/SPEED.md
*/
template <bool CENTERED>
__global__ void __launch_bounds__(NORM_SUM_THREADS) norm_sum_kernel(NormBackwardArgs a) {
    __shared__ float sums[NORM_SUM_WARPS][WARP];
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int cols = a.shape.cols, all = CENTERED ? 2 * cols : cols, c = (int)blockIdx.x * WARP + lane;
    float sum = 0.0f;
    if (c < all) {
#pragma unroll 8
        for (int n = warp; n < a.shape.blocks; n += NORM_SUM_WARPS)
            sum += a.partials[(int64_t)n * all + c];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || c >= all) return;
    float total = 0.0f;
    for (int i = 0; i < NORM_SUM_WARPS; i++) total += sums[i][lane];
    if (c < cols) a.dw[c] += total;
    else a.db[c - cols] += total;
}

// --- the choice of an instance ---

typedef struct {
    void (*kernel)(NormForwardArgs);
    NormForwardArgs args;
    int shared_bytes;
} NormForwardLaunch;

template <bool CENTERED, bool RESIDUAL, int VECS, bool WHOLE>
static void choose_forward(NormForwardLaunch *l) {
    l->kernel = norm_forward_kernel<CENTERED, RESIDUAL, VECS, WHOLE>;
    l->shared_bytes = RowQueue<1 + RESIDUAL, VECS, WHOLE>::BYTES;
}

template <bool CENTERED, bool RESIDUAL>
static NormForwardLaunch norm_forward_launch(NormForwardArgs a, int multiprocessors) {
    NormForwardLaunch l = {NULL, a, 0};
    int64_t all = ceil_div(a.shape.rows, norm_block_rows(a.shape));
    l.args.shape.blocks = (int)min_i64(all, (int64_t)multiprocessors * NORM_BLOCKS);
    if (!a.shape.whole) choose_forward<CENTERED, RESIDUAL, 4, false>(&l);
    else if (a.shape.vecs == 4) choose_forward<CENTERED, RESIDUAL, 4, true>(&l);
    else choose_forward<CENTERED, RESIDUAL, 3, true>(&l);
    return l;
}

typedef struct {
    void (*kernel)(NormBackwardArgs);
    NormBackwardArgs args;
    int shared_bytes;
} NormBackwardLaunch;

template <bool CENTERED, int VECS, bool WHOLE> static void choose_backward(NormBackwardLaunch *l) {
    l->kernel = norm_backward_kernel<CENTERED, VECS, WHOLE>;
    l->shared_bytes = RowQueue<3, VECS, WHOLE>::BYTES;
}

/* The split of the rows depends on the shape alone, and so does the order of all sums. */
template <bool CENTERED> static NormBackwardLaunch norm_backward_launch(NormBackwardArgs a) {
    NormBackwardLaunch l = {NULL, a, 0};
    int64_t least = NORM_PARTIAL_ROWS * norm_block_rows(a.shape);
    l.args.shape.blocks = (int)min_i64(NORM_PARTIALS, ceil_div(a.shape.rows, least));
    if (!a.shape.whole) choose_backward<CENTERED, 4, false>(&l);
    else if (a.shape.vecs == 4) choose_backward<CENTERED, 4, true>(&l);
    else choose_backward<CENTERED, 3, true>(&l);
    return l;
}
