/* resume -- the checkpoint that a run goes on from; see resume.h. */
#include "resume.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "common.h"

char *resume_at(const char *path) {
    char *found = checkpoint_find(path), *below = format_string("%s/ckpt", path);
    if (!found) found = checkpoint_find(below);
    free(below);
    return found;
}

char *resume_find(const Config *c, int training) {
    int never = strcmp(c->ckpt.resume, "never") == 0;
    if (never && training) return NULL;
    if (never || strcmp(c->ckpt.resume, "auto") == 0) return checkpoint_find(c->ckpt.dir);
    char *path = resume_at(c->ckpt.resume);
    if (!path)
        die(EXIT_DATA, "ckpt.resume: there is no checkpoint at %s; legal: auto, never, or a path",
            c->ckpt.resume);
    return path;
}

/* What makes a checkpoint one of this run, and what may change on the way but changes the curves.
   Of the other keys none matters to a resumed run. What multiplies the codes is no part of a run's
   identity: the codes are the same and only the order of sums differs, and a run with
   precision.backend=auto may itself come to a GPU that multiplies them in another way. Nor is who
   rounds stochastically: the draws differ, not what they are of. Of precision.schedule the entries
   are part of it that have begun: run_phases_resume. */
#define IDENTITY_KEYS                                                                              \
    "model precision.recipe precision.keep_bf16 precision.rules precision.smooth_swiglu "          \
    "precision.osci_reset precision.out_control batch.seq_len data.train data.shuffle seed"
#define CURVE_KEYS                                                                                 \
    "precision.schedule precision.backend precision.gemm precision.stochastic "                    \
    "memory.lmhead_chunks memory.deterministic batch.micro batch.total_tokens train optim sched "  \
    "guard"
/* What operands are quantised, and how. */
#define OPERAND_KEYS "precision.recipe precision.keep_bf16 precision.rules precision.schedule"

int resume_compare(const Config *c, const char *path, int training) {
    int named = strcmp(c->ckpt.resume, "auto") != 0 && strcmp(c->ckpt.resume, "never") != 0;
    char *saved = checkpoint_config(path);
    char *other = config_changes(c, saved, training ? IDENTITY_KEYS : "model");
    if (other[0] && !named) {
        die(EXIT_CONFIG,
            "%s is a checkpoint of another run; its value and the present one are\n%sSet another "
            "log.dir for a run of its own, or ckpt.resume=%s to go on from it with the change",
            path, other, path);
    }
    free(other);
    char *lines = config_changes(c, saved, training ? IDENTITY_KEYS " " CURVE_KEYS : "model");
    char *rest = lines;
    for (char *line = strsep(&rest, "\n"); line && line[0]; line = strsep(&rest, "\n")) {
        const char *note = strncmp(line, "seed:", 5) == 0 ? "; new data order, new draws" : "";
        log_line("changed since the checkpoint: %s%s", line, note);
    }
    free(lines);
    char *operands = config_changes(c, saved, OPERAND_KEYS);
    int others = operands[0] != '\0';
    free(operands);
    free(saved);
    return others;
}
