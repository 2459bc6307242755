/*
train_gpt_nvfp4 -- pretrains language models with 4-bit NVFP4 matrix products: parse, build, loop,
report.

  train_gpt_nvfp4 [train|eval|sample|plan|selftest|ckpt verify|help] config.json ... key=value ...

Reads from top to bottom: what a run is made of, how it is set up, one optimizer step, the loop
around it, the other verbs, main. There is no kernel here, so that a C++ compiler builds it without
nvcc; WITH_CUDA is tested here only.
*/
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "llmc/backend.h"
#include "llmc/checkpoint.h"
#include "llmc/comm.h"
#include "llmc/common.h"
#include "llmc/config.h"
#include "llmc/dataloader.h"
#include "llmc/eval.h"
#include "llmc/gemm_cache.h"
#include "llmc/guard.h"
#include "llmc/metrics.h"
#include "llmc/model.h"
#include "llmc/optimizer.h"
#include "llmc/outfile.h"
#include "llmc/plan.h"
#include "llmc/predict.h"
#include "llmc/resume.h"
#include "llmc/sampler.h"
#include "llmc/schedule.h"
#include "llmc/selftest.h"
#include "llmc/selftest_start.h"
#include "llmc/tokenizer.h"
#include "llmc/version.h"

enum {
    STAGING_BYTES = 8 << 20,
    RECORD_GRACE_US = 500000,
    MAX_NONFINITE_IN_A_ROW = 10   // guard.nan=skip: by then the weights are lost, not one batch
};

/* What a verb reads of data.*, which may lie elsewhere; whether plan.device judges its keys. */
enum { READ_TRAIN = 1, READ_VAL = 2, READ_TOKENIZER = 4, FOR_PLAN = 8 };

typedef struct {
    Config config;
    Comm *host, *comm;   // the ranks, for host memory and for the device's
    Device *device;
    const Ops *ops;
    Model model;
    DataLoader *train, *val;   // val is NULL without data.val
    Tokenizer *tokenizer;      // NULL without data.tokenizer
    Evaluation evaluation;
    Schedule schedule;
    Guard guard;
    Metrics *metrics;
    char *config_json;   // resolved
    char precision_tag[64];
    GemmRate *rates;             // of the device; NULL on a CPU
    int accumulation;            // micro-steps a step on each rank
    int64_t step_tokens;         // of all ranks
    int64_t step, steps;         // done, in all
    int64_t position;            // next sequence of the data order
    int nonfinite_in_a_row;      // steps skipped for that
    int64_t tokens;              // trained on; batch.total_tokens may have been another before
    int32_t *inputs, *targets;   // one micro-batch on the host
    void *staging;               // tensors pass through it on their way to a file
    StepState state;             // as read back after the last step
} Run;

static volatile sig_atomic_t stop_requested;

/* The first signal asks, the second one ends the process at once. */
static void request_stop(int signal_number) {
    stop_requested = 1;
    signal(signal_number, SIG_DFL);
}

/* --- setting up --- */

