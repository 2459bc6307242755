/*
test_program -- the whole program from the command line: what each verb prints and writes, that
training learns, what a run's record holds, and how a run ends that diverges. Resuming, ranks and
bad inputs are test_program_resume.c's, test_program_ranks.c's and test_program_errors.c's.
*/
#include "program.h"

#define NVFP4 "precision.recipe=nvfp4 precision.keep_bf16.last=0 "

/* A directory of its own with the data of put_base_run; programs run in it. */
static const char *new_dir(const char *name) {
    static char dir[512];
    snprintf(dir, sizeof(dir), "%s", make_dir(name));
    put_base_run(dir);
    return dir;
}

/* The lines of `content` that begin with `prefix`. */
static int count_lines(const char *content, const char *prefix) {
    int count = 0;
    for (const char *line = content; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        count += strncmp(line, prefix, strlen(prefix)) == 0;
    }
    return count;
}

// --- verbs that write nothing ---

CASE(plan_and_dry_run_write_nothing) {
    const char *dir = new_dir("plan");
    static const char *const lines[] = {"plan base.json ", "--dry-run base.json ",
                                        "train base.json --dry-run "};
    int before = count_entries(dir, "");
    for (int i = 0; i < ARRAY_LEN(lines); i++) {
        runs_in(dir, text("%s" NVFP4, lines[i]));
        EXPECT(strstr(ran.out, "\nGEMMs with quantised operands: 24 of 24 a micro-step\n"), "%s",
               ran.out);
        EXPECT(strstr(ran.out, "\nrun         4 steps, 512 tokens\n"), "%s", ran.out);
        EXPECT(strstr(ran.out, "128 tokens = 2 sequences of 32 x 2 micro-steps x 1 ranks"), "%s",
               ran.out);
        EXPECT(strstr(ran.out, "\noptimizer "), "%s", ran.out);
        EXPECT_EQ_I64(strlen(ran.err), 0, "%s", ran.err);
        EXPECT_EQ_I64(count_entries(dir, ""), before, "files after %s", lines[i]);
    }
    runs_in(dir, "plan base.json precision.recipe=bf16 train.steps=0");
    EXPECT(strstr(ran.out, "\nprecision   bf16: all 24 GEMMs of the linears\n"), "%s", ran.out);
    EXPECT(!strstr(ran.out, "\nrun "), "%s", ran.out);
}

/* Needs neither data nor a length. */
CASE(selftest_prints_a_table) {
    const char *dir = new_dir("selftest");
    int before = count_entries(dir, "");
    setenv("XDG_CACHE_HOME", text("%s/cache", dir), 1);
    runs_in(dir, "selftest model.layers=2 model.dim=64 model.heads=2 model.vocab=100 "
                 "batch.micro=2 batch.seq_len=32 " NVFP4);
    unsetenv("XDG_CACHE_HOME");
    EXPECT_EQ_I64(count_lines(ran.out, "PASS  gemm wgrad 192x64x64 nvfp4 emulated"), 1, "%s",
                  ran.out);
    EXPECT_EQ_I64(count_lines(ran.out, "FAIL"), 0, "%s", ran.out);
    EXPECT_EQ_I64(count_lines(ran.out, "      check  "), 1, "%s", ran.out);
    EXPECT_EQ_I64(count_lines(ran.out, "errors are absolute"), 1, "%s", ran.out);
    EXPECT(strstr(ran.out, " passed, 0 failed\n"), "%s", ran.out);
    EXPECT_EQ_I64(count_entries(dir, ""), before + 1, "the cache, and nothing else");
}

CASE(help_lists_keys_and_verbs) {
    runs_in(NULL, "--help");
    EXPECT_EQ_I64(count_lines(ran.out, "usage: train_gpt_nvfp4 [verb] config.json"), 1);
    EXPECT_EQ_I64(count_lines(ran.out, "  sample "), 1);
    runs_in(NULL, "help");
    EXPECT(strstr(ran.out, "optim.lr") && strstr(ran.out, "data.tokenizer") &&
               strstr(ran.out, "precision.keep_bf16.first"),
           "%s", ran.out);
    runs_in(NULL, "help optim.lr");
    EXPECT(strstr(ran.out, "optim.lr: peak learning rate"), "%s", ran.out);
    EXPECT(strstr(ran.out, "\n  default  6e-4\n"), "%s", ran.out);
    runs_in(NULL, "help llama-30m");
    EXPECT(strstr(ran.out, "30,482,560"), "%s", ran.out);
}

