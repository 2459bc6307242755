/*
faults_shim -- LD_PRELOAD library for test_faults.py: what a machine may do to a run's clock, and
what a run does before it renames a checkpoint.
  FAULTS_CLOCK   set: the calendar's clock jumps by up to a year, forwards and back, at every look
                 at it; the monotonic clock is left alone
  FAULTS_TRACE   a file that gets a line "fsync PATH" or "rename PATH" for each such call
*/
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { YEAR_S = 365 * 24 * 3600 };

/* Seconds by which the clock is wrong this time. */
static time_t jump(void) {
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    if (!getenv("FAULTS_CLOCK")) return 0;
    return (time_t)(state >> 8) % (2 * YEAR_S) - YEAR_S;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, t);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) t->tv_sec += jump();
    return status;
}

time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

static void trace(const char *call, const char *path) {
    char line[4200];
    const char *file = getenv("FAULTS_TRACE");
    int fd = file ? open(file, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
    if (fd < 0) return;
    int length = snprintf(line, sizeof(line), "%s %s\n", call, path);
    if (write(fd, line, (size_t)length) != length) abort();
    close(fd);
}

int fsync(int fd) {
    static int (*real)(int);
    char link[64], path[4096];
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof(path) - 1);
    path[length > 0 ? length : 0] = '\0';
    int status = real(fd);
    trace("fsync", path);
    return status;
}

int rename(const char *from, const char *to) {
    static int (*real)(const char *, const char *);
    if (!real) real = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    trace("rename", to);
    return real(from, to);
}
