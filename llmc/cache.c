/* cache -- where the files lie, and how one is replaced; see cache.h. */
#include "cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"

enum { MAX_BYTES = 1 << 20 };

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
    char *path = cache_path(name);
    FILE *f = path ? fopen(path, "rb") : NULL;
    free(path);
    if (!f) return NULL;
    char *text = (char *)xmalloc(MAX_BYTES + 1);
    size_t bytes = fread(text, 1, MAX_BYTES + 1, f);
    int usable = !ferror(f) && bytes <= MAX_BYTES;
    fclose(f);
    if (!usable) {
        free(text);
        return NULL;
    }
    text[bytes] = '\0';
    return text;
}

/* Makes each parent of `path` that is missing. A failure shows when the file is made. */
static void make_parents(const char *path) {
    char *prefix = xstrdup(path);
    for (char *slash = strchr(prefix + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(prefix, 0777);
        *slash = '/';
    }
    free(prefix);
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
    make_parents(path);
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
