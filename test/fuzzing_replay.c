/*
fuzzing_replay -- a fuzz target as a test program: each file of test/fuzz_corpus/X goes once through
the target fuzz_X, in a process of its own; see fuzzing.h. An argument takes only the files whose
name contains it. No libFuzzer here: a reader's faults stay found where there is no clang.
*/
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "fuzzing.h"

enum { SECONDS = 30 };
static const size_t MOST_BYTES = (size_t)1 << 26;   // beside what the program has at its start

/* Bytes of this process's address space, to which the sanitizers add terabytes. */
static size_t address_space(void) {
    size_t pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%zu", &pages) == 1, "/proc/self/statm");
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* A refusal is an end without a fault, whatever its code. */
static void on_die(ExitCode code, const char *message) {
    if (!fuzz_is_refusal(code, message)) abort();
    _exit(EXIT_DONE);
}

static void replay_in_child(const char *path) NORETURN;
static void replay_in_child(const char *path) {
    size_t bytes;
    char *text = read_text_file(path, "fuzz_corpus", &bytes);
    uint8_t *data = (uint8_t *)malloc(bytes ? bytes : 1);   // of just this size, for ASan
    memcpy(data, text, bytes);
    free(text);
    struct rlimit memory = {address_space() + MOST_BYTES, address_space() + MOST_BYTES};
    struct rlimit core = {0, 0};
    setrlimit(RLIMIT_AS, &memory);
    setrlimit(RLIMIT_CORE, &core);
    alarm(SECONDS);
#ifdef _OPENMP
    omp_set_num_threads(1);   // the threads of the parent do not exist here
#endif
    set_die_hook(on_die);
    fuzz_begin_input();
    fuzz_input(data, bytes);
    free(data);
    exit(EXIT_DONE);   // where LeakSanitizer looks
}

/* Text of a refusal is no news: what the child prints shows only where it fails. */
static int replay(const char *path) {
    FILE *output = tmpfile();
    CHECK(output, "no temporary file");
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0, "cannot fork");
    if (pid == 0) {
        dup2(fileno(output), STDOUT_FILENO);
        dup2(fileno(output), STDERR_FILENO);
        replay_in_child(path);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (code != EXIT_DONE) {
        printf("FAIL %s: exit code %d\n", path, code);
        rewind(output);
        for (int c; (c = fgetc(output)) != EOF;) putchar(c);
    }
    fclose(output);
    return code == EXIT_DONE;
}

static int is_input(const struct dirent *entry) { return entry->d_name[0] != '.'; }

int main(int argc, char **argv) {
    const char *filter = argc > 1 ? argv[1] : "", *slash = strrchr(argv[0], '/');
    const char *name = (slash ? slash + 1 : argv[0]) + strlen("fuzz_");
    char *directory = format_string("test/fuzz_corpus/%s", name);
    struct dirent **entries;
    int count = scandir(directory, &entries, is_input, alphasort), passed = 0, failed = 0;
    CHECK(count > 0, "no inputs in %s", directory);
    fuzz_begin();
    for (int i = 0; i < count; i++) {
        char *path = format_string("%s/%s", directory, entries[i]->d_name);
        int is_wanted = strstr(entries[i]->d_name, filter) != NULL;
        if (is_wanted && replay(path)) passed++;
        else if (is_wanted) failed++;
        free(path);
        free(entries[i]);
    }
    free(entries);
    free(directory);
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0 || passed == 0;
}
