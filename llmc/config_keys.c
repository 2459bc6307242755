/*
config_keys -- the table of keys: parsing, echo and help are made from it, so that each name, range
and default is written once.
*/
#include <math.h>
#include <string.h>

#include "config_parts.h"
#include "zero.h"

const char *const pos_names[NUM_POSITIONS] = {"learned", "rope", "none"};
const char *const backend_names[NUM_BACKENDS] = {"auto", "native", "emulate"};
const char *const gemm_kernel_names[NUM_GEMM_KERNELS] = {"cublaslt", "mma"};
const char *const stochastic_names[NUM_STOCHASTICS] = {"software", "hardware"};
const char *const smoothing_names[NUM_SMOOTHINGS] = {"none", "token"};
const char *const recompute_names[NUM_RECOMPUTES] = {"none", "activation", "norm", "block"};
const char *const nan_names[NUM_NAN_POLICIES] = {"stop", "skip"};
const char *const device_choice_names[NUM_DEVICE_CHOICES] = {"auto", "cpu", "cuda"};

// As DType counts: only these two can be chosen.
static const char *const model_dtype_names[] = {[DT_F32] = "f32", [DT_BF16] = "bf16"};

enum { MAX_DIM = 1 << 17, MAX_LAYERS = 512, MAX_BATCH = 1 << 16, MAX_SEQ_LEN = 1 << 20 };
#define MAX_COUNT CONFIG_MAX_COUNT

#define NAMED(value_kind, text, member)                                                            \
    .name = text, .kind = KIND_##value_kind, .offset = offsetof(Config, member),                   \
    .bytes = sizeof(((Config *)0)->member)
#define KEY(kind, member) NAMED(kind, #member, member)
/* Texts of a table of strings, or of one whose rows have a name. */
#define CHOICES(table)                                                                             \
    .names = table, .name_stride = sizeof(table[0]), .num_names = ARRAY_LEN(table)
#define CHOICES_OF(table, count)                                                                   \
    .names = &table[0].name, .name_stride = sizeof(table[0]), .num_names = count

