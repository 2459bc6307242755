/*
program -- starts the executable as a user does, for test_program*.c: command lines with a time
limit, ranks, a file-size limit; tiny shards; records read back. The executable is the one of the
test's own build, so that under ASan it is the sanitised one.
*/
#ifndef TEST_PROGRAM_H
#define TEST_PROGRAM_H

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <sys/stat.h>

#include "../llmc/common.h"
#include "test.h"

enum {
    PROGRAM_WORDS = 96,
    PROGRAM_SECONDS = 240,    // a program that hangs is ended after this
    PROGRAM_TEXT = 1 << 17,   // of each output that is kept
    PROGRAM_LINES = 1024      // of a record
};

/* Formats into one of 64 buffers, used in turn: paths and command lines live briefly. */
__attribute__((format(printf, 1, 2))) static inline const char *text(const char *format, ...) {
    static char buffers[64][4096];
    static int turn;
    char *buffer = buffers[turn++ % 64];
    va_list args;
    va_start(args, format);
    vsnprintf(buffer, sizeof(buffers[0]), format, args);
    va_end(args);
    return buffer;
}

static inline void or_exit(int holds, const char *what) {
    if (holds) return;
    perror(what);
    exit(1);
}

// --- files ---

static inline const char *scratch(const char *name) { return text("%s/%s", test_temp_dir(), name); }

static inline void put_file(const char *path, const void *data, size_t bytes) {
    FILE *f = fopen(path, "wb");
    or_exit(f && fwrite(data, 1, bytes, f) == bytes && fclose(f) == 0, path);
}

static inline void put_text(const char *path, const char *content) {
    put_file(path, content, strlen(content));
}

/* A fresh directory of the scratch directory; other programs' words may name it. */
static inline const char *make_dir(const char *name) {
    const char *path = scratch(name);
    or_exit(mkdir(path, 0777) == 0, path);
    return path;
}

/* Bytes of a file, or -1; `content` takes them with a NUL behind. */
static inline int64_t get_file(const char *path, char *content, size_t room) {
    FILE *f = fopen(path, "rb");
    if (!f) return -1;
    size_t bytes = fread(content, 1, room - 1, f);
    content[bytes] = '\0';
    fclose(f);
    return (int64_t)bytes;
}

static inline void copy_file(const char *to, const char *from) {
    static char content[1 << 22];
    int64_t bytes = get_file(from, content, sizeof(content));
    or_exit(bytes >= 0 && bytes < (int64_t)sizeof(content) - 1, from);
    put_file(to, content, (size_t)bytes);
}

/* Two files with equal bytes, which are then not empty. */
static inline void expect_same_file(const char *got, const char *want) {
    static char a[1 << 22], b[1 << 22];
    int64_t got_bytes = get_file(got, a, sizeof(a)), want_bytes = get_file(want, b, sizeof(b));
    EXPECT(want_bytes > 0 && want_bytes < (int64_t)sizeof(b) - 1, "%s: %lld bytes", want,
           (long long)want_bytes);
    EXPECT_EQ_I64(got_bytes, want_bytes, "bytes of %s", got);
    if (got_bytes == want_bytes) EXPECT_BITS(a, b, (size_t)want_bytes, "%s", got);
}

/* Entries of a directory but . and .., -1 without one; `prefix` chooses. */
static inline int count_entries(const char *path, const char *prefix) {
    DIR *dir = opendir(path);
    if (!dir) return -1;
    int count = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        count += strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    }
    closedir(dir);
    return count;
}

// --- shards ---

enum { SHARD_HEADER = 256, STREAM_FIRST = '0', STREAM_SYMBOLS = 64 };

/* Printable bytes that a model can learn: each follows from the one before it, save 28 in 256,
   which are drawn anew. */
static inline void fill_stream(uint16_t *tokens, int count, uint32_t seed) {
    uint32_t state = seed, token = seed % STREAM_SYMBOLS;
    for (int i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        token = (token * 5 + 7 + ((state >> 24) < 28 ? state >> 16 : 0)) % STREAM_SYMBOLS;
        tokens[i] = (uint16_t)(STREAM_FIRST + token);
    }
}

static inline void put_shard(const char *path, int num_tokens, uint32_t seed) {
    static struct {
        int32_t header[SHARD_HEADER];
        uint16_t tokens[1 << 16];
    } shard;
    or_exit(num_tokens <= 1 << 16, "put_shard");
    shard.header[0] = 20240520;
    shard.header[1] = 1;
    shard.header[2] = num_tokens;
    fill_stream(shard.tokens, num_tokens, seed);
    put_file(path, &shard, sizeof(shard.header) + (size_t)num_tokens * sizeof(uint16_t));
}

