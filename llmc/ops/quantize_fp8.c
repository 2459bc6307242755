/*
quantize_fp8 -- CPU path of operands with one scale for a tensor (fp8.h): tiles of 64 x 64, held in
L1 between rounding, which goes along the rows of x, and the columns of a packed token operand.
Values, and the codes of a row operand, lie as x does.
*/
#include <string.h>

#include "../common.h"
#include "fp8.h"
#include "quantize_cpu.h"

enum { TILE = 64 };

/* One operand to make of x. */
typedef struct {
    QOperand *o;
    const Quantizer *how;
    Tensor x;
    Fp8Format format;
    float scale;
    int transposed;   // codes go along the columns of x
} Job;

/* Columns beyond x are 0. */
static void load_line(float v[TILE], const Job *job, int64_t row, int64_t col, int cols) {
    if (cols < TILE) memset(v, 0, TILE * sizeof(float));
    quantize_load(v, job->how, job->x, row * job->x.cols + col, 1, cols);
}

static void round_values(const Job *job, const float v[TILE], int64_t row, int64_t col, int cols) {
    int64_t at = row * job->x.cols + col;
    bf16_t line[TILE];
    for (int i = 0; i < TILE; i++) line[i] = fp8_value(job->format, v[i] * job->scale);
    if (job->o->dtype == DT_BF16) {
        memcpy((bf16_t *)job->o->data + at, line, (size_t)cols * sizeof(bf16_t));
        return;
    }
    float *out = (float *)job->o->data + at;
    for (int i = 0; i < cols; i++) out[i] = bf16_to_f32(line[i]);
}

/* Rows [row, row + rows), columns [col, col + cols) of x. */
static void quantize_tile(const Job *job, int64_t row, int rows, int64_t col, int cols) {
    uint8_t codes[TILE][TILE], *out = (uint8_t *)job->o->data;
    for (int r = 0; r < rows; r++) {
        float v[TILE];
        load_line(v, job, row + r, col, cols);
        if (job->o->form == FORM_VALUES) {
            round_values(job, v, row + r, col, cols);
            continue;
        }
        for (int i = 0; i < TILE; i++) codes[r][i] = fp8_code(job->format, v[i] * job->scale);
        if (!job->transposed) memcpy(out + (row + r) * job->x.cols + col, codes[r], (size_t)cols);
    }
    if (!job->transposed) return;
    for (int c = 0; c < cols; c++) {
        uint8_t *column = out + (col + c) * job->x.rows + row;
        for (int r = 0; r < rows; r++) column[r] = codes[r][c];
    }
}

void quantize_fp8_cpu(QOperand *o, const Quantizer *how, Tensor x) {
    Job job = {
        o, how, x, fp8_format(how->how.elem), 1.0f, o->form == FORM_PACKED && how->token_operand};
    job.scale = fp8_scale(job.format, *o->amax);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < x.rows; row += TILE) {
        int rows = (int)min_i64(TILE, x.rows - row);
        for (int64_t col = 0; col < x.cols; col += TILE)
            quantize_tile(&job, row, rows, col, (int)min_i64(TILE, x.cols - col));
    }
}
