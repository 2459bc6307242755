/*
telemetry_parts -- what telemetry.c, which chooses linears, plans memory and writes the record,
shares with telemetry_observe.c, which looks on while they run. Private to them and their test.
*/
#ifndef LLMC_TELEMETRY_PARTS_H
#define LLMC_TELEMETRY_PARTS_H

#include "gradient_noise.h"
#include "telemetry.h"
#include "telemetry_stats.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TELEMETRY_LINEARS = 8,           // sampled where no pattern says which
    TELEMETRY_ROWS = PRODUCT_ROWS,   // of operands, too: whole blocks, tiles and transforms
    TELEMETRY_COLUMNS = 128          // of weights' gradients, and as many rows
};

/* A linear that is looked at. */
typedef struct {
    int id;
    Tensor x_columns;   // (tokens, columns) of the input
    Tensor shadow;      // (rows, columns) f32: of the weight's gradient
    Tensor x_rows;      // host: the first rows of the input
    GemmReport report[NUM_GEMMS];
} WatchedLinear;

struct Telemetry {
    LinearObserver observer;
    Model *model;
    WatchedLinear *linears;
    int num_linears;
    int has_noise;   // log.gradient_noise
    GradientNoise noise;
    int64_t tokens;      // of the micro-batch
    StepState state;     // that the pass runs with
    Tensor x, dy;        // of the linear at hand, whole, where they are
    Tensor dy_columns;   // (tokens, columns)
    Tensor shadow;       // (rows, widest): of outputs
    // host: rows of dy, w, a product, its shadow, values of an operand (f32); (rows, widest)
    Tensor dy_rows, w_rows, out_rows, shadow_rows, values;
};

/* Fills in t->observer. */
void telemetry_look_on(Telemetry *t);
/* After the pass and model_finish_gradients: the weights' gradients beside their shadows. */
void telemetry_compare_gradients(Telemetry *t);

#ifdef __cplusplus
}
#endif
#endif
