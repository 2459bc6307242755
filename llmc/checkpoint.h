/*
checkpoint -- saves and loads a training run: named f32 tensors and a small state by key. It knows
the ParamTable, not the model.
  DIR/step_00000120/model.safetensors      master weights under their names, true (unpadded) rows
                    optimizer.safetensors  m.NAME and v.NAME, the Adam moments
                    recipe.safetensors     where the recipe keeps something from step to step
                    gemm_algorithms.txt    where the device has a choice: the text by which a
                                           resumed run makes the same
                    state.json             step, position, seed, fields of the caller, resolved
                                           config; size and CRC-32 of the others and of itself
Commit: everything is written into DIR/.tmp_step_00000120_<pid>, each file and the directory are
synced, then the directory gets its name by one rename. So a step_* directory is complete, or was
damaged later; whatever a killed run left behind begins with a dot and goes at the next recover
or save. A checkpoint that is there already is set aside as .old_step_* until its successor has the
name.
A load checks sizes, CRCs, names and shapes of everything before it changes anything. Only
gemm_algorithms.txt may be missing or damaged: weights do not need it, and who reads it is warned.
Nor need recipe.safetensors hold what another recipe keeps: that then starts anew, with a warning.
One process writes (rank 0); any number may load. Not safe: two runs that save into one DIR.
  tests     test_checkpoint.c
*/
#ifndef LLMC_CHECKPOINT_H
#define LLMC_CHECKPOINT_H

#include "device.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    FIELD_INT,     // int64_t, at most 2^53 in size
    FIELD_COUNT,   // the same, not below 0
    FIELD_SEED,    // uint64_t, kept as a decimal string
    FIELD_REAL,    // double, finite
    FIELD_TEXT,    // char *, from malloc or NULL: a load frees it and puts its own there
    FIELD_REALS,   // double[capacity] of which *count are used, all finite
    FIELD_COUNTS_IF_ANY,   // the same, whole and not below 0; none where a checkpoint has none
    NUM_FIELD_KINDS
} FieldKind;

/* One value of the run's state: where it lives, for saving and for loading. */
typedef struct {
    const char *key;
    FieldKind kind;
    void *data;
    int *count;     // FIELD_REALS only
    int capacity;   // FIELD_REALS only
} CheckpointField;

typedef struct {
    int64_t step;       // optimizer steps done; the next one has this index
    int64_t position;   // next sequence of the data order
    int64_t tokens;     // seen in training
    uint64_t seed;
    char *config;                    // resolved config as text; as FIELD_TEXT
    const char *gemm_algorithms;     // saving only: NULL or "" for none
    const CheckpointField *fields;   // (num_fields) whatever else must survive
    int num_fields;
    const NamedTensor *kept;         // (num_kept) f32, of recipes
    int num_kept;
} CheckpointState;

typedef struct {
    const char *dir;        // ckpt.dir
    int keep;               // newest checkpoints that stay; 0: all
    int64_t major_every;    // a checkpoint whose step is a multiple of this always stays; 0: none
    void *staging;          // host memory that tensors pass through on their way to the file
    size_t staging_bytes;   // any size, 8 MiB is good
} CheckpointPolicy;

/* Removes what a killed run left in `dir` and puts back a checkpoint that was set aside. For the
   one process that will write there, before it looks for a checkpoint. An absent `dir` is no
   error. */
void checkpoint_recover(const char *dir);

/* The checkpoint meant by `path`: itself, or the newest step_* in it; NULL when there is none.
   Caller frees. Only reads, so it may be used beside a running training. */
char *checkpoint_find(const char *path);

/* Dies with EXIT_DATA when a file cannot be written; the older checkpoints are then still there.
   Of those not newer than the one just saved, what the policy does not keep is removed. */
void checkpoint_save(const CheckpointPolicy *policy, const ParamTable *params, Device *device,
                     const CheckpointState *state);

/* Fills masters and values, m and v if with_optimizer, and the state with each of its fields. Dies
   with EXIT_DATA, nothing changed, when anything is missing, damaged or of another shape; the
   message says what, and which older checkpoint there is. */
void checkpoint_load(const char *path, ParamTable *params, Device *device, CheckpointState *state,
                     int with_optimizer);

/* What checkpoint_load does short of the tensors, for a rehearsal: fills the state and dies as it
   would, but reads no file of tensors beyond its header, so that damage within is not seen. */
void checkpoint_check(const char *path, ParamTable *params, CheckpointState *state,
                      int with_optimizer);

/* The resolved config that a checkpoint was saved with (caller frees): what must be known before
   there is a ParamTable to load into. Dies with EXIT_DATA. */
char *checkpoint_config(const char *path);

/* The text of the algorithms that a checkpoint was saved with (caller frees): what must be known
   before anything is computed. NULL where it has none; also, after a warning, where they are
   missing though listed, or damaged. Dies with EXIT_DATA when there is no usable state.json. */
char *checkpoint_gemm_algorithms(const char *path);

/* Prints a table of files and tensors with OK or what is wrong; returns the number of faults. */
int checkpoint_verify(const char *path);

#ifdef __cplusplus
}
#endif
#endif
