/*
test_program_sockets -- the program as ranks that were only told their number, as a scheduler or a
loop in a shell starts them: they train as under mpirun, say what is wrong when they do not come
together, leave nothing behind, and end together when one of them dies or stands still. Also between
network namespaces, which are to them what several nodes are.
*/
#include "program.h"

enum {
    MAX_MEMBERS = 4,
    MEMBER_TEXT = 1 << 15,
    END_SECONDS = 60,   // in which all ranks end after one
    LOOK_US = 20000
};
#define BASE     "base.json eval.every=2 eval.micro=2 precision.keep_bf16.last=0 "
#define FOR_EVER "base.json train.steps=100000000 ckpt.every=0 "

/* A process of a job. */
typedef struct {
    Launch launch;
    const char *words;
    int slot;   // of its output files
    pid_t pid;
    int exit_code;
    char out[MEMBER_TEXT], err[MEMBER_TEXT];
} Member;

static Member job[MAX_MEMBERS];

static const char *new_dir(const char *name) {
    static char dirs[4][512];
    static int turn;
    char *dir = dirs[turn++ % 4];
    snprintf(dir, sizeof(dirs[0]), "%s", make_dir(name));
    put_base_run(dir);
    return dir;
}

/* `environment` beside the rank's own, "RANK=1 WORLD_SIZE=2", which it may be. */
static void start_member(Member *m, const char *dir, const char *environment, const char *words) {
    static int slots;
    m->launch.dir = dir;
    m->launch.environment = environment;
    m->words = words;
    m->slot = slots++;
    m->out[0] = m->err[0] = '\0';
    program_path();
    fflush(NULL);
    m->pid = fork();
    or_exit(m->pid >= 0, "fork");
    if (m->pid > 0) return;
    int flags = O_WRONLY | O_CREAT | O_TRUNC;
    dup2(open(scratch(text("out_%d", m->slot)), flags, 0666), STDOUT_FILENO);
    dup2(open(scratch(text("err_%d", m->slot)), flags, 0666), STDERR_FILENO);
    become_program(&m->launch, words);
}

static void start_rank(Member *m, const char *dir, int rank, int size, const char *words) {
    start_member(m, dir, text("RANK=%d WORLD_SIZE=%d", rank, size), words);
}

static void read_output(Member *m) {
    get_file(scratch(text("out_%d", m->slot)), m->out, sizeof(m->out));
    get_file(scratch(text("err_%d", m->slot)), m->err, sizeof(m->err));
}

static int end_member(Member *m) {
    int status = 0;
    or_exit(waitpid(m->pid, &status, 0) == m->pid, "waitpid");
    read_output(m);
    m->exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return m->exit_code;
}

/* Waits until the member has printed `wanted`; 0 where it does not within END_SECONDS. */
static int until_says(Member *m, const char *wanted) {
    for (double end = now_ms() + END_SECONDS * 1000.0; now_ms() < end; usleep(LOOK_US)) {
        read_output(m);
        if (strstr(m->out, wanted) || strstr(m->err, wanted)) return 1;
    }
    return 0;
}

static int until_there(const char *path) {
    for (double end = now_ms() + END_SECONDS * 1000.0; now_ms() < end; usleep(LOOK_US))
        if (access(path, F_OK) == 0) return 1;
    return 0;
}

static void expect_end(Member *m, int exit_code, const char *says) {
    EXPECT_EQ_I64(end_member(m), exit_code, "%s: %s", m->launch.environment, m->err);
    EXPECT(strstr(m->err, says), "%s, \"%s\": %s", m->launch.environment, says, m->err);
}

/* All ranks of a job, to their end. */
static void train(const char *dir, int ranks, const char *words) {
    memset(job, 0, sizeof(job));
    for (int r = 0; r < ranks; r++) start_rank(&job[r], dir, r, ranks, words);
    for (int r = 0; r < ranks; r++) expect_end(&job[r], EXIT_DONE, "");
    const char *line = text("ranks %d (sockets)\n", ranks);
    EXPECT(strstr(job[0].out, line), "%s", job[0].out);
}

// --- the same bits ---

