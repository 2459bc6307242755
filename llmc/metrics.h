/*
metrics -- the record that a run leaves in log.dir, and the lines that it prints.
  metrics.jsonl         one object a line. A training step: step, tokens, train_loss, grad_norm, lr,
                        time_ms, tokens_per_s, mfu (share of the peak, null if that is unknown), and
                        "skipped":true where the update was, phase from the first entry of
                        precision.schedule on. A validation: step, tokens, val_loss,
                        val_loss_bf16 with eval.also_bf16. Both with gap_percent where there is a
                        gap to log.reference: positive = worse. Telemetry's lines: telemetry.h.
                        An event: step, "event":"phase" (of precision.schedule, begins with this
                        step) or "osci_reset" (in this step), value: the phase, the weights set.
                        A value that is not finite is null, and "nonfinite":true stands beside it
  main.log              s:STEP trl:LOSS lr:LR norm:NORM   and   s:STEP tel:VALIDATION_LOSS
                        and of events   s:STEP EVENT:VALUE
  run.json              what ran where, when, and how it ended (nulls while it runs)
  config.resolved.json  the config with every default filled in
`step` in files is the index of the optimizer step from 0. A validation has the index of the step
that follows it, so step S of either kind repeats when a run resumes at S, and opening with
first_step S drops all lines from S on: the files of an interrupted run become those of an
uninterrupted one. On standard output steps count from 1. `tokens` are those seen so far, this
step's included.
It takes numbers and writes them; it measures and decides nothing.
  tests     test_metrics.c
*/
#ifndef LLMC_METRICS_H
#define LLMC_METRICS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *dir;   // log.dir; "": nothing is written, only printed (ranks other than 0 too)
    const char *reference;   // log.reference: directory of another run's record; "": none
    double reference_warn;   // log.reference_warn, percent; 0: never
    const char *config;      // resolved, as JSON text
    const char *git_hash;
    const char *build;   // "cuda", "cpu", compiler: whatever tells builds apart
    const char *device;
    const char *backend;     // "native", "emulated"
    const char *precision;   // tag of the step line: "nvfp4(emulated)"; the caller may change it
    int world_size;
    int print_every;      // log.every: of the lines on standard output; files hold every step
    int64_t first_step;   // that this process does; 0 starts the files anew
    int64_t total_steps;
    int64_t tokens_per_step;
    double flops_per_token;
    double peak_flops;   // dense BF16 peak of all devices together; 0: unknown
} MetricsOptions;

typedef struct {
    int64_t step;   // index from 0
    int64_t tokens;
    double loss, grad_norm, lr, time_ms;
    double loss_z, norm_z;   // guard_z, NaN where there is none
    int skipped;
    int phase;   // of precision.schedule; written where it is not 0
} StepRecord;

typedef struct {
    int64_t step, tokens;   // of the step that follows it; seen so far
    double loss;
    int also_bf16;          // loss_bf16 was measured, too
    double loss_bf16;       // of the same weights with all linears in BF16
} ValidationRecord;

typedef struct Metrics Metrics;

/* Copies nothing: the strings live as long as the run. Dies with EXIT_DATA naming log.dir or
   log.reference and the file. */
Metrics *metrics_open(const MetricsOptions *options);
/* Dies where metrics_open would for these two, and leaves no file. Warns of a reference that ends
   before end_tokens. */
void metrics_check(const char *dir, const char *reference, int64_t end_tokens);
void metrics_step(Metrics *m, const StepRecord *r);
void metrics_validation(Metrics *m, const ValidationRecord *r);
/* Another line of metrics.jsonl, of the step that is trained next: "step", then these members of a
   JSON object. */
void metrics_object(Metrics *m, int64_t step, const char *members);
/* What happens once in a while, with a number that says more. */
void metrics_event(Metrics *m, int64_t step, const char *event, int64_t value);
/* All lines so far have reached the disk: before a checkpoint, whose resumed run goes on behind
   them. */
void metrics_sync(Metrics *m);
/* Completes run.json and frees. Fit for the hook of die(): a second failure ends the process. */
void metrics_close(Metrics *m, int exit_code, const char *exit_reason);

#ifdef __cplusplus
}
#endif
#endif
