/*
test_predict -- the counts of a step against numbers worked out by hand and against the usual rule
for FLOPs, predicted times on an H200 against measured ones (dev/SPEED.md), and what must hold
between devices and precisions. Nothing is allocated for a model here, however large.
*/
#include "backend.h"
#include "common.h"
#include "plan.h"
#include "predict.h"
#include "test.h"

enum { MAX_ARGS = 16 };

typedef struct {
    Config config;
    Model model;
} Setup;

/* Words of a command line, "KEY=VALUE KEY=VALUE ..."; no value has a space. */
static void setup_open(Setup *s, const char *words) {
    char line[512], *args[MAX_ARGS];
    int count = 0;
    snprintf(line, sizeof(line), "%s", words);
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) args[count++] = word;
    config_parse(&s->config, count, args);
    model_declare(&s->model, &s->config);
}

static void setup_close(Setup *s) {
    model_free(&s->model);
    config_free(&s->config);
}

static Prediction predicted(const char *words, DeviceModel device) {
    Setup s;
    setup_open(&s, words);
    Prediction p = predict_step(&s.model, &s.config, device, 1);
    setup_close(&s);
    return p;
}

static double speed(const char *words, DeviceModel device) {
    Prediction p = predicted(words, device);
    return p.tokens / p.step.seconds;
}

#define GPT2      "model.preset=gpt2-124m batch.micro=32 batch.total_tokens=524288 "
#define LLAMA_7B  "model.preset=llama2-7b batch.micro=4 batch.total_tokens=524288 "
#define ALL_NVFP4 "precision.recipe=nvfp4 precision.keep_bf16.last=0 "

/* --- counts --- */

/* 6 FLOPs a weight and token and 6 x layers x width x length of attention: this rule counts four
   products of attention's backward pass, which has five. */
static double flops_by_rule(Prediction p) {
    return (p.step.flops - p.term[TERM_ATTENTION_BACKWARD].flops / 5) / p.tokens;
}

CASE(flops_are_six_a_weight_and_attention) {
    double gpt2 = 6.0 * (84934656 + 50304 * 768) + 6.0 * 12 * 768 * 1024;
    double weights = 6738415616.0 - (32000 + 65) * 4096.0;   // without embedding and norms
    double llama = 6 * weights + 6.0 * 32 * 4096 * 4096;
    EXPECT_NEAR(flops_by_rule(predicted(GPT2, DEVICE_MODEL_H200)), gpt2, 1e-9 * gpt2);
    EXPECT_NEAR(flops_by_rule(predicted(LLAMA_7B, DEVICE_MODEL_B200)), llama, 1e-9 * llama);
    // formats, devices and parts change no FLOP
    EXPECT_NEAR(
        flops_by_rule(predicted(GPT2 ALL_NVFP4 "memory.lmhead_chunks=8", DEVICE_MODEL_RTX_5090)),
        gpt2, 1e-9 * gpt2);
}

/* Linears 128 -> 384, 128 -> 128, 128 -> 256, 256 -> 128 on 256 tokens: inputs 640, outputs 896,
   weights 131072, parameters 165504. */
#define SMALL                                                                                      \
    "model.layers=1 model.dim=128 model.heads=2 model.ffn=256 model.vocab=128 batch.seq_len=128 "  \
    "batch.micro=2 "

CASE(bytes_of_a_small_model_by_hand) {
    Prediction p = predicted(SMALL, DEVICE_MODEL_H200);
    // each product reads or writes two tensors of 2 bytes an element, and the weight: fprop and
    // dgrad read it, wgrad adds to its f32 gradient
    EXPECT_NEAR(p.term[TERM_LINEARS_BF16].bytes, 6 * 256 * 1536 + (2 + 2 + 8) * 131072, 0);
    EXPECT_NEAR(p.term[TERM_HEAD].bytes, 6 * 256 * (128 + 128) + (2 + 2 + 8) * 128 * 128, 0);
    EXPECT_NEAR(p.term[TERM_LOSS].bytes, 4 * 256 * 128, 0);
    // biases; residual with a norm, and norm backward of two branches; GELU; embedding, the first
    // norm, backward of the last, zeros
    double per_token =
        2 * 896 + 2 * (8 + 8) * 128 + (6 + 4) * 256 + (4 + 2 + 8 + 2 + 4 + 8 + 2) * 128;
    EXPECT_NEAR(p.term[TERM_ELEMENTWISE].bytes, 256 * per_token, 0);
    EXPECT_NEAR(p.term[TERM_OPTIMIZER].bytes, 38 * 165504, 0);
    EXPECT_NEAR(p.term[TERM_QUANTISE_TOKENS].bytes + p.term[TERM_QUANTISE_WEIGHTS].bytes, 0, 0);
}

