/*
checkpoint_state -- the text of a checkpoint's state.json: values by key, and what the tensor files
must look like. Private to checkpoint.
  {"crc32": "89abcdef", "checkpoint": {"version": 1, "step": 120, "position": ..., "tokens": ...,
   "seed": "...", "config": "...", "files": {NAME: {"bytes": N, "crc32": "..."}}, "fields": {...}}}
The first CRC covers the text of the object "checkpoint". Reals have 17 digits: they come back bit
for bit. Functions that return char * return NULL, or what is wrong (caller frees).
*/
#ifndef LLMC_CHECKPOINT_STATE_H
#define LLMC_CHECKPOINT_STATE_H

#include "checkpoint.h"
#include "safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *name;
    FileSum sum;
} FileRecord;

typedef struct StateFile StateFile;   // a parsed state.json

/* What the state is now, to be written when the sums of the files are known. */
typedef struct StateDraft StateDraft;
StateDraft *state_draft(const CheckpointState *state);
void state_draft_free(StateDraft *draft);
/* The whole text of state.json; caller frees. */
char *state_draft_text(StateDraft *draft, const FileRecord *files, int num_files);

char *state_open(const char *path, StateFile **out);
void state_close(StateFile *f);
int state_has_file(const StateFile *f, const char *name);
char *state_file_sum(const StateFile *f, const char *name, FileSum *out);
/* Whether every value that `state` asks for is there and of its kind. Changes nothing. */
char *state_check(const StateFile *f, const CheckpointState *state);
/* Copies the values; only after state_check found nothing wrong. */
void state_restore(const StateFile *f, CheckpointState *state);

#ifdef __cplusplus
}
#endif
#endif
