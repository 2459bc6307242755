/* gradient_noise -- two gradients of the same micro-batch compared; see gradient_noise.h. */
#include "gradient_noise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

static int is_ever_quantized(Model *m, int id) {
    Linear l = *model_linear(m, id);
    for (int phase = 0; phase < m->num_phases; phase++) {
        l.plan = m->plans[phase * model_num_linears(m) + id];
        if (linear_quantized_gemms(&l) > 0) return 1;
    }
    return 0;
}

GradientNoise gradient_noise_open(Model *m) {
    GradientNoise n;
    memset(&n, 0, sizeof(n));
    n.ids = (int *)xmalloc((size_t)model_num_linears(m) * sizeof(int));
    n.ratio = (double *)xmalloc((size_t)model_num_linears(m) * sizeof(double));
    for (int id = 0; id < model_num_linears(m); id++) {
        if (!m->quantized || is_ever_quantized(m, id)) n.ids[n.count++] = id;
    }
    return n;
}

void gradient_noise_close(GradientNoise *n) {
    free(n->ids);
    free(n->ratio);
}

static Tensor gradient(Model *m, int id) {
    Tensor g = m->params.params[model_linear(m, id)->weight].grad;
    return tensor_view(g.data, g.dtype, 1, tensor_count(g));
}

void gradient_noise_place(GradientNoise *n, Model *m, Arena *a) {
    int64_t elements = 0;
    for (int i = 0; i < n->count; i++) elements += tensor_count(gradient(m, n->ids[i]));
    n->kept = arena_tensor(a, DT_F32, 1, elements);
}

/* The place of the next linear's gradient among the kept ones. */
static Tensor next_kept(const GradientNoise *n, int64_t *at, int64_t count) {
    Tensor t = tensor_view((float *)n->kept.data + *at, DT_F32, 1, count);
    *at += count;
    return t;
}

void gradient_noise_keep(GradientNoise *n, Model *m) {
    Device *d = m->engine.device;
    int64_t at = 0;
    for (int i = 0; i < n->count; i++) {
        Tensor g = gradient(m, n->ids[i]), kept = next_kept(n, &at, g.cols);
        d->copy(d, kept.data, g.data, tensor_bytes(g));
    }
}

static double ratio_of(double signal2, double noise2) {
    return noise2 > 0 ? sqrt(signal2 / noise2) : noise2 == 0 ? INFINITY : NAN;
}

double gradient_noise_measure(GradientNoise *n, Model *m) {
    Engine *e = &m->engine;
    Device *d = e->device;
    float *slot = &e->state->grad_norm, signal, noise;
    double signal2 = 0, noise2 = 0;
    int64_t at = 0;
    for (int i = 0; i < n->count; i++) {
        Tensor g = gradient(m, n->ids[i]), kept = next_kept(n, &at, g.cols);
        e->ops->global_norm(d, slot, g);
        d->download(d, &signal, slot, sizeof(signal));
        e->ops->distance(d, slot, kept, g);
        d->download(d, &noise, slot, sizeof(noise));
        n->ratio[i] = ratio_of((double)signal * signal, (double)noise * noise);
        signal2 += (double)signal * signal;
        noise2 += (double)noise * noise;
    }
    return ratio_of(signal2, noise2);
}
