/*
device -- what every device does alike: allocation that reports its failure, and the scratch area.
How memory is got and moved is the device's own (device_cpu.c, device_cuda.cu).
*/
#include "device.h"

#include "common.h"

static const double MIB = 1024.0 * 1024.0;

void *device_alloc(Device *d, size_t bytes, const char *what) {
    CHECK(!d->sealed, "%s asks for %zu bytes after the first step", what, bytes);
    void *p = d->alloc(d, bytes);
    if (!p) {
        size_t free_bytes, total_bytes;
        d->memory(d, &free_bytes, &total_bytes);
        die(EXIT_OOM, "out of memory on %s: %s needs %.1f MiB, %.1f of %.1f MiB are free", d->name,
            what, (double)bytes / MIB, (double)free_bytes / MIB, (double)total_bytes / MIB);
    }
    return p;
}

void device_set_scratch(Device *d, void *base, size_t bytes) {
    CHECK((uintptr_t)base % 256 == 0, "scratch at %p is not aligned to 256 bytes", base);
    d->scratch = base;
    d->scratch_bytes = bytes;
}

void *device_scratch(Device *d, size_t bytes) {
    CHECK(bytes <= d->scratch_bytes, "an op needs %zu bytes of scratch, planned were %zu", bytes,
          d->scratch_bytes);
    return d->scratch;
}