CASE(bytes_of_quantising_by_hand) {
    // emulated: maxima 2, read 2, two operands of 2 bytes; w's second operand is the first one
    Prediction p = predicted(SMALL ALL_NVFP4, DEVICE_MODEL_H200);
    EXPECT_NEAR(p.term[TERM_QUANTISE_TOKENS].bytes, 8 * 256 * 1536, 0);
    EXPECT_NEAR(p.term[TERM_QUANTISE_WEIGHTS].bytes, 6 * 131072, 0);
    EXPECT_NEAR(p.term[TERM_LINEARS_EMULATED].bytes, 6 * 256 * 1536 + 12 * 131072, 0);
    // native: operands of 4.5 bits, and w has two
    p = predicted(SMALL ALL_NVFP4, DEVICE_MODEL_B200);
    EXPECT_NEAR(p.term[TERM_QUANTISE_TOKENS].bytes, 5.125 * 256 * 1536, 0);
    EXPECT_NEAR(p.term[TERM_QUANTISE_WEIGHTS].bytes, 5.125 * 131072, 0);
    double fprop = 0.5625 * (256 * 640 + 131072) + 2 * 256 * 896;
    double dgrad = 0.5625 * (256 * 896 + 131072) + 2 * 256 * 640;
    double wgrad = 0.5625 * 256 * 1536 + 8 * 131072;
    EXPECT_NEAR(p.term[TERM_LINEARS_FP4].bytes, fprop + dgrad + wgrad, 0);
    EXPECT_NEAR(p.term[TERM_LINEARS_EMULATED].bytes, 0, 0);
}

CASE(fp8_by_hand) {
    // maxima 2, read 2, two operands of a byte; the units are an H200's own
    Prediction p = predicted(SMALL "precision.recipe=fp8", DEVICE_MODEL_H200);
    EXPECT_NEAR(p.term[TERM_QUANTISE_TOKENS].bytes, 6 * 256 * 1536, 0);
    EXPECT_NEAR(p.term[TERM_QUANTISE_WEIGHTS].bytes, 6 * 131072, 0);
    EXPECT_NEAR(p.term[TERM_LINEARS_FP8].bytes, 4 * 256 * 1536 + (2 + 8) * 131072, 0);
    EXPECT_NEAR(p.term[TERM_LINEARS_FP8].flops, 6.0 * 256 * 131072, 0);
    EXPECT_NEAR(p.term[TERM_LINEARS_EMULATED].bytes + p.term[TERM_LINEARS_BF16].bytes, 0, 0);
    // emulated: operands of 2 bytes, and w's second one is its first
    p = predicted(SMALL "precision.recipe=fp8 precision.backend=emulate", DEVICE_MODEL_H200);
    EXPECT_NEAR(p.term[TERM_QUANTISE_TOKENS].bytes, 8 * 256 * 1536, 0);
    EXPECT_NEAR(p.term[TERM_QUANTISE_WEIGHTS].bytes, 6 * 131072, 0);
    EXPECT_NEAR(p.term[TERM_LINEARS_EMULATED].flops, 6.0 * 256 * 131072, 0);
    EXPECT_NEAR(p.term[TERM_LINEARS_FP8].flops, 0, 0);
    EXPECT(speed(LLAMA_7B "precision.recipe=fp8", DEVICE_MODEL_H200) >
               speed(LLAMA_7B, DEVICE_MODEL_H200),
           "FP8 is no faster than BF16 at 7B");
}

/* 768 x 768 has 36 tiles: four slices of the tokens on 148 multiprocessors, none on 132. */
CASE(slices_of_a_native_weight_gradient_move_their_sums) {
    const char *words = "model.layers=1 model.dim=768 model.heads=12 model.ffn=768 "
                        "model.vocab=128 batch.micro=32 " ALL_NVFP4;
    double weights = 768.0 * (2304 + 3 * 768), tokens = 32768, in = 4 * 768, out = 2304 + 3 * 768;
    // qkv has 108 tiles: one slice
    double sums = 8 * weights + 3 * 768 * 768 * 8 * 4;
    double codes = 0.5625 * (2 * tokens * (in + out) + 2 * weights);
    EXPECT_NEAR(predicted(words, DEVICE_MODEL_B200).term[TERM_LINEARS_FP4].bytes,
                codes + 2 * tokens * (in + out) + sums, 0);
}