/* One token a byte and an end of text, as data/prepare_text.py writes it. */
static inline void put_byte_vocabulary(const char *path) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    FILE *f = fopen(path, "wb");
    or_exit(f != NULL, path);
    fprintf(f, "# train_gpt_nvfp4 vocabulary v1, size 257, end_of_text 256, kind byte\n");
    for (int b = 0; b < 256; b++) fprintf(f, "%c%c==\n", digits[b >> 2], digits[b << 4 & 63]);
    fprintf(f, "-\n");
    or_exit(fclose(f) == 0, path);
}

/* DIR/train_*.bin of 9 and 8 sequences of 32, DIR/val.bin of 8, DIR/byte.vocab, and DIR/base.json,
   which trains a small model on them for a few steps. */
static inline void put_base_run(const char *dir) {
    put_shard(text("%s/train_0.bin", dir), 9 * 32 + 5, 1);
    put_shard(text("%s/train_1.bin", dir), 8 * 32 + 1, 2);
    put_shard(text("%s/val.bin", dir), 8 * 32 + 1, 3);
    put_byte_vocabulary(text("%s/byte.vocab", dir));
    put_text(text("%s/base.json", dir),
             text("{\"model\": {\"layers\": 2, \"dim\": 64, \"heads\": 2, \"ffn\": 128, "
                  "\"vocab\": 257},\n"
                  " \"data\": {\"train\": \"%s/train_*.bin\", \"val\": \"%s/val.bin\"},\n"
                  " \"batch\": {\"micro\": 2, \"seq_len\": 32, \"total_tokens\": 128},\n"
                  " \"train\": {\"steps\": 4}, \"optim\": {\"lr\": 3e-3},\n"
                  " \"eval\": {\"every\": 0, \"tokens\": 0}, \"threads\": 1, \"device\": \"cpu\",\n"
                  " \"log\": {\"dir\": \"run\"}}\n",
                  dir, dir));
}

// --- running ---

/* Beside the folder of this test. */
static inline const char *program_path(void) {
    static char path[PATH_MAX];
    if (path[0]) return path;
    char self[PATH_MAX] = "";
    or_exit(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0, "/proc/self/exe");
    snprintf(path, sizeof(path), "%s", text("%s/train_gpt_nvfp4", dirname(dirname(self))));
    or_exit(access(path, X_OK) == 0, path);
    return path;
}

typedef struct {
    const char *dir;           // working directory; NULL: this test's
    int ranks;                 // 0: not under mpirun
    rlim_t file_limit;         // bytes; 0: none
    const char *stdout_to;     // NULL: kept
    const char *environment;   // "NAME=value ..."; NULL: this test's
    const char *under;         // words before the program: "ip netns exec NAME"; NULL: none
} Launch;

typedef struct {
    pid_t pid;
    int stdout_fd;   // of a program that was started to be watched
} Program;

static struct {
    int exit_code;   // as a shell shows it: 128 + signal for a killed program
    char out[PROGRAM_TEXT], err[PROGRAM_TEXT];
} ran;   // the last program

static inline int have_mpirun(void) { return system("command -v mpirun >/dev/null 2>&1") == 0; }

