/* parallel_weights -- weights gathered ahead of use; see parallel_parts.h. */
#include "parallel_parts.h"

#include "common.h"

/* Which product reads them: linears whose weights travel as codes may need values for dgrad. */
typedef enum { FOR_FORWARD, FOR_BACKWARD } Purpose;

static const ZeroBucket *bucket_of(const Parallel *p, int bucket) {
    return &p->model->zero.buckets[bucket];
}

static int is_block(const Parallel *p, int bucket) {
    const ZeroPlan *z = &p->model->zero;
    return bucket >= 0 && bucket < z->num_buckets && z->buckets[bucket].range.is_block;
}

/* Buckets come in backward's order: the first branches are in the last bucket of branches. */
static int last_branches(const Parallel *p) {
    int bucket = 0;
    while (!is_block(p, bucket)) bucket++;
    return bucket;
}

static int first_branches(const Parallel *p) {
    int bucket = last_branches(p);
    while (is_block(p, bucket + 1)) bucket++;
    return bucket;
}

/* This rank's rows of a linear's weight, as they are kept; rows 0: none. */
static Tensor own_rows(const Model *m, const Linear *l) {
    return m->params.params[l->weight].kept_value;
}

/* What is gathered of a bucket's codes, and this rank's among its own. */
static uint8_t *wire_of(const Parallel *p, int bucket) {
    Tensor wire = p->model->rank_wire;
    int odd = bucket_of(p, bucket)->window == WINDOW_ODD;
    return (uint8_t *)wire.data + (odd ? wire.cols : 0);
}

static uint8_t *own_codes(const Parallel *p, int bucket) {
    return (uint8_t *)p->model->rank_codes.data + p->codes_at[bucket];
}

/* --- on the way, at hand --- */

static void fetch(Parallel *p, int bucket, Purpose purpose) {
    Model *m = p->model;
    Device *d = m->engine.device;
    const ZeroPlan *z = &m->zero;
    const ZeroBucket *b = bucket_of(p, bucket);
    if (model_sends_codes(m, bucket, purpose == FOR_BACKWARD)) {
        uint8_t *wire = wire_of(p, bucket), *own = own_codes(p, bucket);
        model_codes_cuts(m, bucket, p->cuts);
        int64_t begin = p->cuts[z->rank], bytes = p->cuts[z->rank + 1] - begin;
        if (bytes > 0) d->copy(d, wire + begin, own, (size_t)bytes);
        p->comm->all_gather(p->comm, wire, DT_U8, p->cuts);
        return;
    }
    Tensor values = zero_weights(z, b, &m->params), part = zero_part(z, b, values);
    if (part.cols > 0)
        d->copy(d, part.data, zero_kept(z, b, &m->params).value.data, tensor_bytes(part));
    p->comm->all_gather(p->comm, values.data, values.dtype, parallel_cuts(p, b));
}

/* Each rank's rows of each linear, in the order in which model_codes_cuts counts them. */
static void decode(Parallel *p, int bucket) {
    Model *m = p->model;
    int first, count = model_linears_of(m, bucket, &first);
    uint8_t *codes = wire_of(p, bucket);
    for (int r = 0; r < m->zero.size; r++) {
        for (int id = first; id < first + count; id++) {
            const Linear *l = model_linear(m, id);
            RowRange rows = model_own_rows(m, l, r);
            if (rows.count > 0) linear_decode_rows(&m->engine, l, rows.first, rows.count, codes);
            codes += linear_codes_bytes(l, rows.count);
        }
    }
}

/* What was fetched becomes the operands of its linears. */
static void take(Parallel *p, int bucket, Purpose purpose) {
    Model *m = p->model;
    int first, count = model_linears_of(m, bucket, &first);
    int as_codes = model_sends_codes(m, bucket, purpose == FOR_BACKWARD);
    p->comm->wait(p->comm);
    if (as_codes) decode(p, bucket);
    for (int id = first; id < first + count; id++) {
        if (as_codes) linear_take_codes(&m->engine, model_linear(m, id));
        else linear_prepare(&m->engine, model_linear(m, id));
    }
}

/* --- once a step --- */

