/*
channels -- CPU reference of channels.h.
*/
#include "channels.h"

#include "cell.h"
#include "row_io.h"

void channel_squares_check(Tensor sums, Tensor x) {
    expect_bf16_or_f32(x, "channel_squares x");
    tensor_expect(sums, "channel_squares sums", DT_F32, 1, x.cols);
}

void channels_advance_check(Tensor total, Tensor current) {
    tensor_expect(total, "channels total", DT_F32, 1, current.cols);
    tensor_expect(current, "channels current", DT_F32, 1, total.cols);
}

void channels_drop_check(Tensor out, Tensor x, Tensor chosen) {
    expect_bf16_or_f32(x, "channels x");
    tensor_expect(out, "channels out", x.dtype, x.rows, x.cols);
    tensor_expect(chosen, "chosen channels", DT_F32, 1, x.cols);
}

void channels_add_check(const QOperand *q, Tensor x, Tensor chosen) {
    expect_bf16_or_f32(x, "channels x");
    tensor_expect(x, "channels x", x.dtype, q->rows, q->k);
    tensor_expect(chosen, "chosen channels", DT_F32, 1, x.cols);
    CHECK(q->form == FORM_VALUES && q->dtype == DT_F32 && q->k_contiguous,
          "channels are added to f32 values of a row operand, not to form %d, %s", (int)q->form,
          dtype_info[q->dtype].name);
}

void channel_squares_cpu(Device *d, Tensor sums, Tensor x, StepRange steps,
                         const StepState *state) {
    (void)d;
    channel_squares_check(sums, x);
    int64_t step = (int64_t)state->step + 1;
    if (step < steps.from || step > steps.to) return;
#pragma omp parallel for
    for (int64_t c = 0; c < x.cols; c += SPAN) {
        float row[SPAN], *to = (float *)sums.data + c;
        int64_t count = min_i64(SPAN, x.cols - c);
        for (int64_t n = 0; n < x.rows; n++) {
            load_span(row, x, n * x.cols + c, count);
            for (int64_t i = 0; i < count; i++) to[i] += row[i] * row[i];
        }
    }
}

void channels_advance_cpu(Device *d, Tensor total, Tensor current, const StepState *state) {
    (void)d;
    channels_advance_check(total, current);
    float *sum = (float *)total.data, *part = (float *)current.data;
    for (int64_t c = 0; c < total.cols; c++) {
        if (!(state->stop_votes > 0.0f)) sum[c] += part[c];
        part[c] = 0.0f;
    }
}

void channels_drop_cpu(Device *d, Tensor out, Tensor x, Tensor chosen) {
    (void)d;
    channels_drop_check(out, x, chosen);
    const float *is_chosen = (const float *)chosen.data;
#pragma omp parallel for
    for (int64_t n = 0; n < x.rows; n++) {
        float row[SPAN];
        for (int64_t c = 0; c < x.cols; c += SPAN) {
            int64_t count = min_i64(SPAN, x.cols - c);
            load_span(row, x, n * x.cols + c, count);
            for (int64_t i = 0; i < count; i++)
                if (is_chosen[c + i] != 0.0f) row[i] = 0.0f;
            store_span(out, n * x.cols + c, row, count);
        }
    }
}

/* Values of up to CHANNEL_GROUP neighbours, of which some are chosen. */
static void add_group(const Cell *cell, float *values, const float *x, const float *chosen,
                      int64_t count, float dequant_mult) {
    CellTensor tensor = cell_tensor(cell, 0.0f);
    float most = 0.0f;
    for (int64_t i = 0; i < count; i++)
        if (chosen[i] != 0.0f && cell_magnitude(x[i]) > most) most = cell_magnitude(x[i]);
    CellScale scale = cell_scale(cell, tensor, most, 0.0f, 0);
    for (int64_t i = 0; i < count; i++) {
        if (chosen[i] == 0.0f) continue;
        float q = cell_round(cell, cell_quotient(cell, tensor, scale, x[i]), 0);
        values[i] = cell_value(cell, scale, q) / dequant_mult;
    }
}

void channels_add_cpu(Device *d, const QOperand *q, Tensor x, Tensor chosen) {
    (void)d;
    channels_add_check(q, x, chosen);
    Cell cell = cell_make(&formats[FORMAT_MXFP8].cell);
    if (q->amax && *q->amax == 0.0f) *q->amax = q->dequant_div;
    float dequant_mult = 1.0f / q->dequant_div;
    if (q->amax) dequant_mult *= *q->amax;
#pragma omp parallel for
    for (int64_t n = 0; n < x.rows; n++) {
        float row[CHANNEL_GROUP];
        for (int64_t c = 0; c < x.cols; c += CHANNEL_GROUP) {
            int64_t count = min_i64(CHANNEL_GROUP, x.cols - c), at = n * x.cols + c;
            load_span(row, x, at, count);
            add_group(&cell, (float *)q->data + at, row, (const float *)chosen.data + c, count,
                      dequant_mult);
        }
    }
}
