/*
gemm_plain -- sgemm_one_thread of gemm.h where there is no OpenBLAS: blocks of both operands are
copied into the order in which the innermost loop reads them, so that it vectorises for every
layout. Each element of c is summed along k in order, in blocks of K_BLOCK.
*/
#include "../common.h"
#include "gemm.h"

const char sgemm_name[] = "plain loops";

enum {
    ROWS = 4,   // of c in the innermost loops: ROWS x COLS sums stay in registers
    COLS = 16,
    K_BLOCK = 256,
    N_BLOCK = 64   // K_BLOCK x N_BLOCK values of b: 64 KiB, reused by every row of a
};

/* dst (k_count, width), width innermost: element (k, i) of a matrix that stores k rows of `stride`
   values, or with k_innermost the transpose of that. Columns from `count` on are zero. */
static void pack(float *dst, const float *src, int64_t stride, int k_innermost, int64_t k_count,
                 int64_t count, int64_t width) {
    for (int64_t k = 0; k < k_count; k++) {
        for (int64_t i = 0; i < count; i++)
            dst[k * width + i] = k_innermost ? src[i * stride + k] : src[k * stride + i];
        for (int64_t i = count; i < width; i++) dst[k * width + i] = 0.0f;
    }
}

/* sums (ROWS,COLS) = packed_a (k_count,ROWS)^T . packed_b (k_count,COLS) */
static void multiply_tile(float sums[ROWS][COLS], const float *packed_a, const float *packed_b,
                          int64_t k_count) {
    float acc[ROWS][COLS] = {{0.0f}};
    for (int64_t k = 0; k < k_count; k++) {
        for (int r = 0; r < ROWS; r++) {
            float a = packed_a[k * ROWS + r];
#pragma omp simd   // said aloud, because gcc else unrolls this loop instead of vectorising it
            for (int j = 0; j < COLS; j++) acc[r][j] += a * packed_b[k * COLS + j];
        }
    }
    memcpy(sums, acc, sizeof(acc));
}

/* c (m,n) = beta c; 0 overwrites whatever is there, NaN included. */
static void scale_c(SgemmShape s, float *c) {
    for (int64_t i = 0; i < s.m; i++)
        for (int64_t j = 0; j < s.n; j++)
            c[i * s.ldc + j] = s.beta == 0.0f ? 0.0f : s.beta * c[i * s.ldc + j];
}

/* c (m, columns) += alpha * op(a) block . packed_b, whose tiles are COLS columns wide. */
static void add_block(SgemmShape s, const float *a, const float *packed_b, float *c,
                      int64_t k_count, int64_t columns) {
    for (int64_t i = 0; i < s.m; i += ROWS) {
        float packed_a[K_BLOCK * ROWS], sums[ROWS][COLS];
        int64_t rows = min_i64(ROWS, s.m - i);
        pack(packed_a, a + (s.trans_a ? i : i * s.lda), s.lda, !s.trans_a, k_count, rows, ROWS);
        for (int64_t j = 0; j < columns; j += COLS) {
            multiply_tile(sums, packed_a, packed_b + j * k_count, k_count);
            int64_t width = min_i64(COLS, columns - j);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t x = 0; x < width; x++)
                    c[(i + r) * s.ldc + j + x] += s.alpha * sums[r][x];
        }
    }
}

void sgemm_one_thread(SgemmShape s, const float *a, const float *b, float *c) {
    float packed_b[K_BLOCK * N_BLOCK];
    scale_c(s, c);
    for (int64_t k = 0; k < s.k; k += K_BLOCK) {
        int64_t k_count = min_i64(K_BLOCK, s.k - k);
        const float *a_block = a + (s.trans_a ? k * s.lda : k);
        for (int64_t n = 0; n < s.n; n += N_BLOCK) {
            int64_t columns = min_i64(N_BLOCK, s.n - n);
            for (int64_t j = 0; j < columns; j += COLS) {
                const float *tile = b + (s.trans_b ? (n + j) * s.ldb + k : k * s.ldb + n + j);
                pack(packed_b + j * k_count, tile, s.ldb, s.trans_b, k_count,
                     min_i64(COLS, columns - j), COLS);
            }
            add_block(s, a_block, packed_b, c + n, k_count, columns);
        }
    }
}
