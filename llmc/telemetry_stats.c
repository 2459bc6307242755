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

typedef struct {
    double cross, out2, shadow2, error2;
} Sums;

static Sums row_sums(Tensor out, Tensor shadow, Tensor bias, int64_t row) {
    Sums s = {0, 0, 0, 0};
    for (int64_t c = 0; c < shadow.cols; c++) {
        double shift = tensor_empty(bias) ? 0 : value_at(bias, c);
        double a = value_at(out, row * out.cols + c) - shift;
        double b = value_at(shadow, row * shadow.cols + c) - shift;
        s.cross += a * b;
        s.out2 += a * a;
        s.shadow2 += b * b;
        s.error2 += (a - b) * (a - b);
    }
    return s;
}

ProductStats product_stats(Tensor out, Tensor shadow, Tensor bias) {
    Sums rows[PRODUCT_ROWS], sum = {0, 0, 0, 0};
    CHECK(out.cols >= shadow.cols && out.rows >= shadow.rows && shadow.rows <= PRODUCT_ROWS,
          "a shadow of %lld x %lld", (long long)shadow.rows, (long long)shadow.cols);
#pragma omp parallel for
    for (int64_t r = 0; r < shadow.rows; r++) rows[r] = row_sums(out, shadow, bias, r);
    for (int64_t r = 0; r < shadow.rows; r++) {   // in order, whatever the threads
        sum.cross += rows[r].cross;
        sum.out2 += rows[r].out2;
        sum.shadow2 += rows[r].shadow2;
        sum.error2 += rows[r].error2;
    }
    ProductStats s = {sum.cross / sum.shadow2, sum.cross / sqrt(sum.out2 * sum.shadow2),
                      10 * log10(sum.shadow2 / sum.error2)};
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
    int nonfinite;   // 1: some number is null for that
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
    m->nonfinite |= !isfinite(value);
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
    Members m = {text, 0, 0};
    add(&m, "\"telemetry\":\"%s\",\"gemm\":\"%s\"", linear, gemm_names[g]);
    add_number(&m, "gain", r->product.gain);
    add_number(&m, "cosine", r->product.cosine);
    add_number(&m, "sqnr_db", r->product.sqnr_db);
    for (int s = 0; s < NUM_SIDES; s++) add_operand(&m, operand_names[g][s], &r->operand[s]);
    if (m.nonfinite) add(&m, ",\"nonfinite\":true");
    return text;
}
