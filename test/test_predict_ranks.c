/*
test_predict_ranks -- collectives against times worked out by hand and one that was measured, bytes
of a small model against sums by hand and against zero.h, hidden and exposed time of buckets, and
what must hold of a prediction for many GPUs; the tables of the verb plan for 70 billion parameters.
*/
#include "backend.h"
#include "common.h"
#include "predict_ranks.h"
#include "test.h"

enum { MAX_ARGS = 24 };

typedef struct {
    Config config;
    Model model;
} Setup;

/* Words of a command line, "KEY=VALUE KEY=VALUE ..."; no value has a space. */
static void setup_open(Setup *s, const char *words) {
    char line[1024], *args[MAX_ARGS];
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

static Scaling scaled(const char *words, DeviceModel device, int ranks) {
    Setup s;
    setup_open(&s, words);
    Scaling scaling = predict_scaling(&s.model, &s.config, device, ranks);
    setup_close(&s);
    return scaling;
}

#define GPT2     "model.preset=gpt2-124m batch.micro=32 batch.total_tokens=524288 "
#define LLAMA_7B "model.preset=llama2-7b batch.micro=1 batch.total_tokens=4194304 "
#define NVFP4    "precision.recipe=nvfp4 precision.keep_bf16.last=0 "

/* --- the network --- */

CASE(collectives_by_hand) {
    // 4 ranks a node at 100 GB/s, 10 GB/s between nodes; hops of 1 and 10 us, small ones of 0.5, 3
    Network n = {100e9, 10e9, 1e-6, 10e-6, 0.5e-6, 3e-6, 4};
    EXPECT_NEAR(network_one_way(&n, 1, 8e9), 0, 0);
    EXPECT_NEAR(network_one_way(&n, 4, 8e9), 8.4e-6 + 0.75 * 8e9 / 100e9 + 3e-6, 1e-12);
    EXPECT_NEAR(network_one_way(&n, 8, 8e9),
                8.4e-6 + 0.75 * 8e9 / 100e9 + 3e-6 + 0.5 * 2e9 / 10e9 + 10e-6, 1e-12);
    // two nodes of three
    EXPECT_NEAR(network_one_way(&n, 6, 6e9),
                8.4e-6 + 6e9 * 2 / 3 / 100e9 + 2e-6 + 0.5 * 2e9 / 10e9 + 10e-6, 1e-12);
    EXPECT_EQ_I64(network_nodes(&n, 6), 2);
    EXPECT_NEAR(network_small(&n, 1), 0, 0);
    EXPECT_NEAR(network_small(&n, 16), 6.8e-6 + 2 * (3 * 0.5e-6 + 2 * 3e-6), 1e-12);
    EXPECT_NEAR(network_sent(4, 100), 75, 0);
}

/* Measured: 0.91 ms, that is 295 GB/s. */
CASE(all_reduce_of_two_h200s) {
    Setup s;
    setup_open(&s, GPT2);
    Network n = network_of(&s.config, DEVICE_MODEL_H200);
    EXPECT_NEAR(2 * network_one_way(&n, 2, 256 << 20) / 0.91e-3, 1, 0.02);
    EXPECT_EQ_I64(n.node, 8);
    EXPECT_EQ_I64(network_of(&s.config, DEVICE_MODEL_GB300).node, 72);
    EXPECT_NEAR(network_of(&s.config, DEVICE_MODEL_B200).link / n.link, 2, 1e-12);
    EXPECT_NEAR(n.port, 0.85 * 50e9, 1);
    setup_close(&s);
}

CASE(keys_replace_what_is_assumed) {
    Setup s;
    setup_open(&s, GPT2 "plan.gpus_per_node=4 plan.link=100 plan.network=25");
    Network n = network_of(&s.config, DEVICE_MODEL_GB200);
    EXPECT_EQ_I64(n.node, 4);
    EXPECT_NEAR(n.link, 0.667 * 100e9, 1);
    EXPECT_NEAR(n.port, 0.85 * 25e9, 1);
    setup_close(&s);
}

/* --- bytes --- */

/* A block of 131072 weights in linears 128 -> 384, 128 -> 128, 128 -> 256, 256 -> 128; embedding
   and positions of 128 x 128 each, and 1664 biases and norms' weights. */
#define SMALL                                                                                      \
    "model.layers=1 model.dim=128 model.heads=2 model.ffn=256 model.vocab=128 batch.seq_len=32 "   \
    "batch.micro=1 batch.total_tokens=384 " NVFP4
enum { BLOCKS = 131072, EMBEDDING = 128 * 128 + 32 * 128, PLAIN = 896 + 2 * 256 + 256 };

static StepTraffic small_traffic(Setup *s, const char *words, int ranks) {
    setup_open(s, words);
    model_split(&s->model, &s->config, 0, ranks);
    return predict_traffic(&s->model, &s->config);
}

/* Loss, votes and the norms of four parts of three buckets; maxima of four weights at level 3. */
enum { SMALL_SENT = 6 * (2 + 4 * 3) };

/* Four ranks, three micro-steps: a rank sends three quarters of a buffer. */
CASE(bytes_of_each_level_by_hand) {
    static const struct {
        const char *words;
        double sent[NUM_TRAFFICS];
    } levels[] = {
        {SMALL "parallel.zero=0", {6.0 * (BLOCKS + EMBEDDING + PLAIN), 0, 0, 0, SMALL_SENT}},
        {SMALL "parallel.zero=1",
         {3.0 * (BLOCKS + EMBEDDING + PLAIN), 1.5 * (BLOCKS + EMBEDDING + PLAIN), 0, 0,
          SMALL_SENT}},
        {SMALL "parallel.zero=2",
         {9.0 * (BLOCKS + EMBEDDING + PLAIN), 1.5 * (BLOCKS + EMBEDDING + PLAIN), 0, 0,
          SMALL_SENT}},
        {SMALL "parallel.zero=3",
         {9.0 * (BLOCKS + EMBEDDING + PLAIN), 1.5 * (EMBEDDING + PLAIN), 3 * 0.75 * 0.5625 * BLOCKS,
          3 * 0.75 * 0.5625 * BLOCKS, SMALL_SENT + 6 * 4}},
        {SMALL "parallel.zero=1 parallel.grad_dtype=bf16",
         {1.5 * (BLOCKS + EMBEDDING + PLAIN), 1.5 * (BLOCKS + EMBEDDING + PLAIN), 0, 0,
          SMALL_SENT}},
    };
    for (int i = 0; i < ARRAY_LEN(levels); i++) {
        Setup s;
        StepTraffic t = small_traffic(&s, levels[i].words, 4);
        for (int kind = 0; kind < NUM_TRAFFICS; kind++)
            EXPECT_NEAR(predict_sent(&t.kind[kind], 4), levels[i].sent[kind], 0, "%s: %s",
                        levels[i].words, traffic_names[kind]);
        setup_close(&s);
    }
}

/* The same sums in zero.h's own words; 4-bit codes and a scale for 16 of them are 0.5625 bytes. */
CASE(bytes_are_those_of_zero) {
    for (int level = 0; level < NUM_ZERO_LEVELS; level++) {
        char words[512];
        snprintf(words, sizeof(words), SMALL "parallel.zero=%d", level);
        Setup s;
        StepTraffic t = small_traffic(&s, words, 4);
        ZeroTraffic z =
            zero_traffic(&s.model.zero, &s.model.params, DT_F32, 3, (int64_t)(0.5625 * BLOCKS));
        double values = 0;
        for (int kind = TRAFFIC_VALUES; kind <= TRAFFIC_BACKWARD; kind++)
            values += predict_sent(&t.kind[kind], 4);
        EXPECT_NEAR(predict_sent(&t.kind[TRAFFIC_GRADIENTS], 4), (double)z.sums, 0, "%s", words);
        EXPECT_NEAR(values, (double)z.values, 0, "%s", words);
        setup_close(&s);
    }
}

/* 16 bits for 4 and a scale of 8 for 16 of them: 3.56. Packed operands of whole matrices are no
   codes of rows, and a bucket with one BF16 linear comes in BF16. */
#define LEVEL_3 "parallel.zero=3 "
CASE(codes_are_fewer_bytes) {
    static const struct {
        const char *words;
        double saving;
        Fp4Gemm fp4;
    } rows[] = {
        {SMALL LEVEL_3, 2 / 0.5625, FP4_EMULATED},
        {SMALL LEVEL_3, 1, FP4_LIBRARY},
        {SMALL LEVEL_3 "precision.recipe=bf16", 1, FP4_EMULATED},
        {SMALL LEVEL_3 "precision.rules=[{\"layers\":\"*.attn.*\",\"recipe\":\"bf16\"}]", 1,
         FP4_EMULATED},
    };
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        Setup s;
        small_traffic(&s, rows[i].words, 4);
        s.model.engine.fp4 = rows[i].fp4;
        StepTraffic t = predict_traffic(&s.model, &s.config);
        EXPECT_NEAR(predict_gather_saving(&s.model, &t.kind[TRAFFIC_FORWARD]), rows[i].saving,
                    1e-12, "%s", rows[i].words);
        setup_close(&s);
    }
}

