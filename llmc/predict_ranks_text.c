/* predict_ranks_text -- memory, bytes and times of many GPUs as tables; see predict_ranks.h. */
#include "common.h"
#include "plan.h"
#include "predict_ranks.h"

typedef struct {
    FILE *out;
    Model *m;
    const Config *c;
    DeviceModel device;
    int ranks;
} Page;

/* One rank's arenas at one level, bytes. */
typedef struct {
    double arena[NUM_ARENAS], all, windows;
    StepTraffic traffic;
} LevelMemory;

enum { NAME_WIDTH = 26, FIGURE_WIDTH = 13 };

/* --- levels --- */

/* Of rank 0, whose parts are as large as any. The model is laid out as a run would lay it out. */
static LevelMemory measure(const Page *page, int level, int ranks) {
    Model *m = page->m;
    Engine *e = &m->engine;
    Config at = *page->c;
    LevelMemory memory;
    Tensor none = {0};
    at.parallel.zero = level;
    m->params.grad_windows = m->params.value_windows = none;   // not every level places them
    model_split(m, &at, 0, ranks);
    model_measure(m, &at, e->device, e->ops, e->training);
    for (int i = 0; i < NUM_ARENAS; i++) memory.arena[i] = (double)m->arenas[i].used;
    memory.all = predict_memory(m);
    if (page->device == DEVICE_MODEL_AUTO) memory.all += memory.arena[ARENA_WORKSPACE];
    memory.windows =
        (double)(tensor_bytes(m->params.grad_windows) + tensor_bytes(m->params.value_windows));
    memory.traffic = predict_traffic(m, &at);
    return memory;
}

/* In GB, but what would be 0.00 of them. */
static Figure cell(double bytes) {
    Figure f = {"-"};
    if (bytes >= 1e6) return predict_figure(bytes * 1e-9);
    if (bytes > 0) snprintf(f.text, sizeof(f.text), "%.0f B", bytes);
    return f;
}

static void print_row(FILE *out, const char *name, const double *bytes) {
    double sum = 0;
    for (int level = 0; level < NUM_ZERO_LEVELS; level++) sum += bytes[level];
    if (sum == 0) return;
    fprintf(out, "  %-*s", NAME_WIDTH, name);
    for (int level = 0; level < NUM_ZERO_LEVELS; level++)
        fprintf(out, "%*s", FIGURE_WIDTH, cell(bytes[level]).text);
    fprintf(out, "\n");
}

static void print_fits(const Page *page, const LevelMemory *at) {
    char of[32];
    snprintf(of, sizeof(of), "of %.0f GB", device_facts[page->device].memory * 1e-9);
    fprintf(page->out, "  %-*s", NAME_WIDTH, of);
    for (int level = 0; level < NUM_ZERO_LEVELS; level++)
        fprintf(page->out, "%*s", FIGURE_WIDTH,
                predict_fits(page->device, at[level].all) ? "fits" : "does not fit");
    fprintf(page->out, "\n");
}

static void print_memory(const Page *page, const LevelMemory *at) {
    double row[NUM_ZERO_LEVELS];
    int is_known = page->device != DEVICE_MODEL_AUTO;
    for (int i = 0; i < NUM_ARENAS; i++) {
        if (is_known && i == ARENA_WORKSPACE) continue;   // of the device at hand
        for (int level = 0; level < NUM_ZERO_LEVELS; level++) row[level] = at[level].arena[i];
        print_row(page->out, page->m->arenas[i].name, row);
    }
    for (int level = 0; level < NUM_ZERO_LEVELS; level++) row[level] = at[level].all;
    print_row(page->out, is_known ? "all but op workspace" : "all", row);
    if (is_known) print_fits(page, at);
    for (int level = 0; level < NUM_ZERO_LEVELS; level++) row[level] = at[level].windows;
    print_row(page->out, "windows, counted above", row);
}

