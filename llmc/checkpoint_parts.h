/*
checkpoint_parts -- what the sources of checkpoint share; private to them.
  checkpoint_dir.c      the directory of checkpoints: names, recovery, commit, what is kept
  checkpoint_layout.c   which rank's file has which stretch of which tensor; the index files
  checkpoint_save.c     writing, at once or beside training
  checkpoint_tensors.c  the files of tensors of one checkpoint, opened and checked
  checkpoint_load.c     loading
  checkpoint_verify.c   the table of ckpt verify
  checkpoint_state.c    state.json
Functions that return char * return NULL, or what is wrong (caller frees), unless they say else.
*/
#ifndef LLMC_CHECKPOINT_PARTS_H
#define LLMC_CHECKPOINT_PARTS_H

#include "checkpoint.h"
#include "checkpoint_state.h"
#include "common.h"
#include "safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CHECKPOINT_KEY "ckpt.dir"   // the key named by messages

// --- checkpoint_dir.c ---

/* DIR/step_..., or with a prefix what is not finished; caller frees. */
#define CHECKPOINT_TEMPORARY ".tmp_"
char *checkpoint_step_path(const char *dir, const char *prefix, int64_t step);
char *checkpoint_try_recover(const char *dir);
/* Gives the finished directory its name. */
char *checkpoint_commit(const char *dir, const char *temporary, int64_t step);
/* Removes what the policy does not keep, after the save of a step. A failure is a warning. */
void checkpoint_apply_keep(const CheckpointPolicy *policy, int64_t saved_step);
/* Never starts over or falls back by itself: says what the user can do. */
void checkpoint_die_unusable(const char *path, const char *problem) NORETURN;

// --- sets of tensors ---

/* Sets of tensors: those of the parameters, and of what recipes keep, which not every checkpoint
   has. */
typedef enum { SET_MODEL, SET_OPTIMIZER, NUM_SETS, SET_KEPT = NUM_SETS, ALL_SETS } SetId;

extern const char CHECKPOINT_ALGORITHMS[];   // a file that is not in every checkpoint

/* What is kept of every parameter: in which set, under which name, from which array. */
typedef struct {
    SetId set;
    const char *prefix;
    size_t at;   // offset in FlatRange
} CheckpointArray;
enum { NUM_ARRAYS = 3 };
extern const CheckpointArray checkpoint_arrays[NUM_ARRAYS];

float *checkpoint_array_data(const CheckpointArray *array, const FlatRange *range);

typedef struct {
    char text[128];
} TensorName;
TensorName checkpoint_tensor_name(const CheckpointArray *array, const char *param);

/* "model.safetensors" of one file, "model-00002-of-00004.safetensors" of the second of four, and
   "model.safetensors.index.json"; caller frees. */
char *checkpoint_file_name(SetId set, int index, int count);
char *checkpoint_index_name(SetId set);

// --- checkpoint_layout.c ---

/* A stretch of a tensor, elements row by row, in the file of one rank. */
typedef struct {
    TensorName name;
    int64_t rows, cols;   // of the whole tensor
    int64_t begin, end;
    int owner;
    const float *data;    // (end - begin); NULL where this rank has none
} Segment;

typedef struct {
    Segment *segments;
    int count;
} SegmentList;

/* The segments of a set of all ranks, tensor by tensor, those of each tensor rising. */
SegmentList layout_segments(const CheckpointTensors *tensors, SetId set);
/* Of one rank, in the order of its file. */
SegmentList layout_segments_of(const SegmentList *all, int owner);
/* The text of the index file of a set that `count` ranks wrote; caller frees. */
char *layout_index_text(const SegmentList *all, SetId set, int count);
/* Elements of a parameter that a range has: [*begin, *end) of the tensor's, empty where none. */
void layout_cut(const Param *p, const FlatRange *range, int64_t *begin, int64_t *end);

static inline int ranks_of(const Comm *comm) { return comm ? comm->size : 1; }
static inline int rank_of(const Comm *comm) { return comm ? comm->rank : 0; }
/* The first rank's problem, the same on all ranks; NULL where none has any. Takes `problem`. */
char *ranks_agree(Comm *comm, char *problem);

// --- checkpoint_tensors.c ---

/* A stretch of a tensor and the place where it is. */
typedef struct {
    int file;
    int64_t begin, end;   // elements of the tensor
    const char *data;     // in the mapped file; NULL before set_match
} SetPart;

typedef struct {
    const char *name;
    int64_t rows, cols;
    SetPart *parts;   // (num_parts) rising
    int num_parts;
} SetTensor;

typedef struct {
    SetId id;
    int has_index, is_whole;   // is_whole: set_match found nothing wrong
    char **files;          // (num_files) names
    Safetensors **open;    // (num_files) NULL before set_open_file
    int num_files;
    SetTensor *tensors;    // (count) by name; of a set without an index only after set_match
    int count;
    void *index;           // keeps the names
} TensorSet;

/* In this order: finds the files and reads the index; opens each file, which is checked down to its
   size or its sum; brings tensors and files together, which then cover each other exactly. */
char *set_find(TensorSet *s, SetId id, const char *path, const StateFile *state);
char *set_check_file(const TensorSet *s, int file, const char *path, const StateFile *state,
                     int with_sum);
char *set_open_file(TensorSet *s, int file, const char *path);
char *set_match(TensorSet *s);
void set_close(TensorSet *s);
const SetTensor *set_tensor(const TensorSet *s, const char *name);   // NULL if absent
/* Copies elements [begin, end) of a tensor. */
void set_read(const SetTensor *t, int64_t begin, int64_t end, float *out);
/* A tensor of that name and shape is there. */
char *set_expect(const TensorSet *s, const char *name, int64_t rows, int64_t cols);
/* A file that state.json lists is as it was saved. */
char *checkpoint_check_file(const char *path, const char *name, const StateFile *state,
                            int with_sum);
char *checkpoint_open_state(const char *path, StateFile **state);
/* A problem of one file, with the file's name before it; takes it. */
char *problem_in_file(const char *name, char *problem);
/* The text of the algorithms that state.json lists, or NULL and what is wrong with it. */
char *checkpoint_read_algorithms(const char *path, const StateFile *state, char **problem);

#ifdef __cplusplus
}
#endif
#endif
