/*
fuzzing_run -- a fuzz target as a libFuzzer program; see fuzzing.h. Linked with --wrap=die: a
refusal comes back here, and what the reader held then is given back as the end of the process does
in the program, so that libFuzzer sees the leaks of accepted inputs only.
*/
#include <sanitizer/allocator_interface.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include "fuzzing.h"

enum { MAX_TAKEN = 1 << 18, MAX_LEFT_OPEN = 16 };

/* Memory that was taken since the input came in, whether it is still held or not. */
static struct {
    const volatile void *items[MAX_TAKEN];
    int count, recording;
} taken;
static jmp_buf refused;

void __wrap_die(ExitCode code, const char *format, ...) NORETURN PRINTF_LIKE(2, 3);
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void on_malloc(const volatile void *p, size_t bytes) {
    (void)bytes;
    if (taken.recording && p && taken.count < MAX_TAKEN) taken.items[taken.count++] = p;
}

static void on_free(const volatile void *p) { (void)p; }

/* Calls of die() within common.c do not go through the wrapper: there is no memory, or no file. */
static void on_unwrapped_die(ExitCode code, const char *message) {
    (void)code, (void)message;
    abort();
}

void __wrap_die(ExitCode code, const char *format, ...) {
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    if (!fuzz_is_refusal(code, message)) abort();
    longjmp(refused, 1);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    fuzz_begin();
    set_die_hook(on_unwrapped_die);
    __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
    return 0;
}

/* `first_free`: the lowest file descriptor that was free before the input. */
static void give_back(int first_free) {
    fuzz_free_maps();
    for (int i = 0; i < taken.count; i++) {
        void *p = (void *)taken.items[i];
        if (__sanitizer_get_ownership(p)) free(p);
    }
    for (int fd = first_free; fd < first_free + MAX_LEFT_OPEN; fd++) close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int first_free = dup(STDERR_FILENO);
    close(first_free);
    fuzz_begin_input();
    taken.count = 0;
    taken.recording = 1;
    int came_back = setjmp(refused);
    if (!came_back) fuzz_input(data, size);
    taken.recording = 0;
    if (came_back) give_back(first_free);
    return 0;
}
