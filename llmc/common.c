/*
common -- logging, the three kinds of error, allocation that cannot fail, and small files.
The contracts are in common.h. Not a place for anything that knows a tensor, a device or a model.
*/
#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct { int rank, size; } world = {0, 1};

static DieHook die_hook;

// --- errors ---

DieHook set_die_hook(DieHook hook) {
    DieHook before = die_hook;
    die_hook = hook;
    return before;
}

static void print_error(const char *message) {
    fflush(stdout);
    if (world.size > 1) {
        fprintf(stderr, "error: rank %d of %d: %s\n", world.rank, world.size, message);
    } else {
        fprintf(stderr, "error: %s\n", message);
    }
    fflush(stderr);
}

void die(ExitCode code, const char *format, ...) {
    static atomic_flag dying = ATOMIC_FLAG_INIT;
    static _Thread_local int dying_here;   // the hook itself may fail and come back
    char message[8192];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);

    // Of several failing threads the first one reports; the others wait for the end it brings.
    while (!dying_here && atomic_flag_test_and_set(&dying)) pause();
    print_error(message);
    if (!dying_here && die_hook) {
        dying_here = 1;
        die_hook(code, message);
    }
    // Not exit(): destructors of CUDA and MPI must not run in the middle of whatever failed.
    fflush(stdout);
    _exit(code);
}

void check_failed(const char *file, int line, const char *condition, const char *format, ...) {
    char message[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    fflush(stdout);
    fprintf(stderr, "%s:%d: CHECK(%s) failed: %s\n", file, line, condition, message);
    abort();
}

// --- logging ---

void log_set_rank(int rank, int world_size) {
    world.rank = rank;
    world.size = world_size;
}

void log_line(const char *format, ...) {
    if (world.rank != 0) return;
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);   // a log read through a pipe or a file shows each line at once
}

void log_warn(const char *format, ...) {
    if (world.rank != 0) return;
    va_list args;
    va_start(args, format);
    fputs("warning: ", stderr);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

// --- memory and strings ---

void *xmalloc(size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) die(EXIT_OOM, "out of host memory: cannot allocate %zu bytes", bytes);
    return p;
}

void *xrealloc(void *p, size_t bytes) {
    void *q = realloc(p, bytes ? bytes : 1);
    if (!q) die(EXIT_OOM, "out of host memory: cannot allocate %zu bytes", bytes);
    return q;
}

char *xstrdup(const char *s) {
    size_t bytes = strlen(s) + 1;
    return (char *)memcpy(xmalloc(bytes), s, bytes);
}

char *format_string(const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    CHECK(length >= 0, "format \"%s\"", format);
    char *s = (char *)xmalloc((size_t)length + 1);
    vsnprintf(s, (size_t)length + 1, format, again);
    va_end(again);
    return s;
}

int edit_distance(const char *a, const char *b, int limit) {
    int na = (int)strlen(a), nb = (int)strlen(b);
    if (abs(na - nb) >= limit) return limit;
    // row[j]: distance of the prefix of a seen so far to the first j letters of b
    int *row = (int *)xmalloc(((size_t)nb + 1) * sizeof(int));
    for (int j = 0; j <= nb; j++) row[j] = j;
    for (int i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int replaced = diagonal + (a[i - 1] != b[j - 1]);
            int inserted = row[j - 1] + 1, removed = row[j] + 1;
            int least = inserted < removed ? inserted : removed;
            diagonal = row[j];
            row[j] = replaced < least ? replaced : least;
        }
    }
    int distance = row[nb];
    free(row);
    return distance < limit ? distance : limit;
}

// --- files ---

static const size_t MAX_TEXT_BYTES = (size_t)1 << 30;

int open_regular_file(const char *path, int64_t *bytes, char **problem) {
    // Without O_NONBLOCK a pipe keeps its reader here until a writer comes.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat info;
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        *bytes = info.st_size;
        return fd;
    }
    *problem = fd < 0 ? format_string("cannot open: %s", strerror(errno))
                      : format_string("not a regular file");
    if (fd >= 0) close(fd);
    return -1;
}

