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
    double best_ms, median_ms, gflops;
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
    model_finish_gradients(m);
    optimizer_step(m, c);
    model_begin_step(m, step + 1);
}

typedef struct {
    Config config;
    Device *device;
    Model model;
    int32_t *tokens;
    double *ms;   // of each timed step
    const char *path;
} Bench;

static void bench_open(Bench *b, char *path, int steps) {
    char *args[] = {path};
    b->path = path;
    config_parse(&b->config, 1, args);
    b->device = device_cpu_open(0);
    model_declare(&b->model, &b->config);
    model_place(&b->model, &b->config, b->device, &ops_cpu, 1);
    model_init(&b->model, 1);
    model_begin_step(&b->model, 0);
    int count = b->config.batch.micro * b->config.batch.seq_len + 1;
    b->tokens = xmalloc((size_t)count * sizeof(int32_t));
    for (int i = 0; i < count; i++) {
        b->tokens[i] = (int32_t)(((uint32_t)i * 2654435761u) >> 8) % b->config.model.vocab;
    }
    b->ms = xmalloc((size_t)steps * sizeof(double));
}

static void bench_close(Bench *b) {
    free(b->tokens);
    free(b->ms);
    model_free(&b->model);
    b->device->close(b->device);
    config_free(&b->config);
}

/* Step -1 and -2 warm up. */
static void bench_time(Bench *b, int step) {
    double started = now_ms();
    one_step(&b->model, &b->config, b->tokens, config_accumulation(&b->config, 1), step + 2);
    if (step >= 0) b->ms[step] = now_ms() - started;
}

static Timing bench_report(Bench *b, int steps) {
    qsort(b->ms, (size_t)steps, sizeof(double), by_value);
    const Model *m = &b->model;
    double weights =
        (double)model_matrix_weights(m) + (double)m->config.vocab * (double)m->config.dim;
    double flops = 6 * weights * (double)config_step_tokens(&b->config, 1);
    Timing t = {b->ms[0], b->ms[steps / 2], flops / b->ms[steps / 2] * 1e-6};
    printf("%-30s %7.1f ms a step, best %7.1f: %6.1f GFLOP/s, best %6.1f\n", b->path, t.median_ms,
           t.best_ms, t.gflops, flops / t.best_ms * 1e-6);
    return t;
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 20;
    if (steps < 1) die(EXIT_CONFIG, "usage: bench_step [steps]; steps is at least 1");
    Bench bf16, nvfp4;
    bench_open(&bf16, "configs/runs/demo_bf16.json", steps);
    bench_open(&nvfp4, "configs/runs/demo_nvfp4.json", steps);
    printf("%s, %d threads, %s\n", bf16.device->name, bf16.device->num_threads, sgemm_name);
    // By turns, so that what else the machine does falls on both.
    for (int step = -2; step < steps; step++) {
        bench_time(&bf16, step);
        bench_time(&nvfp4, step);
    }
    Timing a = bench_report(&bf16, steps), b = bench_report(&nvfp4, steps);
    printf("NVFP4 / BF16: %.2f, of the best steps %.2f\n", b.median_ms / a.median_ms,
           b.best_ms / a.best_ms);
    bench_close(&bf16);
    bench_close(&nvfp4);
    return 0;
}
