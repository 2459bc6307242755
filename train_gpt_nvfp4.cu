/*
train_gpt_nvfp4 -- pretrains language models with 4-bit NVFP4 matrix products: parse, build, loop,
report.

  train_gpt_nvfp4 [train|eval|sample|plan|selftest|ckpt verify|help] config.json ... key=value ...

Reads from top to bottom: the machine, one optimizer step, the loop around it, the verbs, main. What
a run is made of, and what happens to it before and after the loop, is in llmc/run*.h. There is no
kernel here, so that a C++ compiler builds it without nvcc; WITH_CUDA is tested here only.
*/
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "llmc/checkpoint.h"
#include "llmc/comm_watchdog.h"
#include "llmc/common.h"
#include "llmc/gradients.h"
#include "llmc/optimizer.h"
#include "llmc/predict.h"
#include "llmc/resume.h"
#include "llmc/run.h"
#include "llmc/run_checkpoint.h"
#include "llmc/run_guard.h"
#include "llmc/run_phases.h"
#include "llmc/run_ranks.h"
#include "llmc/run_record.h"
#include "llmc/sampler.h"
#include "llmc/stop.h"
#include "llmc/verbs.h"
#include "llmc/version.h"

/* --- the machine --- */

static void open_machine(Run *r) {
    const Config *c = &r->config;
    run_open_ranks(r);
#ifdef WITH_CUDA
    if (c->device == DEVICE_CHOICE_CUDA ||
        (c->device == DEVICE_CHOICE_AUTO && device_cuda_count() > 0)) {
        if (c->model.dtype == DT_F32)
            die(EXIT_CONFIG, "recipe f32 runs on the CPU only; add device=cpu");
        r->device = device_cuda_open(run_gpu_of_rank(r, device_cuda_count()));
        run_check_gpus(r, r->device->uuid);
        r->ops = &ops_cuda;
    } else if (c->device == DEVICE_CHOICE_AUTO) {
        log_warn("this is a %s, but no GPU is found: the CPU does the work. device=cuda says why, "
                 "device=cpu means it",
                 version_build());
    }
#else
    if (c->device == DEVICE_CHOICE_CUDA) {
        die(EXIT_CONFIG,
            "device is cuda, but this is a %s; build with nvcc (make cuda) or set device=cpu",
            version_build());
    }
#endif
    if (!r->device) {
        // Ranks on one machine share its cores; without this each would take them all.
        int64_t share = max_i64(1, sysconf(_SC_NPROCESSORS_ONLN) / r->host->size);
        int threads = c->threads > 0 ? c->threads : r->host->size > 1 ? (int)share : 0;
        r->device = device_cpu_open(threads);
        r->ops = &ops_cpu;
    }
    r->comm = comm_device_open(r->host, r->device);
}

/* Everything that the verbs share: the machine, the data, the model's shape. */
static void open_run(Run *r, int num_args, char **args, int reads) {
    run_configure(r, num_args, args);
    open_machine(r);
    run_open(r, reads);
}

/* --- one optimizer step --- */

/* Forward and backward over this rank's share of the step's sequences, in micro-batches. Asked to
   stop, it leaves the rest out and votes for no rank to apply the step. */
static void accumulate_gradients(Run *r, float lr) {
    const Config *c = &r->config;
    Device *d = r->device;
    int B = c->batch.micro, T = c->batch.seq_len;
    int64_t rank_first = (int64_t)r->comm->rank * r->accumulation * B;   // sequence within the step
    StepState state =
        optimizer_state(c, r->step, lr, guard_loss_max(&r->guard), guard_norm_max(&r->guard));
    d->upload(d, r->model.engine.state, &state, sizeof(state));
    model_zero_gradients(&r->model);
    for (int micro = 0; micro < r->accumulation; micro++) {
        parallel_begin(&r->parallel, micro == r->accumulation - 1);
        if (stop_requested()) {
            parallel_pass_by(&r->parallel);
            continue;
        }
        int64_t first = rank_first + (int64_t)micro * B;
        int64_t token_base = first * T;
        d->upload(d, &r->model.engine.state->token_base, &token_base, sizeof(token_base));
        dataloader_fill(r->train, r->position + first, B, r->inputs, r->targets);
        watchdog_tick();
        model_forward_backward(&r->model, r->inputs, r->targets, B, T,
                               (float)(1.0 / (double)r->step_tokens));
    }
    float votes = stop_requested() ? 1.0f : 0.0f;
    d->upload(d, &r->model.engine.state->stop_votes, &votes, sizeof(votes));
}

