/*
test_checkpoint_faults -- saves that fail or are killed, at once and in the background, of one rank
and of several: whatever call fails, all ranks are told the same, nothing of the try is left, the
checkpoint before it is whole, and the next save succeeds; whatever call is the last, what has the
name of a checkpoint is one.
*/
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "checkpoint_ranks.h"

// --- a failure at a chosen call: these stand before those of the C library ---

typedef enum { NO_FAULT, FAULT_ERROR, FAULT_KILL } FaultKind;
enum { KILLED = 77 };

static struct {
    FaultKind kind;
    atomic_int calls_left;    // until the fault, of all threads
    const char *only_path;    // where not NULL: faults of files whose path contains it
    void (*at_fsync)(void);   // called before each fsync
} fault;

static int is_meant(const char *path) {
    return !fault.only_path || (path && strstr(path, fault.only_path));
}

static int is_meant_fd(int fd) {
    char link[64], path[512];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = fault.only_path ? readlink(link, path, sizeof(path) - 1) : 0;
    path[length > 0 ? length : 0] = '\0';
    return is_meant(path);
}

/* Whether this call is to fail; with only_path every one from the chosen on. */
static int fails_here(int meant) {
    if (fault.kind == NO_FAULT || !meant) return 0;
    int left = --fault.calls_left;
    int now = left == 0 || (left < 0 && fault.only_path);
    if (now && fault.kind == FAULT_KILL) _exit(KILLED);
    return now;
}

static int set_errno(int code) {
    errno = code;
    return -1;
}

ssize_t write(int fd, const void *data, size_t bytes) {
    if (fd > 2 && fails_here(is_meant_fd(fd))) return set_errno(ENOSPC);
    return syscall(SYS_write, fd, data, bytes);
}

