/*
test_parallel_checkpoint -- checkpoints of real ranks: what they save together, at once and in the
background, at each ZeRO level, they load again, and so do one, two and three ranks (threads of rank
0); a rank that cannot write keeps none from going on. Runs alone and under mpirun -np 1, 2, 4; rank
0 reports for all.
*/
#include "checkpoint_ranks.h"

static Comm *comm;

/* The same scratch directory on all ranks. */
static const char *shared(const char *name) {
    static char paths[4][512];
    static int turn;
    char *path = paths[turn++ % 4];
    if (comm->rank == 0) snprintf(path, sizeof(paths[0]), "%s", test_scratch(name));
    comm->broadcast(comm, path, DT_U8, sizeof(paths[0]));
    return path;
}

static double sum_over_ranks(double value) {
    float sum = (float)value;
    comm->all_reduce(comm, &sum, 1, COMM_SUM);
    return sum;
}

static void save_and_load(int level, int background) {
    char name[32];
    snprintf(name, sizeof(name), "level%d_%d", level, background);
    TeamCase k = case_in(shared(name));
    k.level = level;
    k.background = background;
    team_save(comm, &k);
    EXPECT(!k.problem[comm->rank][0], "%s", k.problem[comm->rank]);
    char *path = checkpoint_find(k.dir);
    TeamCase back = case_in(path);
    back.level = (level + 1) % NUM_ZERO_LEVELS;
    team_load(comm, &back);
    EXPECT_NEAR(sum_over_ranks((double)back.wrong), 0, 0, "level %d, by level %d", level,
                back.level);
    if (comm->rank == 0) {
        EXPECT_EQ_I64(num_faults(path), 0, "level %d", level);
        for (int ranks = 1; ranks <= 3; ranks++)
            EXPECT_EQ_I64(wrong_for(&k, ranks, level), 0, "level %d, %d ranks", level, ranks);
    }
    comm->barrier(comm);
    free(path);
}

CASE(what_ranks_save_any_number_loads) {
    for (int level = 0; level < NUM_ZERO_LEVELS; level++) {
        for (int background = 0; background < 2; background++) save_and_load(level, background);
    }
}

CASE(one_full_disk_is_known_to_all) {
    TeamCase k = case_in(shared("full"));
    k.level = 1;
    team_save(comm, &k);
    for (int background = 0; background < 2; background++) {
        TeamCase next = k;
        next.step = 8;
        next.background = background;
        struct rlimit small = {600, RLIM_INFINITY}, large = {RLIM_INFINITY, RLIM_INFINITY};
        if (comm->rank == comm->size - 1) setrlimit(RLIMIT_FSIZE, &small);
        team_save(comm, &next);
        setrlimit(RLIMIT_FSIZE, &large);
        const char *problem = next.problem[comm->rank];
        char who[64] = "ckpt.dir: cannot write '";
        if (comm->size > 1) snprintf(who, sizeof(who), "rank %d: ckpt.dir: cannot", comm->size - 1);
        int right = strstr(problem, who) == problem && strstr(problem, "File too large");
        EXPECT_NEAR(sum_over_ranks(right), comm->size, 0, "rank %d: %s", comm->rank, problem);
        if (comm->rank == 0) EXPECT_EQ_I64(wrong_for(&k, 1, 0), 0);
        comm->barrier(comm);
    }
}

int main(int argc, char **argv) {
    comm = comm_host_open(NULL);
    if (comm->rank != 0 && !freopen("/dev/null", "w", stdout)) return 1;
    int failed = test_run(argc, argv);
    comm->close(comm);
    return failed;
}
