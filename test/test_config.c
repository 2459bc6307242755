/*
test_config -- the config from the user's side: what a file or a word may say, what wins, what each
mistake in a file is answered with (exit code, place, key, what is legal), and that the echo reads
back as the same config. Mistakes in words: test_config_words.c.
*/
#include <fcntl.h>
#include <sys/stat.h>

#include "config.h"
#include "config_parts.h"
#include "test.h"

/* --- files of the tests --- */

/* Path of a file in the test's own directory; valid until the fourth call from here. */
static char *file_path(const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % ARRAY_LEN(paths)];
    snprintf(path, sizeof(paths[0]), "%s/%s", test_temp_dir(), name);
    return path;
}

static char *write_bytes(const char *name, const char *bytes, size_t count) {
    char *path = file_path(name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, count, f) != count || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
    return path;
}

static char *write_file(const char *name, const char *text) {
    return write_bytes(name, text, strlen(text));
}

static void parse_file(Config *c, const char *text) {
    char *args[] = {write_file("c.json", text)};
    config_parse(c, 1, args);
}

/* --- what is accepted --- */

CASE(defaults) {
    Config c;
    config_parse(&c, 0, NULL);
    EXPECT_EQ_I64(c.model.layers, 12);
    EXPECT_EQ_I64(c.model.dim, 768);
    EXPECT_EQ_I64(c.model.heads, 12);
    EXPECT_EQ_I64(c.model.kv_heads, 12);
    EXPECT_EQ_I64(c.model.head_dim, 64);
    EXPECT_EQ_I64(c.model.ffn, 3072);
    EXPECT_EQ_I64(c.model.vocab, 50257);
    EXPECT_EQ_I64(c.model.dtype, DT_BF16);
    EXPECT_EQ_I64(c.data.train.count, 0);
    EXPECT_EQ_I64(c.data.shuffle, 1);
    EXPECT_EQ_I64(c.batch.micro, 4);
    EXPECT_EQ_I64(c.eval.micro, 4, "is batch.micro");
    EXPECT_EQ_I64(c.batch.seq_len, 1024);
    EXPECT(c.optim.lr == 6e-4f && c.optim.betas[0] == 0.9f && c.optim.betas[1] == 0.95f);
    EXPECT(c.optim.eps == 1e-8f && c.optim.weight_decay == 0.1f && c.optim.grad_clip == 1.0f);
    EXPECT_EQ_I64(c.sched.type, SCHED_COSINE);
    EXPECT(c.precision.recipe == recipe_find("bf16"));
    EXPECT_EQ_I64(c.precision.keep_last, -1);
    EXPECT_EQ_I64(c.precision.rules.count, 0);
    EXPECT(strcmp(c.ckpt.dir, "runs/default/ckpt") == 0, "%s", c.ckpt.dir);
    EXPECT(strcmp(c.ckpt.resume, "auto") == 0);
    EXPECT_EQ_I64(c.memory.recompute, RECOMPUTE_NONE);
    EXPECT_EQ_I64(c.seed, 1337);
    config_free(&c);
}

/* A default outside of its own range, or two keys in one place, would go unseen. */
CASE(every_default_is_legal_and_has_its_own_place) {
    for (int i = 0; i < num_config_keys; i++) {
        const ConfigKey *key = &config_keys[i];
        EXPECT(key->help && key->help[0], "%s", key->name);
        EXPECT(config_key_find(key->name) == key, "%s is there twice", key->name);
        for (int j = 0; j < i; j++) {
            size_t end = config_keys[j].offset + config_keys[j].bytes;
            EXPECT(key->offset >= end || key->offset + key->bytes <= config_keys[j].offset,
                   "%s and %s overlap", key->name, config_keys[j].name);
        }
    }
}

CASE(nested_and_dotted_keys_and_comments) {
    Config c;
    parse_file(&c, "\xEF\xBB\xBF// a byte order mark, then a comment\n"
                   "{\"model.dim\": 256, // not the end: }\n"
                   " \"model\": {\"heads\": 4, \"bias\": false, \"pos\": \"rope\"},\n"
                   " \"log\": {\"dir\": \"runs//caf\xC3\xA9 // no comment\"},\n"
                   " \"optim\": {\"betas\": [0.8, 0.99]}, \"train\": {\"tokens\": 1e9}}\n// end");
    EXPECT_EQ_I64(c.model.dim, 256);
    EXPECT_EQ_I64(c.model.heads, 4);
    EXPECT_EQ_I64(c.model.head_dim, 64);
    EXPECT_EQ_I64(c.model.bias, 0);
    EXPECT_EQ_I64(c.model.pos, POS_ROPE);
    EXPECT(strcmp(c.log.dir, "runs//caf\xC3\xA9 // no comment") == 0, "%s", c.log.dir);
    EXPECT(c.optim.betas[0] == 0.8f && c.optim.betas[1] == 0.99f);
    EXPECT_EQ_I64(c.train.tokens, 1000000000);
    config_free(&c);
}

