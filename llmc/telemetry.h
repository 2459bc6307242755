/*
telemetry -- how true the quantised products of a run are, measured at steps of log.telemetry_every
beside the training: one micro-batch, always the same, goes forward and backward once more, while
the sampled linears are compared with a BF16 shadow of themselves.
  fprop, dgrad   the first 256 rows of the output, against the product of the tensors that were
                 quantised; as the next op reads them, biases taken out
  wgrad          the first 128 rows and columns, against the product of dy and x over all tokens
  operands       of the first 256 rows of x, w and dy: counts of ops/quantize_count.h, done again on
                 the host from the same elements, maxima and draws; with precision.out_control of
                 the tensor as it came, chosen features included
One line of metrics.jsonl for each linear and GEMM (telemetry_stats.h has the numbers):
  {"step":100,"telemetry":"blocks.3.attn.qkv","gemm":"wgrad","gain":0.999,"cosine":0.98,
   "sqnr_db":14.2,"dy":{"saturated":0,"underflowed":0.07,"zero_scales":0,"amax":0.01},"x":{...}}
and, with log.gradient_noise, after a second pass one of gradient_noise.h:
  {"step":100,"gradient_snr":3.1,"gradient_snr_of":{"blocks.0.attn.qkv":2.8,...}}
A number that is not finite (the SQNR of an exact product, noise where there is none, or a gradient
that is not finite itself) is null, with "nonfinite":true at the end of the line.
Nothing of it touches the training: losses and weights have the same bits with it and without. Its
memory is the arena ARENA_TELEMETRY and host buffers, all taken before the first step.
  tests    test_telemetry.c, test_program_telemetry.c
*/
#ifndef LLMC_TELEMETRY_H
#define LLMC_TELEMETRY_H

#include "metrics.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Telemetry Telemetry;

typedef struct {
    const int32_t *tokens, *targets;   // (B,T), host memory
    int B, T;
    float loss_scale;   // as in training
    int64_t step;       // that is trained next
} TelemetryBatch;

/* Chooses the linears, of a declared model: those of log.telemetry_layers, or at most 8 spread over
   the model. NULL where log.telemetry_every is 0. Dies with EXIT_CONFIG for a pattern that names
   none. */
Telemetry *telemetry_open(const Config *c, Model *m);
void telemetry_close(Telemetry *t);
/* As model_measure and model_place, and after them. */
void telemetry_measure(Telemetry *t, Model *m);
void telemetry_place(Telemetry *t, Model *m);
/* Between two steps, on every rank. The record goes to `metrics`, a summary to the screen. Returns
   r of gradient_noise.h, NaN where it is not asked for. */
double telemetry_run(Telemetry *t, Model *m, const TelemetryBatch *batch, Metrics *metrics);

#ifdef __cplusplus
}
#endif
#endif
