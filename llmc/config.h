/*
config -- everything a run is told: one struct, and one table with a row per key that parsing,
overriding, echoing and help are all made from.
  precedence   built-in defaults < model.preset < "extends" files < JSON files left to right <
               key=value
  errors       die(EXIT_CONFIG) with file:line:column, the key, what is legal and the nearest
               spelling
JSON may carry // comments. Sizes that need the data or the device are checked by their owners.
*/
#ifndef LLMC_CONFIG_H
#define LLMC_CONFIG_H

#include "comm.h"
#include "device.h"
#include "device_facts.h"
#include "ops/activation.h"
#include "ops/norm.h"
#include "recipe.h"
#include "schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { POS_LEARNED, POS_ROPE, POS_NONE, NUM_POSITIONS } PosKind;
extern const char *const pos_names[NUM_POSITIONS];

typedef struct {
    char preset[48];
    // "" = layers x (attention + MLP); else one character a block: * attention, - MLP
    char pattern[512];
    int layers;            // transformer blocks; with a pattern: its length
    // kv_heads, head_dim 0 in a file: heads, dim / heads
    int dim, heads, kv_heads, head_dim, ffn, vocab;
    NormKind norm;
    float norm_eps;
    ActKind act;
    PosKind pos;
    double rope_theta;
    int bias, tied;
    float init_std;
    // of activations and of the weights that GEMMs read: bf16, or f32 on a CPU
    DType dtype;
} ModelConfig;

typedef struct { char *path; double weight; } SourceConfig;      // path: a file or a glob
typedef struct { SourceConfig *items; int count; } SourceList;
typedef struct { Rule *items; int count; } RuleList;

/* When an entry of precision.schedule begins: at a step, at a share of all steps, at the first step
   of the learning rate's decay, or where the gradients' measured noise asks for it. */
typedef enum { MOMENT_STEP, MOMENT_SHARE, MOMENT_LR_DECAY, MOMENT_SQRT3, NUM_MOMENTS } MomentKind;
/* From its moment on, the rule goes over all before it. With resets_lr the learning rate is warmed
   up again from there and falls by half a cosine to final_frac of its new peak at the last step. */
typedef struct {
    MomentKind kind;
    double at;                // a step, or a share in (0, 1)
    Rule rule;
    int resets_lr;
    int64_t warmup_steps;
    float peak, final_frac;   // peak 0: optim.lr; final_frac not given: sched.final_frac
} ScheduleEntry;
typedef struct { ScheduleEntry *items; int count; } ScheduleList;
enum { CONFIG_MAX_ENTRIES = 256 };   // of precision.schedule

typedef enum { BACKEND_AUTO, BACKEND_NATIVE, BACKEND_EMULATE, NUM_BACKENDS } BackendKind;
extern const char *const backend_names[NUM_BACKENDS];

// what multiplies packed operands
typedef enum { GEMM_KERNEL_CUBLASLT, GEMM_KERNEL_MMA, NUM_GEMM_KERNELS } GemmKernel;
extern const char *const gemm_kernel_names[NUM_GEMM_KERNELS];

// what rounds stochastically
typedef enum { STOCHASTIC_SOFTWARE, STOCHASTIC_HARDWARE, NUM_STOCHASTICS } StochasticKind;
extern const char *const stochastic_names[NUM_STOCHASTICS];

// scales of the rows that the MLP's last linear multiplies
typedef enum { SMOOTH_NONE, SMOOTH_TOKEN, NUM_SMOOTHINGS } Smoothing;
extern const char *const smoothing_names[NUM_SMOOTHINGS];

// what backward works out again, in rising order: each level also what the ones before it do
typedef enum { RECOMPUTE_NONE, RECOMPUTE_ACTIVATION, RECOMPUTE_NORM, RECOMPUTE_BLOCK,
              NUM_RECOMPUTES } RecomputeLevel;
extern const char *const recompute_names[NUM_RECOMPUTES];

// a step whose loss or norm is not finite
typedef enum { NAN_STOP, NAN_SKIP, NUM_NAN_POLICIES } NanPolicy;
extern const char *const nan_names[NUM_NAN_POLICIES];

typedef enum { DEVICE_CHOICE_AUTO, DEVICE_CHOICE_CPU, DEVICE_CHOICE_CUDA,
              NUM_DEVICE_CHOICES } DeviceChoice;
extern const char *const device_choice_names[NUM_DEVICE_CHOICES];

