/* cache -- where the files lie, and how one is replaced; see cache.h. */
#include "cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "common.h"

enum { MAX_BYTES = 1 << 20, LOCK_TRIES = 200, LOCK_WAIT_US = 10000 };

/* The XDG Base Directory Specification: a relative path there is to be ignored. */
static char *cache_directory(void) {
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (base && base[0] == '/') return format_string("%s/train_gpt_nvfp4", base);
    if (home && home[0] == '/') return format_string("%s/.cache/train_gpt_nvfp4", home);
    return NULL;
}

char *cache_path(const char *name) {
    char *directory = cache_directory();
    char *path = directory ? format_string("%s/%s", directory, name) : NULL;
    free(directory);
    return path;
}

char *cache_read(const char *name) {
    char *path = cache_path(name), *text = NULL, *problem = NULL;
    if (path && file_exists(path)) text = try_read_text_file(path, MAX_BYTES, NULL, &problem);
    if (problem) log_warn("'%s' is not used: %s", path, problem);
    free(problem);
    free(path);
    return text;
}

static int write_all(int fd, const char *text) {
    size_t left = strlen(text);
    while (left > 0) {
        ssize_t written = write(fd, text, left);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return 0;
        text += written;
        left -= (size_t)written;
    }
    return fsync(fd) == 0;
}

int cache_write(const char *name, const char *text) {
    char *path = cache_path(name);
    if (!path) {
        log_warn("cannot keep %s: neither XDG_CACHE_HOME nor HOME is set", name);
        return 0;
    }
    char *directory = cache_directory(), *problem = try_make_directory(directory);
    free(directory);
    if (problem) {
        log_warn("cannot keep '%s': cannot create its directory: %s", path, problem);
        free(problem);
        free(path);
        return 0;
    }
    char *temporary = format_string("%s.XXXXXX", path);   // of each process its own
    int fd = mkstemp(temporary);
    int done = fd >= 0 && write_all(fd, text);
    if (fd >= 0 && close(fd) != 0) done = 0;
    if (done && rename(temporary, path) != 0) done = 0;
    if (!done) {
        log_warn("cannot keep '%s': %s", path, strerror(errno));
        if (fd >= 0) unlink(temporary);
    }
    free(temporary);
    free(path);
    return done;
}

// --- locks ---

/* Beside the file, not the file itself: that one is another after each write. */
static int open_lock(const char *name) {
    char *directory = cache_directory(),
         *problem = directory ? try_make_directory(directory) : NULL;
    char *path = directory ? format_string("%s/%s.lock", directory, name) : NULL;
    int lock = path && !problem ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    free(path);
    free(problem);   // cache_write says it
    free(directory);
    return lock;
}

int cache_lock(const char *name) {
    int lock = open_lock(name);
    for (int i = 0; lock >= 0 && i < LOCK_TRIES; i++) {
        if (flock(lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) break;
        usleep(LOCK_WAIT_US);
    }
    return lock;
}

void cache_unlock(int lock) {
    if (lock >= 0) close(lock);
}
