/*
fuzz_safetensors -- files of tensors. An input that begins with { is a header, up to the first
newline, and the data after it, to which the length is put; every other is the whole file. Of what
the reader takes each byte is read.
*/
#include "../llmc/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "fuzzing.h"

enum { LENGTH_BYTES = 8 };

static void put_with_length(const uint8_t *data, size_t size) {
    const uint8_t *newline = (const uint8_t *)memchr(data, '\n', size);
    size_t header = newline ? (size_t)(newline - data) : size;
    size_t rest = newline ? size - header - 1 : 0;
    uint8_t *file = (uint8_t *)xmalloc(LENGTH_BYTES + header + rest);
    for (int i = 0; i < LENGTH_BYTES; i++) file[i] = (uint8_t)((uint64_t)header >> 8 * i);
    memcpy(file + LENGTH_BYTES, data, header);
    if (rest > 0) memcpy(file + LENGTH_BYTES + header, newline + 1, rest);
    fuzz_put_file("x.safetensors", file, LENGTH_BYTES + header + rest);
    free(file);
}

void fuzz_input(const uint8_t *data, size_t size) {
    if (size > 0 && data[0] == '{') put_with_length(data, size);
    else fuzz_put_file("x.safetensors", data, size);
    char *problem;
    Safetensors *s = safetensors_try_open(fuzz_path("x.safetensors"), &problem);
    free(problem);
    if (!s) return;
    size_t total = 0;
    for (int i = 0; i < s->count; i++) {
        const SafetensorsEntry *e = &s->entries[i];
        CHECK(safetensors_find(s, e->name) == e, "tensor %s is not found", e->name);
        CHECK(dtype_bytes(e->dtype, e->rows * e->cols) == e->bytes, "tensor %s", e->name);
        crc32_update(0, e->data, e->bytes);
        total += e->bytes;
    }
    CHECK(total <= size, "%zu bytes of tensors in a file of %zu", total, size);
    safetensors_metadata(s, "format");
    safetensors_close(s);
}