CASE(words_of_every_kind) {
    char *args[] = {"threads=2",
                    "train.tokens=5e9",
                    "optim.lr=0.25",
                    "model.rope_theta=500000",
                    "model.tied=0",
                    "model.bias=false",
                    "model.norm=rmsnorm",
                    "log.dir=runs/a=b",
                    "precision.recipe=nvfp4",
                    "memory.recompute=block",
                    "optim.betas=[0.5,0.75]",
                    "seed=18446744073709551615",
                    "data.train=a_*.bin",
                    "data.val=[{\"path\":\"b.bin\",\"weight\":0.7},\"c.bin\"]",
                    "precision.rules=[{\"layers\":\"*.mlp.*\",\"recipe\":\"bf16\"}]",
                    "precision.wgrad.x.hadamard=0",
                    "sample.prompt="};
    Config c;
    config_parse(&c, ARRAY_LEN(args), args);
    EXPECT_EQ_I64(c.threads, 2);
    EXPECT_EQ_I64(c.train.tokens, 5000000000);
    EXPECT(c.optim.lr == 0.25f);
    EXPECT(c.model.rope_theta == 500000);
    EXPECT_EQ_I64(c.model.tied, 0);
    EXPECT_EQ_I64(c.model.bias, 0);
    EXPECT_EQ_I64(c.model.norm, NORM_RMSNORM);
    EXPECT(strcmp(c.log.dir, "runs/a=b") == 0, "%s", c.log.dir);
    EXPECT(c.precision.recipe == recipe_find("nvfp4"));
    EXPECT(c.optim.betas[0] == 0.5f && c.optim.betas[1] == 0.75f);
    EXPECT_EQ_I64(c.memory.recompute, RECOMPUTE_BLOCK);
    EXPECT(c.seed == UINT64_MAX);
    EXPECT_EQ_I64(c.data.train.count, 1);
    EXPECT(strcmp(c.data.train.items[0].path, "a_*.bin") == 0);
    EXPECT(c.data.train.items[0].weight == 1);
    EXPECT_EQ_I64(c.data.val.count, 2);
    EXPECT(strcmp(c.data.val.items[1].path, "c.bin") == 0 && c.data.val.items[0].weight == 0.7);
    EXPECT_EQ_I64(c.precision.rules.count, 2);
    EXPECT(strcmp(c.precision.rules.items[0].layers, "*.mlp.*") == 0);
    EXPECT(c.precision.rules.items[0].recipe == recipe_find("bf16"));
    EXPECT(strcmp(rule_get(&c.precision.rules.items[1], "gemm"), "wgrad") == 0);
    EXPECT(strcmp(rule_get(&c.precision.rules.items[1], "operand"), "x") == 0);
    EXPECT(strcmp(rule_get(&c.precision.rules.items[1], "hadamard"), "0") == 0);
    config_free(&c);
}

/* --- what wins --- */

CASE(precedence) {
    char *first = write_file("first.json", "{\"extends\": \"base.json\", \"model\": {\"dim\": 192},"
                                           " \"optim\": {\"eps\": 1e-3}}");
    char *second =
        write_file("second.json", "{\"model\": {\"preset\": \"llama-30m\", \"heads\": 3},"
                                  " \"optim\": {\"eps\": 1e-4}}");
    write_file("base.json", "{\"model.dim\": 128, \"model.layers\": 2, \"optim.eps\": 1e-2,"
                            " \"threads\": 7}");
    char *args[] = {"model.heads=6",         first, second, "threads=3", "threads=4", "data.val=a",
                    "data.val=[\"b\",\"c\"]"};
    Config c;
    config_parse(&c, ARRAY_LEN(args), args);
    EXPECT_EQ_I64(c.model.act, ACT_SWIGLU, "the preset is over the defaults");
    EXPECT_EQ_I64(c.model.layers, 2, "an extended file is over the preset of another file");
    EXPECT_EQ_I64(c.model.dim, 192, "a file is over what it extends");
    EXPECT(c.optim.eps == 1e-4f, "a file is over those before it");
    EXPECT_EQ_I64(c.model.heads, 6, "a word is over all files, wherever it stands");
    EXPECT_EQ_I64(c.threads, 4, "the last word counts");
    REQUIRE(c.data.val.count == 2, "a list replaces the earlier one");
    EXPECT(strcmp(c.data.val.items[0].path, "b") == 0);
    config_free(&c);
}

