/*
test_program_phases -- precision.schedule as a user meets it: how steps are labelled, in which
precision a validation at a switch is, what plans and records say of it, and what of it may change
when a run is resumed.
*/
#include "program.h"

#define NVFP4  "precision.recipe=nvfp4 precision.keep_bf16.last=0 "
#define SWITCH "precision.schedule=[{\"at\":4,\"gemm\":\"fprop\",\"recipe\":\"bf16\"}] "
#define LENGTH "train.steps=10 eval.every=2 ckpt.every=2 ckpt.keep=0 "

static char content[1 << 18];

static const char *record_of(const char *log_dir) {
    EXPECT(get_file(text("%s/metrics.jsonl", log_dir), content, sizeof(content)) > 0, "no record");
    drop_times(content);
    return content;
}

/* The validation loss after a step, NaN for none. */
static double validation_after(const char *log_dir, int64_t step) {
    read_record(log_dir);
    for (int i = 0; i < record.count; i++) {
        const RecordLine *line = &record.lines[i];
        if (line->is_validation && line->step == step) return line->loss;
    }
    return NAN;
}

/* In a directory of that name, which it returns. */
static const char *begin(const char *name, const char *words) {
    static char dir[512];
    snprintf(dir, sizeof(dir), "%s", make_dir(name));
    put_base_run(dir);
    runs_in(dir, text("base.json %s", words));
    return dir;
}

CASE(steps_have_the_phase_that_trained_them) {
    const char *dir = begin("labels", NVFP4 SWITCH LENGTH);
    const char *fourth = strstr(ran.out, "step 4/10 | loss"), *fifth = strstr(ran.out, "step 5/10");
    REQUIRE(fourth && fifth, "%s", ran.out);
    const char *tag = "| nvfp4(emulated) |", *next_tag = "| nvfp4(emulated)/phase1 |";
    EXPECT(strstr(fourth, tag) && strstr(fourth, tag) < strchr(fourth, '\n'), "%.120s", fourth);
    EXPECT(strstr(fifth, next_tag) && strstr(fifth, next_tag) < strchr(fifth, '\n'), "%.120s",
           fifth);
    EXPECT(strstr(ran.out, "phase 1 of precision.schedule from step 5 on: nvfp4(emulated)/phase1, "
                           "quantised operands in 16 of 24 GEMMs of a micro-step"),
           "%s", ran.out);
    const char *lines = record_of(text("%s/run", dir));
    const char *first_of_phase = strstr(lines, ",\"phase\":1");
    REQUIRE(first_of_phase, "%s", lines);
    while (first_of_phase > lines && first_of_phase[-1] != '\n') first_of_phase--;
    EXPECT(strncmp(first_of_phase, "{\"step\":4,", 10) == 0, "%.60s", first_of_phase);
    EXPECT(strstr(lines, "\n{\"step\":4,\"event\":\"phase\",\"value\":1}\n"), "%s", lines);
    get_file(text("%s/run/main.log", dir), content, sizeof(content));
    EXPECT(strstr(content, "\ns:4 phase:1\n"), "%s", content);
}

/* Until the switch a run with it is the run without. */
CASE(a_validation_is_in_the_precision_of_the_training_before_it) {
    const char *dir = begin("validation", NVFP4 SWITCH LENGTH);
    runs_in(dir, "base.json " NVFP4 LENGTH "log.dir=plain");
    double switched = validation_after(text("%s/run", dir), 4);
    EXPECT(switched == validation_after(text("%s/plain", dir), 4), "%.9g at the switch", switched);
    EXPECT(validation_after(text("%s/run", dir), 6) != validation_after(text("%s/plain", dir), 6),
           "the switch changes nothing");
    runs_in(dir, "eval run/config.resolved.json ckpt.resume=run/ckpt/step_00000004");
    EXPECT(strstr(ran.out, text("val loss %.6f", switched)), "not %.6f in\n%s", switched, ran.out);
}

/* Goes on from a copy of an earlier checkpoint, under the same name and record. */
static void go_back_to(const char *dir, int step) {
    for (int later = step + 2; later <= 10; later += 2)
        EXPECT_EQ_I64(system(text("rm -r %s/run/ckpt/step_%08d", dir, later)), 0);
}

CASE(a_run_resumed_at_a_switch_leaves_the_same_record) {
    const char *dir = begin("resumed", NVFP4 SWITCH LENGTH);
    EXPECT_EQ_I64(system(text("cp -r %s/run %s/whole", dir, dir)), 0);
    for (int step = 8; step >= 2; step -= 2) {
        go_back_to(dir, step);
        runs_in(dir, "base.json " NVFP4 SWITCH LENGTH);
        EXPECT(strstr(ran.out, text("step_%08d: step %d,", step, step)), "%s", ran.out);
        expect_same_record(text("%s/run", dir), text("%s/whole", dir));
        expect_same_file(text("%s/run/ckpt/step_00000010/model.safetensors", dir),
                         text("%s/whole/ckpt/step_00000010/model.safetensors", dir));
        int said = strstr(ran.out, "phase 1 of precision.schedule from step 5 on") != NULL;
        EXPECT(said, "resumed at %d:\n%s", step, ran.out);
    }
}