CASE(sockets_train_as_mpirun_does) {
    static const struct {
        int ranks;
        const char *words;
    } rows[] = {{2, "precision.recipe=nvfp4"}, {4, "precision.recipe=bf16 batch.total_tokens=256"}};
    const char *dir = new_dir("as_mpirun");
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        int ranks = rows[i].ranks;
        train(dir, ranks, text(BASE "log.dir=sockets_%d %s", ranks, rows[i].words));
        if (!have_mpirun()) continue;
        Launch l = {.dir = dir, .ranks = ranks};
        runs(&l, text(BASE "log.dir=mpi_%d %s", ranks, rows[i].words));
        expect_same_record(text("%s/sockets_%d", dir, ranks), text("%s/mpi_%d", dir, ranks));
    }
    if (!have_mpirun()) printf("  no mpirun here: compared with nothing\n");
    EXPECT_EQ_I64(count_entries(dir, "rendezvous"), 0);
    EXPECT_EQ_I64(count_entries(text("%s/sockets_2", dir), "rendezvous"), 0);
}

CASE(a_dry_run_leaves_nothing) {
    const char *dir = new_dir("dry");
    train(dir, 2, "--dry-run base.json log.dir=made/for/it");
    EXPECT_EQ_I64(count_entries(text("%s/made", dir), ""), -1);
}

// --- coming together ---

CASE(who_has_not_come_is_named) {
    const char *most = new_dir("without_1"), *alone = new_dir("without_0");
    const char *words = "base.json parallel.timeout_s=5";
    memset(job, 0, sizeof(job));
    start_rank(&job[0], most, 0, 3, words);
    start_rank(&job[1], most, 2, 3, words);
    start_rank(&job[2], alone, 1, 2, words);
    static const char missing[] =
        " of 3: of 3 ranks (RANK and WORLD_SIZE) these did not come to rank 0 within 5 s "
        "(parallel.timeout_s): 1. ";
    expect_end(&job[0], EXIT_DEVICE, text("error: rank 0%s", missing));
    expect_end(&job[1], EXIT_DEVICE, text("error: rank 2%s", missing));
    expect_end(&job[2], EXIT_DEVICE,
               "error: rank 1 of 2: rank 0 of 2 (RANK and WORLD_SIZE) did not come within 5 s");
    EXPECT_EQ_I64(count_entries(text("%s/run", most), ""), -1);
}

CASE(a_contradictory_environment_is_refused) {
    static const struct {
        const char *environment;
        int exit_code;
        const char *says;
    } rows[] = {
        {"RANK=2 WORLD_SIZE=2", EXIT_CONFIG, "RANK is 2 and WORLD_SIZE is 2; ranks count from 0"},
        {"RANK=1", EXIT_CONFIG, "RANK is 1, but WORLD_SIZE is not set"},
        {"WORLD_SIZE=2", EXIT_CONFIG, "WORLD_SIZE is 2, but RANK is not set"},
        {"LOCAL_RANK=0", EXIT_CONFIG, "LOCAL_RANK is 0, but RANK is not set"},
        {"RANK=one WORLD_SIZE=2", EXIT_CONFIG, "RANK is 'one'"},
        {"RANK=0 WORLD_SIZE=-2", EXIT_CONFIG, "WORLD_SIZE is '-2'"},
        {"OMPI_COMM_WORLD_SIZE=4", EXIT_CONFIG, "but OMPI_COMM_WORLD_RANK is not set"},
        {"SLURM_PROCID=3 SLURM_NTASKS=2", EXIT_CONFIG, "SLURM_PROCID is 3 and SLURM_NTASKS is 2"},
    };
    const char *dir = new_dir("contradictory");
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        Launch l = {.dir = dir, .environment = rows[i].environment};
        EXPECT_EQ_I64(run_as(&l, "base.json"), rows[i].exit_code, "%s", rows[i].environment);
        EXPECT(strstr(ran.err, rows[i].says), "%s: %s", rows[i].environment, ran.err);
    }
}