// clang-format off
const ConfigKey config_keys[] = {
    // name and place, default, smallest, largest, help, other programs' name
    {KEY(PRESET, model.preset), "", 0, 0,
     "start from a known model; other keys change it", "llm.c -e, nanoGPT init_from"},
    {KEY(STRING, model.pattern), "", 0, 0,
     "one character a block: * attention, - MLP; empty: model.layers times both", NULL},
    {KEY(INT, model.layers), "12", 1, MAX_LAYERS,
     "transformer blocks; with model.pattern its length", "nanoGPT n_layer"},
    {KEY(INT, model.dim), "768", 1, MAX_DIM,
     "width of the residual stream", "nanoGPT n_embd"},
    {KEY(INT, model.heads), "12", 1, 1024,
     "attention heads", "nanoGPT n_head"},
    {KEY(INT, model.kv_heads), "0", 0, 1024,
     "heads of keys and values, a divisor of model.heads; 0: model.heads", NULL},
    {KEY(INT, model.head_dim), "0", 0, 1024,
     "width of a head; 0: model.dim / model.heads", NULL},
    {KEY(INT, model.ffn), "0", 0, MAX_DIM * 8,
     "inner width of the MLP; 0: 4 x model.dim, for gelu only", NULL},
    {KEY(INT, model.vocab), "50257", 2, 1 << 24,
     "tokens of the vocabulary; memory is padded to a multiple of 128", "nanoGPT vocab_size"},
    {KEY(ENUM, model.norm), "layernorm", 0, 0,
     "normalisation before each branch and before the head", NULL, CHOICES(norm_names)},
    {KEY(FLOAT, model.norm_eps), "1e-5", 0, 1,
     "added to the variance or the mean square", NULL, .open = OPEN_MIN},
    {KEY(ENUM, model.act), "gelu", 0, 0,
     "activation of the MLP", NULL, CHOICES_OF(act_info, NUM_ACTS)},
    {KEY(ENUM, model.pos), "learned", 0, 0,
     "how positions are known", NULL, CHOICES(pos_names)},
    {KEY(DOUBLE, model.rope_theta), "10000", 1, 1e12,
     "base of the rotary frequencies", NULL, .open = OPEN_MIN},
    {KEY(BOOL, model.bias), "true", 0, 1,
     "biases in the linears of blocks", "nanoGPT bias"},
    {KEY(BOOL, model.tied), "true", 0, 1,
     "the head uses the token embedding", NULL},
    {KEY(FLOAT, model.init_std), "0.02", 0, 10,
     "standard deviation of initial weights; branches' last linears get less", NULL,
     .open = OPEN_MIN},
    {KEY(ENUM, model.dtype), "bf16", 0, 0,
     "activations and the weights GEMMs read; f32 goes with recipe f32", "nanoGPT dtype",
     CHOICES(model_dtype_names)},

    {KEY(SOURCES, data.train), "[]", 0, 0,
     "shards to train on: a glob, or a list of globs and {\"path\", \"weight\"}",
     "llm.c -i, nanoGPT dataset"},
    {KEY(SOURCES, data.val), "[]", 0, 0,
     "shards to validate on, in the same form", "llm.c -j"},
    {KEY(STRING, data.tokenizer), "", 0, 0,
     "tokenizer.vocab that was written with the shards; samples need it", NULL},
    {KEY(BOOL, data.shuffle), "true", 0, 1,
     "visit sequences in an order drawn from the seed", NULL},

    {KEY(INT, batch.micro), "4", 1, MAX_BATCH,
     "sequences a rank works on at a time", "llm.c -b, nanoGPT batch_size"},
    {KEY(INT, batch.seq_len), "1024", 1, MAX_SEQ_LEN,
     "tokens of a sequence", "llm.c -t, nanoGPT block_size"},
    {KEY(INT64, batch.total_tokens), "0", 0, MAX_COUNT,
     "tokens of an optimizer step over all ranks; 0: one micro-step", "llm.c -d"},

    {KEY(INT64, train.steps), "0", 0, MAX_COUNT,
     "optimizer steps of the whole run; give one of steps, tokens, epochs",
     "llm.c -x, nanoGPT max_iters", .exclusive = 1},
    {KEY(INT64, train.tokens), "0", 0, MAX_COUNT,
     "tokens of the whole run, rounded up to whole steps", NULL, .exclusive = 1},
    {KEY(DOUBLE, train.epochs), "0", 0, 1e6,
     "passes over data.train, rounded down to whole steps", NULL, .exclusive = 1},

    {KEY(FLOAT, optim.lr), "6e-4", 0, 100,
     "peak learning rate of AdamW", "llm.c -l, nanoGPT learning_rate", .open = OPEN_MIN},
    {KEY(PAIR, optim.betas), "[0.9, 0.95]", 0, 1,
     "decay of the first and second moment a step", "nanoGPT beta1, beta2", .open = OPEN_MAX},
    {KEY(FLOAT, optim.eps), "1e-8", 0, 1,
     "added to the root of the second moment", NULL, .open = OPEN_MIN},
    {KEY(FLOAT, optim.weight_decay), "0.1", 0, 100,
     "decoupled decay of matrices, times the learning rate", "llm.c -c, nanoGPT weight_decay"},
    {KEY(FLOAT, optim.grad_clip), "1", 0, 1e9,
     "largest global norm of the gradient; 0: no clipping", "nanoGPT grad_clip"},

    {KEY(ENUM, sched.type), "cosine", 0, 0,
     "learning rate after the warm-up", "llm.c -k", CHOICES(schedule_names)},
    {KEY(INT64, sched.warmup_steps), "0", 0, MAX_COUNT,
     "steps of linear warm-up", "llm.c -u, nanoGPT warmup_iters"},
    {KEY(FLOAT, sched.decay_frac), "0.2", 0, 1,
     "wsd: share of all steps that decays at the end", NULL, .open = OPEN_MIN},
    {KEY(FLOAT, sched.final_frac), "0.1", 0, 1,
     "learning rate of the last step, as a share of optim.lr", "llm.c -q, nanoGPT min_lr"},

    {KEY(RECIPE, precision.recipe), "bf16", 0, 0,
     "number formats of the linears' matrix products", NULL},
    {NAMED(INT, "precision.keep_bf16.first", precision.keep_first), "0", 0, MAX_LAYERS,
     "first blocks whose linears stay in BF16", NULL},
    {NAMED(INT, "precision.keep_bf16.last", precision.keep_last), "-1", -1, MAX_LAYERS,
     "last blocks whose linears stay in BF16; -1: the recipe's share", NULL},
    {KEY(RULES, precision.rules), "[]", 0, 0,
     "changes by layer, GEMM and operand, in order; the last match wins", NULL},
    {KEY(SCHEDULE, precision.schedule), "[]", 0, 0,
     "rules that begin during training, in order, each with the moment it begins at; \"lr\" warms "
     "the learning rate up again from there", NULL},
    {KEY(ENUM, precision.backend), "auto", 0, 0,
     "FP4 and FP8 units of the device, or their emulation; auto: FP4 units that pass the self-test",
     NULL,
     CHOICES(backend_names)},
    {KEY(ENUM, precision.gemm), "cublaslt", 0, 0,
     "what multiplies NVFP4 codes: the library, or the program's own kernel (in software and slow "
     "on GPUs before sm_120)", NULL, CHOICES(gemm_kernel_names)},
    {KEY(ENUM, precision.stochastic), "software", 0, 0,
     "who rounds stochastically: software, the same codes on all machines, or the GPU's convert "
     "(sm_100, sm_103; packed NVFP4 with 8 dither bits only)", NULL, CHOICES(stochastic_names)},
    {KEY(ENUM, precision.smooth_swiglu), "none", 0, 0,
     "Smooth-SwiGLU. token: the largest magnitude of up, token by token, divides what is quantised "
     "and multiplies the product", NULL, CHOICES(smoothing_names)},
    {KEY(FLOAT, precision.out_control.fraction), "0", 0, 1,
     "share of each linear's in-features, those of largest norm, that fprop multiplies in MXFP8 "
     "(OutControl; decoded values only); 0: none", NULL, .open = OPEN_MAX},
    {KEY(INT64, precision.out_control.from), "501", 1, MAX_COUNT,
     "first step, as step lines count from 1, of those that norms are taken of", NULL},
    {KEY(INT64, precision.out_control.to), "550", 1, MAX_COUNT,
     "last one; from the next on the features are fixed", NULL},
    {KEY(INT64, precision.osci_reset.start), "0", 0, MAX_COUNT,
     "steps after which weights whose rounded values swing begin to be set to these (OsciReset); "
     "0: never", NULL},
    {KEY(INT64, precision.osci_reset.period), "200", 2, MAX_COUNT,
     "steps from one such reset to the next", NULL},
    {KEY(INT64, precision.osci_reset.window), "50", 1, MAX_COUNT,
     "steps at a period's start whose movements are summed; fewer than the period has", NULL},
    {KEY(FLOAT, precision.osci_reset.threshold), "8", 0, 1e6,
     "a weight is reset where its rounded value moved at least so many times as far as itself",
     NULL, .open = OPEN_MIN},

    {KEY(ENUM, device), "auto", 0, 0,
     "where the model runs; auto: CUDA where there is a GPU", "nanoGPT device",
     CHOICES(device_choice_names)},
    {KEY(INT, threads), "0", 0, 4096,
     "CPU threads; 0: all", NULL},
    {KEY(INT, parallel.zero), "0", 0, NUM_ZERO_LEVELS - 1,
     "what ranks share out: 0 nothing, 1 master weights and Adam's moments, 2 gradients too, 3 the "
     "blocks' weights too", "llm.c -z"},
    {KEY(ENUM, parallel.grad_dtype), "f32", 0, 0,
     "of gradients on their way between ranks; bf16 halves the traffic and rounds them", NULL,
     CHOICES(model_dtype_names)},
    {KEY(INT, parallel.bucket_mib), "32", 1, 1 << 20,
     "MiB of f32 gradients that ranks sum up at a time, while backward goes on; at least those of "
     "one attention or MLP", NULL},
    {KEY(ENUM, parallel.rendezvous), "auto", 0, 0,
     "how ranks find each other: through the MPI that started them, or a file; auto: MPI where it "
     "did, else a file for RANK and WORLD_SIZE or Slurm's variables", NULL,
     CHOICES(rendezvous_names)},
    {KEY(STRING, parallel.rendezvous_file), "", 0, 0,
     "that file, where all ranks see it; rank 0 writes and removes it; empty: in log.dir, named "
     "after the job", NULL},
    {KEY(STRING, parallel.interface), "", 0, 0,
     "network interface, or IPv4 address of this host, that other ranks use; empty: the one that "
     "rank 0 is reached by", NULL},
    {KEY(FLOAT, parallel.timeout_s), "600", 0, 1e6,
     "seconds that ranks wait for each other at the start, and after which a run where nothing "
     "goes on ends with exit code 7; longer than a step on a GPU, or a block on a CPU (work that "
     "takes long by its nature: ten times as long); 0: never",
     NULL},

    {KEY(INT, memory.lmhead_chunks), "0", 0, 4096,
     "parts the head and the loss are worked out in: more take less memory; 0: as few as keep the "
     "logits within 4 GiB", NULL},
    {KEY(BOOL, memory.deterministic), "true", 0, 1,
     "two runs give the same bits; false lets attention's backward pass on a GPU sum in any order",
     NULL},
    {KEY(BOOL, memory.cuda_graphs), "true", 0, 1,
     "replay each micro-step as one CUDA graph: less work for the host, the same bits", NULL},
    {KEY(ENUM, memory.recompute), "none", 0, 0,
     "what backward works out again instead of keeping it, to the same bits: the MLP's activation, "
     "norms as well, or whole blocks", NULL, CHOICES(recompute_names)},

    {KEY(INT64, eval.every), "250", 0, MAX_COUNT,
     "steps between validations; 0: only at the end", "llm.c -v, nanoGPT eval_interval"},
    {KEY(INT64, eval.tokens), "1048576", 0, MAX_COUNT,
     "tokens of a validation, always the same ones; 0: all of data.val", "llm.c -m (in batches)"},
    {KEY(INT, eval.micro), "0", 0, MAX_BATCH,
     "sequences of a validation's micro-batch; 0: batch.micro", NULL},
    {KEY(BOOL, eval.also_bf16), "false", 0, 1,
     "validate a second time with all linears in BF16, from the same weights", NULL},

    {KEY(STRING, ckpt.dir), "", 0, 0,
     "directory of checkpoints; empty: log.dir/ckpt", NULL},
    {KEY(INT64, ckpt.every), "0", 0, MAX_COUNT,
     "steps between checkpoints; 0: only at the end", "llm.c -n"},
    {KEY(INT64, ckpt.keep), "2", 0, 1 << 20,
     "newest checkpoints that stay; 0: all", "llm.c -nk"},
    {KEY(INT64, ckpt.major_every), "0", 0, MAX_COUNT,
     "checkpoints of steps that this divides always stay; 0: none", "llm.c -nm"},
    {KEY(INT64, ckpt.until), "0", 0, MAX_COUNT,
     "save and end after so many steps, exit code 0; the run goes on without it; 0: no",
     NULL},
    {KEY(BOOL, ckpt.background), "true", 0, 1,
     "write them while training goes on, from a copy in device memory; false: it waits", NULL},
    {KEY(STRING, ckpt.resume), "auto", 0, 0,
     "auto: from the newest checkpoint if there is one; never; or a checkpoint's path",
     "llm.c -y, nanoGPT init_from"},

    {KEY(FLOAT, guard.skip_loss_z), "0", 0, 1e6,
     "skip a step whose loss is this many deviations above the mean; 0: never", "llm.c -sl"},
    {KEY(FLOAT, guard.skip_grad_z), "0", 0, 1e6,
     "the same for the gradient's norm", "llm.c -sg"},
    {KEY(ENUM, guard.nan), "stop", 0, 0,
     "a step whose loss or norm, or the clipped norm's square, is not finite ends the run, or is "
     "skipped",
     NULL, CHOICES(nan_names)},
    {KEY(INT, guard.max_skips), "10", 1, 1 << 20,
     "so many skipped steps in a row, whatever for, end the run with exit code 6", NULL},

    {KEY(STRING, log.dir), "runs/default", 0, 0,
     "directory of the run's record", "llm.c -o, nanoGPT out_dir"},
    {KEY(STRING, log.reference), "", 0, 0,
     "log.dir of a run to print the relative loss gap to: of training smoothed over up to 20 "
     "steps, of validations where that run has one at the same tokens", NULL},
    {KEY(FLOAT, log.reference_warn), "0", 0, 1e6,
     "warn once when a gap to log.reference, of training over 20 steps or of a validation, is "
     "above this many percent; 0: never", NULL},
    {KEY(INT64, log.telemetry_every), "0", 0, MAX_COUNT,
     "steps between comparisons of quantised products with BF16 ones; 0: none", NULL},
    {KEY(STRING, log.telemetry_layers), "", 0, 0,
     "which linears they sample, as the layers of a rule, * for all; empty: 8 of the whole model",
     NULL},
    {KEY(BOOL, log.gradient_noise), "false", 0, 1,
     "compare the gradient with that of a BF16 backward pass, too: as much memory again as the "
     "linears' gradients", NULL},
    {KEY(INT64, log.every), "1", 1, 1 << 30,
     "steps between lines on the screen", "nanoGPT log_interval"},

    {KEY(STRING, sample.prompt), "", 0, 0,
     "text that samples begin with", "nanoGPT start"},
    {KEY(INT64, sample.tokens), "64", 1, MAX_SEQ_LEN,
     "tokens of a sample", "llm.c -g, nanoGPT max_new_tokens"},
    {KEY(INT64, sample.every), "0", 0, MAX_COUNT,
     "steps between samples while training; 0: never", "llm.c -s"},
    {KEY(INT, sample.count), "1", 1, 4096,
     "samples to draw", "nanoGPT num_samples"},
    {KEY(INT, sample.top_k), "0", 0, 1 << 24,
     "draw from the likeliest so many tokens; 0: from all", "nanoGPT top_k"},
    {KEY(FLOAT, sample.temperature), "1", 0, 100,
     "divides the logits; 0: always the likeliest token", "nanoGPT temperature"},

    {KEY(ENUM, plan.device), "auto", 0, 0,
     "GPU, present or not, that `plan` predicts a step of and judges precision.backend, "
     "precision.gemm and precision.stochastic by; auto: the device at hand", NULL,
     CHOICES_OF(device_facts, NUM_DEVICE_MODELS)},
    {KEY(INT64, plan.tokens), "0", 0, MAX_COUNT,
     "tokens that `plan` tells the hours of; 0: those of the run", NULL},
    {KEY(INT, plan.ranks), "0", 0, 1 << 20,
     "GPUs that `plan` and --dry-run share the step among, present or not: their memory and the "
     "bytes between them for all levels of parallel.zero; 0: those present", NULL},
    {KEY(INT, plan.gpus_per_node), "0", 0, 1 << 20,
     "GPUs that links join without a network; 0: as plan.device comes, 8 or a rack's 72", NULL},
    {KEY(DOUBLE, plan.link), "0", 0, 1e6,
     "GB/s each way between the GPUs of a node, of one GPU; 0: plan.device's data sheet", NULL},
    {KEY(DOUBLE, plan.network), "50", 0, 1e6,
     "GB/s each way between nodes, of one GPU; 50 is InfiniBand NDR, 400 Gb/s", NULL,
     .open = OPEN_MIN},
    {KEY(DOUBLE, plan.gpu_hour_price), "0", 0, 1e6,
     "price of a GPU for an hour, in any currency; 0: `plan` tells GPU-hours only", NULL},

    {KEY(SEED, seed), "1337", 0, 0,
     "of initial weights, data order, stochastic rounding and samples; a decimal string from "
     "2^53 on", "nanoGPT seed"},
};
// clang-format on
const int num_config_keys = ARRAY_LEN(config_keys);