CASE(the_last_preset_counts) {
    char *args[] = {write_file("c.json", "{\"model.preset\": \"gpt2-350m\"}"),
                    "model.preset=s1-7m"};
    Config c;
    config_parse(&c, 2, args);
    EXPECT_EQ_I64(c.model.layers, 4);
    EXPECT_EQ_I64(c.model.bias, 0);
    EXPECT(strcmp(c.model.preset, "s1-7m") == 0);
    config_free(&c);
}

static void expect_preset_changes(int num_args, char **args, const char *want) {
    Config c;
    config_parse(&c, num_args, args);
    const char *got = c.preset_changes ? c.preset_changes : "nothing";
    EXPECT(strcmp(got, want) == 0, "%s", got);
    config_free(&c);
}

/* What a preset leaves to be worked out counts as worked out: the echo of a preset changes none. */
CASE(changes_of_a_preset_are_noted) {
    char *args[] = {
        write_file("c.json", "{\"model\": {\"layers\": 4, \"dim\": 160, \"act\": \"swiglu\"}}"),
        "model.preset=llama-30m", "model.heads=4"};
    expect_preset_changes(2, args, "model.layers: 6 -> 4\nmodel.dim: 640 -> 160\n");
    expect_preset_changes(1, args + 1, "nothing");
    expect_preset_changes(2, args + 1, "model.heads: 5 -> 4\n");
    Config c;
    config_parse(&c, 1, args + 1);
    char *echo = config_to_json(&c), *echoed[] = {write_file("echo.json", echo)};
    config_free(&c);
    free(echo);
    expect_preset_changes(1, echoed, "nothing");
}

CASE(extends_is_relative_and_read_once) {
    mkdir(file_path("sub"), 0777);
    write_file("sub/root.json", "{\"batch.micro\": 3, \"threads\": 1}");
    write_file("sub/left.json", "{\"extends\": \"root.json\", \"threads\": 2}");
    write_file("sub/right.json", "{\"extends\": [\"../sub/root.json\"], \"batch.seq_len\": 64}");
    Config c;
    parse_file(&c, "{\"extends\": [\"sub/left.json\", \"sub/right.json\"]}");
    EXPECT_EQ_I64(c.batch.micro, 3);
    EXPECT_EQ_I64(c.batch.seq_len, 64);
    EXPECT_EQ_I64(c.threads, 2, "root.json is not applied again over left.json");
    config_free(&c);
}

/* Of train.steps, tokens and epochs the later source's takes the place of the earlier's. */
CASE(a_later_length_replaces_the_earlier) {
    char *args[] = {write_file("c.json", "{\"train\": {\"steps\": 20, \"tokens\": 0}}"),
                    "train.epochs=1.5"};
    Config c;
    config_parse(&c, 2, args);
    EXPECT_EQ_I64(c.train.steps, 0);
    EXPECT(c.train.epochs == 1.5);
    config_free(&c);
    args[1] = "train.tokens=0";
    config_parse(&c, 2, args);
    EXPECT_EQ_I64(c.train.steps, 20, "a zero replaces nothing");
    config_free(&c);
}

CASE(rules_keep_their_order) {
    char *args[] = {write_file("c.json",
                               "{\"precision\": {\"wgrad\": {\"x\": {\"hadamard\": 0},"
                               " \"dy\": {\"hadamard\": 0}}, \"rules\": [{\"gemm\":"
                               " \"dgrad\", \"mask\": 0}, {\"operand\": \"w\", \"mask\": 0}]}}"),
                    "precision.wgrad.x.hadamard=16",
                    "precision.rules=[{\"gemm\": \"fprop\", \"tile\": \"row\"}]"};
    Config c;
    config_parse(&c, 1, args);
    EXPECT_EQ_I64(c.precision.rules.count, 4);
    EXPECT(strcmp(rule_get(&c.precision.rules.items[0], "gemm"), "dgrad") == 0);
    EXPECT(strcmp(rule_get(&c.precision.rules.items[1], "operand"), "w") == 0);
    EXPECT(strcmp(rule_get(&c.precision.rules.items[3], "operand"), "dy") == 0);
    config_free(&c);
    config_parse(&c, 3, args);
    EXPECT_EQ_I64(c.precision.rules.count, 3, "the later list and the later cell replace");
    EXPECT(strcmp(rule_get(&c.precision.rules.items[0], "gemm"), "fprop") == 0);
    EXPECT(strcmp(rule_get(&c.precision.rules.items[1], "hadamard"), "16") == 0);
    config_free(&c);
}

CASE(pattern_gives_the_layers) {
    char *args[] = {"model.pattern=*-*--"};
    Config c;
    config_parse(&c, 1, args);
    EXPECT_EQ_I64(c.model.layers, 5);
    config_free(&c);
}

/* --- echo --- */