/* All that fd still holds, and closes it. A file may grow while it is read: the size only says how
   much memory will do at first. */
static char *read_to_end(int fd, int64_t size, size_t most, size_t *bytes, char **problem) {
    size_t used = 0, capacity = (size_t)min_i64(size, (int64_t)most) + 2;
    char *text = (char *)xmalloc(capacity);
    ssize_t got = 0;
    while (used <= most && (got = read(fd, text + used, capacity - used - 1)) > 0) {
        used += (size_t)got;
        if (capacity - used < 2) text = (char *)xrealloc(text, capacity *= 2);
    }
    if (got < 0) *problem = format_string("cannot read: %s", strerror(errno));
    else if (used > most) *problem = format_string("more than the %zu bytes of such a file", most);
    close(fd);
    text[used] = '\0';
    if (bytes) *bytes = used;
    if (got >= 0 && used <= most) return text;
    free(text);
    return NULL;
}

char *try_read_text_file(const char *path, size_t most, size_t *bytes, char **problem) {
    int64_t size;
    int fd = open_regular_file(path, &size, problem);
    return fd < 0 ? NULL : read_to_end(fd, size, most, bytes, problem);
}

/* What a shell writes for <(...): its writer is there, or the user means to wait for one. */
static int open_pipe(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISFIFO(info.st_mode)) return -1;
    return open(path, O_RDONLY | O_CLOEXEC);
}

char *read_text_file(const char *path, const char *what, size_t *bytes) {
    int pipe = open_pipe(path);
    char *problem;
    char *text = pipe < 0 ? try_read_text_file(path, MAX_TEXT_BYTES, bytes, &problem)
                          : read_to_end(pipe, 0, MAX_TEXT_BYTES, bytes, &problem);
    if (!text) die(EXIT_DATA, "%s '%s': %s", what, path, problem);
    return text;
}

char *try_make_directory(const char *path) {
    char *prefix = xstrdup(path), *problem = NULL;
    // Each parent in turn; with no slash left, the path itself.
    for (char *end = *prefix ? prefix : NULL; end && !problem;) {
        end = strchr(end + 1, '/');
        if (end) *end = '\0';
        if (mkdir(prefix, 0777) != 0 && errno != EEXIST) {
            problem = format_string("%s: %s", prefix, strerror(errno));
        }
        if (end) *end = '/';
    }
    free(prefix);
    struct stat info;
    if (!problem && (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))) {
        problem = format_string("not a directory");
    }
    return problem;
}

void make_directory(const char *path, const char *what) {
    char *problem = try_make_directory(path);
    if (problem) die(EXIT_DATA, "cannot create %s '%s': %s", what, path, problem);
}

int file_exists(const char *path) { return access(path, F_OK) == 0; }

// --- clock and checksum ---

double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* crc_tables[k][b] is the CRC of byte b followed by k zero bytes. Eight bytes a step, because
   checkpoints have gigabytes. */
static uint32_t crc_tables[8][256];

static void fill_crc_tables(void) {
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        crc_tables[0][b] = crc;
    }
    for (int k = 1; k < 8; k++) {
        for (int b = 0; b < 256; b++) {
            uint32_t before = crc_tables[k - 1][b];
            crc_tables[k][b] = before >> 8 ^ crc_tables[0][before & 0xFF];
        }
    }
}

uint32_t crc32_update(uint32_t crc, const void *data, size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_crc_tables);
    const uint8_t *p = (const uint8_t *)data;
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint32_t next = 0;
        for (int i = 0; i < 4; i++) {
            next ^= crc_tables[7 - i][p[i] ^ (crc >> 8 * i & 0xFF)] ^ crc_tables[3 - i][p[4 + i]];
        }
        crc = next;
    }
    for (; bytes > 0; bytes--, p++) crc = crc >> 8 ^ crc_tables[0][(crc ^ *p) & 0xFF];
    return ~crc;
}
