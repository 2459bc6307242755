/*
checkpoint -- the directory of a run's checkpoints: what is in it, how one is added as a whole, how
one is read back; see checkpoint.h. The text of state.json is checkpoint_state.c's.
*/
#include "checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint_state.h"
#include "common.h"
#include "outfile.h"

static const char WHAT[] = "ckpt.dir";   // the key named by messages
static const char TEMPORARY[] = ".tmp_", SET_ASIDE[] = ".old_";

/* Files of tensors: those of the parameters, and of what recipes keep, which not every checkpoint
   has. */
typedef enum {
    FILE_MODEL,
    FILE_OPTIMIZER,
    NUM_FILES,
    FILE_KEPT = NUM_FILES,
    ALL_FILES
} CheckpointFile;
static const char *const file_names[ALL_FILES] = {"model.safetensors", "optimizer.safetensors",
                                                  "recipe.safetensors"};
static const char ALGORITHMS[] = "gemm_algorithms.txt";   // not in every checkpoint
static const size_t MAX_ALGORITHMS = 1 << 20;             // bytes; some hundred lines of 200

/* What is kept of every parameter: in which file, under which name, from which tensor. */
typedef struct {
    CheckpointFile file;
    const char *prefix;
    size_t tensor_at;   // offset in Param
} Part;

// clang-format off
static const Part parts[] = {
    {FILE_MODEL,     "",   offsetof(Param, master)},
    {FILE_OPTIMIZER, "m.", offsetof(Param, m)},
    {FILE_OPTIMIZER, "v.", offsetof(Param, v)},
};
// clang-format on

static Tensor part_tensor(const Part *part, const Param *p) {
    return *(const Tensor *)((const char *)p + part->tensor_at);
}

typedef struct {
    char text[128];
} PartName;

static PartName part_name(const Part *part, const char *param) {
    PartName name;
    snprintf(name.text, sizeof(name.text), "%s%s", part->prefix, param);
    return name;
}

// --- the directory ---

typedef struct {
    int64_t *steps;   // rising
    int count;
} StepList;

/* The step of a name like step_00000120, or -1. */
static int64_t step_of_name(const char *name) {
    long long step;
    char again[64];
    if (sscanf(name, "step_%lld", &step) != 1 || step < 0) return -1;
    snprintf(again, sizeof(again), "step_%08lld", step);
    return strcmp(name, again) == 0 ? step : -1;
}

static char *step_path(const char *dir, const char *prefix, int64_t step) {
    return format_string("%s/%sstep_%08lld", dir, prefix, (long long)step);
}

static int compare_steps(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static StepList list_steps(const char *dir) {
    StepList list = {NULL, 0};
    DIR *d = opendir(dir);
    if (!d) return list;   // no directory, no checkpoints
    struct dirent *entry;
    while ((entry = readdir(d)) != NULL) {
        int64_t step = step_of_name(entry->d_name);
        if (step < 0) continue;
        list.steps = (int64_t *)xrealloc(list.steps, (size_t)(list.count + 1) * sizeof(int64_t));
        list.steps[list.count++] = step;
    }
    closedir(d);
    if (list.count > 0) qsort(list.steps, (size_t)list.count, sizeof(int64_t), compare_steps);
    return list;
}

/* One entry that begins with a dot: unfinished work goes; what was set aside returns if its
   successor did not make it. */
static void recover_entry(const char *dir, const char *name) {
    char *path = format_string("%s/%s", dir, name);
    if (strncmp(name, TEMPORARY, strlen(TEMPORARY)) == 0) {
        outfile_remove_tree(path, WHAT);
    } else if (strncmp(name, SET_ASIDE, strlen(SET_ASIDE)) == 0) {
        char *final = format_string("%s/%s", dir, name + strlen(SET_ASIDE));
        if (file_exists(final)) outfile_remove_tree(path, WHAT);
        else outfile_rename(path, final, WHAT);
        free(final);
    }
    free(path);
}

void checkpoint_recover(const char *dir) {
    DIR *d = opendir(dir);
    if (!d && (errno == ENOENT || errno == ENOTDIR)) return;
    if (!d) die(EXIT_DATA, "%s: cannot open '%s': %s", WHAT, dir, strerror(errno));
    struct dirent *entry;
    while ((entry = readdir(d)) != NULL) recover_entry(dir, entry->d_name);
    closedir(d);
}

/* `path` without the slashes at its end; caller frees. */
static char *trimmed(const char *path) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    return format_string("%.*s", (int)length, path);
}