CASE(plans_have_the_schedule) {
    const char *dir = begin("plans", NVFP4 SWITCH LENGTH);
    static const char wanted[] =
        "phase 1     after step 4 of 10: layers *, gemm fprop, recipe bf16\n"
        "blocks.0-1.attn.qkv         fprop  x  bf16";
    EXPECT(strstr(ran.out, wanted), "training: %s", ran.out);
    get_file(text("%s/run/plan.txt", dir), content, sizeof(content));
    EXPECT(strstr(content, wanted), "plan.txt: %s", content);
    EXPECT(!strstr(strstr(content, "phase 1 "), "wgrad"), "not changed: %s", content);
    runs_in(dir, "plan base.json plan.device=H200 " NVFP4 SWITCH LENGTH);
    EXPECT(strstr(ran.out, wanted), "plan: %s", ran.out);
    EXPECT(strstr(ran.out, "of the first phase: precision.schedule has not begun"), "%s", ran.out);
    runs_in(dir, "base.json --dry-run log.dir=other " NVFP4 SWITCH LENGTH);
    EXPECT(strstr(ran.out, wanted), "dry run: %s", ran.out);
    runs_in(dir, "plan model.preset=gpt2-124m device=cpu precision.recipe=nvfp4 "
                 "precision.schedule=[{\"at\":\"82%\",\"recipe\":\"bf16\",\"lr\":{\"peak\":1e-3}}] "
                 "sched.final_frac=0.25");
    EXPECT(strstr(ran.out,
                  "phase 1     after 82 % of the steps: layers *, recipe bf16; learning rate "
                  "warmed up again in 40 steps to 0.001, then down to 0.25 of it"),
           "%s", ran.out);
}

CASE(rules_are_in_the_tag) {
    begin("rules", NVFP4 "precision.wgrad.x.hadamard=0 precision.wgrad.dy.hadamard=0");
    EXPECT(strstr(ran.out, "| nvfp4+rules(emulated) |"), "%s", ran.out);
}

CASE(the_past_of_a_schedule_does_not_change) {
    const char *dir = begin("past", NVFP4 SWITCH LENGTH);
    static const char *const refused[][2] = {
        {"precision.schedule=[{\"at\":4,\"gemm\":\"wgrad\",\"recipe\":\"bf16\"}]",
         "step_00000010, at step 10, is a checkpoint of another run: precision.schedule[0] had "
         "begun, and is another entry now, or gone"},
        {"", "precision.schedule[0] had begun, and is another entry now"},
        {"precision.schedule=[{\"at\":4,\"gemm\":\"fprop\",\"recipe\":\"bf16\"},{\"at\":8,"
         "\"recipe\":\"bf16\"}]",
         "precision.schedule[1] begins after step 8, which has passed without it"},
        {SWITCH "precision.osci_reset.start=1 precision.osci_reset.window=2",
         "precision.osci_reset.start: 0 -> 1"},
        {SWITCH "precision.out_control.fraction=0.1 precision.out_control.to=12 "
                "precision.out_control.from=11",
         "precision.out_control.fraction: 0 -> 0.1"},
    };
    for (int i = 0; i < ARRAY_LEN(refused); i++) {
        const char *line = text("base.json " NVFP4 LENGTH "train.steps=14 %s", refused[i][0]);
        EXPECT_EQ_I64(run_in(dir, line), EXIT_CONFIG, "%s", refused[i][0]);
        EXPECT(strstr(ran.err, refused[i][1]), "got %s\nwant %s", ran.err, refused[i][1]);
        EXPECT(!strstr(ran.out, "embedding, norms"), "the plan comes first:\n%s", ran.out);
    }
    runs_in(dir, "base.json " NVFP4 LENGTH "train.steps=14 ckpt.resume=run log.dir=meant "
                 "precision.schedule=[{\"at\":8,\"recipe\":\"bf16\"}]");
    EXPECT(strstr(ran.out, "changed since the checkpoint: precision.schedule[0] had begun"), "%s",
           ran.out);
    // What is still to come may change, and so may what people turn while a run goes on.
    runs_in(dir, "base.json " NVFP4 LENGTH "train.steps=14 optim.lr=1e-3 sched.type=linear "
                 "precision.schedule=[{\"at\":4,\"gemm\":\"fprop\",\"recipe\":\"bf16\"},"
                 "{\"at\":12,\"recipe\":\"bf16\"}]");
    EXPECT(strstr(ran.out, "changed since the checkpoint: precision.schedule: "), "%s", ran.out);
    EXPECT(strstr(ran.out, "changed since the checkpoint: optim.lr: 0.003 -> 0.001"), "%s",
           ran.out);
    EXPECT(strstr(ran.out, "phase 2 of precision.schedule from step 13 on"), "%s", ran.out);
}

