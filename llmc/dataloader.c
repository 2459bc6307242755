/*
dataloader -- opening shards, and the closed form from a position to the tokens of its window.
Everything after dataloader_open is const:
position -> (source, index in it) -> (epoch, window) -> (shard, offset).
*/
#include "dataloader.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"
#include "rng.h"

#define HEADER_INTS    256
#define HEADER_BYTES   (HEADER_INTS * (int64_t)sizeof(int32_t))
#define FEISTEL_ROUNDS 8
#define MAKE_SHARDS    ".venv/bin/python data/prepare_text.py --out DIR FILE.txt"
#define STREAM_MIX     (RNG_STREAM_DATA + 0xFFFFFFu)   // above every source's own stream

static const struct {
    int32_t magic, version;
    int token_bytes;
} shard_formats[] = {
    {20240520, 1, 2},
    {20240801, 7, 4},
};

typedef struct {
    char *path;
    int fd;            // read as needed: a mapping would raise SIGBUS where the file has shrunk
    int token_bytes;   // 2 or 4
    int64_t num_tokens;
    int64_t first_window;   // windows of the source that lie in earlier shards
} Shard;

typedef struct {
    Shard *shards;
    int num_shards;
    int64_t num_windows;
    int quota;   // places a block of DATA_MIX_BLOCK positions
} Source;

typedef struct {
    int source, rank;
} Place;   // the rank-th place of that source in the block

struct DataLoader {
    DataLoaderOptions options;
    Source *sources;
    int num_sources;
    int64_t num_windows;
};

// --- permutations ---

typedef struct {
    uint64_t seed, epoch;
    uint32_t stream;
} OrderKey;

/* One pass of the network over 2 * half_bits bits: a bijection whatever the round function is. */
static uint64_t feistel(uint64_t x, int half_bits, const OrderKey *key) {
    uint32_t mask = (uint32_t)((UINT64_C(1) << half_bits) - 1);
    uint32_t left = (uint32_t)(x >> half_bits), right = (uint32_t)x & mask;
    for (uint32_t round = 0; round < FEISTEL_ROUNDS; round++) {
        uint32_t epoch_high = (uint32_t)(key->epoch >> 32);
        Philox4 counter = {{right, epoch_high << 8 | round, key->stream, (uint32_t)key->epoch}};
        Philox4 bits = philox4x32_10(counter, (uint32_t)key->seed, (uint32_t)(key->seed >> 32));
        uint32_t next = left ^ (bits.w[0] & mask);
        left = right;
        right = next;
    }
    return (uint64_t)left << half_bits | right;
}

/* The image of i under a permutation of 0..n-1. The network permutes 0..4^h-1, where 4^h < 4n or
   h = 1; an image outside 0..n-1 walks on along its cycle until it is back inside, which makes a
   bijection of the smaller set, in at most 4 steps on average. */
