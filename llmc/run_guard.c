/* run_guard -- counts skipped steps, and finds where one that is not finite began; see
   run_guard.h. */
#include "run_guard.h"

#include <cjson/cJSON.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "optimizer.h"
#include "outfile.h"
#include "run_phases.h"

enum { MAX_REPLAYS = 8, BF16_EXPONENT = 0x7F80 };
static const uint32_t F32_EXPONENT = 0x7F800000u;

/* --- one micro-batch, looked at while it is computed --- */

/* What was first in a pass; -1: everything was finite. */
typedef struct {
    Run *run;
    int64_t tokens;
    int branch;     // the residual stream is not finite before this one; num_branches: the head
    int gradient;   // index in the ParamTable
} Look;

static int chunk_is_finite(const void *data, size_t bytes, DType dtype) {
    for (size_t i = 0; dtype == DT_BF16 && i < bytes / 2; i++)
        if ((((const uint16_t *)data)[i] & BF16_EXPONENT) == BF16_EXPONENT) return 0;
    for (size_t i = 0; dtype == DT_F32 && i < bytes / 4; i++)
        if ((((const uint32_t *)data)[i] & F32_EXPONENT) == F32_EXPONENT) return 0;
    return 1;
}

static int is_finite(Run *r, Tensor t) {
    size_t bytes = tensor_bytes(t);
    for (size_t at = 0; at < bytes; at += RUN_STAGING_BYTES) {
        size_t chunk = bytes - at < RUN_STAGING_BYTES ? bytes - at : RUN_STAGING_BYTES;
        r->device->download(r->device, r->staging, (const char *)t.data + at, chunk);
        if (!chunk_is_finite(r->staging, chunk, t.dtype)) return 0;
    }
    return 1;
}

static void look_at_residual(Look *look, int branch) {
    Model *m = &look->run->model;
    if (look->branch >= 0) return;
    if (!is_finite(look->run, tensor_rows(m->residual[branch], 0, look->tokens)))
        look->branch = branch;
}

static void look_at_gradient(Look *look, int index) {
    if (index < 0 || look->gradient >= 0) return;
    if (!is_finite(look->run, look->run->model.params.params[index].grad)) look->gradient = index;
}

/* The ranks' own observer goes on beside this one: what it sends is sent by all. */
static const PassObserver *of_ranks(const Look *look) {
    const Run *r = look->run;
    return r->comm->size > 1 ? &r->parallel.observer : NULL;
}

static void on_forward(void *self, int branch) {
    Look *look = (Look *)self;
    if (of_ranks(look)) of_ranks(look)->forward(of_ranks(look)->self, branch);
    look_at_residual(look, branch);
}

static void on_backward(void *self, int stage) {
    Look *look = (Look *)self;
    if (stage == look->run->model.num_branches) look_at_residual(look, stage);
    if (of_ranks(look)) of_ranks(look)->backward(of_ranks(look)->self, stage);
}

/* Before the ranks' observer, which sums up what it sends. */
static void on_done(void *self, int stage) {
    Look *look = (Look *)self;
    const Model *m = &look->run->model;
    if (stage == m->num_branches) {
        const int order[] = {m->head, m->final_norm_weight, m->final_norm_bias};
        for (int i = 0; i < ARRAY_LEN(order); i++) look_at_gradient(look, order[i]);
    } else if (stage >= 0) {
        const Block *b = &m->blocks[stage];
        const int order[] = {b->smooth ? b->out_bias : b->out.bias,
                             b->out.weight,
                             b->in.bias,
                             b->in.weight,
                             b->norm_weight,
                             b->norm_bias};
        for (int i = 0; i < ARRAY_LEN(order); i++) look_at_gradient(look, order[i]);
    } else {
        look_at_gradient(look, m->embed);
        look_at_gradient(look, m->positions);
    }
    if (of_ranks(look)) of_ranks(look)->done(of_ranks(look)->self, stage);
}

/* --- all micro-batches of all ranks --- */

typedef struct {
    int rank, micro;        // -1: every micro-batch by itself is finite
    int branch, gradient;   // as Look's
} Origin;

static int64_t first_sequence(const Run *r, int rank, int micro) {
    return r->position + ((int64_t)rank * r->accumulation + micro) * r->config.batch.micro;
}

/* Forward and backward of one of this rank's micro-batches; 1 where the loss is finite. */
static int look_at(Run *r, int micro, Look *look) {
    const Config *c = &r->config;
    int B = c->batch.micro, T = c->batch.seq_len;
    int64_t first = first_sequence(r, r->comm->rank, micro);
    StepState state = optimizer_state(c, r->step, 0, INFINITY, INFINITY);
    state.token_base = (first - r->position) * T;
    r->device->upload(r->device, r->model.engine.state, &state, sizeof(state));
    model_zero_gradients(&r->model);
    dataloader_fill(r->train, first, B, r->inputs, r->targets);
    const PassObserver observer = {look, on_forward, on_backward, on_done, NULL};
    const PassObserver *before = r->model.observer;
    r->model.observer = &observer;
    model_pass(&r->model, r->inputs, r->targets, B, T, (float)(1.0 / (double)r->step_tokens));
    r->model.observer = before;
    r->device->download(r->device, &state, r->model.engine.state, sizeof(state));
    return isfinite(state.loss);
}

