/*
test_dataloader -- the data order as a function of position, and shards that must be refused.
Shards are written here; the order is compared with literals of an independent implementation of
Philox and of the network in Python, so a change of order cannot pass unseen.
*/
#include "../llmc/dataloader.h"

#include <fcntl.h>

#include "../llmc/common.h"
#include "test.h"

enum { MAGIC_U16 = 20240520, MAGIC_U32 = 20240801 };

// --- shards and loaders of the tests ---

static void write_at(int fd, const void *bytes, size_t num_bytes, int64_t at) {
    if (pwrite(fd, bytes, num_bytes, at) == (ssize_t)num_bytes) return;
    perror("pwrite");
    exit(1);
}

/* An open file with a header for `num_tokens` tokens; the caller writes tokens and closes. */
static int begin_shard(const char *path, int token_bytes, int64_t num_tokens) {
    int32_t header[256] = {token_bytes == 2 ? MAGIC_U16 : MAGIC_U32, token_bytes == 2 ? 1 : 7,
                           (int32_t)num_tokens};
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    write_at(fd, header, sizeof(header), 0);
    return fd;
}

static void write_token(int fd, int token_bytes, int64_t at, uint32_t token) {
    uint16_t narrow = (uint16_t)token;
    const void *bytes = token_bytes == 2 ? (const void *)&narrow : (const void *)&token;
    write_at(fd, bytes, (size_t)token_bytes, 1024 + at * token_bytes);
}

/* A shard of the tokens first, first + 1, ... */
static const char *write_shard(const char *name, int token_bytes, int64_t num_tokens,
                               uint32_t first) {
    const char *path = test_scratch(name);
    int fd = begin_shard(path, token_bytes, num_tokens);
    for (int64_t i = 0; i < num_tokens; i++) write_token(fd, token_bytes, i, first + (uint32_t)i);
    close(fd);
    return path;
}

static DataLoader *open_one(const char *pattern, int seq_len, int vocab, int shuffle) {
    DataSource source = {pattern, 1.0};
    DataLoaderOptions options = {seq_len, vocab, 42, shuffle, "data.train"};
    return dataloader_open(&source, 1, &options);
}

/* The first input token of each of `count` sequences. tokens: (count) */
static void first_tokens(const DataLoader *dl, int seq_len, int64_t first, int count,
                         int32_t *tokens) {
    int32_t *inputs = xmalloc((size_t)count * (size_t)seq_len * sizeof(int32_t));
    int32_t *targets = xmalloc((size_t)count * (size_t)seq_len * sizeof(int32_t));
    dataloader_fill(dl, first, count, inputs, targets);
    for (int i = 0; i < count; i++) tokens[i] = inputs[(int64_t)i * seq_len];
    free(inputs);
    free(targets);
}

// --- file order ---

CASE(windows_across_shard_and_epoch_in_file_order) {
    // 10 tokens give 2 windows of 4 and one left over; 9 tokens give 2 windows exactly.
    write_shard("order_a.bin", 2, 10, 0);
    write_shard("order_b.bin", 4, 9, 100);
    DataLoader *dl = open_one(test_scratch("order_*.bin"), 4, 200, 0);
    EXPECT_EQ_I64(dataloader_num_sequences(dl), 4);
    int32_t inputs[5][4], targets[5][4];
    dataloader_fill(dl, 0, 5, inputs[0], targets[0]);
    const int32_t want_inputs[5][4] = {
        {0, 1, 2, 3}, {4, 5, 6, 7}, {100, 101, 102, 103}, {104, 105, 106, 107}, {0, 1, 2, 3}};
    const int32_t want_targets[5][4] = {
        {1, 2, 3, 4}, {5, 6, 7, 8}, {101, 102, 103, 104}, {105, 106, 107, 108}, {1, 2, 3, 4}};
    EXPECT_BITS(inputs, want_inputs, sizeof(inputs));
    EXPECT_BITS(targets, want_targets, sizeof(targets));
    dataloader_close(dl);
}

