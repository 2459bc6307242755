/* plan -- the tables printed at start; see plan.h. */
#include "plan.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "common.h"
#include "oscillation.h"
#include "out_control.h"

/* --- growing text --- */

typedef struct {
    char *text;
    size_t length, capacity;
} Text;

PRINTF_LIKE(2, 3)
static void text_add(Text *t, const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    CHECK(n >= 0 && n < (int)sizeof(line), "line of the plan is too long");
    if (t->length + (size_t)n + 1 > t->capacity) {
        t->capacity = 2 * (t->capacity + (size_t)n + 256);
        t->text = (char *)xrealloc(t->text, t->capacity);
    }
    memcpy(t->text + t->length, line, (size_t)n + 1);
    t->length += (size_t)n;
}

/* --- precision --- */

/* "native" for codes, "emulated" for decoded values, the format's name for plain operands. */
static const char *how_multiplied(const Engine *e, const Linear *l, GemmKind g) {
    if (linear_gemm_is_quantized(l, g)) return backend_gemm_name(e, l, g);
    return formats[l->plan.cell[g][SIDE_A].format].name;
}

/* The lines of GEMMs: what they are about, and how wide their columns are. */
typedef struct {
    Text text;
    const Engine *engine;
    const GemmRate *rates;
    int operand_width;
    int of_changes;   // 1: of the GEMMs alone that the model's phase changes
} Table;
enum { NAME_WIDTH = 27 };   // "embedding, norms, attention"

static int operand_width(Model *m) {
    int width = 0;
    for (int i = 0; i < NUM_GEMMS * NUM_SIDES * model_num_linears(m); i++) {
        const LinearPlan *plan = &model_linear(m, i / (NUM_GEMMS * NUM_SIDES))->plan;
        char text[64];
        operand_describe(&plan->cell[i / NUM_SIDES % NUM_GEMMS][i % NUM_SIDES], text, sizeof(text));
        width = (int)max_i64(width, (int64_t)strlen(text));
    }
    return width;
}

static void gemm_line(Table *t, const char *name, const Linear *l, GemmKind g) {
    char a[64], b[64];
    operand_describe(&l->plan.cell[g][SIDE_A], a, sizeof(a));
    operand_describe(&l->plan.cell[g][SIDE_B], b, sizeof(b));
    text_add(&t->text, "%-*s %s  %-2s %-*s %s %-*s  %s", NAME_WIDTH, name, gemm_names[g],
             operand_names[g][SIDE_A], t->operand_width, a, operand_names[g][SIDE_B],
             t->operand_width, b, how_multiplied(t->engine, l, g));
    int f32 = linear_gemm_is_quantized(l, g) && linear_values_dtype(l, g) == DT_F32;
    if (f32) text_add(&t->text, ", f32 values");
    if (t->engine->device) text_add(&t->text, ", %s", backend_kernel(t->engine, l, g));
    const GemmRate *rate = t->rates ? &t->rates[l->id * NUM_GEMMS + (int)g] : NULL;
    if (rate && rate->planned > 0) text_add(&t->text, "  %.0f TFLOP/s", rate->planned * 1e-12);
    if (rate && rate->bf16 > 0 && rate->bf16 != rate->planned)
        text_add(&t->text, " (bf16 %.0f)", rate->bf16 * 1e-12);
    text_add(&t->text, "\n");
}

/* Of the phase before the model's. */
static const LinearPlan *plan_before(Model *m, const Linear *l) {
    return model_plan(m, m->phase - 1, l->id);
}