/* The first of this rank's micro-batches that is not finite. All are computed, as on all ranks. */
static Origin find_own(Run *r) {
    Origin own = {r->comm->rank, -1, -1, -1};
    for (int micro = 0; micro < r->accumulation; micro++) {
        Look look = {r, (int64_t)r->config.batch.micro * r->config.batch.seq_len, -1, -1};
        int is_bad = !look_at(r, micro, &look) || look.branch >= 0 || look.gradient >= 0;
        if (!is_bad || own.micro >= 0) continue;
        own.micro = micro;
        own.branch = look.branch;
        own.gradient = look.gradient;
    }
    return own;
}

/* Of all ranks the earliest micro-batch, and of these the lowest rank's. */
static Origin first_of_ranks(Run *r, Origin own) {
    int size = r->host->size;
    Origin first = {-1, -1, -1, -1};
    Origin *all = (Origin *)xmalloc((size_t)size * sizeof(Origin));
    all[own.rank] = own;
    if (size > 1) comm_gather_blocks(r->host, all, sizeof(Origin));
    for (int rank = 0; rank < size; rank++) {
        int micro = all[rank].micro;
        if (micro >= 0 && (first.micro < 0 || micro < first.micro)) first = all[rank];
    }
    free(all);
    return first;
}

/* The step once more, with its own operands of the weights; afterwards all is as it was. */
static Origin find_origin(Run *r) {
    Model *m = &r->model;
    int phase = m->phase;
    StepState state = r->state;
    model_set_phase(m, run_phases_at(r, r->step));
    StepState again = optimizer_state(&r->config, r->step, 0, INFINITY, INFINITY);
    r->device->upload(r->device, m->engine.state, &again, sizeof(again));
    model_prepare_weights(m);
    Origin origin = first_of_ranks(r, find_own(r));
    model_set_phase(m, phase);
    r->device->upload(r->device, m->engine.state, &state, sizeof(state));
    model_prepare_weights(m);
    return origin;
}

/* --- what is said and kept of it --- */

static const char *forward_name(const Run *r, const Origin *o) {
    if (o->branch < 0) return NULL;
    return o->branch == 0 ? "the token vectors" : r->model.blocks[o->branch - 1].out.name;
}

static const char *gradient_name(const Run *r, const Origin *o) {
    return o->gradient < 0 ? NULL : r->model.params.params[o->gradient].name;
}

/* Caller frees. */
static char *describe(const Run *r, const Origin *o) {
    if (o->micro < 0 && isfinite(r->state.loss) && isfinite(r->state.grad_norm))
        return xstrdup("The gradient is finite, but so large that the squares which the optimizer "
                       "averages may not be");
    if (o->micro < 0)
        return xstrdup("Computed again, each micro-batch by itself is finite: their sum is too "
                       "large, or the hardware erred");
    const char *forward = forward_name(r, o), *gradient = gradient_name(r, o);
    int64_t first = first_sequence(r, o->rank, o->micro);
    return format_string(
        "It begins in rank %d, micro-batch %d of %d (sequences %lld to %lld of the data order): "
        "%s%s; first gradient in backward's order that is not finite: %s",
        o->rank, o->micro + 1, r->accumulation, (long long)first,
        (long long)first + r->config.batch.micro - 1,
        forward ? "the residual stream is not finite behind " : "the residual stream is finite",
        forward ? forward : "", gradient ? gradient : "none");
}

static void add_text(cJSON *json, const char *key, const char *text) {
    if (text) cJSON_AddStringToObject(json, key, text);
    else cJSON_AddNullToObject(json, key);
}

static void add_number(cJSON *json, const char *key, double value) {
    if (isfinite(value)) cJSON_AddNumberToObject(json, key, value);
    else cJSON_AddNullToObject(json, key);
}

static void add_sequences(Run *r, cJSON *json, int64_t first) {
    int T = r->config.batch.seq_len;
    cJSON *rows = cJSON_AddArrayToObject(json, "sequences");
    dataloader_fill(r->train, first, r->config.batch.micro, r->inputs, r->targets);
    for (int b = 0; b < r->config.batch.micro; b++) {
        cJSON *row = cJSON_CreateIntArray(r->inputs + (int64_t)b * T, T);
        cJSON_AddItemToArray(row, cJSON_CreateNumber(r->targets[(int64_t)b * T + T - 1]));
        cJSON_AddItemToArray(rows, row);
    }
}

