/*
fuzz_dataloader -- shards of any content. An input is four bytes of options, then a file: sequences
of 1 to 256 tokens, a vocabulary of 2^0 to 2^31 - 1, in order or not, one file or two, one source
or two.
*/
#include "../llmc/dataloader.h"

#include <stdlib.h>

#include "fuzzing.h"

enum { SHUFFLE = 1, TWO_FILES = 2, TWO_SOURCES = 4 };

static void fill(const DataLoader *dl, const DataLoaderOptions *o, int64_t position,
                 int64_t count) {
    size_t tokens = (size_t)(count * o->seq_len);
    int32_t *inputs = (int32_t *)xmalloc(tokens * sizeof(int32_t));
    int32_t *targets = (int32_t *)xmalloc(tokens * sizeof(int32_t));
    dataloader_fill(dl, position, (int)count, inputs, targets);
    for (size_t t = 0; t < tokens; t++) {
        CHECK(inputs[t] >= 0 && inputs[t] < o->vocab, "token %d", inputs[t]);
        CHECK(t % (size_t)o->seq_len == 0 || inputs[t] == targets[t - 1], "target %zu", t);
    }
    free(targets);
    free(inputs);
}

void fuzz_input(const uint8_t *data, size_t size) {
    FuzzBytes bytes = {data, size};
    uint32_t seq_len = 1 + fuzz_take(&bytes, 1), vocab_bits = fuzz_take(&bytes, 1) % 32;
    uint32_t flags = fuzz_take(&bytes, 1), weight = 1 + fuzz_take(&bytes, 1);
    fuzz_put_file("shards/a.bin", bytes.data, bytes.size);
    if (flags & TWO_FILES) fuzz_put_file("shards/b.bin", bytes.data, bytes.size);
    DataSource sources[] = {
        {fuzz_path(flags & TWO_FILES ? "shards/?.bin" : "shards/a.bin"), weight},
        {fuzz_path("shards/a.bin"), 1},
    };
    DataLoaderOptions options = {(int)seq_len, (int)((UINT32_C(1) << vocab_bits) - 1), 7,
                                 flags & SHUFFLE, "data.train"};
    if (options.vocab == 0) options.vocab = 1;
    DataLoader *dl = dataloader_open(sources, flags & TWO_SOURCES ? 2 : 1, &options);
    int64_t n = dataloader_num_sequences(dl);
    CHECK(n > 0, "%lld sequences", (long long)n);
    // Each window, of a single source; then as far as a checkpoint may say that a run came.
    fill(dl, &options, 0, n);
    fill(dl, &options, INT64_C(1) << 53, 1);
    dataloader_close(dl);
}
