// test_recompute_cuda -- memory.recompute on a GPU: whatever level it is at, and whether a
// micro-step is launched or replayed from a CUDA graph, losses and gradients have the same bits.
// test_model says the same of a CPU.
#include <vector>

#include "../llmc/backend.h"
#include "../llmc/common.h"
#include "../llmc/config.h"
#include "../llmc/model.h"
#include "../llmc/optimizer.h"
#include "../llmc/plan.h"
#include "../llmc/rng.h"
#include "test.h"

static Device *gpu;

// The first micro-step is launched, the second recorded and replayed, the third only replayed.
enum { B = 2, T = 128, VOCAB = 512, MICRO_STEPS = 3, MAX_ARGS = 24 };

#define GPT2 "model.norm=layernorm model.act=gelu model.pos=learned model.ffn=512 "
#define LLAMA                                                                                      \
    "model.norm=rmsnorm model.act=swiglu model.pos=rope model.kv_heads=1 model.bias=false "        \
    "model.tied=false model.ffn=384 "

// Gradients, loss; and what tells levels apart.
typedef struct {
    std::vector<float> bits;
    size_t saved;    // bytes kept for backward
    int64_t gemms;   // with quantised operands, of all micro-steps
    int64_t planned;
    int recorded;
} Outcome;

static void random_tokens(int32_t *tokens, int micro_step) {
    for (int i = 0; i < B * T; i++) {
        Philox4 draw = philox4x32_10(rng_group_counter((uint64_t)i, micro_step, 0), 11, 0);
        tokens[i] = (int32_t)(draw.w[0] % VOCAB);
    }
}

static void run_micro_steps(Model *m, const Config *c) {
    int32_t inputs[B * T], targets[B * T];
    StepState state = optimizer_state(c, 0, c->optim.lr, INFINITY, INFINITY);
    model_zero_gradients(m);
    for (int i = 0; i < MICRO_STEPS; i++) {
        state.token_base = (int64_t)i * B * T;
        if (i == 0) gpu->upload(gpu, m->engine.state, &state, sizeof(state));
        gpu->upload(gpu, &m->engine.state->token_base, &state.token_base, sizeof(int64_t));
        random_tokens(inputs, 2 * i);
        random_tokens(targets, 2 * i + 1);
        model_forward_backward(m, inputs, targets, B, T, 1.0f / (MICRO_STEPS * B * T));
    }
}

static Outcome outcome_of(Model *m) {
    Outcome got = {};
    size_t bytes = tensor_bytes(m->params.grad);
    got.bits.resize(bytes / sizeof(float) + 1);
    gpu->download(gpu, got.bits.data(), m->params.grad.data, bytes);
    gpu->download(gpu, &got.bits.back(), &m->engine.state->loss, sizeof(float));
    got.saved = m->arenas[ARENA_SAVED].used;
    got.gemms = m->engine.quantized_gemms;
    got.planned = MICRO_STEPS * plan_quantized_gemms(m);
    got.recorded = m->recorded[0].recording != NULL;
    return got;
}

/* Of a small model with these words of a command line, "KEY=VALUE KEY=VALUE ...". */
static Outcome run_model(const char *words) {
    char line[1024], *args[MAX_ARGS];
    int count = 0;
    snprintf(line, sizeof(line),
             "model.layers=2 model.dim=128 model.heads=2 model.vocab=%d batch.micro=%d "
             "batch.seq_len=%d precision.keep_bf16.last=0 %s",
             VOCAB, B, T, words);
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) {
        CHECK(count < MAX_ARGS, "more words than MAX_ARGS");
        args[count++] = word;
    }
    Config c;
    Model m;
    config_parse(&c, count, args);
    model_declare(&m, &c);
    backend_choose(&m, &c, gpu);
    model_place(&m, &c, gpu, &ops_cuda, 1);
    model_init(&m, c.seed);
    model_prepare_weights(&m);
    run_micro_steps(&m, &c);
    Outcome got = outcome_of(&m);
    model_free(&m);
    config_free(&c);
    return got;
}

static void expect_same_at_every_level(const char *words) {
    size_t saved = 0;
    char line[512];
    snprintf(line, sizeof(line), "%s memory.cuda_graphs=false", words);
    Outcome plain = run_model(line);
    EXPECT(!plain.recorded && isfinite(plain.bits.back()), "%s: loss %g", words, plain.bits.back());
    for (int level = 0; level < NUM_RECOMPUTES; level++) {
        snprintf(line, sizeof(line), "%s memory.recompute=%s", words, recompute_names[level]);
        Outcome got = run_model(line);
        EXPECT(got.recorded, "%s: no CUDA graph", line);
        EXPECT_EQ_I64(got.gemms, got.planned, "%s", line);
        EXPECT_BITS(got.bits.data(), plain.bits.data(), plain.bits.size() * sizeof(float), "%s",
                    line);
        EXPECT(level == 0 || got.saved < saved, "%s: %zu bytes after %zu", line, got.saved, saved);
        saved = got.saved;
    }
}

CASE(bf16) {
    expect_same_at_every_level(GPT2 "precision.recipe=bf16");
    expect_same_at_every_level(LLAMA "precision.recipe=bf16");
}

CASE(nvfp4_emulated) {
    expect_same_at_every_level(GPT2 "precision.recipe=nvfp4 precision.backend=emulate");
    expect_same_at_every_level(LLAMA "precision.recipe=nvfp4 precision.backend=emulate");
}

CASE(nvfp4_codes) {
    expect_same_at_every_level(GPT2 "precision.recipe=nvfp4 precision.gemm=mma");
    expect_same_at_every_level(LLAMA "precision.recipe=nvfp4 precision.gemm=mma");
    if (gpu->native_fp4) expect_same_at_every_level(LLAMA "precision.recipe=nvfp4");
    else printf("  %s has no FP4 tensor cores\n", gpu->name);
}

CASE(fp8) {
    expect_same_at_every_level(GPT2 "precision.recipe=fp8");
    expect_same_at_every_level(LLAMA "precision.recipe=fp8 precision.backend=emulate");
}

int main(int argc, char **argv) {
    gpu = device_cuda_open(0);
    return test_run(argc, argv);
}