CASE(shards_in_byte_order_of_their_names) {
    write_shard("sort_000010.bin", 2, 2, 10);
    write_shard("sort_000009.bin", 2, 2, 9);
    write_shard("sort_B.bin", 2, 2, 66);
    write_shard("sort_a.bin", 2, 2, 97);
    DataLoader *dl = open_one(test_scratch("sort_*.bin"), 1, 200, 0);
    int32_t tokens[4];
    const int32_t want[4] = {9, 10, 66, 97};
    first_tokens(dl, 1, 0, 4, tokens);
    EXPECT_BITS(tokens, want, sizeof(want));
    dataloader_close(dl);
}

CASE(uint32_tokens_above_65535) {
    DataLoader *dl = open_one(write_shard("wide.bin", 4, 5, 128254), 2, 128259, 0);
    int32_t inputs[4], targets[4];
    const int32_t want_inputs[4] = {128254, 128255, 128256, 128257};
    const int32_t want_targets[4] = {128255, 128256, 128257, 128258};
    dataloader_fill(dl, 0, 2, inputs, targets);
    EXPECT_BITS(inputs, want_inputs, sizeof(inputs));
    EXPECT_BITS(targets, want_targets, sizeof(targets));
    dataloader_close(dl);
}

/* Sparse files above 2 GiB, of zeros but for their last tokens: offsets need 64 bits, and the
   second one's token count needs all 32 bits of its header word. */
CASE(files_above_2_gib) {
    const struct {
        int token_bytes;
        int64_t num_tokens;
    } rows[] = {
        {4, INT64_C(700000001)},    // 2.6 GiB
        {2, INT64_C(2200000001)},   // 4.1 GiB, count above 2^31
    };
    for (int r = 0; r < ARRAY_LEN(rows); r++) {
        int width = rows[r].token_bytes;
        int64_t n = rows[r].num_tokens;
        const char *path = test_scratch("far.bin");
        int fd = begin_shard(path, width, n);
        REQUIRE(ftruncate(fd, 1024 + n * width) == 0, "row %d", r);
        for (int i = 0; i < 9; i++) write_token(fd, width, n - 9 + i, 1000 + (uint32_t)i);
        close(fd);
        DataLoader *dl = open_one(path, 8, 2000, 0);
        int64_t windows = (n - 1) / 8;
        EXPECT_EQ_I64(dataloader_num_sequences(dl), windows, "row %d", r);
        int32_t inputs[16], targets[16];
        dataloader_fill(dl, windows - 2, 2, inputs, targets);
        EXPECT_EQ_I64(targets[7], 1000, "row %d", r);   // the windows share this token
        for (int i = 0; i < 8; i++) {
            EXPECT_EQ_I64(inputs[i], 0, "row %d, token %d", r, i);
            EXPECT_EQ_I64(inputs[8 + i], 1000 + i, "row %d, token %d", r, i);
            EXPECT_EQ_I64(targets[8 + i], 1001 + i, "row %d, token %d", r, i);
        }
        dataloader_close(dl);
        unlink(path);
    }
}

// --- shuffled order ---

CASE(order_is_that_of_the_independent_implementation) {
    DataLoader *dl = open_one(write_shard("hundred.bin", 2, 101, 0), 1, 101, 1);
    const int32_t epoch0[8] = {5, 94, 1, 36, 74, 11, 0, 47};
    const int32_t epoch1[8] = {68, 5, 3, 84, 15, 86, 78, 73};
    int32_t tokens[8];
    first_tokens(dl, 1, 0, 8, tokens);
    EXPECT_BITS(tokens, epoch0, sizeof(tokens), "epoch 0");
    first_tokens(dl, 1, 100, 8, tokens);
    EXPECT_BITS(tokens, epoch1, sizeof(tokens), "epoch 1");
    dataloader_close(dl);

    DataSource source = {test_scratch("hundred.bin"), 1.0};
    DataLoaderOptions options = {1, 101, (UINT64_C(7) << 32) + 42, 1, "data.train"};
    const int32_t other_seed[8] = {39, 59, 91, 94, 2, 10, 73, 18};   // same low word of the seed
    dl = dataloader_open(&source, 1, &options);
    first_tokens(dl, 1, 0, 8, tokens);
    EXPECT_BITS(tokens, other_seed, sizeof(tokens), "seed above 32 bits");
    dataloader_close(dl);
}