static void expect_equal(const Config *a, const Config *b) {
    for (int i = 0; i < num_config_keys; i++) {
        const ConfigKey *key = &config_keys[i];
        const char *of_a = (const char *)a + key->offset, *of_b = (const char *)b + key->offset;
        if (key->kind >= KIND_SOURCES) continue;   // lists
        int is_text = key->kind == KIND_STRING || key->kind == KIND_PRESET;
        EXPECT_BITS(of_b, of_a, is_text ? strlen(of_a) + 1 : key->bytes, "%s", key->name);
    }
    EXPECT_EQ_I64(b->data.train.count, a->data.train.count);
    for (int i = 0; i < a->data.train.count; i++) {
        EXPECT(strcmp(a->data.train.items[i].path, b->data.train.items[i].path) == 0);
        EXPECT(a->data.train.items[i].weight == b->data.train.items[i].weight);
    }
    REQUIRE(a->precision.rules.count == b->precision.rules.count);
    EXPECT_BITS(b->precision.rules.items, a->precision.rules.items,
                (size_t)a->precision.rules.count * sizeof(Rule), "rules");
}

static void expect_round_trip(int num_args, char **args) {
    Config c, again;
    config_parse(&c, num_args, args);
    char *text = config_to_json(&c);
    parse_file(&again, text);
    char *text_again = config_to_json(&again);
    EXPECT(strcmp(text, text_again) == 0, "%s\nbecame\n%s", text, text_again);
    expect_equal(&c, &again);
    free(text);
    free(text_again);
    config_free(&c);
    config_free(&again);
}

CASE(echo_reads_back) {
    expect_round_trip(0, NULL);
    char *args[] = {"model.preset=nemotron-1.2b",
                    "model.norm_eps=1.1754944e-38",
                    "optim.lr=0.00012345679",
                    "optim.betas=[0.1,0.3333333]",
                    "train.epochs=0.30000000000000004",
                    "batch.total_tokens=9007199254740992",
                    "seed=18446744073709551615",
                    "data.train=[\"a\\\"b*.bin\",{\"path\":\"c\\\\d\",\"weight\":0.1}]",
                    "sample.prompt=tab\t, quote\", line\nand \xC3\xA9",
                    "precision.recipe=nvfp4",
                    "precision.keep_bf16.first=3",
                    "precision.rules=[{\"layers\":\"blocks.0-3.*\",\"recipe\":\"bf16\"},"
                    "{\"gemm\":\"fprop\",\"operand\":\"x\",\"rounding\":\"stochastic\","
                    "\"dither_bits\":24,\"headroom\":true,\"top_scale\":256,\"arithmetic\":1}]",
                    "precision.dgrad.w.source=tensor",
                    "precision.wgrad.dy.signs=none"};
    expect_round_trip(ARRAY_LEN(args), args);
    for (int i = 0; i < num_presets; i++) {
        char word[64];
        snprintf(word, sizeof(word), "model.preset=%s", presets[i].name);
        char *preset[] = {word};
        expect_round_trip(1, preset);
    }
}

CASE(echo_prints_floats_as_they_are_written) {
    Config c;
    config_parse(&c, 0, NULL);
    char *text = config_to_json(&c);
    EXPECT(strstr(text, "[0.9, 0.95]"), "%s", text);
    EXPECT(strstr(text, "0.0006,"), "%s", text);
    free(text);
    config_free(&c);
}

/* --- tokens and steps --- */

/* The directory of a run stands for its config, and its checkpoints do not go along to another. */
CASE(directory_of_a_run_is_its_config) {
    char *args[] = {"model.dim=96", "log.dir=runs/first"};
    Config c;
    config_parse(&c, ARRAY_LEN(args), args);
    char *text = config_to_json(&c);
    config_free(&c);
    mkdir(file_path("run"), 0777);
    write_file("run/config.resolved.json", text);
    free(text);
    char *again[] = {file_path("run"), "log.dir=runs/second"};
    config_parse(&c, 1, again);
    EXPECT_EQ_I64(c.model.dim, 96);
    EXPECT(strcmp(c.ckpt.dir, "runs/first/ckpt") == 0, "%s", c.ckpt.dir);
    config_free(&c);
    config_parse(&c, 2, again);
    EXPECT(strcmp(c.ckpt.dir, "runs/second/ckpt") == 0, "%s", c.ckpt.dir);
    config_free(&c);
    char *elsewhere[] = {"log.dir=a", "ckpt.dir=a/ckpts"};
    expect_round_trip(ARRAY_LEN(elsewhere), elsewhere);
}

/* --- changes --- */

static void expect_changes(int num_args, char **args, const char *saved, const char *want) {
    Config c;
    config_parse(&c, num_args, args);
    char *lines = config_changes(&c, saved, "model optim.lr data.train precision seed");
    EXPECT(strcmp(lines, want) == 0, "%s", lines);
    free(lines);
    config_free(&c);
}

