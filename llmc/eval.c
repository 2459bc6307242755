/* eval -- validation on a fixed number of tokens; see eval.h. */
#include "eval.h"

#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "plain.h"
#include "stop.h"

Evaluation eval_open(const Config *c, const DataLoader *data) {
    Evaluation e = {data, 0, c->eval.micro, c->batch.seq_len, 0, NULL, NULL};
    int64_t available = dataloader_num_sequences(data);
    int64_t wanted = c->eval.tokens > 0 ? ceil_div(c->eval.tokens, e.seq_len) : available;
    e.sequences = min_i64(wanted, available) / e.micro * e.micro;
    if (e.sequences == 0) {
        die(EXIT_DATA,
            "data.val holds %lld sequences of batch.seq_len %d and eval.tokens asks for %lld: less "
            "than one micro-batch of eval.micro %d; lower eval.micro or give more data",
            (long long)available, e.seq_len, (long long)wanted, e.micro);
    }
    size_t bytes = (size_t)e.micro * (size_t)e.seq_len * sizeof(int32_t);
    e.inputs = (int32_t *)xmalloc(bytes);
    e.targets = (int32_t *)xmalloc(bytes);
    return e;
}

void eval_close(Evaluation *e) {
    free(e->inputs);
    free(e->targets);
}

void eval_describe(const Evaluation *e, const Config *c, char *buffer, int size) {
    int64_t held = dataloader_num_sequences(e->data) * e->seq_len;
    int at = snprintf(buffer, size, "%lld of the %lld tokens of data.val",
                      (long long)(e->sequences * e->seq_len), (long long)held);
    if (c->eval.tokens <= held) return;
    snprintf(buffer + at, size - at, "; eval.tokens asks for %lld", (long long)c->eval.tokens);
}

double eval_run(Evaluation *e, Model *m, Comm *comm) {
    Device *d = m->engine.device;
    StepState state;
    double sum = 0;
    int stops = 0;
    for (int64_t first = 0, batch = 0; first < e->sequences; first += e->micro, batch++) {
        if ((stops = stop_requested())) break;
        if (batch % comm->size != comm->rank) continue;
        memset(&state, 0, sizeof(state));
        state.token_base = first * e->seq_len;
        state.step = (uint32_t)m->step;   // draws that the weights' operands share
        d->upload(d, m->engine.state, &state, sizeof(state));
        dataloader_fill(e->data, first, e->micro, e->inputs, e->targets);
        model_evaluate(m, e->inputs, e->targets, e->micro, e->seq_len,
                       1.0f / (float)((int64_t)e->micro * e->seq_len));
        d->download(d, &state, m->engine.state, sizeof(state));
        sum += state.loss;
    }
    if (comm->size > 1) {
        // The ranks' sums and votes travel through the device's communicator.
        float sums[2] = {(float)sum, (float)stops};
        d->upload(d, &m->engine.state->loss, sums, sizeof(sums));
        comm->all_reduce(comm, &m->engine.state->loss, 2, COMM_SUM);
        comm->wait(comm);
        d->download(d, sums, &m->engine.state->loss, sizeof(sums));
        sum = sums[0];
        stops = sums[1] > 0;
    }
    e->stopped = stops;
    return sum / (double)(e->sequences / e->micro);
}

double eval_run_plain(Evaluation *e, Model *m, Comm *comm) {
    PlainPeriod period = plain_begin(m, 1u << GEMM_FPROP);
    double loss = eval_run(e, m, comm);
    plain_end(m, &period);
    return loss;
}