// --- verbs on a checkpoint ---

/* The text behind "val loss " in the last program's output. */
static const char *printed_val_loss(void) {
    const char *found = strstr(ran.out, "val loss ");
    return found ? text("%.*s", (int)strcspn(found + 9, " "), found + 9) : "none";
}

static void eval_equals_validation(const char *name, const char *words) {
    const char *dir = new_dir(name);
    runs_in(dir, text("base.json eval.every=2 ckpt.every=2 train.steps=6 ckpt.keep=0 %s", words));
    double losses[8];
    EXPECT_EQ_I64(read_losses(text("%s/run", dir), 1, losses), 4);   // steps 0, 2, 4, 6
    EXPECT(losses[3] < losses[0], "val loss from %g to %g", losses[0], losses[3]);
    // Neither the training data nor the length of the run is needed any more.
    char eval[512];
    snprintf(eval, sizeof(eval), "eval base.json data.train=absent.bin train.steps=0 %s", words);
    runs_in(dir, eval);
    EXPECT(strcmp(printed_val_loss(), text("%.6f", losses[3])) == 0, "%s, trained to %.6f",
           printed_val_loss(), losses[3]);
    EXPECT(strstr(ran.out, "step 6 | val loss ") && strstr(ran.out, " | 256 tokens | "), "%s",
           ran.out);
    runs_in(dir, text("%s ckpt.resume=run/ckpt/step_00000004", eval));
    EXPECT(strcmp(printed_val_loss(), text("%.6f", losses[2])) == 0, "%s, was %.6f",
           printed_val_loss(), losses[2]);
    runs_in(dir, text("%s ckpt.resume=never", eval));
    EXPECT(strcmp(printed_val_loss(), text("%.6f", losses[3])) == 0, "%s", printed_val_loss());
    runs_in(dir, "ckpt verify run/ckpt");
    EXPECT(strstr(ran.out, "checkpoint run/ckpt/step_00000006\n"), "%s", ran.out);
    EXPECT(strcmp(ran.out + strlen(ran.out) - 4, "\nOK\n") == 0, "%s", ran.out);
}

CASE(eval_equals_validation_bf16) { eval_equals_validation("eval_bf16", "precision.recipe=bf16"); }
CASE(eval_equals_validation_nvfp4) { eval_equals_validation("eval_nvfp4", NVFP4); }
CASE(eval_equals_validation_llama) {
    eval_equals_validation("eval_llama", NVFP4
                           "model.norm=rmsnorm model.act=swiglu model.pos=rope model.bias=false "
                           "model.tied=false model.kv_heads=1 memory.lmhead_chunks=2");
}

typedef struct {
    char text[1024];
} Sample;

/* What a sample printed, without the line on the checkpoint. */
static Sample sampled(const char *dir, const char *words) {
    Sample s = {""};
    runs_in(dir, text("sample base.json data.train=absent.bin data.tokenizer=byte.vocab "
                      "sample.prompt=abc sample.tokens=40 " NVFP4 "%s",
                      words));
    const char *line = strchr(ran.out, '\n');
    EXPECT(strncmp(ran.out, "loaded ", 7) == 0 && line, "%s", ran.out);
    if (line) snprintf(s.text, sizeof(s.text), "%s", line + 1);
    return s;
}

static int same(const Sample *a, const Sample *b) { return strcmp(a->text, b->text) == 0; }