CASE(what_is_counted_follows_the_plan) {
    // one GEMM of three in BF16
    Prediction p = predicted(SMALL ALL_NVFP4 "precision.wgrad.x.format=bf16 "
                                             "precision.wgrad.dy.format=bf16",
                             DEVICE_MODEL_B200);
    double gemm = 2.0 * 256 * 131072;
    EXPECT_NEAR(p.term[TERM_LINEARS_FP4].flops, 2 * gemm, 0);
    EXPECT_NEAR(p.term[TERM_LINEARS_BF16].flops, gemm, 0);
    // one operand alone is no product of FP4 units
    p = predicted(SMALL ALL_NVFP4 "precision.fprop.x.format=bf16", DEVICE_MODEL_B200);
    EXPECT_NEAR(p.term[TERM_LINEARS_EMULATED].flops, gemm, 0);
    p = predicted(SMALL ALL_NVFP4 "precision.dgrad.w.format=bf16", DEVICE_MODEL_B200);
    EXPECT_NEAR(p.term[TERM_LINEARS_EMULATED].flops, gemm, 0);
    // two blocks of twelve stay in BF16
    p = predicted(GPT2 "precision.recipe=nvfp4", DEVICE_MODEL_B200);
    EXPECT_NEAR(p.term[TERM_LINEARS_BF16].flops / p.term[TERM_LINEARS_FP4].flops, 0.2, 1e-12);
    p = predicted(GPT2 ALL_NVFP4 "precision.backend=emulate", DEVICE_MODEL_B200);
    EXPECT_NEAR(p.term[TERM_LINEARS_FP4].flops, 0, 0);
}

CASE(patterns_grouped_heads_and_gates_are_counted) {
    // attention, MLP, MLP: keys and values have half the heads, SwiGLU's up is two matrices
    Prediction p = predicted("model.pattern=*-- model.dim=256 model.heads=4 model.kv_heads=2 "
                             "model.act=swiglu model.ffn=512 model.pos=rope model.bias=false "
                             "model.norm=rmsnorm model.vocab=256 batch.seq_len=64 batch.micro=4",
                             DEVICE_MODEL_H200);
    double attention = 256 * 512 + 256 * 256, mlp = 256 * 1024 + 512 * 256;
    EXPECT_NEAR(p.term[TERM_LINEARS_BF16].flops, 6 * 256 * (attention + 2 * mlp), 0);
    EXPECT_NEAR(p.term[TERM_ATTENTION_FORWARD].flops, 2.0 * 256 * 256 * 64, 0);
    // three branches; rotary positions of 6 heads of 64, twice; two gates; the ends
    double per_token = 3 * 16 * 256 + 2 * 4 * 6 * 64 + 2 * (6 * 1024 + 4 * 512) + 28 * 256;
    EXPECT_NEAR(p.term[TERM_ELEMENTWISE].bytes, 256 * per_token, 0);
}

/* What forward does once more, beside a step that keeps all. */
CASE(recomputing_is_counted_by_hand) {
    static const char *const levels[] = {"activation", "norm", "block"};
    // GELU of 256; norms of 128; qkv and up, and attention
    static const double elementwise[] = {2 * 512, 2 * 512 + 2 * 4 * 128, 2 * 512 + 2 * 4 * 128};
    static const double flops[] = {0, 0, 2.0 * 256 * 128 * (384 + 256)};
    // Each operand of x alone is 6 bytes an element, both together 8: that of down is made twice;
    // those of qkv and up; both of them with the product, and that of proj.
    static const double emulated[] = {4 * 256, 4 * 512, 4 * (256 + 128) + 6 * 256};
    Prediction kept = predicted(SMALL, DEVICE_MODEL_H200);
    Prediction kept_fp4 = predicted(SMALL ALL_NVFP4, DEVICE_MODEL_H200);
    for (int i = 0; i < ARRAY_LEN(levels); i++) {
        char words[512];
        snprintf(words, sizeof(words), SMALL "memory.recompute=%s", levels[i]);
        Prediction p = predicted(words, DEVICE_MODEL_H200);
        EXPECT_NEAR(p.term[TERM_ELEMENTWISE].bytes - kept.term[TERM_ELEMENTWISE].bytes,
                    256 * elementwise[i], 0, "%s", words);
        EXPECT_NEAR(p.term[TERM_LINEARS_BF16].flops - kept.term[TERM_LINEARS_BF16].flops, flops[i],
                    0, "%s", words);
        int forwards = i == 2 ? 2 : 1;
        EXPECT_NEAR(p.term[TERM_ATTENTION_FORWARD].flops,
                    forwards * kept.term[TERM_ATTENTION_FORWARD].flops, 0, "%s", words);
        EXPECT_NEAR(p.step.flops - kept.step.flops,
                    flops[i] + (forwards - 1) * kept.term[TERM_ATTENTION_FORWARD].flops, 0, "%s",
                    words);
        snprintf(words, sizeof(words), SMALL ALL_NVFP4 "memory.recompute=%s", levels[i]);
        p = predicted(words, DEVICE_MODEL_H200);
        EXPECT_NEAR(p.term[TERM_QUANTISE_TOKENS].bytes - kept_fp4.term[TERM_QUANTISE_TOKENS].bytes,
                    256 * emulated[i], 0, "%s", words);
        EXPECT_NEAR(p.term[TERM_LINEARS_EMULATED].flops -
                        kept_fp4.term[TERM_LINEARS_EMULATED].flops,
                    flops[i], 0, "%s", words);
    }
}

