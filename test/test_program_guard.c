/*
test_program_guard -- runs whose steps are skipped: how many in a row end them, that this survives a
restart, and that a step computed again from its replay file comes out the same.
*/
#include "program.h"

#define ABSURD "../base.json optim.lr=100 sched.type=constant optim.grad_clip=0 train.steps=60 "

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
    int last = (int)record.lines[record.count - 1].step;
    EXPECT(strstr(ran.err, text("error: step %d: loss nan", last + 2)), "%s", ran.err);
    runs_in(dir, text("%s log.dir=halves ckpt.until=%d", words, last - 1));
    EXPECT(strcmp(run_field(text("%s/halves", dir), "exit_reason"), "ckpt.until") == 0, "run.json");
    EXPECT_EQ_I64(run_in(dir, text("%s log.dir=halves", words)), EXIT_DIVERGED, "%s", ran.err);
    EXPECT(strstr(ran.err, text("error: step %d: loss nan", last + 2)), "%s", ran.err);
    expect_same_record(text("%s/halves", dir), text("%s/run", dir));
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

TEST_MAIN_END
