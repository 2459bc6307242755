/*
test -- the harness of every test program, in C11 and C++17. One header, no library.

    #include "test.h"
    CASE(scale_of_zero_block) {   // registers itself; cases run in the order of the file
        EXPECT(scale == 0, "block %d: scale %g", b, scale);
        EXPECT_EQ_I64(got, want, "row %d", row);
        EXPECT_NEAR(got, want, 1e-6, "element %d", i);   // |got - want| <= 1e-6; NaN fails
        EXPECT_BITS(got, want, bytes, "codes");          // pointers; prints the first bad byte
        EXPECT_DIES(EXIT_CONFIG, "model.dim", config_load(path));   // exit code, text on stderr
        EXPECT_ABORTS("rows", tensor_expect(t, "x", DT_F32, 1, 2));   // a CHECK
        REQUIRE(p != NULL, "no row");   // as EXPECT, and leaves the case when it fails
    }
    TEST_MAIN_END                       // or an own main() that calls test_run(argc, argv)

The format and its values may be left out. A case counts once, however many expectations fail in
it; the first failures are printed. An argument runs only the cases whose name contains it. The
program ends with `N passed, N failed` alone on a line and status 0 or 1. EXPECT_DIES forks:
neither CUDA nor MPI works in its statement, and OpenMP runs on one thread there.
*/
#ifndef TEST_TEST_H
#define TEST_TEST_H

#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum {
    TEST_MAX_CASES = 512,
    TEST_PRINTED_FAILURES = 5,   // per case; the rest is only counted
    TEST_DEATH_SECONDS = 60,     // a statement of EXPECT_DIES that hangs is ended after this
    TEST_RETURNED = 199          // exit code of a child whose statement came back
};

static struct {
    struct {
        const char *name;
        void (*run)(void);
    } cases[TEST_MAX_CASES];
    int num_cases;
    int failures;   // in the case that runs
    char temp_dir[256];
} test_state;

static inline void test_register(const char *name, void (*run)(void)) {
    if (test_state.num_cases == TEST_MAX_CASES) {
        fprintf(stderr, "test.h: raise TEST_MAX_CASES\n");
        exit(1);
    }
    test_state.cases[test_state.num_cases].name = name;
    test_state.cases[test_state.num_cases++].run = run;
}

#define CASE(name)                                                                                 \
    static void test_case_##name(void);                                                            \
    __attribute__((constructor)) static void test_register_##name(void) {                          \
        test_register(#name, test_case_##name);                                                    \
    }                                                                                              \
    static void test_case_##name(void)

/* One failed expectation: `head` says what was compared, the format what it was about. The macros
   put a space before the format, so that it is never empty. */
static inline void test_failed(const char *file, int line, const char *head, const char *format,
                               va_list args) {
    if (test_state.failures++ >= TEST_PRINTED_FAILURES) return;
    printf("  %s:%d: %s", file, line, head);
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
}

/* Each of these is 1 where the expectation held. */
#define TEST_FORMAT(format_at)                                                                     \
    __attribute__((format(printf, format_at, (format_at) + 1))) static inline
TEST_FORMAT(5)
int test_true(int passed, const char *text, const char *file, int line, const char *format, ...) {
    if (passed) return 1;
    char head[512];
    snprintf(head, sizeof(head), "not true: %s", text);
    va_list args;
    va_start(args, format);
    test_failed(file, line, head, format, args);
    va_end(args);
    return 0;
}

TEST_FORMAT(6)
int test_equal(int64_t got, int64_t want, const char *text, const char *file, int line,
               const char *format, ...) {
    if (got == want) return 1;
    char head[512];
    snprintf(head, sizeof(head), "%s is %lld, want %lld", text, (long long)got, (long long)want);
    va_list args;
    va_start(args, format);
    test_failed(file, line, head, format, args);
    va_end(args);
    return 0;
}

typedef struct {
    double got, want, tolerance;
} TestNear;
TEST_FORMAT(5)
int test_near(TestNear n, const char *text, const char *file, int line, const char *format, ...) {
    double distance = fabs(n.got - n.want);
    if (distance <= n.tolerance || n.got == n.want) return 1;   // the second for equal infinities
    char head[512];
    snprintf(head, sizeof(head), "%s is %.9g, want %.9g, off by %.3g (tolerance %.3g)", text, n.got,
             n.want, distance, n.tolerance);
    va_list args;
    va_start(args, format);
    test_failed(file, line, head, format, args);
    va_end(args);
    return 0;
}

typedef struct {
    const void *got, *want;
    size_t bytes;
} TestBits;
TEST_FORMAT(5)
int test_bits(TestBits b, const char *text, const char *file, int line, const char *format, ...) {
    if (b.bytes == 0 || memcmp(b.got, b.want, b.bytes) == 0) return 1;
    const uint8_t *got = (const uint8_t *)b.got, *want = (const uint8_t *)b.want;
    size_t first = 0, differing = 0;
    for (size_t i = b.bytes; i-- > 0;) {
        if (got[i] != want[i]) {
            first = i;
            differing++;
        }
    }
    char head[512];
    snprintf(head, sizeof(head), "%s: byte %zu is 0x%02x, want 0x%02x; %zu of %zu bytes differ",
             text, first, got[first], want[first], differing, b.bytes);
    va_list args;
    va_start(args, format);
    test_failed(file, line, head, format, args);
    va_end(args);
    return 0;
}