CASE(changes_since_a_saved_config) {
    char *args[] = {"precision.recipe=nvfp4",
                    "optim.lr=0.001",
                    "seed=18446744073709551615",
                    "model.preset=gpt2-124m",
                    "data.train=[\"a\",{\"path\":\"b\",\"weight\":2}]",
                    "optim.eps=1e-7",
                    "model.norm_eps=1e-6",
                    "precision.rules=[{\"layers\":\"*.mlp.*\",\"recipe\":\"bf16\"}]"};
    Config c;
    config_parse(&c, 0, NULL);
    char *saved = config_to_json(&c);
    config_free(&c);
    expect_changes(0, NULL, saved, "");
    expect_changes(ARRAY_LEN(args), args, saved,
                   "model.norm_eps: 1e-05 -> 1e-06\n"
                   "data.train: [] -> [{\"path\":\"a\",\"weight\":1},"
                   "{\"path\":\"b\",\"weight\":2}]\n"
                   "optim.lr: 0.0006 -> 0.001\n"
                   "precision.recipe: bf16 -> nvfp4\n"
                   "precision.rules: [] -> [{\"layers\":\"*.mlp.*\",\"recipe\":\"bf16\"}]\n"
                   "seed: 1337 -> 18446744073709551615\n");
    free(saved);
    // The text of an older program: a key that it did not know has not changed.
    char *dim[] = {"model.dim=96"};
    expect_changes(1, dim, "{\"model\": {\"dim\": 768}}", "model.dim: 768 -> 96\n");
}

CASE(changes_of_long_values_are_cut) {
    Config c;
    char text[512] = "data.train=";
    memset(text + strlen(text), 'a', 300);
    char *args[] = {text};
    config_parse(&c, 1, args);
    char *lines = config_changes(&c, "{\"data\": {\"train\": []}}", "data");
    EXPECT(strstr(lines, "[] -> [{\"path\":\"aaa") && strstr(lines, "aaa...\n"), "%s", lines);
    EXPECT_EQ_I64(strlen(lines), strlen("data.train: [] -> ") + 159 + 1);
    free(lines);
    config_free(&c);
}

CASE(accumulation_and_steps) {
    char *args[] = {"batch.micro=2", "batch.seq_len=8", "batch.total_tokens=96", "train.tokens=97"};
    Config c;
    config_parse(&c, 4, args);
    EXPECT_EQ_I64(config_accumulation(&c, 1), 6);
    EXPECT_EQ_I64(config_accumulation(&c, 3), 2);
    EXPECT_EQ_I64(config_step_tokens(&c, 3), 96);
    EXPECT_EQ_I64(config_steps(&c, 1, 0), 2, "tokens round up");
    EXPECT_DIES(EXIT_CONFIG,
                "batch.total_tokens is 96, not a multiple of batch.micro 2 x batch.seq_len 8 x 4 "
                "ranks = 64; nearest: 64 or 128",
                config_accumulation(&c, 4));
    config_free(&c);
    args[2] = "train.epochs=2.5";
    config_parse(&c, 3, args);
    EXPECT_EQ_I64(config_accumulation(&c, 4), 1);
    EXPECT_EQ_I64(config_step_tokens(&c, 4), 64);
    EXPECT_EQ_I64(config_steps(&c, 1, 9), 11, "2.5 x 9 x 8 / 16 = 11.25");
    EXPECT_EQ_I64(config_steps(&c, 64, 9), 1, "at least one");
    config_free(&c);
    config_parse(&c, 2, args);
    EXPECT_DIES(EXIT_CONFIG, "set one of train.steps, train.tokens, train.epochs",
                config_steps(&c, 1, 9));
    config_free(&c);
    args[2] = "sched.warmup_steps=2";
    config_parse(&c, 4, args);
    EXPECT_DIES(EXIT_CONFIG, "sched.warmup_steps is 2; legal: less than the 2 steps of the run",
                config_steps(&c, 4, 0));
    config_free(&c);
}

/* --- what is refused: in files --- */

typedef struct {
    const char *text, *message;
} BadFile;

