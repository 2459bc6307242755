/*
test_program_resume -- a training that is killed or interrupted and started again by the same
command leaves what an uninterrupted one leaves: the same record, times apart, and the same bytes in
the last checkpoint. The data has two shards and an epoch of 17 sequences, four a step, so that
every stretch of five steps crosses shards and epochs, most often in the middle of a step.
*/
#include "program.h"

enum { EVERY = 5 };   // ckpt.every of killed runs

/* The last checkpoint of two runs, each file. Both directories have the same name, so that even the
   config in state.json is the same. */
static void expect_same_checkpoint(const char *got, const char *want, int step) {
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json"};
    for (int i = 0; i < ARRAY_LEN(files); i++) {
        expect_same_file(text("%s/run/ckpt/step_%08d/%s", got, step, files[i]),
                         text("%s/run/ckpt/step_%08d/%s", want, step, files[i]));
    }
    const char *kept = text("%s/run/ckpt/step_%08d/recipe.safetensors", want, step);
    if (access(kept, R_OK) == 0)
        expect_same_file(text("%s/run/ckpt/step_%08d/recipe.safetensors", got, step), kept);
}

static void expect_same_run(const char *got, const char *want, int steps) {
    expect_same_record(text("%s/run", got), text("%s/run", want));
    expect_same_checkpoint(got, want, steps);
    const char *ckpt = text("%s/run/ckpt", got);
    EXPECT_EQ_I64(count_entries(ckpt, ".tmp") + count_entries(ckpt, ".old"), 0, "left in %s", ckpt);
    EXPECT(strcmp(run_field(text("%s/run", got), "exit_reason"), "finished") == 0, "%s", got);
}

/* A directory with the data and one uninterrupted run of `words` below its "whole". */
static const char *reference_run(const char *name, const char *words) {
    static char base[512];
    snprintf(base, sizeof(base), "%s", make_dir(name));
    put_base_run(base);
    const char *whole = make_dir(text("%s/whole", name));
    runs_in(whole, text("%s/base.json %s", base, words));
    return base;
}

/* What the loader said it resumed from: the step of "loaded ...: step N, ...", or -1. */
static int resumed_step(void) {
    const char *loaded = strstr(ran.out, "loaded ");
    const char *step = loaded ? strstr(loaded, ": step ") : NULL;
    return step ? atoi(step + strlen(": step ")) : -1;
}

// --- kill -9 at chosen steps ---

/* Starts the command in `dir` and kills it after step `after` was reported. */
static void kill_after(const char *dir, const char *line, int after) {
    Launch l = {.dir = dir};
    Program p = start_watched(&l, line);
    EXPECT(read_until(&p, text("step %d/", after)), "no step %d:\n%s\n%s", after, ran.out, ran.err);
    kill(p.pid, SIGKILL);
    EXPECT_EQ_I64(finish_watched(&p), 128 + SIGKILL, "killed after step %d", after);
}

/* Step `after` was reported, so the checkpoint before it is whole where training waits for it. In
   the background it may be on its way, but each waits for the one before. -1 for none. */
static int last_checkpoint(int after, int background) {
    int last = (after - 1) / EVERY * EVERY - (background ? EVERY : 0);
    return last > 0 ? last : -1;
}

/* Kills at each of the steps in turn (0 ends them), lets the last start finish, and compares. */
static void kills_and_resumes(const char *name, const char *words, int steps, const int *kills) {
    char base[512], killed[512], command[2048];
    snprintf(command, sizeof(command), "train.steps=%d ckpt.every=%d eval.every=7 %s", steps, EVERY,
             words);
    snprintf(base, sizeof(base), "%s", reference_run(name, command));
    snprintf(killed, sizeof(killed), "%s", make_dir(text("%s/killed", name)));
    snprintf(command, sizeof(command), "%s/base.json train.steps=%d ckpt.every=%d eval.every=7 %s",
             base, steps, EVERY, words);
    int background = strstr(words, "ckpt.background=false") == NULL;
    int earliest = -1;   // step that the next start resumes from, or later
    for (const int *first = kills; *kills; kills++) {
        kill_after(killed, command, *kills);
        EXPECT(resumed_step() >= earliest, "from step %d, not %d", resumed_step(), earliest);
        EXPECT(kills > first || resumed_step() == -1, "first start from %d", resumed_step());
        earliest = last_checkpoint(*kills, background);
    }
    runs_in(killed, command);
    EXPECT(resumed_step() >= earliest && resumed_step() % EVERY == 0 && resumed_step() < steps,
           "from step %d, not %d", resumed_step(), earliest);
    expect_same_run(killed, text("%s/whole", base), steps);
}