static void open_machine(Run *r) {
    const Config *c = &r->config;
    r->host = comm_host_open();
    log_set_rank(r->host->rank, r->host->size);
#ifdef WITH_CUDA
    if (c->device == DEVICE_CHOICE_CUDA ||
        (c->device == DEVICE_CHOICE_AUTO && device_cuda_count() > 0)) {
        if (c->model.dtype == DT_F32)
            die(EXIT_CONFIG, "recipe f32 runs on the CPU only; add device=cpu");
        r->device = device_cuda_open(r->host->local_rank);
        r->ops = &ops_cuda;
    }
#else
    if (c->device == DEVICE_CHOICE_CUDA) {
        die(EXIT_CONFIG,
            "device is cuda, but this is a %s; build with nvcc (make cuda) or set device=cpu",
            version_build());
    }
#endif
#ifdef WITH_CUDA
    if (!r->device && c->device == DEVICE_CHOICE_AUTO)
        log_warn("this is a %s, but no GPU is found: the CPU does the work. device=cuda says why, "
                 "device=cpu means it",
                 version_build());
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

static DataLoader *open_data(const Config *c, const SourceList *list, int shuffle,
                             const char *what) {
    DataSource *sources = (DataSource *)xmalloc((size_t)list->count * sizeof(DataSource));
    for (int i = 0; i < list->count; i++) {
        sources[i].pattern = list->items[i].path;
        sources[i].weight = list->items[i].weight;
    }
    DataLoaderOptions options = {c->batch.seq_len, c->model.vocab, c->seed, shuffle, what};
    DataLoader *dl = dataloader_open(sources, list->count, &options);
    free(sources);
    return dl;
}

static void open_val(Run *r) {
    if (r->config.data.val.count == 0) return;
    r->val = open_data(&r->config, &r->config.data.val, 0, "data.val");
    r->evaluation = eval_open(&r->config, r->val);
}

static void open_tokenizer(Run *r) {
    if (!r->config.data.tokenizer[0]) return;
    r->tokenizer = tokenizer_open(r->config.data.tokenizer);
    if (tokenizer_size(r->tokenizer) > r->config.model.vocab) {
        die(EXIT_CONFIG,
            "data.tokenizer %s has %d tokens, model.vocab is %d; set model.vocab to at least that",
            r->config.data.tokenizer, tokenizer_size(r->tokenizer), r->config.model.vocab);
    }
}

static SelftestOptions selftest_options(Run *r, int verbose) {
    const Config *c = &r->config;
    SelftestOptions options = {r->device,
                               r->ops,
                               r->model.engine.fp4,
                               &r->model,
                               (int64_t)c->batch.micro * c->batch.seq_len,
                               verbose,
                               r->model.engine.fp8};
    return options;
}

/* Algorithms and rates of the GEMMs; those of `checkpoint`, where there is one, go on. */
static void settle_gemms(Run *r, const char *checkpoint) {
    const Config *c = &r->config;
    char *algorithms = checkpoint ? checkpoint_gemm_algorithms(checkpoint) : NULL;
    r->rates = gemm_cache_prepare(&r->model, (int64_t)c->batch.micro * c->batch.seq_len, r->host,
                                  algorithms);
    free(algorithms);
}

/* Tests the device at its first start. Refuses what it cannot hold before it takes any memory, with
   what would help. */
static void fit_model(Run *r, int training) {
    size_t free_bytes, total_bytes;
    model_measure(&r->model, &r->config, r->device, r->ops, training);
    SelftestOptions options = selftest_options(r, 0);
    int asks = r->device->kind == DEVICE_CUDA && r->model.quantized;
    if (asks && selftest_at_start(&options, &r->config, r->host)) {
        r->model.engine.fp4 = FP4_EMULATED;
        r->model.engine.fp8 = 0;
        plan_precision_tag(&r->model, &r->config, r->precision_tag, sizeof(r->precision_tag));
        model_measure(&r->model, &r->config, r->device, r->ops, training);   // of other operands
    }
    r->device->memory(r->device, &free_bytes, &total_bytes);
    if (plan_memory_bytes(&r->model) > free_bytes) {
        char *table = plan_memory_text(&r->model);
        die(EXIT_OOM,
            "the run needs %.1f MiB on %s, %.1f MiB are free:\n%slower batch.micro, eval.micro or "
            "batch.seq_len, "
            "or raise memory.lmhead_chunks",
            (double)plan_memory_bytes(&r->model) / 1048576.0, r->device->name,
            (double)free_bytes / 1048576.0, table);
    }
}

static void print_plan(Run *r) {
    const Config *c = &r->config;
    char *precision = plan_precision_text(&r->model, 1, r->rates);
    char *memory = plan_memory_text(&r->model);
    char validation[128] = "no data.val: no validation";
    if (r->val) eval_describe(&r->evaluation, c, validation, sizeof(validation));
    log_line("%s", version_build());
    log_line("device      %s, %d %s; GEMM %s, attention %s%s; ranks %d (%s)", r->device->name,
             r->device->num_threads, r->device->kind == DEVICE_CPU ? "threads" : "multiprocessors",
             r->device->kind == DEVICE_CPU ? sgemm_name : "cuBLASLt", r->ops->attention_name(),
             c->memory.deterministic ? "" : " in any order", r->comm->size, r->comm->name);
    log_line("model       %lld parameters, %lld in the blocks' matrices",
             (long long)param_table_true_count(&r->model.params),
             (long long)model_matrix_weights(&r->model));
    log_line("step        %lld tokens = %d sequences of %d x %d micro-steps x %d ranks; %.3g FLOPs",
             (long long)r->step_tokens, c->batch.micro, c->batch.seq_len, r->accumulation,
             r->comm->size,
             model_flops_per_token(&r->model, c->batch.seq_len) * (double)r->step_tokens);
    if (r->steps > 0) {
        log_line("run         %lld steps, %.4g tokens", (long long)r->steps,
                 (double)r->steps * (double)r->step_tokens);
    }
    log_line("validation  %s", validation);
    log_line("precision   %s: %s%s", r->precision_tag, precision, memory);
    free(precision);
    free(memory);
}

/* Everything that the verbs share: the machine, the data, the model's shape. */
static void open_run(Run *r, int num_args, char **args, int reads) {
    Config *c = &r->config;
    memset(r, 0, sizeof(*r));
    config_refuse_flags(num_args, args);
    config_parse(c, num_args, args);
    open_machine(r);
    if (c->preset_changes) {
        log_warn("model.preset %s is not the whole model: keys of files and words go over it\n%s",
                 c->model.preset, c->preset_changes);
    }
    r->accumulation = config_accumulation(c, r->comm->size);
    r->step_tokens = config_step_tokens(c, r->comm->size);
    if (reads & READ_TRAIN && c->data.train.count > 0)
        r->train = open_data(c, &c->data.train, c->data.shuffle, "data.train");
    if (reads & READ_VAL) open_val(r);
    if (reads & READ_TOKENIZER) open_tokenizer(r);
    model_declare(&r->model, c);
    (reads & FOR_PLAN ? backend_choose_for_plan : backend_choose)(&r->model, c, r->device);
    plan_precision_tag(&r->model, c, r->precision_tag, sizeof(r->precision_tag));
    r->config_json = config_to_json(c);
}

/* --- checkpoints --- */

static CheckpointState checkpoint_state(Run *r, CheckpointField fields[2]) {
    Guard *g = &r->guard;
    CheckpointField loss = {"guard_loss", FIELD_REALS, g->loss.values, &g->loss.count,
                            GUARD_WINDOW};
    CheckpointField norm = {"guard_norm", FIELD_REALS, g->norm.values, &g->norm.count,
                            GUARD_WINDOW};
    fields[0] = loss;
    fields[1] = norm;
    CheckpointState s;
    memset(&s, 0, sizeof(s));
    s.step = r->step;
    s.position = r->position;
    s.tokens = r->tokens;
    s.seed = r->config.seed;
    s.fields = fields;
    s.num_fields = 2;
    return s;
}

static void save_checkpoint(Run *r) {
    const Config *c = &r->config;
    if (r->host->rank == 0) {
        CheckpointField fields[2];
        CheckpointState s = checkpoint_state(r, fields);
        s.config = r->config_json;
        char *algorithms = r->ops->gemm_choices_save(r->device);
        s.gemm_algorithms = algorithms;
        CheckpointPolicy policy = {c->ckpt.dir, (int)c->ckpt.keep, c->ckpt.major_every, r->staging,
                                   STAGING_BYTES};
        double started = now_ms();
        checkpoint_save(&policy, &r->model.params, r->device, &s);
        free(algorithms);
        log_line("checkpoint  %s/step_%08lld, %.1f s", c->ckpt.dir, (long long)r->step,
                 (now_ms() - started) / 1000.0);
    }
    r->host->barrier(r->host);
}

static void refuse_longer_past(const Run *r, const char *path, int64_t step) {
    if (step <= r->steps) return;
    die(EXIT_CONFIG,
        "the run has %lld steps, but %s is at step %lld; raise train.steps (or train.tokens, "
        "train.epochs), or set ckpt.resume=never",
        (long long)r->steps, path, (long long)step);
}

/* What loading it would refuse, but for the checksums of tensors. */
static void rehearse_load(Run *r, const char *path) {
    resume_compare(&r->config, path, 1);
    CheckpointField fields[2];
    CheckpointState s = checkpoint_state(r, fields);
    checkpoint_check(path, &r->model.params, &s, 1);
    free(s.config);
    refuse_longer_past(r, path, s.step);
}

static void load_checkpoint(Run *r, const char *path, int training) {
    resume_compare(&r->config, path, training);
    CheckpointField fields[2];
    CheckpointState s = checkpoint_state(r, fields);
    checkpoint_load(path, &r->model.params, r->device, &s, training);
    if (training) refuse_longer_past(r, path, s.step);
    r->step = s.step;
    r->position = s.position;
    r->tokens = s.tokens;
    free(s.config);
    log_line("loaded      %s: step %lld, sequence %lld", path, (long long)r->step,
             (long long)r->position);
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
    for (int micro = 0; micro < r->accumulation && !stop_requested; micro++) {
        int64_t first = rank_first + (int64_t)micro * B;
        int64_t token_base = first * T;
        d->upload(d, &r->model.engine.state->token_base, &token_base, sizeof(token_base));
        dataloader_fill(r->train, r->position + first, B, r->inputs, r->targets);
        model_forward_backward(&r->model, r->inputs, r->targets, B, T,
                               (float)(1.0 / (double)r->step_tokens));
    }
    float votes = stop_requested ? 1.0f : 0.0f;
    d->upload(d, &r->model.engine.state->stop_votes, &votes, sizeof(votes));
}

/* The sign of a NaN means nothing, but would be printed. */
static double drop_nan_sign(double v) { return isnan(v) ? NAN : v; }

static void train_step(Run *r) {
    accumulate_gradients(r, schedule_lr(&r->schedule, r->step));
    if (r->comm->size > 1) {
        StepState *state = r->model.engine.state;
        r->comm->all_reduce(r->comm, (float *)r->model.params.grad.data,
                            r->model.params.num_elements, COMM_SUM);
        r->comm->all_reduce(r->comm, &state->loss, 2, COMM_SUM);   // loss and stop_votes
    }
    optimizer_step(&r->model, &r->config);
    model_prepare_weights(&r->model);
    r->device->download(r->device, &r->state, r->model.engine.state, sizeof(r->state));
    r->state.loss = (float)drop_nan_sign(r->state.loss);
    r->state.grad_norm = (float)drop_nan_sign(r->state.grad_norm);
}

/* Norm of one parameter's gradient, through the StepState's own slot. */
static float gradient_norm(Run *r, const Param *p) {
    float norm;
    StepState *state = r->model.engine.state;
    Tensor flat = tensor_view(p->grad.data, DT_F32, 1, tensor_count(p->grad));
    r->ops->global_norm(r->device, &state->grad_norm, flat);
    r->device->download(r->device, &norm, &state->grad_norm, sizeof(norm));
    return norm;
}

/* A tensor that no gradient reaches trains nothing and says nothing: look once, at step one. */
static void check_gradients_arrive(Run *r) {
    int zero = 0;
    for (int i = 0; i < r->model.params.count; i++) {
        const Param *p = &r->model.params.params[i];
        if (gradient_norm(r, p) != 0) continue;
        log_warn("the gradient of %s is zero in the first step of this start", p->name);
        zero++;
    }
    log_line("gradients   reach %d of %d tensors in step %lld", r->model.params.count - zero,
             r->model.params.count, (long long)r->step + 1);
}

static NORETURN void die_diverged(Run *r) {
    const char *culprit = "none: the loss itself is not finite";
    for (int i = 0; i < r->model.params.count; i++) {
        const Param *p = &r->model.params.params[i];
        if (isfinite(gradient_norm(r, p))) continue;
        culprit = p->name;
        break;
    }
    die(EXIT_DIVERGED,
        "step %lld: loss %g, gradient norm %g; first tensor whose gradient is not finite: %s. The "
        "update was not applied. Lower optim.lr or raise sched.warmup_steps; guard.nan=skip goes "
        "on for up to 9 such steps in a row",
        (long long)r->step + 1, r->state.loss, r->state.grad_norm, culprit);
}

/* --- the loop --- */

static int due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

static void validate(Run *r) {
    if (!r->val) return;
    double loss = drop_nan_sign(eval_run(&r->evaluation, &r->model, r->comm));
    metrics_validation(r->metrics, r->step, r->tokens, loss);
}

static void print_sample(Run *r, int index) {
    const Config *c = &r->config;
    SampleOptions options = {c->sample.prompt, c->sample.tokens, c->sample.temperature,
                             c->sample.top_k,  c->seed,          index};
    if (r->tokenizer && r->host->rank == 0) sampler_run(&r->model, r->tokenizer, &options, stdout);
}

/* Trains the next step, checks and reports it. Returns 0 when it was dropped because of a stop. */
static int one_step(Run *r) {
    double started = now_ms();
    int first = !r->device->sealed;
    train_step(r);
    r->device->sealed = 1;
    if (r->state.stop_votes > 0) return 0;
    r->nonfinite_in_a_row = r->state.nonfinite ? r->nonfinite_in_a_row + 1 : 0;
    int allowed = r->config.guard.nan == NAN_STOP ? 0 : MAX_NONFINITE_IN_A_ROW - 1;
    if (r->nonfinite_in_a_row > allowed) die_diverged(r);
    if (first) check_gradients_arrive(r);
    StepRecord record;
    memset(&record, 0, sizeof(record));
    record.step = r->step;
    record.tokens = r->tokens + r->step_tokens;
    record.loss = r->state.loss;
    record.grad_norm = r->state.grad_norm;
    record.lr = r->state.lr;
    record.time_ms = now_ms() - started;
    record.loss_z = guard_z(&r->guard.loss, r->state.loss);
    record.norm_z = guard_z(&r->guard.norm, r->state.grad_norm);
    record.skipped = r->state.skip;
    metrics_step(r->metrics, &record);
    guard_push(&r->guard, r->state.loss, r->state.grad_norm, r->state.skip);
    r->position += r->step_tokens / r->config.batch.seq_len;
    r->tokens += r->step_tokens;
    r->step++;
    return 1;
}

/* Returns 1 when all steps are done, 0 when it was asked to stop. What belongs to step S comes
   before its training, so that a run resumed at S writes the same record. */
static int train_loop(Run *r) {
    const Config *c = &r->config;
    for (;;) {
        int last = r->step == r->steps;
        if (last || due(r->step, c->eval.every)) validate(r);
        if (r->step > 0 && (due(r->step, c->sample.every))) print_sample(r, (int)r->step);
        if (last) return 1;
        int trained = one_step(r);
        if (!trained || r->step == r->steps || due(r->step, c->ckpt.every)) save_checkpoint(r);
        if (!trained) return 0;
    }
}

/* --- verbs --- */

static Run *recorded_run;   // whose run.json die() completes

static void record_death(ExitCode code, const char *message) {
    Run *r = recorded_run;
    recorded_run = NULL;
    // Where all ranks fail at once, rank 0 must come to close the record before another's abort.
    if (r && r->host->rank > 0) usleep(RECORD_GRACE_US);
    if (r) metrics_close(r->metrics, code, message);
    if (r && r->host->size > 1) r->host->abort(r->host, code);
}

/* log.dir/plan.txt: one line per linear and GEMM. */
static void write_plan(Run *r) {
    char *path = format_string("%s/plan.txt", r->config.log.dir);
    char *plan = plan_precision_text(&r->model, 0, r->rates);
    outfile_replace(path, "log.dir", plan, strlen(plan));
    free(plan);
    free(path);
}

static void open_records(Run *r) {
    const Config *c = &r->config;
    MetricsOptions options;
    memset(&options, 0, sizeof(options));
    options.dir = r->comm->rank == 0 ? c->log.dir : "";
    options.reference = c->log.reference;
    options.config = r->config_json;
    options.git_hash = version_git_hash();
    options.build = version_build();
    options.device = r->device->name;
    options.backend = backend_run_name(&r->model);
    options.precision = r->precision_tag;
    options.world_size = r->comm->size;
    options.print_every = (int)c->log.every;
    options.first_step = r->step;
    options.total_steps = r->steps;
    options.tokens_per_step = r->step_tokens;
    options.flops_per_token = model_flops_per_token(&r->model, c->batch.seq_len);
    options.peak_flops = r->device->peak_bf16_flops * r->comm->size;
    r->metrics = metrics_open(&options);
    recorded_run = r;
    set_die_hook(record_death);
    if (r->comm->rank == 0) write_plan(r);
}

static void close_run(Run *r) {
    if (r->val) eval_close(&r->evaluation);
    if (r->val) dataloader_close(r->val);
    if (r->train) dataloader_close(r->train);
    if (r->tokenizer) tokenizer_close(r->tokenizer);
    model_free(&r->model);
    free(r->inputs);
    free(r->targets);
    free(r->staging);
    free(r->config_json);
    free(r->rates);
    if (r->comm != r->host) r->comm->close(r->comm);
    r->device->close(r->device);
    r->host->close(r->host);
    config_free(&r->config);
}

/* Takes the word out of args; returns whether it was there. */
static int take_flag(int *num_args, char **args, const char *flag) {
    int kept = 0, found = 0;
    for (int i = 0; i < *num_args; i++) {
        if (strcmp(args[i], flag) == 0) found = 1;
        else args[kept++] = args[i];
    }
    *num_args = kept;
    return found;
}

/* What only training needs of the config: data, a length, a tokenizer for samples on the way. */
static void plan_training(Run *r) {
    const Config *c = &r->config;
    if (!r->train) {
        die(EXIT_CONFIG, "data.train is not set: name the shards that data/prepare_text.py wrote, "
                         "data.train=DIR/train_*.bin");
    }
    if (c->sample.every > 0 && !r->tokenizer) {
        die(EXIT_CONFIG,
            "sample.every is %lld, but data.tokenizer is not set: name the tokenizer.vocab beside "
            "the shards, or set sample.every=0",
            (long long)c->sample.every);
    }
    r->steps = config_steps(c, r->comm->size, dataloader_num_sequences(r->train));
    Schedule schedule = {c->sched.type,       c->optim.lr,         c->sched.warmup_steps,
                         c->sched.decay_frac, c->sched.final_frac, r->steps};
    r->schedule = schedule;
    r->guard = guard_make(c->guard.skip_loss_z, c->guard.skip_grad_z);
}

/* Two runs in one directory would mix their records; what a killed run left half done goes. */
static void claim_directories(const Config *c) {
    make_directory(c->log.dir, "log.dir");
    outfile_lock_directory(c->log.dir, "log.dir");
    make_directory(c->ckpt.dir, "ckpt.dir");
    outfile_lock_directory(c->ckpt.dir, "ckpt.dir");
    checkpoint_recover(c->ckpt.dir);
}

/* What training checks before its first step and can check without leaving a file. */
static void rehearse(Run *r) {
    const Config *c = &r->config;
    fit_model(r, 1);
    char *checkpoint = resume_find(c, 1);
    settle_gemms(r, checkpoint);
    print_plan(r);
    if (checkpoint) rehearse_load(r, checkpoint);
    free(checkpoint);
    metrics_check(c->log.dir, c->log.reference);
    outfile_check_directory(c->ckpt.dir, "ckpt.dir");
}

static int verb_train(int num_args, char **args) {
    int dry_run = take_flag(&num_args, args, "--dry-run");
    Run run, *r = &run;
    open_run(r, num_args, args, READ_TRAIN | READ_VAL | READ_TOKENIZER);
    plan_training(r);
    const Config *c = &r->config;
    if (dry_run) {
        rehearse(r);
        close_run(r);
        return EXIT_DONE;
    }
    size_t batch_bytes = (size_t)c->batch.micro * (size_t)c->batch.seq_len * sizeof(int32_t);
    r->inputs = (int32_t *)xmalloc(batch_bytes);
    r->targets = (int32_t *)xmalloc(batch_bytes);
    r->staging = xmalloc(STAGING_BYTES);
    fit_model(r, 1);
    if (r->host->rank == 0) claim_directories(c);
    r->host->barrier(r->host);
    char *checkpoint = resume_find(c, 1);
    settle_gemms(r, checkpoint);
    model_place(&r->model, c, r->device, r->ops, 1);
    print_plan(r);
    if (checkpoint) load_checkpoint(r, checkpoint, 1);
    else model_init(&r->model, c->seed);
    free(checkpoint);
    model_prepare_weights(&r->model);
    open_records(r);
    signal(SIGINT, request_stop);
    signal(SIGTERM, request_stop);
    int finished = train_loop(r);
    ExitCode code = finished ? EXIT_DONE : EXIT_INTERRUPTED;
    if (!finished)
        log_line("interrupted at step %lld; the same command%s goes on from there",
                 (long long)r->step,
                 strcmp(c->ckpt.resume, "auto") == 0 ? "" : " with ckpt.resume=auto");
    recorded_run = NULL;
    metrics_close(r->metrics, code, finished ? "finished" : "interrupted");
    close_run(r);
    return code;
}

static int verb_plan(int num_args, char **args) {
    Run run;
    open_run(&run, num_args, args, READ_TRAIN | READ_VAL | READ_TOKENIZER | FOR_PLAN);
    const Config *c = &run.config;
    int has_length = c->train.steps > 0 || c->train.tokens > 0 || c->train.epochs > 0;
    if (run.train && has_length)
        run.steps = config_steps(c, run.comm->size, dataloader_num_sequences(run.train));
    model_measure(&run.model, &run.config, run.device, run.ops, 1);
    settle_gemms(&run, NULL);
    print_plan(&run);
    char *prediction = predict_text(&run.model, c, run.comm->size, run.steps);
    log_line("%s", prediction);
    free(prediction);
    close_run(&run);
    return EXIT_DONE;
}

/* The model of a checkpoint, for evaluation. */
static void load_trained(Run *r) {
    fit_model(r, 0);
    model_place(&r->model, &r->config, r->device, r->ops, 0);
    char *checkpoint = resume_find(&r->config, 0);
    if (!checkpoint) {
        die(EXIT_DATA, "there is no checkpoint in ckpt.dir %s; set ckpt.resume to the path of one",
            r->config.ckpt.dir);
    }
    load_checkpoint(r, checkpoint, 0);
    char *algorithms = checkpoint_gemm_algorithms(checkpoint);
    if (algorithms) r->ops->gemm_choices_load(r->device, algorithms);
    free(algorithms);
    free(checkpoint);
    model_prepare_weights(&r->model);
}

static int verb_eval(int num_args, char **args) {
    Run run;
    open_run(&run, num_args, args, READ_VAL);
    if (!run.val) {
        die(EXIT_CONFIG,
            "data.val is not set: name the shards to evaluate on, data.val=DIR/val_*.bin");
    }
    load_trained(&run);
    double loss = eval_run(&run.evaluation, &run.model, run.comm);
    log_line("step %lld | val loss %.6f | %lld tokens | %s", (long long)run.step, loss,
             (long long)(run.evaluation.sequences * run.config.batch.seq_len), run.precision_tag);
    close_run(&run);
    return EXIT_DONE;
}

static int verb_sample(int num_args, char **args) {
    Run run;
    open_run(&run, num_args, args, READ_TOKENIZER);
    if (!run.tokenizer)
        die(EXIT_CONFIG, "data.tokenizer is not set: name the tokenizer.vocab beside the shards");
    load_trained(&run);
    for (int i = 0; i < run.config.sample.count; i++) print_sample(&run, i);
    close_run(&run);
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
    SelftestOptions options = selftest_options(r, 1);
    SelftestReport report = selftest_run(&options);
    log_line("%d passed, %d failed", report.passed, report.failed);
    char *tuple = selftest_tuple(&options);
    selftest_record(tuple, &report);
    free(tuple);
    free(report.table);
    close_run(r);
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

typedef struct {
    const char *name;
    int (*run)(int num_args, char **args);
    const char *summary;
} Verb;

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
};

static void print_usage(FILE *out) {
    fprintf(out, "usage: train_gpt_nvfp4 [verb] config.json [more.json ...] [key=value ...]\n");
    for (int i = 0; i < ARRAY_LEN(verbs); i++)
        fprintf(out, "  %-8s %s\n", verbs[i].name, verbs[i].summary);
    fprintf(out, "exit codes: 0 done, 2 config, 3 data or disk, 4 device, 5 out of memory, "
                 "6 diverged, 7 hang, 130 interrupted; --version tells which program this is\n");
}

static const Verb *find_verb(const char *name) {
    for (int i = 0; i < ARRAY_LEN(verbs); i++)
        if (strcmp(name, verbs[i].name) == 0) return &verbs[i];
    return NULL;
}

static int verb_help(int num_args, char **args) {
    if (take_flag(&num_args, args, "--markdown")) {
        if (num_args > 0) die(EXIT_CONFIG, "help --markdown takes no name, and there is %s", *args);
        config_help_markdown();
        return EXIT_DONE;
    }
    if (num_args == 0) print_usage(stdout);
    if (num_args == 0) config_help(NULL);
    for (int i = 0; i < num_args; i++) {
        if (i > 0) printf("\n");
        const Verb *verb = find_verb(args[i]);
        if (verb) printf("verb %s: %s\n", verb->name, verb->summary);
        if (!verb || config_help_knows(args[i])) config_help(args[i]);
    }
    return EXIT_DONE;
}

/* A first word that is neither a verb nor a config is most likely a misspelled verb. */
static void refuse_unknown_verb(const char *word) {
    if (word[0] == '-' || strpbrk(word, "=./") || file_exists(word)) return;
    die(EXIT_CONFIG,
        "\"%s\" is neither a verb nor a file; verbs are train, eval, sample, plan, selftest, "
        "ckpt, help",
        word);
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
    if (take_flag(&num_args, args, "--help") || take_flag(&num_args, args, "-h")) {
        print_usage(stdout);
        return finish_output(EXIT_DONE);
    }
    if (take_flag(&num_args, args, "--version")) {
        printf("train_gpt_nvfp4 %s, %s\n", version_git_hash(), version_build());
        return finish_output(EXIT_DONE);
    }
    if (num_args == 0) {
        print_usage(stderr);
        return EXIT_CONFIG;
    }
    const Verb *verb = find_verb(args[0]);
    if (!verb) refuse_unknown_verb(args[0]);
    if (!verb || verb->run == verb_train) return verb_train(num_args - !!verb, args + !!verb);
    return finish_output(verb->run(num_args - 1, args + 1));
}
