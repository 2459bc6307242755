/*
config_check -- what follows from several keys together: derived values, contradictions, and the
arithmetic of steps and tokens. Single values were checked when they were set.
*/
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "config_parts.h"

/* "96 or 104": the multiples around a value that is none. */
static const char *nearest_multiples(int64_t value, int64_t multiple, char *buffer, int size) {
    int64_t below = value / multiple * multiple;
    if (below > 0) {
        snprintf(buffer, size, "%lld or %lld", (long long)below, (long long)(below + multiple));
    } else {
        snprintf(buffer, size, "%lld", (long long)multiple);
    }
    return buffer;
}

/* --- the model --- */

static void finish_pattern(ModelConfig *m, int layers_given) {
    int length = (int)strlen(m->pattern), known = (int)strspn(m->pattern, "*-");
    if (length == 0) return;
    if (known < length) {
        die(EXIT_CONFIG,
            "config: model.pattern has '%c' at place %d; legal: * (attention) and - (MLP)",
            m->pattern[known], known + 1);
    }
    if (layers_given && m->layers != length) {
        die(EXIT_CONFIG,
            "config: model.layers is %d, but model.pattern has %d blocks; leave model.layers out",
            m->layers, length);
    }
    m->layers = length;
}

static void finish_heads(ModelConfig *m) {
    char nearest[64];
    if (m->head_dim == 0 && m->dim % m->heads != 0) {
        die(EXIT_CONFIG,
            "config: model.dim is %d, not a multiple of model.heads %d; nearest: %s, or set "
            "model.head_dim",
            m->dim, m->heads, nearest_multiples(m->dim, m->heads, nearest, sizeof(nearest)));
    }
    if (m->head_dim == 0) m->head_dim = m->dim / m->heads;
    if (m->kv_heads == 0) m->kv_heads = m->heads;
    if (m->heads % m->kv_heads != 0) {
        die(EXIT_CONFIG, "config: model.kv_heads is %d, not a divisor of model.heads %d",
            m->kv_heads, m->heads);
    }
    if (m->pos == POS_ROPE && m->head_dim % 2 != 0) {
        die(EXIT_CONFIG,
            "config: model.head_dim is %d; model.pos rope turns pairs, so it must be "
            "even",
            m->head_dim);
    }
}

static void finish_ffn(ModelConfig *m) {
    if (m->ffn > 0) return;
    if (m->act != ACT_GELU) {
        die(EXIT_CONFIG,
            "config: model.ffn is not given; 4 x model.dim is its default for model.act gelu only, "
            "not for %s",
            act_info[m->act].name);
    }
    m->ffn = 4 * m->dim;
}

/* --- the rest --- */

static void check_precision(const Config *c) {
    int recipe_is_f32 = c->precision.recipe->plan.cell[GEMM_FPROP][SIDE_A].format == FORMAT_F32;
    if (recipe_is_f32 != (c->model.dtype == DT_F32)) {
        die(EXIT_CONFIG,
            "config: precision.recipe is %s and model.dtype is %s; f32 goes with f32 only: set "
            "%s=f32 too, or another %s",
            c->precision.recipe->name, dtype_info[c->model.dtype].name,
            recipe_is_f32 ? "model.dtype" : "precision.recipe",
            recipe_is_f32 ? "precision.recipe" : "model.dtype");
    }
    if (recipe_is_f32 && c->device == DEVICE_CHOICE_CUDA) {
        die(EXIT_CONFIG, "config: precision.recipe f32 runs on the CPU only; set device=cpu");
    }
    if (c->precision.smooth_swiglu != SMOOTH_NONE && c->model.act != ACT_SWIGLU) {
        die(EXIT_CONFIG,
            "config: precision.smooth_swiglu is %s, but model.act is %s; legal: none, or set "
            "model.act=swiglu",
            smoothing_names[c->precision.smooth_swiglu], act_info[c->model.act].name);
    }
    if (c->precision.out_control.to < c->precision.out_control.from) {
        die(EXIT_CONFIG,
            "config: precision.out_control.to is %lld; legal: from precision.out_control.from %lld "
            "on",
            (long long)c->precision.out_control.to, (long long)c->precision.out_control.from);
    }
    if (c->precision.out_control.fraction > 0 && c->precision.backend == BACKEND_NATIVE) {
        die(EXIT_CONFIG,
            "config: precision.out_control mixes MXFP8 channels into products, which only decoded "
            "values can; precision.backend is native; set precision.backend=emulate");
    }
    if (c->precision.osci_reset.window >= c->precision.osci_reset.period) {
        die(EXIT_CONFIG,
            "config: precision.osci_reset.window is %lld; legal: less than "
            "precision.osci_reset.period %lld",
            (long long)c->precision.osci_reset.window, (long long)c->precision.osci_reset.period);
    }
    int last = c->precision.keep_last > 0 ? c->precision.keep_last : 0;
    if (c->precision.keep_first + last > c->model.layers) {
        die(EXIT_CONFIG,
            "config: precision.keep_bf16.first %d and precision.keep_bf16.last %d are more than "
            "the %d blocks of the model",
            c->precision.keep_first, last, c->model.layers);
    }
}