int fsync(int fd) {
    if (fault.at_fsync) fault.at_fsync();
    if (fails_here(is_meant_fd(fd))) return set_errno(EIO);
    return (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to) {
    if (fails_here(is_meant(from))) return set_errno(EIO);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int mkdir(const char *path, mode_t mode) {
    if (file_exists(path)) return set_errno(EEXIST);
    if (fails_here(is_meant(path))) return set_errno(EDQUOT);
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int remove(const char *path) {
    struct stat info;
    int is_dir = lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
    if (fault.kind == FAULT_KILL && fails_here(is_meant(path))) return -1;
    return is_dir ? rmdir(path) : unlink(path);
}

// --- directories ---

static int num_entries(const char *dir) {
    DIR *d = opendir(dir);
    if (!d) return 0;
    int n = -2;   // "." and ".."
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static int64_t step_found(const char *dir) {
    char *path = checkpoint_find(dir);
    int64_t step = path ? strtoll(strrchr(path, '_') + 1, NULL, 10) : -1;
    free(path);
    return step;
}

/* The next save of a run that has step 7 of seed 3 in `dir`. */
static TeamCase next_save(const char *dir, int background, int level) {
    TeamCase k = case_in(dir);
    k.step = 8;
    k.seed = 5;
    k.keep = 1;
    k.background = background;
    k.level = level;
    return k;
}

static const struct {
    int ranks, level, background;
} ways[] = {{1, 0, 0}, {1, 0, 1}, {3, 1, 0}, {3, 1, 1}};

static const char *fresh_run(const char *name, int way, int n) {
    static char dirs[4][512];
    static int turn;
    char full[64];
    char *dir = dirs[turn++ % 4];
    snprintf(full, sizeof(full), "%s_%d_%d", name, way, n);
    snprintf(dir, sizeof(dirs[0]), "%s", test_scratch(full));
    TeamCase k = case_in(dir);
    k.level = ways[way].level;
    EXPECT(!saved_by(&k, ways[way].ranks)[0], "%s", k.problem[0]);
    return dir;
}

// --- errors ---

/* Step 7 is as it was, and the next try works. */
static void expect_last_good_one(const char *dir, int way, int n) {
    TeamCase old = case_in(dir), k = next_save(dir, ways[way].background, ways[way].level);
    EXPECT_EQ_I64(num_entries(dir), 1, "way %d, call %d", way, n);
    EXPECT_EQ_I64(step_found(dir), 7, "way %d, call %d", way, n);
    EXPECT_EQ_I64(wrong_for(&old, 1, 0), 0, "way %d, call %d", way, n);
    EXPECT(!saved_by(&k, ways[way].ranks)[0], "way %d, call %d: %s", way, n, k.problem[0]);
    EXPECT_EQ_I64(wrong_for(&k, 2, 0), 0, "way %d, call %d", way, n);
    EXPECT_EQ_I64(num_entries(dir), 1, "keep 1: way %d, call %d", way, n);
}

/* What is left after a failure in the commit: both steps, or the new one. */
static int got_its_name(const char *dir) { return step_found(dir) == 8; }

CASE(an_error_at_any_call_leaves_the_last_good_one) {
    for (int way = 0; way < ARRAY_LEN(ways); way++) {
        int n = 1, failed = 1, num_failed = 0;
        for (; failed && n < 2000; n += n < 10 ? 1 : 11) {
            const char *dir = fresh_run("error", way, n);
            TeamCase k = next_save(dir, ways[way].background, ways[way].level);
            fault.calls_left = n;
            fault.kind = FAULT_ERROR;
            const char *problem = saved_by(&k, ways[way].ranks);
            fault.kind = NO_FAULT;
            failed = fault.calls_left <= 0;
            if (!problem[0] || got_its_name(dir)) continue;   // after the commit: a warning
            num_failed++;
            EXPECT(strstr(problem, "ckpt.dir"), "way %d, call %d: %s", way, n, problem);
            EXPECT(strstr(problem, strerror(ENOSPC)) || strstr(problem, strerror(EIO)) ||
                       strstr(problem, strerror(EDQUOT)),
                   "way %d, call %d: %s", way, n, problem);
            expect_last_good_one(dir, way, n);
        }
        EXPECT(!failed, "the last save gets through");
        EXPECT(num_failed > 10, "way %d: only %d calls fail a save", way, num_failed);
    }
}

/* One rank's disk is full: all say so, with its number and the file. */
CASE(the_rank_that_failed_is_named_by_all) {
    const char *dir = fresh_run("named", 3, 0);
    TeamCase k = next_save(dir, 1, 1);
    fault.only_path = "optimizer-00003-of-00003";
    fault.calls_left = 2;
    fault.kind = FAULT_ERROR;
    const char *problem = saved_by(&k, 3);
    fault.kind = NO_FAULT;
    fault.only_path = NULL;
    EXPECT(strstr(problem, "rank 2: ckpt.dir: cannot write '") == problem, "%s", problem);
    EXPECT(strstr(problem, "/optimizer-00003-of-00003.safetensors' after 8 bytes: No space left"),
           "%s", problem);
    expect_last_good_one(dir, 3, 0);
}

static void limit_file_size(rlim_t bytes) {
    struct rlimit limit = {bytes, RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) perror("setrlimit");
}

CASE(a_file_size_limit_is_a_problem_not_an_end) {
    static const rlim_t limits[] = {0, 1, 7, 300, 512, 700, 5000};
    for (int way = 0; way < ARRAY_LEN(ways); way++) {
        for (int i = 0; i < ARRAY_LEN(limits); i++) {
            const char *dir = fresh_run("limited", way, i);
            TeamCase k = next_save(dir, ways[way].background, ways[way].level);
            limit_file_size(limits[i]);
            const char *problem = saved_by(&k, ways[way].ranks);
            limit_file_size(RLIM_INFINITY);
            EXPECT(strstr(problem, "cannot write") && strstr(problem, "File too large"), "%s",
                   problem);
            expect_last_good_one(dir, way, i);
        }
    }
}

CASE(unwritable_places_are_named) {
    test_put_file(test_scratch("plain_file"), "x", 1);
    static const char *const places[] = {"plain_file", "plain_file/checkpoints", "device/full"};
    if (symlink("/dev", test_scratch("device")) != 0) perror("symlink");
    for (int way = 0; way < ARRAY_LEN(ways); way++) {
        for (int i = 0; i < ARRAY_LEN(places); i++) {
            TeamCase k = next_save(test_scratch(places[i]), ways[way].background, 0);
            const char *problem = saved_by(&k, ways[way].ranks);
            EXPECT(strstr(problem, "cannot create ckpt.dir '") && strstr(problem, places[i]), "%s",
                   problem);
            EXPECT(strstr(problem, "ot a directory"), "%s", problem);
            EXPECT_EQ_I64(step_found(k.dir), -1);
        }
    }
}

/* Nodes whose ckpt.dir is a directory each: rank 1 has another than rank 0. */
static char other_dir[512];

static void save_apart(Comm *comm, void *context) {
    TeamCase k = *(TeamCase *)context;
    if (comm->rank == 1) k.dir = other_dir;
    team_save(comm, &k);
    memcpy(((TeamCase *)context)->problem[comm->rank], k.problem[comm->rank], sizeof(k.problem[0]));
}

CASE(a_directory_that_nodes_do_not_share_is_noticed) {
    TeamCase k = next_save(fresh_run("apart", 2, 0), 1, 1);
    char temporary[600];
    snprintf(other_dir, sizeof(other_dir), "%s", test_scratch("apart_other"));
    snprintf(temporary, sizeof(temporary), "%s/.tmp_step_00000008_%d", other_dir, (int)getpid());
    team_run(3, save_apart, &k);
    EXPECT(strstr(k.problem[2], "rank 1: ckpt.dir: '") && strstr(k.problem[2], "' is not seen"),
           "%s", k.problem[2]);
    expect_last_good_one(k.dir, 2, 0);
    // A directory of that name is there by chance: the files are missed at the commit.
    k.dir = fresh_run("apart", 2, 1);
    char *problem = try_make_directory(temporary);
    EXPECT(!problem, "%s", problem);
    team_run(3, save_apart, &k);
    EXPECT(strstr(k.problem[2], "rank 1 says that it has written '") &&
               strstr(k.problem[2], "one directory of a file system that all nodes share"),
           "%s", k.problem[2]);
    expect_last_good_one(k.dir, 2, 0);
}

// --- kills ---

/* Saves in a child that dies at its n-th call; 0 when the save got through before that. */
static int save_and_die(TeamCase *k, int ranks, int n) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        fault.calls_left = n;
        fault.kind = FAULT_KILL;
        team_run(ranks, team_save, k);
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT(WIFEXITED(status), "call %d", n);
    return WEXITSTATUS(status);
}

CASE(a_kill_at_any_call_leaves_a_whole_checkpoint) {
    for (int way = 0; way < ARRAY_LEN(ways); way++) {
        int n = 1, result = KILLED;
        for (; result == KILLED && n < 2000; n += n < 10 ? 1 : 11) {
            const char *dir = fresh_run("kill", way, n);
            TeamCase k = next_save(dir, ways[way].background, ways[way].level);
            result = save_and_die(&k, ways[way].ranks, n);
            checkpoint_recover(dir);
            TeamCase old = case_in(dir);
            const TeamCase *newest = step_found(dir) == 8 ? &k : &old;
            EXPECT_EQ_I64(wrong_for(newest, 2, 0), 0, "way %d, call %d", way, n);
            EXPECT(num_entries(dir) <= 2, "way %d, call %d leaves %d", way, n, num_entries(dir));
        }
        EXPECT_EQ_I64(result, 0, "the last save gets through");
        EXPECT(n > 40, "way %d: only %d calls", way, n);
    }
}

/* A save that is under way in the background when the process ends by itself is given up. */
static void begin_and_leave(const char *dir) {
    RankModel r;
    static char staging[100];
    rank_model_open(&r, NULL, 0, DT_BF16);
    rank_model_fill(&r, 5);
    CheckpointState state = {.step = 8, .config = "{}"};
    CheckpointPolicy policy = {dir, 1, 0, staging, sizeof(staging), NULL};
    policy.snapshot = xmalloc(checkpoint_snapshot_bytes(&r.tensors, &state, 0));
    checkpoint_begin(&policy, &r.tensors, &state);
    die(EXIT_DIVERGED, "diverged");
}

static void sleep_long(void) { sleep(5); }

CASE(an_end_by_die_gives_up_what_is_under_way) {
    const char *dir = fresh_run("left", 1, 0);
    fault.at_fsync = sleep_long;
    EXPECT_DIES(EXIT_DIVERGED, "diverged", begin_and_leave(dir));
    fault.at_fsync = NULL;
    checkpoint_recover(dir);
    expect_last_good_one(dir, 1, 0);
}

TEST_MAIN_END
