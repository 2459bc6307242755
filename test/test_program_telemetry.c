/*
test_program_telemetry -- telemetry as a user meets it: the lines of the record, a training that is
the same with it and without, on the CPU down to the bytes of its checkpoint; precision.schedule's
"sqrt3"; the validation in BF16.
*/
#include "program.h"

#define NVFP4 "precision.recipe=nvfp4 precision.keep_bf16.last=0 "
#define LOOKS "log.telemetry_every=2 log.gradient_noise=true "

/* Drops the lines of a record that hold the word; counts them. */
static int drop_lines(char *lines, const char *word) {
    char *to = lines;
    int dropped = 0;
    for (char *line = lines, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        char *found = strstr(line, word);
        size_t bytes = (size_t)(end + 1 - line);
        if (found && found < end) {
            dropped++;
        } else {
            memmove(to, line, bytes);
            to += bytes;
        }
    }
    *to = '\0';
    return dropped;
}

static char *record_of(const char *dir, char *content, size_t room) {
    EXPECT(get_file(text("%s/metrics.jsonl", dir), content, room) > 0, "no record in %s", dir);
    drop_times(content);
    return content;
}

static void same_with_telemetry(const char *name, const char *words) {
    static char seen[1 << 18], unseen[1 << 18];
    const char *dir = make_dir(name);
    put_base_run(dir);
    runs_in(dir, text("base.json log.dir=unseen %s", words));
    runs_in(dir, text("base.json log.dir=seen %s " LOOKS, words));
    EXPECT(strstr(ran.out, "telemetry before step 1 | gain ") && strstr(ran.out, "| gradient SNR "),
           "%s", ran.out);
    EXPECT(strstr(ran.out, "telemetry   "), "no arena in\n%s", ran.out);
    record_of(text("%s/seen", dir), seen, sizeof(seen));
    record_of(text("%s/unseen", dir), unseen, sizeof(unseen));
    EXPECT_EQ_I64(drop_lines(seen, "\"telemetry\""), 2 * 8 * 3, "looks, linears, GEMMs");
    EXPECT_EQ_I64(drop_lines(seen, "\"gradient_snr\""), 2);
    EXPECT(strcmp(seen, unseen) == 0, "got\n%s\nwant\n%s", seen, unseen);
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    for (int i = 0; i < 2; i++)
        expect_same_file(text("%s/seen/ckpt/step_00000004/%s", dir, files[i]),
                         text("%s/unseen/ckpt/step_00000004/%s", dir, files[i]));
}

CASE(training_is_the_same_with_telemetry) { same_with_telemetry("same", NVFP4); }

/* Norms of features and movements of weights are kept from step to step. */
CASE(what_recipes_keep_is_the_same_with_telemetry) {
    same_with_telemetry("kept", "precision.recipe=tetrajet2 precision.out_control.fraction=0.25 "
                                "precision.out_control.from=1 precision.out_control.to=2 "
                                "precision.osci_reset.start=1 precision.osci_reset.period=3 "
                                "precision.osci_reset.window=1 precision.osci_reset.threshold=1");
}

/* With dY's maximum that of earlier steps, and none before the first one, its block scales are all
   0 there: the gradient is lost, and its distance from the true one is that one's size. */
static void expect_a_switch(const char *dir, int ranks) {
    Launch l = {.dir = dir, .ranks = ranks};
    static char lines[1 << 18];
    runs(&l, text("base.json " NVFP4 LOOKS "log.dir=ranks_%d batch.total_tokens=2048 "
                  "precision.rules="
                  "[{\"operand\":\"dy\",\"amax\":\"delayed\"}] precision.schedule="
                  "[{\"at\":\"sqrt3\",\"gemm\":\"backward\",\"recipe\":\"bf16\"}]",
                  ranks));
    EXPECT(strstr(ran.out, "phase 1 of precision.schedule from step 1 on"), "%s", ran.out);
    record_of(text("%s/ranks_%d", dir, ranks), lines, sizeof(lines));
    const char *first = strstr(lines, "\"gradient_snr\":"), *second = first + 1;
    REQUIRE(first, "%s", lines);
    second = strstr(second, "\"gradient_snr\":");
    REQUIRE(second, "%s", lines);
    double ratio = atof(first + strlen("\"gradient_snr\":"));
    EXPECT(ratio > 0.9 && ratio < sqrt(3.0), "before the switch: %g", ratio);
    EXPECT(strncmp(second + strlen("\"gradient_snr\":"), "null", 4) == 0,
           "of a BF16 backward pass: %.40s", second);
}