/* What mpirun sets, without the mpirun of this program's MPI. */
CASE(a_foreign_mpi_is_named) {
    Launch l = {.dir = new_dir("foreign"),
                .environment = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4"};
    int exit_code = run_as(&l, "base.json");
    int has_mpi = strstr(ran.err, "has no MPI") == NULL;
    EXPECT_EQ_I64(exit_code, has_mpi ? EXIT_DEVICE : EXIT_CONFIG, "%s", ran.err);
    EXPECT(strstr(ran.err, "error: rank 1 of 4: "), "%s", ran.err);
    EXPECT(!has_mpi || strstr(ran.err, "mpirun started 4 ranks, but this program's MPI (Open MPI"),
           "%s", ran.err);
    EXPECT(!has_mpi || strstr(ran.err, "sees 1: what started them is of another MPI"), "%s",
           ran.err);
}

CASE(two_processes_of_one_rank_end_all) {
    static const int ranks[][3] = {{0, 1, 1}, {0, 1, 0}};
    for (int i = 0; i < ARRAY_LEN(ranks); i++) {
        const char *dir = new_dir(text("twice_%d", ranks[i][2]));
        memset(job, 0, sizeof(job));
        for (int j = 0; j < 3; j++) start_rank(&job[j], dir, ranks[i][j], 3, "base.json");
        for (int j = 0; j < 3; j++) {
            // The twins of rank 0 name each other; rank 1 hears it of the one that it came to.
            int hears = ranks[i][2] == 0 && j == 1;
            const char *says = text("two processes are rank %d: pid ", ranks[i][2]);
            expect_end(&job[j], EXIT_CONFIG, hears ? "rank 0" : says);
            EXPECT(strstr(job[j].err, text("pid %d on ", job[2].pid)), "%s", job[j].err);
        }
    }
}

CASE(another_config_on_one_rank_is_named) {
    const char *dir = new_dir("other_config");
    memset(job, 0, sizeof(job));
    start_rank(&job[0], dir, 0, 2, "base.json threads=1");
    start_rank(&job[1], dir, 1, 2, "base.json threads=2 optim.lr=0.5");
    static const char says[] = "the config is not that of rank 0: optim.lr: 0.003 -> 0.5 (rank 0";
    expect_end(&job[0], EXIT_CONFIG, text("error: rank 0 of 2: rank 1 failed: %s", says));
    expect_end(&job[1], EXIT_CONFIG, text("error: rank 1 of 2: %s", says));
    EXPECT(!strstr(job[1].err, "threads"), "%s", job[1].err);
}

// --- the file ---

/* A config, and a device as its type is: a pipe. */
CASE(a_file_of_the_user_is_not_replaced) {
    const char *dir = new_dir("users_file"), *pipe = text("%s/pipe", dir);
    static const char says[] = "is there and is no rendezvous file";
    or_exit(mkfifo(pipe, 0600) == 0, pipe);
    copy_file(text("%s/kept.json", dir), text("%s/base.json", dir));
    static const char *const names[] = {"kept.json", "pipe"};
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        memset(job, 0, sizeof(job));
        start_rank(&job[0], dir, 0, 2, text("base.json parallel.rendezvous_file=%s", names[i]));
        expect_end(&job[0], EXIT_CONFIG, says);
    }
    expect_same_file(text("%s/kept.json", dir), text("%s/base.json", dir));
    struct stat info;
    EXPECT(stat(pipe, &info) == 0 && S_ISFIFO(info.st_mode), "the pipe is gone");
}

CASE(the_file_of_a_killed_job_does_no_harm) {
    const char *dir = new_dir("stale"), *file = text("%s/run/rendezvous", dir);
    Member dead = {.pid = 0};
    start_rank(&dead, dir, 0, 2, "base.json");
    EXPECT(until_there(file), "no %s", file);
    EXPECT(unlink(file) == 0 && until_there(file), "it is not written again");
    kill(dead.pid, SIGKILL);
    EXPECT_EQ_I64(end_member(&dead), 128 + SIGKILL);
    EXPECT(access(file, F_OK) == 0, "the killed job's file should be there");
    memset(job, 0, sizeof(job));
    start_rank(&job[1], dir, 1, 2, "base.json");
    usleep(1000000);   // it calls at the dead rank's door
    start_rank(&job[0], dir, 0, 2, "base.json");
    for (int r = 0; r < 2; r++) expect_end(&job[r], EXIT_DONE, "");
    EXPECT(access(file, F_OK) != 0, "the file is left behind");
}

/* Rank 1 of a job finds the file of another, which waits: it is turned away, and waits for its own
   rank 0. That one replaces the file, and only the other job ends. */
