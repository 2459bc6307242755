/* out_control -- the choice of features; see out_control.h. */
#include "out_control.h"

#include <math.h>
#include <stdlib.h>

#include "common.h"

typedef struct {
    float square;
    int feature;
} Candidate;

/* The largest first, then the first. */
static int compare(const void *a, const void *b) {
    const Candidate *x = (const Candidate *)a, *y = (const Candidate *)b;
    if (x->square != y->square) return x->square > y->square ? -1 : 1;
    return (x->feature > y->feature) - (x->feature < y->feature);
}

int64_t out_control_count(float fraction, int64_t features) {
    return max_i64(1, llround((double)fraction * (double)features));
}

static void choose(Device *d, const LinearChannels *c, float fraction) {
    int features = (int)c->total.cols;
    float *values = (float *)xmalloc(tensor_bytes(c->total));
    Candidate *candidates = (Candidate *)xmalloc((size_t)features * sizeof(Candidate));
    d->download(d, values, c->total.data, tensor_bytes(c->total));
    for (int i = 0; i < features; i++) {
        candidates[i].square = isfinite(values[i]) ? values[i] : INFINITY;
        candidates[i].feature = i;
        values[i] = 0.0f;
    }
    qsort(candidates, (size_t)features, sizeof(Candidate), compare);
    for (int64_t i = 0; i < out_control_count(fraction, features); i++)
        values[candidates[i].feature] = 1.0f;
    d->upload(d, c->chosen.data, values, tensor_bytes(c->chosen));
    free(candidates);
    free(values);
}

int out_control_linears(Model *m) {
    int count = 0;
    for (int id = 0; id < model_num_linears(m); id++)
        count += linear_controls_channels(model_linear(m, id));
    return count;
}

/* A step that is dropped comes again, and chooses then. */
static int is_dropped(const Model *m) {
    float votes;
    Device *d = m->engine.device;
    d->download(d, &votes, &m->engine.state->stop_votes, sizeof(votes));
    return votes > 0.0f;
}

void out_control_step(Model *m, const Config *c) {
    int64_t step = m->step + 1, last = c->precision.out_control.to;
    float fraction = c->precision.out_control.fraction;
    if (fraction == 0 || step < c->precision.out_control.from || step > last) return;
    Engine *e = &m->engine;
    int chooses = step == last && !is_dropped(m);
    for (int id = 0; id < model_num_linears(m); id++) {
        const LinearChannels *channels = &model_linear(m, id)->channels;
        if (tensor_empty(channels->total)) continue;
        e->ops->channels_advance(e->device, channels->total, channels->current, e->state);
        if (chooses) choose(e->device, channels, fraction);
    }
    if (chooses)
        log_line(
            "out_control step %lld: %.3g %% of the features of %d linears in MXFP8 from here on",
            (long long)step, 100.0 * (double)fraction, out_control_linears(m));
}