/* Splits at spaces. */
static inline void add_words(char **words, int *count, char *line) {
    for (char *rest, *word = strtok_r(line, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        or_exit(*count < PROGRAM_WORDS - 1, "too many words");
        words[(*count)++] = word;
    }
    words[*count] = NULL;
}

/* Containers forbid a process to read another's memory; MPI's own leaks are not the program's. */
static inline void set_rank_environment(void) {
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
}

static inline void become_program(const Launch *l, const char *line) NORETURN;
static inline void become_program(const Launch *l, const char *line) {
    static char mpirun[PATH_MAX], under[PATH_MAX], environment[PATH_MAX], arguments[4096];
    char *words[PROGRAM_WORDS];
    int count = 0;
    snprintf(environment, sizeof(environment), "%s", l->environment ? l->environment : "");
    add_words(words, &count, environment);
    while (count > 0) putenv(words[--count]);
    if (l->ranks > 0) {
        set_rank_environment();
        snprintf(mpirun, sizeof(mpirun),
                 "mpirun --allow-run-as-root --oversubscribe --bind-to none -np %d", l->ranks);
        add_words(words, &count, mpirun);
    }
    snprintf(under, sizeof(under), "%s", l->under ? l->under : "");
    add_words(words, &count, under);
    words[count++] = (char *)program_path();
    snprintf(arguments, sizeof(arguments), "%s", line);
    add_words(words, &count, arguments);
    if (l->dir) or_exit(chdir(l->dir) == 0, l->dir);
    struct rlimit no_core = {0, 0}, files = {l->file_limit, l->file_limit};
    setrlimit(RLIMIT_CORE, &no_core);
    if (l->file_limit) setrlimit(RLIMIT_FSIZE, &files);
    alarm(PROGRAM_SECONDS);   // survives exec
    execvp(words[0], words);
    perror(words[0]);
    _exit(1);
}

/* stderr goes into a file, stdout into the descriptor or, for -1, into another. */
static inline pid_t start(const Launch *l, const char *line, int stdout_fd) {
    const char *out = l->stdout_to ? l->stdout_to : scratch("stdout");
    const char *err = scratch("stderr");
    program_path();
    fflush(NULL);
    pid_t pid = fork();
    or_exit(pid >= 0, "fork");
    if (pid > 0) return pid;
    int flags = O_WRONLY | O_CREAT | O_TRUNC;
    int out_fd = stdout_fd >= 0 ? stdout_fd : open(out, flags, 0666),
        err_fd = open(err, flags, 0666);
    or_exit(out_fd >= 0 && err_fd >= 0, out);
    dup2(out_fd, STDOUT_FILENO);
    dup2(err_fd, STDERR_FILENO);
    become_program(l, line);
}

static inline int wait_for(pid_t pid) {
    int status = 0;
    or_exit(waitpid(pid, &status, 0) == pid, "waitpid");
    get_file(scratch("stderr"), ran.err, sizeof(ran.err));
    ran.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return ran.exit_code;
}

/* Runs to the end; returns the exit code and fills `ran`. */
static inline int run_as(const Launch *l, const char *line) {
    int exit_code = wait_for(start(l, line, -1));
    ran.out[0] = '\0';
    if (!l->stdout_to) get_file(scratch("stdout"), ran.out, sizeof(ran.out));
    return exit_code;
}

static inline int run_in(const char *dir, const char *line) {
    Launch l = {dir, 0, 0, NULL, NULL, NULL};
    return run_as(&l, line);
}

/* Expects success, and shows what went wrong. */
static inline int runs(const Launch *l, const char *line) {
    int exit_code = run_as(l, line);
    EXPECT(exit_code == 0, "exit code %d of \"%s\":\n%s", exit_code, line, ran.err);
    return exit_code == 0;
}

static inline int runs_in(const char *dir, const char *line) {
    Launch l = {dir, 0, 0, NULL, NULL, NULL};
    return runs(&l, line);
}

/* The last process that another has started, or 0. */
static inline pid_t some_child(pid_t parent) {
    pid_t last = 0;
    DIR *proc = opendir("/proc");
    or_exit(proc != NULL, "/proc");
    for (struct dirent *e; (e = readdir(proc)) != NULL;) {
        char stat[512];
        int ppid;
        if (get_file(text("/proc/%s/stat", e->d_name), stat, sizeof(stat)) <= 0) continue;
        const char *name_end = strrchr(stat, ')');
        if (!name_end || sscanf(name_end, ") %*c %d", &ppid) != 1 || ppid != parent) continue;
        if (atoi(e->d_name) > last) last = atoi(e->d_name);
    }
    closedir(proc);
    return last;
}

// --- a program that is watched while it runs ---

/* Its stdout is a pipe of one page: it waits for its reader, and so cannot finish unseen. */
static inline Program start_watched(const Launch *l, const char *line) {
    int ends[2];
    or_exit(pipe2(ends, O_CLOEXEC) == 0, "pipe");
    or_exit(fcntl(ends[0], F_SETPIPE_SZ, 4096) >= 0, "F_SETPIPE_SZ");
    Program p = {start(l, line, ends[1]), ends[0]};
    close(ends[1]);
    ran.out[0] = '\0';
    return p;
}

/* Reads stdout up to where `wanted` has come, or to its end for NULL; 1 if it came. */
static inline int read_until(const Program *p, const char *wanted) {
    size_t used = strlen(ran.out);
    for (;;) {
        if (wanted && strstr(ran.out, wanted)) return 1;
        ssize_t got = read(p->stdout_fd, ran.out + used, sizeof(ran.out) - 1 - used);
        if (got <= 0) return 0;
        used += (size_t)got;
        ran.out[used] = '\0';
    }
}

static inline int finish_watched(Program *p) {
    read_until(p, NULL);
    close(p->stdout_fd);
    return wait_for(p->pid);
}

// --- records ---

typedef struct {
    int is_validation, skipped, nonfinite;
    int64_t step, tokens;
    double loss, grad_norm, lr;   // NaN for null
} RecordLine;

static struct {
    int count;
    RecordLine lines[PROGRAM_LINES];
} record;   // the last one read

static inline double number_of(const cJSON *json, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* -1 for none: events have no tokens. */
static inline int64_t count_of(const cJSON *json, const char *key) {
    double number = number_of(json, key);
    return isnan(number) ? -1 : (int64_t)number;
}

static inline int is_true(const cJSON *json, const char *key) {
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, key));
}

