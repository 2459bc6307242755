/*
selftest_parts -- what the files of the self-test share: its state, the worst deviation of a row,
rows of the table, random contents, and packed operands decoded anew. Private to selftest*.c.
*/
#ifndef LLMC_SELFTEST_PARTS_H
#define LLMC_SELFTEST_PARTS_H

#include "selftest.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const SelftestOptions *options;
    Device *device;
    const Ops *ops;
    Device *reference;   // a CPU for ops_cpu; NULL where the device itself is a CPU
    StepState state;     // step and token base of all draws; copies lie on the devices
    float *pattern;      // see selftest_value
    SelftestReport report;
} Selftest;

/* --- deviations --- */

/* Where the error is largest compared with its bound. */
typedef struct {
    double ratio, error, bound;
    const char *what;   // NULL: nothing compared yet
    int64_t row, col;
} SelftestWorst;

/* One more comparison. A NaN is worse than any bound, and a bound may be 0. */
void selftest_compare(SelftestWorst *w, double error, double bound, const char *what, int64_t row,
                      int64_t col);

typedef struct {
    const char *name;
    int packed;   // a product of packed codes
    const char *note;
} SelftestRow;

void selftest_judge(Selftest *t, SelftestRow row, const SelftestWorst *worst);
/* A row that failed before there was anything to compare. */
void selftest_fail(Selftest *t, SelftestRow row);

/* --- contents --- */

/* About normal: mean 0, deviation 1. */
float selftest_normal(uint32_t stream, uint64_t i);
/* Tensors are filled with one long pattern over and over, from a shift of their own: about normal,
   each 16 values times a power of two from 1/4 to 4. Value i of such a tensor. */
double selftest_value(const Selftest *t, DType type, int64_t shift, double scale, int64_t i);
void selftest_fill(const Selftest *t, Tensor x, int64_t shift, double scale);
/* bf16 or f32 in host memory. */
double selftest_read(const void *data, DType type, int64_t i);

/* Row `row` of a packed operand in one piece, decoded without the tensor scale from k/2 bytes of
   codes and all scales of its 128 rows. Nothing of ops/quantize is asked: a layout that is wrong
   there shows here. */
void selftest_decode_row(double *out, const uint8_t *codes, const uint8_t *scales, int64_t row,
                         int64_t k);

/* --- the parts --- */

/* Sizes of the attention rows: the scratch area is taken for all of them. */
enum { SELFTEST_ATTENTIONS = 2 };
extern const AttentionDims selftest_attention[SELFTEST_ATTENTIONS];

void selftest_ops(Selftest *t);        // selftest_ops.c
void selftest_quantize(Selftest *t);   // selftest_quantize.c
void selftest_linears(Selftest *t);    // selftest_linears.c
/* The distinct products of the model's linears, a line each; caller frees. */
char *selftest_products(const SelftestOptions *o);

#ifdef __cplusplus
}
#endif
#endif
