/*
row_io -- how the CPU references read and write tensors: rows or spans of bf16 or f32, as f32. They
load, compute in f32 with loops that the compiler vectorises, and store with one rounding; the dtype
is asked once a span, never once an element. Also how rows are shared among threads, so that no
result depends on how many threads there are. (A sum within a row, "omp simd reduction", runs in as
many lanes as the processor that was compiled for has: fixed for a build, not across builds.)
Private to the .c files of ops/.
*/
#ifndef LLMC_OPS_ROW_IO_H
#define LLMC_OPS_ROW_IO_H

#include <omp.h>

#include "../common.h"
#include "../tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SPAN = 1024,       // f32 values in a buffer on the stack: elementwise ops work span by span
    ROW_CHUNKS = 64,   // sums over rows: chunks of rows each on their own, then these in order
    ROW_ALIGN = 16     // f32 values: rows in scratch start on a cache line
};

static inline void expect_bf16_or_f32(Tensor t, const char *what) {
    CHECK(t.dtype == DT_BF16 || t.dtype == DT_F32, "%s is %s, not bf16 or f32", what,
          dtype_info[t.dtype].name);
}

/* `count` values of t from flat position `first` on, as f32. */
static inline void load_span(float *dst, Tensor t, int64_t first, int64_t count) {
    if (t.dtype == DT_F32) {
        memcpy(dst, (const float *)t.data + first, (size_t)count * sizeof(float));
        return;
    }
    const bf16_t *src = (const bf16_t *)t.data + first;
    for (int64_t i = 0; i < count; i++) dst[i] = bf16_to_f32(src[i]);
}

/* The way back, rounding to nearest even. */
static inline void store_span(Tensor t, int64_t first, const float *src, int64_t count) {
    if (t.dtype == DT_F32) {
        memcpy((float *)t.data + first, src, (size_t)count * sizeof(float));
        return;
    }
    bf16_t *dst = (bf16_t *)t.data + first;
    for (int64_t i = 0; i < count; i++) dst[i] = bf16_from_f32(src[i]);
}

static inline void load_row(float *dst, Tensor t, int64_t row) {
    load_span(dst, t, row * t.cols, t.cols);
}

static inline void store_row(Tensor t, int64_t row, const float *src) {
    store_span(t, row * t.cols, src, t.cols);
}

typedef struct {
    int64_t row, rows, col, cols;
} Block;   // rows [row, row + rows) x columns [col, col + cols)

/* dst (b.rows, b.cols) */
static inline void load_block(float *dst, Tensor t, Block b) {
    for (int64_t r = 0; r < b.rows; r++)
        load_span(dst + r * b.cols, t, (b.row + r) * t.cols + b.col, b.cols);
}

static inline void store_block(Tensor t, Block b, const float *src) {
    for (int64_t r = 0; r < b.rows; r++)
        store_span(t, (b.row + r) * t.cols + b.col, src + r * b.cols, b.cols);
}

/* Chunks of `rows` rows, and the first row of one: functions of the shape alone. */
static inline int row_chunks(int64_t rows) { return (int)min_i64(rows, ROW_CHUNKS); }
static inline int64_t chunk_begin(int64_t rows, int chunk) {
    return rows * chunk / row_chunks(rows);
}

/* Scratch of a row-wise op: some f32 rows for each thread, and some for each chunk. */
typedef struct {
    float *base;
    int64_t stride;   // f32 values from row to row
    int thread_rows, chunk_rows;
} RowScratch;

static inline size_t row_scratch_bytes(int64_t cols, int thread_rows, int chunk_rows) {
    int64_t rows = (int64_t)omp_get_max_threads() * thread_rows + ROW_CHUNKS * chunk_rows;
    return (size_t)(rows * round_up(cols, ROW_ALIGN)) * sizeof(float);
}

static inline RowScratch row_scratch(Device *d, int64_t cols, int thread_rows, int chunk_rows) {
    float *base = (float *)device_scratch(d, row_scratch_bytes(cols, thread_rows, chunk_rows));
    RowScratch s = {base, round_up(cols, ROW_ALIGN), thread_rows, chunk_rows};
    return s;
}

/* Row i of chunk `chunk`; these lie first, in the order of chunks. */
static inline float *chunk_row(RowScratch s, int chunk, int i) {
    return s.base + (chunk * s.chunk_rows + i) * s.stride;
}

/* Row i of the calling thread. */
static inline float *thread_row(RowScratch s, int i) {
    int64_t before = ROW_CHUNKS * s.chunk_rows + (int64_t)omp_get_thread_num() * s.thread_rows;
    return s.base + (before + i) * s.stride;
}

/* out[c] += sum over chunks of their row i, in order. */
static inline void add_chunk_rows(float *out, RowScratch s, int i, int num_chunks, int64_t cols) {
    for (int chunk = 0; chunk < num_chunks; chunk++) {
        const float *part = chunk_row(s, chunk, i);
        for (int64_t c = 0; c < cols; c++) out[c] += part[c];
    }
}

#ifdef __cplusplus
}
#endif
#endif