/* --- against what was measured --- */

CASE(h200_steps_within_fifteen_percent) {
    static const struct {
        const char *words;
        double tokens_per_second;
    } measured[] = {
        {GPT2, 604e3},
        {GPT2 ALL_NVFP4, 505e3},
        {"model.preset=llama-30m model.vocab=50257 batch.micro=64 batch.total_tokens=131072",
         1130e3},
        {"model.preset=llama-30m model.vocab=50257 batch.micro=64 "
         "batch.total_tokens=131072 " ALL_NVFP4,
         953e3},
    };
    for (int i = 0; i < ARRAY_LEN(measured); i++) {
        double ratio = speed(measured[i].words, DEVICE_MODEL_H200) / measured[i].tokens_per_second;
        EXPECT_NEAR(ratio, 1, 0.15, "%s", measured[i].words);
    }
}

/* Of one product: (tokens, dim) x (dim, out). */
static double bf16_rate(int tokens, int dim, const char *words) {
    Setup s;
    setup_open(&s, words);
    const Linear *up = model_linear(&s.model, 2);
    double flops = 2.0 * tokens * dim * up->out;
    double rate =
        flops / predict_crossover(&s.model, &s.config, DEVICE_MODEL_H200, 2, GEMM_FPROP).bf16;
    setup_close(&s);
    return rate;
}

CASE(h200_products_within_eight_percent) {
    EXPECT_NEAR(bf16_rate(65536, 768, "model.layers=1 model.ffn=768 batch.micro=64") / 495e12, 1,
                0.08);
    EXPECT_NEAR(bf16_rate(65536, 768, "model.layers=1 model.ffn=50304 batch.micro=64") / 614e12, 1,
                0.08);
    EXPECT_NEAR(bf16_rate(8192, 8192,
                          "model.layers=1 model.dim=8192 model.heads=64 "
                          "model.ffn=8192 batch.micro=8") /
                    753e12,
                1, 0.08);
}

/* 256 x 384 has 6 tiles for 132 multiprocessors: its arithmetic takes 22 times as long. */
CASE(few_tiles_leave_multiprocessors_idle) {
    Setup s;
    setup_open(&s, SMALL);
    double arithmetic = 2.0 * 256 * 384 * 128 / (0.79 * 989e12 * 6 / 132);
    double memory = 2 * (256 * 128 + 384 * 128 + 256 * 384) / (0.85 * 4.8e12);
    Crossover x = predict_crossover(&s.model, &s.config, DEVICE_MODEL_H200, 0, GEMM_FPROP);
    EXPECT_NEAR(x.bf16, arithmetic + memory, 1e-9 * x.bf16);
    setup_close(&s);
}

/* --- what must hold --- */

CASE(faster_devices_and_formats_are_faster) {
    static const char *const models[] = {GPT2, LLAMA_7B};
    for (int i = 0; i < ARRAY_LEN(models); i++) {
        char recipe[256], all[256], emulated[320];
        snprintf(recipe, sizeof(recipe), "%s precision.recipe=nvfp4", models[i]);
        snprintf(all, sizeof(all), "%s " ALL_NVFP4, models[i]);
        snprintf(emulated, sizeof(emulated), "%s precision.backend=emulate", all);
        double slowest = speed(models[i], DEVICE_MODEL_H200);
        EXPECT(speed(all, DEVICE_MODEL_H200) < slowest, "quantising is not free: %s", all);
        for (int d = DEVICE_MODEL_B200; d <= DEVICE_MODEL_GB300; d++) {
            DeviceModel device = (DeviceModel)d;
            double bf16 = speed(models[i], device), most = speed(recipe, device);
            EXPECT(bf16 > slowest, "%s on %s", models[i], device_facts[d].name);
            EXPECT(most > bf16 && speed(all, device) > most, "%s on %s", recipe,
                   device_facts[d].name);
            EXPECT(speed(emulated, device) < bf16, "%s on %s", emulated, device_facts[d].name);
        }
        EXPECT(speed(all, DEVICE_MODEL_GB300) > speed(all, DEVICE_MODEL_B200), "%s", all);
    }
}

