/*
rmsnorm -- CPU reference of rmsnorm.h.
*/
#include "rmsnorm.h"

#include <math.h>

#include "activation.h"
#include "row_io.h"
#include "scratch_cpu.h"

enum {
    THREAD_ROWS = 4,   // forward: x, w, out; backward: x, w, dout, dx
    CHUNK_ROWS = 1     // backward: partial dw
};

size_t rmsnorm_scratch_cpu(int64_t cols) {
    return row_scratch_bytes(cols, THREAD_ROWS, CHUNK_ROWS);
}

void rmsnorm_check(Tensor out, NormStats stats, Tensor x, Tensor w, Tensor b) {
    expect_bf16_or_f32(x, "rmsnorm x");
    tensor_expect(out, "rmsnorm out", x.dtype, x.rows, x.cols);
    tensor_expect(stats.rstd, "rmsnorm rstd", DT_F32, x.rows, 1);
    tensor_expect(w, "rmsnorm w", x.dtype, 1, x.cols);
    CHECK(tensor_empty(b), "rmsnorm has no shift, b must be empty");
}

void rmsnorm_forward_cpu(Device *d, Tensor out, NormStats stats, Tensor x, Tensor w, Tensor b,
                         float eps) {
    rmsnorm_check(out, stats, x, w, b);
    float *rstds = (float *)stats.rstd.data;
    int64_t N = x.rows, C = x.cols;
    RowScratch scratch = row_scratch(d, C, THREAD_ROWS, CHUNK_ROWS);
#pragma omp parallel
    {
        float *x_row = thread_row(scratch, 0), *w_row = thread_row(scratch, 1);
        float *out_row = thread_row(scratch, 2);
        load_row(w_row, w, 0);
#pragma omp for
        for (int64_t n = 0; n < N; n++) {
            load_row(x_row, x, n);
            float square_sum = 0.0f;
#pragma omp simd reduction(+ : square_sum)
            for (int64_t c = 0; c < C; c++) square_sum += x_row[c] * x_row[c];
            float rstd = 1.0f / sqrtf(square_sum / (float)C + eps);
            for (int64_t c = 0; c < C; c++) out_row[c] = x_row[c] * rstd * w_row[c];
            store_row(out, n, out_row);
            rstds[n] = rstd;
        }
    }
}

void rmsnorm_residual_forward_cpu(Device *d, Tensor out, NormStats stats, Residual r, Tensor w,
                                  Tensor b, float eps) {
    residual_forward_cpu(d, r.sum, r.x, r.branch);
    rmsnorm_forward_cpu(d, out, stats, r.sum, w, b, eps);
}

/* One row of the backward pass: dx_row and dw are added to; all (C). */
static void backward_row(float *dx_row, float *dw, const float *dout_row, const float *x_row,
                         const float *w_row, float rstd, int64_t C) {
    float gh_sum = 0.0f;
#pragma omp simd reduction(+ : gh_sum)
    for (int64_t c = 0; c < C; c++) gh_sum += dout_row[c] * w_row[c] * (x_row[c] * rstd);
    float gh_mean = gh_sum / (float)C;
#pragma omp simd
    for (int64_t c = 0; c < C; c++) {
        float h = x_row[c] * rstd;          // normalised x
        float g = dout_row[c] * w_row[c];   // out = h * w: dh = dout * w
        dw[c] += dout_row[c] * h;           // out = h * w
        // h = x * rstd, where rstd = 1 / sqrt(mean(x^2) + eps) depends on every x
        dx_row[c] += rstd * (g - h * gh_mean);
    }
}

void rmsnorm_backward_cpu(Device *d, Tensor dx, Tensor dw, Tensor db, Tensor dout, Tensor x,
                          Tensor w, NormStats stats) {
    rmsnorm_check(dx, stats, x, w, db);
    tensor_expect(dout, "rmsnorm dout", x.dtype, x.rows, x.cols);
    tensor_expect(dw, "rmsnorm dw", DT_F32, 1, x.cols);
    const float *rstds = (const float *)stats.rstd.data;
    int64_t C = x.cols;
    int num_chunks = row_chunks(x.rows);
    RowScratch scratch = row_scratch(d, C, THREAD_ROWS, CHUNK_ROWS);
#pragma omp parallel for
    for (int chunk = 0; chunk < num_chunks; chunk++) {
        float *x_row = thread_row(scratch, 0), *w_row = thread_row(scratch, 1);
        float *dout_row = thread_row(scratch, 2), *dx_row = thread_row(scratch, 3);
        float *dw_part = chunk_row(scratch, chunk, 0);
        load_row(w_row, w, 0);
        memset(dw_part, 0, (size_t)C * sizeof(float));
        for (int64_t n = chunk_begin(x.rows, chunk); n < chunk_begin(x.rows, chunk + 1); n++) {
            load_row(x_row, x, n);
            load_row(dout_row, dout, n);
            load_row(dx_row, dx, n);
            backward_row(dx_row, dw_part, dout_row, x_row, w_row, rstds[n], C);
            store_row(dx, n, dx_row);
        }
    }
    add_chunk_rows((float *)dw.data, scratch, 0, num_chunks, C);
}