CASE(kill_9_in_bf16) {
    static const int kills[] = {7, 33, 61, 0};
    kills_and_resumes("bf16", "precision.recipe=bf16", 120, kills);
}

CASE(kill_9_in_nvfp4) {
    static const int kills[] = {12, 38, 0};
    kills_and_resumes("nvfp4",
                      "precision.recipe=nvfp4 precision.keep_bf16.last=0 ckpt.background=false",
                      100, kills);
}

/* What the recipe keeps is part of the run: maxima of earlier steps, in all of them or sampled. */
CASE(kill_9_with_delayed_maxima) {
    static const int kills[] = {12, 38, 0};
    kills_and_resumes("delayed", "precision.recipe=fp8_delayed", 60, kills);
    const char *file = scratch("delayed/whole/run/ckpt/step_00000060/recipe.safetensors");
    EXPECT(access(file, R_OK) == 0, "no %s", file);
}

CASE(kill_9_with_held_maxima) {
    static const int kills[] = {12, 57, 0};
    kills_and_resumes("held", "precision.recipe=ue5m3", 80, kills);
}

/* Weights' operands have random bits of the step that they are used in. */
CASE(kill_9_with_random_weights) {
    static const int kills[] = {12, 0};
    const char *rule = "precision.recipe=nvfp4 precision.keep_bf16.last=0 "
                       "precision.rules=[{\"operand\":\"w\",\"rounding\":\"stochastic\"}]";
    kills_and_resumes("random_w", rule, 30, kills);
}

/* Switches at steps 20 and 60, with the learning rate reset at the second. */
CASE(kill_9_around_phases) {
    static const int kills[] = {18, 23, 66, 0};
    kills_and_resumes("phases",
                      "precision.recipe=nvfp4 precision.keep_bf16.last=0 precision.schedule="
                      "[{\"at\":20,\"gemm\":\"fprop\",\"recipe\":\"bf16\"},{\"at\":0.75,\"gemm\":"
                      "\"backward\",\"recipe\":\"mxfp8\",\"lr\":{\"warmup_steps\":4}}]",
                      80, kills);
}

/* Sums of steps 11 to 30 choose features, which the steps after them keep. */
CASE(kill_9_around_out_control) {
    static const int kills[] = {14, 28, 33, 0};
    kills_and_resumes("out_control",
                      "precision.recipe=tetrajet2 precision.out_control.fraction=0.1 "
                      "precision.out_control.from=11 precision.out_control.to=30",
                      50, kills);
}

/* Windows of 8 steps from steps 10 and 30 on; the sums of a window are part of the run. */
CASE(kill_9_inside_windows_of_osci_reset) {
    static const int kills[] = {14, 16, 39, 0};
    kills_and_resumes("osci_reset",
                      "precision.recipe=nvfp4 precision.keep_bf16.last=0 "
                      "precision.osci_reset.start=10 precision.osci_reset.period=20 "
                      "precision.osci_reset.window=8 precision.osci_reset.threshold=4",
                      60, kills);
    const char *line = strstr(ran.out, "osci_reset  step 59: ");
    EXPECT(line && atoi(line + strlen("osci_reset  step 59: ")) > 0, "none reset:\n%s", ran.out);
}

/* What is looked at between steps belongs to the step that follows. */
CASE(kill_9_with_telemetry) {
    static const int kills[] = {12, 0};
    kills_and_resumes("telemetry",
                      "precision.recipe=nvfp4 precision.keep_bf16.last=0 log.telemetry_every=3 "
                      "log.gradient_noise=true eval.also_bf16=true",
                      30, kills);
}