static int has_codes(const Parallel *p, const Linear *l) {
    int bucket = zero_bucket_of(&p->model->zero, &p->model->params.params[l->weight]);
    return model_sends_codes(p->model, bucket, 0);
}

/* Of whole weights: codes of rows are those of the whole. */
static void find_maxima(Parallel *p) {
    Model *m = p->model;
    Device *d = m->engine.device;
    float *maxima = (float *)m->rank_maxima.data;
    d->zero(d, maxima, tensor_bytes(m->rank_maxima));
    for (int id = 0; id < model_num_linears(m); id++) {
        const Linear *l = model_linear(m, id);
        Tensor rows = own_rows(m, l);
        if (!tensor_empty(rows) && has_codes(p, l))
            linear_find_amax(&m->engine, l, &maxima[id], rows);
    }
    p->comm->all_reduce(p->comm, maxima, m->rank_maxima.cols, COMM_MAX);
    p->comm->wait(p->comm);
    for (int id = 0; id < model_num_linears(m); id++) {
        const Linear *l = model_linear(m, id);
        if (has_codes(p, l)) d->copy(d, linear_codes_amax(l), &maxima[id], sizeof(float));
    }
}

static void make_codes(Parallel *p) {
    Model *m = p->model;
    uint8_t *begin = (uint8_t *)m->rank_codes.data, *codes = begin;
    for (int i = 0; i < m->zero.num_buckets; i++) {
        int first, count = model_linears_of(m, i, &first);
        p->codes_at[i] = codes - begin;
        if (!model_sends_codes(m, i, 0)) continue;
        for (int id = first; id < first + count; id++) {
            const Linear *l = model_linear(m, id);
            Tensor rows = own_rows(m, l);
            if (tensor_empty(rows)) continue;
            linear_make_codes(&m->engine, l, codes, rows);
            codes += linear_codes_bytes(l, rows.rows);
        }
    }
}

static void begin_with_first(Parallel *p) {
    int first = first_branches(p);
    fetch(p, first, FOR_FORWARD);
    take(p, first, FOR_FORWARD);
}

void weights_prepare(Parallel *p) {
    find_maxima(p);
    make_codes(p);
    begin_with_first(p);
}

/* --- the pass --- */

/* The bucket of branches that forward enters, or backward enters or leaves, at this stage; -1. */
static int bucket_at(const Parallel *p, int stage, int closes) {
    for (int i = last_branches(p); is_block(p, i); i++) {
        const ZeroRange *range = &bucket_of(p, i)->range;
        if ((closes ? range->closes : range->opens) == stage) return i;
    }
    return -1;
}

void weights_forward(Parallel *p, int branch) {
    Model *m = p->model;
    if (m->zero.level < 3) return;
    if (branch == m->num_branches) {
        if (!m->engine.training) begin_with_first(p);   // no backward pass does
        return;
    }
    int bucket = bucket_at(p, branch, 1);
    if (bucket < 0) return;
    if (bucket != first_branches(p)) take(p, bucket, FOR_FORWARD);
    if (is_block(p, bucket - 1)) fetch(p, bucket - 1, FOR_FORWARD);
}

/* Forward has left them, but not in the form that dgrad reads. */
static int needs_last_again(const Parallel *p) {
    int last = last_branches(p);
    return model_sends_codes(p->model, last, 0) != model_sends_codes(p->model, last, 1);
}

void weights_backward(Parallel *p, int stage) {
    if (p->model->zero.level < 3) return;
    if (stage == p->model->num_branches && needs_last_again(p))
        fetch(p, last_branches(p), FOR_BACKWARD);
    int bucket = bucket_at(p, stage, 0);
    if (bucket >= 0 && is_block(p, bucket + 1)) fetch(p, bucket + 1, FOR_BACKWARD);
}

void weights_done(Parallel *p, int stage) {
    if (p->model->zero.level < 3) return;
    if (stage == p->model->num_branches && needs_last_again(p))
        take(p, last_branches(p), FOR_BACKWARD);
    int bucket = bucket_at(p, stage, 1);
    if (bucket >= 0 && is_block(p, bucket + 1)) take(p, bucket + 1, FOR_BACKWARD);
}
