/*
run -- what one run of the program is made of, and the stages that its verbs share: the config is
read, data and model are opened, the device is asked whether they fit, the plan is printed, all is
closed. Trains nothing: optimizer steps and the loop around them are main's. Nor does it choose a
machine: main fills host, comm, device and ops between run_configure and run_open.

  run_configure   command line -> config
  run_open        data, tokenizer, model's shape, what multiplies its operands
  run_plan        length of training, learning rates, guard
  run_fit         self-test at the first start; memory, before any is taken
  run_settle_gemms, run_print_plan
  run_take_buffers, model_place, run_load or model_init (run_checkpoint.h), run_record_open
  run_close
Each verb takes those that it needs, in this order.
*/
#ifndef LLMC_RUN_H
#define LLMC_RUN_H

#include "comm.h"
#include "config.h"
#include "dataloader.h"
#include "eval.h"
#include "gemm_rates.h"
#include "guard.h"
#include "metrics.h"
#include "model.h"
#include "parallel.h"
#include "schedule.h"
#include "selftest.h"
#include "telemetry.h"
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Config config;
    Comm *host, *comm;   // the ranks, for host memory and for the device's
    int ranks;           // that share a step: these, or those of plan.ranks
    Device *device;
    const Ops *ops;
    Model model;
    Parallel parallel;         // of training
    DataLoader *train, *val;   // NULL without data.train, data.val, or where a verb reads none
    Tokenizer *tokenizer;      // likewise, without data.tokenizer
    Evaluation evaluation;     // of val
    Schedule schedule;
    int64_t *phase_starts;     // first step of each entry of precision.schedule (run_phases.h)
    Guard guard;
    Metrics *metrics;
    Telemetry *telemetry;      // of training; NULL without log.telemetry_every
    char *config_json;   // resolved
    char precision_tag[64];
    GemmRate *rates;             // of the device; NULL on a CPU
    int accumulation;            // micro-steps a step on each rank
    int64_t step_tokens;         // of all ranks
    int64_t step, steps;         // done, in all
    int64_t saved_step;          // of the newest checkpoint in ckpt.dir that is this run's; or -1
    int64_t position;            // next sequence of the data order
    int64_t tokens;              // trained on; batch.total_tokens may have been another before
    int32_t *inputs, *targets;   // one micro-batch on the host
    void *staging;               // RUN_STAGING_BYTES: tensors of the device pass through it
    struct RunSaver *saver;      // of training: run_checkpoint.h
    StepState state;             // as read back after the last step
} Run;

enum { RUN_STAGING_BYTES = 8 << 20 };

/* What a verb reads of data.*, which may lie elsewhere; whether plan.device judges its keys. */
enum { READ_TRAIN = 1, READ_VAL = 2, READ_TOKENIZER = 4, FOR_PLAN = 8 };

/* Starts from nothing. */
void run_configure(Run *r, int num_args, char **args);
/* `reads` of the enumerators above. Declares the model; takes no memory of the device. */
void run_open(Run *r, int reads);
/* Steps of the run, the learning rate over them and the phases: dies where the config gives no
   length, or one that they do not fit. train.epochs needs r->train. */
void run_take_length(Run *r);
/* What only training needs of the config: data, a length, a tokenizer for samples on the way. */
void run_plan(Run *r);
/* Host memory of training: micro-batches and staging; what ranks need to train together. */
void run_take_buffers(Run *r);
SelftestOptions run_selftest_options(Run *r, int verbose);
/* What the run needs of the device's memory, into the model's arenas. */
void run_measure(Run *r, int training);
/* Tests the device at its first start, which may set the model to emulation. Refuses what it cannot
   hold before it takes any memory, with what would help. */
void run_fit(Run *r, int training);
/* The same for a rehearsal of training; but where device=auto has come to a CPU, which need not be
   the machine that shall train, it only warns of memory. */
void run_rehearse_fit(Run *r);
/* Algorithms and rates of the GEMMs; those of `checkpoint`, where there is one, go on. */
void run_settle_gemms(Run *r, const char *checkpoint);
void run_print_plan(Run *r);
/* Whether the plan is of another device than that at hand; then it is printed of that one alone. */
int run_plans_elsewhere(const Run *r);
void run_print_plan_there(Run *r);
/* All but the host communicator, which several runs may use in turn. */
void run_release(Run *r);
void run_close(Run *r);

#ifdef __cplusplus
}
#endif
#endif