#define TEST_HERE __FILE__, __LINE__
#define EXPECT(condition, ...)                                                                     \
    ((void)test_true(!!(condition), #condition, TEST_HERE, " " __VA_ARGS__))
#define EXPECT_EQ_I64(got, want, ...)                                                              \
    ((void)test_equal((int64_t)(got), (int64_t)(want), #got, TEST_HERE, " " __VA_ARGS__))
#define EXPECT_NEAR(got, want, tolerance, ...)                                                     \
    do {                                                                                           \
        TestNear test_n = {(double)(got), (double)(want), (double)(tolerance)};                    \
        (void)test_near(test_n, #got, TEST_HERE, " " __VA_ARGS__);                                 \
    } while (0)
#define EXPECT_BITS(got, want, bytes, ...)                                                         \
    do {                                                                                           \
        TestBits test_b = {(got), (want), (size_t)(bytes)};                                        \
        (void)test_bits(test_b, #got, TEST_HERE, " " __VA_ARGS__);                                 \
    } while (0)
#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (!test_true(!!(condition), #condition, TEST_HERE, " " __VA_ARGS__)) return;             \
    } while (0)

// --- statements that end the process ---

typedef struct {
    pid_t pid;
    int stderr_fd;
} TestChild;

/* Forks; the child's stderr goes into a pipe and its stdout nowhere. */
static inline TestChild test_fork(void) {
    int ends[2];
    fflush(NULL);
    if (pipe(ends) != 0) {
        perror("pipe");
        exit(1);
    }
    TestChild child = {fork(), ends[0]};
    if (child.pid < 0) {
        perror("fork");
        exit(1);
    }
    if (child.pid > 0) {
        close(ends[1]);
        return child;
    }
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    if (!freopen("/dev/null", "w", stdout)) _exit(1);
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    signal(SIGABRT, SIG_DFL);
    alarm(TEST_DEATH_SECONDS);
#ifdef _OPENMP
    omp_set_num_threads(1);   // the threads of the parent do not exist here
#endif
    return child;
}

/* The exit code as a shell shows it: 128 + signal for a killed child. */
static inline int test_wait(TestChild child, char *text, size_t text_bytes) {
    size_t used = 0;
    char chunk[4096];
    ssize_t got;
    while ((got = read(child.stderr_fd, chunk, sizeof(chunk))) > 0) {
        size_t room = text_bytes - 1 - used, taken = (size_t)got < room ? (size_t)got : room;
        memcpy(text + used, chunk, taken);
        used += taken;
    }
    text[used] = '\0';
    close(child.stderr_fd);
    int status = 0;
    waitpid(child.pid, &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static inline void test_expect_death(TestChild child, int want_code, const char *want_text,
                                     const char *file, int line) {
    static char text[1 << 15];
    int code = test_wait(child, text, sizeof(text));
    if (code == want_code && strstr(text, want_text)) return;
    if (test_state.failures++ >= TEST_PRINTED_FAILURES) return;
    printf("  %s:%d: want exit code %d and \"%s\" on stderr, got %s%d:\n%s\n", file, line,
           want_code, want_text, code == TEST_RETURNED ? "a statement that returned, " : "", code,
           text);
}

#define EXPECT_DIES(exit_code, substring, ...)                                                     \
    do {                                                                                           \
        TestChild test_child = test_fork();                                                        \
        if (test_child.pid == 0) {                                                                 \
            __VA_ARGS__;                                                                           \
            _exit(TEST_RETURNED);                                                                  \
        }                                                                                          \
        test_expect_death(test_child, (exit_code), (substring), TEST_HERE);                        \
    } while (0)
#define EXPECT_ABORTS(substring, ...) EXPECT_DIES(128 + SIGABRT, substring, __VA_ARGS__)

// --- scratch files and the runner ---

static inline int test_remove_entry(const char *path, const struct stat *info, int type,
                                    struct FTW *walk) {
    (void)info, (void)type, (void)walk;
    return remove(path);
}

/* A directory of this program's own, made at the first call and removed when test_run ends. */
static inline const char *test_temp_dir(void) {
    if (test_state.temp_dir[0]) return test_state.temp_dir;
    const char *base = getenv("TMPDIR");
    snprintf(test_state.temp_dir, sizeof(test_state.temp_dir), "%s/test_XXXXXX",
             base ? base : "/tmp");
    if (!mkdtemp(test_state.temp_dir)) {
        perror(test_state.temp_dir);
        exit(1);
    }
    return test_state.temp_dir;
}

/* A path in the scratch directory; one of eight buffers, used in turn. */
static inline const char *test_scratch(const char *name) {
    static char paths[8][512];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", test_temp_dir(), name);
    return path;
}

static inline void test_put_file(const char *path, const void *data, size_t bytes) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

static inline int test_run(int argc, char **argv) {
    const char *filter = argc > 1 ? argv[1] : "";
    int passed = 0, failed = 0;
    for (int i = 0; i < test_state.num_cases; i++) {
        if (!strstr(test_state.cases[i].name, filter)) continue;
        struct timespec begin, end;
        test_state.failures = 0;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        test_state.cases[i].run();
        clock_gettime(CLOCK_MONOTONIC, &end);
        double ms = (double)(end.tv_sec - begin.tv_sec) * 1e3 +
                    (double)(end.tv_nsec - begin.tv_nsec) * 1e-6;
        int hidden = test_state.failures - TEST_PRINTED_FAILURES;
        if (hidden > 0) printf("  and %d more\n", hidden);
        printf("%s %s (%.0f ms)\n", test_state.failures ? "FAIL" : "ok  ", test_state.cases[i].name,
               ms);
        fflush(stdout);
        if (test_state.failures) failed++;
        else passed++;
    }
    if (test_state.temp_dir[0])
        nftw(test_state.temp_dir, test_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    if (passed + failed == 0) printf("no case's name contains \"%s\"\n", filter);
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0 || passed == 0;
}

#define TEST_MAIN_END                                                                              \
    int main(int argc, char **argv) { return test_run(argc, argv); }

#endif
