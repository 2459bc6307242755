/*
test_parallel_guard -- where a step that is not finite began: weights of a tiny model are spoiled by
hand, and run_guard_step must name rank, micro-batch, branch and gradient, write all of it into the
replay file, and leave the model as it was. Alone it is one rank; under mpirun -np 2 and 4 rank 0
reports for all.
*/
#include <cjson/cJSON.h>

#include "test.h"

#include "../llmc/common.h"
#include "../llmc/ops.h"
#include "../llmc/run_guard.h"

enum { VOCAB = 64, RARE = 61, T = 32, MICRO = 2, MICROS = 2, HEADER = 256 };

static Comm *host;
static char folder[512];   // of rank 0, for all

/* Tokens below RARE, but for sequence `odd`, which has RARE in its middle. */
static void put_shard(const char *path, int sequences, int odd) {
    static int32_t header[HEADER];
    FILE *f = fopen(path, "wb");
    header[0] = 20240520;
    header[1] = 1;
    header[2] = sequences * T + 1;
    fwrite(header, sizeof(header), 1, f);
    for (int i = 0; i <= sequences * T; i++) {
        uint16_t token = (uint16_t)(i == odd * T + T / 2 ? RARE : i * 7 % RARE);
        fwrite(&token, sizeof(token), 1, f);
    }
    fclose(f);
}

/* A run on the ranks of this test, as it is behind a first step that was not finite. */
static void open_test_run(Run *r, const char *more) {
    char words[16][600];
    char *args[16];
    const char *fixed[] = {"model.layers=2",
                           "model.dim=64",
                           "model.heads=2",
                           "model.ffn=128",
                           "model.vocab=64",
                           "model.tied=false",
                           "batch.seq_len=32",
                           "batch.micro=2",
                           "data.shuffle=false",
                           "train.steps=4",
                           "threads=1",
                           "guard.nan=skip",
                           more};
    int count = 0;
    for (int i = 0; i < ARRAY_LEN(fixed); i++) snprintf(words[count++], 600, "%s", fixed[i]);
    snprintf(words[count++], 600, "data.train=%s/train.bin", folder);
    snprintf(words[count++], 600, "log.dir=%s/log", folder);
    snprintf(words[count++], 600, "batch.total_tokens=%d", T * MICRO * MICROS * host->size);
    if (more[0] == '{') {   // several keys: a config file of each rank's own
        char path[600];
        snprintf(path, sizeof(path), "%s/more.json", test_temp_dir());
        FILE *f = fopen(path, "w");
        fputs(more, f);
        fclose(f);
        snprintf(words[ARRAY_LEN(fixed) - 1], 600, "%s", path);
    }
    for (int i = 0; i < count; i++) args[i] = words[i];
    run_configure(r, count, args);
    r->host = r->comm = host;
    r->device = device_cpu_open(1);
    r->ops = &ops_cpu;
    run_open(r, READ_TRAIN);
    run_plan(r);
    run_take_buffers(r);
    model_place(&r->model, &r->config, r->device, r->ops, 1);
    model_init(&r->model, 1);
    model_begin_step(&r->model, 1);
    memset(&r->state, 0, sizeof(r->state));
    r->state.step = 1;
    r->state.skip = r->state.nonfinite = 1;
    r->state.loss = r->state.grad_norm = NAN;
    r->device->upload(r->device, r->model.engine.state, &r->state, sizeof(r->state));
}

/* The replay file as JSON; caller deletes. */
static cJSON *read_replay(const char *name) {
    char path[600];
    snprintf(path, sizeof(path), "%s/log/%s", folder, name);
    char *text = read_text_file(path, "replay file", NULL);
    cJSON *json = cJSON_Parse(text);
    free(text);
    return json;
}

static double number(const cJSON *json, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNumber(item) ? item->valuedouble : -1;
}

static void expect_text(const cJSON *json, const char *key, const char *want) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    const char *got = cJSON_IsString(item) ? item->valuestring : cJSON_IsNull(item) ? "null" : "?";
    EXPECT(strcmp(got, want) == 0, "%s is %s, want %s", key, got, want);
}

static void spoil(Run *r, const char *name, int64_t element) {
    Param *p = param_table_find(&r->model.params, name);
    REQUIRE(p && element < tensor_count(p->value), "%s", name);
    ((bf16_t *)p->value.data)[element] = bf16_from_f32(NAN);
    model_prepare_weights(&r->model);
}

typedef struct {
    const char *words, *spoiled;   // a parameter; NULL: none
    int64_t element;
    int rank, micro;   // where it must be found; rank -1: on the last one
    const char *forward, *gradient;
} Case;