/* Sizes around powers of 2 and 4 (the domain of the network), primes, and the smallest. */
CASE(every_window_once_an_epoch) {
    const int sizes[] = {1,   2,   3,    4,    5,    7,    8,    9,    15,   16,   17,   31,   32,
                         33,  63,  64,   65,   97,   127,  128,  129,  255,  256,  257,  511,  512,
                         513, 997, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097, 10007};
    static int32_t previous[10007], tokens[10007];
    static uint8_t seen[10007];
    for (int s = 0; s < ARRAY_LEN(sizes); s++) {
        int n = sizes[s];
        DataLoader *dl = open_one(write_shard("once.bin", 4, n + 1, 0), 1, n + 1, 1);
        REQUIRE(dataloader_num_sequences(dl) == n, "size %d", n);
        for (int i = 0; i < n; i++) previous[i] = i;   // file order: epoch 0 must differ from it
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, sizeof(seen));
            first_tokens(dl, 1, epoch * n, n, tokens);
            int same = 0;
            for (int i = 0; i < n; i++) {
                REQUIRE(tokens[i] >= 0 && tokens[i] < n && !seen[tokens[i]],
                        "size %d, epoch %d, place %d: window %d", n, (int)epoch, i, tokens[i]);
                seen[tokens[i]] = 1;
                same += tokens[i] == previous[i];
            }
            // Two random orders share one place on average; 12 has probability below 1e-9.
            EXPECT(n < 30 || same < 12, "size %d, epoch %d: %d places as before", n, (int)epoch,
                   same);
            memcpy(previous, tokens, sizeof(tokens));
        }
        dataloader_close(dl);
    }
}

CASE(epochs_far_away) {
    DataLoader *dl = open_one(write_shard("hundred.bin", 2, 101, 0), 1, 101, 1);
    int32_t near_tokens[100], far_tokens[100];
    uint8_t seen[100] = {0};
    first_tokens(dl, 1, 0, 100, near_tokens);
    first_tokens(dl, 1, 100 * (INT64_C(1) << 32), 100, far_tokens);   // epoch 2^32
    EXPECT(memcmp(near_tokens, far_tokens, sizeof(near_tokens)) != 0, "epochs 0 and 2^32 agree");
    for (int i = 0; i < 100; i++) {
        EXPECT(!seen[far_tokens[i]], "window %d twice", far_tokens[i]);
        seen[far_tokens[i]] = 1;
    }
    dataloader_close(dl);
}

/* 3 + 5 + 9 windows in shards of both widths, and 96 sequences: more than five epochs. However
   ranks and micro-batches cut the positions, each position holds the same sequence. */