CASE(the_gradients_noise_switches_the_phase) {
    const char *dir = make_dir("sqrt3");
    put_base_run(dir);
    runs_in(dir, "base.json " NVFP4 LOOKS "log.dir=quiet precision.schedule="
                 "[{\"at\":\"sqrt3\",\"gemm\":\"backward\",\"recipe\":\"bf16\"}]");
    EXPECT(strstr(ran.err, "precision.schedule[0] never began: in no look"), "%s", ran.err);
    expect_a_switch(dir, 0);
    if (have_mpirun()) expect_a_switch(dir, 2);
    EXPECT_EQ_I64(
        run_in(dir, "base.json precision.schedule=[{\"at\":\"sqrt3\",\"recipe\":\"bf16\"}]"),
        EXIT_CONFIG);
    EXPECT(strstr(ran.err, "waits for \"sqrt3\", which log.gradient_noise measures"), "%s",
           ran.err);
}

/* The line of a text that holds the word, without its end; "" for none. */
static const char *line_with(const char *lines, const char *word) {
    const char *at = strstr(lines, word);
    if (!at) return "";
    while (at > lines && at[-1] != '\n') at--;
    return text("%.*s", (int)strcspn(at, "\n"), at);
}

/* What is no number is none on the screen, and null with a flag in the record. */
static void expect_no_ratio(const char *dir, const char *said) {
    static char lines[1 << 18];
    const char *line = line_with(ran.out, said);
    EXPECT(strncmp(line, "telemetry before step ", 22) == 0, "no \"%s\" in\n%s", said, ran.out);
    EXPECT(!strstr(line, "nan") && !strstr(line, "inf"), "%s", line);
    record_of(text("%s/run", dir), lines, sizeof(lines));
    line = line_with(lines, "\"gradient_snr\":null");
    const char *flag = ",\"nonfinite\":true}";
    EXPECT(strlen(line) > strlen(flag) && strcmp(line + strlen(line) - strlen(flag), flag) == 0,
           "%s", line);
}

CASE(what_is_no_number_is_said_so) {
    const char *dir = make_dir("no_noise");
    put_base_run(dir);
    runs_in(dir, "base.json precision.recipe=bf16 " LOOKS);
    expect_no_ratio(dir, " | no noise | no gradient noise | ");
    const char *flagged = line_with(ran.out, "nan");
    EXPECT(flagged[0] == '\0', "%s", flagged);
    dir = make_dir("diverging");
    put_base_run(dir);
    EXPECT_EQ_I64(run_in(dir, "base.json " NVFP4 "optim.lr=100 sched.type=constant guard.nan=skip "
                              "optim.grad_clip=1 train.steps=60 log.telemetry_every=1 "
                              "log.gradient_noise=true"),
                  EXIT_DIVERGED, "%s", ran.err);
    expect_no_ratio(dir, " | gradient SNR n/a | ");
}

CASE(validation_is_also_in_bf16) {
    double quantized[8], plain[8];
    const char *dir = make_dir("also");
    put_base_run(dir);
    runs_in(dir, "base.json train.steps=4 eval.every=2 eval.also_bf16=true " NVFP4);
    EXPECT(strstr(ran.out, "| in BF16 "), "%s", ran.out);
    EXPECT_EQ_I64(read_losses(text("%s/run", dir), 1, quantized), 3);
    static char lines[1 << 16];
    record_of(text("%s/run", dir), lines, sizeof(lines));
    int count = 0;
    for (char *at = lines; (at = strstr(at, "\"val_loss_bf16\":")) && count < 8; count++)
        plain[count] = atof(at += strlen("\"val_loss_bf16\":"));
    EXPECT_EQ_I64(count, 3);
    for (int i = 0; i < 3; i++)
        EXPECT(plain[i] != quantized[i] && fabs(plain[i] / quantized[i] - 1) < 0.02, "%g, %g",
               plain[i], quantized[i]);
    // The same weights in a BF16 run.
    runs_in(dir, "eval base.json precision.recipe=bf16 ckpt.resume=run/ckpt");
    EXPECT(strstr(ran.out, text("val loss %.6f", plain[2])), "%.9g, but\n%s", plain[2], ran.out);
    runs_in(dir, "eval base.json ckpt.resume=run/ckpt eval.also_bf16=true " NVFP4);
    EXPECT(strstr(ran.out, text("val loss %.6f | in BF16 %.6f", quantized[2], plain[2])), "%s",
           ran.out);
}

TEST_MAIN_END