/* --- what is exposed --- */

CASE(exposed_time_by_hand) {
    // ten gatherings of 1 in a pass of 100: the first; of 20: what 90 do not hide
    EXPECT_NEAR(predict_exposed_forward(10, 10, 100), 1, 0);
    EXPECT_NEAR(predict_exposed_forward(200, 10, 100), 110, 1e-9);
    EXPECT_NEAR(predict_exposed_forward(0, 10, 100), 0, 0);
    EXPECT_NEAR(predict_exposed_forward(0, 0, 100), 0, 0);
    // buckets: the block's, complete after 3 of 4 stages, vectors, then the embedding at the end
    Setup s;
    small_traffic(&s, SMALL, 2);
    REQUIRE(s.model.zero.num_buckets == 3, "%d buckets", s.model.zero.num_buckets);
    EXPECT_NEAR(predict_exposed_backward(&s.model, (const double[]){1, 1, 1}, 8, 0), 1, 1e-12);
    EXPECT_NEAR(predict_exposed_backward(&s.model, (const double[]){5, 1, 1}, 8, 0), 5, 1e-12);
    EXPECT_NEAR(predict_exposed_backward(&s.model, (const double[]){0, 0, 3}, 8, 0), 3, 1e-12);
    EXPECT_NEAR(predict_exposed_backward(&s.model, (const double[]){0, 0, 0}, 8, 0), 0, 0);
    // the second one is sent at 11 for 6, and 5 later all that follows is complete
    EXPECT_NEAR(predict_exposed_backward(&s.model, (const double[]){5, 1, 1}, 8, 1), 6, 1e-12);
    EXPECT_NEAR(predict_exposed_backward(&s.model, (const double[]){1, 1, 1}, 8, 1), 2, 1e-12);
    setup_close(&s);
}

