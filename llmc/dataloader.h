/*
dataloader -- sequences of tokens from llm.c shards (data/README.md), a pure function of position.
  shard     header of 256 int32 {magic, version, tokens, 0...}, then the tokens: uint16 (magic
            20240520, version 1) or uint32 (20240801, version 7), little-endian; read as needed, the
            files stay open
  window    seq_len + 1 neighbouring tokens of one shard, stride seq_len: a shard of n tokens holds
            (n - 1) / seq_len windows; the tokens left over at its end are not served
  source    the windows of all files that match one glob pattern, files in byte order of their paths
  order     shuffled: every epoch of a source visits its windows in a permutation of its own, keyed
            by (seed, source, epoch): a Feistel network on Philox with cycle walking, which needs no
            memory; not shuffled: windows in file order, again and again
  mixture   weights are rounded to quotas of 1024; positions come in blocks of 1024, and in each of
            them a source has exactly its quota of places, dealt by a permutation keyed by the seed
            and the block (not shuffled: the same in every block and run). Each source goes through
            its own epochs at its own pace
A position counts sequences over all ranks and micro-batches from the start of the run. So the whole
state of the data order is one int64, and the slice of a rank is nothing but other positions.
It is not a tokenizer, prefetches nothing, and neither packs nor masks documents.
A file that shrinks or cannot be read any more while a run uses it ends the run with EXIT_DATA, and
names the file and the byte; one that is only deleted is read on, as the system keeps open files.
  tests     test_dataloader.c
*/
#ifndef LLMC_DATALOADER_H
#define LLMC_DATALOADER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DATA_MIX_BLOCK 1024   // positions a block; quotas are counts of this

typedef struct {
    const char *pattern;   // glob(3)
    double weight;         // > 0, relative to the other sources
} DataSource;

typedef struct {
    int seq_len;   // tokens a sequence, T
    int vocab;     // every token served is below this, or the process ends with EXIT_DATA
    uint64_t seed;
    int shuffle;        // 0: file order
    const char *what;   // config key for messages, such as "data.train"
} DataLoaderOptions;

typedef struct DataLoader DataLoader;

/* Copies what it needs of its arguments. Dies with EXIT_DATA when a pattern matches no file or a
   file is not a sound shard of at least one window, and with EXIT_CONFIG when a weight is not
   positive or is too small for the mixture. */
DataLoader *dataloader_open(const DataSource *sources, int num_sources,
                            const DataLoaderOptions *options);
void dataloader_close(DataLoader *dl);

/* Windows of all sources together. For a single source this is one epoch exactly. */
int64_t dataloader_num_sequences(const DataLoader *dl);

/* Sequences first_sequence .. first_sequence + count - 1, in order; targets: the inputs one token
   later. inputs, targets: (count, seq_len). Keeps no state: any order of calls gives the same. */
void dataloader_fill(const DataLoader *dl, int64_t first_sequence, int count, int32_t *inputs,
                     int32_t *targets);

#ifdef __cplusplus
}
#endif
#endif