CASE(order_independent_of_ranks_and_micro_batches) {
    enum { T = 3, COUNT = 96 };
    write_shard("cut_0.bin", 2, 3 * T + 1, 0);
    write_shard("cut_1.bin", 4, 5 * T + 2, 1000);
    write_shard("cut_2.bin", 2, 9 * T + 3, 2000);
    DataLoader *dl = open_one(test_scratch("cut_?.bin"), T, 4000, 1);
    EXPECT_EQ_I64(dataloader_num_sequences(dl), 17);
    static int32_t whole[2][COUNT * T], cut[2][COUNT * T];
    dataloader_fill(dl, 0, COUNT, whole[0], whole[1]);
    for (int ranks = 1; ranks <= 4; ranks++) {
        for (int micro = 1; micro <= 4; micro *= 2) {
            memset(cut, 0xFF, sizeof(cut));
            // The last rank first: no call may depend on an earlier one.
            for (int rank = ranks - 1; rank >= 0; rank--) {
                for (int at = rank * micro; at < COUNT; at += ranks * micro)
                    dataloader_fill(dl, at, micro, cut[0] + at * T, cut[1] + at * T);
            }
            EXPECT_BITS(cut[0], whole[0], sizeof(cut[0]), "%d ranks, micro %d", ranks, micro);
            EXPECT_BITS(cut[1], whole[1], sizeof(cut[1]), "%d ranks, micro %d", ranks, micro);
        }
    }
    int windows[17] = {0};   // of epoch 3
    for (int i = 51; i < 68; i++) {
        int32_t token = whole[0][i * T];
        int shard_start = token < 1000 ? 0 : token < 2000 ? 3 : 8;
        windows[shard_start + token % 1000 / T]++;
        EXPECT_EQ_I64(token % 1000 % T, 0, "window starts at token %d", token);
        EXPECT_EQ_I64(whole[1][i * T + T - 1], token + T, "sequence %d", i);
    }
    for (int w = 0; w < 17; w++) EXPECT_EQ_I64(windows[w], 1, "window %d", w);
    dataloader_close(dl);
}

// --- mixtures ---

static DataLoader *open_mixture(const double *weights, int num_sources, int shuffle) {
    const char *names[3] = {"mix_a.bin", "mix_b.bin", "mix_c.bin"};
    const int sizes[3] = {500, 300, 7};   // windows
    DataSource sources[3];
    char paths[3][512];
    for (int i = 0; i < num_sources; i++) {
        snprintf(paths[i], sizeof(paths[i]), "%s",
                 write_shard(names[i], 2, sizes[i] + 1, (uint32_t)i * 1000));
        sources[i] = (DataSource){paths[i], weights[i]};
    }
    DataLoaderOptions options = {1, 4000, 42, shuffle, "data.train"};
    return dataloader_open(sources, num_sources, &options);
}

CASE(mixture_quotas_are_exact_in_every_block) {
    const struct {
        double weights[3];
        int num_sources, quotas[3];
    } rows[] = {
        {{3.0, 1.0}, 2, {768, 256}},
        {{0.2, 0.2, 0.2}, 3, {342, 341, 341}},       // a third of 1024 is 341.33
        {{0.5, 0.4995, 0.0005}, 3, {512, 511, 1}},   // 512, 511.49, 0.51: the last rounds up
        {{1e300, 3e300}, 2, {256, 768}},
    };
    for (int r = 0; r < ARRAY_LEN(rows); r++) {
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            DataLoader *dl = open_mixture(rows[r].weights, rows[r].num_sources, shuffle);
            for (int block = 0; block < 3; block++) {
                int32_t tokens[DATA_MIX_BLOCK];
                int counts[3] = {0};
                first_tokens(dl, 1, (int64_t)block * DATA_MIX_BLOCK, DATA_MIX_BLOCK, tokens);
                for (int i = 0; i < DATA_MIX_BLOCK; i++) counts[tokens[i] / 1000]++;
                for (int s = 0; s < 3; s++)
                    EXPECT_EQ_I64(counts[s], rows[r].quotas[s], "row %d, block %d, source %d", r,
                                  block, s);
            }
            dataloader_close(dl);
        }
    }
}

CASE(mixture_order_is_that_of_the_independent_implementation) {
    const double weights[2] = {3.0, 1.0};
    const int want[2][16] = {{1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0},
                             {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1}};
    DataLoader *dl = open_mixture(weights, 2, 1);
    for (int block = 0; block < 2; block++) {
        int32_t tokens[16];
        first_tokens(dl, 1, (int64_t)block * DATA_MIX_BLOCK, 16, tokens);
        for (int i = 0; i < 16; i++)
            EXPECT_EQ_I64(tokens[i] / 1000, want[block][i], "block %d, place %d", block, i);
    }
    dataloader_close(dl);
}

/* Each source alone, in the order of positions, is whole epochs one after the other: all its
   windows once before any comes again, over block boundaries too. */