static inline void read_record_line(const char *line) {
    cJSON *json = cJSON_ParseWithOpts(line, NULL, 1);
    EXPECT(cJSON_IsObject(json), "not a line of JSON: %s", line);
    int is_validation = cJSON_HasObjectItem(json, "val_loss");
    RecordLine r;
    r.is_validation = is_validation;
    r.step = count_of(json, "step");
    r.skipped = is_true(json, "skipped");
    r.nonfinite = is_true(json, "nonfinite");
    r.tokens = count_of(json, "tokens");
    r.loss = number_of(json, is_validation ? "val_loss" : "train_loss");
    r.grad_norm = number_of(json, "grad_norm");
    r.lr = number_of(json, "lr");
    cJSON_Delete(json);
    or_exit(record.count < PROGRAM_LINES, "record too long");
    record.lines[record.count++] = r;
}

/* Reads DIR/metrics.jsonl into `record`; every line must be JSON, the last one ended. */
static inline void read_record(const char *log_dir) {
    static char content[1 << 18];
    record.count = 0;
    int64_t bytes = get_file(text("%s/metrics.jsonl", log_dir), content, sizeof(content));
    EXPECT(bytes > 0 && content[bytes - 1] == '\n', "%s: %lld bytes", log_dir, (long long)bytes);
    char *rest;
    for (char *line = strtok_r(content, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        read_record_line(line);
}

/* The training (or validation) losses of a record, in order; returns their number. */
static inline int read_losses(const char *log_dir, int is_validation, double *losses) {
    int count = 0;
    read_record(log_dir);
    for (int i = 0; i < record.count; i++) {
        if (record.lines[i].is_validation == is_validation) losses[count++] = record.lines[i].loss;
    }
    return count;
}

/* Takes out what a clock measured: time_ms, tokens_per_s and mfu stand next to each other. */
static inline void drop_times(char *lines) {
    char *to = lines;
    for (const char *from = lines; *from;) {
        if (strncmp(from, ",\"time_ms\":", 11) == 0) {
            from = strstr(from, ",\"mfu\":") + 7;
            from += strcspn(from, ",}");
        }
        *to++ = *from++;
    }
    *to = '\0';
}

/* The whole metrics.jsonl, times apart, and the whole main.log. */
static inline void expect_same_record(const char *got_dir, const char *want_dir) {
    static char got[1 << 18], want[1 << 18];
    get_file(text("%s/metrics.jsonl", got_dir), got, sizeof(got));
    get_file(text("%s/metrics.jsonl", want_dir), want, sizeof(want));
    drop_times(got);
    drop_times(want);
    EXPECT(strstr(want, "train_loss") && !strstr(want, "time_ms"), "%s", want_dir);
    EXPECT_EQ_I64(strlen(got), strlen(want), "metrics.jsonl of %s", got_dir);
    EXPECT_BITS(got, want, strlen(want) + 1, "metrics.jsonl of %s", got_dir);
    expect_same_file(text("%s/main.log", got_dir), text("%s/main.log", want_dir));
}

/* run.json says so; the key's text or number as text, "null", or "missing". */
static inline const char *run_field(const char *log_dir, const char *key) {
    static char content[1 << 14];
    content[0] = '\0';
    get_file(text("%s/run.json", log_dir), content, sizeof(content));
    cJSON *json = cJSON_Parse(content), *item = cJSON_GetObjectItemCaseSensitive(json, key);
    const char *value = "missing";
    if (cJSON_IsString(item)) value = text("%s", item->valuestring);
    if (cJSON_IsNumber(item)) value = text("%g", item->valuedouble);
    if (cJSON_IsNull(item)) value = "null";
    cJSON_Delete(json);
    return value;
}

#endif