const char *config_choice(const ConfigKey *key, int i) {
    if (key->kind == KIND_PRESET) return i < num_presets ? presets[i].name : NULL;
    if (key->kind == KIND_RECIPE) return i < num_recipes ? recipes[i].name : NULL;
    if (i >= key->num_names) return NULL;
    return *(const char *const *)((const char *)key->names + (size_t)i * key->name_stride);
}

const ConfigKey *config_key_find(const char *name) {
    for (int i = 0; i < num_config_keys; i++) {
        if (strcmp(config_keys[i].name, name) == 0) return &config_keys[i];
    }
    return NULL;
}

/* --- precision.GEMM.OPERAND.FIELD --- */

/* The text after "precision.GEMM.OPERAND", NULL where the name does not begin so. */
static const char *after_operand(const char *name, GemmKind *gemm, const char **operand) {
    for (int g = 0; g < NUM_GEMMS; g++) {
        for (int s = 0; s < NUM_SIDES; s++) {
            char prefix[64];
            int length = snprintf(prefix, sizeof(prefix), "precision.%s.%s", gemm_names[g],
                                  operand_names[g][s]);
            if (strncmp(name, prefix, (size_t)length) != 0) continue;
            if (name[length] != '.' && name[length] != '\0') continue;
            *gemm = (GemmKind)g;
            *operand = operand_names[g][s];
            return name + length;
        }
    }
    return NULL;
}