/* What a later phase keeps from step to step begins with it, also where a run resumes in it. */
CASE(kill_9_in_phases_that_keep) {
    static const int kills[] = {12, 27, 38, 0};
    kills_and_resumes("keeping",
                      "precision.schedule=[{\"at\":10,\"recipe\":\"fp8_delayed\"},{\"at\":24,"
                      "\"recipe\":\"nvfp4\"},{\"at\":35,\"recipe\":\"ue5m3\"}]",
                      50, kills);
}

CASE(kill_9_in_file_order) {
    static const int kills[] = {17, 0};
    kills_and_resumes("order", "data.shuffle=false ckpt.keep=0", 80, kills);
}

CASE(kill_9_in_a_mixture) {
    static const int kills[] = {16, 0};
    char words[1024];
    const char *dir = scratch("mixture");
    snprintf(words, sizeof(words),
             "data.train=[{\"path\":\"%s/train_0.bin\",\"weight\":2},"
             "{\"path\":\"%s/train_1.bin\",\"weight\":1}]",
             dir, dir);
    kills_and_resumes("mixture", words, 80, kills);
}

/* The guards look at the last 128 steps, which a resumed run must know of to skip the same ones.
   At so low a rate losses only scatter, and some are far above their mean. */
CASE(kill_9_with_active_guards) {
    static const int kills[] = {70, 150, 0};
    kills_and_resumes("guards",
                      "guard.skip_loss_z=1.5 guard.skip_grad_z=1.5 sched.type=constant "
                      "optim.lr=1e-6",
                      240, kills);
    read_record(scratch("guards/whole/run"));
    int skipped = 0;
    for (int i = 0; i < record.count; i++) {
        EXPECT(!record.lines[i].skipped || record.lines[i].step >= 128, "skipped step %lld",
               (long long)record.lines[i].step);
        skipped += record.lines[i].skipped;
    }
    EXPECT(skipped >= 3 && skipped < 60, "the guards skipped %d steps", skipped);
}

// --- kill -9 at random times, most of which are within the writing of a checkpoint ---

static double seconds_of(const char *dir, const char *line) {
    double begin = now_ms();
    runs_in(dir, line);
    return (now_ms() - begin) / 1000.0;
}

CASE(kill_9_at_random_times) {
    char base[512], killed[512], command[2048];
    snprintf(base, sizeof(base), "%s", make_dir("random"));
    put_base_run(base);
    snprintf(command, sizeof(command), "%s/base.json train.steps=60 ckpt.every=1 eval.every=4",
             base);
    const char *whole = make_dir("random/whole");
    double whole_seconds = seconds_of(whole, command);
    snprintf(killed, sizeof(killed), "%s", make_dir("random/killed"));
    uint32_t state = 12345;
    int num_kills = 0, cut_checkpoints = 0;
    Launch l = {.dir = killed};
    for (int start_number = 0; start_number < 8; start_number++) {
        state = state * 1664525u + 1013904223u;
        double delay = whole_seconds * (0.05 + 0.2 * (state >> 8) / 16777216.0);
        pid_t pid = start(&l, command, -1);
        usleep((useconds_t)(delay * 1e6));
        kill(pid, SIGKILL);
        num_kills += wait_for(pid) == 128 + SIGKILL;
        cut_checkpoints += count_entries(text("%s/run/ckpt", killed), ".tmp_") > 0;
    }
    printf("  %d kills, %d of them within a checkpoint\n", num_kills, cut_checkpoints);
    EXPECT(num_kills > 0, "every start finished before its kill");
    runs_in(killed, command);
    expect_same_run(killed, text("%s/random/whole", test_temp_dir()), 60);
}

// --- signals that ask to stop ---

