/*
device_cpu -- the host's own memory and threads behind the Device interface. Everything happens at
once: there is no stream, and synchronize has nothing to wait for. Not a place for arithmetic.
*/
#include "device.h"

#include <ctype.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

enum { ALIGNMENT = 256 };   // as CUDA's allocator gives it, so arenas are laid out alike

static void *cpu_alloc(Device *d, size_t bytes) {
    // The kernel grants addresses without memory behind them, and ends the process that uses them;
    // asking first turns that into a message.
    size_t free_bytes, total_bytes;
    d->memory(d, &free_bytes, &total_bytes);
    if (bytes > free_bytes) return NULL;
    return aligned_alloc(ALIGNMENT, (size_t)round_up((int64_t)(bytes ? bytes : 1), ALIGNMENT));
}

static void cpu_free(Device *d, void *p) {
    (void)d;
    free(p);
}

static void cpu_copy(Device *d, void *dst, const void *src, size_t bytes) {
    (void)d;
    memcpy(dst, src, bytes);
}

static void cpu_copy_rows(Device *d, void *dst, size_t dst_stride, const void *src,
                          size_t src_stride, size_t bytes, int64_t rows) {
    (void)d;
    for (int64_t i = 0; i < rows; i++)
        memcpy((char *)dst + (size_t)i * dst_stride, (const char *)src + (size_t)i * src_stride,
               bytes);
}

static void cpu_zero(Device *d, void *dst, size_t bytes) {
    (void)d;
    memset(dst, 0, bytes);
}

static void cpu_synchronize(Device *d) { (void)d; }

static void cpu_memory(Device *d, size_t *free_bytes, size_t *total_bytes) {
    (void)d;
    *free_bytes = *total_bytes = SIZE_MAX;   // unknown where /proc is not mounted
    FILE *f = fopen("/proc/meminfo", "r");
    if (!f) return;
    char line[256];
    unsigned long long kib;
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "MemTotal: %llu kB", &kib) == 1) *total_bytes = (size_t)kib << 10;
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) *free_bytes = (size_t)kib << 10;
    }
    fclose(f);
}

static void cpu_close(Device *d) { free(d); }

/* "model name : AMD EPYC ..." of x86; other processors do not say, and are called "CPU". */
static void read_cpu_name(char *name, size_t name_bytes) {
    snprintf(name, name_bytes, "CPU");
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (!f) return;
    char line[512];
    while (fgets(line, sizeof(line), f)) {
        if (strncmp(line, "model name", 10) != 0) continue;
        char *value = strchr(line, ':');
        if (!value) continue;
        value++;
        while (isspace((unsigned char)*value)) value++;
        size_t length = strlen(value);
        while (length > 0 && isspace((unsigned char)value[length - 1])) length--;
        if (length > 0) snprintf(name, name_bytes, "%.*s", (int)length, value);
        break;
    }
    fclose(f);
}

Device *device_cpu_open(int num_threads) {
    Device *d = (Device *)xmalloc(sizeof(Device));
    if (num_threads > 0) omp_set_num_threads(num_threads);
    d->kind = DEVICE_CPU;
    read_cpu_name(d->name, sizeof(d->name));
    d->num_threads = omp_get_max_threads();
    d->alloc = cpu_alloc;
    d->free = cpu_free;
    d->upload = cpu_copy;
    d->download = cpu_copy;
    d->download_beside = cpu_copy;
    d->copy = cpu_copy;
    d->copy_rows = cpu_copy_rows;
    d->zero = cpu_zero;
    d->synchronize = cpu_synchronize;
    d->memory = cpu_memory;
    d->close = cpu_close;
    return d;
}
