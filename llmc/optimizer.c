/* optimizer -- the AdamW step over the ParamTable; see optimizer.h. */
#include "optimizer.h"

#include <math.h>
#include <string.h>

#include "oscillation.h"
#include "out_control.h"

static Tensor range(Tensor flat, int64_t begin, int64_t count) {
    return tensor_view((char *)flat.data + dtype_bytes(flat.dtype, begin), flat.dtype, 1, count);
}

static void update(Model *m, int64_t begin, int64_t end, AdamWConfig config) {
    const ParamTable *t = &m->params;
    if (begin == end) return;
    AdamWTensors tensors = {
        range(t->value, begin, end - begin), range(t->master, begin, end - begin),
        range(t->m, begin, end - begin),     range(t->v, begin, end - begin),
        range(t->grad, begin, end - begin),
    };
    m->engine.ops->adamw(m->engine.device, tensors, config, m->engine.state);
}

void optimizer_step(Model *m, const Config *c) {
    Engine *e = &m->engine;
    AdamWConfig decayed = {c->optim.betas[0], c->optim.betas[1], c->optim.eps,
                           c->optim.weight_decay};
    AdamWConfig plain = decayed;
    plain.weight_decay = 0;
    e->ops->global_norm(e->device, &e->state->grad_norm, m->params.grad);
    e->ops->step_decide(e->device, e->state);
    out_control_step(m, c);
    oscillation_step(m, c);
    update(m, 0, m->params.num_decayed, decayed);
    update(m, m->params.num_decayed, m->params.num_elements, plain);
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