/* The sign of a NaN means nothing, but would be printed. */
static double drop_nan_sign(double v) { return isnan(v) ? NAN : v; }

static void train_step(Run *r) {
    accumulate_gradients(r, run_phases_lr(r, r->step));
    parallel_step(&r->parallel);
    run_phases_begin(r, r->step + 1);
    r->device->download(r->device, &r->state, r->model.engine.state, sizeof(r->state));
    r->state.loss = (float)drop_nan_sign(r->state.loss);
    r->state.grad_norm = (float)drop_nan_sign(r->state.grad_norm);
}

static void report_step(Run *r, double time_ms) {
    StepRecord record;
    memset(&record, 0, sizeof(record));
    record.step = r->step;
    record.tokens = r->tokens + r->step_tokens;
    record.loss = r->state.loss;
    record.grad_norm = r->state.grad_norm;
    record.lr = r->state.lr;
    record.time_ms = time_ms;
    record.loss_z = guard_z(&r->guard.loss, r->state.loss);
    record.norm_z = guard_z(&r->guard.norm, r->state.grad_norm);
    record.skipped = r->state.skip;
    record.phase = r->model.phase;
    metrics_step(r->metrics, &record);
}

/* --- the loop --- */

static int due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

/* Returns 0 where it was left because of a stop: the resumed run validates again. */
static int validate(Run *r) {
    if (!r->val) return 1;
    ValidationRecord record = {r->step, r->tokens, 0, r->config.eval.also_bf16, 0};
    record.loss = drop_nan_sign(eval_run(&r->evaluation, &r->model, r->host));
    if (record.also_bf16 && !r->evaluation.stopped)
        record.loss_bf16 = drop_nan_sign(eval_run_plain(&r->evaluation, &r->model, r->host));
    if (r->evaluation.stopped) return 0;
    metrics_validation(r->metrics, &record);
    return 1;
}

/* On the first sequences of the data, whatever the step. The phase that waits for the gradient's
   noise begins with the step that is next, on all ranks at once. */
static void look_closely(Run *r) {
    const Config *c = &r->config;
    dataloader_fill(r->train, 0, c->batch.micro, r->inputs, r->targets);
    TelemetryBatch batch = {r->inputs,        r->targets,
                            c->batch.micro,   c->batch.seq_len,
                            (float)(1.0 / (double)r->step_tokens), r->step};
    watchdog_enter("telemetry");
    float ratio = (float)telemetry_run(r->telemetry, &r->model, &batch, r->metrics);
    watchdog_leave();
    if (r->host->size > 1) r->host->broadcast(r->host, &ratio, DT_F32, 1);
    if (!run_phases_wait(r) || !(ratio < sqrtf(3.0f))) return;
    run_phases_trigger(r, r->step);
    run_phases_enter(r);
}

static void print_sample(Run *r, int index) {
    const Config *c = &r->config;
    SampleOptions options = {c->sample.prompt, c->sample.tokens, c->sample.temperature,
                             c->sample.top_k,  c->seed,          index};
    watchdog_enter("sample");
    if (r->tokenizer && r->host->rank == 0) sampler_run(&r->model, r->tokenizer, &options, stdout);
    watchdog_leave();
}

/* Trains the next step, checks and reports it. Returns 0 when it was dropped because of a stop. */
static int one_step(Run *r) {
    double started = now_ms();
    int first = !r->device->sealed;
    watchdog_step(r->step);
    if (first) watchdog_enter("first step");   // kernels are loaded, graphs made
    train_step(r);
    if (first) watchdog_leave();
    r->device->sealed = 1;
    if (r->state.stop_votes > 0) return 0;
    run_guard_step(r);
    if (first) gradients_check_arrival(&r->model, r->host, r->step);
    report_step(r, now_ms() - started);
    if (r->model.oscillations_reset >= 0)
        metrics_event(r->metrics, r->step, "osci_reset", r->model.oscillations_reset);
    guard_push(&r->guard, r->state.loss, r->state.grad_norm, r->state.skip);
    r->position += r->step_tokens / r->config.batch.seq_len;
    r->tokens += r->step_tokens;
    r->step++;
    return 1;
}

/* Returns 1 when all steps are done, or those that ckpt.until asks for, and 0 when it was asked to
   stop. What belongs to step S comes before its training, so that a run resumed at S writes the
   same record. Validations and samples are of what was trained, in the phase that trained it. */
