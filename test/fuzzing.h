/*
fuzzing -- what the fuzz targets share. A target is one file test/fuzz_X.c that defines
fuzz_input(). Linked with fuzzing_run.c it is a libFuzzer program (`make fuzz`), with
fuzzing_replay.c a test that takes each file of test/fuzz_corpus/X once (`make test`, `make asan`).
A reader may refuse an input by die() with the code of a bad file. Whatever else ends it is a fault:
another code, a CHECK, a sanitizer, a signal, a time or a memory out of all proportion, a leak.
Files mapped by a reader are copies of just their size (fuzzing.c), so that ASan sees a read beyond
the end, which the rest of a page would hide.
*/
#ifndef TEST_FUZZING_H
#define TEST_FUZZING_H

#include <stddef.h>
#include <stdint.h>

#include "../llmc/common.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- for targets ---

/* One input, in the reader's hands. Keeps nothing for the next: what it takes goes with it. */
void fuzz_input(const uint8_t *data, size_t size);

/* From here on this input must not be refused any more: the reader has taken it. */
void fuzz_accepted(void);
/* This input may also be refused with this code. */
void fuzz_refuses_also(ExitCode code);

/* A path in a scratch directory that is this process's own; one of eight buffers, used in turn. */
const char *fuzz_path(const char *name);
/* Makes the file of that name anew, and the directories that the name goes through. */
void fuzz_put_file(const char *name, const void *data, size_t bytes);

/* The next bytes of an input, from which a target makes its options: zero where there are none. */
typedef struct {
    const uint8_t *data;
    size_t size;
} FuzzBytes;
uint32_t fuzz_take(FuzzBytes *b, int num_bytes);

// --- for the two drivers ---

/* Makes the scratch directory, of which atexit removes all, and silences the log. */
void fuzz_begin(void);
/* Before each input. */
void fuzz_begin_input(void);
/* Whether die() with this code is a refusal; else the message is printed. */
int fuzz_is_refusal(ExitCode code, const char *message);
/* Frees the maps that a refusal left. */
void fuzz_free_maps(void);

#ifdef __cplusplus
}
#endif
#endif
