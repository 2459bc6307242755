/* parallel -- gradients of several ranks, and the step that all take together; see parallel.h. */
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "optimizer.h"
#include "parallel_parts.h"

/* --- what cannot be had --- */

void parallel_refuse(const Config *c, int ranks) {
    const struct {
        int level, wanted;
        const char *key, *why;
    } rows[] = {
        {1, c->precision.osci_reset.start > 0, "precision.osci_reset.start",
         "looks at whole master weights"},
        {2, c->log.telemetry_every > 0, "log.telemetry_every",
         "looks at the whole gradient of a micro-batch"},
        {3, c->sample.every > 0, "sample.every", "runs rank 0 alone, with all weights"},
        {3, c->eval.also_bf16, "eval.also_bf16", "multiplies whole weights in BF16"},
    };
    for (int i = 0; ranks > 1 && i < ARRAY_LEN(rows); i++) {
        if (!rows[i].wanted || c->parallel.zero < rows[i].level) continue;
        die(EXIT_CONFIG,
            "config: parallel.zero is %d with %d ranks, but %s %s, of which each rank then has a "
            "part; legal with it: parallel.zero up to %d",
            c->parallel.zero, ranks, rows[i].key, rows[i].why, rows[i].level - 1);
    }
}

/* --- buckets on their way --- */

static int in_bf16(const Parallel *p) { return p->config->parallel.grad_dtype == DT_BF16; }

/* 1 where a bucket is worked on when it has arrived, before its buffer is needed again. */
static int has_arrivals(const Parallel *p) { return p->model->zero.level >= 2 || in_bf16(p); }

static Tensor staging_of(const Parallel *p, int bucket) {
    const ZeroRange *r = &p->model->zero.buckets[bucket].range;
    Tensor row = tensor_rows(p->model->rank_staging, bucket % 2, 1);
    row.cols = r->end - r->begin;
    return row;
}

const int64_t *parallel_cuts(Parallel *p, const ZeroBucket *b) {
    for (int r = 0; r <= p->model->zero.size; r++) p->cuts[r] = b->cuts[r] - b->range.begin;
    return p->cuts;
}

static void add_part(const Engine *e, Tensor sum, Tensor part) {
    if (part.cols > 0) e->ops->add(e->device, sum, part);
}

static void convert_part(const Engine *e, Tensor out, Tensor x) {
    if (x.cols > 0) e->ops->convert(e->device, out, x);
}

/* The device's work from here on has the sums of the bucket that was sent last. */
static void arrive(Parallel *p) {
    Model *m = p->model;
    const ZeroPlan *z = &m->zero;
    if (p->sent < 0) return;
    const ZeroBucket *b = &z->buckets[p->sent];
    Tensor sums = zero_gradients(z, b, &m->params), staging = {0};
    p->comm->wait(p->comm);
    if (in_bf16(p)) staging = staging_of(p, p->sent);
    p->sent = -1;
    if (z->level >= 2)
        add_part(&m->engine, zero_sum(z, b, &m->params),
                 zero_part(z, b, in_bf16(p) ? staging : sums));
    else if (in_bf16(p) && z->level == 1)
        convert_part(&m->engine, zero_part(z, b, sums), zero_part(z, b, staging));
    else if (in_bf16(p)) convert_part(&m->engine, sums, staging);
}

static void send(Parallel *p, int bucket) {
    Model *m = p->model;
    Comm *comm = p->comm;
    const ZeroPlan *z = &m->zero;
    const ZeroBucket *b = &z->buckets[bucket];
    Tensor data = zero_gradients(z, b, &m->params);
    if (has_arrivals(p)) arrive(p);
    p->sent = bucket;
    if (in_bf16(p)) {
        Tensor staging = staging_of(p, bucket);
        m->engine.ops->convert(m->engine.device, staging, data);
        comm->reduce_scatter(comm, staging.data, DT_BF16, parallel_cuts(p, b));
        if (z->level == 0) comm->all_gather(comm, staging.data, DT_BF16, parallel_cuts(p, b));
    } else if (z->level == 0) {
        comm->all_reduce(comm, (float *)data.data, data.cols, COMM_SUM);
    } else {
        comm->reduce_scatter(comm, data.data, DT_F32, parallel_cuts(p, b));
    }
}

