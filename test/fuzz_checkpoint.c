/*
fuzz_checkpoint -- the files of a checkpoint whose state.json has their sizes and sums, of one rank
or of several: it is verified, looked through and loaded into a small model. An input is files one
after the other, each a byte that picks its name, two of its length, and so many bytes.
*/
#include <stdlib.h>
#include <string.h>

#include "../llmc/checkpoint_state.h"
#include "fuzzing.h"

static const char *const names[] = {
    "model.safetensors",
    "optimizer.safetensors",
    "recipe.safetensors",
    "gemm_algorithms.txt",
    "model.safetensors.index.json",
    "optimizer.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "optimizer-00001-of-00002.safetensors",
    "optimizer-00002-of-00002.safetensors",
};
enum { NUM_NAMES = sizeof(names) / sizeof(names[0]) };

/* A model of two parameters, one of them padded, and a tensor that its recipe keeps. */
typedef struct {
    Device *device;
    Arena parameters, gradients, optimizer;
    ParamTable table;
    float kept[2];
    NamedTensor kept_names[1];
} Model;

static Device *device;

/* Before any input, whose memory goes with it. */
__attribute__((constructor)) static void open_device(void) { device = device_cpu_open(1); }

static void model_open(Model *m) {
    memset(m, 0, sizeof(*m));
    m->device = device;
    m->parameters = arena_measure("parameters", m->device);
    m->gradients = arena_measure("gradients", m->device);
    m->optimizer = arena_measure("optimizer", m->device);
    param_table_add(&m->table, "w", 3, 2, 4, 1, INIT_NORMAL, 0.02f);
    param_table_add(&m->table, "b", 1, 2, 1, 0, INIT_ONE, 0);
    param_table_seal(&m->table, DT_F32);
    for (int commit = 1; commit >= 0; commit--) {
        param_table_place(&m->table, &m->parameters, &m->gradients, &m->optimizer, 1);
        if (!commit) break;
        arena_commit(&m->parameters);
        arena_commit(&m->gradients);
        arena_commit(&m->optimizer);
    }
    snprintf(m->kept_names[0].name, sizeof(m->kept_names[0].name), "recipe.w.amax");
    m->kept_names[0].tensor = tensor_view(m->kept, DT_F32, 1, 2);
}

static void model_close(Model *m) {
    arena_free(&m->optimizer);
    arena_free(&m->gradients);
    arena_free(&m->parameters);
    free(m->table.params);
}

static CheckpointState state_of(Model *m) {
    CheckpointState state;
    memset(&state, 0, sizeof(state));
    state.step = 7;
    state.kept = m->kept_names;
    state.num_kept = 1;
    return state;
}

/* The files, of each name the first, and a state.json that lists them. */
static void put_checkpoint(const CheckpointState *state, FuzzBytes bytes) {
    FileRecord records[NUM_NAMES];
    int num_records = 0, is_there[NUM_NAMES] = {0};
    while (bytes.size > 0) {
        uint32_t name = fuzz_take(&bytes, 1) % NUM_NAMES;
        size_t size = (size_t)min_i64(fuzz_take(&bytes, 2), (int64_t)bytes.size);
        if (!is_there[name]++) {
            char path[64];
            snprintf(path, sizeof(path), "step_00000007/%s", names[name]);
            fuzz_put_file(path, bytes.data, size);
            FileSum sum = {(int64_t)size, crc32_update(0, bytes.data, size)};
            records[num_records++] = (FileRecord){names[name], sum};
        }
        bytes.data += size;
        bytes.size -= size;
    }
    StateDraft *draft = state_draft(state);
    char *text = state_draft_text(draft, records, num_records);
    fuzz_put_file("step_00000007/state.json", text, strlen(text));
    state_draft_free(draft);
    free(text);
}

void fuzz_input(const uint8_t *data, size_t size) {
    Model m;
    model_open(&m);
    CheckpointState state = state_of(&m);
    put_checkpoint(&state, (FuzzBytes){data, size});
    const char *path = fuzz_path("step_00000007");
    checkpoint_verify(path);
    free(checkpoint_gemm_algorithms(path));
    FlatRange *ranges = checkpoint_whole_tensors(&m.table, 1);
    CheckpointTensors tensors = {&m.table, m.device, NULL, ranges, 1};
    checkpoint_check(path, &tensors, &state, 0);
    checkpoint_check(path, &tensors, &state, 1);
    fuzz_accepted();   // what is looked through without a word can be loaded
    checkpoint_load(path, &tensors, &state, 1);
    free(ranges);
    free(state.config);
    model_close(&m);
}
