/*
test_program_signals -- a training that signals ask to end, at every stage of it and however often;
and shards that change under it. What it leaves is resumed by the same command to the record and the
checkpoint of a run that nobody disturbed.
*/
#include <sys/ioctl.h>

#include "program.h"

#define COMMAND "base.json train.steps=150 eval.every=6 "

/* A directory with the data, below it "whole" with an undisturbed run of the command and `words`,
   and "run" of the same name to disturb. */
static const char *new_base(const char *name, const char *words) {
    static char dir[512];
    snprintf(dir, sizeof(dir), "%s", make_dir(name));
    put_base_run(dir);
    make_dir(text("%s/whole", name));
    runs_in(text("%s/whole", dir), text("../" COMMAND "%s", words));
    make_dir(text("%s/disturbed", name));
    return dir;
}

static void expect_resumes_as_whole(const char *dir, const char *words) {
    const char *disturbed = text("%s/disturbed", dir);
    runs_in(disturbed, text("../" COMMAND "%s", words));
    expect_same_record(text("%s/run", disturbed), text("%s/whole/run", dir));
    static const char file[] = "run/ckpt/step_00000150/model.safetensors";
    expect_same_file(text("%s/%s", disturbed, file), text("%s/whole/%s", dir, file));
}

/* Waits for `wanted` on stdout of the command in "disturbed". */
static Program disturb(const char *dir, const char *words, const char *wanted) {
    const char *disturbed = text("%s/disturbed", dir);
    Launch l = {.dir = disturbed};
    Program p = start_watched(&l, text("../" COMMAND "%s", words));
    EXPECT(read_until(&p, wanted), "no \"%s\":\n%s\n%s", wanted, ran.out, ran.err);
    return p;
}

/* The step that it said it was interrupted at, or -1; its checkpoint is there. */
static int interrupted_step(const char *dir, const char *by) {
    static const char said[] = "interrupted at step ";
    const char *line = strstr(ran.out, said);
    EXPECT(line && strstr(line, text(" by %s;", by)), "not by %s:\n%s\n%s", by, ran.out, ran.err);
    int step = line ? atoi(line + strlen(said)) : -1;
    const char *state = text("%s/disturbed/run/ckpt/step_%08d/state.json", dir, step);
    EXPECT(access(state, R_OK) == 0, "no %s", state);
    return step;
}

static void pause_ms(int ms) { usleep((useconds_t)ms * 1000); }

// --- how often ---

/* 100 within a second, among them the one that would end the process if a person sent it. */
static void survives_storm(const char *name, int first, int second) {
    const char *dir = new_base(name, "");
    Program p = disturb(dir, "", "step 9/");
    for (int i = 0; i < 100; i++) {
        kill(p.pid, i % 2 ? second : first);
        pause_ms(4);
    }
    EXPECT_EQ_I64(finish_watched(&p), EXIT_INTERRUPTED, "%s", ran.err);
    int step = interrupted_step(dir, first == SIGTERM ? "SIGTERM" : "SIGINT");
    EXPECT(step >= 9 && step < 150, "step %d", step);
    EXPECT(strstr(ran.err, ": saves and ends") && !strstr(ran.err, "at once\nstop"), "%s", ran.err);
    expect_resumes_as_whole(dir, "");
}

CASE(storm_of_sigterm) { survives_storm("sigterm", SIGTERM, SIGTERM); }
CASE(storm_of_all_signals) { survives_storm("all", SIGTERM, SIGINT); }
CASE(storm_of_sigint) { survives_storm("sigint", SIGINT, SIGUSR1); }

/* Waits until the pipe has no room for a line any more. */
static void wait_until_blocked(const Program *p) {
    int held = 0;
    for (int i = 0; i < 600 && held < 4096 - 120; i++) {
        pause_ms(50);
        or_exit(ioctl(p->stdout_fd, FIONREAD, &held) == 0, "FIONREAD");
    }
    pause_ms(100);
}

/* A person presses Ctrl-C again because it takes too long: here the program waits for its reader,
   who is this test. SIGTERM again changes nothing. */
