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
Of n > 1 ranks each writes the part that it owns, all at once: model-00001-of-0000n.safetensors and
so on, optimizer-00001-of-0000n.safetensors, and rank 0 model.safetensors.index.json and
optimizer.safetensors.index.json, which say in which files a tensor is. They are read by any number
of ranks, whatever each then holds.
Commit: everything is written into DIR/.tmp_step_00000120_<pid>, each file and the directory are
synced; when all ranks have said so, rank 0 adds state.json, and the directory gets its name by one
rename. So a step_* directory is complete, or was damaged later; whatever a killed run left behind
begins with a dot and goes at the next recover or save. A checkpoint that is there already is set
aside as .old_step_* until its successor has the name.
Background: with memory for a snapshot of the tensors on the device, a save copies them there and
returns; a thread writes while training goes on. Both ways make the same bytes.
A load checks sizes, CRCs, names and shapes of everything before it changes anything; with several
ranks each file's CRC is computed by one of them. Only gemm_algorithms.txt may be missing or
damaged: weights do not need it, and who reads it is warned. Nor need recipe.safetensors hold what
another recipe keeps: that then starts anew, with a warning.
Not safe: two runs that save into one DIR.
  tests     test_checkpoint.c, test_checkpoint_kept.c, test_checkpoint_shards.c,
            test_checkpoint_faults.c, test_parallel_checkpoint.c
*/
#ifndef LLMC_CHECKPOINT_H
#define LLMC_CHECKPOINT_H

#include "comm.h"
#include "device.h"
#include "tensor.h"
#include "zero.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A stretch of the ParamTable's flat space: who saves it, and where this rank has it. */
typedef struct {
    int64_t begin, end;      // elements of the flat space
    int owner;               // the rank that saves master, m and v of them
    float *master, *m, *v;   // (end - begin) on this rank's device; NULL where it has none
    void *value;             // (end - begin) in the model's dtype, or NULL; may be `master`
} FlatRange;

/* The tensors of a run and the ranks that they are spread over. */
typedef struct {
    ParamTable *params;         // names and shapes; a save does not change it
    Device *device;
    Comm *comm;                 // of the ranks' host memory; NULL: one rank
    const FlatRange *ranges;    // (num_ranges) rising, together the flat space once, the same
    int num_ranges;             //   stretches and owners on all ranks
} CheckpointTensors;

/* Where every rank holds everything: one stretch for each of `size` ranks (caller frees), about
   equal parts of whole tensors, so that other programs can read the files. */
FlatRange *checkpoint_whole_tensors(const ParamTable *params, int size);
/* Where ranks hold parts, by the plan of a level above 0 (caller frees). */
FlatRange *checkpoint_parts_of(const ParamTable *params, const ZeroPlan *zero, int *count);

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
    void *snapshot;         // device memory of checkpoint_snapshot_bytes; NULL: training waits
} CheckpointPolicy;

/* Removes what a killed run left in `dir` and puts back a checkpoint that was set aside. For the
   one process that will write there, before it looks for a checkpoint. An absent `dir` is no
   error. */
void checkpoint_recover(const char *dir);

/* The checkpoint meant by `path`: itself, or the newest step_* in it; NULL when there is none.
   Caller frees. Only reads, so it may be used beside a running training. */
char *checkpoint_find(const char *path);

// --- saving: all ranks call these alike ---

typedef struct CheckpointSave CheckpointSave;

/* Device memory for a copy of what rank `rank` saves. */
size_t checkpoint_snapshot_bytes(const CheckpointTensors *tensors, const CheckpointState *state,
                                 int rank);
/* When it returns the tensors and the state may change. With a snapshot the files are still being
   written, and policy's directory, staging and snapshot belong to the save until it is done. */
CheckpointSave *checkpoint_begin(const CheckpointPolicy *policy, const CheckpointTensors *tensors,
                                 const CheckpointState *state);
/* 0 while any rank still writes, which it waits for with `wait`. Then 1, and frees: *problem is
   NULL where the checkpoint has its name on the disk; of those not newer, what the policy does not
   keep is removed. Else it says what went wrong and on which rank first, the same on all ranks
   (caller frees); the files are removed, and the older ones are still there. */
int checkpoint_done(CheckpointSave *save, int wait, char **problem);
/* Both, and waits. Returns the problem. */
char *checkpoint_save(const CheckpointPolicy *policy, const CheckpointTensors *tensors,
                      const CheckpointState *state);

// --- loading: all ranks call the first two alike ---

/* Fills masters and values, m and v if with_optimizer, where this rank has them, and the state with
   each of its fields. Dies with EXIT_DATA on all ranks, nothing changed, when anything is missing,
   damaged or of another shape; the message says what, and which older checkpoint there is. */
void checkpoint_load(const char *path, const CheckpointTensors *tensors, CheckpointState *state,
                     int with_optimizer);

/* What checkpoint_load does short of the tensors, for a rehearsal: fills the state and dies as it
   would, but reads no file of tensors beyond its header, so that damage within is not seen. */
void checkpoint_check(const char *path, const CheckpointTensors *tensors, CheckpointState *state,
                      int with_optimizer);

/* The resolved config that a checkpoint was saved with (caller frees): what must be known before
   there is a ParamTable to load into. Dies with EXIT_DATA. */
char *checkpoint_config(const char *path);

/* The text of the algorithms that a checkpoint was saved with (caller frees): what must be known
   before anything is computed. NULL where it has none; also, after a warning, where they are
   missing though listed, or damaged. Dies with EXIT_DATA when there is no usable state.json. */
char *checkpoint_gemm_algorithms(const char *path);

/* Prints a table of files and tensors with OK or what is wrong; returns the number of faults. For
   one process. */
int checkpoint_verify(const char *path);

#ifdef __cplusplus
}
#endif
#endif