static void print_traffic(const Page *page, const LevelMemory *at) {
    double row[NUM_ZERO_LEVELS], all[NUM_ZERO_LEVELS] = {0};
    fprintf(page->out, "  GB that each sends in a step, and as many that it receives\n");
    for (int kind = 0; kind < NUM_TRAFFICS; kind++) {
        for (int level = 0; level < NUM_ZERO_LEVELS; level++) {
            row[level] = predict_sent(&at[level].traffic.kind[kind], page->ranks);
            all[level] += row[level];
        }
        print_row(page->out, traffic_names[kind], row);
    }
    print_row(page->out, "all", all);
    // The model is split for the last level.
    const Traffic *gathered = &at[NUM_ZERO_LEVELS - 1].traffic.kind[TRAFFIC_FORWARD];
    const char *plain = dtype_info[page->m->config.dtype].name;
    double saving = predict_gather_saving(page->m, gathered);
    if (saving > 1)
        fprintf(page->out,
                "  weights come as codes where products read values: %.2f times fewer "
                "bytes than in %s\n",
                saving, plain);
    else fprintf(page->out, "  weights come in %s, and each rank makes operands of them\n", plain);
}

void predict_levels_print(FILE *out, Model *m, const Config *c, DeviceModel device, int ranks) {
    Page page = {out, m, c, device, ranks};
    LevelMemory at[NUM_ZERO_LEVELS];
    const char *name = device ? device_facts[device].name : m->engine.device->name;
    for (int level = 0; level < NUM_ZERO_LEVELS; level++) at[level] = measure(&page, level, ranks);
    fprintf(out, "ranks       each of %d, with one %s\n", ranks, name);
    fprintf(out, "  %-*s", NAME_WIDTH, "GB at parallel.zero =");
    for (int level = 0; level < NUM_ZERO_LEVELS; level++) fprintf(out, "%*d", FIGURE_WIDTH, level);
    fprintf(out, "\n");
    print_memory(&page, at);
    print_traffic(&page, at);
}

/* --- scaling --- */

static void print_scaling_row(const Page *page, int ranks, double tokens) {
    const Config *c = page->c;
    FILE *out = page->out;
    if (!config_divides(c, ranks)) {
        fprintf(out, "  %6d   batch.total_tokens %lld is not a multiple of %lld\n", ranks,
                (long long)c->batch.total_tokens,
                (long long)c->batch.micro * c->batch.seq_len * ranks);
        return;
    }
    double memory = measure(page, c->parallel.zero, ranks).all;
    Scaling s = predict_scaling(page->m, c, page->device, ranks);
    double hours = tokens / s.tokens * s.seconds / 3600;
    fprintf(out, "  %6d %6d %6d %9s%s %10s %10s %10s %7.1f %%", ranks, s.nodes, s.micro_steps,
            predict_figure(memory * 1e-9).text, predict_fits(page->device, memory) ? " " : "!",
            predict_figure(s.seconds * 1e3).text, predict_figure(s.exposed * 1e3).text,
            predict_figure(s.tokens / s.seconds).text, 100 * s.efficiency);
    if (tokens > 0)
        fprintf(out, " %10s %10s", predict_figure(hours / 24).text,
                predict_figure(hours * ranks).text);
    if (tokens > 0 && c->plan.gpu_hour_price > 0)
        fprintf(out, " %10s", predict_figure(hours * ranks * c->plan.gpu_hour_price).text);
    fprintf(out, "\n");
}

static void print_heading(const Page *page, double tokens) {
    FILE *out = page->out;
    fprintf(out, "scaling     parallel.zero=%d", page->c->parallel.zero);
    if (tokens > 0) fprintf(out, "; days, GPU-hours of %.4g tokens", tokens);
    fprintf(out, "; ! where memory is too small\n  %6s %6s %6s %9s  %10s %10s %10s %9s", "GPUs",
            "nodes", "micro", "GB each", "ms a step", "waiting", "tokens/s", "efficient");
    if (tokens > 0) fprintf(out, " %10s %10s", "days", "GPU-hours");
    if (tokens > 0 && page->c->plan.gpu_hour_price > 0) fprintf(out, " %10s", "price");
    fprintf(out, "\n");
}

void predict_scaling_print(FILE *out, Model *m, const Config *c, DeviceModel device, int ranks,
                           double tokens) {
    static const int counts[] = {1, 8, 64, 512};
    Page page = {out, m, c, device, ranks};
    int last = 0;
    print_heading(&page, tokens);
    for (int i = 0; i < ARRAY_LEN(counts); i++) {
        if (last < ranks && ranks < counts[i]) print_scaling_row(&page, ranks, tokens);
        print_scaling_row(&page, counts[i], tokens);
        last = counts[i];
    }
    if (ranks > last) print_scaling_row(&page, ranks, tokens);
    network_print(out, c, device);
    fprintf(out, "           gradients hide under the backward pass, two thirds of a micro-step, "
                 "weights under\n           the products before theirs; nothing else hides\n");
}
