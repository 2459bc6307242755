/*
test_gemm_cache -- algorithms of GEMMs as text: every line comes back as it was, damaged ones never;
files of the cache, which nothing may depend on; and whose algorithms a run takes.
*/
#include "../llmc/gemm_cache.h"

#include <dirent.h>
#include <sys/stat.h>

#include "../llmc/cache.h"
#include "../llmc/common.h"
#include "../llmc/config.h"
#include "../llmc/ops/gemm_choices.h"
#include "test.h"

/* How a statement of EXPECT_DIES ends that only warns. */
enum { WENT_ON = 78 };

// --- choices ---

static Device gpu_named(const char *name, int compute_capability, const char *libraries) {
    Device d = {.kind = DEVICE_CUDA, .compute_capability = compute_capability};
    snprintf(d.name, sizeof(d.name), "%s", name);
    snprintf(d.libraries, sizeof(d.libraries), "%s", libraries);
    return d;
}

static Device some_gpu(void) { return gpu_named("NVIDIA H200", 90, "driver 13.0, cuBLASLt 13.1"); }

static GemmChoice choice_of(int64_t m, double tflops, uint64_t word) {
    GemmChoice c;
    memset(&c, 0, sizeof(c));
    GemmKey key = {.m = m, .n = 2304, .k = 768, .a_type = 14, .b_type = 14, .d_type = 14};
    key.a_k_contiguous = key.has_bias = key.slices = 1;
    key.a_align = key.b_align = 256;
    key.d_align = 16;
    c.key = key;
    c.workspace_bytes = 33554432;
    c.tflops = tflops;
    for (int i = 0; i < GEMM_ALGO_WORDS; i++) c.algo[i] = word << 8 * i;
    return c;
}

/* Of some_gpu; caller frees. */
static char *text_of(const GemmChoice *items, int count) {
    Device d = some_gpu();
    GemmChoices list = {NULL, 0};
    for (int i = 0; i < count; i++) gemm_choices_add(&list, &items[i]);
    char *header = gemm_choices_header(&d), *text = gemm_choices_text(&list, header);
    free(header);
    free(list.items);
    return text;
}

/* What some_gpu takes of a text; caller frees the items. Warnings go nowhere. */
static GemmChoices read_back(const char *text) {
    Device d = some_gpu();
    GemmChoices list = {NULL, 0};
    char *header = gemm_choices_header(&d);
    log_set_rank(1, 2);
    int added = gemm_choices_read(&list, text, header);
    log_set_rank(0, 1);
    EXPECT_EQ_I64(added, list.count);
    free(header);
    return list;
}

static int num_read(const char *text) {
    GemmChoices list = read_back(text);
    free(list.items);
    return list.count;
}

CASE(lines_come_back) {
    const GemmChoice choices[] = {
        choice_of(65536, 701.25, 0x42),
        choice_of(1, 0, 0),
        choice_of(INT64_MAX, 1e-3, UINT64_MAX),
    };
    char *text = text_of(choices, ARRAY_LEN(choices));
    GemmChoices list = read_back(text);
    REQUIRE(list.count == ARRAY_LEN(choices), "%d of:\n%s", list.count, text);
    for (int i = 0; i < list.count; i++) {
        EXPECT_BITS(&list.items[i].key, &choices[i].key, sizeof(GemmKey), "choice %d", i);
        EXPECT_BITS(list.items[i].algo, choices[i].algo, sizeof(choices[i].algo), "choice %d", i);
        EXPECT(list.items[i].workspace_bytes == choices[i].workspace_bytes, "choice %d", i);
        EXPECT_NEAR(list.items[i].tflops, choices[i].tflops, 0.06, "choice %d", i);
    }
    char *again = text_of(list.items, list.count);
    EXPECT(strcmp(again, text) == 0, "%s", again);
    free(again);
    free(list.items);
    free(text);
}

CASE(a_line_says_what_it_is_of) {
    GemmChoice c = choice_of(65536, 701.25, 0x42);
    char *line = gemm_choice_line(&c);
    const char *want = "65536 2304 768 14 14 14 1 0 1 0 1 256 256 16 33554432 701.2 "
                       "0000000000000042"
                       "0000000000004200"
                       "0000000000420000"
                       "0000000042000000"
                       "0000004200000000"
                       "0000420000000000"
                       "0042000000000000"
                       "4200000000000000\n";
    EXPECT(strcmp(line, want) == 0, "%s", line);
    free(line);
}

