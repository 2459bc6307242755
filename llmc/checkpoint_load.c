/*
checkpoint_load -- reads a checkpoint into whatever each rank holds of the tensors, after all of it
was found whole; see checkpoint.h. It knows nothing of the ranks that wrote it beyond the index.
*/
#include <stdlib.h>
#include <string.h>

#include "checkpoint_parts.h"

typedef struct {
    StateFile *state;
    TensorSet sets[ALL_SETS];   // without files where not asked for, or not there
} Opened;

/* Sizes and headers on every rank; the sum of each file on one of them, as big runs have many. */
static char *open_set(Opened *o, SetId id, const char *path, const Comm *comm, int with_sums) {
    TensorSet *s = &o->sets[id];
    char *problem = set_find(s, id, path, o->state);
    for (int i = 0; i < s->num_files && !problem; i++) {
        int with_sum = with_sums && i % ranks_of(comm) == rank_of(comm);
        problem = set_check_file(s, i, path, o->state, with_sum);
        if (!problem) problem = set_open_file(s, i, path);
    }
    return problem ? problem : set_match(s);
}

/* The file of what recipes keep only where the checkpoint has it. */
static int wants_set(const Opened *o, SetId id, const CheckpointState *state, int with_optimizer) {
    switch (id) {
    case SET_OPTIMIZER: return with_optimizer;
    case SET_KEPT: break;
    default: return 1;
    }
    char *name = checkpoint_file_name(SET_KEPT, 0, 1);
    int has_it = state_has_file(o->state, name);
    free(name);
    return has_it && state->num_kept > 0;
}

/* What is there of what recipes keep has its shape. */
static char *check_kept(const Opened *o, const CheckpointState *state) {
    const TensorSet *s = &o->sets[SET_KEPT];
    for (int i = 0; s->num_files && i < state->num_kept; i++) {
        const NamedTensor *n = &state->kept[i];
        if (!set_tensor(s, n->name)) continue;
        char *problem = set_expect(s, n->name, n->tensor.rows, n->tensor.cols);
        if (problem) return problem;
    }
    return NULL;
}

/* Each parameter is there in its shape, and nothing that is none. */
static char *check_params(const Opened *o, const ParamTable *params) {
    int expected[NUM_SETS] = {0};
    for (int k = 0; k < NUM_ARRAYS; k++) {
        const CheckpointArray *array = &checkpoint_arrays[k];
        const TensorSet *s = &o->sets[array->set];
        for (int i = 0; s->num_files && i < params->count; i++) {
            const Param *p = &params->params[i];
            TensorName name = checkpoint_tensor_name(array, p->name);
            char *problem = set_expect(s, name.text, p->rows, p->cols);
            if (problem) return problem;
            expected[array->set]++;
        }
    }
    for (int id = 0; id < NUM_SETS; id++) {
        const TensorSet *s = &o->sets[id];
        if (!s->num_files || s->count == expected[id]) continue;
        return format_string("%s: %d tensors, the model has %d", s->files[0], s->count,
                             expected[id]);
    }
    return NULL;
}

static char *open_all(Opened *o, const char *path, const CheckpointTensors *t,
                      const CheckpointState *state, int with_optimizer, int with_sums) {
    char *problem = checkpoint_open_state(path, &o->state);
    for (int id = 0; id < ALL_SETS && !problem; id++) {
        if (wants_set(o, (SetId)id, state, with_optimizer))
            problem = open_set(o, (SetId)id, path, t->comm, with_sums);
    }
    if (!problem) problem = problem_in_file("state.json", state_check(o->state, state));
    if (!problem) problem = check_params(o, t->params);
    return problem ? problem : check_kept(o, state);
}

/* All of a checkpoint but its algorithms, which weights do not need; or the end, on all ranks. */
static void open_or_die(Opened *o, const char *path, const CheckpointTensors *t,
                        const CheckpointState *state, int with_optimizer, int with_sums) {
    char *problem = open_all(o, path, t, state, with_optimizer, with_sums);
    problem = ranks_agree(t->comm, problem);
    if (problem) checkpoint_die_unusable(path, problem);
}

static void close_all(Opened *o) {
    for (int id = 0; id < ALL_SETS; id++) set_close(&o->sets[id]);
    if (o->state) state_close(o->state);
}

// --- tensors to where they belong ---

enum { CHUNK = 1 << 22 };   // elements that are on their way at once: 16 MiB

typedef struct {
    float *values;
    bf16_t *rounded;
} Buffers;

static void put_values(const CheckpointTensors *t, const FlatRange *range, int64_t at,
                       int64_t count, const Buffers *b) {
    if (!range->value || (void *)range->value == (void *)range->master) return;
    Device *d = t->device;
    DType dtype = t->params->dtype;
    for (int64_t i = 0; dtype == DT_BF16 && i < count; i++)
        b->rounded[i] = bf16_from_f32(b->values[i]);
    const void *from = dtype == DT_BF16 ? (const void *)b->rounded : (const void *)b->values;
    d->upload(d, (char *)range->value + dtype_bytes(dtype, at), from, dtype_bytes(dtype, count));
}

