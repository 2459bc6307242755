/* oscillation -- windows over the steps of a run; see oscillation.h. */
#include "oscillation.h"

#include "common.h"

static void note(Device *d, const Oscillation *o, Tensor w, Tensor q) {
    size_t bytes = tensor_bytes(w);
    d->copy(d, o->last_w.data, w.data, bytes);
    d->copy(d, o->last_q.data, q.data, bytes);
    d->zero(d, o->moved_w.data, bytes);
    d->zero(d, o->moved_q.data, bytes);
}

static int64_t reset(Model *m, const Oscillation *o, const Param *p, float threshold) {
    Engine *e = &m->engine;
    int64_t count = 0;
    e->ops->oscillation_reset(e->device, *o, p->master, p->value, threshold, m->oscillation_count,
                              e->state);
    e->device->download(e->device, &count, m->oscillation_count, sizeof(count));
    return count;
}

int64_t oscillation_weights(const Model *m) {
    int64_t count = 0;
    for (int id = 0; id < model_num_linears(m); id++)
        count += tensor_count(m->oscillations[id].last_w);
    return count;
}

void oscillation_step(Model *m, const Config *c) {
    int64_t since = m->step - c->precision.osci_reset.start, num_reset = 0;
    m->oscillations_reset = -1;
    if (c->precision.osci_reset.start == 0 || since < 0) return;
    int64_t j = since % c->precision.osci_reset.period, window = c->precision.osci_reset.window;
    if (j > window) return;
    Engine *e = &m->engine;
    for (int id = 0; id < model_num_linears(m); id++) {
        const Linear *l = model_linear(m, id);
        const Oscillation *o = &m->oscillations[id];
        if (tensor_empty(o->last_w)) continue;
        const Param *p = &m->params.params[l->weight];
        Tensor q = tensor_view(m->oscillation_now.data, DT_F32, l->out, l->in);
        linear_decode_weight(e, l, q);
        if (j == 0) note(e->device, o, p->master, q);
        else e->ops->oscillation_accumulate(e->device, *o, p->master, q);
        int is_rounded = operand_is_quantized(&l->plan.cell[GEMM_FPROP][SIDE_B]);
        if (j == window && is_rounded)
            num_reset += reset(m, o, p, c->precision.osci_reset.threshold);
    }
    if (j < window) return;
    m->oscillations_reset = num_reset;
    log_line("osci_reset  step %lld: %lld of %lld weights set to their rounded values",
             (long long)m->step + 1, (long long)num_reset, (long long)oscillation_weights(m));
}