CASE(crossover_grows_with_width) {
    double last = 0;
    for (int dim = 256; dim <= 8192; dim *= 2) {
        char words[128];
        snprintf(words, sizeof(words),
                 "model.layers=1 model.dim=%d model.heads=%d batch.micro=8 "
                 "batch.total_tokens=524288",
                 dim, dim / 64);
        Setup s;
        setup_open(&s, words);
        for (int g = 0; g < NUM_GEMMS; g++) {
            Crossover h200 =
                predict_crossover(&s.model, &s.config, DEVICE_MODEL_H200, 0, (GemmKind)g);
            EXPECT(h200.quantised > h200.bf16, "%s, %s", words, gemm_names[g]);
        }
        Crossover x = predict_crossover(&s.model, &s.config, DEVICE_MODEL_GB300, 0, GEMM_FPROP);
        EXPECT(x.bf16 / x.quantised > last, "%s: %g after %g", words, x.bf16 / x.quantised, last);
        last = x.bf16 / x.quantised;
        setup_close(&s);
    }
    EXPECT(last > 2.5, "%g at 8192", last);
}

/* Products and quantising of a model's linears, as the step counts them and as crossovers do. */
CASE(crossovers_sum_to_the_step) {
    Setup s;
    setup_open(&s, "model.preset=gpt2-124m batch.micro=32 " ALL_NVFP4);
    Prediction p = predict_step(&s.model, &s.config, DEVICE_MODEL_GB300, 1);
    double sum = 0;
    for (int id = 0; id < model_num_linears(&s.model); id++) {
        for (int g = 0; g < NUM_GEMMS; g++)
            sum += predict_crossover(&s.model, &s.config, DEVICE_MODEL_GB300, id, (GemmKind)g)
                       .quantised;
    }
    double step = p.term[TERM_LINEARS_FP4].seconds + p.term[TERM_QUANTISE_TOKENS].seconds +
                  p.term[TERM_QUANTISE_WEIGHTS].seconds;
    EXPECT_NEAR(sum, step, 1e-9 * step);
    setup_close(&s);
}

/* Sizes of arenas on a CPU at a level; returns those of all together. */
static size_t memory_at(const char *model, int level, size_t *saved) {
    char words[512];
    snprintf(words, sizeof(words), "%s memory.recompute=%s", model, recompute_names[level]);
    Setup s;
    setup_open(&s, words);
    Device *cpu = device_cpu_open(1);
    model_measure(&s.model, &s.config, cpu, &ops_cpu, 1);
    *saved = s.model.arenas[ARENA_SAVED].used;
    size_t all = plan_memory_bytes(&s.model);
    setup_close(&s);
    cpu->close(cpu);
    return all;
}

CASE(each_level_keeps_less_and_takes_longer) {
    // GELU's output; two norms' outputs; qkv, attention's output, up's output: 2 bytes each
    static const int dropped[] = {0, 2 * 256, 2 * 2 * 128, 2 * (384 + 128 + 256)};
    // of NVFP4 operands, decoded: input of down; of qkv and up; and qkv, attention's output and its
    // operand, up's output
    static const int dropped_fp4[] = {0, 2 * 256, 2 * 2 * 128, 2 * (384 + 2 * 128 + 256)};
    size_t before, before_fp4, saved;
    memory_at(SMALL, RECOMPUTE_NONE, &before);
    memory_at(SMALL ALL_NVFP4, RECOMPUTE_NONE, &before_fp4);
    for (int level = 1; level < NUM_RECOMPUTES; level++) {
        memory_at(SMALL, level, &saved);
        EXPECT_EQ_I64(before - saved, 256 * dropped[level], "level %d", level);
        before = saved;
        memory_at(SMALL ALL_NVFP4, level, &saved);
        EXPECT_EQ_I64(before_fp4 - saved, 256 * dropped_fp4[level], "level %d, NVFP4", level);
        before_fp4 = saved;
    }
    static const char *const models[] = {GPT2, GPT2 ALL_NVFP4, LLAMA_7B,
                                         LLAMA_7B "precision.recipe=fp8 "};
    for (int i = 0; i < ARRAY_LEN(models) * (NUM_RECOMPUTES - 1); i++) {
        const char *model = models[i / (NUM_RECOMPUTES - 1)];
        int level = 1 + i % (NUM_RECOMPUTES - 1);
        size_t less = memory_at(model, level, &saved), more = memory_at(model, level - 1, &saved);
        EXPECT(less < more, "%s at level %d: %zu bytes after %zu", model, level, less, more);
        char words[512];
        snprintf(words, sizeof(words), "%s memory.recompute=", model);
        size_t end = strlen(words);
        snprintf(words + end, sizeof(words) - end, "%s", recompute_names[level]);
        double slower = speed(words, DEVICE_MODEL_H200);
        snprintf(words + end, sizeof(words) - end, "%s", recompute_names[level - 1]);
        EXPECT(slower < speed(words, DEVICE_MODEL_H200), "%s at level %d", model, level);
    }
}

