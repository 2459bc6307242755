// column_sum -- the kernel that adds up the rows of a matrix, both stages in one launch. A host
// compiler can take this file too, after test/fibres.h.
#pragma once
#include "vec.cuh"

enum {
    COLUMN_LANES = 16,   // of a vector each: one row of a block
    COLUMN_SPAN = COLUMN_LANES * VEC,
    COLUMN_THREADS = 256,
    COLUMN_ROWS = COLUMN_THREADS / COLUMN_LANES,   // of a block at a time
    COLUMN_RESIDENT = 4,                           // blocks of a multiprocessor
    COLUMN_BLOCKS = COLUMN_RESIDENT * 132,         // about as many at most: an H200 at once
    COLUMN_MAX_SPANS = 4096
};

// A block adds the rows of one span of 128 columns from its first on, every so many; the blocks of
// a span are its splits.
typedef struct {
    float *db;         // (cols), what the sums are added to
    float *partials;   // (splits, spans * COLUMN_SPAN)
    int rows, cols, spans, splits;
} ColumnSums;

/* Blocks that share the rows; they depend on the shape alone, and so does the order of the sums. A
   thread has at least eight rows. */
static inline ColumnSums column_sums(float *db, float *partials, int64_t rows, int64_t cols) {
    int64_t spans = ceil_div(cols, COLUMN_SPAN);
    CHECK(spans <= COLUMN_MAX_SPANS && rows < 1 << 30, "column_sum of (%lld,%lld)", (long long)rows,
          (long long)cols);
    int64_t most = ceil_div(rows, 8 * COLUMN_ROWS), splits = max_i64(1, COLUMN_BLOCKS / spans);
    return {db, partials, (int)rows, (int)cols, (int)spans, (int)min_i64(splits, most)};
}

// --- rows of a matrix ---

// What is added up: load(n, inside) is called for many rows n before value(v, packed, n, inside) is
// for the first, so that their reads are on their way together. Rows that are not inside are zeros.
template <typename T, bool WHOLE> struct MatrixRows;