int config_cell_key(const char *name, GemmKind *gemm, const char **operand, const char **field) {
    const char *rest = after_operand(name, gemm, operand);
    if (!rest || rest[0] != '.') return 0;
    *field = rest + 1;
    for (int i = 0; rule_key(i); i++) {
        int chooses = !strcmp(rule_key(i), "layers") || !strcmp(rule_key(i), "gemm") ||
                      !strcmp(rule_key(i), "operand");
        if (!chooses && strcmp(*field, rule_key(i)) == 0) return 1;
    }
    return 0;
}

/* --- groups and spelling --- */

static int begins_with_group(const char *name, const char *group) {
    size_t length = strlen(group);
    return strncmp(name, group, length) == 0 && name[length] == '.';
}

int config_is_group(const char *name) {
    for (int i = 0; i < num_config_keys; i++) {
        if (begins_with_group(config_keys[i].name, name)) return 1;
    }
    for (int g = 0; g < NUM_GEMMS; g++) {
        char gemm[32];
        snprintf(gemm, sizeof(gemm), "precision.%s", gemm_names[g]);
        if (strcmp(name, gemm) == 0) return 1;
    }
    GemmKind gemm;
    const char *operand, *rest = after_operand(name, &gemm, &operand);
    return rest && rest[0] == '\0';
}

