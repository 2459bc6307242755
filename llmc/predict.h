/*
predict -- how long an optimizer step takes on a GPU that need not be there: the work that a model's
plan asks for, counted from the model itself, over the rates of device_facts. One GPU; nothing of
communication, evaluation and loading. Measures nothing.

  a product      arithmetic: FLOPs / (peak x share x share of multiprocessors that have a tile)
                 memory: bytes / bandwidth. The longer one, and of the other what does not overlap
  quantising     as linear.h does it: maxima of a tensor in one pass, its operands in another
  all else       bytes / bandwidth, each tensor read or written once an op
A plan whose formats the device has no units for is counted in BF16, with its quantising: emulated.
Of the program's own kernel (precision.gemm=mma) no rate is known: a step with it has no prediction.
*/
#ifndef LLMC_PREDICT_H
#define LLMC_PREDICT_H

#include "config.h"
#include "device_facts.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    TERM_LINEARS_BF16,
    TERM_LINEARS_FP8,
    TERM_LINEARS_FP4,
    TERM_LINEARS_EMULATED,
    TERM_QUANTISE_TOKENS,   // x and dy
    TERM_QUANTISE_WEIGHTS,
    TERM_HEAD,
    TERM_LOSS,
    TERM_ATTENTION_FORWARD,
    TERM_ATTENTION_BACKWARD,
    TERM_ELEMENTWISE,   // norms, activation, residual, rotary positions, biases, embedding
    TERM_OPTIMIZER,     // with the norm of the gradient and its zeroing
    TERM_OPS,           // what each op takes beside its work
    NUM_TERMS
} PredictTerm;
extern const char *const predict_term_names[NUM_TERMS];

typedef struct {
    double flops, bytes, seconds, ops;
} Cost;   // ops: calls of one

typedef struct {
    double tokens;   // of the step, on one GPU
    Cost term[NUM_TERMS];
    Cost step;   // their sum
} Prediction;

/* One product of a linear on a micro-batch, in BF16 and in predict_recipe, each with its share of
   what quantising costs. */
typedef struct {
    double bf16, quantised;
} Crossover;

/* What BF16 is compared with: the run's recipe where it quantises, else nvfp4. */
const Recipe *predict_recipe(const Config *c);
/* `m` after model_declare, or after model_split among `ranks`, which share the step's tokens. */
Prediction predict_step(Model *m, const Config *c, DeviceModel device, int ranks);
Crossover predict_crossover(Model *m, const Config *c, DeviceModel device, int linear, GemmKind g);
/* Bytes of all arenas after model_measure but the op workspace, which is of the device at hand; and
   whether a device holds so many. */
double predict_memory(const Model *m);
int predict_fits(DeviceModel device, double bytes);
/* Three significant digits; a count of this kind is not worth more. */
typedef struct {
    char text[32];
} Figure;
Figure predict_figure(double x);

/* What the verb plan prints for plan.device: the terms, memory, the time of plan.tokens or of the
   run's `steps` (0: not known), and the crossover of each product, in figures of three digits; or
   why there is no prediction. `m` after model_measure, and measured again. Caller frees. */
char *predict_text(Model *m, const Config *c, int ranks, int64_t steps);

#ifdef __cplusplus
}
#endif
#endif