typedef struct {
    ModelConfig model;
    struct { SourceList train, val; char tokenizer[1024]; int shuffle; } data;
    // total_tokens 0: micro x seq_len x ranks
    struct { int micro, seq_len; int64_t total_tokens; } batch;
    // at most one is not 0; config_steps, which training calls, wants one
    struct { int64_t steps, tokens; double epochs; } train;
    struct { float lr, betas[2], eps, weight_decay, grad_clip; } optim;
    struct { ScheduleType type; int64_t warmup_steps; float decay_frac, final_frac; } sched;
    struct {
        const Recipe *recipe;
        int keep_first, keep_last;    // blocks in BF16; keep_last -1: the recipe's share
        // precision.rules in order, then precision.GEMM.OPERAND.FIELD keys
        RuleList rules;
        ScheduleList schedule;
        BackendKind backend;
        GemmKernel gemm;
        StochasticKind stochastic;
        Smoothing smooth_swiglu;
        // of in-features; fraction 0: none
        struct { float fraction; int64_t from, to; } out_control;
        // start 0: never
        struct { int64_t start, period, window; float threshold; } osci_reset;
    } precision;
    DeviceChoice device;
    int threads;                      // CPU threads, 0: all
    // zero: level of zero.h; grad_dtype: of gradients between ranks, f32 or bf16
    struct {
        int zero, bucket_mib;
        DType grad_dtype;
        Rendezvous rendezvous;
        char rendezvous_file[1024], interface[64];
        float timeout_s;              // 0: never
    } parallel;
    struct {
        int lmhead_chunks, deterministic, cuda_graphs;
        RecomputeLevel recompute;
    } memory;
    struct { int64_t every, tokens; int micro, also_bf16; } eval;
    // dir "": log.dir/ckpt
    struct {
        char dir[1024], resume[1024];
        int64_t every, keep, major_every, until;
        int background;
    } ckpt;
    struct { float skip_loss_z, skip_grad_z; NanPolicy nan; int max_skips; } guard;
    struct {
        char dir[1024], reference[1024], telemetry_layers[96];
        float reference_warn;         // percent; 0: never
        int64_t every, telemetry_every;
        int gradient_noise;
    } log;
    struct {
        char prompt[4096];
        int64_t tokens, every;
        int count, top_k;
        float temperature;
    } sample;
    // what the verb plan predicts; training ignores it. tokens 0: the run's length; ranks 0: those
    // present; gpus_per_node and link (GB/s) 0: the device's; network in GB/s
    struct {
        DeviceModel device;
        int64_t tokens;
        int ranks, gpus_per_node;
        double link, network, gpu_hour_price;
    } plan;
    uint64_t seed;
    // no key: the lines of config_changes from model.preset alone, of what was given beside it;
    // NULL for none
    char *preset_changes;
} Config;

/* Parses `args`: paths of JSON files or of runs' directories, whose config.resolved.json is meant,
   and key=value words, in order. Fills in what is derived and
   checks keys against each other (dim divisible by heads, warm-up shorter than training, ...); what
   depends on the number of ranks is left to the functions below. Dies with EXIT_CONFIG on the first
   error. */
void config_parse(Config *c, int num_args, char **args);
void config_free(Config *c);
/* Dies on a word that begins with a dash: what flags there are is taken out before. */
void config_refuse_flags(int num_args, char **args);

/* Micro-steps of one optimizer step on each rank. Dies naming batch.total_tokens and the nearest
   legal values. */
int config_accumulation(const Config *c, int world_size);
/* 1 where it would not. */
int config_divides(const Config *c, int world_size);
/* Tokens of one optimizer step. */
int64_t config_step_tokens(const Config *c, int world_size);
/* Steps of the whole run; epoch_sequences is what one pass over data.train holds. Dies when no
   train.* key is set, and when the warm-up is not shorter than the run. */
int64_t config_steps(const Config *c, int world_size, int64_t epoch_sequences);

/* The whole config as JSON text with every key and its resolved value (caller frees): parses back
   to an equal Config. A ckpt.dir that follows from log.dir is "", and so follows another one. */
char *config_to_json(const Config *c);
/* What has changed since config_to_json gave `saved`: a line "KEY: OLD -> NEW" for each key that is
   among the names, itself or its group ("model batch.seq_len"); NULL: all. Keys that the text does
   not have are passed over. "" for no change; caller frees. */
char *config_changes(const Config *c, const char *saved, const char *names);
/* How many elements at the start of a key's list are what they were when config_to_json gave
   `saved`. */
int config_equal_elements(const Config *c, const char *saved, const char *key);
/* What to say of a name that is no key: "; did you mean \"optim.lr\"?" for the nearest spelling or
   for the name in another program, else "; `help` lists all keys". Returns buffer. */
const char *config_suggestion(const char *name, char *buffer, int size);
/* `help` and `help NAME` (a key, a group such as "optim", a preset, a recipe, a field of a rule or
   a word of plans such as "rht16"); an unknown name dies with what config_suggestion has. */
void config_help(const char *key_or_null);
/* 1 where config_help has something to say of the name. */
int config_help_knows(const char *name);
/* The whole reference as Markdown, for README. */
void config_help_markdown(void);

#ifdef __cplusplus
}
#endif
#endif