CASE(samples_are_a_function_of_the_seed) {
    const char *dir = new_dir("sample");
    runs_in(dir, "base.json train.steps=60 data.tokenizer=byte.vocab " NVFP4);
    Sample first = sampled(dir, "sample.top_k=9"), again = sampled(dir, "sample.top_k=9");
    Sample cooler = sampled(dir, "sample.top_k=9 sample.temperature=0.1");
    Sample greedy = sampled(dir, "sample.temperature=0"), top = sampled(dir, "sample.top_k=1");
    EXPECT(strncmp(first.text, "abc", 3) == 0, "%s", first.text);
    EXPECT_EQ_I64(strlen(first.text), 3 + 40 + 1, "%s", first.text);   // beyond batch.seq_len too
    EXPECT(same(&first, &again), "%s and %s", first.text, again.text);
    EXPECT(!same(&first, &cooler) && !same(&first, &greedy), "%s", first.text);
    EXPECT(same(&greedy, &top), "%s and %s", greedy.text, top.text);
    Sample two = sampled(dir, "sample.top_k=9 sample.count=2");
    EXPECT_EQ_I64(strlen(two.text), 2 * (3 + 40 + 1), "%s", two.text);
    EXPECT_EQ_I64(count_lines(two.text, "abc"), 2, "%s", two.text);
    EXPECT(strncmp(two.text, first.text, strlen(first.text)) == 0, "%s", two.text);
    EXPECT(strcmp(two.text + strlen(first.text), first.text) != 0, "two equal: %s", two.text);
}

/* Also of a context that is no multiple of 32, on the way of a training that must not notice. */
CASE(samples_while_training_change_nothing) {
    const char *dir = new_dir("sampling");
    const char *words = "base.json batch.seq_len=16 train.steps=6 eval.every=2 " NVFP4;
    runs_in(dir, text("%s log.dir=quiet", words));
    runs_in(dir, text("%s log.dir=run sample.every=2 sample.tokens=20 sample.prompt=xyz "
                      "sample.temperature=0 "
                      "data.tokenizer=byte.vocab",
                      words));
    EXPECT_EQ_I64(count_lines(ran.out, "xyz"), 3, "of %s", ran.out);
    expect_same_record(text("%s/run", dir), text("%s/quiet", dir));
}

CASE(help_answers_every_word_and_version_says_which_program) {
    runs_in(NULL, "help optim.lr nvfp4 log");
    EXPECT(strncmp(ran.out, "optim.lr: ", 10) == 0 &&
               strstr(ran.out, "\n\nprecision.recipe=nvfp4") && strstr(ran.out, "\n\n  log.dir "),
           "%s", ran.out);
    runs_in(NULL, "--version");
    EXPECT(strncmp(ran.out, "train_gpt_nvfp4 ", 16) == 0 && strstr(ran.out, ", CPU build ("), "%s",
           ran.out);
}

CASE(directory_of_a_run_for_every_verb) {
    const char *dir = new_dir("directory");
    runs_in(dir, "base.json data.tokenizer=byte.vocab");
    static const char *const lines[] = {
        "eval run",        "plan run",          "sample run sample.tokens=4",
        "ckpt verify run", "run train.steps=5", "run log.dir=other ckpt.resume=run train.steps=6"};
    for (int i = 0; i < ARRAY_LEN(lines); i++) runs_in(dir, lines[i]);
    EXPECT(strstr(ran.out, "run/ckpt/step_00000005: step 5"), "%s", ran.out);
    EXPECT_EQ_I64(count_entries(text("%s/other/ckpt", dir), "step_"), 1, "checkpoints");
}

CASE(plan_tells_what_differs) {
    const char *dir = new_dir("start");
    runs_in(dir, "plan base.json eval.micro=3");
    EXPECT(strstr(ran.out, "\nprecision   bf16: all 24 GEMMs of the linears\n") &&
               !strstr(ran.out, "attn.qkv"),
           "%s", ran.out);
    EXPECT(strstr(ran.out, "\nvalidation  192 of the 256 tokens of data.val\n"), "%s", ran.out);
    runs_in(dir, "plan base.json eval.tokens=300 " NVFP4);
    EXPECT(strstr(ran.out, "\nprecision   nvfp4(emulated): formats as in `help precision`\n") &&
               strstr(ran.out, "blocks.0-1.attn.qkv         fprop  x  nvfp4 1x16"),
           "%s", ran.out);
    EXPECT(strstr(ran.out, "validation  256 of the 256 tokens of data.val; eval.tokens asks for "
                           "300\n"),
           "%s", ran.out);
    runs_in(dir, "base.json data.val= train.steps=1");
    EXPECT(strstr(ran.out, "\nvalidation  no data.val: no validation\n"), "%s", ran.out);
}

