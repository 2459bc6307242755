/*
selftest_cache -- remembers what passed, so that a run need not ask again: one small file a tuple,
named by the tuple's CRC-32 and holding its text. A file counts when it holds the very text.
*/
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "common.h"
#include "selftest_parts.h"

// --- the tuple ---

static const char *const fp4_names[NUM_FP4_GEMMS] = {
    [FP4_EMULATED] = "emulated", [FP4_LIBRARY] = "library", [FP4_MMA] = "mma"};

/* CRC-32 of this program's file, or 0 with errno set. */
static int program_crc(uint32_t *crc) {
    enum { CHUNK = 1 << 20 };
    FILE *f = fopen("/proc/self/exe", "rb");
    if (!f) return 0;
    char *chunk = (char *)xmalloc(CHUNK);
    *crc = 0;
    for (size_t got; (got = fread(chunk, 1, CHUNK, f)) > 0;) *crc = crc32_update(*crc, chunk, got);
    int complete = !ferror(f);
    fclose(f);
    free(chunk);
    return complete;
}

char *selftest_tuple(const SelftestOptions *o) {
    uint32_t crc;
    if (!program_crc(&crc)) {
        log_line("self-test: cannot read /proc/self/exe: %s; the result is not remembered",
                 strerror(errno));
        return NULL;
    }
    char *products = selftest_products(o);
    char *tuple =
        format_string("train_gpt_nvfp4 self-test passed\n"
                      "device %s, compute capability %d\n"
                      "libraries %s\n"
                      "program crc32 %08" PRIx32 "\n"
                      "ops %s, nvfp4 products %s, fp8 products %s, stochastic %s, dtype %s, "
                      "tokens %lld\n"
                      "%s",
                      o->device->name, o->device->compute_capability,
                      o->device->libraries[0] ? o->device->libraries : "none", crc, o->ops->name,
                      fp4_names[o->fp4], o->fp8 ? "native" : "emulated",
                      stochastic_names[o->model->engine.hardware_rounding],
                      dtype_info[o->model->config.dtype].name, (long long)o->tokens, products);
    free(products);
    return tuple;
}

// --- known and remembered ---

/* Of the cache; caller frees. */
static char *file_name(const char *tuple) {
    return format_string("selftest-%08" PRIx32 ".txt", crc32_update(0, tuple, strlen(tuple)));
}

int selftest_known(const char *tuple) {
    if (!tuple) return 0;
    char *name = file_name(tuple), *text = cache_read(name);
    int known = text && strcmp(text, tuple) == 0;
    free(text), free(name);
    return known;
}

void selftest_remember(const char *tuple) {
    if (!tuple) return;
    char *name = file_name(tuple);
    cache_write(name, tuple);   // a failure has been said, and costs another run
    free(name);
}

void selftest_forget(const char *tuple) {
    if (!selftest_known(tuple)) return;
    char *name = file_name(tuple);
    cache_write(name, "withdrawn\n");
    free(name);
}

void selftest_record(const char *tuple, const SelftestReport *r) {
    if (r->failed > 0) selftest_forget(tuple);
    else if (r->reduced)
        log_line("selftest    not remembered: some products had too little memory");
    else selftest_remember(tuple);
}