char *checkpoint_find(const char *path) {
    char *dir = trimmed(path);
    char *state = format_string("%s/state.json", dir);
    const char *slash = strrchr(dir, '/');
    int is_step = step_of_name(slash ? slash + 1 : dir) >= 0 && file_exists(dir);
    int is_one = is_step || file_exists(state);
    free(state);
    if (is_one) return dir;
    StepList list = list_steps(dir);
    char *found = list.count > 0 ? step_path(dir, "", list.steps[list.count - 1]) : NULL;
    free(list.steps);
    free(dir);
    return found;
}

/* Under a name that is no checkpoint's first: half removed, it must not pass for one. */
static void remove_checkpoint(const char *dir, int64_t step) {
    char *path = step_path(dir, "", step), *doomed = step_path(dir, TEMPORARY, step);
    outfile_rename(path, doomed, WHAT);
    outfile_remove_tree(doomed, WHAT);
    free(path);
    free(doomed);
}

/* Later steps than the one just saved are of a run that was left for an older checkpoint: they take
   no place among the newest, and to remove them is for the user. */
static void apply_keep(const CheckpointPolicy *policy, int64_t saved_step) {
    StepList list = list_steps(policy->dir);
    int num_older = 0;
    while (num_older < list.count && list.steps[num_older] <= saved_step) num_older++;
    if (num_older < list.count) {
        log_warn("%s '%s' holds step %lld, later than step %lld just saved: ckpt.resume=auto would "
                 "take it; remove it if it is of an abandoned run",
                 WHAT, policy->dir, (long long)list.steps[list.count - 1], (long long)saved_step);
    }
    int num_removable = policy->keep > 0 ? num_older - policy->keep : 0;
    for (int i = 0; i < num_removable; i++) {
        int is_major = policy->major_every > 0 && list.steps[i] % policy->major_every == 0;
        if (!is_major) remove_checkpoint(policy->dir, list.steps[i]);
    }
    free(list.steps);
}

// --- save ---

static void write_tensor(SafetensorsWriter *w, Tensor t, int64_t rows, Device *d,
                         const CheckpointPolicy *policy) {
    size_t left = dtype_bytes(t.dtype, rows * t.cols);
    for (const char *p = (const char *)t.data; left > 0;) {
        size_t bytes = left < policy->staging_bytes ? left : policy->staging_bytes;
        d->download(d, policy->staging, p, bytes);
        safetensors_write(w, policy->staging, bytes);
        p += bytes;
        left -= bytes;
    }
}

static FileSum write_file(CheckpointFile file, const char *dir, const CheckpointPolicy *policy,
                          const ParamTable *params, Device *d) {
    char *path = format_string("%s/%s", dir, file_names[file]);
    SafetensorsWriter *w = safetensors_create(path, WHAT);
    safetensors_add_metadata(w, "format", "pt");   // other readers refuse a file without it
    for (int k = 0; k < ARRAY_LEN(parts); k++) {
        for (int i = 0; i < params->count && parts[k].file == file; i++) {
            const Param *p = &params->params[i];
            safetensors_declare(w, part_name(&parts[k], p->name).text, DT_F32, p->rows, p->cols);
        }
    }
    for (int k = 0; k < ARRAY_LEN(parts); k++) {
        for (int i = 0; i < params->count && parts[k].file == file; i++) {
            const Param *p = &params->params[i];
            Tensor t = part_tensor(&parts[k], p);
            tensor_expect(t, part_name(&parts[k], p->name).text, DT_F32, p->padded_rows, p->cols);
            write_tensor(w, t, p->rows, d, policy);
        }
    }
    free(path);
    return safetensors_finish(w);
}

static FileSum write_kept(const char *dir, const CheckpointPolicy *policy,
                          const CheckpointState *state, Device *d) {
    char *path = format_string("%s/%s", dir, file_names[FILE_KEPT]);
    SafetensorsWriter *w = safetensors_create(path, WHAT);
    safetensors_add_metadata(w, "format", "pt");
    for (int i = 0; i < state->num_kept; i++) {
        const NamedTensor *n = &state->kept[i];
        tensor_expect(n->tensor, n->name, DT_F32, n->tensor.rows, n->tensor.cols);
        safetensors_declare(w, n->name, DT_F32, n->tensor.rows, n->tensor.cols);
    }
    for (int i = 0; i < state->num_kept; i++)
        write_tensor(w, state->kept[i].tensor, state->kept[i].tensor.rows, d, policy);
    free(path);
    return safetensors_finish(w);
}

