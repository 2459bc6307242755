/* outfile -- write, sync, rename and remove, each checked; see outfile.h. */
#include "outfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"

static void die_of(char *problem) {
    if (problem) die(EXIT_DATA, "%s", problem);
}

static char *open_file(OutFile *f, const char *path, const char *what, int flags) {
    signal(SIGXFSZ, SIG_IGN);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
    *f = (OutFile){.fd = fd, .what = what};
    if (fd < 0) return format_string("%s: cannot create '%s': %s", what, path, strerror(errno));
    f->path = xstrdup(path);
    return NULL;
}

char *outfile_try_create(OutFile *f, const char *path, const char *what) {
    return open_file(f, path, what, O_TRUNC);
}

OutFile outfile_create(const char *path, const char *what) {
    OutFile f;
    die_of(outfile_try_create(&f, path, what));
    return f;
}

OutFile outfile_append(const char *path, const char *what) {
    OutFile f;
    die_of(open_file(&f, path, what, O_APPEND));
    return f;
}

char *outfile_try_write(OutFile *f, const void *data, size_t bytes) {
    const char *p = (const char *)data;
    for (size_t left = bytes; left > 0;) {
        ssize_t written = write(f->fd, p, left);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) {
            return format_string("%s: cannot write '%s' after %lld bytes: %s", f->what, f->path,
                                 (long long)f->bytes, strerror(errno));
        }
        f->crc = crc32_update(f->crc, p, (size_t)written);
        f->bytes += written;
        p += written;
        left -= (size_t)written;
    }
    return NULL;
}

void outfile_write(OutFile *f, const void *data, size_t bytes) {
    die_of(outfile_try_write(f, data, bytes));
}

/* Pipes, devices and some network directories cannot be synced and say EINVAL; nothing is lost. */
static char *try_sync(int fd, const char *path, const char *what) {
    if (fsync(fd) == 0 || errno == EINVAL) return NULL;
    return format_string("%s: cannot flush '%s' to disk: %s", what, path, strerror(errno));
}

void outfile_sync(OutFile *f) { die_of(try_sync(f->fd, f->path, f->what)); }

char *outfile_try_close(OutFile *f) {
    char *problem = try_sync(f->fd, f->path, f->what);
    int failed = close(f->fd) != 0;
    if (failed && !problem)
        problem = format_string("%s: cannot close '%s': %s", f->what, f->path, strerror(errno));
    f->fd = -1;
    free(f->path);
    f->path = NULL;
    return problem;
}

void outfile_close(OutFile *f) { die_of(outfile_try_close(f)); }

char *outfile_try_rename(const char *from, const char *to, const char *what) {
    if (rename(from, to) == 0) return NULL;
    return format_string("%s: cannot rename '%s' to '%s': %s", what, from, to, strerror(errno));
}

void outfile_rename(const char *from, const char *to, const char *what) {
    die_of(outfile_try_rename(from, to, what));
}

char *outfile_try_sync_directory(const char *path, const char *what) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return format_string("%s: cannot open '%s': %s", what, path, strerror(errno));
    char *problem = try_sync(fd, path, what);
    close(fd);
    return problem;
}

void outfile_sync_directory(const char *path, const char *what) {
    die_of(outfile_try_sync_directory(path, what));
}

void outfile_replace(const char *path, const char *what, const char *data, size_t bytes) {
    char *temporary = format_string("%s.tmp", path);
    OutFile f = outfile_create(temporary, what);
    outfile_write(&f, data, bytes);
    outfile_close(&f);
    outfile_rename(temporary, path, what);
    free(temporary);

    const char *slash = strrchr(path, '/');
    char *parent = slash ? format_string("%.*s", (int)(slash - path + 1), path) : xstrdup(".");
    outfile_sync_directory(parent, what);
    free(parent);
}

void outfile_check_directory(const char *path, const char *what) {
    // The path, then its parents up to one that exists: "." or "/" at last.
    char *there = format_string("%s%s", path[0] == '/' ? "" : "./", path);
    struct stat info;
    int failed;
    while ((failed = stat(there, &info)) != 0 && errno == ENOENT) {
        char *slash = strrchr(there, '/');
        slash[slash == there] = '\0';
    }
    if (!failed && !S_ISDIR(info.st_mode)) {
        die(EXIT_DATA, "cannot create %s '%s': %s is not a directory", what, path, there);
    }
    if (failed || access(there, W_OK | X_OK) != 0) {
        die(EXIT_DATA, "cannot create %s '%s': %s: %s", what, path, there, strerror(errno));
    }
    free(there);
}

/* The lock is the kernel's and goes with the process; the text only says whose it is. */
void outfile_lock_directory(const char *path, const char *what) {
    char owner[32] = "", *file = format_string("%s/.lock-%s", path, what);
    int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) die(EXIT_DATA, "%s: cannot create '%s': %s", what, file, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) {
            die(EXIT_DATA, "%s: cannot lock '%s': %s", what, file, strerror(errno));
        }
        ssize_t length = read(fd, owner, sizeof(owner) - 1);
        owner[length > 0 ? length : 0] = '\0';
        die(EXIT_CONFIG,
            "%s: another run writes in '%s' (process %s); stop it, or give this run a "
            "directory of its own",
            what, path, owner);
    }
    int length = snprintf(owner, sizeof(owner), "%ld", (long)getpid());
    if (ftruncate(fd, 0) != 0 || write(fd, owner, (size_t)length) != length) {
        die(EXIT_DATA, "%s: cannot write '%s': %s", what, file, strerror(errno));
    }
    free(file);   // fd stays open: closing it would give the lock away
}

static char *remove_entries(const char *path, const char *what) {
    DIR *dir = opendir(path);
    if (!dir) return format_string("%s: cannot open '%s': %s", what, path, strerror(errno));
    struct dirent *entry;
    char *problem = NULL;
    while (!problem && (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char *child = format_string("%s/%s", path, entry->d_name);
        problem = outfile_try_remove_tree(child, what);
        free(child);
    }
    closedir(dir);
    return problem;
}

char *outfile_try_remove_tree(const char *path, const char *what) {
    struct stat info;
    // lstat: a link is removed, never followed.
    int found = lstat(path, &info) == 0;
    if (!found && errno == ENOENT) return NULL;
    char *problem = found && S_ISDIR(info.st_mode) ? remove_entries(path, what) : NULL;
    if (problem || remove(path) == 0) return problem;
    return format_string("%s: cannot remove '%s': %s", what, path, strerror(errno));
}

void outfile_remove_tree(const char *path, const char *what) {
    die_of(outfile_try_remove_tree(path, what));
}