CASE(keys_that_change_nothing_are_warned_of) {
    static const struct {
        const char *words, *warning;
    } rows[] = {
        {"precision.gemm=mma",
         "warning: precision.gemm=mma changes nothing: it matters to products of NVFP4"},
        {"precision.recipe=fp8 precision.gemm=mma", "warning: precision.gemm=mma changes nothing"},
        {"precision.backend=native", "warning: precision.backend=native changes nothing"},
    };
    const char *dir = new_dir("idle");
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        runs_in(dir, text("plan base.json %s", rows[i].words));
        EXPECT(strncmp(ran.err, rows[i].warning, strlen(rows[i].warning)) == 0, "%s: %s",
               rows[i].words, ran.err);
    }
    runs_in(dir, "plan base.json precision.backend=emulate");
    EXPECT_EQ_I64(strlen(ran.err), 0, "%s", ran.err);
}

CASE(a_preset_behind_a_file_is_warned_of) {
    const char *dir = new_dir("preset");
    runs_in(dir, "plan base.json model.preset=s1-7m batch.seq_len=32");
    EXPECT(strstr(ran.err, "warning: model.preset s1-7m is not the whole model") &&
               strstr(ran.err, "\nmodel.layers: 4 -> 2\nmodel.dim: 384 -> 64\n"),
           "%s", ran.err);
}

// --- what a run leaves ---

static void expect_run_field(const char *dir, const char *key, const char *want) {
    const char *got = run_field(text("%s/run", dir), key);
    EXPECT(strcmp(got, want) == 0, "%s is %s, want %s", key, got, want);
}

CASE(run_json_and_plan) {
    const char *dir = new_dir("records");
    static char plan[1 << 14];
    runs_in(dir, "base.json " NVFP4);
    expect_run_field(dir, "precision", "nvfp4(emulated)");
    expect_run_field(dir, "backend", "emulated");
    expect_run_field(dir, "world_size", "1");
    expect_run_field(dir, "first_step", "0");
    expect_run_field(dir, "total_steps", "4");
    expect_run_field(dir, "exit_code", "0");
    expect_run_field(dir, "exit_reason", "finished");
    EXPECT(strncmp(run_field(text("%s/run", dir), "build"), "CPU build", 9) == 0, "build");
    EXPECT(strlen(run_field(text("%s/run", dir), "started")) == strlen("2026-01-01T00:00:00Z"),
           "started");
    get_file(text("%s/run/plan.txt", dir), plan, sizeof(plan));
    EXPECT_EQ_I64(count_lines(plan, "blocks."), 2 * 4 * 3, "%s", plan);
    EXPECT_EQ_I64(count_lines(plan, "blocks.1.mlp.down           wgrad  dy nvfp4"), 1, "%s", plan);
    runs_in(dir, "base.json log.dir=plain");
    get_file(text("%s/plain/plan.txt", dir), plan, sizeof(plan));
    EXPECT_EQ_I64(count_lines(plan, "blocks.0.attn.qkv           fprop  x  bf16"), 1, "%s", plan);
    EXPECT(strcmp(run_field(text("%s/plain", dir), "backend"), "plain") == 0, "backend");
}