/* What a range has of one array of one parameter. */
static void load_stretch(const Opened *o, const CheckpointTensors *t, const CheckpointArray *array,
                         const Param *p, const FlatRange *range, const Buffers *b) {
    float *data = checkpoint_array_data(array, range);
    TensorName name = checkpoint_tensor_name(array, p->name);
    const SetTensor *tensor = set_tensor(&o->sets[array->set], name.text);
    int64_t begin, end;
    layout_cut(p, range, &begin, &end);
    for (int64_t i = begin; i < end; i += CHUNK) {
        int64_t count = min_i64(CHUNK, end - i), at = p->offset + i - range->begin;
        set_read(tensor, i, i + count, b->values);
        if (data) t->device->upload(t->device, data + at, b->values, (size_t)count * sizeof(float));
        if (array->set == SET_MODEL) put_values(t, range, at, count, b);
    }
}

/* Padding and the gaps between parameters are zero, whatever was there. */
static void zero_range(const CheckpointTensors *t, const FlatRange *range, int with_optimizer) {
    Device *d = t->device;
    int64_t count = range->end - range->begin;
    for (int k = 0; k < NUM_ARRAYS; k++) {
        float *data = checkpoint_array_data(&checkpoint_arrays[k], range);
        if (data && (checkpoint_arrays[k].set == SET_MODEL || with_optimizer))
            d->zero(d, data, (size_t)count * sizeof(float));
    }
    if (range->value) d->zero(d, range->value, dtype_bytes(t->params->dtype, count));
}

static void load_params(const Opened *o, const CheckpointTensors *t, int with_optimizer) {
    Buffers b = {(float *)xmalloc(CHUNK * sizeof(float)),
                 (bf16_t *)xmalloc(CHUNK * sizeof(bf16_t))};
    for (int r = 0; r < t->num_ranges; r++) {
        const FlatRange *range = &t->ranges[r];
        zero_range(t, range, with_optimizer);
        for (int k = 0; k < NUM_ARRAYS; k++) {
            const CheckpointArray *array = &checkpoint_arrays[k];
            int is_master = array->set == SET_MODEL;
            int here = checkpoint_array_data(array, range) || (is_master && range->value);
            if (!here || (!is_master && !with_optimizer)) continue;
            for (int i = 0; i < t->params->count; i++)
                load_stretch(o, t, array, &t->params->params[i], range, &b);
        }
    }
    free(b.values);
    free(b.rounded);
}

/* Of another recipe there may be nothing, and what was zero stays so. */
static void load_kept(const Opened *o, const CheckpointState *state, Device *d) {
    const char *missing = NULL;
    for (int i = 0; i < state->num_kept; i++) {
        Tensor t = state->kept[i].tensor;
        const SetTensor *saved = set_tensor(&o->sets[SET_KEPT], state->kept[i].name);
        if (!saved) {
            missing = state->kept[i].name;
            continue;
        }
        float *values = (float *)xmalloc(tensor_bytes(t));
        set_read(saved, 0, tensor_count(t), values);
        d->upload(d, t.data, values, tensor_bytes(t));
        free(values);
    }
    if (missing)
        log_warn("the checkpoint has no %s: what the recipe keeps of it starts anew", missing);
}

void checkpoint_load(const char *path, const CheckpointTensors *tensors, CheckpointState *state,
                     int with_optimizer) {
    Opened o = {0};
    open_or_die(&o, path, tensors, state, with_optimizer, 1);
    load_params(&o, tensors, with_optimizer);
    load_kept(&o, state, tensors->device);
    tensors->device->synchronize(tensors->device);
    state_restore(o.state, state);
    close_all(&o);
}

void checkpoint_check(const char *path, const CheckpointTensors *tensors, CheckpointState *state,
                      int with_optimizer) {
    Opened o = {0};
    open_or_die(&o, path, tensors, state, with_optimizer, 0);
    state_restore(o.state, state);
    close_all(&o);
}

// --- what is read before there is a model ---

char *checkpoint_config(const char *path) {
    StateFile *file = NULL;
    CheckpointState state = {0};
    char *problem = checkpoint_open_state(path, &file);
    if (!problem) problem = problem_in_file("state.json", state_check(file, &state));
    if (problem) checkpoint_die_unusable(path, problem);
    state_restore(file, &state);
    state_close(file);
    return state.config;
}

char *checkpoint_gemm_algorithms(const char *path) {
    StateFile *file = NULL;
    char *text = NULL, *problem = checkpoint_open_state(path, &file);
    if (problem) checkpoint_die_unusable(path, problem);
    if (state_has_file(file, CHECKPOINT_ALGORITHMS))
        text = checkpoint_read_algorithms(path, file, &problem);
    if (problem) {
        log_warn(
            "checkpoint '%s': %s: %s. It is used without this file: weights do not need it, "
            "but on a GPU other GEMM algorithms may be chosen, and then losses differ in their "
            "last digits from those of an uninterrupted run",
            path, CHECKPOINT_ALGORITHMS, problem);
    }
    free(problem);
    state_close(file);
    return text;
}