/* --- the pass --- */

static void on_forward(void *self, int branch) { weights_forward((Parallel *)self, branch); }

static void on_prepare(void *self) { weights_prepare((Parallel *)self); }

/* Gradients that are not kept begin anew in each micro-step. */
static void on_backward(void *self, int stage) {
    Parallel *p = (Parallel *)self;
    Model *m = p->model;
    const ZeroPlan *z = &m->zero;
    weights_backward(p, stage);
    for (int i = 0; z->level >= 2 && i < z->num_buckets; i++) {
        if (z->buckets[i].range.opens != stage) continue;
        Tensor window = zero_gradients(z, &z->buckets[i], &m->params);
        m->engine.device->zero(m->engine.device, window.data, tensor_bytes(window));
    }
}

static void on_done(void *self, int stage) {
    Parallel *p = (Parallel *)self;
    const ZeroPlan *z = &p->model->zero;
    if (stage >= 0 && stage < p->model->num_branches) model_finish_branch(p->model, stage);
    weights_done(p, stage);
    for (int i = 0; i < z->num_buckets; i++)
        if (z->buckets[i].range.closes == stage) send(p, i);
    // Here, and not before the step: a recording takes what it has begun to its end.
    if (stage == -1) arrive(p);
}

void parallel_begin(Parallel *p, int is_last) {
    const ZeroPlan *z = &p->model->zero;
    int sends = z->size > 1 && (is_last || z->level >= 2);
    p->model->observer = sends ? &p->observer : NULL;
}

void parallel_pass_by(Parallel *p) { model_pass_by(p->model, 1); }

/* --- the step --- */

/* The norms of this rank's parts, in its own places among those of all ranks. */
static void measure_parts(Parallel *p) {
    Model *m = p->model;
    const ZeroPlan *z = &m->zero;
    const Engine *e = &m->engine;
    float *norms = (float *)m->rank_sums.data + NUM_STATE_SUMS;
    e->device->zero(e->device, m->rank_sums.data, tensor_bytes(m->rank_sums));
    for (int i = 0; i < z->num_buckets; i++) {
        Tensor sum = zero_sum(z, &z->buckets[i], &m->params);
        if (sum.cols > 0)
            e->ops->global_norm(e->device, &norms[(int64_t)i * z->size + z->rank], sum);
    }
}

/* Loss, stop_votes and norm of the StepState become those of all ranks, and what recipes keep. */
static void share_state(Parallel *p) {
    Model *m = p->model;
    Comm *comm = p->comm;
    const Engine *e = &m->engine;
    Tensor sums = m->rank_sums;
    const size_t state_bytes = NUM_STATE_SUMS * sizeof(float);   // stop_votes lies behind loss
    measure_parts(p);
    e->device->copy(e->device, sums.data, &e->state->loss, state_bytes);
    comm->all_reduce(comm, (float *)sums.data, sums.cols, COMM_SUM);
    if (!tensor_empty(m->maxima))
        comm->all_reduce(comm, (float *)m->maxima.data, tensor_count(m->maxima), COMM_MAX);
    if (!tensor_empty(m->channel_squares))
        comm->all_reduce(comm, (float *)m->channel_squares.data, tensor_count(m->channel_squares),
                         COMM_SUM);
    comm->wait(comm);
    e->device->copy(e->device, &e->state->loss, sums.data, state_bytes);
    // Each place has one rank's norm and the others' zeros: squares are added in one order.
    Tensor norms =
        tensor_view((float *)sums.data + NUM_STATE_SUMS, DT_F32, 1, sums.cols - NUM_STATE_SUMS);
    e->ops->global_norm(e->device, &e->state->grad_norm, norms);
}

/* All ranks get the values that a bucket's owners have. */
static void gather_values(Parallel *p, const ZeroBucket *b) {
    const Model *m = p->model;
    if (m->zero.level == 3 && b->range.is_block) return;   // when they are needed
    Tensor values = zero_weights(&m->zero, b, &m->params);
    p->comm->all_gather(p->comm, values.data, values.dtype, parallel_cuts(p, b));
}

