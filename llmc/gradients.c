/* gradients -- gradients of one step, tensor by tensor; see gradients.h. */
#include "gradients.h"

#include <math.h>

#include "common.h"

/* Norm of one parameter's gradient, through the StepState's own slot. */
static float gradient_norm(Model *m, const Param *p) {
    float norm;
    Engine *e = &m->engine;
    Tensor flat = tensor_view(p->grad.data, DT_F32, 1, tensor_count(p->grad));
    e->ops->global_norm(e->device, &e->state->grad_norm, flat);
    e->device->download(e->device, &norm, &e->state->grad_norm, sizeof(norm));
    return norm;
}

void gradients_check_arrival(Model *m, int64_t step) {
    int zero = 0;
    for (int i = 0; i < m->params.count; i++) {
        const Param *p = &m->params.params[i];
        if (gradient_norm(m, p) != 0) continue;
        log_warn("the gradient of %s is zero in the first step of this start", p->name);
        zero++;
    }
    log_line("gradients   reach %d of %d tensors in step %lld", m->params.count - zero,
             m->params.count, (long long)step + 1);
}

const char *gradients_first_nonfinite(Model *m) {
    for (int i = 0; i < m->params.count; i++) {
        const Param *p = &m->params.params[i];
        if (!isfinite(gradient_norm(m, p))) return p->name;
    }
    return NULL;
}
