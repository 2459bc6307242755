/* predict_text -- a prediction as the lines of the verb plan; see predict.h. */
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "common.h"
#include "plan.h"
#include "predict_ranks.h"

typedef struct {
    FILE *out;
    Model *m;   // its engine is that of the predicted device
    const Config *c;
    const DeviceFacts *facts;
    DeviceModel device;
    int ranks;
} Page;

/* --- figures --- */

Figure predict_figure(double x) {
    Figure f;
    snprintf(f.text, sizeof(f.text), "%.2e", x);
    int exponent = atoi(strchr(f.text, 'e') + 1);
    double rounded = strtod(f.text, NULL);
    snprintf(f.text, sizeof(f.text), "%.*f", exponent < 2 ? 2 - exponent : 0, rounded);
    return f;
}

static void print_cost(FILE *out, const char *name, Cost cost, double step_seconds) {
    fprintf(out, "  %-22s %10s TFLOP %10s GB %10s ms %6.1f %%\n", name,
            predict_figure(cost.flops * 1e-12).text, predict_figure(cost.bytes * 1e-9).text,
            predict_figure(cost.seconds * 1e3).text, 100 * cost.seconds / step_seconds);
}

static void print_terms(const Page *page, const Prediction *p) {
    for (int i = 0; i < NUM_TERMS; i++) {
        if (p->term[i].seconds > 0)
            print_cost(page->out, predict_term_names[i], p->term[i], p->step.seconds);
    }
    print_cost(page->out, "step", p->step, p->step.seconds);
    fprintf(page->out, "  %s tokens/s\n", predict_figure(p->tokens / p->step.seconds).text);
}

double predict_memory(const Model *m) {
    double bytes = 0;
    for (int i = 0; i < NUM_ARENAS; i++)
        bytes += i == ARENA_WORKSPACE ? 0 : (double)m->arenas[i].used;
    return bytes;
}

int predict_fits(DeviceModel device, double bytes) {
    // The driver and the libraries keep the rest.
    return bytes <= 0.95 * device_facts[device].memory;
}

static void set_recompute(Model *m, const Config *c, RecomputeLevel level) {
    for (int i = 0; i < m->num_branches; i++) m->blocks[i].recompute = level;
    model_measure(m, c, m->engine.device, m->engine.ops, m->engine.training);
}

/* The level of memory.recompute that costs least of those that fit, or that none does. */
static void print_remedy(const Page *page) {
    double bytes = 0;
    RecomputeLevel now = page->c->memory.recompute;
    int level = (int)now + 1;
    for (; level < NUM_RECOMPUTES; level++) {
        set_recompute(page->m, page->c, (RecomputeLevel)level);
        bytes = predict_memory(page->m);
        if (predict_fits(page->device, bytes)) break;
    }
    set_recompute(page->m, page->c, now);
    if (level < NUM_RECOMPUTES)
        fprintf(page->out, "; memory.recompute=%s does, with %s GB", recompute_names[level],
                predict_figure(bytes * 1e-9).text);
    else
        fprintf(page->out, "%s; lower batch.micro",
                (int)now + 1 < NUM_RECOMPUTES ? ", with no memory.recompute" : "");
}

static void print_memory(const Page *page) {
    double bytes = predict_memory(page->m), memory = page->facts->memory;
    int fits = predict_fits(page->device, bytes);
    fprintf(page->out, "  memory without op workspace %s of %.0f GB%s",
            predict_figure(bytes * 1e-9).text, memory * 1e-9, fits ? "" : ": does not fit");
    if (!fits) print_remedy(page);
    fprintf(page->out, "\n");
}

/* Of plan.tokens or of the whole run; 0 where neither is known. */
static double run_tokens(const Page *page, double step_tokens, int64_t steps) {
    const Config *c = page->c;
    if (c->plan.tokens > 0) return (double)c->plan.tokens;
    if (steps > 0) return (double)steps * step_tokens;
    if (c->train.steps > 0) return (double)c->train.steps * step_tokens;
    return (double)c->train.tokens;
}

static void print_length(const Page *page, const Prediction *p, double tokens) {
    if (tokens == 0) return;
    double seconds = tokens / p->tokens * p->step.seconds;
    const char *unit = seconds < 60 ? "seconds" : seconds < 3600 ? "minutes" : "hours";
    double of_unit = seconds < 60 ? 1 : seconds < 3600 ? 60 : 3600;
    fprintf(page->out, "  %.4g tokens: %s %s on one\n", tokens,
            predict_figure(seconds / of_unit).text, unit);
}

/* --- the program's own kernel, whose rate is not known --- */

static int multiplies_by_mma(const Engine *e, const Linear *l) {
    if (e->fp4 != FP4_MMA) return 0;
    for (int g = 0; g < NUM_GEMMS; g++) {
        int has_blocks = operand_has_blocks(&l->plan.cell[g][SIDE_A]);
        if (has_blocks && linear_gemm_form(e, l, (GemmKind)g) == FORM_PACKED) return 1;
    }
    return 0;
}

static int some_linear_multiplies_by_mma(Model *m) {
    for (int id = 0; id < model_num_linears(m); id++) {
        if (multiplies_by_mma(&m->engine, model_linear(m, id))) return 1;
    }
    return 0;
}