/* A share of another length would be another step. */
CASE(a_longer_run_keeps_the_step_of_a_share) {
    const char *share = "precision.schedule=[{\"at\":0.5,\"gemm\":\"fprop\",\"recipe\":\"bf16\"}] ";
    const char *dir = begin("share", text(NVFP4 LENGTH "%s", share));
    const char *longer = text("base.json " NVFP4 LENGTH "train.steps=14 %s", share);
    EXPECT_EQ_I64(run_in(dir, longer), EXIT_CONFIG, "%s", ran.out);
    EXPECT(strstr(ran.err, "precision.schedule[0] had begun after step 5, which is step 7 now "
                           "(\"at\": 5 keeps it)"),
           "%s", ran.err);
}

CASE(keys_whose_time_never_comes_are_refused) {
    const char *dir = begin("idle", "");
    static const char *const refused[][2] = {
        {"precision.out_control.fraction=0.1",
         "precision.out_control.to is 550, but the run has 4 steps: no step would come after the "
         "choice of features; legal: up to 3, or set precision.out_control.fraction=0"},
        {"precision.osci_reset.start=100",
         "precision.osci_reset.start is 100 and window 50: the first reset would come in step 151, "
         "but the run has 4; legal: start + window below 4"},
    };
    for (int i = 0; i < ARRAY_LEN(refused); i++) {
        for (int dry = 0; dry < 2; dry++) {
            const char *line =
                text("base.json " NVFP4 "%s%s", refused[i][0], dry ? " --dry-run" : "");
            EXPECT_EQ_I64(run_in(dir, line), EXIT_CONFIG, "%s", line);
            EXPECT(strstr(ran.err, refused[i][1]), "got %s\nwant %s", ran.err, refused[i][1]);
        }
    }
}

/* A run's BF16 reference keeps all other keys. */
CASE(keys_that_a_reference_has_no_use_for_are_warned_of) {
    const char *dir = begin("reference", "");
    static const char *const kept[][2] = {
        {"precision.out_control.fraction=0.1 precision.out_control.from=1 "
         "precision.out_control.to=2",
         "warning: precision.out_control.fraction is 0.1, which does nothing in this run"},
        {"precision.osci_reset.start=1 precision.osci_reset.window=1",
         "warning: precision.osci_reset.start is 1, which does nothing in this run"},
        {"model.act=swiglu precision.smooth_swiglu=token",
         "warning: precision.smooth_swiglu is token, which changes nothing but roundings"},
    };
    for (int i = 0; i < ARRAY_LEN(kept); i++) {
        runs_in(dir,
                text("base.json precision.recipe=bf16 log.dir=other --dry-run %s", kept[i][0]));
        EXPECT(strstr(ran.err, kept[i][1]), "got %s\nwant %s", ran.err, kept[i][1]);
        runs_in(dir, text("base.json " NVFP4 "log.dir=other --dry-run %s", kept[i][0]));
        EXPECT(!strstr(ran.err, "does nothing") && !strstr(ran.err, "changes nothing"), "%s",
               ran.err);
    }
}

/* The backward pass in BF16 drops no gradients of clipped elements, and one entry can say so. */
CASE(a_masked_recipe_switches_its_backward_pass) {
    const char *dir =
        begin("masked", "precision.recipe=quartet precision.schedule="
                        "[{\"at\":2,\"gemm\":\"backward\",\"recipe\":\"bf16\",\"mask\":0}]");
    get_file(text("%s/run/plan.txt", dir), content, sizeof(content));
    const char *later = strstr(content, "phase 1 ");
    REQUIRE(later, "%s", content);
    EXPECT(!strstr(later, "ht32 mask") && strstr(later, "fprop  x  mxfp4 1x32 quest ht32 "), "%s",
           later);
    EXPECT(strstr(later, "GEMMs with quantised operands: 8 of 24"), "%s", later);
    EXPECT_EQ_I64(run_in(dir, "base.json log.dir=other precision.recipe=quartet precision.schedule="
                              "[{\"at\":2,\"gemm\":\"backward\",\"recipe\":\"bf16\"}]"),
                  EXIT_CONFIG);
    EXPECT(strstr(ran.err, "from precision.schedule[0] on: fprop.x: a mask needs blocks") &&
               strstr(ran.err, "add \"mask\": 0 to the rule or schedule entry that changes dgrad"),
           "%s", ran.err);
}

CASE(resets_are_in_the_record) {
    const char *dir =
        begin("osci", NVFP4 "precision.osci_reset.start=1 precision.osci_reset.window=1 "
                            "precision.osci_reset.threshold=0.5");
    const char *line = strstr(ran.out, "osci_reset  step 3: ");
    REQUIRE(line, "%s", ran.out);
    int count = atoi(line + strlen("osci_reset  step 3: "));
    EXPECT(count > 0, "%s", line);
    const char *lines = record_of(text("%s/run", dir));
    EXPECT(strstr(lines, text("{\"step\":2,\"event\":\"osci_reset\",\"value\":%d}\n", count)), "%s",
           lines);
    get_file(text("%s/run/main.log", dir), content, sizeof(content));
    EXPECT(strstr(content, text("\ns:2 osci_reset:%d\n", count)), "%s", content);
}

TEST_MAIN_END
