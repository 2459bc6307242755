/* predict_text -- a prediction as the lines of the verb plan; see predict.h. */
#include <stdlib.h>

#include "common.h"
#include "predict.h"

/* Of a device's memory; the driver and the libraries keep the rest. */
static const double MEMORY_SHARE = 0.95;

/* NULL, or why nothing can be said of this run. */
static const char *unpredictable(const Config *c, DeviceModel device) {
    if (device == DEVICE_MODEL_AUTO)
        return "nothing is known of the device at hand; name one by plan.device (`help "
               "plan.device`)";
    if (c->model.dtype == DT_F32) return "recipe f32 runs on the CPU only";
    if (c->precision.gemm == GEMM_KERNEL_MMA) return "the rate of precision.gemm=mma is not known";
    return NULL;
}

static void print_cost(FILE *out, const char *name, Cost cost, double step_seconds) {
    fprintf(out, "  %-22s %10.2f TFLOP %10.2f GB %10.2f ms %6.1f %%\n", name, cost.flops * 1e-12,
            cost.bytes * 1e-9, cost.seconds * 1e3, 100 * cost.seconds / step_seconds);
}

static void print_terms(FILE *out, const Prediction *p) {
    for (int i = 0; i < NUM_TERMS; i++) {
        if (p->term[i].seconds > 0)
            print_cost(out, predict_term_names[i], p->term[i], p->step.seconds);
    }
    print_cost(out, "step", p->step, p->step.seconds);
    fprintf(out, "  %.0f tokens/s\n", p->tokens / p->step.seconds);
}

/* Arenas as they would be there. The op workspace is left out: it is of the device at hand. */
static void print_memory(FILE *out, Model *m, const Config *c, DeviceModel device) {
    Engine at_hand = m->engine;
    m->engine.fp4 = predict_fp4(c, device);
    m->engine.fp8 = predict_fp8(c, device);
    model_measure(m, c, at_hand.device, at_hand.ops, at_hand.training);
    double bytes = 0, memory = device_facts[device].memory;
    for (int i = 0; i < NUM_ARENAS; i++)
        bytes += i == ARENA_WORKSPACE ? 0 : (double)m->arenas[i].used;
    m->engine.fp4 = at_hand.fp4;
    m->engine.fp8 = at_hand.fp8;
    model_measure(m, c, at_hand.device, at_hand.ops, at_hand.training);
    fprintf(out, "  memory without op workspace %.1f of %.0f GB%s\n", bytes * 1e-9, memory * 1e-9,
            bytes > MEMORY_SHARE * memory ? ": does not fit" : "");
}

static void print_length(FILE *out, const Config *c, const Prediction *p, int ranks,
                         int64_t steps) {
    double step_tokens = p->tokens * ranks, tokens = (double)steps * step_tokens;
    if (steps == 0) tokens = (double)c->train.tokens;
    if (steps == 0 && c->train.steps > 0) tokens = (double)c->train.steps * step_tokens;
    if (c->plan.tokens > 0) tokens = (double)c->plan.tokens;
    if (tokens == 0) return;
    double hours = tokens / p->tokens * p->step.seconds / 3600;
    fprintf(out, "  %.4g tokens: %.*f hours on one\n", tokens, hours < 100 ? 2 : 0, hours);
}

/* --- crossover --- */

static void print_crossover(FILE *out, const char *name, Crossover x) {
    fprintf(out, "    %s  bf16 %9.1f us  nvfp4 %9.1f us  ", name, x.bf16 * 1e6, x.nvfp4 * 1e6);
    if (x.nvfp4 < x.bf16) fprintf(out, "nvfp4 %.2fx\n", x.bf16 / x.nvfp4);
    else fprintf(out, "bf16 faster\n");
}

static int shape_is_new(Model *m, int id) {
    const Linear *l = model_linear(m, id);
    for (int i = 0; i < id; i++) {
        if (model_linear(m, i)->in == l->in && model_linear(m, i)->out == l->out) return 0;
    }
    return 1;
}

static void print_crossovers(FILE *out, Model *m, const Config *c, DeviceModel device) {
    fprintf(out, "  products of %lld tokens, with their part of quantising; nvfp4 %s\n",
            (long long)c->batch.micro * c->batch.seq_len,
            predict_fp4(c, device) == FP4_EMULATED ? "emulated" : "native");
    for (int id = 0; id < model_num_linears(m); id++) {
        if (!shape_is_new(m, id)) continue;
        const Linear *l = model_linear(m, id);
        Crossover all = {0, 0};
        fprintf(out, "   %d -> %d, as %s\n", l->in, l->out, l->name);
        for (int g = 0; g < NUM_GEMMS; g++) {
            Crossover x = predict_crossover(m, c, device, id, (GemmKind)g);
            print_crossover(out, gemm_names[g], x);
            all.bf16 += x.bf16;
            all.nvfp4 += x.nvfp4;
        }
        print_crossover(out, "all  ", all);
    }
}

char *predict_text(Model *m, const Config *c, int ranks, int64_t steps) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    CHECK(out, "no memory for the text of a prediction");
    DeviceModel device = c->plan.device;
    if (device == DEVICE_MODEL_AUTO) device = device_model_find(m->engine.device->name);
    const char *why_not = unpredictable(c, device);
    if (why_not) {
        fprintf(out, "predicted   nothing: %s", why_not);
    } else {
        Prediction p = predict_step(m, c, device, ranks);
        fprintf(out, "predicted   one %s, %.0f tokens a step%s\n", device_facts[device].name,
                p.tokens, ranks > 1 ? ", without communication" : "");
        print_terms(out, &p);
        print_memory(out, m, c, device);
        print_length(out, c, &p, ranks, steps);
        print_crossovers(out, m, c, device);
    }
    fclose(out);
    if (text[bytes - 1] == '\n') text[bytes - 1] = '\0';
    return text;
}