static const BadFile bad_files[] = {
    // spelling and places
    {"{\"optim\":\n  {\"lrr\": 1}}", "c.json:2:4: key \"optim.lrr\" is unknown; did you mean "
                                     "\"optim.lr\"?"},
    {"{\"lr\": 1}", "c.json:1:2: key \"lr\" is unknown; did you mean \"optim.lr\"?"},
    {"{\"optim\": {\"learning_rate\": 1}}",
     "is unknown; did you mean \"optim.lr\" (llm.c -l, nanoGPT learning_rate)?"},
    {"{\"modle\": {\"dim\": 1}}", "c.json:1:2: key \"modle\" is unknown"},
    {"{\"zzzzzzzzzz\": 1}", "key \"zzzzzzzzzz\" is unknown; `help` lists all keys"},
    {"{\"precision\": {\"wgrad\": {\"w\": {\"hadamard\": 0}}}}",
     "\"precision.wgrad.w\" is unknown"},
    {"{\"precision.fprop.x.hadamrd\": 0}", "\"precision.fprop.x.hadamrd\" is unknown"},
    {"{\"model\": 3}", "c.json:1:2: key \"model\" is a group of keys, expected an object"},
    {"{\"\": 1}", "c.json:1:2: key \"\" is unknown"},
    // twice
    {"{\"threads\": 1,\n\n \"threads\": 2}",
     "c.json:3:2: key \"threads\" is given twice; the first is in line 1"},
    {"{\"optim\": {\"lr\": 1}, \"optim\": {\"eps\": 1}}",
     "c.json:1:22: key \"optim\" is given twice"},
    {"{\"optim\": {\"lr\": 1},\n \"optim.lr\": 2}",
     "c.json:2:2: key \"optim.lr\" is given twice; the first is in line 1"},
    {"{\"precision.wgrad.x.tile\": \"row\", \"precision\": {\"wgrad.x.tile\": \"row\"}}",
     "key \"precision.wgrad.x.tile\" is given twice"},
    // types
    {"{\"model\": {\"dim\": \"768\"}}",
     "c.json:1:12: key \"model.dim\" is a string, expected a whole number; legal: 1 to 131072"},
    {"{\"model.dim\": null}", "is null, expected a whole number"},
    {"{\"model.dim\": {\"x\": 1}}", "is an object, expected a whole number"},
    {"{\"model.bias\": 1}", "is a number, expected true or false"},
    {"{\"model.norm\": true}", "is true or false, expected a name; legal: layernorm, rmsnorm"},
    {"{\"log.dir\": [\"a\"]}", "is a list, expected a string; legal: up to 1023 bytes"},
    {"{\"optim.betas\": 0.9}", "expected a list of two numbers; legal: [a, b], each 0 to below 1"},
    {"{\"optim.betas\": [0.9]}", "key \"optim.betas\" has 1 values, expected 2"},
    {"{\"optim.betas\": [0.9,\n \"a\"]}", "c.json:2:2: key \"optim.betas[1]\" is a string"},
    {"{\"data.train\": 5}", "is a number, expected a glob or a list"},
    {"{\"data.train\": [7]}", "c.json:1:17: key \"data.train[0]\" is a number, expected a path"},
    {"{\"data.train\": \"\"}", "key \"data.train\" is empty, expected a path or glob"},
    {"{\"data.train\": [{\"weight\": 1}]}", "key \"data.train[0]\" has no \"path\""},
    {"{\"data.train\": [{\"path\": \"a\", \"weight\": 0}]}",
     "key \"data.train[0].weight\" must be a number above 0"},
    {"{\"data.train\": [{\"path\": \"a\", \"wieght\": 1}]}",
     "c.json:1:31: key \"data.train[0].wieght\" is unknown; an entry of data.train has \"path\" "
     "and"},
    {"{\"precision.rules\": {}}", "is an object, expected a list"},
    {"{\"precision.rules\": [3]}", "key \"precision.rules[0]\" is a number, expected an object"},
    {"{\"precision.rules\": [{\"layer\": \"*\"}]}",
     "key \"precision.rules[0].layer\" is refused: \"layer\" is not a key of a precision rule; "
     "legal: layers, gemm"},
    {"{\"precision.rules\": [{\"mask\": 0},\n {\"hadamard\": 12}]}",
     "c.json:2:3: key \"precision.rules[1].hadamard\" is refused: \"12\" is not a value of "
     "\"hadamard\"; legal: 0, 4, 8, 16, 32, 64, 128"},
    {"{\"precision.rules\": [{\"tile\": []}]}", "is a list, expected a string or a number"},
    {"{\"precision.wgrad.x.rounding\": \"up\"}", "legal: nearest, stochastic"},
    {"{\"seed\": true}", "key \"seed\" is true or false, expected a whole number"},
    // ranges
    {"{\"batch\": {\"micro\": -4}}", "key \"batch.micro\" is -4; legal: 1 to 65536"},
    {"{\"batch.micro\": 1.5}", "key \"batch.micro\" is 1.5, expected a whole number"},
    {"{\"batch.micro\": 1e30}", "key \"batch.micro\" is 1e+30; legal: 1 to 65536"},
    {"{\"train.steps\": 1e999}", "key \"train.steps\" is inf; legal: at least 0"},
    {"{\"optim.lr\": 1e999}", "key \"optim.lr\" is inf; legal: above 0, up to 100"},
    {"{\"optim.lr\": 0}", "key \"optim.lr\" is 0; legal: above 0, up to 100"},
    {"{\"optim.eps\": 1e-60}", "key \"optim.eps\" is 1e-60; legal: above 0, up to 1"},
    {"{\"optim.betas\": [0.9, 1]}", "key \"optim.betas[1]\" is 1; legal: 0 to below 1"},
    {"{\"optim.betas\": [0.9, 0.999999999]}", "is 0.999999999; legal: 0 to below 1"},
    {"{\"sched.type\": \"cosin\"}", "is \"cosin\"; legal: cosine, wsd, linear, constant"},
    {"{\"model.dtype\": \"i32\"}", "is \"i32\"; legal: f32, bf16"},
    {"{\"precision.recipe\": \"fp4\"}", "is \"fp4\"; legal: f32, bf16, nvfp4"},
    {"{\"model.preset\": \"gpt2\"}", "is \"gpt2\"; legal: gpt2-124m, gpt2-350m"},
    {"{\"seed\": 9007199254740992}", "legal: 0 to 2^53 - 1, or a string of digits below 2^64"},
    {"{\"seed\": -1}", "key \"seed\" is -1"},
    {"{\"seed\": \"18446744073709551616\"}", "key \"seed\" is \"18446744073709551616\""},
    {"{\"seed\": \"-5\"}", "key \"seed\" is \"-5\""},
    {"{\"seed\": \"\"}", "key \"seed\" is \"\""},
    // no JSON
    {"", "c.json is empty; expected a JSON object"},
    {" // only a comment\n", "c.json is empty; expected a JSON object"},
    {"[1]", "c.json:1:1: expected an object in braces here: [1]"},
    {"{\"threads\": 1", "c.json:1:14: the text ends before the JSON does"},
    {"{\"threads\": 1\n", "c.json:2:1: the text ends before the JSON does"},
    {"{\"threads\": 1, ", "c.json:1:16: the text ends before the JSON does"},
    {"{\"data.train\": [", "c.json:1:17: the text ends before the JSON does"},
    {"{\"log.dir\": \"a\n}", "c.json:1:13: this string is not closed in its line"},
    {"{\"log.dir\": \"a\\", "c.json:1:13: this string is not closed in its line"},
    {"{\"log.dir\": \"a\\u0000b\"}",
     "c.json:1:15: a string cannot hold a zero byte here: \\u0000b\"}"},
    {"{\"log.dir\": \"\\q\"}", "c.json:1:14: no escape of JSON here: \\q\"}"},
    {"{\"log.dir\": \"\\uD800\"}", "no text in UTF-16 escapes"},
    {"{\"threads\": 1} x", "c.json:1:16: expected nothing more here: x"},
    {"{\"threads\": 1,\n}", "c.json:2:1: expected a key in double quotes here: }"},
    {"{\"threads\": NaN}", "c.json:1:13: expected a value here: NaN}"},
    {"{'threads': 1}", "c.json:1:2: expected a key in double quotes here: 'threads'"},
    {"{\"threads\" 1}", "c.json:1:12: expected a colon here: 1}"},
    {"{\"threads\": 1 2}", "c.json:1:15: expected , or } here: 2}"},
    {"{\"data.train\": [\"a\" 2]}", "c.json:1:21: expected , or ] here: 2]}"},
    {"{\"threads\": 01}", "c.json:1:14: expected , or } here: 1}"},
    {"{\"threads\": 1.}", "c.json:1:13: no number of JSON here: 1.}"},
    {"{\"threads\": 1e}", "c.json:1:13: no number of JSON here: 1e}"},
    {"{\"threads\": -}", "c.json:1:13: no number of JSON here: -}"},
    {"{\"threads\": truer}", "c.json:1:17: expected , or } here: r}"},
    {"{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{",
     "deeper than any key"},
    // files
    {"{\"extends\": \"no.json\"}", "no.json\": No such file or directory"},
    {"{\"extends\": 3}", "c.json:1:2: key \"extends\" must be a path or a list of paths"},
    {"{\"extends\": [\"a\", 3]}", "cannot open"},
    {"{\"extends\": [3]}", "c.json:1:14: key \"extends[0]\" must be the path of a JSON file"},
    {"{\"extends\": \".\"}", "is a directory; expected a JSON file"},
    {"{\"extends\": \"c.json\"}", "c.json:1:2: key \"extends\" is a circle: "},
    {"{\"extends\": \"\", \"extends\": \"\"}", "is a directory"},
};