static void stops_and_resumes(const char *name, int signal_number, const char *words) {
    const char *base = reference_run(name, text("train.steps=90 eval.every=6 %s", words));
    char stopped[512], command[2048];
    snprintf(stopped, sizeof(stopped), "%s", make_dir(text("%s/stopped", name)));
    snprintf(command, sizeof(command), "%s/base.json train.steps=90 eval.every=6 %s", base, words);
    Launch l = {.dir = stopped};
    Program p = start_watched(&l, command);
    EXPECT(read_until(&p, "step 9/"), "%s", ran.err);
    kill(p.pid, signal_number);
    EXPECT_EQ_I64(finish_watched(&p), EXIT_INTERRUPTED, "%s", ran.err);
    const char *said = strstr(ran.out, "interrupted at step ");
    REQUIRE(said, "%s", ran.out);
    int step = atoi(said + strlen("interrupted at step "));
    EXPECT(step >= 9 && step < 90, "stopped at step %d", step);
    EXPECT(strstr(ran.out, text("checkpoint  run/ckpt/step_%08d", step)), "%s", ran.out);
    EXPECT(strcmp(run_field(text("%s/run", stopped), "exit_reason"), "interrupted") == 0,
           "run.json");
    EXPECT(strcmp(run_field(text("%s/run", stopped), "exit_code"), "130") == 0, "run.json");

    runs_in(stopped, command);
    EXPECT_EQ_I64(resumed_step(), step);
    EXPECT(strcmp(run_field(text("%s/run", stopped), "first_step"), text("%d", step)) == 0,
           "first_step of run.json");
    expect_same_run(stopped, text("%s/whole", base), 90);
}

CASE(sigint_saves_and_resumes) { stops_and_resumes("sigint", SIGINT, "precision.recipe=bf16"); }

CASE(sigterm_saves_and_resumes) {
    stops_and_resumes("sigterm", SIGTERM, "precision.recipe=nvfp4 precision.keep_bf16.last=0");
}

// --- what the same command does to a finished run, and to a longer or another one ---

CASE(finished_run_is_left_as_it_is) {
    const char *base = reference_run("finished", "train.steps=6 ckpt.every=2");
    const char *again = make_dir("finished/again");
    char dir[512];
    snprintf(dir, sizeof(dir), "%s", again);
    const char *line = text("%s/base.json train.steps=6 ckpt.every=2", base);
    for (int i = 0; i < 2; i++) runs_in(dir, line);
    EXPECT_EQ_I64(resumed_step(), 6);
    expect_same_run(dir, text("%s/whole", base), 6);
    EXPECT_EQ_I64(count_entries(text("%s/run/ckpt", dir), "step_"), 2, "ckpt.keep");
}

/* With a constant rate the longer run's first steps are the shorter run's. */
CASE(run_made_longer_goes_on) {
    const char *base = reference_run("longer", "train.steps=12 sched.type=constant");
    char dir[512], line[2048];
    snprintf(dir, sizeof(dir), "%s", make_dir("longer/stretched"));
    snprintf(line, sizeof(line), "%s/base.json sched.type=constant", base);
    runs_in(dir, text("%s train.steps=5", line));
    runs_in(dir, text("%s train.steps=12", line));
    EXPECT_EQ_I64(resumed_step(), 5);
    double got[64], want[64];
    int count = read_losses(text("%s/whole/run", base), 0, want);
    EXPECT_EQ_I64(read_losses(text("%s/run", dir), 0, got), count);
    EXPECT_EQ_I64(count, 12);
    EXPECT_BITS(got, want, (size_t)count * sizeof(double), "training losses");
    expect_same_file(text("%s/run/ckpt/step_00000012/model.safetensors", dir),
                     text("%s/whole/run/ckpt/step_00000012/model.safetensors", base));
}

/* Tokens are those really seen, so that losses at equal tokens stay comparable. */
CASE(tokens_of_a_run_with_another_batch) {
    char base[512];
    snprintf(base, sizeof(base), "%s", make_dir("batch"));
    put_base_run(base);
    runs_in(base, "base.json sched.type=constant train.steps=2");
    runs_in(base, "base.json sched.type=constant batch.total_tokens=256");
    read_record(text("%s/run", base));
    static const int64_t tokens[] = {128, 256, 512, 768, 768};   // the last is the validation's
    EXPECT_EQ_I64(record.count, ARRAY_LEN(tokens));
    for (int i = 0; i < ARRAY_LEN(tokens); i++)
        EXPECT_EQ_I64(record.lines[i].tokens, tokens[i], "line %d", i);
}