CASE(metrics_hold_every_step) {
    const char *dir = new_dir("metrics");
    runs_in(dir, "base.json train.steps=10 sched.warmup_steps=4 sched.final_frac=0.1 eval.every=5 "
                 "log.every=3");
    read_record(text("%s/run", dir));
    EXPECT_EQ_I64(record.count, 10 + 3);   // validations of steps 0, 5, 10
    int step = 0;
    for (int i = 0; i < record.count; i++) {
        const RecordLine *r = &record.lines[i];
        EXPECT_EQ_I64(r->is_validation, i == 0 || i == 6 || i == 12, "line %d", i);
        EXPECT_EQ_I64(r->step, step, "line %d", i);
        EXPECT_EQ_I64(r->tokens, (step + !r->is_validation) * 128, "line %d", i);
        EXPECT(r->loss > 1 && r->loss < 7, "line %d: loss %g", i, r->loss);
        if (r->is_validation) continue;
        EXPECT(r->grad_norm > 0 && !r->skipped && !r->nonfinite, "line %d", i);
        if (step < 4) EXPECT_NEAR(r->lr, 3e-3 * (step + 1) / 4, 1e-9, "step %d", step);
        if (step == 9) EXPECT_NEAR(r->lr, 3e-4, 1e-10, "the last step");
        step++;
    }
    EXPECT_EQ_I64(count_lines(ran.out, "step 3/10 | loss "), 1, "%s", ran.out);
    EXPECT_EQ_I64(count_lines(ran.out, "step 4/10 | loss "), 0, "%s", ran.out);
    EXPECT_EQ_I64(count_lines(ran.out, "step 5/10 | val loss "), 1, "%s", ran.out);
    EXPECT_EQ_I64(count_lines(ran.out, "step 10/10 | loss "), 1, "%s", ran.out);
}

/* config.resolved.json alone makes the same run again, whatever was said on the command line. */
CASE(resolved_config_makes_the_same_run) {
    const char *dir = new_dir("resolved");
    runs_in(dir, "base.json train.steps=5 optim.lr=1e-3 seed=9007199254740993 eval.every=2 "
                 "precision.wgrad.x.hadamard=0 precision.wgrad.dy.hadamard=0 " NVFP4);
    or_exit(rename(text("%s/run", dir), text("%s/first", dir)) == 0, "rename");
    runs_in(dir, "first/config.resolved.json");
    expect_same_record(text("%s/run", dir), text("%s/first", dir));
    expect_same_file(text("%s/run/config.resolved.json", dir),
                     text("%s/first/config.resolved.json", dir));
}

/* The gap to a run with the same losses is none. */
CASE(gap_to_a_reference) {
    const char *dir = new_dir("gap");
    runs_in(dir, "base.json log.dir=reference");
    runs_in(dir, "base.json log.reference=reference");
    EXPECT(strstr(ran.out, "gap: (loss - reference) / reference"), "%s", ran.out);
    EXPECT(strstr(ran.out, " | bf16 | gap +0.0% | eta "), "%s", ran.out);
    const char *validation = strstr(ran.out, "step 4/4 | val loss ");
    EXPECT(validation && strstr(validation, " | gap +0.0%\n"), "%s", ran.out);
}

// --- training ---

/* The stream draws 28/256 of its tokens anew, which leaves 0.80 nats a token to a model that knows
   all the rest; its unigrams have ln 64 = 4.16. */
CASE(training_learns_and_nvfp4_stays_close) {
    const char *dir = new_dir("learning");
    put_shard(text("%s/train_0.bin", dir), 1 << 15, 11);
    put_shard(text("%s/val.bin", dir), 1 << 13, 12);
    const char *words = "base.json train.steps=150 batch.micro=8 batch.total_tokens=512 "
                        "sched.warmup_steps=10 data.train=train_0.bin log.every=50 ";
    runs_in(dir, text("%s log.dir=bf16", words));
    runs_in(dir, text("%s log.dir=nvfp4 " NVFP4, words));
    double bf16[4], nvfp4[4];
    EXPECT_EQ_I64(read_losses(text("%s/bf16", dir), 1, bf16), 1);
    EXPECT_EQ_I64(read_losses(text("%s/nvfp4", dir), 1, nvfp4), 1);
    EXPECT(bf16[0] > 0.75 && bf16[0] < 1.2, "BF16 ends at %g", bf16[0]);
    EXPECT_NEAR(nvfp4[0] / bf16[0], 1, 0.05, "NVFP4 ends at %g, BF16 at %g", nvfp4[0], bf16[0]);
    EXPECT(nvfp4[0] != bf16[0], "NVFP4 is BF16");
}