static int train_loop(Run *r) {
    const Config *c = &r->config;
    for (;;) {
        int last = r->step == r->steps;
        if (!last && c->ckpt.until > 0 && r->step >= c->ckpt.until) {
            run_save(r);
            return 1;
        }
        int validated = !(last || due(r->step, c->eval.every)) || validate(r);
        if (r->step > 0 && due(r->step, c->sample.every)) print_sample(r, (int)r->step);
        if (last) return validated;
        run_phases_enter(r);
        if (due(r->step, c->log.telemetry_every)) look_closely(r);
        int trained = one_step(r);
        run_save_poll(r);
        if (!trained || r->step == r->steps || due(r->step, c->ckpt.every)) run_save(r);
        if (!trained) return 0;
    }
}

/* --- verbs --- */

/* What training checks before its first step and can check without leaving a file. */
static void rehearse(Run *r) {
    run_rehearse_fit(r);
    char *checkpoint = resume_find(&r->config, 1);
    if (checkpoint) run_rehearse_load(r, checkpoint);
    run_settle_gemms(r, checkpoint);
    run_print_plan(r);
    free(checkpoint);
    run_check_directories(r);
}

static int plan_run(Run *r) {
    const Config *c = &r->config;
    open_machine(r);
    run_open(r, READ_TRAIN | READ_VAL | READ_TOKENIZER | FOR_PLAN);
    if (c->train.steps > 0 || c->train.tokens > 0 || (r->train && c->train.epochs > 0))
        run_take_length(r);
    run_measure(r, 1);
    if (run_plans_elsewhere(r)) {
        run_print_plan_there(r);
    } else {
        run_settle_gemms(r, NULL);
        run_print_plan(r);
    }
    char *prediction = predict_text(&r->model, c, r->ranks, r->steps);
    log_line("%s", prediction);
    free(prediction);
    run_close(r);
    return EXIT_DONE;
}

static int verb_plan(int num_args, char **args) {
    Run run;
    run_configure(&run, num_args, args);
    return plan_run(&run);
}

static int verb_train(int num_args, char **args) {
    int dry_run = verbs_take_flag(&num_args, args, "--dry-run");
    stop_listen();
    Run run, *r = &run;
    run_configure(r, num_args, args);
    if (dry_run && r->config.plan.ranks > 0) return plan_run(r);   // of ranks that are not there
    open_machine(r);
    run_open(r, READ_TRAIN | READ_VAL | READ_TOKENIZER);
    run_plan(r);
    const Config *c = &r->config;
    if (dry_run) {
        rehearse(r);
        run_close(r);
        return EXIT_DONE;
    }
    run_take_buffers(r);
    run_fit(r, 1);
    run_claim_directories(r);
    char *checkpoint = resume_find(c, 1);
    if (checkpoint) run_rehearse_load(r, checkpoint);
    run_settle_gemms(r, checkpoint);
    run_saver_open(r);
    model_place(&r->model, c, r->device, r->ops, 1);
    if (r->telemetry) telemetry_place(r->telemetry, &r->model);
    run_print_plan(r);
    run_saver_describe(r);
    if (checkpoint) run_load(r, checkpoint, 1);
    else model_init(&r->model, c->seed);
    free(checkpoint);
    run_phases_begin(r, r->step);
    stop_defer(r->host->rank == 0);
    run_record_open(r);
    // One process on a CPU waits for nobody, and its steps may be long.
    int waits = r->host->size > 1 || r->device->kind != DEVICE_CPU;
    watchdog_train(waits ? c->parallel.timeout_s : 0);
    int finished = train_loop(r);
    watchdog_enter("end");
    run_saver_finish(r);
    ExitCode code = finished ? EXIT_DONE : EXIT_INTERRUPTED;
    if (r->step == r->steps) run_phases_conclude(r);
    if (!finished)
        log_line("interrupted at step %lld by %s; the same command%s goes on from there",
                 (long long)r->step, stop_requested() ? stop_signal() : "another rank",
                 strcmp(c->ckpt.resume, "auto") == 0 ? "" : " with ckpt.resume=auto");
    const char *reason = r->step < r->steps ? "ckpt.until" : "finished";
    run_record_close(r, code, finished ? reason : "interrupted");
    run_saver_close(r);
    run_close(r);
    return code;
}