/* A path resumes from that checkpoint, whatever is newer; never starts anew. */
CASE(resume_path_and_never) {
    const char *base = reference_run("path", "train.steps=9 ckpt.every=3 ckpt.keep=0");
    char dir[512], line[2048];
    snprintf(dir, sizeof(dir), "%s", make_dir("path/other"));
    snprintf(line, sizeof(line), "%s/base.json train.steps=9 ckpt.every=3 ckpt.keep=0", base);
    runs_in(dir, text("%s ckpt.resume=../whole/run/ckpt/step_00000003", line));
    EXPECT_EQ_I64(resumed_step(), 3);
    expect_same_file(text("%s/run/ckpt/step_00000009/model.safetensors", dir),
                     text("%s/whole/run/ckpt/step_00000009/model.safetensors", base));
    runs_in(dir, text("%s ckpt.resume=never", line));
    EXPECT_EQ_I64(resumed_step(), -1);
    expect_same_record(text("%s/run", dir), text("%s/whole/run", base));
    EXPECT(strstr(ran.err, "'run/metrics.jsonl' of an earlier run is replaced"), "%s", ran.err);
}

static void expect_changed(const char *key_and_values, int times) {
    const char *line = text("changed since the checkpoint: %s\n", key_and_values);
    int count = 0;
    for (const char *s = ran.out; (s = strstr(s, line)) != NULL; s++) count++;
    EXPECT_EQ_I64(count, times, "\"%s\" in %s", line, ran.out);
}

/* Another recipe in the same directory would record the first run's weights as its own. By a path
   it goes on, says what has changed, and is from then on the run of the new config. */
CASE(another_config_wants_the_checkpoint_named) {
    char dir[512];
    snprintf(dir, sizeof(dir), "%s", make_dir("another"));
    put_base_run(dir);
    const char *all = "base.json precision.recipe=nvfp4 precision.keep_bf16.last=0 seed=7 "
                      "train.steps=6 eval.micro=1 threads=2";
    runs_in(dir, "base.json");
    EXPECT_EQ_I64(run_in(dir, all), EXIT_CONFIG, "%s", ran.err);
    EXPECT(strcmp(run_field(text("%s/run", dir), "precision"), "bf16") == 0, "run.json");
    runs_in(dir, text("%s ckpt.resume=run/ckpt/step_00000004", all));
    EXPECT_EQ_I64(resumed_step(), 4);
    expect_changed("precision.recipe: bf16 -> nvfp4", 1);
    expect_changed("precision.keep_bf16.last: -1 -> 0", 1);
    expect_changed("seed: 1337 -> 7; new data order, new draws", 1);
    expect_changed("train.steps: 4 -> 6", 1);
    EXPECT(!strstr(ran.out, "checkpoint: eval") && !strstr(ran.out, "checkpoint: threads") &&
               !strstr(ran.out, "checkpoint: ckpt"),
           "%s", ran.out);
    runs_in(dir, text("%s train.steps=8 optim.lr=1e-3", all));
    EXPECT_EQ_I64(resumed_step(), 6);
    expect_changed("train.steps: 6 -> 8", 1);
    expect_changed("optim.lr: 0.003 -> 0.001", 1);
    expect_changed("precision.recipe: bf16 -> nvfp4", 0);
    runs_in(dir, text("eval %s", all));
    EXPECT(!strstr(ran.out, "changed since"), "an evaluation does not train: %s", ran.out);
}