static void check_length(const Config *c) {
    int given = (c->train.steps > 0) + (c->train.tokens > 0) + (c->train.epochs > 0);
    if (given > 1) {
        die(EXIT_CONFIG,
            "config: train.steps, train.tokens and train.epochs say the same thing; give one");
    }
    if (c->train.steps > 0 && c->sched.warmup_steps >= c->train.steps) {
        die(EXIT_CONFIG, "config: sched.warmup_steps is %lld; legal: less than train.steps %lld",
            (long long)c->sched.warmup_steps, (long long)c->train.steps);
    }
}

/* What an int counts in ops, and what no device has memory for. */
static void check_micro_batch(const Config *c) {
    int is_eval = c->eval.micro > c->batch.micro;
    int micro = is_eval ? c->eval.micro : c->batch.micro;
    int64_t tokens = (int64_t)micro * c->batch.seq_len;
    if (tokens <= INT32_MAX) return;
    die(EXIT_CONFIG,
        "config: %s %d x batch.seq_len %d = %lld tokens; legal: a micro-batch of less than 2^31 "
        "tokens; batch.total_tokens makes steps of many",
        is_eval ? "eval.micro" : "batch.micro", micro, c->batch.seq_len, (long long)tokens);
}

/* Two names of one directory, which may not be there yet. */
static int is_same_directory(const char *a, const char *b) {
    struct stat a_info, b_info;
    int there = stat(a, &a_info) == 0 && stat(b, &b_info) == 0;
    if (there) return a_info.st_dev == b_info.st_dev && a_info.st_ino == b_info.st_ino;
    size_t a_length = strlen(a), b_length = strlen(b);
    while (a_length > 1 && a[a_length - 1] == '/') a_length--;
    while (b_length > 1 && b[b_length - 1] == '/') b_length--;
    return a_length == b_length && memcmp(a, b, a_length) == 0;
}

static void check_reference(const Config *c) {
    if (!c->log.reference[0]) {
        if (c->log.reference_warn == 0) return;
        die(EXIT_CONFIG,
            "config: log.reference_warn is %g, but log.reference is not set: there is no gap to "
            "warn of; set log.reference to the log.dir of the run to compare with, or "
            "log.reference_warn=0",
            c->log.reference_warn);
    }
    if (!is_same_directory(c->log.reference, c->log.dir)) return;
    die(EXIT_CONFIG,
        "config: log.reference %s is the run's own log.dir; set log.reference to the log.dir of "
        "another run, or log.dir to one of its own",
        c->log.reference);
}