CASE(jobs_with_one_file_do_not_mix) {
    const char *dir = new_dir("mixed");
    static const char words[] =
        "base.json batch.total_tokens=192 parallel.rendezvous_file=meet/here";
    Member other = {.pid = 0};
    memset(job, 0, sizeof(job));
    start_member(&other, dir, "RANK=0 WORLD_SIZE=3 TORCHELASTIC_RUN_ID=other", words);
    EXPECT(until_there(text("%s/meet/here", dir)), "no file");
    start_member(&job[1], dir, "RANK=1 WORLD_SIZE=3 TORCHELASTIC_RUN_ID=own", words);
    usleep(1000000);
    start_member(&job[0], dir, "RANK=0 WORLD_SIZE=3 TORCHELASTIC_RUN_ID=own", words);
    expect_end(&other, EXIT_CONFIG, text("pid %d on ", job[0].pid));
    EXPECT(strstr(other.err, "its own parallel.rendezvous_file"), "%s", other.err);
    start_member(&job[2], dir, "RANK=2 WORLD_SIZE=3 TORCHELASTIC_RUN_ID=own", words);
    for (int r = 0; r < 3; r++) expect_end(&job[r], EXIT_DONE, "");
}

// --- ending together ---

/* Since now_ms() was `start`. */
static void expect_soon(double start) {
    double seconds = (now_ms() - start) / 1000.0;
    EXPECT(seconds < END_SECONDS, "all ended after %.1f s only", seconds);
}

CASE(a_killed_rank_ends_all_over_sockets) {
    static const int killed[] = {2, 0};
    for (int i = 0; i < ARRAY_LEN(killed); i++) {
        const char *dir = new_dir(text("killed_%d", killed[i]));
        memset(job, 0, sizeof(job));
        for (int r = 0; r < 3; r++)
            start_rank(&job[r], dir, r, 3, FOR_EVER "batch.total_tokens=192");
        EXPECT(until_says(&job[0], "step 5/"), "%s%s", job[0].out, job[0].err);
        double start = now_ms();
        kill(job[killed[i]].pid, SIGKILL);
        const char *who = text("rank %d (pid %d on ", killed[i], job[killed[i]].pid);
        for (int r = 0; r < 3; r++) {
            if (r == killed[i]) EXPECT_EQ_I64(end_member(&job[r]), 128 + SIGKILL);
            else expect_end(&job[r], EXIT_HANG, who);
        }
        expect_soon(start);
    }
}

/* Of a process that mpirun has started. */
static int mpi_rank_of(pid_t pid) {
    static const char name[] = "OMPI_COMM_WORLD_RANK=";
    static char environment[1 << 16];
    int64_t bytes = get_file(text("/proc/%d/environ", pid), environment, sizeof(environment));
    const char *at = bytes > 0 ? memmem(environment, (size_t)bytes, name, strlen(name)) : NULL;
    return at ? atoi(at + strlen(name)) : -1;
}

CASE(a_killed_rank_ends_all_under_mpirun) {
    if (!have_mpirun()) {
        printf("  no mpirun here\n");
        return;
    }
    Launch l = {.dir = new_dir("killed_mpi"), .ranks = 3};
    Program p = start_watched(&l, FOR_EVER "batch.total_tokens=192");
    EXPECT(read_until(&p, "step 5/"), "%s\n%s", ran.out, ran.err);
    pid_t victim = some_child(p.pid);
    int rank = mpi_rank_of(victim);
    EXPECT(rank >= 0, "no rank");
    double start = now_ms();
    kill(rank >= 0 ? victim : p.pid, SIGKILL);
    EXPECT(finish_watched(&p) != 0, "exit code 0");
    expect_soon(start);
    // By one of the others, or by mpirun, which may be faster.
    EXPECT(strstr(ran.err, text("rank %d ", rank)), "%s", ran.err);
}

