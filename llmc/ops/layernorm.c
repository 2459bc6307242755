/*
layernorm -- CPU reference of layernorm.h.
*/
#include "layernorm.h"

#include <math.h>

#include "activation.h"
#include "row_io.h"
#include "scratch_cpu.h"

enum {
    THREAD_ROWS = 4,   // forward: x, w, b, out; backward: x, w, dout, dx
    CHUNK_ROWS = 2     // backward: partial dw, db
};

const char *const norm_names[NUM_NORMS] = {"layernorm", "rmsnorm"};

size_t layernorm_scratch_cpu(int64_t cols) {
    return row_scratch_bytes(cols, THREAD_ROWS, CHUNK_ROWS);
}

void layernorm_check(Tensor out, NormStats stats, Tensor x, Tensor w, Tensor b) {
    expect_bf16_or_f32(x, "layernorm x");
    tensor_expect(out, "layernorm out", x.dtype, x.rows, x.cols);
    tensor_expect(stats.mean, "layernorm mean", DT_F32, x.rows, 1);
    tensor_expect(stats.rstd, "layernorm rstd", DT_F32, x.rows, 1);
    tensor_expect(w, "layernorm w", x.dtype, 1, x.cols);
    tensor_expect(b, "layernorm b", x.dtype, 1, x.cols);
}

void layernorm_forward_cpu(Device *d, Tensor out, NormStats stats, Tensor x, Tensor w, Tensor b,
                           float eps) {
    layernorm_check(out, stats, x, w, b);
    float *means = (float *)stats.mean.data, *rstds = (float *)stats.rstd.data;
    int64_t N = x.rows, C = x.cols;
    RowScratch scratch = row_scratch(d, C, THREAD_ROWS, CHUNK_ROWS);
#pragma omp parallel
    {
        float *x_row = thread_row(scratch, 0), *w_row = thread_row(scratch, 1);
        float *b_row = thread_row(scratch, 2), *out_row = thread_row(scratch, 3);
        load_row(w_row, w, 0);
        load_row(b_row, b, 0);
#pragma omp for
        for (int64_t n = 0; n < N; n++) {
            load_row(x_row, x, n);
            float sum = 0.0f, square_sum = 0.0f;
#pragma omp simd reduction(+ : sum)
            for (int64_t c = 0; c < C; c++) sum += x_row[c];
            float mean = sum / (float)C;
#pragma omp simd reduction(+ : square_sum)
            for (int64_t c = 0; c < C; c++) square_sum += (x_row[c] - mean) * (x_row[c] - mean);
            float rstd = 1.0f / sqrtf(square_sum / (float)C + eps);
            for (int64_t c = 0; c < C; c++)
                out_row[c] = (x_row[c] - mean) * rstd * w_row[c] + b_row[c];
            store_row(out, n, out_row);
            means[n] = mean;
            rstds[n] = rstd;
        }
    }
}

void layernorm_residual_forward_cpu(Device *d, Tensor out, NormStats stats, Residual r, Tensor w,
                                    Tensor b, float eps) {
    residual_forward_cpu(d, r.sum, r.x, r.branch);
    layernorm_forward_cpu(d, out, stats, r.sum, w, b, eps);
}

typedef struct {
    float mean, rstd;
} RowStats;

/* One row of the backward pass: dx_row, dw and db are added to; all (C). */
static void backward_row(float *dx_row, float *dw, float *db, const float *dout_row,
                         const float *x_row, const float *w_row, RowStats stats, int64_t C) {
    float g_sum = 0.0f, gh_sum = 0.0f;
#pragma omp simd reduction(+ : g_sum, gh_sum)
    for (int64_t c = 0; c < C; c++) {
        float h = (x_row[c] - stats.mean) * stats.rstd;   // normalised x
        float g = dout_row[c] * w_row[c];                 // out = h * w + b: dh = dout * w
        g_sum += g;
        gh_sum += g * h;
    }
    float g_mean = g_sum / (float)C, gh_mean = gh_sum / (float)C;
#pragma omp simd
    for (int64_t c = 0; c < C; c++) {
        float h = (x_row[c] - stats.mean) * stats.rstd;
        float g = dout_row[c] * w_row[c];
        dw[c] += dout_row[c] * h;   // out = h * w + b
        db[c] += dout_row[c];       // out = h * w + b
        // h = (x - mean) * rstd, where mean and rstd depend on every x: g_mean undoes the mean,
        // h * gh_mean the variance in rstd = 1 / sqrt(mean((x - mean)^2) + eps)
        dx_row[c] += stats.rstd * (g - g_mean - h * gh_mean);
    }
}

void layernorm_backward_cpu(Device *d, Tensor dx, Tensor dw, Tensor db, Tensor dout, Tensor x,
                            Tensor w, NormStats stats) {
    layernorm_check(dx, stats, x, w, w);   // b takes no part; it has the shape of w
    tensor_expect(dout, "layernorm dout", x.dtype, x.rows, x.cols);
    tensor_expect(dw, "layernorm dw", DT_F32, 1, x.cols);
    tensor_expect(db, "layernorm db", DT_F32, 1, x.cols);
    const float *means = (const float *)stats.mean.data, *rstds = (const float *)stats.rstd.data;
    int64_t C = x.cols;
    int num_chunks = row_chunks(x.rows);
    RowScratch scratch = row_scratch(d, C, THREAD_ROWS, CHUNK_ROWS);
#pragma omp parallel for
    for (int chunk = 0; chunk < num_chunks; chunk++) {
        float *x_row = thread_row(scratch, 0), *w_row = thread_row(scratch, 1);
        float *dout_row = thread_row(scratch, 2), *dx_row = thread_row(scratch, 3);
        float *dw_part = chunk_row(scratch, chunk, 0), *db_part = chunk_row(scratch, chunk, 1);
        load_row(w_row, w, 0);
        memset(dw_part, 0, (size_t)C * sizeof(float));
        memset(db_part, 0, (size_t)C * sizeof(float));
        for (int64_t n = chunk_begin(x.rows, chunk); n < chunk_begin(x.rows, chunk + 1); n++) {
            load_row(x_row, x, n);
            load_row(dout_row, dout, n);
            load_row(dx_row, dx, n);
            RowStats row_stats = {means[n], rstds[n]};
            backward_row(dx_row, dw_part, db_part, dout_row, x_row, w_row, row_stats, C);
            store_row(dx, n, dx_row);
        }
    }
    add_chunk_rows((float *)dw.data, scratch, 0, num_chunks, C);
    add_chunk_rows((float *)db.data, scratch, 1, num_chunks, C);
}