CASE(bad_files) {
    Config c;
    for (int i = 0; i < ARRAY_LEN(bad_files); i++) {
        int failures = test_state.failures;
        EXPECT_DIES(EXIT_CONFIG, bad_files[i].message, parse_file(&c, bad_files[i].text));
        if (test_state.failures > failures) printf("  for the text %s\n", bad_files[i].text);
    }
}

CASE(bad_bytes) {
    Config c;
    char *args[] = {write_bytes("c.json", "{\"threads\"\0: 1}", 15)};
    EXPECT_DIES(EXIT_CONFIG, "c.json:1:11: a zero byte", config_parse(&c, 1, args));
    char text[6000] = "{\"log.dir\": \"";
    memset(text + strlen(text), 'x', 5000);
    strcat(text, "\"}");
    EXPECT_DIES(EXIT_CONFIG, "key \"log.dir\" has 5000 bytes; legal: up to 1023",
                parse_file(&c, text));
    snprintf(text, sizeof(text), "{\"log.dir\": \"%01020d\"}", 0);
    EXPECT_DIES(EXIT_CONFIG, "log.dir is too long", parse_file(&c, text));
    snprintf(text, sizeof(text), "{\"optim\": {\"%05000d\": 1}}", 0);
    EXPECT_DIES(EXIT_CONFIG, "c.json:1:12: key \"optim.000000", parse_file(&c, text));
    snprintf(text, sizeof(text), "{\"threads\": 1%05000d}", 0);
    EXPECT_DIES(EXIT_CONFIG, "c.json:1:13: no number of JSON here: 1000", parse_file(&c, text));
    memset(text, '[', 5000);
    text[5000] = '\0';
    EXPECT_DIES(EXIT_CONFIG, "c.json:1:1: expected an object in braces", parse_file(&c, text));
    args[0] = (char *)test_temp_dir();
    EXPECT_DIES(EXIT_CONFIG, "is a directory; expected a JSON file", config_parse(&c, 1, args));
    args[0] = "test.json.missing";
    EXPECT_DIES(EXIT_CONFIG,
                "\"test.json.missing\": No such file or directory; what has no = in it "
                "is the path of a JSON file",
                config_parse(&c, 1, args));
}