CASE(every_key_field_counts) {
    GemmChoice c = choice_of(64, 1, 1);
    GemmChoices list = {&c, 1};
    for (size_t at = 0; at < sizeof(GemmKey); at++) {
        GemmKey other = c.key;
        ((uint8_t *)&other)[at] ^= 1;
        EXPECT(gemm_choices_find(&list, &other) == NULL, "byte %zu", at);
    }
    EXPECT(gemm_choices_find(&list, &c.key) == &c);
}

CASE(damaged_lines_are_left_out) {
    GemmChoice c = choice_of(65536, 701.25, 0x1234);
    char *text = text_of(&c, 1);
    size_t bytes = strlen(text),
           header_bytes = (size_t)(strchr(strchr(text, '\n') + 1, '\n') - text);
    EXPECT_EQ_I64(num_read(text), 1);
    for (size_t length = 0; length < bytes; length++) {
        char *cut = format_string("%.*s", (int)length, text);
        EXPECT_EQ_I64(num_read(cut), 0, "cut to %zu bytes", length);
        free(cut);
    }
    // Any other character in place of one of the line, but digits that make another number.
    const char others[] = "x -+.\tG%";
    for (size_t at = header_bytes + 1; at < bytes; at++) {
        for (const char *other = others; *other; other++) {
            char was = text[at];
            text[at] = *other;
            if (was != *other) EXPECT_EQ_I64(num_read(text), 0, "'%c' at %zu", *other, at);
            text[at] = was;
        }
    }
    free(text);
}

CASE(numbers_that_are_none_are_left_out) {
    static const char *const spoiled[][2] = {
        {"65536 ", "99999999999999999999 "},
        {" 14 14 14", " 14 14 99999999999"},
        {" 33554432 ", " -1 "},
        {" 33554432 ", " 36893488147419103232 "},
        {" 701.2 ", " nan "},
        {" 701.2 ", " inf "},
        {" 701.2 ", " -701.2 "},
        {" 701.2 ", " 1e+99 "},
        {" 701.2 ", " 0x2bd "},
        {" 701.2 ", "  701.2 "},
        {"65536 ", "065536 "},
        {"65536 ", "65536 65536 "},
    };
    GemmChoice c = choice_of(65536, 701.25, 0x1234);
    char *text = text_of(&c, 1);
    for (int i = 0; i < ARRAY_LEN(spoiled); i++) {
        char *at = strstr(text, spoiled[i][0]);
        REQUIRE(at, "%s", spoiled[i][0]);
        char *other = format_string("%.*s%s%s", (int)(at - text), text, spoiled[i][1],
                                    at + strlen(spoiled[i][0]));
        EXPECT_EQ_I64(num_read(other), 0, "'%s'", spoiled[i][1]);
        free(other);
    }
    free(text);
}

CASE(good_lines_around_a_damaged_one_count) {
    const GemmChoice choices[] = {choice_of(1, 1, 1), choice_of(2, 1, 1), choice_of(3, 1, 1)};
    char *text = text_of(choices, ARRAY_LEN(choices));
    strstr(text, "\n2 2304")[3] = 'x';
    GemmChoices list = read_back(text);
    REQUIRE(list.count == 2);
    EXPECT_EQ_I64(list.items[0].key.m, 1);
    EXPECT_EQ_I64(list.items[1].key.m, 3);
    free(list.items);
    free(text);
}

CASE(the_first_of_two_counts) {
    GemmChoice first = choice_of(64, 1, 1), second = choice_of(64, 2, 2);
    char *text = text_of(&first, 1), *line = gemm_choice_line(&second);
    char *both = format_string("%s%s", text, line);
    GemmChoices list = read_back(both);
    REQUIRE(list.count == 1);
    EXPECT_EQ_I64(list.items[0].algo[0], 1);
    free(list.items);
    free(both);
    free(line);
    free(text);
}

CASE(another_machines_text_is_not_read) {
    const Device others[] = {
        gpu_named("NVIDIA H200 NVL", 90, "driver 13.0, cuBLASLt 13.1"),
        gpu_named("NVIDIA H200", 80, "driver 13.0, cuBLASLt 13.1"),
        gpu_named("NVIDIA H200", 90, "driver 13.0, cuBLASLt 13.2"),
    };
    GemmChoice c = choice_of(64, 1, 1);
    char *text = text_of(&c, 1);
    for (int i = 0; i < ARRAY_LEN(others); i++) {
        GemmChoices list = {NULL, 0};
        char *header = gemm_choices_header(&others[i]);
        EXPECT_EQ_I64(gemm_choices_read(&list, text, header), 0, "%s", header);
        free(header);
    }
    EXPECT_EQ_I64(num_read(""), 0);
    EXPECT_EQ_I64(num_read("\n\n\n"), 0);
    free(text);
}

