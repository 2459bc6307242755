/*
convert -- CPU reference of convert.h.
*/
#include "convert.h"

#include "row_io.h"

void convert_check(Tensor out, Tensor x) {
    expect_bf16_or_f32(out, "convert out");
    expect_bf16_or_f32(x, "convert x");
    tensor_expect(out, "convert out", out.dtype, 1, out.cols);
    tensor_expect(x, "convert x", x.dtype, 1, out.cols);
}

void add_check(Tensor out, Tensor x) {
    expect_bf16_or_f32(x, "add x");
    tensor_expect(out, "add out", DT_F32, 1, out.cols);
    tensor_expect(x, "add x", x.dtype, 1, out.cols);
}

void convert_cpu(Device *d, Tensor out, Tensor x) {
    (void)d;
    convert_check(out, x);
#pragma omp parallel for
    for (int64_t first = 0; first < x.cols; first += SPAN) {
        float span[SPAN];
        int64_t count = min_i64(SPAN, x.cols - first);
        load_span(span, x, first, count);
        store_span(out, first, span, count);
    }
}

void add_cpu(Device *d, Tensor out, Tensor x) {
    (void)d;
    add_check(out, x);
#pragma omp parallel for
    for (int64_t first = 0; first < x.cols; first += SPAN) {
        float span[SPAN], *sum = (float *)out.data + first;
        int64_t count = min_i64(SPAN, x.cols - first);
        load_span(span, x, first, count);
        for (int64_t i = 0; i < count; i++) sum[i] += span[i];
    }
}
