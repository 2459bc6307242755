/*
common -- what every file may use: integer helpers, logging, and the three kinds of error.
  programmer errors  CHECK(condition, "format", values...): prints file:line and aborts
  user errors        die(EXIT_CONFIG or EXIT_DATA, ...): names the key or file, what was found, what
                     is legal
  world errors       die(EXIT_DATA for disks, EXIT_DEVICE, EXIT_OOM, ...): with the system's own
                     text
Nothing here knows of tensors, devices or models.
*/
#ifndef LLMC_COMMON_H
#define LLMC_COMMON_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NORETURN __attribute__((noreturn))
#define PRINTF_LIKE(format_at, args_at) __attribute__((format(printf, format_at, args_at)))
#define ARRAY_LEN(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* The exit codes of the program; README.md lists them for users. */
typedef enum {
    EXIT_DONE = 0,
    EXIT_CONFIG = 2,        // bad command line, key, value or combination
    EXIT_DATA = 3,          // a file: missing, corrupt, too short, or not writable
    EXIT_DEVICE = 4,        // CUDA, cuBLAS, cuDNN, NCCL or MPI failed
    EXIT_OOM = 5,           // out of host or device memory
    EXIT_DIVERGED = 6,      // loss or gradient not finite
    EXIT_HANG = 7,          // nothing went on, or a rank died: start again
    EXIT_INTERRUPTED = 130  // SIGINT or SIGTERM; a checkpoint was saved
} ExitCode;

/* Prints "error: ..." (with the rank when there are several) on stderr and ends the process, and
   through the hook the other ranks. Never returns. */
void die(ExitCode code, const char *format, ...) NORETURN PRINTF_LIKE(2, 3);

/* Called by die() with the exit code before the process ends: closes run records, ends the other
   ranks. Returns the one before, which the new one has to call in turn; NULL for none. */
typedef void (*DieHook)(ExitCode code, const char *message);
DieHook set_die_hook(DieHook hook);

/* Ranks other than 0 print no log lines; errors print on every rank. Default: rank 0 of 1. */
void log_set_rank(int rank, int world_size);
void log_line(const char *format, ...) PRINTF_LIKE(1, 2);   // stdout, newline added, rank 0 only
// stderr, "warning: " before, rank 0 only
void log_warn(const char *format, ...) PRINTF_LIKE(1, 2);

/* What to do about sizes that no machine has. */
#define SMALLER_RUN "lower batch.micro, batch.seq_len, eval.micro or the model"

void check_failed(const char *file, int line, const char *condition, const char *format, ...)
    NORETURN PRINTF_LIKE(4, 5);
#define CHECK(condition, ...)                                              \
    do {                                                                   \
        if (!(condition)) check_failed(__FILE__, __LINE__, #condition, __VA_ARGS__); \
    } while (0)

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t round_up(int64_t a, int64_t multiple) {
    return ceil_div(a, multiple) * multiple;
}
static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

// dies with EXIT_OOM instead of returning NULL; memory is zeroed
void *xmalloc(size_t bytes);
void *xrealloc(void *p, size_t bytes);       // likewise; new bytes are not zeroed
char *xstrdup(const char *s);
char *format_string(const char *format, ...) PRINTF_LIKE(1, 2);   // caller frees

/* Opens a regular file for reading, its size in *bytes; -1, and what is wrong in *problem (caller
   frees), where there is none. Other kinds of file may keep a reader waiting or never end. */
int open_regular_file(const char *path, int64_t *bytes, char **problem);
/* The whole file as a NUL-terminated string (caller frees), its size in *bytes if not NULL.
   Dies with EXIT_DATA naming `what` ("config", "tokenizer") and the path when it cannot be read or
   is neither a regular file nor a pipe. */
char *read_text_file(const char *path, const char *what, size_t *bytes);
/* As read_text_file, of regular files only, but returns NULL and says what is wrong in *problem
   (caller frees), also of a file of more than `most` bytes. */
char *try_read_text_file(const char *path, size_t most, size_t *bytes, char **problem);
/* Creates the directory and its parents; dies with EXIT_DATA naming `what` and the path if that
   fails. */
void make_directory(const char *path, const char *what);
/* As make_directory, but returns what is wrong (caller frees); NULL for nothing. */
char *try_make_directory(const char *path);
int file_exists(const char *path);

double now_ms(void);                         // monotonic clock, milliseconds
// start with 0; the CRC-32 of zlib and gzip
uint32_t crc32_update(uint32_t crc, const void *data, size_t bytes);
/* Levenshtein distance, for "did you mean"; stops counting at `limit`. */
int edit_distance(const char *a, const char *b, int limit);

#ifdef __cplusplus
}
#endif
#endif
