/*
fuzz_cache -- files of the cache, which may hold anything and must not end a run: the algorithms of
GEMMs, read and merged, and the text that a self-test remembers. An input is the text behind the
right header; one that begins with ! is the whole file.
*/
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../llmc/cache.h"
#include "../llmc/gemm_cache.h"
#include "../llmc/ops/gemm_choices.h"
#include "../llmc/selftest_parts.h"
#include "fuzzing.h"

static const Device device = {
    .kind = DEVICE_CUDA, .compute_capability = 90, .name = "GPU", .libraries = "cuBLASLt 13"};

static void put_in_cache(const char *kind, const char *key, const char *suffix, FuzzBytes file) {
    char name[96];
    snprintf(name, sizeof(name), "train_gpt_nvfp4/%s%08" PRIx32 "%s", kind,
             crc32_update(0, key, strlen(key)), suffix);
    fuzz_put_file(name, file.data, file.size);
}

/* What is merged is whole, and merging it again changes nothing. */
static void merge(const char *header, const char *text) {
    gemm_cache_merge(&device, text);
    char *merged = gemm_cache_read(&device);
    GemmChoices list = {NULL, 0};
    gemm_choices_read(&list, merged, header);
    char *again = gemm_choices_text(&list, header);
    CHECK(strcmp(merged, again) == 0, "merged\n%s\nreads as\n%s", merged, again);
    free(again);
    free(list.items);
    free(merged);
}

void fuzz_input(const uint8_t *data, size_t size) {
    setenv("XDG_CACHE_HOME", fuzz_path("."), 1);
    fuzz_accepted();   // nothing here may end a run
    char *header = gemm_choices_header(&device);
    size_t skipped = size > 0 && data[0] == '!', head_bytes = skipped ? 0 : strlen(header);
    size_t bytes = head_bytes + size - skipped;
    char *text = (char *)xmalloc(bytes + 1);
    memcpy(text, header, head_bytes);
    if (size > skipped) memcpy(text + head_bytes, data + skipped, size - skipped);
    FuzzBytes file = {(const uint8_t *)text, bytes};
    put_in_cache("gemm_", header, ".txt", file);
    put_in_cache("selftest-", "passed\n", ".txt", file);
    CHECK(selftest_known("passed\n") == (strcmp(text, "passed\n") == 0), "'%s'", text);
    merge(header, "");
    merge(header, text);   // as a checkpoint may bring it
    free(text);
    free(header);
}
