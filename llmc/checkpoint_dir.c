/*
checkpoint_dir -- the directory of a run's checkpoints: what is in it, how one gets its name, which
go. What is in a checkpoint is not known here. See checkpoint.h.
*/
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_parts.h"
#include "outfile.h"

static const char WHAT[] = CHECKPOINT_KEY;
static const char TEMPORARY[] = CHECKPOINT_TEMPORARY, SET_ASIDE[] = ".old_";

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

char *checkpoint_step_path(const char *dir, const char *prefix, int64_t step) {
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
static char *recover_entry(const char *dir, const char *name) {
    char *path = format_string("%s/%s", dir, name), *problem = NULL;
    if (strncmp(name, TEMPORARY, strlen(TEMPORARY)) == 0) {
        problem = outfile_try_remove_tree(path, WHAT);
    } else if (strncmp(name, SET_ASIDE, strlen(SET_ASIDE)) == 0) {
        char *final = format_string("%s/%s", dir, name + strlen(SET_ASIDE));
        problem = file_exists(final) ? outfile_try_remove_tree(path, WHAT)
                                     : outfile_try_rename(path, final, WHAT);
        free(final);
    }
    free(path);
    return problem;
}

char *checkpoint_try_recover(const char *dir) {
    DIR *d = opendir(dir);
    if (!d && (errno == ENOENT || errno == ENOTDIR)) return NULL;
    if (!d) return format_string("%s: cannot open '%s': %s", WHAT, dir, strerror(errno));
    struct dirent *entry;
    char *problem = NULL;
    while (!problem && (entry = readdir(d)) != NULL) problem = recover_entry(dir, entry->d_name);
    closedir(d);
    return problem;
}

void checkpoint_recover(const char *dir) {
    char *problem = checkpoint_try_recover(dir);
    if (problem) die(EXIT_DATA, "%s", problem);
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
    char *found = list.count > 0 ? checkpoint_step_path(dir, "", list.steps[list.count - 1]) : NULL;
    free(list.steps);
    free(dir);
    return found;
}

/* Under a name that is no checkpoint's first: half removed, it must not pass for one. */
static char *remove_checkpoint(const char *dir, int64_t step) {
    char *path = checkpoint_step_path(dir, "", step);
    char *doomed = checkpoint_step_path(dir, TEMPORARY, step);
    char *problem = outfile_try_rename(path, doomed, WHAT);
    if (!problem) problem = outfile_try_remove_tree(doomed, WHAT);
    free(path);
    free(doomed);
    return problem;
}

/* Later steps than the one just saved are of a run that was left for an older checkpoint: they take
   no place among the newest, and to remove them is for the user. */
void checkpoint_apply_keep(const CheckpointPolicy *policy, int64_t saved_step) {
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
        char *problem = is_major ? NULL : remove_checkpoint(policy->dir, list.steps[i]);
        if (problem) log_warn("an old checkpoint stays: %s", problem);
        free(problem);
    }
    free(list.steps);
}

/* Between the two renames there is no step_* of this step; recovery puts the old one back. */
char *checkpoint_commit(const char *dir, const char *temporary, int64_t step) {
    char *final = checkpoint_step_path(dir, "", step);
    char *aside = checkpoint_step_path(dir, SET_ASIDE, step);
    int replaces = file_exists(final);
    char *problem = replaces ? outfile_try_rename(final, aside, WHAT) : NULL;
    if (!problem) {
        problem = outfile_try_rename(temporary, final, WHAT);
        if (problem && replaces) free(outfile_try_rename(aside, final, WHAT));
    }
    if (!problem) problem = outfile_try_sync_directory(dir, WHAT);
    char *left = !problem && replaces ? outfile_try_remove_tree(aside, WHAT) : NULL;
    if (left) log_warn("what was replaced stays until the next save or start: %s", left);
    free(left);
    free(final);
    free(aside);
    return problem;
}

/* Never starts over or falls back by itself: says what the user can do. */
void checkpoint_die_unusable(const char *path, const char *problem) {
    char *self = trimmed(path), *older = NULL;
    char *slash = strrchr(self, '/');
    int64_t step = step_of_name(slash ? slash + 1 : self);
    char *dir = slash ? format_string("%.*s", (int)(slash - self), self) : xstrdup(".");
    StepList list = list_steps(dir);
    for (int i = 0; i < list.count && list.steps[i] < step; i++) {
        free(older);
        older = checkpoint_step_path(dir, "", list.steps[i]);
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
