/*
fuzz_config -- the config parser on anything: an input that begins with = is words of the command
line, one a line; every other is a file. Whatever it is, the parser ends with EXIT_CONFIG, or with a
config whose echo reads back as the same echo. Linked with --wrap=die: a refusal comes back here.
*/
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "config.h"

enum { MAX_LIVE = 1 << 14, MAX_WORDS = 16 };

/* Memory that was taken in the parse which a refusal left: it is freed here, as the end of the
   process does in the program. */
static struct {
    const volatile void *items[MAX_LIVE];
    int count, recording;
} live;
static jmp_buf refused;

int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));
void __wrap_die(ExitCode code, const char *format, ...) NORETURN;
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void on_malloc(const volatile void *p, size_t bytes) {
    (void)bytes;
    if (live.recording && p && live.count < MAX_LIVE) live.items[live.count++] = p;
}

static void on_free(const volatile void *p) {
    if (!live.recording) return;
    for (int i = live.count; i-- > 0;) {
        if (live.items[i] != p) continue;
        live.items[i] = live.items[--live.count];
        return;
    }
}

void __wrap_die(ExitCode code, const char *format, ...) {
    if (code != EXIT_CONFIG) {
        fprintf(stderr, "exit code %d: %s\n", (int)code, format);
        abort();
    }
    longjmp(refused, 1);
}

static char directory[64], path[80];

static void remove_files(void) {
    unlink(path);
    rmdir(directory);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    snprintf(directory, sizeof(directory), "/tmp/fuzz_config_XXXXXX");
    if (!mkdtemp(directory)) abort();
    snprintf(path, sizeof(path), "%s/c.json", directory);
    atexit(remove_files);
    __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
    return 0;
}

static void write_file(const void *data, size_t size) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0) abort();
}

/* Splits the lines of `text` in place. A word without = would be the path of some file. */
static int split_words(char *text, char **words) {
    int count = 0;
    for (char *word = strtok(text, "\n"); word && count < MAX_WORDS; word = strtok(NULL, "\n")) {
        if (strchr(word, '=')) words[count++] = word;
    }
    return count;
}

/* 0: refused. */
static int parse(Config *c, int num_args, char **args) {
    live.count = 0;
    live.recording = 1;
    int came_back = setjmp(refused);
    if (!came_back) config_parse(c, num_args, args);
    live.recording = 0;
    if (!came_back) return 1;
    for (int i = 0; i < live.count; i++) free((void *)live.items[i]);
    return 0;
}

static void expect_echo(Config *c) {
    char *echo = config_to_json(c), *args[] = {path};
    config_free(c);
    write_file(echo, strlen(echo));
    if (!parse(c, 1, args)) abort();
    char *again = config_to_json(c);
    config_free(c);
    if (strcmp(echo, again) != 0) abort();
    free(echo);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = (char *)xmalloc(size + 1), *args[MAX_WORDS] = {path};
    memcpy(text, data, size);
    int num_args = 1;
    if (text[0] == '=') {
        num_args = split_words(text + 1, args);
    } else {
        write_file(data, size);
    }
    Config c;
    if (parse(&c, num_args, args)) expect_echo(&c);
    free(text);
    return 0;
}
