/*
reduce -- CPU reference of reduce.h. Sums of a whole tensor are taken in double: there are many
values, and nothing after them would notice the time.
*/
#include "reduce.h"

#include <math.h>

#include "row_io.h"
#include "scratch_cpu.h"

enum { THREAD_ROWS = 1, CHUNK_ROWS = 1 };   // a row of dout, a partial db

size_t column_sum_scratch_cpu(int64_t cols) {
    return row_scratch_bytes(cols, THREAD_ROWS, CHUNK_ROWS);
}

void column_sum_cpu(Device *d, Tensor db, Tensor dout) {
    expect_bf16_or_f32(dout, "column_sum dout");
    tensor_expect(db, "column_sum db", DT_F32, 1, dout.cols);
    int64_t C = dout.cols;
    int num_chunks = row_chunks(dout.rows);
    RowScratch scratch = row_scratch(d, C, THREAD_ROWS, CHUNK_ROWS);
#pragma omp parallel for
    for (int chunk = 0; chunk < num_chunks; chunk++) {
        float *row = thread_row(scratch, 0), *part = chunk_row(scratch, chunk, 0);
        memset(part, 0, (size_t)C * sizeof(float));
        int64_t end = chunk_begin(dout.rows, chunk + 1);
        for (int64_t n = chunk_begin(dout.rows, chunk); n < end; n++) {
            load_row(row, dout, n);
            for (int64_t c = 0; c < C; c++) part[c] += row[c];
        }
    }
    add_chunk_rows((float *)db.data, scratch, 0, num_chunks, C);
}

/* The second tensor is for distances alone. */
static double sum_span(const float *x, const float *y, int64_t count) {
    (void)y;
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) sum += x[i];
    return sum;
}

static double sum_squares_span(const float *x, const float *y, int64_t count) {
    (void)y;
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) sum += (double)x[i] * x[i];
    return sum;
}

static double sum_differences_span(const float *x, const float *y, int64_t count) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        float difference = x[i] - y[i];
        sum += (double)difference * difference;
    }
    return sum;
}

/* The spans of the chunks of x and y, added in order. */
static double sum_in_chunks(Tensor x, Tensor y,
                            double (*span)(const float *, const float *, int64_t)) {
    double parts[ROW_CHUNKS], sum = 0.0;
    int64_t count = tensor_count(x);
    int num_chunks = row_chunks(count);
#pragma omp parallel for
    for (int chunk = 0; chunk < num_chunks; chunk++) {
        int64_t begin = chunk_begin(count, chunk), end = chunk_begin(count, chunk + 1);
        parts[chunk] =
            span((const float *)x.data + begin, (const float *)y.data + begin, end - begin);
    }
    for (int chunk = 0; chunk < num_chunks; chunk++) sum += parts[chunk];
    return sum;
}

void sum_cpu(Device *d, float *out, Tensor x, float scale) {
    (void)d;
    tensor_expect(x, "sum x", DT_F32, x.rows, x.cols);
    *out += (float)(scale * sum_in_chunks(x, x, sum_span));
}

void global_norm_cpu(Device *d, float *out, Tensor x) {
    (void)d;
    tensor_expect(x, "global_norm x", DT_F32, 1, x.cols);
    *out = (float)sqrt(sum_in_chunks(x, x, sum_squares_span));
}

void distance_cpu(Device *d, float *out, Tensor a, Tensor b) {
    (void)d;
    tensor_expect(a, "distance a", DT_F32, 1, a.cols);
    tensor_expect(b, "distance b", DT_F32, 1, a.cols);
    *out = (float)sqrt(sum_in_chunks(a, b, sum_differences_span));
}