static FileSum write_text(const char *dir, const char *name, const char *text) {
    char *path = format_string("%s/%s", dir, name);
    OutFile f = outfile_create(path, WHAT);
    outfile_write(&f, text, strlen(text));
    FileSum sum = {f.bytes, f.crc};
    outfile_close(&f);
    free(path);
    return sum;
}

/* Everything of a checkpoint, state.json at last. */
static void write_files(const char *dir, const CheckpointPolicy *policy, const ParamTable *params,
                        Device *d, const CheckpointState *state) {
    FileRecord files[ALL_FILES + 1];
    int count = 0;
    for (; count < NUM_FILES; count++) {
        files[count].name = file_names[count];
        files[count].sum = write_file((CheckpointFile)count, dir, policy, params, d);
    }
    if (state->num_kept > 0) {
        files[count].name = file_names[FILE_KEPT];
        files[count++].sum = write_kept(dir, policy, state, d);
    }
    if (state->gemm_algorithms && state->gemm_algorithms[0]) {
        files[count].name = ALGORITHMS;
        files[count++].sum = write_text(dir, ALGORITHMS, state->gemm_algorithms);
    }
    char *text = state_text(state, files, count);
    write_text(dir, "state.json", text);
    free(text);
}

/* Gives the finished directory its name. Between the two renames there is no step_* of this step;
   checkpoint_recover puts the old one back. */
static void commit(const char *dir, const char *temporary, int64_t step) {
    char *final = step_path(dir, "", step), *aside = step_path(dir, SET_ASIDE, step);
    int replaces = file_exists(final);
    if (replaces) outfile_rename(final, aside, WHAT);
    outfile_rename(temporary, final, WHAT);
    outfile_sync_directory(dir, WHAT);
    if (replaces) outfile_remove_tree(aside, WHAT);
    free(final);
    free(aside);
}

void checkpoint_save(const CheckpointPolicy *policy, const ParamTable *params, Device *device,
                     const CheckpointState *state) {
    CHECK(policy->staging && policy->staging_bytes > 0, "no staging memory");
    CHECK(policy->keep >= 0 && policy->major_every >= 0, "keep %d, major_every %lld", policy->keep,
          (long long)policy->major_every);
    make_directory(policy->dir, WHAT);
    checkpoint_recover(policy->dir);

    char *temporary = format_string("%s/%sstep_%08lld_%d", policy->dir, TEMPORARY,
                                    (long long)state->step, (int)getpid());
    make_directory(temporary, WHAT);
    write_files(temporary, policy, params, device, state);
    outfile_sync_directory(temporary, WHAT);
    commit(policy->dir, temporary, state->step);
    free(temporary);
    apply_keep(policy, state->step);
}

// --- load ---

typedef struct {
    StateFile *state;
    Safetensors *files[ALL_FILES];   // NULL where not asked for, or not there
    int sizes_only;                  // do not read all of a file for its CRC
} Opened;

/* The CRC of what remains to be read of a file. */
static char *check_crc(int fd, uint32_t expected) {
    enum { CHUNK = 1 << 20 };
    uint8_t *chunk = (uint8_t *)xmalloc(CHUNK);
    uint32_t found = 0;
    ssize_t got;
    while ((got = read(fd, chunk, CHUNK)) > 0) found = crc32_update(found, chunk, (size_t)got);
    char *problem = NULL;
    if (got < 0) problem = format_string("cannot read: %s", strerror(errno));
    else if (found != expected) {
        problem =
            format_string("damaged: crc32 is %08" PRIx32 ", expected %08" PRIx32, found, expected);
    }
    free(chunk);
    return problem;
}

/* Size first: it tells a truncated file from a damaged one, and costs nothing. */
static char *check_sum(const char *path, FileSum expected, int size_only) {
    char *problem = NULL;
    int64_t bytes;
    int fd = open_regular_file(path, &bytes, &problem);
    if (fd < 0) return problem;
    if (bytes != expected.bytes) {
        problem =
            format_string("%lld bytes, expected %lld%s", (long long)bytes,
                          (long long)expected.bytes, bytes < expected.bytes ? " (truncated)" : "");
    } else if (!size_only) {
        problem = check_crc(fd, expected.crc);
    }
    close(fd);
    return problem;
}

