/*
test_program_guard -- runs whose steps are skipped: how many in a row end them, that this survives a
restart, and that a step computed again from its replay file comes out the same.
*/
#include "program.h"

#define ABSURD "../base.json optim.lr=100 sched.type=constant optim.grad_clip=1 train.steps=60 "

static const char *new_dir(const char *name) {
    static char dir[512];
    snprintf(dir, sizeof(dir), "%s", make_dir(name));
    put_base_run(dir);
    return text("%s", make_dir(text("%s/at", name)));
}

static int count_skipped(const char *dir) {
    int skipped = 0;
    read_record(text("%s/run", dir));
    for (int i = 0; i < record.count; i++) skipped += record.lines[i].skipped;
    return skipped;
}

/* The step that comes to the limit is not in the record any more. The count goes on across a stop
   in the middle. */
CASE(limit_counts_across_a_restart) {
    const char *dir = new_dir("limit");
    const char *words = ABSURD "guard.nan=skip guard.max_skips=6 ";
    EXPECT_EQ_I64(run_in(dir, text("%s ckpt.until=58", words)), EXIT_DIVERGED, "%s", ran.err);
    EXPECT_EQ_I64(count_skipped(dir), 5);
    EXPECT(
        strstr(ran.err, "It is number 6 of the skipped steps in a row, and guard.max_skips is 6"),
        "%s", ran.err);
    EXPECT(!strstr(ran.err, "guard.nan=skip"), "%s", ran.err);
    int last = (int)record.lines[record.count - 1].step;
    EXPECT(strstr(ran.err, text("error: step %d: loss nan", last + 2)), "%s", ran.err);
    runs_in(dir, text("%s log.dir=halves ckpt.until=%d", words, last - 1));
    EXPECT(strcmp(run_field(text("%s/halves", dir), "exit_reason"), "ckpt.until") == 0, "run.json");
    EXPECT_EQ_I64(run_in(dir, text("%s log.dir=halves", words)), EXIT_DIVERGED, "%s", ran.err);
    EXPECT(strstr(ran.err, text("error: step %d: loss nan", last + 2)), "%s", ran.err);
    expect_same_record(text("%s/halves", dir), text("%s/run", dir));
}

/* From the 9th step on nothing is looked for, and that is said. */
CASE(eight_replay_files_are_kept) {
    const char *dir = new_dir("eight");
    EXPECT_EQ_I64(run_in(dir, ABSURD "guard.nan=skip guard.max_skips=9"), EXIT_DIVERGED, "%s",
                  ran.err);
    EXPECT_EQ_I64(count_entries(text("%s/run", dir), "replay_step_"), 8);
    EXPECT(strstr(ran.err, "gradient norm nan. Where it began was not looked for: log.dir has 8 "
                           "replay files, and no more are kept. The update was not applied. "),
           "%s", ran.err);
}

/* A gradient whose square would make AdamW's second moment infinite: nothing of it is saved. */
CASE(too_large_to_square_is_not_finite) {
    const char *dir = new_dir("square");
    EXPECT_EQ_I64(run_in(dir, ABSURD "optim.grad_clip=0 ckpt.every=1 ckpt.keep=0"), EXIT_DIVERGED,
                  "%s", ran.err);
    EXPECT(strstr(ran.err, ". The gradient is finite, but so large that the squares "), "%s",
           ran.err);
    EXPECT_EQ_I64(count_entries(text("%s/run", dir), "replay_step_"), 1);
    read_record(text("%s/run", dir));
    for (int i = 0; i < record.count; i++)
        EXPECT(record.lines[i].grad_norm < 1.85e19, "line %d", i);
}

/* At so low a limit every second step is skipped: three in a row come soon. */
CASE(limit_counts_what_z_scores_skip) {
    const char *dir = new_dir("z");
    int code = run_in(dir, "../base.json train.steps=400 sched.type=constant optim.lr=1e-6 "
                           "guard.skip_grad_z=1e-6 guard.max_skips=3");
    EXPECT_EQ_I64(code, EXIT_DIVERGED, "%s", ran.err);
    EXPECT(strstr(ran.err, "the last 3 steps were skipped by guard.skip_loss_z or "
                           "guard.skip_grad_z (guard.max_skips is 3)"),
           "%s", ran.err);
    EXPECT(count_skipped(dir) >= 2 && record.count >= 130, "%d lines", record.count);
    EXPECT_EQ_I64(count_entries(text("%s/run", dir), "replay_step_"), 0, "those are finite");
}

