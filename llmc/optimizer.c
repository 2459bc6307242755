/* optimizer -- the AdamW step over the ParamTable; see optimizer.h. */
#include "optimizer.h"

#include <math.h>
#include <string.h>

#include "oscillation.h"
#include "out_control.h"

void optimizer_update(Model *m, const Config *c, AdamWTensors tensors, int decays) {
    AdamWConfig config = {c->optim.betas[0], c->optim.betas[1], c->optim.eps,
                          decays ? c->optim.weight_decay : 0};
    if (tensors.grad.cols > 0)
        m->engine.ops->adamw(m->engine.device, tensors, config, m->engine.state);
}

static void update(Model *m, const Config *c, int64_t begin, int64_t end, int decays) {
    const ParamTable *t = &m->params;
    AdamWTensors tensors = {
        tensor_span(t->value, begin, end - begin), tensor_span(t->master, begin, end - begin),
        tensor_span(t->m, begin, end - begin),     tensor_span(t->v, begin, end - begin),
        tensor_span(t->grad, begin, end - begin),
    };
    optimizer_update(m, c, tensors, decays);
}

void optimizer_update_all(Model *m, const Config *c) {
    update(m, c, 0, m->params.num_decayed, 1);
    update(m, c, m->params.num_decayed, m->params.num_elements, 0);
}

void optimizer_decide(Model *m, const Config *c) {
    m->engine.ops->step_decide(m->engine.device, m->engine.state);
    out_control_step(m, c);
    oscillation_step(m, c);
}

void optimizer_step(Model *m, const Config *c) {
    Engine *e = &m->engine;
    e->ops->global_norm(e->device, &e->state->grad_norm, m->params.grad);
    optimizer_decide(m, c);
    optimizer_update_all(m, c);
}

StepState optimizer_state(const Config *c, int64_t step, float lr, float loss_limit,
                          float grad_norm_limit) {
    StepState s;
    memset(&s, 0, sizeof(s));
    s.step = (uint32_t)step;
    s.lr = lr;
    s.bias_correction1 = (float)(1.0 - pow(c->optim.betas[0], (double)(step + 1)));
    s.bias_correction2 = (float)(1.0 - pow(c->optim.betas[1], (double)(step + 1)));
    s.grad_clip = c->optim.grad_clip;
    s.loss_limit = loss_limit;
    s.grad_norm_limit = grad_norm_limit;
    s.grad_scale = 1.0f;
    return s;
}
