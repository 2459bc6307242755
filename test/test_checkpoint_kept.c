/*
test_checkpoint_kept -- what recipes keep from step to step in a checkpoint: named tensors beside
the parameters, which come back bit for bit, are absent where nothing is kept, and start anew where
another recipe saved.
*/
#include "../llmc/checkpoint.h"
#include "../llmc/common.h"
#include "test.h"

// --- a model of one parameter ---

typedef struct {
    Device *device;
    Arena arena;
    ParamTable table;
} Model;

static Model model_open(void) {
    Model m = {.device = device_cpu_open(1)};
    param_table_add(&m.table, "w", 4, 8, 4, 1, INIT_NORMAL, 0.02f);
    param_table_seal(&m.table, DT_F32);
    m.arena = arena_measure("all", m.device);
    param_table_place(&m.table, &m.arena, &m.arena, &m.arena, 1);
    arena_commit(&m.arena);
    param_table_place(&m.table, &m.arena, &m.arena, &m.arena, 1);
    param_table_init(&m.table, m.device, 1);
    return m;
}

static void model_close(Model *m) {
    arena_free(&m->arena);
    free(m->table.params);
    m->device->close(m->device);
}

static CheckpointTensors tensors_of(Model *m) {
    CheckpointTensors t = {&m->table, m->device, NULL, checkpoint_whole_tensors(&m->table, 1), 1};
    return t;
}

/* checkpoint_verify without its table. */
static int num_faults(const char *path) {
    log_set_rank(1, 2);
    int faults = checkpoint_verify(path);
    log_set_rank(0, 1);
    return faults;
}

static const char *saved_at(const char *dir) {
    static char path[1024];
    snprintf(path, sizeof(path), "%s/step_00000007", dir);
    return path;
}

// --- two tensors of a recipe ---

typedef struct {
    float amax[6], history[12];
    NamedTensor named[2];
} Kept;

static void kept_fill(Kept *k, float value) {
    for (int i = 0; i < 6; i++) k->amax[i] = value + (float)i;
    for (int i = 0; i < 12; i++) k->history[i] = value * (float)i;
    k->named[0] = (NamedTensor){"recipe.a.amax", tensor_view(k->amax, DT_F32, 1, 6)};
    k->named[1] = (NamedTensor){"recipe.a.amax_history", tensor_view(k->history, DT_F32, 6, 2)};
}

/* Saves step 7 with so many of the two. */
static const char *save_kept(const char *name, Kept *k, int count) {
    static char staging[24];   // smaller than a tensor
    const char *dir = test_scratch(name);
    Model m = model_open();
    CheckpointPolicy policy = {dir, 0, 0, staging, sizeof(staging), NULL};
    CheckpointState state = {.step = 7, .config = "{}", .kept = k->named, .num_kept = count};
    CheckpointTensors t = tensors_of(&m);
    char *problem = checkpoint_save(&policy, &t, &state);
    EXPECT(!problem, "%s", problem);
    free((void *)t.ranges);
    model_close(&m);
    return dir;
}

static void load_kept(const char *dir, Kept *k, int count, int with_optimizer) {
    Model m = model_open();
    CheckpointState state = {.kept = k->named, .num_kept = count};
    CheckpointTensors t = tensors_of(&m);
    checkpoint_load(saved_at(dir), &t, &state, with_optimizer);
    free((void *)t.ranges);
    free(state.config);
    model_close(&m);
}

CASE(what_recipes_keep_comes_back) {
    for (int with_optimizer = 0; with_optimizer < 2; with_optimizer++) {
        Kept saved, loaded;
        kept_fill(&saved, 3);
        kept_fill(&loaded, 5);
        const char *dir = save_kept(with_optimizer ? "kept1" : "kept0", &saved, 2);
        load_kept(dir, &loaded, 2, with_optimizer);
        EXPECT_BITS(loaded.amax, saved.amax, sizeof(saved.amax));
        EXPECT_BITS(loaded.history, saved.history, sizeof(saved.history));
        EXPECT_EQ_I64(num_faults(saved_at(dir)), 0);
    }
}

/* Another recipe's checkpoint: what it has is taken, what it has not stays as it was. */
CASE(another_recipe_starts_anew) {
    Kept saved, loaded, untouched;
    kept_fill(&saved, 3);
    kept_fill(&loaded, 5);
    kept_fill(&untouched, 5);
    load_kept(save_kept("kept_one", &saved, 1), &loaded, 2, 1);
    EXPECT_BITS(loaded.amax, saved.amax, sizeof(saved.amax));
    EXPECT_BITS(loaded.history, untouched.history, sizeof(saved.history));
    const char *none = save_kept("kept_none", &saved, 0);
    char file[1100];
    snprintf(file, sizeof(file), "%s/recipe.safetensors", saved_at(none));
    EXPECT(!file_exists(file), "%s", file);
    kept_fill(&loaded, 5);
    load_kept(none, &loaded, 2, 1);
    EXPECT_BITS(loaded.amax, untouched.amax, sizeof(saved.amax));
    load_kept(save_kept("kept_unused", &saved, 2), &loaded, 0, 1);   // its file is left alone
}

CASE(damage_of_what_recipes_keep_is_seen) {
    Kept saved, other;
    kept_fill(&saved, 3);
    kept_fill(&other, 5);
    const char *dir = save_kept("kept_damaged", &saved, 2);
    other.named[1].tensor = tensor_view(other.history, DT_F32, 4, 3);
    EXPECT_DIES(EXIT_DATA, "recipe.safetensors: tensor recipe.a.amax_history has shape (6,2)",
                load_kept(dir, &other, 2, 1));
    kept_fill(&other, 5);
    char path[1100];
    snprintf(path, sizeof(path), "%s/step_00000007/recipe.safetensors", dir);
    FILE *f = fopen(path, "r+b");
    REQUIRE(f, "%s", path);
    fseek(f, -1, SEEK_END);
    fputc(0x55, f);
    fclose(f);
    EXPECT_DIES(EXIT_DATA, "recipe.safetensors: damaged", load_kept(dir, &other, 2, 1));
    EXPECT_EQ_I64(num_faults(saved_at(dir)), 1);
}

TEST_MAIN_END