/* How a step is cut into micro-batches, and the head into parts, changes sums' order only: 1e-6 in
   f32. In BF16 now and then a weight rounds the other way after an update, so 1e-4 there. */
static void micro_batches_change_nothing(const char *name, const char *words, double tolerance) {
    static const char *const cuts[] = {"batch.micro=2", "batch.micro=4",
                                       "batch.micro=8 memory.lmhead_chunks=2"};
    const char *dir = new_dir(name);
    double want[16], got[16];
    for (int i = 0; i < ARRAY_LEN(cuts); i++) {
        runs_in(dir, text("base.json batch.total_tokens=256 train.steps=10 eval.micro=2 "
                          "log.dir=cut_%d %s %s",
                          i, words, cuts[i]));
        for (int is_validation = 0; is_validation < 2; is_validation++) {
            int count = read_losses(text("%s/cut_0", dir), is_validation, want);
            EXPECT_EQ_I64(read_losses(text("%s/cut_%d", dir, i), is_validation, got), count);
            EXPECT_EQ_I64(count, is_validation ? 1 : 10);
            for (int k = 0; k < count; k++)
                EXPECT_NEAR(got[k] / want[k], 1, tolerance, "step %d, %s", k, cuts[i]);
        }
    }
}

CASE(micro_batches_change_nothing_in_f32) {
    micro_batches_change_nothing("micro_f32", "precision.recipe=f32 model.dtype=f32", 1e-6);
}
CASE(micro_batches_change_nothing_in_bf16) {
    micro_batches_change_nothing("micro_bf16", "precision.recipe=bf16", 1e-4);
}

// --- divergence ---

#define ABSURD "base.json optim.lr=100 sched.type=constant optim.grad_clip=1 train.steps=60 "

CASE(divergence_ends_the_run) {
    const char *dir = new_dir("diverged");
    EXPECT_EQ_I64(run_in(dir, ABSURD), EXIT_DIVERGED, "%s", ran.err);
    read_record(text("%s/run", dir));
    const RecordLine *last = &record.lines[record.count - 1];
    const char *step = text("error: step %lld: loss nan", (long long)last->step + 2);
    EXPECT(strncmp(ran.err, step, strlen(step)) == 0, "want \"%s\": %s", step, ran.err);
    EXPECT(strstr(ran.err, "It begins in rank 0, micro-batch 1 of 2 (sequences ") &&
               strstr(ran.err, "the residual stream is not finite behind ") &&
               strstr(ran.err, "in backward's order that is not finite: embed.tokens.weight. ") &&
               strstr(ran.err, "scripts/replay.py run/replay_step_") &&
               strstr(ran.err, "guard.nan=skip"),
           "%s", ran.err);
    EXPECT(isfinite(last->loss), "the last step that was recorded");
    expect_run_field(dir, "exit_code", "6");
    EXPECT(strstr(run_field(text("%s/run", dir), "exit_reason"), "gradient norm nan"), "run.json");
}

/* Nine steps in a row are skipped, the tenth ends the run: by then the weights are lost. */
CASE(divergence_is_skipped_where_asked) {
    const char *dir = new_dir("skipped");
    EXPECT_EQ_I64(run_in(dir, ABSURD "guard.nan=skip"), EXIT_DIVERGED, "%s", ran.err);
    read_record(text("%s/run", dir));
    int skipped = 0, first = 0;
    for (int i = 0; i < record.count && !record.lines[i].is_validation; i++) {
        const RecordLine *r = &record.lines[i];
        EXPECT(r->skipped == r->nonfinite && r->nonfinite == !isfinite(r->loss), "line %d", i);
        if (!skipped) first = i;
        skipped += r->skipped;
    }
    EXPECT(skipped == 9 && record.count == first + 9, "%d skipped, from %d of %d", skipped, first,
           record.count);
    EXPECT(strstr(ran.out, " | skipped | eta "), "%s", ran.out);
}

TEST_MAIN_END