/* The others say what they wait in, and who has not come to it. */
CASE(a_stopped_rank_is_named) {
    const char *dir = new_dir("stopped");
    memset(job, 0, sizeof(job));
    for (int r = 0; r < 3; r++)
        start_rank(&job[r], dir, r, 3, FOR_EVER "batch.total_tokens=192 parallel.timeout_s=6");
    EXPECT(until_says(&job[0], "step 5/"), "%s%s", job[0].out, job[0].err);
    double start = now_ms();
    kill(job[1].pid, SIGSTOP);
    const char *behind = text("; behind: rank 1 (pid %d on ", job[1].pid);
    static const char nothing[] =
        "nothing has gone on on any rank for 6 s (parallel.timeout_s is 6";
    expect_end(&job[0], EXIT_HANG, nothing);
    expect_end(&job[2], EXIT_HANG, nothing);
    expect_soon(start);
    for (int r = 0; r < 3; r += 2) {
        EXPECT(strstr(job[r].err, behind), "%s", job[r].err);
        const char *own = strstr(job[r].err, "This rank waits in ");
        char name[32] = "";
        long long number = 0, count = 0;
        EXPECT(own && sscanf(own, "This rank waits in %31s #%lld (%lld elements)", name, &number,
                             &count) == 3,
               "%s", job[r].err);
        EXPECT(number > 5 && count > 0, "%s #%lld (%lld)", name, number, count);
    }
    kill(job[1].pid, SIGCONT);
    EXPECT_EQ_I64(end_member(&job[1]), EXIT_HANG, "%s", job[1].err);
}

// --- several nodes ---

static int shell(const char *command) {
    return system(text("(%s) >>%s 2>&1", command, scratch("shell"))) == 0;
}

/* Namespaces NAME_0, NAME_1, ... with an address each, 10.77.0.1 and so on, and no other but
   loopback, joined by a bridge in another one. Returns 0 where the kernel forbids it. */
static int make_nodes(const char *name, int nodes) {
    int made = shell(text("ip netns add %s_net && ip -n %s_net link add bridge type bridge && "
                          "ip -n %s_net link set bridge up",
                          name, name, name));
    for (int i = 0; i < nodes && made; i++) {
        const char *node = text("%s_%d", name, i);
        made = shell(text("ip netns add %s && ip -n %s link set lo up && "
                          "ip -n %s link add eth type veth peer name port%d netns %s_net && "
                          "ip -n %s_net link set port%d master bridge up && "
                          "ip -n %s addr add 10.77.0.%d/24 dev eth && ip -n %s link set eth up && "
                          "ip netns exec %s true",
                          node, node, node, i, name, name, i, node, i + 1, node, node));
    }
    return made;
}

static void remove_nodes(const char *name, int nodes) {
    for (int i = 0; i < nodes; i++) shell(text("ip netns del %s_%d", name, i));
    shell(text("ip netns del %s_net", name));
}

CASE(ranks_in_network_namespaces) {
    enum { NODES = 3 };
    const char *dir = new_dir("nodes"), *name = text("gpt%d", (int)getpid());
    int apart = make_nodes(name, NODES);
    if (!apart)
        printf("  NO NETWORK NAMESPACES HERE (root, iproute2 and a kernel that allows them are "
               "needed): ranks on 127.0.0.2, .3, .4 of one host instead\n");
    memset(job, 0, sizeof(job));
    for (int r = NODES - 1; r >= 0; r--) {
        const char *words =
            text(BASE "batch.total_tokens=192 log.dir=together parallel.interface=%s",
                 apart ? "eth" : text("127.0.0.%d", r + 2));
        if (apart) job[r].launch.under = text("ip netns exec %s_%d", name, r);
        start_rank(&job[r], dir, r, NODES, words);
    }
    for (int r = 0; r < NODES; r++) expect_end(&job[r], EXIT_DONE, "");
    if (apart) remove_nodes(name, NODES);
    train(dir, NODES, BASE "batch.total_tokens=192 log.dir=one_host");
    expect_same_record(text("%s/together", dir), text("%s/one_host", dir));
}

int main(int argc, char **argv) {
    // What started this test must not tell the ranks otherwise.
    static const char *const variables[] = {"RANK",
                                            "WORLD_SIZE",
                                            "LOCAL_RANK",
                                            "TORCHELASTIC_RUN_ID",
                                            "SLURM_PROCID",
                                            "SLURM_NTASKS",
                                            "SLURM_LOCALID",
                                            "OMPI_COMM_WORLD_RANK",
                                            "PMI_RANK",
                                            "PMI_SIZE",
                                            "OMPI_COMM_WORLD_SIZE",
                                            "PMIX_RANK",
                                            "SLURM_JOB_ID",
                                            "SLURM_STEP_ID",
                                            "TORCHELASTIC_RESTART_COUNT"};
    for (int i = 0; i < ARRAY_LEN(variables); i++) unsetenv(variables[i]);
    return test_run(argc, argv);
}
