/* checkpoint_verify -- the table of `ckpt verify`: every file, every tensor; see checkpoint.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_parts.h"

static char *faulty_lines;   // of the table so far, for its end

/* One line of the table; frees the problem and counts it. */
static int report(const char *name, const char *detail, char *problem) {
    char *line = format_string("  %-40s %-24s %s%s", name, detail, problem ? "WRONG: " : "OK",
                               problem ? problem : "");
    log_line("%s", line);
    int faults = problem != NULL;
    if (faults) {
        char *longer = format_string("%s\n%s", faulty_lines ? faulty_lines : "", line);
        free(faulty_lines);
        faulty_lines = longer;
    }
    free(line);
    free(problem);
    return faults;
}

/* A problem whose line begins with the file's name needs it no more. */
static int report_file(const char *name, const char *detail, char *problem) {
    size_t length = strlen(name);
    char *rest = NULL;
    if (problem && strncmp(problem, name, length) == 0 && strncmp(problem + length, ": ", 2) == 0)
        rest = xstrdup(problem + length + 2);
    if (rest) free(problem);
    return report(name, detail, rest ? rest : problem);
}

static char *check_finite(const SetTensor *t) {
    int64_t bad = 0;
    for (int i = 0; i < t->num_parts; i++) {
        int64_t count = t->parts[i].end - t->parts[i].begin;
        for (int64_t k = 0; k < count; k++) {
            float v;
            memcpy(&v, t->parts[i].data + (size_t)k * sizeof(v), sizeof(v));
            bad += !isfinite(v);
        }
    }
    return bad ? format_string("%lld values are not finite", (long long)bad) : NULL;
}

/* Where a tensor is: nothing to say of one file, "in 3 parts" of a cut one. */
static int verify_tensors(const TensorSet *s) {
    int faults = 0;
    for (int i = 0; i < s->count; i++) {
        const SetTensor *t = &s->tensors[i];
        char detail[96], where[32] = "";
        if (t->num_parts > 1) snprintf(where, sizeof(where), " in %d parts", t->num_parts);
        snprintf(detail, sizeof(detail), "(%lld,%lld)%s", (long long)t->rows, (long long)t->cols,
                 where);
        faults += report(t->name, detail, check_finite(t));
    }
    return faults;
}

/* Files first, each with its own fault; tensors only where all files are whole. */
static int verify_set(TensorSet *s, SetId id, const char *path, const StateFile *state) {
    char *index = checkpoint_index_name(id), *problem = set_find(s, id, path, state);
    char detail[64] = "";
    int faults = 0;
    if (s->has_index) {
        snprintf(detail, sizeof(detail), "%d tensors", s->count);
        faults += report_file(index, detail, problem);
    }
    free(index);
    for (int i = 0, is_known = !faults; i < s->num_files && is_known; i++) {
        int num_tensors = 0;
        problem = set_check_file(s, i, path, state, 1);
        if (!problem) problem = set_open_file(s, i, path);
        if (s->open[i]) num_tensors = s->open[i]->count;
        snprintf(detail, sizeof(detail), "%d tensors", num_tensors);
        faults += report_file(s->files[i], problem ? "" : detail, problem);
    }
    if (faults) return faults;
    problem = set_match(s);
    if (problem) return report(s->has_index ? "tensors and files" : s->files[0], "", problem);
    return verify_tensors(s);
}

/* Both moments of each parameter of the model's set are there in its shape. */
static int verify_moments(const TensorSet *model, const TensorSet *optimizer) {
    int faults = 0;
    for (int i = 0; i < model->count; i++) {
        const SetTensor *t = &model->tensors[i];
        for (int k = 0; k < NUM_ARRAYS; k++) {
            if (checkpoint_arrays[k].set != SET_OPTIMIZER) continue;
            TensorName name = checkpoint_tensor_name(&checkpoint_arrays[k], t->name);
            char *problem = set_expect(optimizer, name.text, t->rows, t->cols);
            if (problem) faults += report("moments", "", problem);
        }
    }
    return faults;
}

static int verify_state(const char *path, StateFile **file) {
    CheckpointState state = {0};
    char detail[64] = "";
    char *problem = checkpoint_open_state(path, file);
    if (!problem) problem = problem_in_file("state.json", state_check(*file, &state));
    if (!problem) {
        state_restore(*file, &state);
        snprintf(detail, sizeof(detail), "step %lld", (long long)state.step);
        free(state.config);
    }
    return report_file("state.json", detail, problem);
}

static int has_kept(const StateFile *state) {
    char *name = checkpoint_file_name(SET_KEPT, 0, 1);
    int result = state_has_file(state, name);
    free(name);
    return result;
}

static int verify_files(const char *path, const StateFile *state) {
    TensorSet sets[ALL_SETS] = {0};
    int faults = 0;
    for (int id = 0; id < ALL_SETS; id++) {
        if (id == SET_KEPT && !has_kept(state)) continue;
        faults += verify_set(&sets[id], (SetId)id, path, state);
    }
    if (sets[SET_MODEL].is_whole && sets[SET_OPTIMIZER].is_whole)
        faults += verify_moments(&sets[SET_MODEL], &sets[SET_OPTIMIZER]);
    for (int id = 0; id < ALL_SETS; id++) set_close(&sets[id]);
    if (!state_has_file(state, CHECKPOINT_ALGORITHMS)) return faults;
    char *problem;
    free(checkpoint_read_algorithms(path, state, &problem));
    return faults + report(CHECKPOINT_ALGORITHMS, "", problem);
}

int checkpoint_verify(const char *path) {
    StateFile *state = NULL;
    log_line("checkpoint %s", path);
    int faults = verify_state(path, &state);
    if (state) faults += verify_files(path, state);
    if (state) state_close(state);
    if (faults)
        log_line("%d fault%s in %s:%s", faults, faults > 1 ? "s" : "", path, faulty_lines);
    else log_line("OK");
    free(faulty_lines);
    faulty_lines = NULL;
    return faults;
}
