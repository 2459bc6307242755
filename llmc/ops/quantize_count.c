/* quantize_count -- counts over the CPU's quantisers; see quantize_count.h. */
#include "quantize_count.h"

#include <math.h>
#include <string.h>

#include "../common.h"
#include "fp8.h"
#include "quantize_cpu.h"

/* Of a format with one scale for the tensor. */
static void count_fp8(QuantizeCounts *counts, const Quantizer *how, Tensor x, float amax) {
    Fp8Format format = fp8_format(how->how.elem);
    float scale = fp8_scale(format, amax);
    int64_t zeros = 0, saturated = 0, underflowed = 0;
#pragma omp parallel for reduction(+ : zeros, saturated, underflowed)
    for (int64_t i = 0; i < tensor_count(x); i++) {
        float v;
        quantize_load(&v, how, x, i, 1, 1);
        float y = v * scale;
        zeros += v == 0.0f;
        saturated += fabsf(y) > format.max * QUANTIZE_SATURATED;
        underflowed += v != 0.0f && fp8_round(format, y) == 0.0f;
    }
    counts->elements += tensor_count(x);
    counts->zeros += zeros;
    counts->saturated += saturated;
    counts->underflowed += underflowed;
}

void quantize_count(QuantizeCounts *counts, const Quantizer *how, Tensor x, float amax) {
    CHECK(operand_is_quantized(&how->how), "counts of an operand of format %s",
          formats[how->how.format].name);
    if (!operand_has_blocks(&how->how)) {
        count_fp8(counts, how, x, amax);
        return;
    }
    QOperand o;
    memset(&o, 0, sizeof(o));
    o.rows = how->token_operand ? x.cols : x.rows;
    o.k = how->token_operand ? x.rows : x.cols;
    o.amax = &amax;
    quantize_count_blocks(counts, &o, how, x);
}