/* --- scaling --- */

CASE(one_gpu_communicates_nothing) {
    for (int level = 0; level < NUM_ZERO_LEVELS; level++) {
        char words[512];
        snprintf(words, sizeof(words), LLAMA_7B "parallel.zero=%d", level);
        Setup s;
        setup_open(&s, words);
        Prediction p = predict_step(&s.model, &s.config, DEVICE_MODEL_B200, 1);
        Scaling one = predict_scaling(&s.model, &s.config, DEVICE_MODEL_B200, 1);
        EXPECT_NEAR(one.seconds, p.step.seconds, 0, "%s", words);
        EXPECT_NEAR(one.communicating + one.exposed, 0, 0, "%s", words);
        EXPECT_NEAR(one.efficiency, 1, 1e-12, "%s", words);
        setup_close(&s);
    }
}

/* An eighth of the update from level 1 on. At level 3 an eighth of weights' operands where codes
   travel, which each of 128 micro-steps decodes twice; else all of them twice. */
CASE(what_is_shared_out_is_done_once) {
    double first[3] = {0, 0, 0};
    for (int i = 0; i <= NUM_ZERO_LEVELS; i++) {
        char words[512];
        int level = i < NUM_ZERO_LEVELS ? i : 3;
        snprintf(words, sizeof(words), LLAMA_7B NVFP4 "parallel.zero=%d", level);
        Setup s;
        setup_open(&s, words);
        s.model.engine.fp4 = i < NUM_ZERO_LEVELS ? FP4_LIBRARY : FP4_EMULATED;
        model_split(&s.model, &s.config, 0, 8);
        Prediction p = predict_step(&s.model, &s.config, DEVICE_MODEL_B200, 8);
        double update = p.term[TERM_OPTIMIZER].bytes, made = p.term[TERM_QUANTISE_WEIGHTS].bytes;
        double rest = p.step.bytes - update - made, decoded = 2.5625 / 5.125;
        double wanted = i < 3 ? 1 : i == 3 ? 256 : 0.125 + 256 * decoded;
        if (i == 0) first[0] = update, first[1] = made, first[2] = rest;
        EXPECT_NEAR(update / first[0], level >= 1 ? 0.125 : 1, 1e-12, "%s", words);
        EXPECT_NEAR(made / first[1], wanted, 1e-9, "%s", words);
        EXPECT_NEAR(rest / first[2], 1, 1e-12, "%s", words);
        setup_close(&s);
    }
}

