/*
tensor -- a Tensor is a view: pointer, dtype, rows x cols, contiguous row-major. It never owns
memory; arenas do. A vector is one row. Higher ranks are flattened by whoever uses them: (B,T,C) is
rows = B*T, cols = C.

Arena: all allocations of one lifetime class, laid out by running the same layout function twice:
first the arena only measures (tensors get NULL data), then arena_commit allocates and the second
run hands out addresses.

ParamTable: every trained tensor by name, in one flat space: parameter p covers [offset, offset +
rows * cols) of each of the arrays value, master, grad, m, v. Decayed matrices come first, the rest
after, so an optimizer step or an all-reduce is one call over a range.
*/
#ifndef LLMC_TENSOR_H
#define LLMC_TENSOR_H

#include "device.h"
#include "dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    void *data;
    DType dtype;
    int64_t rows, cols;
} Tensor;

static inline Tensor tensor_view(void *data, DType dtype, int64_t rows, int64_t cols) {
    Tensor t = {data, dtype, rows, cols};
    return t;
}
static inline int64_t tensor_count(Tensor t) { return t.rows * t.cols; }
static inline size_t tensor_bytes(Tensor t) { return dtype_bytes(t.dtype, t.rows * t.cols); }
static inline int tensor_empty(Tensor t) { return t.data == NULL; }
/* Rows [begin, begin + rows) of t. */
Tensor tensor_rows(Tensor t, int64_t begin, int64_t rows);
/* Elements [begin, begin + count) of a flat array, (1, count); of an empty one: empty. */
Tensor tensor_span(Tensor flat, int64_t begin, int64_t count);
/* CHECKs dtype and shape at the point of use; `what` names the tensor in the message. */
void tensor_expect(Tensor t, const char *what, DType dtype, int64_t rows, int64_t cols);

/* What a run keeps from step to step beside its parameters, by the name that it has in files. */
typedef struct {
    char name[128];          // "recipe.blocks.3.attn.qkv.amax"
    Tensor tensor;
} NamedTensor;

typedef struct {
    const char *name;        // "parameters", "saved activations", ...
    Device *device;
    char *base;              // NULL while measuring
    size_t used, size;
} Arena;

Arena arena_measure(const char *name, Device *device);
/* Allocates what was measured and starts again at the beginning. Dies with EXIT_OOM. */
void arena_commit(Arena *a);
void arena_free(Arena *a);
/* The next tensor of the arena, aligned to 256 bytes. Dies with EXIT_OOM where the arena comes to
   2^60 bytes. */
Tensor arena_tensor(Arena *a, DType dtype, int64_t rows, int64_t cols);

typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL } InitKind;

typedef struct {
    char name[96];           // "blocks.3.attn.qkv.weight"
    int64_t rows, cols;      // as stored in files
    int64_t padded_rows;     // as held in memory; rows beyond `rows` stay zero
    int decay;               // weight decay applies (matrices only)
    InitKind init;
    float init_std;          // INIT_NORMAL
    int64_t offset;          // first element in the flat arrays
    Tensor value;            // (padded_rows, cols) model dtype: what forward and backward read
    Tensor grad;             // (padded_rows, cols) f32
    // (padded_rows, cols) f32; master is `value` itself when the model dtype is f32
    Tensor master, m, v;
    // Where ranks keep parts (zero.h): the first element that master, m and v hold; and where value
    // is not kept, the elements from there on that are. Else 0, and empty.
    int64_t kept_from;
    Tensor kept_value;
} Param;

typedef struct {
    Param *params;
    int count, capacity;
    int64_t num_decayed;     // elements of the flat arrays under weight decay: [0, num_decayed)
    int64_t num_elements;    // of each flat array, padding included
    DType dtype;             // of `value`
    // the flat arrays, (1, num_elements); where ranks keep parts of them, see zero.h
    Tensor value, grad, master, m, v;
    // of gradients and values that are not kept; empty but for zero.h
    Tensor grad_windows, value_windows;
} ParamTable;

/* Declares a parameter and returns its index; offsets exist only after param_table_seal. */
int param_table_add(ParamTable *t, const char *name, int64_t rows, int64_t cols,
                    int64_t padded_rows,
                    int decay, InitKind init, float init_std);
/* Assigns offsets (decayed first, each aligned to 128 elements) and counts. */
void param_table_seal(ParamTable *t, DType dtype);
/* Hands out the arrays; with train = 0 only `value` and `master`. */
void param_table_place(ParamTable *t, Arena *parameters, Arena *gradients, Arena *optimizer,
                       int train);
/* Where the next parameter begins in the flat arrays. */
int64_t param_end(const Param *p);
/* The parameter that holds an element of the flat arrays, or the gap that the element is in. */
const Param *param_table_at(const ParamTable *t, int64_t element);
Param *param_table_find(ParamTable *t, const char *name);   // NULL if absent
int64_t param_table_true_count(const ParamTable *t);        // parameters as published: no padding
/* Writes one parameter's master from host memory (padded_rows, cols), so much of it as is kept, and
   its `value` by nearest even. */
void param_table_upload(ParamTable *t, Device *d, const Param *p, const float *master);
/* Fills masters and values from the seed (made on the host: the same on every machine) and zeroes m
   and v. */
void param_table_init(ParamTable *t, Device *d, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
