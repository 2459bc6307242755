/*
test_program_plan -- what plan and --dry-run say of ranks that are not there, against ranks that
are: one process names the arenas that each of three has under mpirun, at every level. And configs
of configs/models, whose memory no test machine has.
*/
#include "program.h"

#define NVFP4 "precision.recipe=nvfp4 precision.keep_bf16.last=0 "

/* The lines of arenas, from "parameters" to "all" in MiB; NULL where there are none. */
static const char *arenas_of(const char *out, char *buffer, size_t size) {
    const char *begin = strstr(out, "\nparameters "), *end = begin ? strstr(begin, "\nall ") : NULL;
    if (end) end = strchr(end + 1, '\n');
    if (!end) return NULL;
    snprintf(buffer, size, "%.*s", (int)(end - begin), begin);
    return buffer;
}

CASE(memory_of_ranks_that_are_not_there) {
    char dir[512], planned[2048], real[2048];
    snprintf(dir, sizeof(dir), "%s", make_dir("ranks"));
    put_base_run(dir);
    if (!have_mpirun()) {
        printf("  no mpirun here\n");
        return;
    }
    for (int level = 0; level < 4; level++) {
        const char *words = text("base.json batch.total_tokens=384 parallel.zero=%d train.steps=1 "
                                 "log.dir=run_%d " NVFP4,
                                 level, level);
        Launch three = {.dir = dir, .ranks = 3};
        runs_in(dir, text("plan %s plan.ranks=3", words));
        REQUIRE(arenas_of(ran.out, planned, sizeof(planned)), "%s", ran.out);
        EXPECT(strstr(ran.out, "x 2 micro-steps x 3 ranks; "), "%s", ran.out);
        runs(&three, words);
        REQUIRE(arenas_of(ran.out, real, sizeof(real)), "%s", ran.out);
        EXPECT(strcmp(planned, real) == 0, "parallel.zero=%d: planned%s\nwas%s", level, planned,
               real);
    }
}

/* As plan, and whether it fits this machine does not matter. */
CASE(dry_run_of_ranks_that_are_not_there) {
    char dir[512];
    snprintf(dir, sizeof(dir), "%s", make_dir("dry"));
    static const char *const models[] = {"nemotron-12b-dense", "llama3-70b"};
    static const char *const rows[] = {"\n  parameters  ",
                                       "\n  gradients  ",
                                       "\n  optimizer  ",
                                       "\n  quantised weights  ",
                                       "\n  saved activations  ",
                                       "\n  GB that each sends in a step",
                                       "\n      64  ",
                                       "\n     512  "};
    for (int i = 0; i < ARRAY_LEN(models); i++) {
        runs_in(dir, text("--dry-run model.preset=%s plan.ranks=64 plan.device=GB200 "
                          "batch.micro=1 batch.total_tokens=4194304 device=cpu " NVFP4,
                          models[i]));
        EXPECT(strstr(ran.out, "x 8 micro-steps x 64 ranks; "), "%s", ran.out);
        EXPECT(strstr(ran.out, "\nranks       each of 64, with one GB200\n"), "%s", ran.out);
        for (int row = 0; row < ARRAY_LEN(rows); row++)
            EXPECT(strstr(ran.out, rows[row]), "no \"%s\" in\n%s", rows[row], ran.out);
        EXPECT_EQ_I64(count_entries(dir, ""), 0);
    }
    run_in(dir, "--dry-run model.preset=llama3-70b plan.ranks=48 batch.micro=1 "
                "batch.total_tokens=4194304");
    EXPECT_EQ_I64(ran.exit_code, EXIT_CONFIG);
    EXPECT(strstr(ran.err, "48 ranks = 393216; nearest: 3932160 or 4325376"), "%s", ran.err);
}

/* A plan of another device has nothing of the one at hand: not its products, not its units. */
CASE(a_named_device_is_the_only_one) {
    const char *dir = make_dir("named");
    put_base_run(dir);
    runs_in(dir,
            "plan base.json precision.recipe=nvfp4 precision.keep_bf16.last=0 plan.device=B200 "
            "device=cpu");
    EXPECT(strstr(ran.out, "\ndevice      B200, which is not at hand (plan.device): 148 multi"),
           "%s", ran.out);
    EXPECT(strstr(ran.out, "\nprecision   nvfp4(native): "), "%s", ran.out);
    EXPECT(!strstr(ran.out, "MiB") && !strstr(ran.out, "OpenBLAS,") && !strstr(ran.out, "emulated"),
           "%s", ran.out);
    EXPECT(strstr(ran.out, "all but op workspace") && strstr(ran.out, " seconds on one\n"), "%s",
           ran.out);
    runs_in(dir, "plan model.preset=nemotron-1.2b precision.recipe=nvfp4 plan.device=B200 "
                 "batch.micro=24 batch.seq_len=8192 device=cpu");
    EXPECT(
        strstr(ran.out, "206 of 180 GB: does not fit; memory.recompute=block does, with 77.6 GB\n"),
        "%s", ran.out);
}

TEST_MAIN_END