/* What is wrong with a file of the checkpoint, which is to be as it was saved. */
static char *check_file(const char *path, const char *name, const Opened *o) {
    FileSum expected;
    char *file_path = format_string("%s/%s", path, name);
    char *problem = state_file_sum(o->state, name, &expected);
    if (!problem) problem = check_sum(file_path, expected, o->sizes_only);
    free(file_path);
    return problem;
}

static char *open_tensors(const char *path, CheckpointFile file, Opened *o) {
    char *problem = check_file(path, file_names[file], o);
    if (problem) return problem;
    char *file_path = format_string("%s/%s", path, file_names[file]);
    o->files[file] = safetensors_try_open(file_path, &problem);
    free(file_path);
    return problem;
}

/* A problem of one file, with the file's name before it. */
static char *in_file(const char *name, char *problem) {
    if (!problem) return NULL;
    char *named = format_string("%s: %s", name, problem);
    free(problem);
    return named;
}

static char *open_state(const char *path, Opened *o) {
    char *state_path = format_string("%s/state.json", path);
    char *problem = state_open(state_path, &o->state);
    free(state_path);
    return in_file("state.json", problem);
}

/* The first files, and where the checkpoint has it and it is asked for, that of recipes. */
static char *open_checkpoint(const char *path, int num_files, int with_kept, Opened *o) {
    char *problem = open_state(path, o);
    for (int i = 0; i < ALL_FILES && !problem; i++) {
        int has_kept = i == FILE_KEPT && with_kept && state_has_file(o->state, file_names[i]);
        if (i < num_files || has_kept)
            problem = in_file(file_names[i], open_tensors(path, (CheckpointFile)i, o));
    }
    return problem;
}

static void close_checkpoint(Opened *o) {
    for (int i = 0; i < ALL_FILES; i++) {
        if (o->files[i]) safetensors_close(o->files[i]);
    }
    if (o->state) state_close(o->state);
}

static char *check_entry(const SafetensorsEntry *e, int64_t rows, int64_t cols) {
    if (e->dtype != DT_F32) {
        return format_string("tensor %s is %s, expected f32", e->name, dtype_info[e->dtype].name);
    }
    if (e->rows == rows && e->cols == cols) return NULL;
    return format_string("tensor %s has shape (%lld,%lld), the model's is (%lld,%lld)", e->name,
                         (long long)e->rows, (long long)e->cols, (long long)rows, (long long)cols);
}

static char *check_tensor(const Safetensors *file, const char *name, const Param *p) {
    const SafetensorsEntry *e = safetensors_find(file, name);
    if (!e) return format_string("tensor %s is missing, which the model has", name);
    return check_entry(e, p->rows, p->cols);
}

/* What is there of what recipes keep has its shape. */
static char *check_kept(const Opened *o, const CheckpointState *state) {
    for (int i = 0; o->files[FILE_KEPT] && i < state->num_kept; i++) {
        const NamedTensor *n = &state->kept[i];
        const SafetensorsEntry *e = safetensors_find(o->files[FILE_KEPT], n->name);
        char *problem = e ? check_entry(e, n->tensor.rows, n->tensor.cols) : NULL;
        if (problem) return in_file(file_names[FILE_KEPT], problem);
    }
    return NULL;
}

/* Each parameter is there in its shape, and nothing that is none. */
static char *check_tensors(const Opened *o, ParamTable *params) {
    int num_parts[NUM_FILES] = {0};
    for (int k = 0; k < ARRAY_LEN(parts); k++) {
        const Safetensors *file = o->files[parts[k].file];
        num_parts[parts[k].file]++;
        for (int i = 0; file && i < params->count; i++) {
            const Param *p = &params->params[i];
            char *problem = check_tensor(file, part_name(&parts[k], p->name).text, p);
            if (problem) return in_file(file_names[parts[k].file], problem);
        }
    }
    for (int f = 0; f < NUM_FILES; f++) {
        int expected = num_parts[f] * params->count;
        if (!o->files[f] || o->files[f]->count == expected) continue;
        return format_string("%s: %d tensors, the model has %d", file_names[f], o->files[f]->count,
                             expected);
    }
    return NULL;
}

/* The master goes up with its padding, and gives the model's own value on the way. */
static void load_master(const Safetensors *file, ParamTable *params, Device *d, const Param *p) {
    const SafetensorsEntry *e = safetensors_find(file, p->name);
    float *padded = (float *)xmalloc((size_t)(p->padded_rows * p->cols) * sizeof(float));
    memcpy(padded, e->data, e->bytes);
    param_table_upload(params, d, p, padded);
    free(padded);
}