/* Both programs measured on two H200s at this size reach 1.98. */
CASE(two_h200s_are_nearly_twice_as_fast) {
    static const char *const words[] = {GPT2, GPT2 NVFP4, GPT2 "parallel.zero=1",
                                        GPT2 "parallel.zero=2"};
    for (int i = 0; i < ARRAY_LEN(words); i++) {
        Scaling s = scaled(words[i], DEVICE_MODEL_H200, 2);
        EXPECT_NEAR(2 * s.efficiency, 1.98, 0.02, "%s", words[i]);
        EXPECT(s.exposed > 0 && s.exposed < 0.02 * s.seconds, "%g of %g s", s.exposed, s.seconds);
    }
}

CASE(more_gpus_are_faster_and_less_efficient) {
    for (int level = 0; level < NUM_ZERO_LEVELS; level++) {
        char words[512];
        snprintf(words, sizeof(words), LLAMA_7B NVFP4 "parallel.zero=%d", level);
        Scaling last = scaled(words, DEVICE_MODEL_B200, 2);
        for (int ranks = 4; ranks <= 512; ranks *= 2) {
            Scaling s = scaled(words, DEVICE_MODEL_B200, ranks);
            EXPECT_NEAR(s.tokens, 4194304, 0, "%s on %d", words, ranks);
            EXPECT_EQ_I64(s.nodes, ranks > 8 ? ranks / 8 : 1);
            EXPECT(s.seconds < last.seconds, "%s: %g s on %d, %g on half as many", words, s.seconds,
                   ranks, last.seconds);
            EXPECT(s.exposed <= s.communicating * (1 + 1e-12), "%s: %g of %g s", words, s.exposed,
                   s.communicating);
            EXPECT(s.seconds == s.computing + s.exposed, "%s on %d", words, ranks);
            // Until then the shares of optimizer and operands may outweigh what is sent.
            if (ranks > 8)
                EXPECT(s.efficiency < last.efficiency, "%s: %g on %d after %g", words, s.efficiency,
                       ranks, last.efficiency);
            last = s;
        }
    }
}

CASE(wider_links_and_networks_expose_less) {
    static const char *const keys[] = {"plan.network=12.5", "plan.network=50", "plan.network=400",
                                       "plan.network=400 plan.link=7200"};
    double last = INFINITY;
    for (int i = 0; i < ARRAY_LEN(keys); i++) {
        char words[512];
        snprintf(words, sizeof(words), LLAMA_7B "parallel.zero=3 parallel.bucket_mib=512 %s",
                 keys[i]);
        Scaling s = scaled(words, DEVICE_MODEL_B200, 512);
        EXPECT(s.exposed < last, "%s: %g s after %g", keys[i], s.exposed, last);
        last = s.exposed;
    }
}