CASE(second_press_of_ctrl_c_ends_at_once) {
    const char *dir = new_base("twice", "ckpt.every=4");
    Program p = disturb(dir, "ckpt.every=4", "step 9/");
    wait_until_blocked(&p);
    kill(p.pid, SIGINT);
    kill(p.pid, SIGTERM);
    pause_ms(1100);
    kill(p.pid, SIGTERM);
    pause_ms(100);
    EXPECT(waitpid(p.pid, NULL, WNOHANG) == 0, "SIGTERM again ended it");
    kill(p.pid, SIGINT);
    int status;
    EXPECT(waitpid(p.pid, &status, 0) == p.pid && WIFEXITED(status) &&
               WEXITSTATUS(status) == EXIT_INTERRUPTED,
           "status %x", (unsigned)status);
    close(p.stdout_fd);
    get_file(scratch("stderr"), ran.err, sizeof(ran.err));
    EXPECT(strstr(ran.err, "stop: SIGINT again: ends at once; the last finished checkpoint stays"),
           "%s", ran.err);
    expect_resumes_as_whole(dir, "ckpt.every=4");
}

// --- which ---

static void saves_after(const char *name, int number, const char *signal_name) {
    const char *dir = new_base(name, "");
    Program p = disturb(dir, "", "step 9/");
    kill(p.pid, number);
    EXPECT_EQ_I64(finish_watched(&p), EXIT_INTERRUPTED, "%s", ran.err);
    interrupted_step(dir, signal_name);
    expect_resumes_as_whole(dir, "");
}

CASE(sigusr1_saves) { saves_after("usr1", SIGUSR1, "SIGUSR1"); }
CASE(sighup_saves) { saves_after("hup", SIGHUP, "SIGHUP"); }

CASE(ignored_signal_stays_ignored) {
    const char *dir = new_base("nohup", "");
    signal(SIGHUP, SIG_IGN);   // as nohup does
    Program p = disturb(dir, "", "step 9/");
    signal(SIGHUP, SIG_DFL);
    kill(p.pid, SIGHUP);
    EXPECT_EQ_I64(finish_watched(&p), 0, "%s", ran.err);
    expect_resumes_as_whole(dir, "");
}

/* The reader of standard output is gone, as in `... | head`. */
CASE(closed_pipe_saves) {
    const char *dir = new_base("pipe", "");
    Program p = disturb(dir, "", "step 9/");
    close(p.stdout_fd);
    EXPECT_EQ_I64(wait_for(p.pid), EXIT_INTERRUPTED, "%s", ran.err);
    EXPECT_EQ_I64(count_entries(text("%s/disturbed/run/ckpt", dir), "step_"), 1);
    expect_resumes_as_whole(dir, "");
}

// --- when ---

/* Its config is a pipe that nobody writes into. */
CASE(signal_before_the_first_step) {
    const char *fifo = scratch("config.json");
    or_exit(mkfifo(fifo, 0666) == 0, fifo);
    Launch l = {0};
    pid_t pid = start(&l, fifo, -1);
    pause_ms(300);
    double began = now_ms();
    kill(pid, SIGTERM);
    EXPECT_EQ_I64(wait_for(pid), EXIT_INTERRUPTED);
    EXPECT(now_ms() - began < 2000, "%.0f ms", now_ms() - began);
    EXPECT(strstr(ran.err, "stop: SIGTERM: ends before its first step; checkpoints are as they"),
           "%s", ran.err);
}

/* Validation and samples that take minutes are left; the resumed run does them again. */
static void leaves_promptly(const char *name, const char *short_words, const char *long_words,
                            const char *wanted, int step) {
    const char *dir = new_base(name, short_words);
    Program p = disturb(dir, long_words, wanted);
    pause_ms(300);
    double began = now_ms();
    kill(p.pid, SIGTERM);
    EXPECT_EQ_I64(finish_watched(&p), EXIT_INTERRUPTED, "%s", ran.err);
    EXPECT(now_ms() - began < 5000, "%s took %.0f ms", name, now_ms() - began);
    const char *state = text("%s/disturbed/run/ckpt/step_%08d/state.json", dir, step);
    EXPECT(access(state, R_OK) == 0, "no %s", state);
    expect_resumes_as_whole(dir, short_words);
}