CASE(extends_in_a_circle) {
    write_file("a.json", "{\"extends\": \"b.json\"}");
    write_file("b.json", "{\"threads\": 1, \"extends\": [\"c.json\"]}");
    Config c;
    EXPECT_DIES(EXIT_CONFIG, "b.json:1:28: key \"extends[0]\" is a circle",
                parse_file(&c, "{\"extends\": \"a.json\"}"));
}

CASE(two_lengths_in_one_file) {
    Config c;
    EXPECT_DIES(EXIT_CONFIG, "train.steps, train.tokens and train.epochs say the same thing",
                parse_file(&c, "{\"train\": {\"steps\": 1, \"tokens\": 5}}"));
}

/* --- the files that come with the program --- */

CASE(shipped_files_parse) {
    static char *const files[] = {
        "configs/runs/demo_bf16.json",      "configs/runs/demo_nvfp4.json",
        "configs/runs/gpt2_124m_bf16.json", "configs/runs/gpt2_124m_nvfp4.json",
        "configs/runs/s1_7m_bf16.json",     "configs/runs/s1_7m_nvfp4.json",
        "configs/runs/s2_30m_bf16.json",    "configs/runs/s2_30m_nvfp4.json",
    };
    for (int i = 0; i < ARRAY_LEN(files); i++) {
        Config c;
        config_parse(&c, 1, (char **)&files[i]);
        const char *recipe = strstr(files[i], "nvfp4") ? "nvfp4" : "bf16";
        EXPECT(c.precision.recipe == recipe_find(recipe), "%s", files[i]);
        EXPECT(config_steps(&c, 1, 0) > c.sched.warmup_steps, "%s", files[i]);
        config_free(&c);
    }
    char *overlay[] = {"configs/runs/demo_bf16.json", "configs/recipes/nvfp4.json"};
    Config c;
    config_parse(&c, 2, overlay);
    EXPECT(c.precision.recipe == recipe_find("nvfp4"));
    config_free(&c);
}

/* As the shell's <(...) hands them over. */
CASE(a_config_may_come_through_a_pipe) {
    const char *path = test_scratch("pipe.json"), *json = "{\"model\": {\"layers\": 5}}";
    EXPECT_EQ_I64(mkfifo(path, 0600), 0);
    pid_t writer = fork();
    if (writer == 0) {
        int fd = open(path, O_WRONLY);
        _exit(write(fd, json, strlen(json)) < 0);
    }
    char *args[] = {(char *)path};
    Config c;
    config_parse(&c, 1, args);
    EXPECT_EQ_I64(c.model.layers, 5);
    config_free(&c);
    waitpid(writer, NULL, 0);
}

TEST_MAIN_END
