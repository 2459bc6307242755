/* run -- the parts of a run, opened and closed; see run.h. What it says at its start is in
   run_start.c. */
#include "run.h"
#include "run_idle.h"
#include "run_phases.h"

#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "common.h"
#include "plan.h"

void run_configure(Run *r, int num_args, char **args) {
    memset(r, 0, sizeof(*r));
    r->saved_step = -1;
    config_refuse_flags(num_args, args);
    config_parse(&r->config, num_args, args);
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

void run_open(Run *r, int reads) {
    const Config *c = &r->config;
    if (c->preset_changes) {
        log_warn("model.preset %s is not the whole model: keys of files and words go over it\n%s",
                 c->model.preset, c->preset_changes);
    }
    int planned = reads & FOR_PLAN && c->plan.ranks > 0;
    r->ranks = planned ? c->plan.ranks : r->comm->size;
    r->accumulation = config_accumulation(c, r->ranks);
    r->step_tokens = config_step_tokens(c, r->ranks);
    if (reads & READ_TRAIN && c->data.train.count > 0)
        r->train = open_data(c, &c->data.train, c->data.shuffle, "data.train");
    if (reads & READ_VAL) open_val(r);
    if (reads & READ_TOKENIZER) open_tokenizer(r);
    model_declare(&r->model, c);
    model_split(&r->model, c, r->comm->rank, r->ranks);
    if (reads & READ_TRAIN) r->telemetry = telemetry_open(c, &r->model);
    (reads & FOR_PLAN ? backend_choose_for_plan : backend_choose)(&r->model, c, r->device);
    plan_precision_tag(&r->model, c, r->precision_tag, sizeof(r->precision_tag));
    r->config_json = config_to_json(c);
}

void run_take_length(Run *r) {
    const Config *c = &r->config;
    r->steps = config_steps(c, r->ranks, r->train ? dataloader_num_sequences(r->train) : 0);
    Schedule schedule = {c->sched.type,       c->optim.lr,         c->sched.warmup_steps,
                         c->sched.decay_frac, c->sched.final_frac, r->steps};
    r->schedule = schedule;
    run_phases_resolve(r);
}

void run_plan(Run *r) {
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
    parallel_refuse(c, r->comm->size);
    run_take_length(r);
    run_check_idle(r);
    r->guard = guard_make(c->guard.skip_loss_z, c->guard.skip_grad_z);
}

void run_take_buffers(Run *r) {
    const Config *c = &r->config;
    parallel_open(&r->parallel, r->comm, &r->model, c);
    size_t batch_bytes = (size_t)c->batch.micro * (size_t)c->batch.seq_len * sizeof(int32_t);
    r->inputs = (int32_t *)xmalloc(batch_bytes);
    r->targets = (int32_t *)xmalloc(batch_bytes);
    r->staging = xmalloc(RUN_STAGING_BYTES);
}

void run_release(Run *r) {
    if (r->val) eval_close(&r->evaluation);
    if (r->val) dataloader_close(r->val);
    if (r->train) dataloader_close(r->train);
    if (r->tokenizer) tokenizer_close(r->tokenizer);
    telemetry_close(r->telemetry);
    parallel_close(&r->parallel);
    model_free(&r->model);
    free(r->inputs);
    free(r->targets);
    free(r->staging);
    free(r->config_json);
    free(r->phase_starts);
    free(r->rates);
    if (r->comm != r->host) r->comm->close(r->comm);
    r->device->close(r->device);
    config_free(&r->config);
}

void run_close(Run *r) {
    run_release(r);
    r->host->close(r->host);
}