/* --- devices and text --- */

CASE(devices_by_the_names_that_cuda_gives) {
    static const struct {
        const char *name;
        DeviceModel model;
        double peak;
    } rows[] = {
        {"NVIDIA H200", DEVICE_MODEL_H200, 989e12},
        {"NVIDIA H200 NVL", DEVICE_MODEL_AUTO, 835e12},
        {"NVIDIA GH200 480GB", DEVICE_MODEL_AUTO, 989e12},
        {"NVIDIA B200", DEVICE_MODEL_B200, 2250e12},
        {"NVIDIA GB200", DEVICE_MODEL_GB200, 2500e12},
        {"NVIDIA B300 SXM6 AC", DEVICE_MODEL_B300, 2250e12},
        {"NVIDIA GB300", DEVICE_MODEL_GB300, 2500e12},
        {"NVIDIA GeForce RTX 5090", DEVICE_MODEL_RTX_5090, 209.5e12},
        {"NVIDIA GeForce RTX 5090 Laptop GPU", DEVICE_MODEL_AUTO, 0},
        {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", DEVICE_MODEL_RTX_PRO_6000, 503.8e12},
        {"NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", DEVICE_MODEL_AUTO, 0},
        {"NVIDIA L40S", DEVICE_MODEL_AUTO, 362e12},
        {"NVIDIA L4", DEVICE_MODEL_AUTO, 121e12},
        {"AMD EPYC", DEVICE_MODEL_AUTO, 0},
    };
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        EXPECT_EQ_I64(device_model_find(rows[i].name), rows[i].model, "%s", rows[i].name);
        EXPECT_NEAR(device_peak_bf16(rows[i].name), rows[i].peak, 0, "%s", rows[i].name);
    }
}

CASE(an_unknown_device_is_refused_with_the_known_ones) {
    Setup s;
    EXPECT_DIES(EXIT_CONFIG,
                "key \"plan.device\" is \"GB3\"; legal: auto, H200, B200, GB200, B300, GB300, "
                "\"RTX PRO 6000\", \"RTX 5090\"",
                setup_open(&s, SMALL "plan.device=GB3"));
}

/* What `plan` prints for these words on a CPU; caller frees. */
static char *text_of(const char *words, int64_t steps) {
    Setup s;
    setup_open(&s, words);
    Device *cpu = device_cpu_open(1);
    model_measure(&s.model, &s.config, cpu, &ops_cpu, 1);
    size_t saved = s.model.arenas[ARENA_SAVED].used;
    char *text = predict_text(&s.model, &s.config, 1, steps);
    EXPECT_EQ_I64(s.model.arenas[ARENA_SAVED].used, saved, "%s", words);
    setup_close(&s);
    cpu->close(cpu);
    return text;
}

static void expect_text(const char *words, int64_t steps, const char *const *wanted) {
    char *text = text_of(words, steps);
    for (int i = 0; wanted[i]; i++)
        EXPECT(strstr(text, wanted[i]), "no \"%s\" in\n%s", wanted[i], text);
    free(text);
}

CASE(text_of_a_prediction) {
    static const char *const native[] = {
        "predicted   on one GB300, nvfp4(native): 524288 tokens a step\n"
        "  computed from rooflines, never measured on Blackwell\n",
        "linears nvfp4",
        "quantise x, dy",
        "; on one GB300 nvfp4 native\n",
        "4096 -> 12288, as blocks.0.attn.qkv\n",
        "nvfp4 2.",
        "of 288 GB\n",
        NULL};
    static const char *const emulated[] = {
        "predicted   on one H200, nvfp4(emulated): 524288 tokens a step\n"
        "  computed from rooflines, with the shares of them that were measured on this GPU\n",
        "; on one H200 nvfp4 emulated\n",
        "bf16 faster",
        "linears emulated",
        "of 141 GB: does not fit, with no memory.recompute; lower batch.micro\n",
        NULL};
    static const char *const nothing[] = {"predicted   nothing: nothing is known of the device",
                                          NULL};
    static const char *const plain[] = {
        "predicted   on one B200, bf16: ", "; on one B200 nvfp4 native", NULL};
    expect_text(LLAMA_7B ALL_NVFP4 "plan.device=GB300", 0, native);
    expect_text(LLAMA_7B ALL_NVFP4 "plan.device=H200", 0, emulated);
    expect_text(SMALL, 0, nothing);
    expect_text(SMALL "plan.device=B200", 0, plain);
}

