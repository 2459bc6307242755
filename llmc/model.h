/*
model -- a decoder language model from config fields alone: token vectors (and positions), residual
blocks after the pattern, final norm, output head. Owns the arenas; knows no files, steps or ranks.

  embed -> block 0 -> ... -> block n-1 -> final norm -> head -> cross entropy
Precision: blocks' linears follow the recipe and its rules; embedding, norms, attention products and
head stay in the model dtype (arXiv:2509.25149 section 4.1).

Memory (arenas by lifetime): parameters, gradients, optimizer, quantised weights, tables (rotary
angles, StepState), saved activations, scratch activations, op workspace. All of it is taken in
model_place; nothing later allocates.
*/
#ifndef LLMC_MODEL_H
#define LLMC_MODEL_H

#include "blocks/block.h"
#include "zero.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    ARENA_PARAMETERS, ARENA_GRADIENTS, ARENA_OPTIMIZER, ARENA_WEIGHTS, ARENA_TABLES, ARENA_SAVED,
    ARENA_SCRATCH, ARENA_WORKSPACE,
    ARENA_TELEMETRY,   // empty but for what telemetry.h places in it
    NUM_ARENAS
} ArenaId;

/* Who is told how a pass goes on, while it is queued; changes nothing of it. Stages count as
   ZeroRange's do: num_branches the head with the final norm, then branches, -1 the embedding. */
typedef struct {
    void *self;
    void (*forward)(void *self, int branch);   // comes next; num_branches: all are through
    void (*backward)(void *self, int stage);   // comes next
    void (*done)(void *self, int stage);       // its gradients are complete
    // makes the operands of the weights, in the place of model_prepare_weights; NULL: does not
    void (*prepare)(void *self);
} PassObserver;

enum { NUM_STATE_SUMS = 2 };   // loss and stop_votes of a StepState: what ranks add up of it

/* Forward and backward of one micro-batch as the device replays them: the same work with less for
   the host to do, collectives included; one recording with an observer, who is not told of replays,
   and one without. The first micro-step of a kind runs as it is, for libraries to make their plans,
   the second is recorded. */
typedef struct {
    int wanted;                  // memory.cuda_graphs, on a device that records
    int B, T;                    // of the last micro-step
    float loss_scale;
    DeviceRecording *recording;  // of these; NULL until the second one
    int64_t quantized_gemms;     // in it
} MicroStepRecording;

typedef struct {
    ModelConfig config;
    ParamTable params;
    ZeroPlan zero;               // of one rank, but for model_split
    // of several ranks: loss, stop_votes, and the norm of each bucket's part of each rank,
    // (1, 2 + buckets x ranks) f32; buckets in bf16 on their way, (2, largest), or empty
    Tensor rank_sums, rank_staging;
    // of level 3: codes of own rows, what is gathered of two buckets (2, bytes), and maxima of
    // linears' weights (1, linears) f32
    Tensor rank_codes, rank_wire, rank_maxima;
    const PassObserver *observer;   // NULL: none
    Engine engine;
    Block *blocks;               // residual branches, in order
    int num_branches;
    // plans of all linears, phase after phase: before the first entry of precision.schedule, from
    // it on, ...
    LinearPlan *plans;
    int num_phases, phase;       // at least one; that of the linears now
    int quantized;               // 1: some GEMM of some linear, in some phase, is quantised
    // indices in the ParamTable; -1: none
    int embed, positions, final_norm_weight, final_norm_bias, head;
    int64_t max_tokens;          // rows that the activation buffers hold
    int max_T;                   // longest sequence
    int head_chunks;             // the head works on max_tokens / head_chunks rows at a time
    Arena arenas[NUM_ARENAS];
    int64_t step;                // that the operands of weights were made for
    NamedTensor *kept;           // of recipes, from step to step: what a checkpoint holds of them
    int num_kept;
    Tensor maxima;               // (1, 6 x linears) f32: of this step so far; empty: none are kept
    Tensor channel_squares;      // (1, in-features of linears) f32: of this step so far; or empty
    Oscillation *oscillations;   // of linears' weights, by id; empty where none are looked for
    Tensor oscillation_now;      // (1, largest of these weights) f32: a decoded operand
    int64_t *oscillation_count;  // device memory
    int64_t oscillations_reset;  // weights that the step at hand set; -1: it was none that does
    Tensor tokens, targets;      // (max_tokens, 1) i32, on the device
    Tensor *residual;            // [num_branches + 1] of (max_tokens, C)
    NormStats final_stats;
    Tensor final_out;            // (max_tokens, C)
    Tensor dresidual;            // (max_tokens, C): gradient that flows down the residual stream
    Tensor logits;               // (rows of one head chunk, padded vocabulary)
    Tensor losses;               // (max_tokens, 1) f32
    Tensor rope_table;           // (max_T, HS) f32
    BlockScratch scratch;
    MicroStepRecording recorded[2];   // without and with an observer
    const Config *layout_config; // as model_place was told
} Model;