static int verb_eval(int num_args, char **args) {
    Run run;
    open_run(&run, num_args, args, READ_VAL);
    if (!run.val) {
        die(EXIT_CONFIG,
            "data.val is not set: name the shards to evaluate on, data.val=DIR/val_*.bin");
    }
    run_load_trained(&run);
    double loss = eval_run(&run.evaluation, &run.model, run.host);
    char in_bf16[48] = "";
    if (run.config.eval.also_bf16)
        snprintf(in_bf16, sizeof(in_bf16), "in BF16 %.6f | ",
                 eval_run_plain(&run.evaluation, &run.model, run.host));
    log_line("step %lld | val loss %.6f | %s%lld tokens | %s", (long long)run.step, loss, in_bf16,
             (long long)(run.evaluation.sequences * run.config.batch.seq_len), run.precision_tag);
    run_close(&run);
    return EXIT_DONE;
}

static int verb_sample(int num_args, char **args) {
    Run run;
    open_run(&run, num_args, args, READ_TOKENIZER);
    if (!run.tokenizer)
        die(EXIT_CONFIG, "data.tokenizer is not set: name the tokenizer.vocab beside the shards");
    run_load_trained(&run);
    for (int i = 0; i < run.config.sample.count; i++) print_sample(&run, i);
    run_close(&run);
    return EXIT_DONE;
}

static int verb_selftest(int num_args, char **args) {
    Run run, *r = &run;
    open_run(r, num_args, args, 0);
    log_line("%s", version_build());
    if (r->device->kind == DEVICE_CPU) log_line("device      %s", r->device->name);
    else
        log_line("device      %s, compute capability %d.%d; %s", r->device->name,
                 r->device->compute_capability / 10, r->device->compute_capability % 10,
                 r->device->libraries);
    log_line("precision   %s", r->precision_tag);
    SelftestOptions options = run_selftest_options(r, 1);
    SelftestReport report = selftest_run(&options);
    log_line("%d passed, %d failed", report.passed, report.failed);
    char *tuple = selftest_tuple(&options);
    selftest_record(tuple, &report);
    free(tuple);
    free(report.table);
    run_close(r);
    return report.failed == 0 ? EXIT_DONE : EXIT_DEVICE;
}

static int verb_ckpt(int num_args, char **args) {
    if (num_args != 2 || strcmp(args[0], "verify") != 0)
        die(EXIT_CONFIG, "usage: train_gpt_nvfp4 ckpt verify DIR");
    char *path = resume_at(args[1]);
    if (!path) die(EXIT_DATA, "there is no checkpoint at %s", args[1]);
    int faults = checkpoint_verify(path);
    free(path);
    return faults == 0 ? EXIT_DONE : EXIT_DATA;
}

static int verb_help(int num_args, char **args);

static const Verb verbs[] = {
    {"train", verb_train, "trains (the default verb); --dry-run stops before the first step"},
    {"eval", verb_eval, "validation loss of a checkpoint"},
    {"sample", verb_sample, "text from a checkpoint"},
    {"plan", verb_plan, "precision, memory and FLOPs of a run"},
    {"selftest", verb_selftest,
     "does this device compute what it should? every op, and the products of a config's linears"},
    {"ckpt", verb_ckpt,
     "ckpt verify DIR: checks the files of the newest checkpoint in DIR, or of the run there"},
    {"help", verb_help,
     "help [NAME ...]: all keys with their defaults, or keys, groups, presets, recipes; "
     "--markdown"},
    {NULL, NULL, NULL},
};

static int verb_help(int num_args, char **args) {
    verbs_help(verbs, num_args, args);
    return EXIT_DONE;
}

/* What other verbs than train print is their result: a full disk must not pass for success. */
static int finish_output(int exit_code) {
    if (fflush(stdout) != 0 || ferror(stdout)) die(EXIT_DATA, "cannot write to standard output");
    return exit_code;
}

int main(int argc, char **argv) {
    int num_args = argc - 1;
    char **args = argv + 1;
    signal(SIGXFSZ, SIG_IGN);   // a file-size limit is an error with a message, not a death
    if (verbs_take_flag(&num_args, args, "--help") || verbs_take_flag(&num_args, args, "-h")) {
        verbs_usage(verbs, stdout);
        return finish_output(EXIT_DONE);
    }
    if (verbs_take_flag(&num_args, args, "--version")) {
        printf("train_gpt_nvfp4 %s, %s\n", version_git_hash(), version_build());
        return finish_output(EXIT_DONE);
    }
    if (num_args == 0) {
        verbs_usage(verbs, stderr);
        return EXIT_CONFIG;
    }
    const Verb *verb = verbs_find(verbs, args[0]);
    if (!verb) verbs_refuse_unknown(verbs, args[0]);
    if (!verb || verb->run == verb_train) return verb_train(num_args - !!verb, args + !!verb);
    return finish_output(verb->run(num_args - 1, args + 1));
}
