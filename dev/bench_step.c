/*
bench_step -- times one optimizer step of the demo's model on the CPU, in BF16 and in NVFP4, on
random tokens.
  GFLOP/s by the 6N rule: 6 x (weights in matrix products, head included) x tokens of the step /
  time; attention and everything else counts as time, not as work.
  usage     make bench        (or build/cpu/dev/bench_step [steps])
*/
#include <stdlib.h>

#include "common.h"
#include "config.h"
#include "model.h"
#include "optimizer.h"

typedef struct {
    double step_ms, gflops;
} Timing;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void one_step(Model *m, const Config *c, const int32_t *tokens, int accumulation,
                     int64_t step) {
    int B = c->batch.micro, T = c->batch.seq_len;
    *m->engine.state = optimizer_state(c, step, c->optim.lr, 1e30f, 1e30f);
    model_zero_gradients(m);
    for (int i = 0; i < accumulation; i++) {
        m->engine.state->token_base = (int64_t)i * B * T;
        model_forward_backward(m, tokens, tokens + 1, B, T, 1.0f / (float)(B * T * accumulation));
    }
    optimizer_step(m, c);
    model_prepare_weights(m);
}

/* Median over `steps` after two to warm up. */
static Timing time_config(char *path, int steps) {
    Config c;
    Model m;
    char *args[] = {path};
    config_parse(&c, 1, args);
    Device *d = device_cpu_open(0);
    model_declare(&m, &c);
    model_place(&m, &c, d, &ops_cpu, 1);
    model_init(&m, 1);
    model_prepare_weights(&m);
    int count = c.batch.micro * c.batch.seq_len + 1;
    int32_t *tokens = xmalloc((size_t)count * sizeof(int32_t));
    for (int i = 0; i < count; i++)
        tokens[i] = (int32_t)(((uint32_t)i * 2654435761u) >> 8) % c.model.vocab;
    double *ms = xmalloc((size_t)steps * sizeof(double));
    for (int step = -2; step < steps; step++) {
        double started = now_ms();
        one_step(&m, &c, tokens, config_accumulation(&c, 1), step + 2);
        if (step >= 0) ms[step] = now_ms() - started;
    }
    qsort(ms, (size_t)steps, sizeof(double), by_value);
    double weights = (double)model_matrix_weights(&m) + (double)c.model.vocab * c.model.dim;
    Timing t = {ms[steps / 2], 0};
    t.gflops = 6 * weights * (double)config_step_tokens(&c, 1) / t.step_ms * 1e-6;
    printf("%-32s %8.1f ms a step %8.1f GFLOP/s (%s, %d threads, %s)\n", path, t.step_ms, t.gflops,
           d->name, d->num_threads, sgemm_name);
    free(tokens);
    free(ms);
    model_free(&m);
    d->close(d);
    config_free(&c);
    return t;
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 20;
    if (steps < 1) die(EXIT_CONFIG, "usage: bench_step [steps]; steps is at least 1");
    Timing bf16 = time_config("configs/runs/demo_bf16.json", steps);
    Timing nvfp4 = time_config("configs/runs/demo_nvfp4.json", steps);
    printf("NVFP4 / BF16: %.2f\n", nvfp4.step_ms / bf16.step_ms);
    return 0;
}