/* scripts/replay.py from a checkpoint some steps earlier, and with words that help. */
CASE(replay_is_the_same_again) {
    const char *dir = new_dir("replay");
    EXPECT_EQ_I64(run_in(dir, ABSURD "ckpt.every=4"), EXIT_DIVERGED, "%s", ran.err);
    EXPECT_EQ_I64(count_entries(text("%s/run", dir), "replay_step_"), 1);
    char root[PATH_MAX];
    or_exit(getcwd(root, sizeof(root)) != NULL, "getcwd");
    const char *script =
        text("cd %s && python3 %s/scripts/replay.py run/replay_step_*.json --program %s", dir, root,
             program_path());
    const char *out = scratch("replay_out");
    int status = system(text("%s --out again > %s 2>&1", script, out));
    get_file(out, ran.out, sizeof(ran.out));
    EXPECT_EQ_I64(WEXITSTATUS(status), EXIT_DIVERGED, "%s", ran.out);
    EXPECT(strstr(ran.out, "ckpt.resume=run/ckpt/step_") && strstr(ran.out, "loaded "), "%s",
           ran.out);
    EXPECT(strstr(ran.out, "replay: the same again"), "%s", ran.out);
    status = system(text("%s --out helped ckpt.resume=never optim.lr=1e-3 > %s 2>&1", script, out));
    get_file(out, ran.out, sizeof(ran.out));
    EXPECT_EQ_I64(WEXITSTATUS(status), 0, "%s", ran.out);
    EXPECT(strstr(ran.out, " is finite with these words"), "%s", ran.out);
}

/* Steps before it that are skipped are skipped again. */
CASE(replay_behind_skipped_steps) {
    const char *dir = new_dir("behind");
    EXPECT_EQ_I64(run_in(dir, ABSURD "guard.nan=skip guard.max_skips=3"), EXIT_DIVERGED, "%s",
                  ran.err);
    EXPECT_EQ_I64(count_entries(text("%s/run", dir), "replay_step_"), 3);
    char root[PATH_MAX];
    or_exit(getcwd(root, sizeof(root)) != NULL, "getcwd");
    const char *out = scratch("replay_behind");
    int status = system(text("cd %s && for file in run/replay_step_*.json; do "
                             "python3 %s/scripts/replay.py $file --program %s; "
                             "[ $? -eq %d ] || exit 1; done > %s 2>&1",
                             dir, root, program_path(), EXIT_DIVERGED, out));
    get_file(out, ran.out, sizeof(ran.out));
    EXPECT_EQ_I64(WEXITSTATUS(status), 0, "%s", ran.out);
    int same = 0;
    for (const char *at = ran.out; (at = strstr(at, "replay: the same again")) != NULL; at++)
        same++;
    EXPECT_EQ_I64(same, 3, "%s", ran.out);
}

/* One sentence and exit code 2. */
CASE(replay_refuses_what_is_no_replay_file) {
    static const char *const contents[] = {"[]", "{\"step\":\"x\"}", "{}", "{", NULL};
    for (int i = 0; i < ARRAY_LEN(contents); i++) {
        const char *path = scratch("no_replay.json"), *out = scratch("no_replay_out");
        remove(path);
        if (contents[i]) put_text(path, contents[i]);
        int status = system(text("python3 scripts/replay.py %s > %s 2>&1", path, out));
        get_file(out, ran.err, sizeof(ran.err));
        EXPECT_EQ_I64(WEXITSTATUS(status), EXIT_CONFIG, "%s", ran.err);
        EXPECT(strncmp(ran.err, "replay: ", 8) == 0 &&
                   strchr(ran.err, '\n') == ran.err + strlen(ran.err) - 1,
               "%s", ran.err);
    }
}

TEST_MAIN_END