static void update_parts(Parallel *p) {
    Model *m = p->model;
    const ZeroPlan *z = &m->zero;
    for (int i = 0; i < z->num_buckets; i++) {
        const ZeroBucket *b = &z->buckets[i];
        ZeroKept kept = zero_kept(z, b, &m->params);
        AdamWTensors tensors = {kept.value, kept.master, kept.m, kept.v,
                                zero_sum(z, b, &m->params)};
        optimizer_update(m, p->config, tensors, b->decays);
        gather_values(p, b);   // beside the next bucket's update
    }
    p->comm->wait(p->comm);
}

void parallel_step(Parallel *p) {
    Model *m = p->model;
    if (m->zero.level < 3) m->observer = NULL;
    if (m->zero.size == 1) {
        model_finish_gradients(m);
        optimizer_step(m, p->config);
        return;
    }
    share_state(p);
    optimizer_decide(m, p->config);
    if (m->zero.level == 0) optimizer_update_all(m, p->config);
    else update_parts(p);
}

/* --- opening, describing --- */

void parallel_open(Parallel *p, Comm *comm, Model *m, const Config *c) {
    // At level 3 no pass runs without it.
    int is_needed = m->zero.level == 3;
    PassObserver observer = {p, on_forward, on_backward, on_done, is_needed ? on_prepare : NULL};
    memset(p, 0, sizeof(*p));
    p->comm = comm;
    p->model = m;
    p->config = c;
    p->observer = observer;
    p->sent = -1;
    p->cuts = (int64_t *)xmalloc(((size_t)m->zero.size + 1) * sizeof(int64_t));
    p->codes_at = (int64_t *)xmalloc((size_t)m->zero.num_buckets * sizeof(int64_t));
    if (is_needed) m->observer = &p->observer;
}

void parallel_close(Parallel *p) {
    free(p->cuts);
    free(p->codes_at);
}

/* Bytes that a rank gets to have the blocks' matrices, on the average of forward and backward; the
   buckets that travel as codes one way and the other are counted. */
static int64_t weight_bytes(Model *m, int coded[2], int *all) {
    const ZeroPlan *z = &m->zero;
    int64_t bytes = 0;
    for (int i = 0; i < z->num_buckets; i++) {
        if (!z->buckets[i].range.is_block) continue;
        ++*all;
        for (int backward = 0; backward < 2; backward++) {
            coded[backward] += model_sends_codes(m, i, backward);
            bytes += model_gathered_bytes(m, i, backward);
        }
    }
    return bytes / 2;
}

const char *parallel_describe(Model *m, const Config *c, int accumulation, char *buffer, int size) {
    static const char *const what[NUM_ZERO_LEVELS] = {"all-reduced", "reduce-scattered",
                                                      "reduce-scattered each micro-step",
                                                      "reduce-scattered each micro-step"};
    const ZeroPlan *z = &m->zero;
    DType dtype = c->parallel.grad_dtype;
    int coded[2] = {0, 0}, blocks = 0;
    buffer[0] = '\0';
    if (z->size == 1) return buffer;
    int64_t weights = z->level == 3 ? weight_bytes(m, coded, &blocks) : 0;
    ZeroTraffic traffic = zero_traffic(z, &m->params, dtype, accumulation, weights);
    int at = snprintf(
        buffer, (size_t)size,
        "ZeRO-%d over %d ranks; gradients %s in %s, %d buckets of up to %.1f MiB; a rank sends "
        "%.1f MiB of gradients and %.1f MiB of weights a step",
        z->level, z->size, what[z->level], dtype_info[dtype].name, z->num_buckets,
        (double)dtype_bytes(dtype, z->largest) / 1048576.0, (double)traffic.sums / 1048576.0,
        (double)traffic.values / 1048576.0);
    if (z->level == 3 && at < size)
        snprintf(buffer + at, (size_t)(size - at),
                 "; of %d buckets of blocks' weights %d travel as NVFP4 codes and scales before "
                 "forward and %d before backward, the others in %s, to be quantised whole",
                 blocks, coded[0], coded[1], dtype_info[m->params.dtype].name);
    return buffer;
}