static void write_replay(Run *r, const Origin *o, const char *path) {
    const Config *c = &r->config;
    cJSON *json = cJSON_CreateObject();
    char *seed = format_string("%llu", (unsigned long long)c->seed);
    char *config = format_string("%s/config.resolved.json", c->log.dir);
    char *checkpoint = r->saved_step < 0
                           ? NULL
                           : format_string("%s/step_%08lld", c->ckpt.dir, (long long)r->saved_step);
    cJSON_AddNumberToObject(json, "step", (double)r->step);
    cJSON_AddNumberToObject(json, "position", (double)r->position);
    cJSON_AddNumberToObject(json, "tokens", (double)r->tokens);
    cJSON_AddStringToObject(json, "seed", seed);
    add_number(json, "train_loss", r->state.loss);
    add_number(json, "grad_norm", r->state.grad_norm);
    add_number(json, "lr", r->state.lr);
    cJSON_AddNumberToObject(json, "world_size", r->comm->size);
    cJSON_AddNumberToObject(json, "accumulation", r->accumulation);
    add_text(json, "config", config);
    add_text(json, "checkpoint", checkpoint);
    add_text(json, "forward", forward_name(r, o));
    add_text(json, "gradient", gradient_name(r, o));
    add_number(json, "rank", o->micro < 0 ? NAN : o->rank);
    add_number(json, "micro_batch", o->micro < 0 ? NAN : o->micro);
    if (o->micro >= 0) {
        int64_t first = first_sequence(r, o->rank, o->micro);
        cJSON_AddNumberToObject(json, "sequence", (double)first);
        add_sequences(r, json, first);
    }
    char *text = cJSON_PrintUnformatted(json);
    outfile_replace(path, "log.dir", text, strlen(text));
    cJSON_free(text);
    cJSON_Delete(json);
    free(checkpoint);
    free(config);
    free(seed);
}

/* Rank 0 looks, all ranks follow: the search is one of all. */
static int has_room_for_replay(const Run *r, const char *path) {
    float room = 1;
    if (r->host->rank == 0) {
        glob_t found;
        char *pattern = format_string("%s/replay_step_*.json", r->config.log.dir);
        int any = glob(pattern, 0, NULL, &found) == 0;
        room = !any || found.gl_pathc < MAX_REPLAYS || file_exists(path);
        if (any) globfree(&found);
        free(pattern);
    }
    if (r->host->size > 1) r->host->broadcast(r->host, &room, DT_F32, 1);
    return room > 0;
}

/* What is known of the step, in sentences (caller frees). */
static char *explain_nonfinite(Run *r) {
    char *path = format_string("%s/replay_step_%08lld.json", r->config.log.dir, (long long)r->step);
    char *text;
    if (has_room_for_replay(r, path)) {
        Origin origin = find_origin(r);
        if (r->host->rank == 0) write_replay(r, &origin, path);
        char *where = describe(r, &origin);
        text = format_string("%s. scripts/replay.py %s computes the step again.", where, path);
        free(where);
    } else {
        text = format_string("Where it began was not looked for: log.dir has %d replay files, and "
                             "no more are kept.",
                             MAX_REPLAYS);
    }
    free(path);
    return text;
}

/* --- the decision --- */

/* With guard.nan=skip only after guard.max_skips skipped steps in a row. */
static void die_nonfinite(const Run *r, const char *explained) NORETURN;
static void die_nonfinite(const Run *r, const char *explained) {
    int max_skips = r->config.guard.max_skips;
    char *advice =
        r->config.guard.nan == NAN_STOP
            ? format_string(
                  "Lower optim.lr or raise sched.warmup_steps; guard.nan=skip goes on for "
                  "up to guard.max_skips - 1 = %d skipped steps in a row",
                  max_skips - 1)
            : format_string(
                  "It is number %d of the skipped steps in a row, and guard.max_skips is "
                  "%d: the run does not recover by itself. Go on from an older checkpoint "
                  "(ckpt.resume=PATH) with a lower optim.lr, or begin again with more "
                  "sched.warmup_steps",
                  (int)r->guard.skips + 1, max_skips);
    die(EXIT_DIVERGED, "step %lld: loss %g, gradient norm %g. %s The update was not applied. %s",
        (long long)r->step + 1, r->state.loss, r->state.grad_norm, explained, advice);
}

void run_guard_step(Run *r) {
    int in_a_row = r->state.skip ? (int)r->guard.skips + 1 : 0;
    if (in_a_row == 0) return;
    int is_last = in_a_row >= r->config.guard.max_skips;
    if (r->state.nonfinite) {
        char *explained = explain_nonfinite(r);
        if (is_last || r->config.guard.nan == NAN_STOP) die_nonfinite(r, explained);
        log_warn("step %lld is skipped, %d in a row: loss %g, gradient norm %g. %s",
                 (long long)r->step + 1, in_a_row, r->state.loss, r->state.grad_norm, explained);
        free(explained);
        return;
    }
    if (!is_last) return;
    die(EXIT_DIVERGED,
        "step %lld: loss %g, gradient norm %g; the last %d steps were skipped by "
        "guard.skip_loss_z or guard.skip_grad_z (guard.max_skips is %d): that is no spike, the run "
        "has moved. Go on from an older checkpoint with a lower optim.lr, or raise the limits",
        (long long)r->step + 1, r->state.loss, r->state.grad_norm, in_a_row,
        r->config.guard.max_skips);
}
