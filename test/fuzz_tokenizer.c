/*
fuzz_tokenizer -- vocabulary files. With a vocabulary that the reader takes, the file's own text is
encoded: where every byte of it has a token, decoding gives the text back.
*/
#include "../llmc/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "fuzzing.h"

/* Whether each byte by itself is a token, so that any text can be encoded. */
static int has_all_bytes(const Tokenizer *t) {
    int num_found = 0;
    uint8_t found[256] = {0};
    for (int id = 0; id < tokenizer_size(t); id++) {
        size_t bytes;
        const uint8_t *token = tokenizer_decode(t, id, &bytes);
        crc32_update(0, token, bytes);
        if (bytes != 1 || found[*token]) continue;
        found[*token] = 1;
        num_found++;
    }
    return num_found == 256;
}

void fuzz_input(const uint8_t *data, size_t size) {
    fuzz_put_file("tokenizer.vocab", data, size);
    Tokenizer *t = tokenizer_open(fuzz_path("tokenizer.vocab"));
    int end = tokenizer_end_of_text(t);
    CHECK(end >= 0 && end < tokenizer_size(t), "end of text %d", end);
    if (has_all_bytes(t)) fuzz_accepted();
    int32_t *ids;
    int64_t count = tokenizer_encode(t, (const char *)data, size, &ids);
    size_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        size_t bytes;
        const uint8_t *token = tokenizer_decode(t, ids[i], &bytes);
        CHECK(bytes <= size - at && memcmp(token, data + at, bytes) == 0, "token %lld",
              (long long)i);
        at += bytes;
    }
    CHECK(at == size, "%zu bytes of %zu", at, size);
    free(ids);
    tokenizer_close(t);
}