/* Far more than a model has, in far less than a second. */
CASE(a_list_has_an_end) {
    enum { NUM_LINES = 20000 };
    GemmChoice first = choice_of(1, 1, 1), past = choice_of(NUM_LINES + 1, 1, 1);
    char *head = text_of(&first, 1);
    size_t used = strlen(head), line_bytes = 300;
    char *text = (char *)xrealloc(head, used + NUM_LINES * line_bytes);
    for (int i = 2; i <= NUM_LINES; i++) {
        GemmChoice c = choice_of(i, 1, 1);
        char *line = gemm_choice_line(&c);
        used += (size_t)snprintf(text + used, line_bytes, "%s", line);
        free(line);
    }
    double started = now_ms();
    GemmChoices list = read_back(text);
    EXPECT(now_ms() - started < 3000, "%.0f ms", now_ms() - started);
    REQUIRE(list.count == GEMM_CHOICES_MAX, "%d", list.count);
    EXPECT_EQ_I64(list.items[GEMM_CHOICES_MAX - 1].key.m, GEMM_CHOICES_MAX);
    EXPECT_EQ_I64(gemm_choices_add(&list, &past), 0);
    EXPECT_EQ_I64(list.count, GEMM_CHOICES_MAX);
    EXPECT_DIES(WENT_ON, "more than 4096 GEMM algorithms", {
        Device d = some_gpu();
        GemmChoices none = {NULL, 0};
        gemm_choices_read(&none, text, gemm_choices_header(&d));
        _exit(WENT_ON);
    });
    free(list.items);
    free(text);
}

// --- files ---

/* An empty place for cache files. */
static const char *fresh_cache(const char *name) {
    const char *place = test_scratch(name);
    setenv("XDG_CACHE_HOME", place, 1);
    return place;
}