static int same_plan(const LinearPlan *a, const LinearPlan *b) {
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* Now and, in a later phase than the first, before. */
static int same_plans(Model *m, const Linear *a, const Linear *b) {
    return same_plan(&a->plan, &b->plan) &&
           (m->phase == 0 || same_plan(plan_before(m, a), plan_before(m, b)));
}

/* The last branch, `stride` apart, that continues a run of blocks with the plans of branch `first`.
   */
static int last_alike(Model *m, int first, int stride) {
    int last = first;
    while (last + stride < m->num_branches) {
        const Block *a = &m->blocks[last], *b = &m->blocks[last + stride];
        int continues = b->kind == a->kind && b->index == a->index + 1 &&
                        same_plans(m, &a->in, &b->in) && same_plans(m, &a->out, &b->out);
        if (!continues) break;
        last += stride;
    }
    return last;
}

static void linear_lines(Table *t, Model *m, const Block *first, const Block *last,
                         const Linear *l) {
    const char *linear_name = l == &first->in ? first->kind->in_name : first->kind->out_name;
    char name[96];
    if (first == last) {
        snprintf(name, sizeof(name), "%s", l->name);
    } else {
        snprintf(name, sizeof(name), "blocks.%d-%d.%s.%s", first->index, last->index,
                 first->kind->name, linear_name);
    }
    for (int g = 0; g < NUM_GEMMS; g++) {
        size_t bytes = sizeof(l->plan.cell[g]);
        if (t->of_changes && !memcmp(l->plan.cell[g], plan_before(m, l)->cell[g], bytes)) continue;
        gemm_line(t, name, l, (GemmKind)g);
    }
}

static void block_lines(Table *t, Model *m, int brief) {
    int stride = m->config.pattern[0] ? 1 : 2;
    char *printed = (char *)xmalloc((size_t)m->num_branches);
    for (int i = 0; i < m->num_branches; i++) {
        if (printed[i]) continue;
        int last = brief ? last_alike(m, i, stride) : i;
        for (int j = i; j <= last; j += stride) printed[j] = 1;
        const Block *b = &m->blocks[i];
        linear_lines(t, m, b, &m->blocks[last], &b->in);
        linear_lines(t, m, b, &m->blocks[last], &b->out);
    }
    free(printed);
}

int plan_quantized_gemms(Model *m) {
    int count = 0;
    for (int id = 0; id < model_num_linears(m); id++) {
        count += linear_quantized_gemms(model_linear(m, id));
    }
    for (int i = 0; i < m->num_branches; i++) {
        const Block *b = &m->blocks[i];
        if (!block_keeps(b, KEPT_CORE_IN)) count += linear_gemm_is_quantized(&b->in, GEMM_FPROP);
    }
    return count;
}

int plan_all_gemms(Model *m) {
    int count = NUM_GEMMS * model_num_linears(m);
    for (int i = 0; i < m->num_branches; i++) count += !block_keeps(&m->blocks[i], KEPT_CORE_IN);
    return count;
}

static int has_smooth_blocks(const Model *m) {
    int count = 0;
    for (int i = 0; i < m->num_branches; i++) count += m->blocks[i].smooth;
    return count > 0;
}

char *plan_precision_text(Model *m, int brief, const GemmRate *rates) {
    Table t = {{NULL, 0, 0}, &m->engine, rates, operand_width(m), 0};
    const char *dtype = dtype_info[m->config.dtype].name;
    int quantized = plan_quantized_gemms(m), all = plan_all_gemms(m);
    if (brief && quantized == 0 && !rates) {
        text_add(&t.text, "all %d GEMMs of the linears\n", all);
        return t.text.text;
    }
    if (brief) text_add(&t.text, "formats as in `help precision`\n");
    block_lines(&t, m, brief);
    text_add(&t.text, "%-*s %s\n", NAME_WIDTH, "embedding, norms, attention", dtype);
    text_add(&t.text, "%-*s %s\n", NAME_WIDTH, "head", dtype);
    if (has_smooth_blocks(m))
        text_add(&t.text, "%-*s rows divided by their largest |up|, products multiplied by it\n",
                 NAME_WIDTH, "swiglu");
    if (out_control_linears(m) > 0)
        text_add(&t.text, "%-*s chosen features of %d linears in MXFP8, decoded values in FP32\n",
                 NAME_WIDTH, "out_control", out_control_linears(m));
    if (oscillation_weights(m) > 0)
        text_add(&t.text, "%-*s %lld weights, %d bytes each (%.1f MiB of the optimizer's)\n",
                 NAME_WIDTH, "osci_reset", (long long)oscillation_weights(m), OSCILLATION_BYTES,
                 (double)oscillation_weights(m) * OSCILLATION_BYTES / 1048576.0);
    text_add(&t.text, "GEMMs with quantised operands: %d of %d a micro-step\n", quantized, all);
    return t.text.text;
}

char *plan_phase_text(Model *m, int phase) {
    int now = m->phase;
    model_take_plans(m, phase);
    Table t = {{NULL, 0, 0}, &m->engine, NULL, operand_width(m), 1};
    block_lines(&t, m, 1);
    text_add(&t.text, "GEMMs with quantised operands: %d of %d a micro-step\n",
             plan_quantized_gemms(m), plan_all_gemms(m));
    model_take_plans(m, now);
    return t.text.text;
}

void plan_precision_tag(Model *m, const Config *c, char *buffer, int size) {
    const Recipe *recipe = c->precision.recipe;
    int has_rules = c->precision.rules.count > 0 || !recipe_is_quantized(recipe);
    if (plan_quantized_gemms(m) == 0) {
        snprintf(buffer, size, "%s", dtype_info[m->config.dtype].name);
    } else {
        snprintf(buffer, size, "%s%s(%s)", recipe->name, has_rules ? "+rules" : "",
                 backend_run_name(m));
    }
    size_t at = strlen(buffer);
    if (m->phase > 0) snprintf(buffer + at, (size_t)size - at, "/phase%d", m->phase);
}

/* --- memory --- */

size_t plan_memory_bytes(const Model *m) {
    size_t bytes = 0;
    for (int i = 0; i < NUM_ARENAS; i++)
        bytes += max_i64((int64_t)m->arenas[i].size, (int64_t)m->arenas[i].used);
    return bytes;
}

char *plan_memory_there_text(const Model *m) {
    Text t = {NULL, 0, 0};
    double all = 0;
    for (int i = 0; i < NUM_ARENAS; i++) {
        if (i == ARENA_WORKSPACE) continue;
        double bytes = (double)max_i64((int64_t)m->arenas[i].size, (int64_t)m->arenas[i].used);
        all += bytes;
        text_add(&t, "%-20s %10.3f GB\n", m->arenas[i].name, bytes * 1e-9);
    }
    text_add(&t, "%-20s %10.3f GB\n", "all but op workspace", all * 1e-9);
    return t.text;
}

char *plan_memory_text(const Model *m) {
    Text t = {NULL, 0, 0};
    for (int i = 0; i < NUM_ARENAS; i++) {
        const Arena *a = &m->arenas[i];
        int64_t bytes = max_i64((int64_t)a->size, (int64_t)a->used);
        text_add(&t, "%-20s %10.1f MiB\n", a->name, (double)bytes / 1048576.0);
    }
    text_add(&t, "%-20s %10.1f MiB\n", "all", (double)plan_memory_bytes(m) / 1048576.0);
    return t.text;
}
