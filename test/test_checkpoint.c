/*
test_checkpoint -- checkpoints come back bit for bit, survive a kill before any write, flush, rename
or removal, and are refused when anything in them is not as it was saved. Of one rank; several are
in test_checkpoint_shards.c, disks that fail in test_checkpoint_faults.c.
*/
#include "../llmc/checkpoint.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "../llmc/common.h"
#include "../llmc/safetensors.h"
#include "test.h"

// --- a kill at a chosen call: these stand before those of the C library ---

enum { KILLED = 77 };
static int calls_until_kill;   // 0: never

static int killed_here(void) { return calls_until_kill > 0 && --calls_until_kill == 0; }

ssize_t write(int fd, const void *data, size_t bytes) {
    if (killed_here()) {
        syscall(SYS_write, fd, data, bytes / 2);   // a kill may well leave half of it
        _exit(KILLED);
    }
    return syscall(SYS_write, fd, data, bytes);
}

int fsync(int fd) {
    if (killed_here()) _exit(KILLED);
    return (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to) {
    if (killed_here()) _exit(KILLED);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int remove(const char *path) {
    if (killed_here()) _exit(KILLED);
    struct stat info;
    int is_dir = lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
    return is_dir ? rmdir(path) : unlink(path);
}

// --- files ---

static const char *in_dir(const char *dir, const char *name) {
    static char path[1024];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static const char *const all_files[] = {"model.safetensors", "optimizer.safetensors", "state.json",
                                        "gemm_algorithms.txt"};
enum { NUM_NEEDED = 3 };   // of them; what a load goes on without comes after

// --- a small model ---

typedef struct {
    Device *device;
    Arena parameters, gradients, optimizer;
    ParamTable table;
    FlatRange *ranges;
} Model;

/* All of it here, as of one rank. */
static CheckpointTensors tensors_of(Model *m) {
    CheckpointTensors t = {&m->table, m->device, NULL, m->ranges, 1};
    return t;
}

static void declare(ParamTable *t, int64_t vocab) {
    param_table_add(t, "wte.weight", vocab, 4, round_up(vocab, 8), 1, INIT_NORMAL, 0.02f);
    param_table_add(t, "blocks.0.attn.qkv.weight", 12, 4, 12, 1, INIT_NORMAL, 0.02f);
    param_table_add(t, "norm.weight", 1, 4, 1, 0, INIT_ONE, 0);
}

/* m and v get values of their own; padding is filled with what must not survive a load. */
static Model model_open(DType dtype, int64_t vocab, uint64_t seed) {
    Model m = {.device = device_cpu_open(1)};
    m.parameters = arena_measure("parameters", m.device);
    m.gradients = arena_measure("gradients", m.device);
    m.optimizer = arena_measure("optimizer", m.device);
    declare(&m.table, vocab);
    param_table_seal(&m.table, dtype);
    param_table_place(&m.table, &m.parameters, &m.gradients, &m.optimizer, 1);
    arena_commit(&m.parameters);
    arena_commit(&m.gradients);
    arena_commit(&m.optimizer);
    param_table_place(&m.table, &m.parameters, &m.gradients, &m.optimizer, 1);
    param_table_init(&m.table, m.device, seed);
    for (int i = 0; i < m.table.count; i++) {
        Param *p = &m.table.params[i];
        for (int64_t k = 0; k < p->rows * p->cols; k++) {
            ((float *)p->m.data)[k] = ((float *)p->master.data)[k] * 0.3f + (float)seed;
            ((float *)p->v.data)[k] = ((float *)p->master.data)[k] * 0.7f - (float)seed;
        }
    }
    m.ranges = checkpoint_whole_tensors(&m.table, 1);
    return m;
}

static void model_close(Model *m) {
    arena_free(&m->optimizer);
    arena_free(&m->gradients);
    arena_free(&m->parameters);
    free(m->table.params);
    free(m->ranges);
    m->device->close(m->device);
}

static void scribble(Model *m) {
    memset(m->table.master.data, 0x55, tensor_bytes(m->table.master));
    memset(m->table.value.data, 0x55, tensor_bytes(m->table.value));
    memset(m->table.m.data, 0x55, tensor_bytes(m->table.m));
    memset(m->table.v.data, 0x55, tensor_bytes(m->table.v));
}

/* Alignment gaps between parameters belong to nobody, so parameters are compared one by one. */
static void expect_same_model(const Model *a, const Model *b, const char *when) {
    for (int i = 0; i < a->table.count; i++) {
        const Param *p = &a->table.params[i], *q = &b->table.params[i];
        EXPECT_BITS(p->master.data, q->master.data, tensor_bytes(p->master), "%s %s", when,
                    p->name);
        EXPECT_BITS(p->value.data, q->value.data, tensor_bytes(p->value), "%s %s", when, p->name);
        EXPECT_BITS(p->m.data, q->m.data, tensor_bytes(p->m), "%s m.%s", when, p->name);
        EXPECT_BITS(p->v.data, q->v.data, tensor_bytes(p->v), "%s v.%s", when, p->name);
    }
}

/* State of a run beside its tensors. */
typedef struct {
    double losses[8];
    int num_losses;
    double scale;
    int64_t epochs;
    char *algorithms;
    CheckpointField fields[4];
    CheckpointState state;
} Run;

static void run_fields(Run *r) {
    const CheckpointField fields[4] = {
        {"guard.losses", FIELD_REALS, r->losses, &r->num_losses, 8},
        {"scale", FIELD_REAL, &r->scale, NULL, 0},
        {"epochs", FIELD_INT, &r->epochs, NULL, 0},
        {"gemm.algorithms", FIELD_TEXT, &r->algorithms, NULL, 0},
    };
    memcpy(r->fields, fields, sizeof(fields));
    r->state.fields = r->fields;
    r->state.num_fields = 4;
}

static const char gemm_algorithms[] = "gemm algorithms 1 | a GPU\n65536 2304 768\n";

static void run_fill(Run *r, int64_t step) {
    *r = (Run){.losses = {4.1, 1.0 / 3, 1e-300, -0.0}, .num_losses = 4, .scale = 0.1 + 0.2};
    r->epochs = -(1LL << 53);
    r->algorithms = xstrdup("m=64: 7\n\"quoted\" \\ \xC3\xA9");
    r->state = (CheckpointState){.step = step,
                                 .position = 9007199254740991,
                                 .tokens = step * 1024,
                                 .seed = 18446744073709551615u,
                                 .config = xstrdup("{\n  \"seed\": 7\n}\n"),
                                 .gemm_algorithms = gemm_algorithms};
    run_fields(r);
}

static void run_free(Run *r) {
    free(r->algorithms);
    free(r->state.config);
}

static void expect_same_run(const Run *a, const Run *b) {
    EXPECT_EQ_I64(a->state.step, b->state.step);
    EXPECT_EQ_I64(a->state.position, b->state.position);
    EXPECT_EQ_I64(a->state.tokens, b->state.tokens);
    EXPECT(a->state.seed == b->state.seed, "%llu", (unsigned long long)a->state.seed);
    EXPECT(strcmp(a->state.config, b->state.config) == 0, "'%s'", a->state.config);
    EXPECT_EQ_I64(a->num_losses, b->num_losses);
    EXPECT_BITS(a->losses, b->losses, sizeof(a->losses));
    EXPECT_BITS(&a->scale, &b->scale, sizeof(a->scale));
    EXPECT_EQ_I64(a->epochs, b->epochs);
    EXPECT(strcmp(a->algorithms, b->algorithms) == 0, "'%s'", a->algorithms);
}

static void save_state(const CheckpointPolicy *policy, Model *m, const CheckpointState *state) {
    CheckpointTensors t = tensors_of(m);
    char *problem = checkpoint_save(policy, &t, state);
    if (problem) die(EXIT_DATA, "%s", problem);
}

static void load_into(Model *m, const char *path, CheckpointState *state, int with_optimizer) {
    CheckpointTensors t = tensors_of(m);
    checkpoint_load(path, &t, state, with_optimizer);
}

static void check_with(Model *m, const char *path, CheckpointState *state, int with_optimizer) {
    CheckpointTensors t = tensors_of(m);
    checkpoint_check(path, &t, state, with_optimizer);
}

static CheckpointPolicy policy_of(const char *dir) {
    static char staging[24];   // much smaller than a tensor
    CheckpointPolicy p = {dir, 0, 0, staging, sizeof(staging), NULL};
    return p;
}

static void save_step(const CheckpointPolicy *policy, Model *m, int64_t step) {
    Run run;
    run_fill(&run, step);
    save_state(policy, m, &run.state);
    run_free(&run);
}

/* For statements of EXPECT_DIES too: loads into a model and a run that are thrown away. */
static void load_only(const char *path, int64_t vocab, int with_optimizer) {
    Model m = model_open(DT_F32, vocab, 9);
    Run run = {0};
    run_fields(&run);
    load_into(&m, path, &run.state, with_optimizer);
    run_free(&run);
    model_close(&m);
}

/* A fresh directory with one checkpoint at step 7 of an f32 model with 5 tokens of vocabulary. */
static const char *saved_checkpoint(const char *name) {
    const char *dir = test_scratch(name);
    Model m = model_open(DT_F32, 5, 1);
    CheckpointPolicy policy = policy_of(dir);
    save_step(&policy, &m, 7);
    model_close(&m);
    return dir;
}

/* checkpoint_verify without its table. */
static int num_faults(const char *path) {
    log_set_rank(1, 2);
    int faults = checkpoint_verify(path);
    log_set_rank(0, 1);
    return faults;
}

static int64_t step_found(const char *dir) {
    char *path = checkpoint_find(dir);
    int64_t step = path ? strtoll(strrchr(path, '_') + 1, NULL, 10) : -1;
    free(path);
    return step;
}

static int num_entries(const char *dir) {
    DIR *d = opendir(dir);
    if (!d) return 0;
    int n = -2;   // "." and ".."
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

// --- what is saved comes back ---

CASE(load_gives_back_every_bit) {
    DType dtypes[] = {DT_F32, DT_BF16};
    for (int i = 0; i < ARRAY_LEN(dtypes); i++) {
        Model saved = model_open(dtypes[i], 5, 1), loaded = model_open(dtypes[i], 5, 2);
        CheckpointPolicy policy = policy_of(test_scratch(i ? "bits16" : "bits32"));
        Run run, back = {0};
        run_fill(&run, 120);
        save_state(&policy, &saved, &run.state);
        scribble(&loaded);
        memset(back.losses, 0, sizeof(back.losses));
        run_fields(&back);
        char *path = checkpoint_find(policy.dir);
        REQUIRE(path && strstr(path, "/step_00000120"), "%s", path);
        load_into(&loaded, path, &back.state, 1);
        expect_same_model(&loaded, &saved, "loaded");
        expect_same_run(&back, &run);
        char *config = checkpoint_config(path);
        EXPECT(strcmp(config, run.state.config) == 0, "'%s'", config);
        char *algorithms = checkpoint_gemm_algorithms(path);
        REQUIRE(algorithms, "no algorithms");
        EXPECT(strcmp(algorithms, gemm_algorithms) == 0, "'%s'", algorithms);
        free(algorithms);
        EXPECT_EQ_I64(num_faults(path), 0);
        EXPECT_EQ_I64(num_entries(policy.dir), 1);
        free(config);
        free(path);
        run_free(&run);
        run_free(&back);
        model_close(&loaded);
        model_close(&saved);
    }
}

CASE(without_optimizer_its_file_is_not_needed) {
    const char *dir = saved_checkpoint("weights_only");
    char *path = checkpoint_find(dir);
    unlink(in_dir(path, "optimizer.safetensors"));
    load_only(path, 5, 0);
    EXPECT_DIES(EXIT_DATA, "optimizer.safetensors: cannot open", load_only(path, 5, 1));
    free(path);
}

/* As on a CPU, which has no choice, and as before there was such a file. */
CASE(a_checkpoint_without_algorithms_is_whole) {
    static const char *const absent[] = {NULL, ""};
    Model m = model_open(DT_F32, 5, 1);
    for (int i = 0; i < ARRAY_LEN(absent); i++) {
        CheckpointPolicy policy = policy_of(test_scratch(i ? "empty_text" : "no_text"));
        Run run;
        run_fill(&run, 3);
        run.state.gemm_algorithms = absent[i];
        save_state(&policy, &m, &run.state);
        run_free(&run);
        char *path = checkpoint_find(policy.dir);
        EXPECT_EQ_I64(num_entries(path), 3, "two files of tensors, one state");
        EXPECT(checkpoint_gemm_algorithms(path) == NULL);
        EXPECT_EQ_I64(num_faults(path), 0);
        load_only(path, 5, 1);
        free(path);
    }
    model_close(&m);
}

/* Loads all else, asks for the algorithms and gets none; then ends with a code of its own, so that
   EXPECT_DIES shows what was said. */
enum { WENT_ON = 78 };
static void load_without_algorithms(const char *path) {
    load_only(path, 5, 1);
    char *text = checkpoint_gemm_algorithms(path);
    _exit(text ? 1 : WENT_ON);
}

CASE(algorithms_that_are_not_as_saved_are_done_without) {
    char *path = checkpoint_find(saved_checkpoint("algorithms"));
    char *file = xstrdup(in_dir(path, "gemm_algorithms.txt"));
    test_put_file(file, "another", 7);
    EXPECT_DIES(WENT_ON,
                "gemm_algorithms.txt: 7 bytes, expected 41 (truncated). It is used without",
                load_without_algorithms(path));
    EXPECT_DIES(WENT_ON, "losses differ in their last digits", load_without_algorithms(path));
    EXPECT_EQ_I64(num_faults(path), 1);
    char *other = xstrdup(gemm_algorithms);
    other[3] ^= 4;
    test_put_file(file, other, strlen(other));
    EXPECT_DIES(WENT_ON, "gemm_algorithms.txt: damaged: crc32", load_without_algorithms(path));
    EXPECT_EQ_I64(num_faults(path), 1);
    unlink(file);
    EXPECT_DIES(WENT_ON, "gemm_algorithms.txt: cannot open: No such file",
                load_without_algorithms(path));
    EXPECT_EQ_I64(num_faults(path), 1);
    test_put_file(in_dir(path, "state.json"), "x", 1);
    EXPECT_DIES(EXIT_DATA, "state.json: truncated", checkpoint_gemm_algorithms(path));
    free(other);
    free(file);
    free(path);
}

CASE(algorithms_beyond_all_measure_are_done_without) {
    Model m = model_open(DT_F32, 5, 1);
    CheckpointPolicy policy = policy_of(test_scratch("many_algorithms"));
    const size_t most = 1 << 20;
    char *text = (char *)xmalloc(most + 2);
    memset(text, 'x', most);
    for (int64_t step = 1; step <= 2; step++) {
        Run run;
        run_fill(&run, step);
        run.state.gemm_algorithms = text;
        save_state(&policy, &m, &run.state);
        run_free(&run);
        text[most] = 'x';
    }
    const char *path = in_dir(policy.dir, "step_00000001");
    char *back = checkpoint_gemm_algorithms(path);
    EXPECT(back && strlen(back) == most);
    EXPECT_EQ_I64(num_faults(path), 0);
    path = in_dir(policy.dir, "step_00000002");
    EXPECT_DIES(WENT_ON, "more than the 1048576 bytes", load_without_algorithms(path));
    EXPECT_EQ_I64(num_faults(path), 1);
    free(back);
    free(text);
    model_close(&m);
}

CASE(files_hold_true_rows_and_plain_names) {
    const char *dir = saved_checkpoint("names");
    Safetensors *s = safetensors_open(in_dir(dir, "step_00000007/model.safetensors"));
    const SafetensorsEntry *wte = safetensors_find(s, "wte.weight");
    const SafetensorsEntry *norm = safetensors_find(s, "norm.weight");
    REQUIRE(wte && norm && s->count == 3);
    EXPECT(wte->rows == 5 && wte->cols == 4 && wte->rank == 2);
    EXPECT(norm->cols == 4 && norm->rank == 1);
    safetensors_close(s);
    s = safetensors_open(in_dir(dir, "step_00000007/optimizer.safetensors"));
    EXPECT(s->count == 6 && safetensors_find(s, "m.wte.weight") &&
           safetensors_find(s, "v.norm.weight"));
    safetensors_close(s);
}

CASE(staging_size_does_not_matter) {
    Model m = model_open(DT_BF16, 5, 1);
    CheckpointPolicy small = policy_of(test_scratch("staging1")),
                     large = policy_of(test_scratch("staging2"));
    static char staging[1 << 16];
    small.staging_bytes = 3;
    large.staging = staging;
    large.staging_bytes = sizeof(staging);
    save_step(&small, &m, 1);
    save_step(&large, &m, 1);
    for (int i = 0; i < ARRAY_LEN(all_files); i++) {
        char name[64];
        size_t a_bytes, b_bytes;
        snprintf(name, sizeof(name), "step_00000001/%s", all_files[i]);
        char *a = read_text_file(in_dir(small.dir, name), "test", &a_bytes);
        char *b = read_text_file(in_dir(large.dir, name), "test", &b_bytes);
        EXPECT_EQ_I64(a_bytes, b_bytes, "%s", name);
        EXPECT_BITS(a, b, a_bytes < b_bytes ? a_bytes : b_bytes, "%s", name);
        free(a);
        free(b);
    }
    model_close(&m);
}

CASE(find_takes_a_directory_or_one_checkpoint) {
    EXPECT_EQ_I64(step_found(test_scratch("nowhere")), -1);
    const char *dir = saved_checkpoint("find");
    EXPECT_EQ_I64(step_found(dir), 7);
    EXPECT_EQ_I64(step_found(in_dir(dir, "step_00000007")), 7);
    EXPECT_EQ_I64(step_found(in_dir(dir, "step_00000007/")), 7);
    mkdir(in_dir(dir, ".tmp_step_00000009_1"), 0777);
    mkdir(in_dir(dir, "step_9"), 0777);
    mkdir(in_dir(dir, "step_00000009.bak"), 0777);
    EXPECT_EQ_I64(step_found(dir), 7, "only whole names count");
    mkdir(in_dir(dir, "step_123456789"), 0777);
    EXPECT_EQ_I64(step_found(dir), 123456789);
    EXPECT_DIES(EXIT_DATA, "step_00000007", load_only(in_dir(dir, "step_123456789"), 5, 1));
}

// --- which checkpoints stay ---

CASE(keep_policy) {
    static const struct {
        int keep;
        int64_t major_every;
        const char *left;
    } rows[] = {
        {0, 0, "10 20 30 40 50 60 "},
        {1, 0, "60 "},
        {2, 0, "50 60 "},
        {100, 0, "10 20 30 40 50 60 "},
        {1, 20, "20 40 60 "},
        {2, 30, "30 50 60 "},
        {3, 1, "10 20 30 40 50 60 "},
        {6, 7, "10 20 30 40 50 60 "},
    };
    Model m = model_open(DT_F32, 5, 1);
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        char name[32], left[128] = "";
        snprintf(name, sizeof(name), "keep%d", i);
        CheckpointPolicy policy = policy_of(test_scratch(name));
        policy.keep = rows[i].keep;
        policy.major_every = rows[i].major_every;
        for (int64_t step = 10; step <= 60; step += 10) save_step(&policy, &m, step);
        for (int step = 0; step < 100; step++) {
            snprintf(name, sizeof(name), "step_%08d", step);
            if (!file_exists(in_dir(policy.dir, name))) continue;
            snprintf(left + strlen(left), sizeof(left) - strlen(left), "%d ", step);
        }
        EXPECT(strcmp(left, rows[i].left) == 0, "keep %d, major_every %lld: %s", rows[i].keep,
               (long long)rows[i].major_every, left);
    }
    model_close(&m);
}

CASE(keep_never_takes_the_one_just_saved) {
    Model m = model_open(DT_F32, 5, 1);
    CheckpointPolicy policy = policy_of(test_scratch("branch"));
    save_step(&policy, &m, 100);
    save_step(&policy, &m, 200);
    policy.keep = 1;
    save_step(&policy, &m, 150);   // a run that went back to an older checkpoint
    EXPECT(file_exists(in_dir(policy.dir, "step_00000150")));
    EXPECT(file_exists(in_dir(policy.dir, "step_00000200")), "the user's to remove");
    EXPECT(!file_exists(in_dir(policy.dir, "step_00000100")));
    model_close(&m);
}

// --- kills ---

/* Saves in a child that dies at its n-th call; 0 when the save got through before that. */
static int save_and_die(const CheckpointPolicy *policy, Model *m, int64_t step, int n) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        calls_until_kill = n;
        save_step(policy, m, step);
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT(WIFEXITED(status), "call %d", n);
    return WEXITSTATUS(status);
}

/* After a kill: recover leaves only whole checkpoints, and the newest is the old or the new one. */
static void expect_whole(const char *dir, const Model *old, const Model *new, int64_t old_step,
                         int64_t new_step, int n) {
    checkpoint_recover(dir);
    char *path = checkpoint_find(dir);
    REQUIRE(path, "call %d: no checkpoint", n);
    Model loaded = model_open(DT_BF16, 5, 3);
    Run run = {0};
    run_fields(&run);
    load_into(&loaded, path, &run.state, 1);
    EXPECT(run.state.step == old_step || run.state.step == new_step, "call %d", n);
    // Where both have the same step, the first master tells whose files these are.
    const float *got = (const float *)loaded.table.master.data;
    int is_new = got[0] == ((const float *)new->table.master.data)[0];
    expect_same_model(&loaded, is_new ? new : old, "after a kill");
    EXPECT_EQ_I64(run.state.step, is_new ? new_step : old_step, "call %d", n);
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        EXPECT(strncmp(e->d_name, "step_", 5) == 0 || strspn(e->d_name, ".") == strlen(e->d_name),
               "call %d leaves %s", n, e->d_name);
    }
    closedir(d);
    run_free(&run);
    free(path);
    model_close(&loaded);
}

/* The next save of a killed run: with new_step == old_step it replaces, with keep 1 it removes. */
static void kill_everywhere(const char *name, int64_t old_step, int64_t new_step) {
    Model old = model_open(DT_BF16, 5, 1), new = model_open(DT_BF16, 5, 2);
    int n = 1, result = KILLED;
    for (; result == KILLED && n < 1000; n++) {
        char dir_name[64];
        snprintf(dir_name, sizeof(dir_name), "%s%d", name, n);
        CheckpointPolicy policy = policy_of(test_scratch(dir_name));
        policy.keep = 1;
        policy.staging_bytes = 24;
        save_step(&policy, &old, old_step);
        result = save_and_die(&policy, &new, new_step, n);
        expect_whole(policy.dir, &old, &new, old_step, new_step, n);
    }
    EXPECT_EQ_I64(result, 0, "the last save gets through");
    EXPECT(n > 40, "only %d calls", n);
    model_close(&old);
    model_close(&new);
}

CASE(a_kill_at_any_call_leaves_a_whole_checkpoint) { kill_everywhere("kill_next", 1, 2); }
CASE(a_kill_while_replacing_leaves_a_whole_checkpoint) { kill_everywhere("kill_same", 5, 5); }

CASE(a_kill_in_the_first_save_leaves_none) {
    Model m = model_open(DT_F32, 5, 1);
    CheckpointPolicy policy = policy_of(test_scratch("kill_first"));
    EXPECT_EQ_I64(save_and_die(&policy, &m, 1, 5), KILLED);
    EXPECT_EQ_I64(step_found(policy.dir), -1);
    EXPECT_EQ_I64(num_entries(policy.dir), 1);
    checkpoint_recover(policy.dir);
    EXPECT_EQ_I64(num_entries(policy.dir), 0);
    model_close(&m);
}

// --- damage ---

CASE(truncated_files_are_refused) {
    for (int i = 0; i < ARRAY_LEN(all_files); i++) {
        char name[64];
        snprintf(name, sizeof(name), "truncated%d", i);
        const char *dir = saved_checkpoint(name);
        char *path = checkpoint_find(dir);
        struct stat info;
        stat(in_dir(path, all_files[i]), &info);
        const int64_t sizes[] = {info.st_size - 1, info.st_size / 2, 20, 0};
        for (int k = 0; k < ARRAY_LEN(sizes); k++) {
            if (truncate(in_dir(path, all_files[i]), sizes[k]) != 0) perror("truncate");
            EXPECT(num_faults(path) > 0, "%s cut to %lld", all_files[i], (long long)sizes[k]);
            if (i >= NUM_NEEDED) load_only(path, 5, 1);
            else EXPECT_DIES(EXIT_DATA, all_files[i], load_only(path, 5, 1));
        }
        free(path);
    }
}

CASE(one_flipped_bit_anywhere_is_found) {
    const char *dir = saved_checkpoint("flipped");
    char *path = checkpoint_find(dir);
    for (int i = 0; i < ARRAY_LEN(all_files); i++) {
        size_t bytes;
        const char *file = in_dir(path, all_files[i]);
        char *text = read_text_file(file, "test", &bytes);
        for (size_t at = 0; at < bytes; at += 1 + bytes / 97) {
            text[at] ^= 4;
            test_put_file(file, text, bytes);
            EXPECT(num_faults(path) > 0, "%s byte %zu", all_files[i], at);
            text[at] ^= 4;
        }
        text[bytes / 2] ^= 4;
        test_put_file(file, text, bytes);
        if (i < NUM_NEEDED) {
            EXPECT_DIES(EXIT_DATA, "crc32 is", load_only(path, 5, 1));
            EXPECT_DIES(EXIT_DATA, all_files[i], load_only(path, 5, 1));
        }
        text[bytes / 2] ^= 4;
        test_put_file(in_dir(path, all_files[i]), text, bytes);
        free(text);
    }
    EXPECT_EQ_I64(num_faults(path), 0, "all is put back");
    free(path);
}

CASE(missing_files_are_named) {
    for (int i = 0; i < ARRAY_LEN(all_files); i++) {
        char name[64];
        snprintf(name, sizeof(name), "missing%d", i);
        char *path = checkpoint_find(saved_checkpoint(name));
        unlink(in_dir(path, all_files[i]));
        snprintf(name, sizeof(name), "%s: cannot open: No such file", all_files[i]);
        EXPECT(num_faults(path) > 0, "%s", all_files[i]);
        if (i < NUM_NEEDED) EXPECT_DIES(EXIT_DATA, name, load_only(path, 5, 1));
        free(path);
    }
    EXPECT(num_faults(test_scratch("nowhere")) > 0);
}

/* None of them may be waited for, or read without end. */
CASE(files_of_another_kind_are_refused) {
    static const char *const targets[] = {"/dev/zero", "/dev/full", "."};
    for (int i = 0; i < ARRAY_LEN(all_files); i++) {
        char name[64];
        snprintf(name, sizeof(name), "special%d", i);
        char *path = checkpoint_find(saved_checkpoint(name));
        char *file = xstrdup(in_dir(path, all_files[i]));
        snprintf(name, sizeof(name), "%s: not a regular file", all_files[i]);
        for (int k = 0; k <= ARRAY_LEN(targets); k++) {
            unlink(file);
            int failed = k ? symlink(targets[k - 1], file) : mkfifo(file, 0666);
            REQUIRE(!failed, "%s", file);
            EXPECT(num_faults(path) > 0, "%s", file);
            if (i < NUM_NEEDED) EXPECT_DIES(EXIT_DATA, name, load_only(path, 5, 1));
            else EXPECT_DIES(WENT_ON, name, load_without_algorithms(path));
        }
        free(file);
        free(path);
    }
    // What is read as text anywhere, such as configs, goes the same way.
    EXPECT_DIES(EXIT_DATA, "config '/dev/zero': not a regular file",
                read_text_file("/dev/zero", "config", NULL));
}

/* The rehearsal sees sizes, names and shapes, and the state; no CRC of what is large. */
CASE(a_check_reads_the_state_and_no_tensors) {
    char *path = checkpoint_find(saved_checkpoint("checked"));
    char *file = xstrdup(in_dir(path, "optimizer.safetensors"));
    Model m = model_open(DT_F32, 5, 9), same = model_open(DT_F32, 5, 9);
    Run run = {0}, saved;
    run_fill(&saved, 7);
    run_fields(&run);
    size_t bytes;
    char *text = read_text_file(file, "test", &bytes);
    text[bytes - 1] ^= 4;
    test_put_file(file, text, bytes);
    check_with(&m, path, &run.state, 1);
    expect_same_run(&run, &saved);
    expect_same_model(&m, &same, "checked");
    EXPECT_DIES(EXIT_DATA, "optimizer.safetensors: damaged", load_only(path, 5, 1));
    test_put_file(file, text, bytes - 1);
    check_with(&m, path, &run.state, 0);
    EXPECT_DIES(EXIT_DATA,
                "optimizer.safetensors: ", check_with(&m, path, &run.state, 1));
    Model other = model_open(DT_F32, 6, 9);
    EXPECT_DIES(EXIT_DATA, "tensor wte.weight has shape (5,4), the model's is (6,4)",
                check_with(&other, path, &run.state, 0));
    CheckpointField absent = {"absent", FIELD_INT, &run.epochs, NULL, 0};
    CheckpointState state = {.fields = &absent, .num_fields = 1};
    EXPECT_DIES(EXIT_DATA, "'absent' is missing", check_with(&m, path, &state, 0));
    free(text);
    free(file);
    free(path);
    run_free(&run);
    run_free(&saved);
    model_close(&other);
    model_close(&same);
    model_close(&m);
}

CASE(a_damaged_newest_names_the_way_back) {
    const char *dir = saved_checkpoint("fallback");
    Model m = model_open(DT_F32, 5, 1);
    CheckpointPolicy policy = policy_of(dir);
    save_step(&policy, &m, 8);
    char *path = checkpoint_find(dir), older[1024];
    EXPECT_EQ_I64(step_found(dir), 8);
    if (truncate(in_dir(path, "model.safetensors"), 100) != 0) perror("truncate");
    snprintf(older, sizeof(older), "ckpt.resume=%s/step_00000007", dir);
    EXPECT_DIES(EXIT_DATA, older, load_only(path, 5, 1));
    EXPECT_DIES(EXIT_DATA, "step_00000008' cannot be used: model.safetensors: 100 bytes",
                load_only(path, 5, 1));
    free(path);
    model_close(&m);
}

CASE(another_model_is_refused) {
    char *path = checkpoint_find(saved_checkpoint("other_model"));
    EXPECT_DIES(EXIT_DATA, "tensor wte.weight has shape (5,4), the model's is (6,4)",
                load_only(path, 6, 1));
    Model m = model_open(DT_F32, 5, 1);
    CheckpointState state = {0};
    snprintf(m.table.params[1].name, sizeof(m.table.params[1].name), "blocks.0.other");
    EXPECT_DIES(EXIT_DATA, "tensor blocks.0.other is missing",
                load_into(&m, path, &state, 1));
    m.table.count = 1;
    EXPECT_DIES(EXIT_DATA, "3 tensors, the model has 1",
                load_into(&m, path, &state, 1));
    model_close(&m);
    free(path);
}

CASE(state_that_does_not_fit_is_named) {
    char *path = checkpoint_find(saved_checkpoint("other_state"));
    Model m = model_open(DT_F32, 5, 1);
    double reals[2];
    int count = 0;
    int64_t whole = 0;
    CheckpointField absent = {"absent", FIELD_INT, &whole, NULL, 0};
    CheckpointField wrong = {"gemm.algorithms", FIELD_INT, &whole, NULL, 0};
    CheckpointField broken = {"scale", FIELD_INT, &whole, NULL, 0};
    CheckpointField narrow = {"guard.losses", FIELD_REALS, reals, &count, 2};
    CheckpointState state = {.fields = &absent, .num_fields = 1};
    EXPECT_DIES(EXIT_DATA, "'absent' is missing, expected a whole number",
                load_into(&m, path, &state, 1));
    state.fields = &wrong;
    EXPECT_DIES(EXIT_DATA, "'gemm.algorithms' is something else",
                load_into(&m, path, &state, 1));
    state.fields = &broken;
    EXPECT_DIES(EXIT_DATA, "'scale' is something else",
                load_into(&m, path, &state, 1));
    state.fields = &narrow;
    EXPECT_DIES(EXIT_DATA, "'guard.losses' is something else",
                load_into(&m, path, &state, 1));
    model_close(&m);
    free(path);
}

CASE(verify_finds_what_no_longer_is_a_number) {
    Model m = model_open(DT_F32, 5, 1);
    CheckpointPolicy policy = policy_of(test_scratch("nan"));
    ((float *)m.table.params[0].master.data)[3] = NAN;
    ((float *)m.table.params[2].v.data)[1] = INFINITY;
    save_step(&policy, &m, 1);
    char *path = checkpoint_find(policy.dir);
    EXPECT_EQ_I64(num_faults(path), 2);
    free(path);
    model_close(&m);
}

CASE(nonsense_is_a_programmer_error) {
    Model m = model_open(DT_F32, 5, 1);
    CheckpointPolicy policy = policy_of(test_scratch("nonsense"));
    policy.keep = -1;
    EXPECT_ABORTS("keep -1", save_step(&policy, &m, 1));
    policy = policy_of(test_scratch("nonsense"));
    policy.staging = NULL;
    EXPECT_ABORTS("no staging memory", save_step(&policy, &m, 1));
    model_close(&m);
}

TEST_MAIN_END