/* Of maxima that earlier steps should have left: all missing, or those of some operands only. */
CASE(maxima_that_start_anew_are_warned_of) {
    char dir[512];
    snprintf(dir, sizeof(dir), "%s", make_dir("maxima"));
    put_base_run(dir);
    runs_in(dir, "base.json log.dir=bf16");
    runs_in(dir, "base.json log.dir=some precision.recipe=fp8 "
                 "precision.rules=[{\"gemm\":\"wgrad\",\"operand\":\"dy\",\"amax\":\"delayed\"}]");
    static const char *const warned[][3] = {
        // recipe, checkpoint, operands: of 8 linears' 6 each the weight's two have one maximum
        {"fp8_delayed", "bf16", "for 40 operands of this run, those of blocks.0.attn.qkv among"},
        {"ue5m3", "bf16", "for 40 operands of this run, those of blocks.0.attn.qkv among"},
        {"fp8_delayed", "some", "for 32 operands of this run, those of blocks.0.attn.qkv among"},
    };
    for (int i = 0; i < ARRAY_LEN(warned); i++) {
        runs_in(dir,
                text("base.json train.steps=5 precision.recipe=%s ckpt.resume=%s log.dir=to_%d",
                     warned[i][0], warned[i][1], i));
        EXPECT(strstr(ran.err, "_00000004 has no delayed or held maximum") &&
                   strstr(ran.err, warned[i][2]),
               "%s from %s: %s", warned[i][0], warned[i][1], ran.err);
    }
    runs_in(dir, "base.json train.steps=6 precision.recipe=fp8_delayed log.dir=to_0");
    EXPECT_EQ_I64(resumed_step(), 5);
    EXPECT(!strstr(ran.err, "maximum"), "of the same recipe: %s", ran.err);
    runs_in(dir, "base.json train.steps=7 precision.recipe=bf16 ckpt.resume=to_0 log.dir=back");
    EXPECT(!strstr(ran.err, "maximum"), "of a recipe without: %s", ran.err);
}

/* The head's chunks are sums in another order. */
CASE(chunks_of_the_head_are_a_change) {
    const char *dir = make_dir("chunks");
    put_base_run(dir);
    runs_in(dir, "base.json");
    runs_in(dir, "base.json train.steps=5 memory.lmhead_chunks=2");
    expect_changed("memory.lmhead_chunks: 0 -> 2", 1);
    expect_changed("train.steps: 4 -> 5", 1);
}

/* What multiplies the codes makes no other run of it: here "auto" emulates too. */
CASE(another_backend_goes_on) {
    char dir[512];
    snprintf(dir, sizeof(dir), "%s", make_dir("backend"));
    put_base_run(dir);
    const char *words = "base.json precision.recipe=nvfp4 sched.type=constant";
    runs_in(dir, text("%s train.steps=2", words));
    runs_in(dir, text("%s precision.backend=emulate", words));
    EXPECT_EQ_I64(resumed_step(), 2);
    expect_changed("precision.backend: auto -> emulate", 1);
    runs_in(dir, text("%s log.dir=whole", words));
    expect_same_file(text("%s/run/ckpt/step_00000004/model.safetensors", dir),
                     text("%s/whole/ckpt/step_00000004/model.safetensors", dir));
}

CASE(second_run_in_a_directory_is_refused) {
    char dir[512], command[1024];
    const char *base = reference_run("lock", "train.steps=2");
    snprintf(dir, sizeof(dir), "%s", make_dir("lock/second"));
    snprintf(command, sizeof(command), "%s/base.json train.steps=90 ckpt.every=5", base);
    Launch l = {.dir = dir};
    Program p = start_watched(&l, command);
    EXPECT(read_until(&p, "step 6/"), "%s", ran.err);
    EXPECT_EQ_I64(run_in(dir, command), EXIT_CONFIG, "%s", ran.err);
    const char *owner = text("another run writes in 'run' (process %d)", (int)p.pid);
    EXPECT(strstr(ran.err, "log.dir: ") && strstr(ran.err, owner), "%s", ran.err);
    EXPECT_EQ_I64(run_in(dir, text("%s log.dir=other ckpt.dir=run/ckpt", command)), EXIT_CONFIG);
    EXPECT(strstr(ran.err, "ckpt.dir: another run writes in 'run/ckpt'"), "%s", ran.err);
    kill(p.pid, SIGKILL);
    ran.out[0] = '\0';
    EXPECT_EQ_I64(finish_watched(&p), 128 + SIGKILL);
    runs_in(dir, command);   // the lock went with the process
}

TEST_MAIN_END