/* Linears of a model, in the order of their ids: id = 2 * branch + (0: in, 1: out). */
static inline int model_num_linears(const Model *m) { return 2 * m->num_branches; }
Linear *model_linear(Model *m, int id);

/* Of a linear in a phase. */
LinearPlan *model_plan(Model *m, int phase, int id);
/* Gives all linears their plans of a phase and nothing else: what lies in memory stays as it is.
   For looking at a phase; the one before must be taken back. */
void model_take_plans(Model *m, int phase);

/* Declares parameters and resolves each linear's plan; refuses (EXIT_CONFIG) a plan that cannot
   run, naming the linear. Allocates nothing: enough for `plan` and --dry-run. */
void model_declare(Model *m, const Config *c);
/* Makes this rank `rank` of `size`, at the level that parallel.zero asks for: arenas hold its
   share. After model_declare; forward alone keeps all weights on each rank. */
void model_split(Model *m, const Config *c, int rank, int size);
/* At level 3, in the phase at hand: 1 where weights of a bucket travel as codes, before forward or
   before backward; else as values. */
int model_sends_codes(Model *m, int bucket, int backward);
/* Linears of a bucket of branches, by id: from *first on; returns how many, 0 of other buckets. */
int model_linears_of(const Model *m, int bucket, int *first);
/* Bytes that a bucket has to get of all ranks, before forward or before backward. */
int64_t model_gathered_bytes(Model *m, int bucket, int backward);
/* Bytes of these codes up to those of each rank, (ranks + 1); all 0 where there are none. */
void model_codes_cuts(Model *m, int bucket, int64_t *cuts);
/* Rows of a linear's weight that `rank` owns. */
typedef struct { int64_t first, count; } RowRange;
RowRange model_own_rows(const Model *m, const Linear *l, int rank);
/* Lays out and takes all memory. training 0: forward only. Weights are undefined until model_init
   or a checkpoint. */
void model_place(Model *m, const Config *c, Device *d, const Ops *ops, int training);
/* Bytes of each arena for this config, without taking them (same call sequence as model_place). */
void model_measure(Model *m, const Config *c, Device *d, const Ops *ops, int training);
/* Gives all linears the plans of a phase, between optimizer steps; weights are to be prepared anew.
   Memory serves every phase, and what recipes keep from step to step stays where it is. */
void model_set_phase(Model *m, int phase);
void model_init(Model *m, uint64_t seed);
void model_free(Model *m);

/* Between two steps, and before the first one: ends the one that StepState names for what recipes
   keep, and makes the operands of the weights, which have changed, for `step`. `maxima` must be
   those of all ranks. */
void model_begin_step(Model *m, int64_t step);
/* The same in a phase of precision.schedule; what the step before recorded is its own phase's. */
void model_begin_phase(Model *m, int64_t step, int phase);
/* linear_unset_maxima of all linears with their plans of a phase; `first`: one that has such. */
int model_unset_maxima(Model *m, int phase, const Linear **first);
/* The operands alone, for the step that StepState names. */
void model_prepare_weights(Model *m);
void model_zero_gradients(Model *m);
/* After the last micro-step, before anything reads the gradients: some are then still those of
   transformed weights. */
void model_finish_gradients(Model *m);
void model_finish_branch(Model *m, int branch);   // those of one
/* One micro-step: adds gradients, and to state->loss the sum of the losses times loss_scale. tokens
   and targets are host memory, (B,T). Recorded or not, it computes the same bits. */
void model_forward_backward(Model *m, const int32_t *tokens, const int32_t *targets, int B, int T,
                            float loss_scale);
/* The same, never recorded and without a trace in what is: for passes beside the training. */
void model_pass(Model *m, const int32_t *tokens, const int32_t *targets, int B, int T,
                float loss_scale);
/* Tells the observer of a pass of which nothing is computed: forward alone, or backward, too. */
void model_pass_by(Model *m, int backward);
/* Forward only: adds the sum of the losses times loss_scale to state->loss. */
void model_evaluate(Model *m, const int32_t *tokens, const int32_t *targets, int B, int T,
                    float loss_scale);
/* Forward of one sequence; logits of position `at` to host memory, vocab values. */
void model_logits(Model *m, const int32_t *tokens, int T, int at, float *logits);

/* 6 * (weights in matrix products, head included) + 6 * attention layers * heads * head_dim *
   seq_len (causal half). */
double model_flops_per_token(const Model *m, int seq_len);
// weights of blocks' linears: what a recipe may quantise
int64_t model_matrix_weights(const Model *m);

#ifdef __cplusplus
}
#endif
#endif