static int num_files(const char *name) {
    char *path = cache_path(name), *slash = strrchr(path, '/');
    *slash = '\0';
    DIR *d = opendir(path);
    free(path);
    if (!d) return 0;
    int n = -2;   // "." and ".."
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static void expect_path(const char *want) {
    char *path = cache_path("x");
    EXPECT(want ? path && strcmp(path, want) == 0 : !path, "%s", path ? path : "none");
    free(path);
}

CASE(the_environment_says_where) {
    setenv("HOME", "/home/someone", 1);
    setenv("XDG_CACHE_HOME", "/var/cache", 1);
    expect_path("/var/cache/train_gpt_nvfp4/x");
    setenv("XDG_CACHE_HOME", "relative", 1);
    expect_path("/home/someone/.cache/train_gpt_nvfp4/x");
    unsetenv("XDG_CACHE_HOME");
    expect_path("/home/someone/.cache/train_gpt_nvfp4/x");
    unsetenv("HOME");
    expect_path(NULL);
    EXPECT(cache_read("x") == NULL);
    EXPECT_EQ_I64(cache_write("x", "text"), 0);
}

CASE(files_are_replaced_as_a_whole) {
    fresh_cache("replaced/deep/below");
    EXPECT(cache_read("a.txt") == NULL);
    EXPECT_EQ_I64(cache_write("a.txt", "one\n"), 1);
    EXPECT_EQ_I64(cache_write("a.txt", "another\n"), 1);
    char *text = cache_read("a.txt");
    REQUIRE(text);
    EXPECT(strcmp(text, "another\n") == 0, "%s", text);
    free(text);
    EXPECT_EQ_I64(num_files("a.txt"), 1, "nothing is left beside it");
}

CASE(a_cache_that_cannot_be_used_ends_nothing) {
    const char *place = fresh_cache("plain_file");
    test_put_file(place, "x", 1);
    EXPECT(cache_read("a.txt") == NULL);
    EXPECT_EQ_I64(cache_write("a.txt", "one\n"), 0);
    fresh_cache("occupied");
    char *path = cache_path("a.txt");
    make_directory(path, "test");
    EXPECT(cache_read("a.txt") == NULL);
    EXPECT_EQ_I64(cache_write("a.txt", "one\n"), 0);
    EXPECT_EQ_I64(num_files("a.txt"), 1, "nothing is left beside it");
    free(path);
}

CASE(a_file_that_is_too_long_is_not_read) {
    const size_t most = 1 << 20;
    fresh_cache("long");
    char *text = (char *)xmalloc(most + 2);
    memset(text, 'x', most);
    EXPECT_EQ_I64(cache_write("a.txt", text), 1);
    char *back = cache_read("a.txt");
    EXPECT(back && strlen(back) == most);
    free(back);
    text[most] = 'x';
    EXPECT_EQ_I64(cache_write("a.txt", text), 1);
    EXPECT_DIES(WENT_ON, "a.txt' is not used: more than the 1048576 bytes",
                _exit(cache_read("a.txt") ? 1 : WENT_ON));
    free(text);
}

/* A pipe is not waited for, and a device not read without end. */
CASE(a_file_of_another_kind_is_not_read) {
    static const char *const targets[] = {"/dev/zero", "/dev/full", "."};
    fresh_cache("special");
    EXPECT_EQ_I64(cache_write("a.txt", "one\n"), 1);
    char *path = cache_path("a.txt");
    for (int k = 0; k <= ARRAY_LEN(targets); k++) {
        unlink(path);
        int failed = k ? symlink(targets[k - 1], path) : mkfifo(path, 0666);
        REQUIRE(!failed, "%s", path);
        EXPECT_DIES(WENT_ON, "a.txt' is not used: not a regular file",
                    _exit(cache_read("a.txt") ? 1 : WENT_ON));
    }
    EXPECT_EQ_I64(cache_write("a.txt", "two\n"), 1, "and its place is taken");
    char *text = cache_read("a.txt");
    EXPECT(text && strcmp(text, "two\n") == 0);
    free(text);
    free(path);
}

CASE(what_keeps_a_directory_from_being_made_is_said) {
    setenv("XDG_CACHE_HOME", "/dev/null/cache", 1);
    EXPECT_DIES(WENT_ON, "cannot create its directory: /dev/null/cache: Not a directory",
                _exit(cache_write("a.txt", "one\n") ? 1 : WENT_ON));
}

static GemmChoices cached(const Device *d) {
    char *text = gemm_cache_read(d);
    GemmChoices none = {NULL, 0}, list = text ? read_back(text) : none;
    free(text);
    return list;
}

static void merge(const Device *d, const GemmChoice *items, int count) {
    char *text = text_of(items, count);
    gemm_cache_merge(d, text);
    free(text);
}

CASE(merging_keeps_replaces_and_leaves_out) {
    Device d = some_gpu(), other = gpu_named("NVIDIA L4", 89, d.libraries);
    fresh_cache("merged");
    EXPECT(gemm_cache_read(&d) == NULL);
    const GemmChoice first[] = {choice_of(1, 10, 1), choice_of(2, 20, 2)};
    const GemmChoice second[] = {choice_of(2, 30, 3), choice_of(3, 40, 4), choice_of(4, 0, 5),
                                 choice_of(1, 0, 6)};
    merge(&d, first, ARRAY_LEN(first));
    merge(&d, second, ARRAY_LEN(second));
    GemmChoices list = cached(&d);
    EXPECT_EQ_I64(list.count, 3, "what was not measured is left out");
    static const uint64_t words[] = {1, 3, 4};
    for (int m = 1; m <= 3; m++) {
        GemmChoice want = choice_of(m, 0, 0);
        const GemmChoice *got = gemm_choices_find(&list, &want.key);
        REQUIRE(got, "m %d", m);
        EXPECT_EQ_I64(got->algo[0], words[m - 1], "m %d", m);
    }
    free(list.items);
    EXPECT(gemm_cache_read(&other) == NULL, "each device has its own");
    char *foreign = text_of(first, 1);
    gemm_cache_merge(&other, foreign);
    GemmChoices none = cached(&other);
    EXPECT_EQ_I64(none.count, 0, "of a text of another device nothing is taken");
    free(foreign);
}

static int has_key(const GemmChoices *list, int64_t m) {
    GemmChoice want = choice_of(m, 0, 0);
    return gemm_choices_find(list, &want.key) != NULL;
}

CASE(merging_keeps_the_newest) {
    enum { MAX_KEPT = 2048, NUM_NEW = 10 };
    static GemmChoice items[MAX_KEPT + NUM_NEW];
    Device d = some_gpu();
    fresh_cache("newest");
    for (int i = 0; i < ARRAY_LEN(items); i++) items[i] = choice_of(i + 1, 10, 1);
    merge(&d, items, MAX_KEPT);
    merge(&d, items + MAX_KEPT, NUM_NEW);
    GemmChoices list = cached(&d);
    EXPECT_EQ_I64(list.count, MAX_KEPT);
    for (int i = 0; i < NUM_NEW; i++) {
        EXPECT(has_key(&list, MAX_KEPT + 1 + i), "new one %d", i);
        EXPECT(!has_key(&list, MAX_KEPT - i), "old one %d", i);
    }
    EXPECT(has_key(&list, MAX_KEPT - NUM_NEW));
    free(list.items);
}

CASE(merging_at_once_loses_nothing) {
    enum { NUM_PROCESSES = 4, NUM_MERGES = 20 };
    Device d = some_gpu();
    fresh_cache("at_once");
    fflush(NULL);
    for (int p = 0; p < NUM_PROCESSES; p++) {
        if (fork() > 0) continue;
        for (int i = 0; i < NUM_MERGES; i++) {
            GemmChoice c = choice_of(1 + p + i * NUM_PROCESSES, 10, 1);
            merge(&d, &c, 1);
        }
        _exit(0);
    }
    while (wait(NULL) > 0) continue;
    GemmChoices list = cached(&d);
    EXPECT_EQ_I64(list.count, NUM_PROCESSES * NUM_MERGES);
    free(list.items);
}

CASE(a_lock_that_stays_is_not_waited_for_long) {
    Device d = some_gpu();
    fresh_cache("locked");
    char *header = gemm_choices_header(&d);
    char *name = format_string("gemm_%08x.txt", crc32_update(0, header, strlen(header)));
    int lock = cache_lock(name);
    REQUIRE(lock >= 0);
    const GemmChoice c = choice_of(1, 10, 1);
    double started = now_ms();
    merge(&d, &c, 1);
    double waited = now_ms() - started;
    EXPECT(waited > 1900 && waited < 20000, "%.0f ms", waited);
    GemmChoices list = cached(&d);
    EXPECT_EQ_I64(list.count, 1);
    cache_unlock(lock);
    free(list.items);
    free(name);
    free(header);
}

CASE(a_damaged_file_is_put_right) {
    Device d = some_gpu();
    fresh_cache("damaged");
    const GemmChoice c = choice_of(1, 10, 1);
    merge(&d, &c, 1);
    char *header = gemm_choices_header(&d);
    char *name = format_string("gemm_%08x.txt", crc32_update(0, header, strlen(header)));
    EXPECT_EQ_I64(cache_write(name, "\x01 nothing that it should be"), 1);
    EXPECT_EQ_I64(cached(&d).count, 0);
    merge(&d, &c, 1);
    GemmChoices list = cached(&d);
    EXPECT_EQ_I64(list.count, 1);
    free(list.items);
    free(name);
    free(header);
}

// --- a run's algorithms ---

static struct {
    GemmChoices loaded;
    int num_tuned, num_broadcasts;
    char *sent;   // what rank 0 broadcast, text behind its length
    size_t sent_bytes, received_bytes;
} world;

static int fake_load(Device *d, const char *text) {
    char *header = gemm_choices_header(d);
    int added = gemm_choices_read(&world.loaded, text, header);
    free(header);
    return added;
}

/* What was loaded, and one product measured at start. */
static char *fake_save(Device *d) {
    GemmChoice measured = choice_of(99, 900, 99);
    GemmChoices used = {NULL, 0};
    for (int i = 0; i < world.loaded.count; i++) gemm_choices_add(&used, &world.loaded.items[i]);
    gemm_choices_add(&used, &measured);
    char *header = gemm_choices_header(d), *text = gemm_choices_text(&used, header);
    free(header);
    free(used.items);
    return text;
}

static void fake_tune(Device *d, Tensor out, const QOperand *a, const QOperand *b, GemmEpilogue e) {
    (void)d, (void)out, (void)a, (void)b, (void)e;
    world.num_tuned++;
}

static void fake_gemm(Device *d, Tensor out, const QOperand *a, const QOperand *b, GemmEpilogue e) {
    (void)d, (void)out, (void)a, (void)b, (void)e;
}

static void fake_broadcast(Comm *c, void *data, DType dtype, int64_t count) {
    size_t bytes = dtype_bytes(dtype, count);
    world.num_broadcasts++;
    if (c->rank == 0) {
        world.sent = (char *)xrealloc(world.sent, world.sent_bytes + bytes);
        memcpy(world.sent + world.sent_bytes, data, bytes);
        world.sent_bytes += bytes;
        return;
    }
    memcpy(data, world.sent + world.received_bytes, bytes);
    world.received_bytes += bytes;
}

/* One rank's gemm_cache_prepare. Returns whether it got rates. */
static int prepare(DeviceKind kind, int rank, const char *checkpoint_text) {
    char *args[] = {"test/fixtures/model_gpt2.json", "precision.recipe=bf16", "eval.micro=2"};
    Config c;
    Model m;
    Ops ops = ops_cpu;
    ops.gemm = fake_gemm;
    ops.gemm_tune = fake_tune;
    ops.gemm_choices_load = fake_load;
    ops.gemm_choices_save = fake_save;
    Device gpu = some_gpu(), *d = device_cpu_open(0);
    d->kind = kind;
    memcpy(d->name, gpu.name, sizeof(gpu.name));
    memcpy(d->libraries, gpu.libraries, sizeof(gpu.libraries));
    d->compute_capability = gpu.compute_capability;
    Comm host = {.rank = rank, .size = 2, .broadcast = fake_broadcast};
    config_parse(&c, ARRAY_LEN(args), args);
    model_declare(&m, &c);
    model_measure(&m, &c, d, &ops, 1);
    free(world.loaded.items);
    world.loaded.items = NULL;
    world.loaded.count = world.num_tuned = 0;
    GemmRate *rates = gemm_cache_prepare(&m, 32, &host, checkpoint_text);
    int has_rates = rates != NULL;
    free(rates);
    model_free(&m);
    d->close(d);
    config_free(&c);
    return has_rates;
}

static uint64_t loaded_word(int64_t m) {
    GemmChoice want = choice_of(m, 0, 0);
    const GemmChoice *c = gemm_choices_find(&world.loaded, &want.key);
    return c ? c->algo[0] : 0;
}

CASE(checkpoint_before_cache_before_clock_and_the_same_on_all_ranks) {
    Device d = some_gpu();
    fresh_cache("run");
    const GemmChoice earlier[] = {choice_of(1, 10, 1), choice_of(2, 20, 2)};
    const GemmChoice saved = choice_of(2, 0, 22);   // the library's first answer, then
    merge(&d, earlier, ARRAY_LEN(earlier));
    char *checkpoint_text = text_of(&saved, 1);
    EXPECT(prepare(DEVICE_CUDA, 0, checkpoint_text));
    EXPECT_EQ_I64(loaded_word(1), 1, "of the cache");
    EXPECT_EQ_I64(loaded_word(2), 22, "of the checkpoint");
    EXPECT(world.num_tuned > 0, "what neither has is measured");
    EXPECT(!prepare(DEVICE_CUDA, 1, NULL), "rank 1 measures nothing");
    EXPECT_EQ_I64(world.num_tuned, 0);
    EXPECT_EQ_I64(world.received_bytes, world.sent_bytes);
    EXPECT_EQ_I64(world.num_broadcasts, 4);
    EXPECT_EQ_I64(loaded_word(1), 1);
    EXPECT_EQ_I64(loaded_word(2), 22);
    EXPECT_EQ_I64(loaded_word(99), 99, "what rank 0 measured");
    free(world.loaded.items);
    GemmChoices list = cached(&d);
    world.loaded = list;
    EXPECT_EQ_I64(loaded_word(99), 99, "kept for the next run");
    EXPECT_EQ_I64(loaded_word(2), 2, "what was not measured replaces nothing");
    free(checkpoint_text);
}

CASE(a_cpu_has_no_choice) {
    fresh_cache("cpu");
    world.num_broadcasts = 0;
    EXPECT(!prepare(DEVICE_CPU, 0, NULL));
    EXPECT_EQ_I64(world.num_tuned, 0);
    EXPECT_EQ_I64(world.num_broadcasts, 0);
    EXPECT_EQ_I64(num_files("x"), 0);
    char *text = ops_cpu.gemm_choices_save(NULL);
    EXPECT(text[0] == '\0', "%s", text);
    EXPECT_EQ_I64(ops_cpu.gemm_choices_load(NULL, "anything"), 0);
    free(text);
}

TEST_MAIN_END
