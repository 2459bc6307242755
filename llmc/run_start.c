/* run_start -- before the first step of a run: does the device compute what it should, does the
   model fit, by which algorithms; and the messages that say it. Declared in run.h. */
#include <stdlib.h>

#include "backend.h"
#include "checkpoint.h"
#include "common.h"
#include "device_facts.h"
#include "gemm_cache.h"
#include "plan.h"
#include "run.h"
#include "run_phases.h"
#include "selftest_start.h"
#include "version.h"

static const double MIB = 1024.0 * 1024.0;

static int64_t micro_batch_tokens(const Config *c) {
    return (int64_t)c->batch.micro * c->batch.seq_len;
}

SelftestOptions run_selftest_options(Run *r, int verbose) {
    SelftestOptions options = {r->device,
                               r->ops,
                               r->model.engine.fp4,
                               &r->model,
                               micro_batch_tokens(&r->config),
                               verbose,
                               r->model.engine.fp8};
    return options;
}

void run_measure(Run *r, int training) {
    model_measure(&r->model, &r->config, r->device, r->ops, training);
    if (r->telemetry) telemetry_measure(r->telemetry, &r->model);
}

/* What the run needs, of operands as the device's self-test leaves them. */
static void measure_tested(Run *r, int training) {
    run_measure(r, training);
    SelftestOptions options = run_selftest_options(r, 0);
    int asks = r->device->kind == DEVICE_CUDA && r->model.quantized;
    if (!asks || !selftest_at_start(&options, &r->config, r->host)) return;
    r->model.engine.fp4 = FP4_EMULATED;
    r->model.engine.fp8 = 0;
    plan_precision_tag(&r->model, &r->config, r->precision_tag, sizeof(r->precision_tag));
    run_measure(r, training);   // of other operands
}

/* NULL, or what the device lacks (caller frees). */
static char *lack_of_memory(const Run *r) {
    size_t free_bytes, total_bytes;
    r->device->memory(r->device, &free_bytes, &total_bytes);
    if (plan_memory_bytes(&r->model) <= free_bytes) return NULL;
    return format_string("the run needs %.1f MiB on %s, %.1f MiB are free",
                         (double)plan_memory_bytes(&r->model) / MIB, r->device->name,
                         (double)free_bytes / MIB);
}

static const char LESS_MEMORY[] = "lower batch.micro, eval.micro or batch.seq_len, set "
                                  "memory.recompute, or raise memory.lmhead_chunks";

void run_fit(Run *r, int training) {
    measure_tested(r, training);
    char *lack = lack_of_memory(r);
    if (lack) die(EXIT_OOM, "%s:\n%s%s", lack, plan_memory_text(&r->model), LESS_MEMORY);
}

void run_rehearse_fit(Run *r) {
    int is_meant = r->device->kind == DEVICE_CUDA || r->config.device == DEVICE_CHOICE_CPU;
    if (is_meant) {
        run_fit(r, 1);
        return;
    }
    measure_tested(r, 1);
    char *lack = lack_of_memory(r);
    if (lack) {
        log_warn("%s: training here would end with exit code %d; elsewhere it may fit, or %s", lack,
                 (int)EXIT_OOM, LESS_MEMORY);
    }
    free(lack);
}

void run_settle_gemms(Run *r, const char *checkpoint) {
    char *algorithms = checkpoint ? checkpoint_gemm_algorithms(checkpoint) : NULL;
    // Of later phases the algorithms; rates are shown of the first.
    for (int phase = r->model.num_phases - 1; phase >= 0; phase--) {
        model_set_phase(&r->model, phase);
        free(r->rates);
        r->rates =
            gemm_cache_prepare(&r->model, micro_batch_tokens(&r->config), r->host, algorithms);
    }
    free(algorithms);
}

/* What belongs to no device. */
static void print_run(Run *r) {
    const Config *c = &r->config;
    char validation[128] = "no data.val: no validation", ranks[640];
    if (r->val) eval_describe(&r->evaluation, c, validation, sizeof(validation));
    log_line("model       %lld parameters, %lld in the blocks' matrices",
             (long long)param_table_true_count(&r->model.params),
             (long long)model_matrix_weights(&r->model));
    log_line("step        %lld tokens = %d sequences of %d x %d micro-steps x %d ranks; %.3g FLOPs",
             (long long)r->step_tokens, c->batch.micro, c->batch.seq_len, r->accumulation, r->ranks,
             model_flops_per_token(&r->model, c->batch.seq_len) * (double)r->step_tokens);
    if (*parallel_describe(&r->model, c, r->accumulation, ranks, sizeof(ranks)))
        log_line("parallel    %s", ranks);
    if (r->steps > 0) {
        log_line("run         %lld steps, %.4g tokens", (long long)r->steps,
                 (double)r->steps * (double)r->step_tokens);
    }
    log_line("validation  %s", validation);
}

/* Of the engine's device; frees `memory`. */
static void print_precision(Run *r, const GemmRate *rates, char *memory) {
    char *precision = plan_precision_text(&r->model, 1, rates), *phases = run_phases_text(r);
    log_line("precision   %s: %s%s%s", r->precision_tag, precision, phases, memory);
    free(phases);
    free(precision);
    free(memory);
}

void run_print_plan(Run *r) {
    const Config *c = &r->config;
    log_line("%s", version_build());
    log_line("device      %s, %d %s; GEMM %s, attention %s%s; ranks %d (%s)", r->device->name,
             r->device->num_threads, r->device->kind == DEVICE_CPU ? "threads" : "multiprocessors",
             r->device->kind == DEVICE_CPU ? sgemm_name : "cuBLASLt", r->ops->attention_name(),
             c->memory.deterministic ? "" : " in any order", r->comm->size, r->comm->name);
    print_run(r);
    print_precision(r, r->rates, plan_memory_text(&r->model));
}

int run_plans_elsewhere(const Run *r) {
    DeviceModel named = r->config.plan.device;
    return named != DEVICE_MODEL_AUTO && named != device_model_find(r->device->name);
}

void run_print_plan_there(Run *r) {
    Device there = backend_device(r->config.plan.device);
    const Engine at_hand = r->model.engine;
    backend_set_engine(&r->model, &r->config, &there);
    model_measure(&r->model, &r->config, &there, r->ops, 1);
    plan_precision_tag(&r->model, &r->config, r->precision_tag, sizeof(r->precision_tag));
    log_line("%s", version_build());
    log_line("device      %s, which is not at hand (plan.device): %d multiprocessors, %.0f GB",
             there.name, there.num_threads, device_facts[r->config.plan.device].memory * 1e-9);
    print_run(r);
    print_precision(r, NULL, plan_memory_there_text(&r->model));
    r->model.engine.fp4 = at_hand.fp4;
    r->model.engine.fp8 = at_hand.fp8;
    r->model.engine.hardware_rounding = at_hand.hardware_rounding;
    model_measure(&r->model, &r->config, r->device, r->ops, 1);
}