/* --- crossover --- */

static void print_crossover(FILE *out, const char *name, const char *recipe, Crossover x) {
    fprintf(out, "    %s  bf16 %9s us  %s %9s us  ", name, predict_figure(x.bf16 * 1e6).text,
            recipe, predict_figure(x.quantised * 1e6).text);
    if (x.quantised < x.bf16) fprintf(out, "%s %.2fx\n", recipe, x.bf16 / x.quantised);
    else fprintf(out, "bf16 faster\n");
}

static int shape_is_new(Model *m, int id) {
    const Linear *l = model_linear(m, id);
    for (int i = 0; i < id; i++) {
        if (model_linear(m, i)->in == l->in && model_linear(m, i)->out == l->out) return 0;
    }
    return 1;
}

static void print_crossovers(const Page *page) {
    FILE *out = page->out;
    Model *m = page->m;
    const Recipe *recipe = predict_recipe(page->c);
    Linear quantised = *model_linear(m, 0);
    quantised.plan = recipe->plan;
    if (multiplies_by_mma(&m->engine, &quantised)) return;
    fprintf(out, "  products of %lld tokens, with their part of quantising; on one %s %s %s\n",
            (long long)page->c->batch.micro * page->c->batch.seq_len, page->facts->name,
            recipe->name, backend_gemm_name(&m->engine, &quantised, GEMM_FPROP));
    for (int id = 0; id < model_num_linears(m); id++) {
        if (!shape_is_new(m, id)) continue;
        const Linear *l = model_linear(m, id);
        Crossover all = {0, 0};
        fprintf(out, "   %d -> %d, as %s\n", l->in, l->out, l->name);
        for (int g = 0; g < NUM_GEMMS; g++) {
            Crossover x = predict_crossover(m, page->c, page->device, id, (GemmKind)g);
            print_crossover(out, gemm_names[g], recipe->name, x);
            all.bf16 += x.bf16;
            all.quantised += x.quantised;
        }
        print_crossover(out, "all  ", recipe->name, all);
    }
}

/* --- the page --- */

static void print_levels(const Page *page) {
    if (page->ranks > 1)
        predict_levels_print(page->out, page->m, page->c, page->device, page->ranks);
}

static void print_page(const Page *page, int64_t steps) {
    char tag[64];
    plan_precision_tag(page->m, page->c, tag, sizeof(tag));
    if (some_linear_multiplies_by_mma(page->m)) {
        fprintf(page->out,
                "predicted   no time on one %s, %s: the rate of precision.gemm=mma is not known\n",
                page->facts->name, tag);
        print_memory(page);
        print_levels(page);
        return;
    }
    Prediction p = predict_step(page->m, page->c, page->device, page->ranks);
    fprintf(page->out, "predicted   on one %s, %s: %.0f tokens a step%s\n", page->facts->name, tag,
            p.tokens, page->ranks > 1 ? ", without communication" : "");
    fprintf(page->out, "  computed from rooflines, %s\n",
            page->facts->measured ? "with the shares of them that were measured on this GPU"
                                  : "never measured on Blackwell");
    if (page->m->num_phases > 1)
        fprintf(page->out, "  of the first phase: precision.schedule has not begun\n");
    print_terms(page, &p);
    print_memory(page);
    double tokens = run_tokens(page, p.tokens * page->ranks, steps);
    print_length(page, &p, tokens);
    print_crossovers(page);
    print_levels(page);
    predict_scaling_print(page->out, page->m, page->c, page->device, page->ranks, tokens);
}

/* With the model's engine and arenas as they would be there. */
static void print_there(Page *page, int64_t steps) {
    Engine *e = &page->m->engine, at_hand = *e;
    Device there = backend_device(page->device);
    e->fp4 = backend_fp4(page->c, &there);
    e->fp8 = backend_fp8(page->c, &there);
    model_measure(page->m, page->c, &there, at_hand.ops, at_hand.training);
    print_page(page, steps);
    e->fp4 = at_hand.fp4;
    e->fp8 = at_hand.fp8;
    e->device = at_hand.device;
}

char *predict_text(Model *m, const Config *c, int ranks, int64_t steps) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    CHECK(out, "no memory for the text of a prediction");
    DeviceModel device = c->plan.device;
    if (device == DEVICE_MODEL_AUTO) device = device_model_find(m->engine.device->name);
    Page page = {out, m, c, &device_facts[device], device, ranks};
    const Engine at_hand = m->engine;
    int rank = m->zero.rank, size = m->zero.size;
    const char *nothing = NULL;
    if (device == DEVICE_MODEL_AUTO)
        nothing = "nothing is known of the device at hand; name one by plan.device (`help "
                  "plan.device`)";
    else if (c->model.dtype == DT_F32) nothing = "recipe f32 runs on the CPU only";
    if (nothing) {
        fprintf(out, "predicted   nothing: %s\n", nothing);
        page.device = DEVICE_MODEL_AUTO;
        print_levels(&page);
    } else {
        print_there(&page, steps);
    }
    model_split(m, c, rank, size);
    model_measure(m, c, at_hand.device, at_hand.ops, at_hand.training);
    fclose(out);
    if (text[bytes - 1] == '\n') text[bytes - 1] = '\0';
    return text;
}