/* The key that llm.c or nanoGPT calls like the last part of the name. */
static const ConfigKey *key_called_elsewhere(const char *name) {
    const char *dot = strrchr(name, '.'), *word = dot ? dot + 1 : name;
    for (int i = 0; i < num_config_keys; i++) {
        const char *at = config_keys[i].elsewhere;
        while (at && *at) {
            size_t length = strcspn(at, " ,");
            if (strlen(word) == length && strncmp(at, word, length) == 0) return &config_keys[i];
            at += length + strspn(at + length, " ,");
        }
    }
    return NULL;
}

/* The key with the nearest spelling, NULL where none is near. */
static const char *nearest_key(const char *name) {
    int length = (int)strlen(name);
    int limit = length < 9 ? 3 : 4, best = limit;
    const char *nearest = NULL;
    for (int i = 0; i < num_config_keys; i++) {
        int distance = edit_distance(name, config_keys[i].name, best);
        // A key given without its group is as near as one letter: "lr" means "optim.lr".
        const char *dot = strrchr(config_keys[i].name, '.');
        if (dot && best > 1 && strcmp(dot + 1, name) == 0) distance = 1;
        if (distance >= best) continue;
        best = distance;
        nearest = config_keys[i].name;
    }
    return nearest;
}

/* The GEMM of "precision.GEMM.SOMETHING" where that is none of its operands, or -1. */
static int gemm_of_other_operand(const char *name) {
    GemmKind ignored;
    const char *operand;
    if (after_operand(name, &ignored, &operand)) return -1;
    for (int g = 0; g < NUM_GEMMS; g++) {
        char gemm[32];
        snprintf(gemm, sizeof(gemm), "precision.%s", gemm_names[g]);
        if (begins_with_group(name, gemm)) return g;
    }
    return -1;
}

const char *config_suggestion(const char *name, char *buffer, int size) {
    int gemm = gemm_of_other_operand(name);
    if (gemm >= 0) {
        snprintf(buffer, (size_t)size, "; the operands of %s are %s and %s", gemm_names[gemm],
                 operand_names[gemm][SIDE_A], operand_names[gemm][SIDE_B]);
        return buffer;
    }
    const ConfigKey *key = key_called_elsewhere(name);
    const char *nearest = nearest_key(name);
    if (key) {
        snprintf(buffer, size, "; did you mean \"%s\" (%s)?", key->name, key->elsewhere);
    } else if (nearest) {
        snprintf(buffer, size, "; did you mean \"%s\"?", nearest);
    } else {
        snprintf(buffer, size, "; `help` lists all keys");
    }
    return buffer;
}
