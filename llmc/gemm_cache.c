/* gemm_cache -- where algorithms come from, in which order; see gemm_cache.h. */
#include "gemm_cache.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "common.h"
#include "ops/gemm_choices.h"

/* Half of what is read: the rest is for what a run adds. Lines have less than 300 bytes, so these
   stay below the 1 MiB of cache_read. */
enum { MAX_KEPT = GEMM_CHOICES_MAX / 2 };

// --- the file of a device ---

/* By what the texts' header says: device, compute capability, libraries. */
static char *file_name(const char *header) {
    return format_string("gemm_%08" PRIx32 ".txt", crc32_update(0, header, strlen(header)));
}

char *gemm_cache_read(const Device *d) {
    char *header = gemm_choices_header(d), *name = file_name(header);
    char *text = cache_read(name);
    free(name);
    free(header);
    return text;
}

/* What the library answered first is left out: another run may measure it. */
static void keep_measured(GemmChoices *list) {
    int kept = 0;
    for (int i = 0; i < list->count; i++) {
        if (list->items[i].tflops > 0) list->items[kept++] = list->items[i];
    }
    list->count = kept;
}

/* The new ones, then those of the file as it is, so that the oldest stand last; caller frees. */
static char *merged_text(const char *text, const char *old, const char *header) {
    GemmChoices list = {NULL, 0};
    gemm_choices_read(&list, text, header);
    keep_measured(&list);
    if (old) gemm_choices_read(&list, old, header);
    if (list.count > MAX_KEPT) list.count = MAX_KEPT;
    char *merged = gemm_choices_text(&list, header);
    free(list.items);
    return merged;
}

void gemm_cache_merge(const Device *d, const char *text) {
    char *header = gemm_choices_header(d), *name = file_name(header);
    int lock = cache_lock(name);
    char *old = cache_read(name), *merged = merged_text(text, old, header);
    if (!old || strcmp(old, merged) != 0) cache_write(name, merged);
    cache_unlock(lock);
    free(merged);
    free(old);
    free(name);
    free(header);
}

// --- a run's algorithms ---

/* The first text that knows a product settles it, so the checkpoint's comes first. */
static void load_known(Engine *e, const char *checkpoint_text) {
    Device *d = e->device;
    if (checkpoint_text && e->ops->gemm_choices_load(d, checkpoint_text) == 0) {
        log_warn("the checkpoint's GEMM algorithms are of another GPU or library, and this run's "
                 "own are used: its losses will differ in their last digits from those that the "
                 "other would have had");
    }
    char *cached = gemm_cache_read(d);
    if (cached) e->ops->gemm_choices_load(d, cached);
    free(cached);
}

GemmRate *gemm_cache_prepare(Model *m, int64_t tokens, Comm *host, const char *checkpoint_text) {
    Engine *e = &m->engine;
    if (e->device->kind == DEVICE_CPU) return NULL;
    GemmRate *rates = NULL;
    char *chosen = NULL;
    if (host->rank == 0) {
        load_known(e, checkpoint_text);
        rates = gemm_rates_measure(m, tokens);
        chosen = e->ops->gemm_choices_save(e->device);
        gemm_cache_merge(e->device, chosen);
    }
    char *shared = comm_share_text(host, chosen);
    if (host->rank > 0) e->ops->gemm_choices_load(e->device, shared);
    free(shared);
    free(chosen);
    return rates;
}
