/* predict_ranks -- bytes between ranks and their time; see predict_ranks.h. */
#include "predict_ranks.h"

#include <stdlib.h>

#include "common.h"

/* Of a micro-step: two of three products. */
static const double BACKWARD_SHARE = 2.0 / 3;

const char *const traffic_names[NUM_TRAFFICS] = {
    [TRAFFIC_GRADIENTS] = "gradients",         [TRAFFIC_VALUES] = "values after the update",
    [TRAFFIC_FORWARD] = "weights, forward",    [TRAFFIC_BACKWARD] = "weights, backward",
    [TRAFFIC_SMALL] = "losses, norms, maxima",
};

/* --- bytes --- */

static double value_bytes(const Model *m) { return dtype_info[m->config.dtype].bits / 8.0; }

static double bucket_elements(const ZeroBucket *b) {
    return (double)(b->range.end - b->range.begin);
}

/* Buckets and elements of branches' matrices, or of all else. */
typedef struct {
    int buckets;
    double elements;
} Portion;

static Portion portion_of(const ZeroPlan *z, int of_blocks) {
    Portion p = {0, 0};
    for (int i = 0; i < z->num_buckets; i++) {
        const ZeroRange *r = &z->buckets[i].range;
        if (r->is_block != of_blocks) continue;
        p.buckets++;
        p.elements += bucket_elements(&z->buckets[i]);
    }
    return p;
}

/* Sums of losses and votes with the norms of all parts of buckets, what recipes keep, and weights'
   maxima. */
static Traffic small_traffic(const Model *m) {
    const ZeroPlan *z = &m->zero;
    const int64_t counts[] = {NUM_STATE_SUMS + (int64_t)z->num_buckets * z->size,
                              tensor_count(m->maxima), tensor_count(m->channel_squares),
                              z->level == 3 ? model_num_linears(m) : 0};
    Traffic t = {0, 0, 2, 1};
    for (int i = 0; i < ARRAY_LEN(counts); i++) {
        t.bytes += (double)counts[i] * sizeof(float);
        t.collectives += counts[i] > 0;
    }
    return t;
}

/* Of all branches' matrices at level 3. */
static Traffic weights_traffic(Model *m, int backward, int micro_steps) {
    Traffic t = {0, 0, 1, micro_steps};
    for (int i = 0; i < m->zero.num_buckets; i++) {
        if (!m->zero.buckets[i].range.is_block) continue;
        t.bytes += (double)model_gathered_bytes(m, i, backward);
        t.collectives++;
    }
    return t;
}

StepTraffic predict_traffic(Model *m, const Config *c) {
    const ZeroPlan *z = &m->zero;
    int micro_steps = config_accumulation(c, z->size);
    Portion blocks = portion_of(z, 1), rest = portion_of(z, 0);
    double all = blocks.elements + rest.elements;
    Traffic gradients = {all * dtype_info[c->parallel.grad_dtype].bits / 8, z->num_buckets,
                         z->level == 0 ? 2 : 1, z->level >= 2 ? micro_steps : 1};
    StepTraffic t = {{[TRAFFIC_GRADIENTS] = gradients, [TRAFFIC_SMALL] = small_traffic(m)}};
    if (z->level == 0) return t;
    int is_cut = z->level == 3;
    Traffic values = {(is_cut ? rest.elements : all) * value_bytes(m),
                      is_cut ? rest.buckets : z->num_buckets, 1, 1};
    t.kind[TRAFFIC_VALUES] = values;
    if (!is_cut) return t;
    t.kind[TRAFFIC_FORWARD] = weights_traffic(m, 0, micro_steps);
    t.kind[TRAFFIC_BACKWARD] = weights_traffic(m, 1, micro_steps);
    return t;
}

double predict_sent(const Traffic *t, int ranks) {
    return t->passes * t->ways * network_sent(ranks, t->bytes);
}

double predict_gather_saving(const Model *m, const Traffic *gathered) {
    return portion_of(&m->zero, 1).elements * value_bytes(m) / gathered->bytes;
}

/* --- time --- */

double predict_exposed_forward(double traffic, int buckets, double pass) {
    if (buckets == 0) return 0;
    double first = traffic / buckets, late = traffic - pass * (1 - 1.0 / buckets);
    return late > first ? late : first;
}

