/* gradients -- gradients of one step, tensor by tensor; see gradients.h. */
#include "gradients.h"

#include <math.h>
#include <stdlib.h>

#include "common.h"

/* This rank's piece of one parameter's gradient; count 0: it has none. */
static Tensor own_gradient(const Model *m, const Param *p) {
    const ZeroPlan *z = &m->zero;
    const ZeroBucket *b = &z->buckets[zero_bucket_of(z, p)];
    ZeroPiece piece = zero_piece(z, p, z->rank);
    int64_t at = p->offset + piece.begin - b->cuts[z->rank];
    float *sum = (float *)zero_sum(z, b, &m->params).data;
    return tensor_view(sum + at, DT_F32, 1, piece.count);
}

/* Of each parameter the largest norm of a rank's piece of its gradient, through the StepState's own
   slot; caller frees. It is zero, or not finite, where the whole gradient is. */
static float *gradient_norms(Model *m, Comm *host) {
    Engine *e = &m->engine;
    float *norms = (float *)xmalloc((size_t)m->params.count * sizeof(float));
    for (int i = 0; i < m->params.count; i++) {
        Tensor own = own_gradient(m, &m->params.params[i]);
        if (own.cols == 0) continue;
        e->ops->global_norm(e->device, &e->state->grad_norm, own);
        e->device->download(e->device, &norms[i], &e->state->grad_norm, sizeof(float));
    }
    host->all_reduce(host, norms, m->params.count, COMM_MAX);
    return norms;
}

void gradients_check_arrival(Model *m, Comm *host, int64_t step) {
    int zero = 0;
    float *norms = gradient_norms(m, host);
    for (int i = 0; i < m->params.count; i++) {
        if (norms[i] != 0) continue;
        log_warn("the gradient of %s is zero in the first step of this start",
                 m->params.params[i].name);
        zero++;
    }
    free(norms);
    log_line("gradients   reach %d of %d tensors in step %lld", m->params.count - zero,
             m->params.count, (long long)step + 1);
}