/* BF16 is compared with what the run quantises to. */
CASE(crossovers_of_fp8) {
    static const char *const lines[] = {"predicted   on one B200, fp8(native): ",
                                        "; on one B200 fp8 native\n", " us  fp8 ", "fp8 1.", NULL};
    expect_text(LLAMA_7B "precision.recipe=fp8 plan.device=B200", 0, lines);
    char *text = text_of(LLAMA_7B "precision.recipe=fp8 plan.device=B200", 0);
    EXPECT(!strstr(text, "nvfp4"), "%s", text);
    free(text);
}

/* Where the run multiplies by the program's own kernel, and only there. */
CASE(no_time_where_the_rate_is_not_known) {
    static const char *const mma[] = {
        "predicted   no time on one RTX 5090, nvfp4(native): the rate "
        "of precision.gemm=mma is not known\n  memory without",
        NULL};
    static const char *const software[] = {"predicted   no time on one B200, nvfp4(software): ",
                                           NULL};
    static const char *const fp8[] = {
        "predicted   on one B200, fp8(native): ", "; on one B200 fp8 ", NULL};
    static const char *const bf16[] = {"predicted   on one B200, bf16: ", " tokens/s\n", NULL};
    expect_text(SMALL ALL_NVFP4 "precision.gemm=mma plan.device=rtx5090", 0, mma);
    expect_text(SMALL ALL_NVFP4 "precision.gemm=mma plan.device=B200", 0, software);
    expect_text(SMALL "precision.recipe=fp8 precision.gemm=mma plan.device=B200", 0, fp8);
    expect_text(SMALL "precision.gemm=mma plan.device=B200", 0, bf16);
}

/* Each number before a unit, and the memory. */
CASE(figures_have_three_digits) {
    static const char *const units[] = {" TFLOP ",   " GB ", " ms ",
                                        " tokens/s", " us ", " of 141 GB"};
    char *text = text_of(GPT2 ALL_NVFP4 "plan.device=H200", 0);
    for (int i = 0; i < ARRAY_LEN(units); i++) {
        int found = 0;
        for (char *at = text; (at = strstr(at, units[i])) != NULL; at++) {
            char number[32], *begin = at;
            while (begin > text && strchr("0123456789.", begin[-1])) begin--;
            snprintf(number, sizeof(number), "%.*s", (int)(at - begin), begin);
            double x = strtod(number, NULL), unit = x > 0 ? pow(10, floor(log10(x)) - 2) : 1;
            EXPECT_NEAR(x / unit, nearbyint(x / unit), 1e-6, "%s%s", number, units[i]);
            found++;
        }
        EXPECT(found > 0, "no number before \"%s\" in\n%s", units[i], text);
    }
    free(text);
}

/* --- keys judged by the GPU that plan.device names --- */

/* The model's engine after backend_choose_for_plan on a CPU: fp4 and fp8 there. */
static void choose_for_plan(const char *words, Fp4Gemm *fp4, int *fp8) {
    Setup s;
    setup_open(&s, words);
    Device *cpu = device_cpu_open(1);
    backend_choose_for_plan(&s.model, &s.config, cpu);
    EXPECT(s.model.engine.device == cpu, "%s", words);
    *fp4 = s.model.engine.fp4;
    *fp8 = s.model.engine.fp8;
    cpu->close(cpu);
    setup_close(&s);
}