static void find(const Case *c) {
    Run run, *r = &run;
    int odd = (host->size * MICROS - 1) * MICRO + 1, rank = c->rank < 0 ? host->size - 1 : c->rank;
    char path[600];
    snprintf(path, sizeof(path), "%s/train.bin", folder);
    if (host->rank == 0) put_shard(path, host->size * MICROS * MICRO, odd);
    host->barrier(host);
    open_test_run(r, c->words);
    if (c->spoiled) spoil(r, c->spoiled, c->element);
    const PassObserver *observer = r->model.observer;
    StepState before = r->state, after;
    run_guard_step(r);
    r->device->download(r->device, &after, r->model.engine.state, sizeof(after));
    EXPECT(memcmp(&before, &after, sizeof(before)) == 0, "the StepState has changed");
    EXPECT(r->model.step == 1 && r->model.observer == observer, "the model is left otherwise");
    if (host->rank == 0) {
        cJSON *json = read_replay("replay_step_00000000.json");
        EXPECT_EQ_I64((int64_t)number(json, "rank"), c->spoiled ? rank : -1);
        EXPECT_EQ_I64((int64_t)number(json, "micro_batch"), c->spoiled ? c->micro : -1);
        EXPECT_EQ_I64((int64_t)number(json, "world_size"), host->size);
        expect_text(json, "forward", c->forward);
        expect_text(json, "gradient", c->gradient);
        expect_text(json, "checkpoint", "null");
        int64_t first = ((int64_t)rank * MICROS + c->micro) * MICRO;
        if (c->spoiled) EXPECT_EQ_I64((int64_t)number(json, "sequence"), first);
        const cJSON *rows = cJSON_GetObjectItemCaseSensitive(json, "sequences");
        EXPECT_EQ_I64(cJSON_GetArraySize(rows), c->spoiled ? MICRO : 0);
        for (int b = 0; c->spoiled && b < MICRO; b++) {
            const cJSON *row = cJSON_GetArrayItem(rows, b);
            EXPECT_EQ_I64(cJSON_GetArraySize(row), T + 1);
            for (int t = 0; t <= T; t++) {
                int64_t at = (first + b) * T + t;
                int want = at == (int64_t)odd * T + T / 2 ? RARE : (int)(at * 7 % RARE);
                EXPECT_EQ_I64((int64_t)cJSON_GetArrayItem(row, t)->valuedouble, want, "%d", t);
            }
        }
        cJSON_Delete(json);
    }
    host->barrier(host);
    run_release(r);
}

/* A token's vector that one sequence alone has. */
CASE(one_token_of_one_micro_batch) {
    Case c = {"parallel.zero=0", "embed.tokens.weight", RARE * 64 + 3, -1,
              MICROS - 1,        "the token vectors",   "head.weight"};
    find(&c);
}

CASE(one_token_with_quantised_products) {
    Case c = {"precision.recipe=nvfp4", "embed.tokens.weight", RARE * 64 + 3, -1, MICROS - 1,
              "the token vectors",      "head.weight"};
    find(&c);
}

CASE(one_token_with_sharded_gradients) {
    Case c = {"parallel.zero=2", "embed.tokens.weight", RARE * 64 + 3, -1,
              MICROS - 1,        "the token vectors",   "head.weight"};
    find(&c);
}

CASE(one_token_with_gathered_weights) {
    Case c = {"parallel.zero=3", "embed.tokens.weight", RARE * 64 + 3, -1,
              MICROS - 1,        "the token vectors",   "head.weight"};
    find(&c);
}

CASE(one_token_with_gathered_codes) {
    Case c = {"{\"parallel.zero\": 3, \"precision.recipe\": \"nvfp4\"}",
              "embed.tokens.weight",
              RARE * 64 + 3,
              -1,
              MICROS - 1,
              "the token vectors",
              "head.weight"};
    find(&c);
}

/* Spoiled for all: the first of all micro-batches. */
CASE(weight_of_a_branch) {
    Case c = {"parallel.zero=1", "blocks.0.mlp.up.weight", 5, 0, 0, "blocks.0.mlp.down",
              "head.weight"};
    find(&c);
}

/* Behind the last branch the stream is finite, the loss is not. */
CASE(weight_of_the_head) {
    Case c = {"parallel.zero=0", "head.weight", 5, 0, 0, "null", "head.weight"};
    find(&c);
}

CASE(everything_finite) {
    Case c = {"parallel.zero=0", NULL, 0, 0, 0, "null", "null"};
    find(&c);
}

/* Files are bounded; the ninth step is counted and said, not looked at. */
CASE(at_most_eight_files) {
    Run run, *r = &run;
    open_test_run(r, "guard.max_skips=100");
    for (int step = 0; step < 10; step++) {
        r->step = step;
        run_guard_step(r);
    }
    for (int step = 0; step < 10 && host->rank == 0; step++) {
        char path[600];
        snprintf(path, sizeof(path), "%s/log/replay_step_%08d.json", folder, step);
        EXPECT(file_exists(path) == (step < 8), "%s", path);
    }
    host->barrier(host);
    run_release(r);
}

int main(int argc, char **argv) {
    host = comm_host_open(NULL);
    if (host->rank != 0 && !freopen("/dev/null", "w", stdout)) return 1;
    log_set_rank(host->rank, host->size);
    snprintf(folder, sizeof(folder), "%s", test_temp_dir());
    host->broadcast(host, folder, DT_U8, sizeof(folder));
    char log[600];
    snprintf(log, sizeof(log), "%s/log", folder);
    if (host->rank == 0) make_directory(log, "log");
    host->barrier(host);
    int failed = test_run(argc, argv);
    host->close(host);
    return failed;
}
