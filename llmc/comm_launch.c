/* comm_launch -- the variables that launchers set; see comm_launch.h. */
#include "comm_launch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

const char *const rendezvous_names[NUM_RENDEZVOUS] = {"auto", "mpi", "file"};

enum { MAX_RANKS = 1 << 16 };

/* Names of variables, NULL where a launcher has none. */
typedef struct {
    const char *by;
    int uses_mpi;
    const char *rank, *size, *local_rank;
    const char *job[2];   // together they name one start of one job
    int size_alone;       // the size may be set without a rank: in a shell that started nothing yet
    const char *hint;
} Launcher;

/* The first whose variables are there. mpirun inside a Slurm job comes before Slurm. */
static const Launcher launchers[] = {
    {"mpirun",
     1,
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     {"PMIX_NAMESPACE", NULL},
     0,
     ""},
    {"mpirun or srun (PMI)",
     1,
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     {"PMI_JOBID", NULL},
     1,
     ""},
    {"mpirun or srun (PMIx)", 1, "PMIX_RANK", NULL, NULL, {"PMIX_NAMESPACE", NULL}, 0, ""},
    {"RANK and WORLD_SIZE",
     0,
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"},
     0,
     ""},
    {"Slurm",
     0,
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     {"SLURM_JOB_ID", "SLURM_STEP_ID"},
     1,
     "; in a batch script srun starts one process a task, without it there is only one"},
};

static const char *value_of(const char *variable) { return variable ? getenv(variable) : NULL; }

static int number_of(const char *variable, const char *by) {
    const char *text = getenv(variable);
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < 0 || value > MAX_RANKS) {
        die(EXIT_CONFIG, "%s is '%s' (%s); legal: an integer from 0 to %d", variable, text, by,
            MAX_RANKS);
    }
    return (int)value;
}

static void refuse_half(const char *set, const char *missing) {
    die(EXIT_CONFIG,
        "%s is %s, but %s is not set: which of how many ranks is this? Set both, or neither for "
        "one rank",
        set, getenv(set), missing);
}

/* 1 where this launcher's variables are there; dies where only some of them are. */
static int has_started(const Launcher *l) {
    int rank = value_of(l->rank) != NULL, size = value_of(l->size) != NULL;
    if (rank && !size && l->size) refuse_half(l->rank, l->size);
    if (size && !rank && !l->size_alone) refuse_half(l->size, l->rank);
    if (!rank && !size && !l->size_alone && value_of(l->local_rank))
        refuse_half(l->local_rank, l->rank);
    return rank;
}

static void name_job(const Launcher *l, Launch *launch) {
    const char *job = value_of(l->job[0]), *start = value_of(l->job[1]);
    snprintf(launch->job, sizeof(launch->job), "%s%s%s", job ? job : "", job && start ? "." : "",
             job && start ? start : "");
}

static Launch launch_of(const Launcher *l, Rendezvous rendezvous) {
    Launch launch = {.by = l->by, .uses_mpi = l->uses_mpi, .local_rank = -1, .hint = l->hint};
    if (rendezvous == RENDEZVOUS_FILE) launch.uses_mpi = 0;
    if (rendezvous == RENDEZVOUS_MPI) launch.uses_mpi = 1;
    launch.rank = number_of(l->rank, l->by);
    if (l->size) launch.size = number_of(l->size, l->by);
    if (value_of(l->local_rank)) launch.local_rank = number_of(l->local_rank, l->by);
    if (l->size && launch.rank >= launch.size) {
        die(EXIT_CONFIG, "%s is %d and %s is %d; ranks count from 0 to %s - 1", l->rank,
            launch.rank, l->size, launch.size, l->size);
    }
    if (!l->size && !launch.uses_mpi) {
        die(EXIT_CONFIG,
            "parallel.rendezvous is file, but %s does not say how many ranks there are; set RANK "
            "and WORLD_SIZE",
            l->by);
    }
    name_job(l, &launch);
    return launch;
}

Launch launch_find(Rendezvous rendezvous) {
    static const Launch nobody = {.uses_mpi = 0, .rank = 0, .size = 1, .local_rank = 0, .hint = ""};
    for (int i = 0; i < ARRAY_LEN(launchers); i++)
        if (has_started(&launchers[i])) return launch_of(&launchers[i], rendezvous);
    return nobody;
}