CASE(mixture_sources_keep_their_own_epochs) {
    enum { BLOCKS = 5 };
    const double weights[3] = {5.0, 4.0, 1.0};
    const int sizes[3] = {500, 300, 7};
    static int32_t tokens[BLOCKS * DATA_MIX_BLOCK];
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        DataLoader *dl = open_mixture(weights, 3, shuffle);
        EXPECT_EQ_I64(dataloader_num_sequences(dl), 807);
        first_tokens(dl, 1, 0, BLOCKS * DATA_MIX_BLOCK, tokens);
        for (int s = 0; s < 3; s++) {
            uint8_t seen[500] = {0};
            int at = 0;
            for (int i = 0; i < BLOCKS * DATA_MIX_BLOCK; i++) {
                if (tokens[i] / 1000 != s) continue;
                if (at % sizes[s] == 0) memset(seen, 0, sizeof(seen));
                int window = tokens[i] % 1000;
                EXPECT(!seen[window], "source %d, read %d: window %d again", s, at, window);
                EXPECT(shuffle || window == at % sizes[s], "source %d, read %d: window %d", s, at,
                       window);
                seen[window] = 1;
                at++;
            }
            EXPECT(at >= sizes[s], "source %d: %d reads", s, at);
        }
        // Any cut of the positions gives the same, also one that begins within a block.
        int32_t part[700];
        first_tokens(dl, 1, 1777, 700, part);
        EXPECT_BITS(part, tokens + 1777, sizeof(part), "shuffle %d", shuffle);
        int moved = 0;   // places that block 1 deals to another source than block 0
        for (int i = 0; i < DATA_MIX_BLOCK; i++)
            moved += tokens[i] / 1000 != tokens[DATA_MIX_BLOCK + i] / 1000;
        EXPECT(shuffle ? moved > 256 : moved == 0, "shuffle %d: %d places moved", shuffle, moved);
        dataloader_close(dl);
    }
}

CASE(mixture_weights_refused) {
    const double zero[2] = {1.0, 0.0}, negative[2] = {1.0, -2.0}, nan_weight[2] = {1.0, NAN};
    const double infinite[2] = {1.0, INFINITY}, tiny[2] = {1.0, 0.0004};
    EXPECT_DIES(EXIT_CONFIG, "is 0; it must be above 0 and finite", open_mixture(zero, 2, 1));
    EXPECT_DIES(EXIT_CONFIG, "is -2; it must be above 0", open_mixture(negative, 2, 1));
    EXPECT_DIES(EXIT_CONFIG, "is nan; it must be above 0", open_mixture(nan_weight, 2, 1));
    EXPECT_DIES(EXIT_CONFIG, "is inf; it must be above 0", open_mixture(infinite, 2, 1));
    EXPECT_DIES(EXIT_CONFIG, "mix_b.bin' is 0.0004 of 1.0004 together, which rounds to 0 of 1024",
                open_mixture(tiny, 2, 1));
}

// --- files that are refused ---

static void write_words(const char *path, const int32_t *words, int count, int64_t file_bytes) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    write_at(fd, words, (size_t)count * sizeof(int32_t), 0);
    if (ftruncate(fd, file_bytes) != 0) perror("ftruncate");
    close(fd);
}

