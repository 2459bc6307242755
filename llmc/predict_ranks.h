/*
predict_ranks -- what more GPUs add to a predicted step, and take from it: bytes that each rank
sends, how much of their time computing hides, what its part of the optimizer saves. What lies where
is zero.h's, times of collectives are network.h's. Communicates nothing.

  parallel.zero  gradients                      values                     weights of blocks
  0              all-reduce, once a step        -                          -
  1              reduce-scatter, once a step    all-gather, once a step    -
  2              reduce-scatter, micro-steps    all-gather, once a step    -
  3              reduce-scatter, micro-steps    all-gather of the rest     all-gather, forward and
                                                                           backward of micro-steps
Weights come as codes or as values, as a run decides it (model_sends_codes); predict.h counts what
making operands of them costs.
Hidden: gradients under a backward pass, bucket by bucket as they are ready, so never the last one;
weights under the products before theirs, so never the first bucket. Not hidden: values, and the few
bytes of losses, norms and maxima. Backward is two thirds of a micro-step. Collectives take nothing
from what computes beside them, all ranks are equally fast, and none waits for data.
*/
#ifndef LLMC_PREDICT_RANKS_H
#define LLMC_PREDICT_RANKS_H

#include <stdio.h>

#include "network.h"
#include "predict.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    TRAFFIC_GRADIENTS,
    TRAFFIC_VALUES,
    TRAFFIC_FORWARD,
    TRAFFIC_BACKWARD,   // operands of blocks' weights
    TRAFFIC_SMALL,      // losses, norms, maxima
    NUM_TRAFFICS
} TrafficKind;
extern const char *const traffic_names[NUM_TRAFFICS];

/* Of one kind: in one pass, and how often a step. */
typedef struct {
    double bytes;      // of the buffers that collectives work on, whole
    int collectives;   // that they are cut into
    int ways;          // 2 for an all-reduce, else 1
    int passes;
} Traffic;
typedef struct {
    Traffic kind[NUM_TRAFFICS];
} StepTraffic;

/* At the level and for the ranks of the last model_split, by the engine of `m`. */
StepTraffic predict_traffic(Model *m, const Config *c);
/* Blocks' weights in the model dtype over what is gathered of them in a pass. */
double predict_gather_saving(const Model *m, const Traffic *gathered);
/* Bytes that each rank sends in a step, and as many that it receives. */
double predict_sent(const Traffic *t, int ranks);
typedef struct {
    int ranks, nodes, micro_steps;
    double tokens;          // of the step, all ranks
    double computing;       // seconds of the step without communication
    double communicating;   // seconds of all collectives
    double exposed;         // of these, what computing does not hide
    double seconds;         // of the step
    double efficiency;      // tokens a second and GPU, over those of one GPU with memory for all
} Scaling;

/* Seconds that gathering in so many equal buckets adds to a pass: all but what is hidden while the
   buckets before it compute, and at least the first one. */
double predict_exposed_forward(double traffic, int buckets, double pass);
/* Seconds that a backward pass takes longer for the buckets of the last model_split to arrive, each
   of which takes so long and begins when backward has completed it; where `waits`, backward stands
   still then until the one before has arrived. */
double predict_exposed_backward(const Model *m, const double *bucket_seconds, double pass,
                                int waits);
/* For `ranks` that divide the step (config_divides). Splits the model among them; its engine's fp4
   and fp8 are those of the device. */
Scaling predict_scaling(Model *m, const Config *c, DeviceModel device, int ranks);

/* Tables of the verb plan. The engine of `m` is that of the predicted device; its split and arenas
   are left changed. Memory and bytes of each of several ranks, at each level; of a device that
   nothing is known of, DEVICE_MODEL_AUTO, the engine's own is meant. */
void predict_levels_print(FILE *out, Model *m, const Config *c, DeviceModel device, int ranks);
/* The step on one GPU, on 8, 64, 512 and on `ranks`, and the assumptions. `tokens` of a whole run,
   or 0. */
void predict_scaling_print(FILE *out, Model *m, const Config *c, DeviceModel device, int ranks,
                           double tokens);

#ifdef __cplusplus
}
#endif
#endif