static int64_t permute(int64_t i, int64_t n, const OrderKey *key) {
    int half_bits = 1;
    while ((UINT64_C(1) << 2 * half_bits) < (uint64_t)n) half_bits++;
    uint64_t x = (uint64_t)i;
    do {
        x = feistel(x, half_bits, key);
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

// --- opening ---

/* The token width of the file, from its magic number and version; dies when it is no shard. */
static int shard_token_bytes(const char *what, const char *path, const int32_t *header) {
    for (int i = 0; i < ARRAY_LEN(shard_formats); i++) {
        if (header[0] != shard_formats[i].magic) continue;
        if (header[1] == shard_formats[i].version) return shard_formats[i].token_bytes;
        die(EXIT_DATA,
            "%s: %s has version %d, magic number %d needs version %d; make the file again "
            "with: " MAKE_SHARDS,
            what, path, header[1], header[0], shard_formats[i].version);
    }
    die(EXIT_DATA,
        "%s: %s is not a token shard: found magic number %d, expected %d (uint16 tokens) or %d "
        "(uint32 tokens); make shards from text with: " MAKE_SHARDS,
        what, path, header[0], shard_formats[0].magic, shard_formats[1].magic);
}

/* Reads and judges the header of an open file of `bytes` bytes. */
static void read_shard_header(const char *what, Shard *s, int64_t bytes) {
    int32_t header[HEADER_INTS];
    if (bytes < HEADER_BYTES)
        die(EXIT_DATA,
            "%s: %s is not a token shard: its header alone takes %lld bytes, the file has %lld",
            what, s->path, (long long)HEADER_BYTES, (long long)bytes);
    if (pread(s->fd, header, sizeof header, 0) != (ssize_t)sizeof header)
        die(EXIT_DATA, "%s: cannot read %s: %s", what, s->path, strerror(errno));
    s->token_bytes = shard_token_bytes(what, s->path, header);
    s->num_tokens = (uint32_t)header[2];
    int64_t expected = HEADER_BYTES + s->num_tokens * s->token_bytes;
    if (bytes != expected)
        die(EXIT_DATA,
            "%s: %s is %s: %lld tokens of %d bytes make %lld bytes, the file has %lld; copy it or "
            "make it again",
            what, s->path, bytes < expected ? "truncated" : "too long", (long long)s->num_tokens,
            s->token_bytes, (long long)expected, (long long)bytes);
}

static void open_shard(const DataLoaderOptions *o, Shard *s, const char *path) {
    s->path = xstrdup(path);
    s->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (s->fd < 0 || fstat(s->fd, &st) != 0)
        die(EXIT_DATA, "%s: cannot open %s: %s%s", o->what, path, strerror(errno),
            errno == EMFILE ? "; every shard stays open: raise `ulimit -n`" : "");
    if (!S_ISREG(st.st_mode))
        die(EXIT_DATA,
            "%s: %s is not a regular file; give the shards by a pattern such as DIR/train_*.bin",
            o->what, path);
    read_shard_header(o->what, s, st.st_size);
    if (s->num_tokens < o->seq_len + INT64_C(1))
        die(EXIT_DATA,
            "%s: %s has %lld tokens, one sequence needs batch.seq_len + 1 = %d; lower "
            "batch.seq_len or leave the file out",
            o->what, path, (long long)s->num_tokens, o->seq_len + 1);
}

static int compare_paths(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void open_source(const DataLoaderOptions *o, Source *source, const char *pattern) {
    glob_t found;
    int failed = glob(pattern, GLOB_NOSORT, NULL, &found);
    if (failed && failed != GLOB_NOMATCH)
        die(EXIT_DATA, "%s: cannot search for '%s': %s", o->what, pattern, strerror(errno));
    if (failed)
        die(EXIT_DATA, "%s: no file matches '%s'; make shards from text with: " MAKE_SHARDS,
            o->what, pattern);
    // Sorted here and not by glob, whose order depends on the locale.
    qsort(found.gl_pathv, found.gl_pathc, sizeof(char *), compare_paths);
    source->num_shards = (int)found.gl_pathc;
    source->shards = xmalloc(found.gl_pathc * sizeof(Shard));
    for (int i = 0; i < source->num_shards; i++) {
        Shard *s = &source->shards[i];
        open_shard(o, s, found.gl_pathv[i]);
        s->first_window = source->num_windows;
        source->num_windows += (s->num_tokens - 1) / o->seq_len;
    }
    globfree(&found);
}

/* Rounds the weights to quotas that sum to DATA_MIX_BLOCK: down first, and what is left over goes
   to the largest remainders. */
static void set_quotas(DataLoader *dl, const DataSource *sources) {
    const char *what = dl->options.what;
    double total = 0.0;
    for (int i = 0; i < dl->num_sources; i++) {
        if (!(sources[i].weight > 0.0) || !isfinite(sources[i].weight))
            die(EXIT_CONFIG, "%s: the weight of '%s' is %g; it must be above 0 and finite", what,
                sources[i].pattern, sources[i].weight);
        total += sources[i].weight;
    }
    double *remainder = xmalloc((size_t)dl->num_sources * sizeof *remainder);
    int left = DATA_MIX_BLOCK;
    for (int i = 0; i < dl->num_sources; i++) {
        double share = sources[i].weight / total * DATA_MIX_BLOCK;
        dl->sources[i].quota = (int)share;
        remainder[i] = share - floor(share);
        left -= dl->sources[i].quota;
    }
    for (; left > 0; left--) {
        int best = 0;
        for (int i = 1; i < dl->num_sources; i++)
            if (remainder[i] > remainder[best]) best = i;
        dl->sources[best].quota++;
        remainder[best] = -1.0;
    }
    free(remainder);
    for (int i = 0; i < dl->num_sources; i++)
        if (dl->sources[i].quota == 0)
            die(EXIT_CONFIG,
                "%s: the weight of '%s' is %g of %g together, which rounds to 0 of %d sequences; "
                "give it at "
                "least %g or leave it out",
                what, sources[i].pattern, sources[i].weight, total, DATA_MIX_BLOCK,
                total / DATA_MIX_BLOCK);
}

/* Shards stay open, and the usual soft limit is 1024 files. */
static void raise_file_limit(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

DataLoader *dataloader_open(const DataSource *sources, int num_sources,
                            const DataLoaderOptions *options) {
    CHECK(num_sources > 0 && options->seq_len > 0 && options->vocab > 0,
          "sources %d, seq_len %d, vocab %d", num_sources, options->seq_len, options->vocab);
    DataLoader *dl = xmalloc(sizeof *dl);
    raise_file_limit();
    dl->options = *options;
    dl->options.what = xstrdup(options->what);
    dl->num_sources = num_sources;
    dl->sources = xmalloc((size_t)num_sources * sizeof(Source));
    set_quotas(dl, sources);
    for (int i = 0; i < num_sources; i++) {
        open_source(&dl->options, &dl->sources[i], sources[i].pattern);
        dl->num_windows += dl->sources[i].num_windows;
    }
    return dl;
}

void dataloader_close(DataLoader *dl) {
    for (int i = 0; i < dl->num_sources; i++) {
        for (int j = 0; j < dl->sources[i].num_shards; j++) {
            Shard *s = &dl->sources[i].shards[j];
            close(s->fd);
            free(s->path);
        }
        free(dl->sources[i].shards);
    }
    free(dl->sources);
    free((char *)dl->options.what);
    free(dl);
}

int64_t dataloader_num_sequences(const DataLoader *dl) { return dl->num_windows; }

// --- reading ---

/* Deals the places of one block to the sources. The ranks of a source rise with the position, so
   that each source is read in its own order and ends an epoch before it begins the next. */
static void mix_block(const DataLoader *dl, int64_t block, Place places[DATA_MIX_BLOCK]) {
    OrderKey key = {0, 0, STREAM_MIX};
    if (dl->options.shuffle) {
        key.seed = dl->options.seed;
        key.epoch = (uint64_t)block;
    }
    int taken[DATA_MIX_BLOCK] = {
        0};   // every source has a quota of at least 1, so there are no more sources
    for (int p = 0; p < DATA_MIX_BLOCK; p++) {
        int source = 0;
        if (dl->num_sources > 1) {
            int slot = (int)permute(p, DATA_MIX_BLOCK, &key);
            while (slot >= dl->sources[source].quota) slot -= dl->sources[source++].quota;
        }
        places[p] = (Place){source, taken[source]++};
    }
}

static const Shard *shard_of_window(const Source *source, int64_t window) {
    int low = 0, high = source->num_shards;   // the shard sought is in [low, high)
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (source->shards[middle].first_window <= window) low = middle;
        else high = middle;
    }
    return &source->shards[low];
}

/* Tokens start .. start + count - 1 as the file has them. A shard that another process has cut
   short or that cannot be read any more ends the run; what was saved goes on once it is back. */
static void read_tokens(const char *what, const Shard *s, int64_t start, int count, void *raw) {
    int64_t at = HEADER_BYTES + start * s->token_bytes;
    size_t wanted = (size_t)count * (size_t)s->token_bytes, have = 0;
    while (have < wanted) {
        ssize_t got = pread(s->fd, (char *)raw + have, wanted - have, (off_t)(at + (int64_t)have));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            die(EXIT_DATA,
                "%s: cannot read %s at byte %lld: %s. Put the file back as it was; the same "
                "command then goes on from the last checkpoint",
                what, s->path, (long long)(at + (int64_t)have),
                got < 0 ? strerror(errno) : "it was whole at the start and now ends there");
        have += (size_t)got;
    }
}

static uint32_t token_at(const void *raw, int token_bytes, int t) {
    return token_bytes == 2 ? ((const uint16_t *)raw)[t] : ((const uint32_t *)raw)[t];
}

/* Copies window `index` of the source's endless sequence, through `raw`, (seq_len + 1) tokens of
   any width. inputs, targets: (seq_len). */
static void copy_sequence(const DataLoader *dl, int source_at, int64_t index, uint32_t *raw,
                          int32_t *inputs, int32_t *targets) {
    const DataLoaderOptions *o = &dl->options;
    const Source *source = &dl->sources[source_at];
    int64_t epoch = index / source->num_windows, window = index % source->num_windows;
    if (o->shuffle) {
        OrderKey key = {o->seed, (uint64_t)epoch, RNG_STREAM_DATA + (uint32_t)source_at};
        window = permute(window, source->num_windows, &key);
    }
    const Shard *s = shard_of_window(source, window);
    int64_t start = (window - s->first_window) * o->seq_len;
    read_tokens(o->what, s, start, o->seq_len + 1, raw);
    for (int t = 0; t <= o->seq_len; t++) {
        uint32_t token = token_at(raw, s->token_bytes, t);
        if (token >= (uint32_t)o->vocab)
            die(EXIT_DATA,
                "%s: %s: token %lld (byte %lld) is %u, model.vocab is %d; the shards were made "
                "with another "
                "tokenizer, or the file is corrupt",
                o->what, s->path, (long long)(start + t),
                (long long)(HEADER_BYTES + (start + t) * s->token_bytes), token, o->vocab);
        if (t < o->seq_len) inputs[t] = (int32_t)token;
        if (t > 0) targets[t - 1] = (int32_t)token;
    }
}

void dataloader_fill(const DataLoader *dl, int64_t first_sequence, int count, int32_t *inputs,
                     int32_t *targets) {
    CHECK(first_sequence >= 0 && count >= 0, "first_sequence %lld, count %d",
          (long long)first_sequence, count);
    Place places[DATA_MIX_BLOCK];
    int64_t mixed_block = -1;
    uint32_t *raw = xmalloc(((size_t)dl->options.seq_len + 1) * sizeof *raw);
    for (int i = 0; i < count; i++) {
        int64_t block = (first_sequence + i) / DATA_MIX_BLOCK;
        if (block != mixed_block) mix_block(dl, block, places);
        mixed_block = block;
        Place place = places[(first_sequence + i) % DATA_MIX_BLOCK];
        int64_t index = block * dl->sources[place.source].quota + place.rank;
        int64_t at = (int64_t)i * dl->options.seq_len;
        copy_sequence(dl, place.source, index, raw, inputs + at, targets + at);
    }
    free(raw);
}