CASE(headers_refused) {
    const struct {
        int32_t header[3];
        int64_t file_bytes;
        const char *message;
    } rows[] = {
        {{0x46554747, 1, 100}, 1224, "found magic number 1179993927, expected 20240520"},
        {{MAGIC_U16, 7, 100}, 1224, "has version 7, magic number 20240520 needs version 1"},
        {{MAGIC_U32, 1, 100}, 1424, "has version 1, magic number 20240801 needs version 7"},
        {{MAGIC_U16, 1, 100},
         1223,
         "is truncated: 100 tokens of 2 bytes make 1224 bytes, the file has 1223"},
        {{MAGIC_U32, 7, 100},
         1224,
         "is truncated: 100 tokens of 4 bytes make 1424 bytes, the file has 1224"},
        {{MAGIC_U16, 1, 100}, 1225, "is too long: 100 tokens of 2 bytes make 1224 bytes"},
        {{MAGIC_U16, 1, 100}, 1000, "its header alone takes 1024 bytes, the file has 1000"},
        {{MAGIC_U16, 1, 0}, 0, "its header alone takes 1024 bytes, the file has 0"},
        {{MAGIC_U16, 1, 16}, 1056, "has 16 tokens, one sequence needs batch.seq_len + 1 = 17"},
        {{MAGIC_U16, 1, 0}, 1024, "has 0 tokens, one sequence needs"},
        {{MAGIC_U16, 1, -1}, 1024, "is truncated: 4294967295 tokens of 2 bytes"},
    };
    const char *path = test_scratch("bad.bin");
    for (int r = 0; r < ARRAY_LEN(rows); r++) {
        write_words(path, rows[r].header, 3, rows[r].file_bytes);
        EXPECT_DIES(EXIT_DATA, rows[r].message, open_one(path, 16, 300, 1));
        EXPECT_DIES(EXIT_DATA, "bad.bin", open_one(path, 16, 300, 1));
    }
    EXPECT_DIES(EXIT_DATA, "data/prepare_text.py --out", write_words(path, rows[0].header, 3, 1224);
                open_one(path, 16, 300, 1));
}

CASE(one_bad_shard_among_good_ones_is_refused) {
    const int32_t bad[3] = {MAGIC_U16, 1, 100};
    write_shard("some_0.bin", 2, 100, 0);
    write_words(test_scratch("some_1.bin"), bad, 3, 1100);
    EXPECT_DIES(EXIT_DATA, "some_1.bin is truncated",
                open_one(test_scratch("some_*.bin"), 16, 300, 1));
}

CASE(shortest_shard_is_one_sequence) {
    DataLoader *dl = open_one(write_shard("short.bin", 2, 17, 0), 16, 17, 1);
    EXPECT_EQ_I64(dataloader_num_sequences(dl), 1);
    dataloader_close(dl);
}

CASE(absent_files_refused) {
    EXPECT_DIES(EXIT_DATA, "data.train: no file matches '",
                open_one(test_scratch("no_*.bin"), 16, 9, 1));
    EXPECT_DIES(EXIT_DATA, "prepare_text.py", open_one(test_scratch("absent.bin"), 16, 9, 1));
    EXPECT_DIES(EXIT_DATA, "is not a regular file", open_one(test_temp_dir(), 16, 9, 1));
    const char *link = test_scratch("dangling.bin");
    REQUIRE(symlink("/nonexistent/target", link) == 0, "cannot make a link");
    EXPECT_DIES(EXIT_DATA, "cannot open", open_one(link, 16, 9, 1));
}

CASE(tokens_out_of_vocabulary_refused) {
    // Tokens 0..20, in both widths; window 1 of seq_len 10 is tokens 10..20.
    for (int width = 2; width <= 4; width += 2) {
        const char *path = write_shard("vocab.bin", width, 21, 0);
        int32_t inputs[10], targets[10];
        DataLoader *dl = open_one(path, 10, 20, 0);
        dataloader_fill(dl, 0, 1, inputs, targets);
        EXPECT_EQ_I64(targets[9], 10, "width %d", width);
        EXPECT_DIES(EXIT_DATA,
                    width == 2 ? "token 20 (byte 1064) is 20, model.vocab is 20"
                               : "token 20 (byte 1104) is 20, model.vocab is 20",
                    dataloader_fill(dl, 1, 1, inputs, targets));
        dataloader_close(dl);
    }
    // The highest token of 32 bits is not a negative, and so a small, number.
    DataLoader *dl = open_one(write_shard("huge.bin", 4, 3, 0xFFFFFFFDu), 2, 50257, 0);
    int32_t inputs[2], targets[2];
    EXPECT_DIES(EXIT_DATA, "is 4294967293, model.vocab is 50257",
                dataloader_fill(dl, 0, 1, inputs, targets));
    dataloader_close(dl);
}

TEST_MAIN_END