template <bool WHOLE> struct MatrixRows<bf16, WHOLE> {
    enum { IN_FLIGHT = 8 };
    typedef uint4 Packed;
    const bf16 *data;   // this thread's columns of row 0
    int stride, count;

    __device__ __forceinline__ Packed load(int n, bool inside) const {
        const bf16 *p = data + (int64_t)n * stride;
        if (!WHOLE) return load_packed(p, inside ? count : 0, false);
        return inside ? *reinterpret_cast<const uint4 *>(p) : make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void value(float v[VEC], Packed packed, int, bool) const {
        unpack(v, packed);
    }
};

template <bool WHOLE> struct MatrixRows<float, WHOLE> {
    enum { IN_FLIGHT = 4 };
    struct Packed {
        float v[VEC];
    };
    const float *data;
    int stride, count;

    __device__ __forceinline__ Packed load(int n, bool inside) const {
        Packed packed = {};
        const float *p = data + (int64_t)n * stride;
        if (inside) load_vec(packed.v, p, WHOLE ? VEC : count, WHOLE);
        return packed;
    }
    __device__ __forceinline__ void value(float v[VEC], Packed packed, int, bool) const {
#pragma unroll
        for (int j = 0; j < VEC; j++) v[j] = packed.v[j];
    }
};

// --- sums ---

/* Rows first, first + step, ... below `rows`, in that order. */
typedef struct {
    int first, step, rows;
} RowRange;

template <typename Rows>
static __device__ __forceinline__ void add_rows(float sum[VEC], const Rows &source, RowRange r) {
    for (int n = r.first; n < r.rows; n += Rows::IN_FLIGHT * r.step) {
        typename Rows::Packed packed[Rows::IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < Rows::IN_FLIGHT; i++)
            packed[i] = source.load(n + i * r.step, n + i * r.step < r.rows);
#pragma unroll
        for (int i = 0; i < Rows::IN_FLIGHT; i++) {
            float v[VEC];
            source.value(v, packed[i], n + i * r.step, n + i * r.step < r.rows);
#pragma unroll
            for (int j = 0; j < VEC; j++) sum[j] += v[j];
        }
    }
}

/* Sums of the block's threads for each of its columns: thread t < COLUMN_SPAN gets that of t. */
static __device__ __forceinline__ float add_threads(const float sum[VEC], float *shared) {
    int row = (int)threadIdx.x / COLUMN_LANES, lane = (int)threadIdx.x % COLUMN_LANES;
#pragma unroll
    for (int j = 0; j < VEC; j++) shared[row * COLUMN_SPAN + lane * VEC + j] = sum[j];
    __syncthreads();
    float total = 0.0f;
    if (threadIdx.x >= COLUMN_SPAN) return total;
#pragma unroll
    for (int i = 0; i < COLUMN_ROWS; i++) total += shared[i * COLUMN_SPAN + threadIdx.x];
    return total;
}

/* How many blocks of each span came to their end, modulo the splits: 0 between two launches. */
static __device__ unsigned column_tickets[COLUMN_MAX_SPANS];

/* Keeps this block's sums. The last block of a span to come here adds those of all splits, in their
   order, whichever it is. */
static __device__ __forceinline__ void finish_column_sums(const ColumnSums &a, const float sum[VEC],
                                                          float *shared) {
    __shared__ bool is_last;
    int span = (int)blockIdx.x % a.spans, split = (int)blockIdx.x / a.spans;
    int stride = a.spans * COLUMN_SPAN, at = span * COLUMN_SPAN, c = at + (int)threadIdx.x;
    float total = add_threads(sum, shared);
    if (threadIdx.x < COLUMN_SPAN) a.partials[(int64_t)split * stride + c] = total;
    __threadfence();   // before the ticket says that the sums are there
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned last = (unsigned)a.splits - 1;
        is_last = atomicInc(&column_tickets[span], last) == last;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    int row = (int)threadIdx.x / COLUMN_LANES, lane = (int)threadIdx.x % COLUMN_LANES;
    MatrixRows<float, true> partials = {a.partials + at + lane * VEC, stride, VEC};
    float partial_sum[VEC] = {};
    add_rows(partial_sum, partials, {row, COLUMN_ROWS, a.splits});
    total = add_threads(partial_sum, shared);
    if (threadIdx.x < COLUMN_SPAN && c < a.cols) a.db[c] += total;
}

static __device__ __forceinline__ RowRange rows_of_thread(const ColumnSums &a) {
    int row = (int)blockIdx.x / a.spans * COLUMN_ROWS + (int)threadIdx.x / COLUMN_LANES;
    return {row, a.splits * COLUMN_ROWS, a.rows};
}

static __device__ __forceinline__ int column_of_thread(const ColumnSums &a) {
    return (int)blockIdx.x % a.spans * COLUMN_SPAN + (int)threadIdx.x % COLUMN_LANES * VEC;
}

/*
Neighbouring blocks take neighbouring spans of 128 columns, then the next 16 rows: all blocks are on
the machine at once and sweep through the matrix together. Eight loads of 16 bytes a thread are on
their way, 128 KB a multiprocessor.
  bytes    the size of dout, read once; 4 per column and split, written and read once
  limiter  memory bandwidth; about 5 us of start, ramp and second sum beside it
*/
template <typename T, bool WHOLE>
__global__ static void __launch_bounds__(COLUMN_THREADS, COLUMN_RESIDENT)
    column_sum_kernel(ColumnSums a, const T *dout) {
    __shared__ float shared[COLUMN_ROWS * COLUMN_SPAN];
    int c = column_of_thread(a);
    float sum[VEC] = {};
    MatrixRows<T, WHOLE> rows = {dout + c, a.cols, a.cols - c};
    if (c < a.cols) add_rows(sum, rows, rows_of_thread(a));
    finish_column_sums(a, sum, shared);
}
