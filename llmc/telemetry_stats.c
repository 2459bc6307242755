/* telemetry_stats -- sums over products and operands, in double and in order; see
   telemetry_stats.h. */
#include "telemetry_stats.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "common.h"

static double value_at(Tensor t, int64_t i) {
    return t.dtype == DT_F32 ? ((const float *)t.data)[i]
                             : bf16_to_f32(((const bf16_t *)t.data)[i]);
}

ProductStats product_stats(Tensor out, Tensor shadow, Tensor bias) {
    double cross = 0, out2 = 0, shadow2 = 0, error2 = 0;
    CHECK(out.cols >= shadow.cols && out.rows >= shadow.rows, "a shadow larger than its product");
    for (int64_t r = 0; r < shadow.rows; r++) {
        for (int64_t c = 0; c < shadow.cols; c++) {
            double shift = tensor_empty(bias) ? 0 : value_at(bias, c);
            double a = value_at(out, r * out.cols + c) - shift;
            double b = value_at(shadow, r * shadow.cols + c) - shift;
            cross += a * b;
            out2 += a * a;
            shadow2 += b * b;
            error2 += (a - b) * (a - b);
        }
    }
    ProductStats s = {cross / shadow2, cross / sqrt(out2 * shadow2), 10 * log10(shadow2 / error2)};
    return s;
}

float largest_magnitude(Tensor x) {
    double most = 0;
    for (int64_t i = 0; i < tensor_count(x); i++) most = fmax(most, fabs(value_at(x, i)));
    return (float)most;
}

// --- text ---

const char *number_or_null(double value, char text[32]) {
    snprintf(text, 32, isfinite(value) ? "%.6g" : "null", value);
    return text;
}

typedef struct {
    char *text;
    int used;
} Members;

PRINTF_LIKE(2, 3)
static void add(Members *m, const char *format, ...) {
    va_list args;
    va_start(args, format);
    m->used += vsnprintf(m->text + m->used, (size_t)(REPORT_BYTES - m->used), format, args);
    va_end(args);
    CHECK(m->used < REPORT_BYTES, "report of %d bytes", m->used);
}

static void add_number(Members *m, const char *key, double value) {
    char text[32];
    add(m, ",\"%s\":%s", key, number_or_null(value, text));
}

static double share(int64_t part, int64_t all) {
    return all > 0 ? (double)part / (double)all : 0.0;
}

static void add_operand(Members *m, const char *name, const OperandStats *s) {
    if (!s->is_quantized) return;
    add(m, ",\"%s\":{\"saturated\":%.6g,\"underflowed\":%.6g,\"zero_scales\":%.6g", name,
        share(s->counts.saturated, s->counts.elements),
        share(s->counts.underflowed, s->counts.elements),
        share(s->counts.zero_scales, s->counts.blocks));
    add_number(m, "amax", s->amax);
    add(m, "}");
}

const char *report_members(const GemmReport *r, const char *linear, GemmKind g,
                           char text[REPORT_BYTES]) {
    Members m = {text, 0};
    add(&m, "\"telemetry\":\"%s\",\"gemm\":\"%s\"", linear, gemm_names[g]);
    add_number(&m, "gain", r->product.gain);
    add_number(&m, "cosine", r->product.cosine);
    add_number(&m, "sqnr_db", r->product.sqnr_db);
    for (int s = 0; s < NUM_SIDES; s++) add_operand(&m, operand_names[g][s], &r->operand[s]);
    return text;
}
