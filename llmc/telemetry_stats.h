/*
telemetry_stats -- the numbers that telemetry reports, worked out on the host: of a product beside
the product that it stands for, and of what quantising did to an operand; and the text of both.
Private to telemetry.c and its test.
  gain     <out, shadow> / <shadow, shadow>: the slope of the least-squares line through 0. 1: the
           product has the size it should have, whatever its noise
  cosine   <out, shadow> / (|out| |shadow|)
  sqnr_db  20 log10(|shadow| / |out - shadow|); infinite where they are equal
  tests    test_telemetry.c
*/
#ifndef LLMC_TELEMETRY_STATS_H
#define LLMC_TELEMETRY_STATS_H

#include "ops/quantize_count.h"
#include "recipe.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    double gain, cosine, sqnr_db;
} ProductStats;

typedef struct {
    int is_quantized;   // 0: the rest means nothing
    QuantizeCounts counts;
    float
        amax;   // that it was quantised with; without a tensor scale, that of the counted elements
} OperandStats;

/* Of one GEMM of one linear. */
typedef struct {
    ProductStats product;
    OperandStats operand[NUM_SIDES];
} GemmReport;

enum { PRODUCT_ROWS = 256 };   // that are compared at most
/* All in host memory. The first rows and columns of out, as many as shadow has, bf16 or f32 each;
   bias (1, cols) is in both and taken out of both, empty: none is. */
ProductStats product_stats(Tensor out, Tensor shadow, Tensor bias);
float largest_magnitude(Tensor x);

/* For JSON: six digits, or null for what is not finite. Returns `text`. */
const char *number_or_null(double value, char text[32]);

enum { REPORT_BYTES = 1024 };
/* The members of a JSON object: "telemetry":"blocks.0.attn.qkv","gemm":"fprop","gain":...; null for
   what is not finite, and then "nonfinite":true at the end. Returns `text`. */
const char *report_members(const GemmReport *r, const char *linear, GemmKind g,
                           char text[REPORT_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