static void load_moment(const Safetensors *file, Device *d, const Part *part, const Param *p) {
    const SafetensorsEntry *e = safetensors_find(file, part_name(part, p->name).text);
    Tensor t = part_tensor(part, p);
    d->upload(d, t.data, e->data, e->bytes);
    d->zero(d, (char *)t.data + e->bytes, tensor_bytes(t) - e->bytes);
}

/* Of another recipe there may be nothing, and what was zero stays so. */
static void load_kept(const Opened *o, const CheckpointState *state, Device *d) {
    const char *missing = NULL;
    for (int i = 0; i < state->num_kept; i++) {
        const NamedTensor *n = &state->kept[i];
        const Safetensors *file = o->files[FILE_KEPT];
        const SafetensorsEntry *e = file ? safetensors_find(file, n->name) : NULL;
        if (e) d->upload(d, n->tensor.data, e->data, e->bytes);
        else missing = n->name;
    }
    if (missing)
        log_warn("the checkpoint has no %s: what the recipe keeps of it starts anew", missing);
    d->synchronize(d);   // the mapped file must outlive the uploads
}

static void load_tensors(const Opened *o, ParamTable *params, Device *d) {
    for (int i = 0; i < params->count; i++) {
        const Param *p = &params->params[i];
        load_master(o->files[FILE_MODEL], params, d, p);
        for (int k = 0; o->files[FILE_OPTIMIZER] && k < ARRAY_LEN(parts); k++) {
            if (parts[k].file != FILE_OPTIMIZER) continue;
            load_moment(o->files[FILE_OPTIMIZER], d, &parts[k], p);
        }
    }
    d->synchronize(d);   // the mapped files must outlive the uploads
}

/* Never starts over or falls back by itself: says what the user can do. */
static void die_unusable(const char *path, const char *problem) NORETURN;
static void die_unusable(const char *path, const char *problem) {
    char *self = trimmed(path), *older = NULL;
    char *slash = strrchr(self, '/');
    int64_t step = step_of_name(slash ? slash + 1 : self);
    char *dir = slash ? format_string("%.*s", (int)(slash - self), self) : xstrdup(".");
    StepList list = list_steps(dir);
    for (int i = 0; i < list.count && list.steps[i] < step; i++) {
        free(older);
        older = step_path(dir, "", list.steps[i]);
    }
    if (older) {
        die(EXIT_DATA,
            "checkpoint '%s' cannot be used: %s. Nothing was loaded. There is an older "
            "one: ckpt.resume=%s",
            path, problem, older);
    }
    die(EXIT_DATA,
        "checkpoint '%s' cannot be used: %s. Nothing was loaded, and there is no older "
        "one; ckpt.resume=never starts over",
        path, problem);
}

/* All of a checkpoint but its algorithms, which weights do not need; or the end. */
static void open_matching(Opened *o, const char *path, ParamTable *params,
                          const CheckpointState *state, int with_optimizer) {
    char *problem = open_checkpoint(path, with_optimizer ? NUM_FILES : 1, state->num_kept > 0, o);
    if (!problem) problem = in_file("state.json", state_check(o->state, state));
    if (!problem) problem = check_tensors(o, params);
    if (!problem) problem = check_kept(o, state);
    if (problem) die_unusable(path, problem);
}

void checkpoint_load(const char *path, ParamTable *params, Device *device, CheckpointState *state,
                     int with_optimizer) {
    Opened o = {0};
    open_matching(&o, path, params, state, with_optimizer);
    load_tensors(&o, params, device);
    load_kept(&o, state, device);
    state_restore(o.state, state);
    close_checkpoint(&o);
}

void checkpoint_check(const char *path, ParamTable *params, CheckpointState *state,
                      int with_optimizer) {
    Opened o = {.sizes_only = 1};
    open_matching(&o, path, params, state, with_optimizer);
    state_restore(o.state, state);
    close_checkpoint(&o);
}

char *checkpoint_config(const char *path) {
    Opened o = {0};
    CheckpointState state = {0};
    char *problem = open_state(path, &o);
    if (!problem) problem = in_file("state.json", state_check(o.state, &state));
    if (problem) die_unusable(path, problem);
    state_restore(o.state, &state);
    close_checkpoint(&o);
    return state.config;
}

