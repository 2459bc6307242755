/*
decode -- CPU reference of decode.h.
*/
#include "decode.h"

#include "row_io.h"

void decode_check(Tensor out, const QOperand *q) {
    CHECK(q->slices <= 1, "an operand in %d slices", q->slices);
    tensor_expect(out, "decode out", DT_F32, q->rows, q->k);
}

static float element(const QOperand *q, int64_t row, int64_t k) {
    if (q->form == FORM_PACKED) return quantize_decode(q, row, k);
    int64_t at = q->k_contiguous ? row * q->k + k : k * q->rows + row;
    return q->dtype == DT_F32 ? ((const float *)q->data)[at]
                              : bf16_to_f32(((const bf16_t *)q->data)[at]);
}

void decode_cpu(Device *d, Tensor out, const QOperand *q) {
    (void)d;
    decode_check(out, q);
    float scale = 1.0f / q->dequant_div;
    if (q->amax) scale *= *q->amax;
#pragma omp parallel for
    for (int64_t row = 0; row < q->rows; row++) {
        float *to = (float *)out.data + row * q->k;
        for (int64_t k = 0; k < q->k; k++) to[k] = element(q, row, k) * scale;
    }
}

void decode_values_check(Tensor out, const QOperand *q) {
    CHECK(q->slices <= 1, "an operand in %d slices", q->slices);
    CHECK(q->form == FORM_PACKED && q->format == FORMAT_NVFP4, "decode_values of %s",
          formats[q->format].name);
    tensor_expect(out, "decode_values out", DT_BF16, q->rows, q->k);
}

void decode_values_cpu(Device *d, Tensor out, const QOperand *q) {
    (void)d;
    decode_values_check(out, q);
#pragma omp parallel for
    for (int64_t row = 0; row < q->rows; row++) {
        bf16_t *to = (bf16_t *)out.data + row * q->k;
        for (int64_t k = 0; k < q->k; k++) to[k] = bf16_from_f32(quantize_decode(q, row, k));
    }
}