double predict_exposed_backward(const Model *m, const double *bucket_seconds, double pass,
                                int waits) {
    const int stages = m->num_branches + 2;   // head, branches, embedding: closes counts down to -1
    double finish = 0, stalled = 0;
    for (int i = 0; i < m->zero.num_buckets; i++) {
        double complete = pass * (m->num_branches - m->zero.buckets[i].range.closes + 1) / stages;
        double now = complete + stalled;
        if (waits && finish > now) stalled += finish - now;
        finish = (finish > now ? finish : now) + bucket_seconds[i];
    }
    double end = pass + stalled;
    return (finish > end ? finish : end) - pass;
}

/* What a step's time is made of. */
typedef struct {
    Model *m;
    const Config *c;
    Network network;
    int ranks, micro_steps;
    StepTraffic traffic;
    double forward, backward;   // seconds of these passes of a micro-step
} Timing;

static double collective_seconds(const Timing *t, TrafficKind kind, double bytes) {
    return t->traffic.kind[kind].ways * network_one_way(&t->network, t->ranks, bytes);
}

/* Of one pass whose collectives are equally large. */
static double pass_seconds(const Timing *t, TrafficKind kind) {
    const Traffic *traffic = &t->traffic.kind[kind];
    if (traffic->collectives == 0) return 0;
    double each = collective_seconds(t, kind, traffic->bytes / traffic->collectives);
    return traffic->collectives * each;
}

/* Of a backward pass the buckets' gradients, and what it gathers of weights before them. Returns
   their sum; bucket_seconds has room for all buckets. */
static double backward_seconds(const Timing *t, double *bucket_seconds) {
    const ZeroPlan *z = &t->m->zero;
    double sum = 0, bytes = dtype_info[t->c->parallel.grad_dtype].bits / 8.0;
    for (int i = 0; i < z->num_buckets; i++) {
        const ZeroBucket *b = &z->buckets[i];
        bucket_seconds[i] = collective_seconds(t, TRAFFIC_GRADIENTS, bucket_elements(b) * bytes);
        if (z->level == 3 && b->range.is_block)
            bucket_seconds[i] +=
                collective_seconds(t, TRAFFIC_BACKWARD, (double)model_gathered_bytes(t->m, i, 1));
        sum += bucket_seconds[i];
    }
    return sum;
}

static void add_communication(Scaling *s, const Timing *t) {
    double *buckets = (double *)xmalloc((size_t)t->m->zero.num_buckets * sizeof(double));
    int backwards = t->traffic.kind[TRAFFIC_GRADIENTS].passes;   // that communicate
    double backward = backward_seconds(t, buckets), forward = pass_seconds(t, TRAFFIC_FORWARD);
    double after = pass_seconds(t, TRAFFIC_VALUES);
    // What has arrived is worked on before the next bucket is sent.
    int waits = t->m->zero.level >= 2 || t->c->parallel.grad_dtype == DT_BF16;
    after += t->traffic.kind[TRAFFIC_SMALL].collectives * network_small(&t->network, t->ranks);
    s->communicating = backwards * backward + t->micro_steps * forward + after;
    s->exposed = backwards * predict_exposed_backward(t->m, buckets, t->backward, waits);
    s->exposed +=
        t->micro_steps *
        predict_exposed_forward(forward, t->traffic.kind[TRAFFIC_FORWARD].collectives, t->forward);
    s->exposed += after;
    free(buckets);
}

/* Of one GPU that had memory for all. */
static double tokens_a_second(Model *m, const Config *c, DeviceModel device) {
    model_split(m, c, 0, 1);
    Prediction p = predict_step(m, c, device, 1);
    return p.tokens / p.step.seconds;
}

Scaling predict_scaling(Model *m, const Config *c, DeviceModel device, int ranks) {
    double alone = tokens_a_second(m, c, device);
    model_split(m, c, 0, ranks);
    Prediction p = predict_step(m, c, device, ranks);
    Timing t = {
        m, c, network_of(c, device), ranks, config_accumulation(c, ranks), predict_traffic(m, c),
        0, 0};
    double once = p.term[TERM_OPTIMIZER].seconds + p.term[TERM_QUANTISE_WEIGHTS].seconds;
    double micro_step = (p.step.seconds - once) / t.micro_steps;
    t.backward = BACKWARD_SHARE * micro_step;
    t.forward = micro_step - t.backward;
    Scaling s = {.ranks = ranks, .nodes = network_nodes(&t.network, ranks)};
    s.micro_steps = t.micro_steps;
    s.tokens = p.tokens * ranks;
    s.computing = p.step.seconds;
    if (ranks > 1) add_communication(&s, &t);
    s.seconds = s.computing + s.exposed;
    s.efficiency = p.tokens / s.seconds / alone;
    return s;
}
