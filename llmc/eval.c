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

/* Mean loss of one micro-batch. */
static float batch_loss(const Evaluation *e, Model *m, int64_t first) {
    Device *d = m->engine.device;
    StepState state;
    memset(&state, 0, sizeof(state));
    state.token_base = first * e->seq_len;
    state.step = (uint32_t)m->step;   // draws that the weights' operands share
    d->upload(d, m->engine.state, &state, sizeof(state));
    dataloader_fill(e->data, first, e->micro, e->inputs, e->targets);
    model_evaluate(m, e->inputs, e->targets, e->micro, e->seq_len,
                   1.0f / (float)((int64_t)e->micro * e->seq_len));
    d->download(d, &state, m->engine.state, sizeof(state));
    return state.loss;
}

double eval_run(Evaluation *e, Model *m, Comm *host) {
    int64_t count = e->sequences / e->micro;
    // Losses, and behind them the ranks that were asked to stop.
    float *losses = (float *)xmalloc((size_t)(count + 1) * sizeof(float));
    for (int64_t first = 0; first < count; first += host->size) {
        int64_t i = first + host->rank;
        if (losses[count] == 0) losses[count] = (float)stop_requested();
        if (losses[count] == 0 && i < count) losses[i] = batch_loss(e, m, i * e->micro);
        else model_pass_by(m, 0);
    }
    // Each has one rank's loss and the others' zeros, so that the sum below is that of one rank.
    host->all_reduce(host, losses, count + 1, COMM_SUM);
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += losses[i];
    e->stopped = losses[count] > 0;
    free(losses);
    return sum / (double)count;
}

double eval_run_plain(Evaluation *e, Model *m, Comm *host) {
    PlainPeriod period = plain_begin(m, 1u << GEMM_FPROP);
    double loss = eval_run(e, m, host);
    plain_end(m, &period);
    return loss;
}
