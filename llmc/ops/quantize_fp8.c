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
    Tensor x;
    Fp8Format format;
    float scale;
    int transposed;   // codes go along the columns of x
} Job;

/* Columns beyond x are 0. */
static void load_line(float v[TILE], Tensor x, int64_t row, int64_t col, int cols) {
    int64_t at = row * x.cols + col;
    if (cols < TILE) memset(v, 0, TILE * sizeof(float));
    if (x.dtype == DT_F32) {
        memcpy(v, (const float *)x.data + at, (size_t)cols * sizeof(float));
        return;
    }
    const bf16_t *values = (const bf16_t *)x.data + at;
    for (int i = 0; i < cols; i++) v[i] = bf16_to_f32(values[i]);
}

static void round_values(const Job *job, const float v[TILE], int64_t row, int64_t col, int cols) {
    bf16_t line[TILE];
    for (int i = 0; i < TILE; i++) line[i] = fp8_value(job->format, v[i] * job->scale);
    memcpy((bf16_t *)job->o->data + row * job->x.cols + col, line, (size_t)cols * sizeof(bf16_t));
}

/* Rows [row, row + rows), columns [col, col + cols) of x. */
static void quantize_tile(const Job *job, int64_t row, int rows, int64_t col, int cols) {
    uint8_t codes[TILE][TILE], *out = (uint8_t *)job->o->data;
    for (int r = 0; r < rows; r++) {
        float v[TILE];
        load_line(v, job->x, row + r, col, cols);
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
    Job job = {o, x, fp8_format(formats[o->format].cell.elem), 1.0f,
               o->form == FORM_PACKED && how->token_operand};
    job.scale = fp8_scale(job.format, *o->amax);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < x.rows; row += TILE) {
        int rows = (int)min_i64(TILE, x.rows - row);
        for (int64_t col = 0; col < x.cols; col += TILE)
            quantize_tile(&job, row, rows, col, (int)min_i64(TILE, x.cols - col));
    }
}
