/*
safetensors -- writes and reads files of named tensors in the safetensors format:
  8 bytes   length of the header, little-endian
  header    JSON, one object: name -> {"dtype", "shape", "data_offsets": [begin, end)}, offsets from
            the end of the header; "__metadata__" -> {string: string}; padded with spaces
  data      the tensors, without gaps or overlap
It knows shapes and bytes, not parameters or devices. A tensor of one row is written with one
dimension, (cols); in reading, all dimensions but the last are flattened into rows.
The reader trusts nothing: whatever is read from an entry lies inside the file. A file that shrinks
while it is mapped ends the process with SIGBUS.
  source    the format's description in the repository huggingface/safetensors, README
  tests     test_safetensors.c
*/
#ifndef LLMC_SAFETENSORS_H
#define LLMC_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- writing: create, metadata, declare every tensor, write their data in that order, finish ---

typedef struct SafetensorsWriter SafetensorsWriter;

typedef struct {
    int64_t bytes;
    uint32_t crc;   // CRC-32 of the whole file
} FileSum;

/* `what` is the config key named in messages. A failure to write is remembered, what follows is
   left out, and the end tells. */
SafetensorsWriter *safetensors_create(const char *path, const char *what);
void safetensors_add_metadata(SafetensorsWriter *w, const char *key, const char *value);
/* dtype must have a safetensors name; CHECKed. */
void safetensors_declare(SafetensorsWriter *w, const char *name, DType dtype, int64_t rows,
                         int64_t cols);
/* The next bytes of the data; pieces may be of any size and cross tensors. */
void safetensors_write(SafetensorsWriter *w, const void *data, size_t bytes);
/* What went wrong so far, or NULL: then there is no need to bring the rest. */
const char *safetensors_problem(const SafetensorsWriter *w);
/* CHECKs that all declared bytes were written; syncs, closes and frees. Returns what went wrong, in
   outfile's words (caller frees), or NULL and the file's sum. */
char *safetensors_try_finish(SafetensorsWriter *w, FileSum *sum);
/* As safetensors_try_finish, but dies with EXIT_DATA. */
FileSum safetensors_finish(SafetensorsWriter *w);

// --- reading ---

typedef struct {
    const char *name;
    DType dtype;
    int rank;             // dimensions in the file
    int64_t rows, cols;   // dimensions but the last multiplied; a scalar is (1, 1)
    const void *data;     // in the mapped file: read-only, maybe not aligned to the element
    size_t bytes;
} SafetensorsEntry;

typedef struct {
    char *path;
    const SafetensorsEntry *entries;   // sorted by name
    int count;
    void *impl;
} Safetensors;

/* Dies with EXIT_DATA naming the file and what is wrong with it. */
Safetensors *safetensors_open(const char *path);
/* As safetensors_open, but returns NULL and says what is wrong in *problem (caller frees). */
Safetensors *safetensors_try_open(const char *path, char **problem);
void safetensors_close(Safetensors *s);
/* NULL if absent. */
const SafetensorsEntry *safetensors_find(const Safetensors *s, const char *name);
const char *safetensors_metadata(const Safetensors *s, const char *key);

#ifdef __cplusplus
}
#endif
#endif