/* --- the tables --- */

/* What plan.device=GB200 prints for these words on a CPU, from the heading of ranks on; caller
   frees. */
static char *tables_of(const char *words, int ranks) {
    Setup s;
    setup_open(&s, words);
    Device *cpu = device_cpu_open(1);
    model_split(&s.model, &s.config, 0, ranks);
    model_measure(&s.model, &s.config, cpu, &ops_cpu, 1);
    size_t before = s.model.arenas[ARENA_OPTIMIZER].used;
    char *text = predict_text(&s.model, &s.config, ranks, 0);
    EXPECT_EQ_I64(s.model.arenas[ARENA_OPTIMIZER].used, before, "%s", words);
    EXPECT_EQ_I64(s.model.zero.size, ranks, "%s", words);
    setup_close(&s);
    cpu->close(cpu);
    return text;
}

static void expect_tables(const char *words, int ranks, const char *const *wanted) {
    char *text = tables_of(words, ranks);
    for (int i = 0; wanted[i]; i++)
        EXPECT(strstr(text, wanted[i]), "no \"%s\" in\n%s", wanted[i], text);
    free(text);
}

CASE(tables_of_70b_on_64) {
    // 70,553,706,496 parameters: 6 bytes of weights and 4 of a gradient, 8 of Adam's, whole and by
    // 64; values of 2 bytes beside own masters
    static const char *const rows[] = {
        "ranks       each of 64, with one GB200\n",
        "\n  parameters                          423          146          146 ",
        "\n  gradients                           282          282 ",
        "\n  optimizer                           564         8.82         8.82         8.82\n",
        "\n  of 186 GB                  does not fit does not fit does not fit ",
        // 2 x 63/64 of 282 GB, then one way, and one way in each of 8 micro-steps
        "\n  gradients                           556          278         2220         2220\n",
        "\n  values after the update               -          139          139 ",
        "\n  weights come in bf16, and each rank makes operands of them\n",
        "scaling     parallel.zero=3; days, GPU-hours of 1e+12 tokens; ",
        "\n       1      1    512 ", "\n       8      1     64 ", "\n      64      1      8 ",
        "\n     512      8      1 ",
        "  assumed  72 GPUs a node (GB200), 900 GB/s each way between them (NVLink 5)\n", NULL};
    expect_tables("model.preset=llama3-70b precision.recipe=nvfp4 memory.recompute=block "
                  "batch.micro=1 batch.total_tokens=4194304 parallel.zero=3 plan.device=GB200 "
                  "plan.tokens=1000000000000",
                  64, rows);
}

CASE(tables_of_emulated_weights) {
    static const char *const rows[] = {"\n  weights come as codes where products read values: 3.5",
                                       NULL};
    expect_tables(LLAMA_7B NVFP4 "parallel.zero=3 plan.device=H200", 8, rows);
}

CASE(rows_that_do_not_divide_say_so) {
    static const char *const rows[] = {
        "\n       1      1     16 ", "\n       4      1      4 ",
        "\n     512   batch.total_tokens 524288 is not a multiple of 16777216\n", "price\n", NULL};
    expect_tables(GPT2 "plan.device=H200 plan.tokens=1000000000 plan.gpu_hour_price=2.5", 4, rows);
    Setup s;
    setup_open(&s, GPT2);
    EXPECT_EQ_I64(config_divides(&s.config, 16), 1);
    EXPECT_EQ_I64(config_divides(&s.config, 3), 0);
    setup_close(&s);
}

CASE(of_an_unknown_device_memory_alone) {
    char *text = tables_of(SMALL "parallel.zero=1", 4);
    EXPECT(strstr(text, "\nranks       each of 4, with one "), "%s", text);
    EXPECT(strstr(text, "\n  op workspace "), "%s", text);
    EXPECT(!strstr(text, "scaling"), "%s", text);
    free(text);
}

TEST_MAIN_END