static void check_log(const Config *c) {
    check_reference(c);
    for (int i = 0; i < c->precision.schedule.count && !c->log.gradient_noise; i++) {
        if (c->precision.schedule.items[i].kind != MOMENT_SQRT3) continue;
        die(EXIT_CONFIG,
            "config: precision.schedule[%d] waits for \"sqrt3\", which log.gradient_noise "
            "measures; set it, and log.telemetry_every to the steps between measurements",
            i);
    }
    if (c->log.telemetry_every > 0) return;
    const char *key = c->log.gradient_noise        ? "log.gradient_noise"
                      : c->log.telemetry_layers[0] ? "log.telemetry_layers"
                                                   : NULL;
    if (key) {
        die(EXIT_CONFIG, "config: %s is set, but log.telemetry_every is 0: no step is looked at",
            key);
    }
}

/* A floor that an entry does not give is that of the first fall. */
static void finish_schedule(Config *c) {
    for (int i = 0; i < c->precision.schedule.count; i++) {
        ScheduleEntry *entry = &c->precision.schedule.items[i];
        if (entry->final_frac < 0) entry->final_frac = c->sched.final_frac;
    }
}

static void finish_directories(Config *c) {
    if (!c->log.dir[0]) {
        die(EXIT_CONFIG, "config: log.dir is empty; a run keeps its record there");
    }
    if (c->ckpt.dir[0]) return;
    int room = (int)sizeof(c->ckpt.dir);
    if (snprintf(c->ckpt.dir, sizeof(c->ckpt.dir), "%s/ckpt", c->log.dir) >= room) {
        die(EXIT_CONFIG, "config: log.dir is too long for ckpt.dir to be below it; set ckpt.dir");
    }
}

void config_finish(Config *c, int layers_given) {
    finish_pattern(&c->model, layers_given);
    finish_heads(&c->model);
    finish_ffn(&c->model);
    if (c->eval.micro == 0) c->eval.micro = c->batch.micro;
    check_micro_batch(c);
    finish_directories(c);
    finish_schedule(c);
    check_precision(c);
    check_length(c);
    check_log(c);
}

/* --- steps and tokens --- */

/* Tokens that all ranks work on at a time. */
static int64_t micro_step_tokens(const Config *c, int world_size) {
    return (int64_t)c->batch.micro * c->batch.seq_len * world_size;
}

int config_divides(const Config *c, int world_size) {
    return c->batch.total_tokens % micro_step_tokens(c, world_size) == 0;
}

int config_accumulation(const Config *c, int world_size) {
    int64_t micro_step = micro_step_tokens(c, world_size);
    int64_t total = c->batch.total_tokens;
    if (total == 0) return 1;
    if (!config_divides(c, world_size)) {
        char nearest[64];
        die(EXIT_CONFIG,
            "config: batch.total_tokens is %lld, not a multiple of batch.micro %d x batch.seq_len "
            "%d x %d ranks = %lld; nearest: %s",
            (long long)total, c->batch.micro, c->batch.seq_len, world_size, (long long)micro_step,
            nearest_multiples(total, micro_step, nearest, sizeof(nearest)));
    }
    if (total / micro_step > INT32_MAX) {
        die(EXIT_CONFIG, "config: batch.total_tokens is %lld, more than 2^31 micro-steps of %lld",
            (long long)total, (long long)micro_step);
    }
    return (int)(total / micro_step);
}

int64_t config_step_tokens(const Config *c, int world_size) {
    return micro_step_tokens(c, world_size) * config_accumulation(c, world_size);
}

int64_t config_steps(const Config *c, int world_size, int64_t epoch_sequences) {
    int64_t step_tokens = config_step_tokens(c, world_size), steps = c->train.steps;
    if (c->train.tokens > 0) steps = ceil_div(c->train.tokens, step_tokens);
    if (c->train.epochs > 0) {
        double tokens = c->train.epochs * (double)epoch_sequences * c->batch.seq_len;
        steps = max_i64(1, (int64_t)floor(tokens / (double)step_tokens));
    }
    if (steps == 0) {
        die(EXIT_CONFIG, "config: how long to train is not given; set one of train.steps, "
                         "train.tokens, train.epochs");
    }
    if (c->sched.warmup_steps >= steps) {
        die(EXIT_CONFIG,
            "config: sched.warmup_steps is %lld; legal: less than the %lld steps of "
            "the run",
            (long long)c->sched.warmup_steps, (long long)steps);
    }
    return steps;
}