/* data.val is larger for the run that is left; after that both validate on the same tokens. */
CASE(signal_during_validation) {
    put_shard(scratch("long_val.bin"), 1 << 16, 9);
    leaves_promptly("validation", "eval.micro=1",
                    text("eval.micro=1 data.val=[\"%s\",\"%s\",\"%s\",\"%s\"]",
                         scratch("long_val.bin"), scratch("long_val.bin"), scratch("long_val.bin"),
                         scratch("long_val.bin")),
                    "precision ", 0);
}

CASE(signal_during_a_sample) {
    leaves_promptly("sample", "",
                    "sample.every=4 sample.tokens=1000000 sample.temperature=0 "
                    "sample.prompt=Beginning data.tokenizer=../byte.vocab model.vocab=257",
                    "Beginning", 4);
}

// --- shards that change ---

/* Cut short while it is read, the run names file and byte; put back, it goes on. */
CASE(shard_cut_short) {
    const char *dir = new_base("cut", "ckpt.every=4 ");
    char shard[512], copy[512];
    snprintf(shard, sizeof(shard), "%s/train_1.bin", dir);
    snprintf(copy, sizeof(copy), "%s/copy.bin", dir);
    copy_file(copy, shard);
    Program p = disturb(dir, "ckpt.every=4 ", "step 9/");
    or_exit(truncate(shard, SHARD_HEADER * 4 + 10) == 0, shard);
    EXPECT_EQ_I64(finish_watched(&p), EXIT_DATA, "%s", ran.err);
    EXPECT(strstr(ran.err, "data.train: cannot read ") && strstr(ran.err, "train_1.bin at byte ") &&
               strstr(ran.err, "it was whole at the start and now ends there"),
           "%s", ran.err);
    EXPECT(strcmp(run_field(text("%s/disturbed/run", dir), "exit_code"), "3") == 0, "run.json");
    const char *again = text("../" COMMAND "ckpt.every=4");
    EXPECT_EQ_I64(run_in(text("%s/disturbed", dir), again), EXIT_DATA, "%s", ran.err);
    EXPECT(strstr(ran.err, "is truncated"), "%s", ran.err);
    copy_file(shard, copy);
    expect_resumes_as_whole(dir, "ckpt.every=4 ");
}

/* Gone before a restart, the order of the data would silently be another. */
CASE(shard_gone) {
    const char *dir = new_base("gone", "ckpt.every=4");
    char shard[512], aside[512];
    snprintf(shard, sizeof(shard), "%s/train_1.bin", dir);
    snprintf(aside, sizeof(aside), "%s/aside.bin", dir);
    Program p = disturb(dir, "ckpt.every=4", "step 9/");
    or_exit(rename(shard, aside) == 0, shard);   // its open file is read on
    kill(p.pid, SIGTERM);
    EXPECT_EQ_I64(finish_watched(&p), EXIT_INTERRUPTED, "%s", ran.err);
    const char *again = text("../" COMMAND "ckpt.every=4");
    EXPECT_EQ_I64(run_in(text("%s/disturbed", dir), again), EXIT_DATA, "%s", ran.err);
    EXPECT(strstr(ran.err, "data.train holds 9 sequences, but 17 when run/ckpt/step_"), "%s",
           ran.err);
    EXPECT_EQ_I64(run_in(text("%s/disturbed", dir), text("%s --dry-run", again)), EXIT_DATA);
    or_exit(rename(aside, shard) == 0, shard);
    expect_resumes_as_whole(dir, "ckpt.every=4");
}

/* By the checkpoint's path it goes on with other data, and says so. */
CASE(shard_gone_on_purpose) {
    const char *dir = new_base("purpose", "");
    or_exit(unlink(text("%s/train_1.bin", dir)) == 0, "unlink");
    runs_in(text("%s/disturbed", dir),
            "../base.json train.steps=152 ckpt.resume=../whole/run/ckpt/step_00000150");
    EXPECT(strstr(ran.out, "data.train held 17 sequences, now 9; new data order"), "%s", ran.out);
}

TEST_MAIN_END