/* The text of the algorithms that state.json lists, or NULL and what is wrong with it. */
static char *read_algorithms(const char *path, const Opened *o, char **problem) {
    char *text = NULL, *file_path = format_string("%s/%s", path, ALGORITHMS);
    *problem = check_file(path, ALGORITHMS, o);
    if (!*problem) text = try_read_text_file(file_path, MAX_ALGORITHMS, NULL, problem);
    free(file_path);
    return text;
}

char *checkpoint_gemm_algorithms(const char *path) {
    Opened o = {0};
    char *text = NULL, *problem = open_state(path, &o);
    if (problem) die_unusable(path, problem);
    if (state_has_file(o.state, ALGORITHMS)) text = read_algorithms(path, &o, &problem);
    if (problem) {
        log_warn(
            "checkpoint '%s': %s: %s. It is used without this file: weights do not need it, "
            "but on a GPU other GEMM algorithms may be chosen, and then losses differ in their "
            "last digits from those of an uninterrupted run",
            path, ALGORITHMS, problem);
    }
    free(problem);
    close_checkpoint(&o);
    return text;
}

// --- verify ---

/* One line of the table; frees the problem and counts it. */
static int report(const char *name, const char *detail, char *problem) {
    log_line("  %-40s %-16s %s%s", name, detail, problem ? "WRONG: " : "OK",
             problem ? problem : "");
    int faults = problem != NULL;
    free(problem);
    return faults;
}

static char *check_finite(const SafetensorsEntry *e) {
    if (e->dtype != DT_F32) return format_string("%s, expected f32", dtype_info[e->dtype].name);
    int64_t bad = 0;
    for (size_t at = 0; at < e->bytes; at += sizeof(float)) {
        float v;
        memcpy(&v, (const char *)e->data + at, sizeof(v));
        bad += !isfinite(v);
    }
    return bad ? format_string("%lld values are not finite", (long long)bad) : NULL;
}

static int verify_tensors(const Safetensors *file) {
    int faults = 0;
    for (int i = 0; i < file->count; i++) {
        const SafetensorsEntry *e = &file->entries[i];
        char shape[64];
        snprintf(shape, sizeof(shape), "(%lld,%lld)", (long long)e->rows, (long long)e->cols);
        faults += report(e->name, shape, check_finite(e));
    }
    return faults;
}

/* Both moments of each parameter of the model file are there in its shape. */
static int verify_moments(const Opened *o) {
    int faults = 0;
    const Safetensors *model = o->files[FILE_MODEL];
    for (int i = 0; i < model->count; i++) {
        const SafetensorsEntry *e = &model->entries[i];
        Param shape = {.rows = e->rows, .cols = e->cols};
        for (int k = 0; k < ARRAY_LEN(parts); k++) {
            if (parts[k].file != FILE_OPTIMIZER) continue;
            char *name = format_string("%s%s", parts[k].prefix, e->name);
            char *problem = check_tensor(o->files[FILE_OPTIMIZER], name, &shape);
            if (problem) faults += report(file_names[FILE_OPTIMIZER], "", problem);
            free(name);
        }
    }
    return faults;
}

static int verify_state(const char *path, Opened *o) {
    CheckpointState state = {0};
    char detail[64] = "";
    char *problem = open_state(path, o);
    if (!problem) problem = state_check(o->state, &state);
    if (!problem) {
        state_restore(o->state, &state);
        snprintf(detail, sizeof(detail), "step %lld", (long long)state.step);
        free(state.config);
    }
    return report("state.json", detail, problem);
}

int checkpoint_verify(const char *path) {
    Opened o = {0};
    log_line("checkpoint %s", path);
    int faults = verify_state(path, &o);
    for (int i = 0; i < ALL_FILES && o.state; i++) {
        char detail[64] = "";
        if (i == FILE_KEPT && !state_has_file(o.state, file_names[i])) continue;
        char *problem = open_tensors(path, (CheckpointFile)i, &o);
        if (o.files[i]) {
            snprintf(detail, sizeof(detail), "%d tensors", o.files[i]->count);
        }
        faults += report(file_names[i], detail, problem);
        if (o.files[i]) faults += verify_tensors(o.files[i]);
    }
    if (o.files[FILE_MODEL] && o.files[FILE_OPTIMIZER]) faults += verify_moments(&o);
    if (o.state && state_has_file(o.state, ALGORITHMS)) {
        char *problem;
        free(read_algorithms(path, &o, &problem));
        faults += report(ALGORITHMS, "", problem);
    }
    close_checkpoint(&o);
    if (faults) log_line("%d faults", faults);
    else log_line("OK");
    return faults;
}
