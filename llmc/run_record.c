/* run_record -- the directories that a training run writes; see run_record.h. */
#include "run_record.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend.h"
#include "checkpoint.h"
#include "outfile.h"
#include "plan.h"
#include "run_phases.h"
#include "version.h"

enum { RECORD_GRACE_US = 500000 };

void run_claim_directories(Run *r) {
    const Config *c = &r->config;
    if (r->host->rank == 0) {
        make_directory(c->log.dir, "log.dir");
        outfile_lock_directory(c->log.dir, "log.dir");
        make_directory(c->ckpt.dir, "ckpt.dir");
        outfile_lock_directory(c->ckpt.dir, "ckpt.dir");
        checkpoint_recover(c->ckpt.dir);
    }
    r->host->barrier(r->host);
}

void run_check_directories(const Run *r) {
    const Config *c = &r->config;
    metrics_check(c->log.dir, c->log.reference, r->steps * r->step_tokens);
    outfile_check_directory(c->ckpt.dir, "ckpt.dir");
}

static Run *recorded_run;   // whose run.json die() completes
static DieHook end_ranks;   // what die() has to do after that

static void record_death(ExitCode code, const char *message) {
    Run *r = recorded_run;
    recorded_run = NULL;
    // Where all ranks fail at once, rank 0 must come to close the record before another's abort.
    if (r && r->host->rank > 0) usleep(RECORD_GRACE_US);
    if (r) metrics_close(r->metrics, code, message);
    if (end_ranks) end_ranks(code, message);
}

/* log.dir/plan.txt: a line per linear and GEMM of the first phase, then what later ones change. A
   resumed run is in any of them. */
static void write_plan(Run *r) {
    char *path = format_string("%s/plan.txt", r->config.log.dir);
    int now = r->model.phase;
    model_take_plans(&r->model, 0);
    char *first = plan_precision_text(&r->model, 0, r->rates), *later = run_phases_text(r);
    model_take_plans(&r->model, now);
    char *plan = format_string("%s%s", first, later);
    outfile_replace(path, "log.dir", plan, strlen(plan));
    free(plan);
    free(later);
    free(first);
    free(path);
}

void run_record_open(Run *r) {
    const Config *c = &r->config;
    MetricsOptions options = {
        .dir = r->comm->rank == 0 ? c->log.dir : "",
        .reference = c->log.reference,
        .reference_warn = c->log.reference_warn,
        .config = r->config_json,
        .git_hash = version_git_hash(),
        .build = version_build(),
        .device = r->device->name,
        .backend = backend_run_name(&r->model),
        .precision = r->precision_tag,
        .world_size = r->comm->size,
        .print_every = (int)c->log.every,
        .first_step = r->step,
        .total_steps = r->steps,
        .tokens_per_step = r->step_tokens,
        .flops_per_token = model_flops_per_token(&r->model, c->batch.seq_len),
        .peak_flops = r->device->peak_bf16_flops * r->comm->size,
    };
    r->metrics = metrics_open(&options);
    recorded_run = r;
    end_ranks = set_die_hook(record_death);
    if (r->comm->rank == 0) write_plan(r);
}

void run_record_close(Run *r, ExitCode code, const char *reason) {
    recorded_run = NULL;
    set_die_hook(end_ranks);
    metrics_close(r->metrics, code, reason);
}