CASE(keys_are_judged_by_the_named_gpu) {
    static const char *const accepted[] = {
        ALL_NVFP4 "precision.gemm=mma plan.device=rtx5090",
        ALL_NVFP4 "precision.gemm=mma precision.backend=native plan.device=rtx5090",
        ALL_NVFP4 "precision.gemm=mma plan.device=B200",   // in software
        ALL_NVFP4 "precision.backend=native plan.device=B200",
        "precision.recipe=fp8 precision.backend=native plan.device=H200",
        "precision.recipe=quartet2 precision.backend=native plan.device=B200",   // but for fprop
        ALL_NVFP4 "precision.stochastic=hardware plan.device=B200",
        ALL_NVFP4 "precision.stochastic=hardware precision.gemm=mma plan.device=B300",
    };
    static const struct {
        const char *words, *message;
    } refused[] = {
        {ALL_NVFP4 "precision.backend=native plan.device=H200",
         "precision.recipe is nvfp4, but H200 has no FP4 tensor cores; recipes with native "
         "products "
         "there: fp8, fp8_delayed; set precision.backend=emulate"},
        {ALL_NVFP4 "precision.gemm=mma precision.backend=native plan.device=H200",
         "set precision.backend=emulate and precision.gemm=cublaslt"},
        {ALL_NVFP4 "precision.gemm=mma precision.backend=native plan.device=B200",
         "but B200 has no mma.sync of FP4 (sm_120, sm_121), as precision.gemm=mma wants; recipes"},
        // units are there, but no product of codes
        {"precision.recipe=mxfp8 precision.backend=native plan.device=H200",
         "precision.recipe is mxfp8, but its products multiply decoded values on H200, as on every "
         "device; recipes with native products there: fp8, fp8_delayed; set "
         "precision.backend=emulate"},
        {"precision.recipe=tetrajet2 precision.backend=native plan.device=B200",
         "precision.recipe is tetrajet2, but its products multiply decoded values on B200"},
        {ALL_NVFP4 "precision.gemm=mma precision.backend=emulate plan.device=rtx5090",
         "precision.backend is emulate"},
        {ALL_NVFP4 "precision.stochastic=hardware plan.device=rtx5090",
         "but RTX 5090 has no convert that rounds stochastically (sm_100, sm_103); set "
         "precision.stochastic=software"},
        {ALL_NVFP4 "precision.stochastic=hardware precision.backend=emulate plan.device=B200",
         "and this run on B200 has none; set precision.stochastic=software"},
        {ALL_NVFP4 "precision.stochastic=hardware precision.dgrad.dy.dither_bits=16 "
                   "precision.wgrad.dy.dither_bits=16 plan.device=B200",
         "but for B200 this run has no packed NVFP4 operand that is rounded stochastically with 8"},
        {"precision.recipe=bf16 precision.schedule=[{\"at\":2,\"recipe\":\"nvfp4\"}] "
         "precision.backend=native plan.device=H200",
         "H200 has no FP4 tensor cores"},   // in a later phase
        // the device at hand, where none is named
        {ALL_NVFP4 "precision.stochastic=hardware", "no convert that rounds stochastically"},
        {ALL_NVFP4 "precision.gemm=mma", "set precision.gemm=cublaslt, which on a CPU"},
        {ALL_NVFP4 "precision.gemm=mma precision.backend=native",
         "set precision.gemm=cublaslt and precision.backend=emulate"},
        {ALL_NVFP4 "precision.backend=native", "set precision.backend=emulate"},
    };
    Fp4Gemm fp4;
    int fp8;
    char words[512];
    for (int i = 0; i < ARRAY_LEN(accepted); i++) {
        snprintf(words, sizeof(words), "%s%s", SMALL, accepted[i]);
        choose_for_plan(words, &fp4, &fp8);
        EXPECT(fp4 == FP4_EMULATED && fp8 == 0, "the CPU does not emulate: %s", words);
    }
    for (int i = 0; i < ARRAY_LEN(refused); i++) {
        snprintf(words, sizeof(words), "%s%s", SMALL, refused[i].words);
        EXPECT_DIES(EXIT_CONFIG, refused[i].message, choose_for_plan(words, &fp4, &fp8));
    }
}

CASE(an_engine_rounds_in_hardware_where_it_is_told_to) {
    static const struct {
        const char *words;
        DeviceModel device;
        int hardware;
    } rows[] = {
        {SMALL ALL_NVFP4 "precision.stochastic=hardware", DEVICE_MODEL_B200, 1},
        {SMALL ALL_NVFP4 "precision.stochastic=hardware", DEVICE_MODEL_B300, 1},
        {SMALL ALL_NVFP4, DEVICE_MODEL_B200, 0},
    };
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        Setup s;
        setup_open(&s, rows[i].words);
        Device gpu = backend_device(rows[i].device);
        backend_choose(&s.model, &s.config, &gpu);
        EXPECT_EQ_I64(s.model.engine.hardware_rounding, rows[i].hardware, "row %d", i);
        setup_close(&s);
    }
}

CASE(hours_of_plan_tokens_or_of_the_run) {
    double per_hour = 3600 * speed(GPT2, DEVICE_MODEL_H200);
    static const struct {
        const char *words;
        int64_t steps;
        double tokens;
    } rows[] = {
        {GPT2 "plan.device=H200 plan.tokens=10000000000 train.steps=7", 7, 1e10},
        {GPT2 "plan.device=H200", 10000, 5242880000.0},
        {GPT2 "plan.device=H200 train.tokens=3000000000", 0, 3e9},
        {GPT2 "plan.device=H200 train.steps=10000", 0, 5242880000.0},
    };
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        char line[128];
        snprintf(line, sizeof(line), "%.4g tokens: %.2f hours on one\n", rows[i].tokens,
                 rows[i].tokens / per_hour);
        const char *const wanted[] = {line, NULL};
        expect_text(rows[i].words, rows[i].steps, wanted);
    }
    char *text = text_of(GPT2 "plan.device=H200", 0);
    EXPECT(!strstr(text, "hours"), "%s", text);
    free(text);
}

TEST_MAIN_END
