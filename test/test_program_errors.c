/*
test_program_errors -- what a user or a disk can do wrong, one row each: the exit code, and what the
message must name. A row that the config alone refuses leaves no file behind. What config texts are
wrong is test_config.c's; here are the paths of the whole program.
*/
#include "program.h"

typedef struct {
    const char *line;   // words; each @ stands for the directory of the data
    int exit_code;
    const char *says[3];   // parts of stderr
} Row;

// --- the world that the rows run in ---

static char data[512], work[512];

static const char *at(const char *name) { return text("%s/%s", data, name); }

/* A shard with the given first header words, tokens and bytes at its end. */
static void put_odd_shard(const char *name, const int32_t head[3], int num_bytes) {
    static char bytes[SHARD_HEADER * 4 + 8192];
    memset(bytes, 0, sizeof(bytes));
    memcpy(bytes, head, 3 * sizeof(int32_t));
    put_file(at(name), bytes, (size_t)num_bytes);
}

static void put_odd_shards(void) {
    enum { HEADER_BYTES = SHARD_HEADER * 4 };
    put_odd_shard("magic.bin", (const int32_t[]){20240521, 1, 1000}, HEADER_BYTES + 2000);
    put_odd_shard("version.bin", (const int32_t[]){20240520, 2, 1000}, HEADER_BYTES + 2000);
    put_odd_shard("truncated.bin", (const int32_t[]){20240520, 1, 1000}, HEADER_BYTES + 1999);
    put_odd_shard("long.bin", (const int32_t[]){20240520, 1, 1000}, HEADER_BYTES + 2002);
    put_odd_shard("header.bin", (const int32_t[]){20240520, 1, 0}, 100);
    put_odd_shard("empty.bin", (const int32_t[]){0, 0, 0}, 0);
    put_odd_shard("short.bin", (const int32_t[]){20240520, 1, 32}, HEADER_BYTES + 64);
    static uint16_t shard[SHARD_HEADER * 2 + 2000];
    const int32_t head[] = {20240520, 1, 2000};
    memcpy(shard, head, sizeof(head));
    for (int i = 0; i < 2000; i++) shard[SHARD_HEADER * 2 + i] = 300;
    put_file(at("vocabulary.bin"), shard, sizeof(shard));
}

static void put_odd_vocabularies(void) {
    static const char head[] =
        "# train_gpt_nvfp4 vocabulary v1, size %d, end_of_text 0, kind byte\n";
    put_text(at("head.vocab"), "# some other vocabulary\n");
    put_text(at("cut.vocab"), text("%s-\nQQ==\n", text(head, 3)));
    put_text(at("digits.vocab"), text("%s-\nQ?==\n", text(head, 2)));
    put_text(at("a.vocab"), text("%s-\nYQ==\n", text(head, 2)));
    FILE *f = fopen(at("big.vocab"), "wb");
    or_exit(f != NULL, "big.vocab");
    fprintf(f, head, 300);
    for (int i = 0; i < 300; i++) fprintf(f, "-\n");
    or_exit(fclose(f) == 0, "big.vocab");
}

static void put_odd_configs(void) {
    put_text(at("syntax.json"), "{\"train\":\n  {\"steps\": 4,}\n}\n");
    put_text(at("unknown.json"), "{\n  \"optim\": {\"learning\": 1}\n}\n");
    put_text(at("twice.json"), "{\"seed\": 1,\n \"seed\": 2}\n");
    put_text(at("type.json"), "{\"batch\":\n  {\"micro\": \"four\"}}\n");
    put_text(at("lengths.json"),
             text("{\"extends\": \"base.json\", \"train\": {\"steps\": 4, \"epochs\": 1}}\n"));
    put_text(at("circle.json"), "{\"extends\": \"circle.json\"}\n");
}

/* DIR/trained of four steps, checkpoints of steps 2 and 4, and for each file of the last one three
   copies of the run in which it is missing, cut or changed: @/damaged/0 .. 8. */
static const char *const checkpoint_files[] = {"state.json", "model.safetensors",
                                               "optimizer.safetensors"};
static const char *const damages[] = {"missing", "cut", "changed"};

static void damage(const char *path, int kind) {
    static char content[1 << 22];
    int64_t bytes = get_file(path, content, sizeof(content));
    if (kind == 0) or_exit(unlink(path) == 0, path);
    if (kind == 1) put_file(path, content, (size_t)bytes - 3);
    content[bytes / 2] ^= 4;
    if (kind == 2) put_file(path, content, (size_t)bytes);
}

static void put_damaged_checkpoints(void) {
    static const char step[] = "ckpt/step_00000004";
    make_dir("data/damaged");
    for (int i = 0; i < ARRAY_LEN(checkpoint_files) * ARRAY_LEN(damages); i++) {
        make_dir(text("data/damaged/%d", i));
        make_dir(text("data/damaged/%d/ckpt", i));
        make_dir(text("data/damaged/%d/%s", i, step));
        for (int f = 0; f < ARRAY_LEN(checkpoint_files); f++) {
            copy_file(at(text("damaged/%d/%s/%s", i, step, checkpoint_files[f])),
                      at(text("trained/%s/%s", step, checkpoint_files[f])));
        }
        damage(at(text("damaged/%d/%s/%s", i, step, checkpoint_files[i / 3])), i % 3);
    }
}

/* Once, whichever cases run. */
static void set_up(void) {
    if (data[0]) return;
    snprintf(work, sizeof(work), "%s", make_dir("work"));
    snprintf(data, sizeof(data), "%s", make_dir("data"));
    put_base_run(data);
    put_odd_shards();
    put_odd_vocabularies();
    put_odd_configs();
    put_text(at("file"), "not a directory\n");
    make_dir("data/no_steps");
    put_text(at("no_steps/metrics.jsonl"), "{\"step\":0,\"tokens\":0,\"val_loss\":5}\n");
    runs_in(data, "base.json log.dir=trained ckpt.every=2");
    put_damaged_checkpoints();
}

// --- rows ---

static const char *with_data(const char *line) {
    static char words[4096];
    size_t used = 0;
    for (; *line && used < sizeof(words) - sizeof(data); line++) {
        if (*line == '@') used += (size_t)sprintf(words + used, "%s", data);
        else words[used++] = *line;
    }
    words[used] = '\0';
    return words;
}

/* What the last program said on stderr: one message, and of it the parts. */
static void expect_said(const Row *row) {
    EXPECT(ran.exit_code == row->exit_code, "\"%s\" ended with %d, want %d: %s", row->line,
           ran.exit_code, row->exit_code, ran.err);
    for (int i = 0; i < ARRAY_LEN(row->says) && row->says[i]; i++) {
        EXPECT(strstr(ran.err, row->says[i]), "\"%s\" does not say \"%s\" but: %s", row->line,
               row->says[i], ran.err);
    }
    size_t length = strlen(ran.err);
    EXPECT(length > 0 && ran.err[length - 1] == '\n', "\"%s\": no end of line: %s", row->line,
           ran.err);
}

static void expect_refused(const Row *row, const Launch *l) {
    set_up();
    run_as(l, with_data(row->line));
    expect_said(row);
    EXPECT(row->exit_code != EXIT_CONFIG || count_entries(work, "") == 0, "\"%s\" wrote files",
           row->line);
}

static void expect_all_refused(const Row *rows, int count) {
    set_up();
    Launch l = {.dir = work};
    for (int i = 0; i < count; i++) expect_refused(&rows[i], &l);
    printf("  %d bad inputs\n", count);
}

#define BASE "@/base.json "

CASE(command_line) {
    static const Row rows[] = {
        {"", EXIT_CONFIG, {"usage: train_gpt_nvfp4", "exit codes:"}},
        {"frobnicate",
         EXIT_CONFIG,
         {"\"frobnicate\" is neither a verb nor a file", "eval, sample"}},
        {"evla " BASE, EXIT_CONFIG, {"\"evla\" is neither a verb nor a file"}},
        {BASE "--frob", EXIT_CONFIG, {"unknown flag --frob", "--dry-run"}},
        {"plan -v " BASE, EXIT_CONFIG, {"unknown flag -v", "\"eval.every\" (llm.c -v,"}},
        {BASE "--n_layer=6",
         EXIT_CONFIG,
         {"unknown flag --n_layer=6", "\"model.layers\" (nanoGPT n_layer)?"}},
        {"eval " BASE "--dry-run", EXIT_CONFIG, {"unknown flag --dry-run"}},
        {"help optim.rl", EXIT_CONFIG, {"\"optim.rl\"", "did you mean \"optim.lr\""}},
        {"ckpt", EXIT_CONFIG, {"usage: train_gpt_nvfp4 ckpt verify DIR"}},
        {"ckpt verify", EXIT_CONFIG, {"usage: train_gpt_nvfp4 ckpt verify DIR"}},
        {"ckpt prove @/trained/ckpt", EXIT_CONFIG, {"usage: train_gpt_nvfp4 ckpt verify DIR"}},
        {"ckpt verify @", EXIT_DATA, {"no checkpoint at", "/data"}},
        {"train", EXIT_CONFIG, {"data.train is not set", "data/prepare_text.py"}},
        {"@/absent.json", EXIT_CONFIG, {"/absent.json", "No such file"}},
        {"@", EXIT_CONFIG, {"is a directory", "expected a JSON file"}},
        {BASE "absent.json", EXIT_CONFIG, {"absent.json", "No such file"}},
    };
    expect_all_refused(rows, ARRAY_LEN(rows));
}

CASE(config) {
    static const Row rows[] = {
        {"@/syntax.json", EXIT_CONFIG, {"syntax.json:2:"}},
        {"@/unknown.json", EXIT_CONFIG, {"unknown.json:2:", "optim.learning"}},
        {"@/twice.json", EXIT_CONFIG, {"twice.json:2:", "seed", "twice"}},
        {"@/type.json", EXIT_CONFIG, {"type.json:2:", "batch.micro"}},
        {"@/lengths.json", EXIT_CONFIG, {"train.steps", "train.epochs", "give one"}},
        {"@/circle.json", EXIT_CONFIG, {"circle.json", "extends itself"}},
        {BASE "optim.lrr=1", EXIT_CONFIG, {"optim.lrr", "did you mean \"optim.lr\""}},
        {BASE "batch.micro=-1", EXIT_CONFIG, {"batch.micro", "-1"}},
        {BASE "optim.lr=1e6", EXIT_CONFIG, {"optim.lr", "up to 100"}},
        {BASE "model.preset=gpt5", EXIT_CONFIG, {"model.preset", "gpt5"}},
        {BASE "precision.recipe=nvfp5", EXIT_CONFIG, {"precision.recipe", "nvfp4"}},
        {BASE "batch.total_tokens=200",
         EXIT_CONFIG,
         {"batch.total_tokens is 200", "nearest: 192 or 256"}},
        {BASE "batch.total_tokens=10", EXIT_CONFIG, {"batch.total_tokens is 10", "nearest: 64"}},
        {BASE "sched.warmup_steps=4", EXIT_CONFIG, {"sched.warmup_steps is 4", "train.steps 4"}},
        {BASE "train.epochs=1 sched.warmup_steps=4",
         EXIT_CONFIG,
         {"sched.warmup_steps is 4", "less than the 4 steps"}},
        {BASE "train.steps=0", EXIT_CONFIG, {"train.steps", "train.tokens", "train.epochs"}},
        {BASE "precision.recipe=f32", EXIT_CONFIG, {"model.dtype", "f32"}},
        {BASE "precision.keep_bf16.first=3",
         EXIT_CONFIG,
         {"precision.keep_bf16.first 3", "2 blocks"}},
        {BASE "model.heads=3", EXIT_CONFIG, {"model.dim is 64", "model.heads 3", "63 or 66"}},
        {BASE "log.dir=", EXIT_CONFIG, {"log.dir is empty"}},
    };
    expect_all_refused(rows, ARRAY_LEN(rows));
}

CASE(device_and_precision) {
    static const Row rows[] = {
        {BASE "device=cuda", EXIT_CONFIG, {"device is cuda", "CPU build", "make cuda"}},
        {BASE "device=cuda precision.recipe=f32 model.dtype=f32",
         EXIT_CONFIG,
         {"f32 runs on the CPU only"}},
        {BASE "precision.recipe=nvfp4 precision.backend=native",
         EXIT_CONFIG,
         {"precision.backend is native", "emulate"}},
        {BASE "precision.recipe=nvfp4 precision.gemm=mma",
         EXIT_CONFIG,
         {"a kernel for GPUs", "the run is on the CPU", "set precision.gemm=cublaslt, which"}},
        {BASE "precision.recipe=nvfp4 precision.gemm=mma precision.backend=native",
         EXIT_CONFIG,
         {"set precision.gemm=cublaslt and precision.backend=emulate"}},
        {BASE "precision.recipe=nvfp4 precision.stochastic=hardware",
         EXIT_CONFIG,
         {"precision.stochastic is hardware, but ",
          "no convert that rounds stochastically (sm_100, sm_103)",
          "set precision.stochastic=software"}},
        {BASE "precision.recipe=fp8 precision.backend=native",
         EXIT_CONFIG,
         {"precision.backend is native", "no FP8 tensor cores", "precision.backend=emulate"}},
        {BASE "precision.recipe=fp8 precision.wgrad.dy.rounding=stochastic",
         EXIT_CONFIG,
         {"wgrad.dy: e5m2 has no stochastic rounding", "rounding=nearest"}},
        {BASE "precision.recipe=nvfp4 model.dim=80 model.heads=2",
         EXIT_CONFIG,
         {"blocks.0.attn.qkv", "in-features is 80", "nearest: 64 or 96"}},
        {BASE "precision.recipe=nvfp4 model.ffn=144",
         EXIT_CONFIG,
         {"blocks.0.mlp.up", "out-features is 144", "nearest: 128 or 160"}},
        {BASE "precision.recipe=nvfp4 batch.seq_len=20 batch.total_tokens=0",
         EXIT_CONFIG,
         {"batch.micro x batch.seq_len is 40", "nearest: 32 or 64"}},
        {BASE "precision.recipe=nvfp4 batch.seq_len=16 eval.micro=1 batch.total_tokens=0",
         EXIT_CONFIG,
         {"eval.micro 1", "is 16", "nearest: 32"}},
        {BASE "model.dim=65536 model.layers=400 model.heads=512 model.ffn=262144",
         EXIT_OOM,
         {"the run needs", "optimizer", "lower batch.micro"}},
    };
    expect_all_refused(rows, ARRAY_LEN(rows));
}

CASE(shards) {
    static const Row rows[] = {
        {BASE "data.train=@/none_*.bin",
         EXIT_DATA,
         {"data.train", "none_*.bin", "data/prepare_text.py"}},
        {BASE "data.val=@/none.bin", EXIT_DATA, {"data.val", "none.bin"}},
        {BASE "data.train=@/magic.bin", EXIT_DATA, {"data.train", "magic.bin", "20240521"}},
        {BASE "data.val=@/magic.bin", EXIT_DATA, {"data.val", "magic.bin", "expected 20240520"}},
        {BASE "data.train=@/version.bin",
         EXIT_DATA,
         {"version.bin", "version 2", "needs version 1"}},
        {BASE "data.train=@/truncated.bin",
         EXIT_DATA,
         {"truncated.bin is truncated", "3024", "3023"}},
        {BASE "data.train=@/long.bin", EXIT_DATA, {"long.bin is too long", "3024", "3026"}},
        {BASE "data.train=@/header.bin", EXIT_DATA, {"header.bin", "1024", "the file has 100"}},
        {BASE "data.train=@/empty.bin", EXIT_DATA, {"empty.bin", "the file has 0"}},
        {BASE "data.train=@/short.bin",
         EXIT_DATA,
         {"short.bin has 32 tokens", "batch.seq_len + 1 = 33"}},
        {BASE "data.train=@", EXIT_DATA, {"data.train", "not a regular file"}},
        {BASE "data.train=@/vocabulary.bin log.dir=vocabulary_0",
         EXIT_DATA,
         {"data.train", "is 300, model.vocab is 257"}},
        {BASE "data.val=@/vocabulary.bin log.dir=vocabulary_1",
         EXIT_DATA,
         {"data.val", "is 300, model.vocab is 257"}},
        {BASE "model.vocab=20 log.dir=vocabulary_2",
         EXIT_DATA,
         {"model.vocab is 20", "another tokenizer"}},
        {"eval " BASE "log.dir=@/trained data.val=@/truncated.bin",
         EXIT_DATA,
         {"data.val", "truncated.bin"}},
        {BASE "eval.micro=9", EXIT_DATA, {"eval.micro 9", "8 sequences"}},
        {BASE "eval.tokens=32", EXIT_DATA, {"eval.tokens", "eval.micro 2"}},
        {BASE "batch.seq_len=512 batch.total_tokens=0",
         EXIT_DATA,
         {"train_0.bin", "batch.seq_len"}},
    };
    expect_all_refused(rows, ARRAY_LEN(rows));
    for (int i = 0; i < 3; i++) {
        const char *dir = text("%s/vocabulary_%d", work, i);
        EXPECT(strcmp(run_field(dir, "exit_code"), "3") == 0, "run.json");
        EXPECT(strstr(run_field(dir, "exit_reason"), "model.vocab is "), "run.json");
        nftw(dir, test_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    }
}

CASE(tokenizers) {
    static const Row rows[] = {
        {BASE "data.tokenizer=@/none.vocab",
         EXIT_DATA,
         {"tokenizer", "none.vocab", "No such file"}},
        {BASE "data.tokenizer=@/head.vocab",
         EXIT_DATA,
         {"head.vocab", "line 1 is '# some other vocabulary'"}},
        {BASE "data.tokenizer=@/cut.vocab", EXIT_DATA, {"cut.vocab is truncated", "line 4"}},
        {BASE "data.tokenizer=@/digits.vocab",
         EXIT_DATA,
         {"digits.vocab", "line 3 is 'Q?=='", "base64"}},
        {BASE "data.tokenizer=@/big.vocab",
         EXIT_CONFIG,
         {"big.vocab has 300 tokens", "model.vocab is 257"}},
        {BASE "data.tokenizer=@/train_0.bin", EXIT_DATA, {"tokenizer", "train_0.bin", "line 1"}},
        {"sample " BASE "log.dir=@/trained", EXIT_CONFIG, {"data.tokenizer is not set"}},
        {BASE "sample.every=2", EXIT_CONFIG, {"sample.every is 2", "data.tokenizer is not set"}},
        {"sample " BASE "log.dir=@/trained data.tokenizer=@/a.vocab sample.prompt=ab",
         EXIT_DATA,
         {"a.vocab", "no token for byte 0x62"}},
    };
    expect_all_refused(rows, ARRAY_LEN(rows));
}

CASE(checkpoints) {
    static const Row rows[] = {
        {BASE "log.dir=@/trained ckpt.resume=@/nothing",
         EXIT_DATA,
         {"ckpt.resume", "/nothing", "auto, never, or a path"}},
        {BASE "log.dir=@/trained ckpt.resume=allways",
         EXIT_DATA,
         {"ckpt.resume", "allways", "auto, never"}},
        {BASE "log.dir=@/trained seed=5",
         EXIT_CONFIG,
         {"seed: 1337 -> 5\n", "another log.dir", "/trained/ckpt/step_00000004 to go on"}},
        {BASE "log.dir=@/trained precision.recipe=nvfp4 optim.lr=1 model.act=relu2",
         EXIT_CONFIG,
         {"another run", "\nmodel.act: gelu -> relu2\nprecision.recipe: bf16 -> nvfp4\nSet"}},
        {BASE "log.dir=@/trained data.train=@/train_0.bin data.shuffle=false",
         EXIT_CONFIG,
         {"train_*.bin\",\"weight\":1}] -> [{", "data.shuffle: true -> false"}},
        {BASE "log.dir=@/trained batch.seq_len=16", EXIT_CONFIG, {"batch.seq_len: 32 -> 16"}},
        {BASE "log.dir=@/trained model.dim=96", EXIT_CONFIG, {"model.dim: 64 -> 96"}},
        {"eval " BASE "log.dir=@/trained model.act=relu2",
         EXIT_CONFIG,
         {"model.act: gelu -> relu2"}},
        {"eval " BASE "log.dir=@/trained model.norm_eps=1 ckpt.resume=never",
         EXIT_CONFIG,
         {"model.norm_eps: 1e-05 -> 1"}},
        {BASE "log.dir=@/trained train.steps=3",
         EXIT_CONFIG,
         {"3 steps", "step_00000004 is at step 4", "train.steps"}},
        {BASE "log.dir=@/trained ckpt.resume=@/trained/ckpt model.dim=96",
         EXIT_DATA,
         {"model.safetensors", "(257,64)", "(257,96)"}},
        {BASE "log.dir=@/trained ckpt.resume=@/trained/ckpt model.layers=3",
         EXIT_DATA,
         {"blocks.2.", "is missing", "step_00000002"}},
        {BASE "log.dir=@/trained ckpt.resume=@/trained/ckpt model.layers=1",
         EXIT_DATA,
         {"model.safetensors: 28 tensors, the model has 16"}},
        {BASE "log.dir=@/trained ckpt.resume=@/trained/ckpt model.bias=false",
         EXIT_DATA,
         {"model.safetensors: 28 tensors"}},
        {"eval " BASE "ckpt.resume=@/trained/ckpt model.ffn=64",
         EXIT_DATA,
         {"mlp.up.weight", "(128,64)", "(64,64)"}},
        {"eval " BASE "data.val=", EXIT_CONFIG, {"data.val is not set", "val_*.bin"}},
        {"eval " BASE, EXIT_DATA, {"no checkpoint in ckpt.dir run/ckpt", "ckpt.resume"}},
        {"sample " BASE "data.tokenizer=@/byte.vocab",
         EXIT_DATA,
         {"no checkpoint in ckpt.dir run/ckpt"}},
    };
    expect_all_refused(rows, ARRAY_LEN(rows));
}

/* Resuming names the file and what to do; ckpt verify finds the same fault. */
CASE(damaged_checkpoints) {
    static const char *const says[] = {"cannot open", "truncated", "damaged"};
    set_up();
    Launch l = {.dir = work};
    for (int i = 0; i < ARRAY_LEN(checkpoint_files) * ARRAY_LEN(damages); i++) {
        const char *file = checkpoint_files[i / 3];
        // A text that is cut has another sum; only the others know their length.
        const char *what = i == 1 ? "damaged" : says[i % 3];
        char line[256];
        snprintf(line, sizeof(line), BASE "log.dir=@/damaged/%d", i);
        Row row = {line, EXIT_DATA, {file, what, "ckpt.resume=never starts over"}};
        expect_refused(&row, &l);
        run_as(&l, with_data(text("ckpt verify @/damaged/%d/ckpt", i)));
        const char *end = strstr(ran.out, " fault"), *again = end ? strstr(end, "\n  ") : NULL;
        EXPECT(again && strstr(again, "WRONG: ") && !strstr(end, " OK"), "%s", ran.out);
        EXPECT_EQ_I64(ran.exit_code, EXIT_DATA, "%s of %s", damages[i % 3], file);
        EXPECT(strstr(ran.out, file) && strstr(ran.out, text("WRONG: ")) && strstr(ran.out, what),
               "%s of %s: %s", damages[i % 3], file, ran.out);
    }
    printf("  %d bad inputs\n", 2 * ARRAY_LEN(checkpoint_files) * ARRAY_LEN(damages));
}

// --- what the disk refuses ---

static void expect_refused_at(const char *line, rlim_t limit, const char *first,
                              const char *second) {
    Launch l = {.dir = work, .file_limit = limit, .stdout_to = "/dev/null"};
    Row row = {line, EXIT_DATA, {first, second}};
    expect_refused(&row, &l);
}

/* What training would refuse after minutes of work, without a file left behind. */
CASE(dry_runs) {
    static const Row rows[] = {
        {"--dry-run " BASE "log.dir=@/file/run", EXIT_DATA, {"log.dir", "Not a directory"}},
        {"--dry-run " BASE "log.dir=@/file", EXIT_DATA, {"log.dir", "/file is not a directory"}},
        {"--dry-run " BASE "log.dir=new/run ckpt.dir=@/file/ckpt", EXIT_DATA, {"ckpt.dir"}},
        {"--dry-run " BASE "log.reference=@/nothing", EXIT_DATA, {"log.reference", "/nothing"}},
        {"--dry-run " BASE "log.reference=@/no_steps", EXIT_DATA, {"log.reference", "no_steps"}},
        {"--dry-run " BASE "ckpt.resume=@/nothing", EXIT_DATA, {"ckpt.resume"}},
        {"--dry-run " BASE "ckpt.resume=@/trained train.steps=1 sched.warmup_steps=0",
         EXIT_CONFIG,
         {"the run has 1 steps", "is at step"}},
        {"--dry-run " BASE "model.dim=65536 model.layers=512 model.heads=64",
         EXIT_OOM,
         {"the run needs", "are free"}},
        {"--dry-run " BASE "log.dir=@/trained seed=5", EXIT_CONFIG, {"seed: 1337 -> 5"}},
    };
    expect_all_refused(rows, ARRAY_LEN(rows));
    runs_in(work, with_data("--dry-run " BASE "log.dir=new/run/ log.reference=@/trained"));
    runs_in(work, with_data("--dry-run " BASE "log.dir=@/new"));
    EXPECT_EQ_I64(count_entries(work, ""), 0, "files of dry runs");
}

/* Of a checkpoint that training would load, what recipes keep included: the size of each file. */
CASE(dry_runs_see_files_that_are_cut) {
    set_up();
    Launch l = {.dir = work};
    const char *words = BASE "precision.recipe=fp8_delayed log.dir=@/kept ";
    runs_in(data, "base.json precision.recipe=fp8_delayed log.dir=kept");
    char step[512];
    snprintf(step, sizeof(step), "%s", at("kept/ckpt/step_00000004"));
    DIR *dir = opendir(step);
    or_exit(dir != NULL, step);
    int cut = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (!strstr(e->d_name, ".safetensors")) continue;
        const char *path = text("%s/%s", step, e->d_name), *whole = at("whole");
        copy_file(whole, path);
        damage(path, 1);
        char line[256];
        snprintf(line, sizeof(line), "--dry-run %strain.steps=5", words);
        Row row = {line, EXIT_DATA, {e->d_name, "truncated"}};
        expect_refused(&row, &l);
        copy_file(path, whole);
        cut++;
    }
    closedir(dir);
    EXPECT_EQ_I64(cut, count_entries(step, "") - 1, "all but state.json");
    EXPECT(cut >= 3, "%d files", cut);
    runs_in(work, with_data(text("--dry-run %strain.steps=5", words)));
}

CASE(unwritable_records) {
    static const Row rows[] = {
        {BASE "log.dir=@/file/run", EXIT_DATA, {"log.dir", "/file/run", "Not a directory"}},
        {BASE "log.dir=@/file", EXIT_DATA, {"log.dir", "/file", "ot a directory"}},
        {BASE "ckpt.dir=@/file/ckpt log.dir=unwritable", EXIT_DATA, {"ckpt.dir", "/file/ckpt"}},
        {BASE "log.reference=@/nothing log.dir=unwritable",
         EXIT_DATA,
         {"log.reference", "/nothing"}},
        {BASE "log.reference=@/no_steps log.dir=unwritable2",
         EXIT_DATA,
         {"log.reference", "no_steps"}},
    };
    expect_all_refused(rows, ARRAY_LEN(rows));
    nftw(text("%s/unwritable", work), test_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

CASE(file_size_limits) {
    expect_refused_at(BASE "log.dir=limit_0", 100, "log.dir", "config.resolved.json");
    expect_refused_at(BASE "log.dir=limit_1 train.steps=90", 6000, "log.dir", "metrics.jsonl");
    EXPECT(strcmp(run_field(text("%s/limit_1", work), "exit_code"), "3") == 0, "run.json");
    runs_in(work, with_data(BASE "log.dir=limit_1 train.steps=90"));
    read_record(text("%s/limit_1", work));
    EXPECT_EQ_I64(record.count, 91, "lines once there is room again");

    Launch l = {.dir = work, .file_limit = 1000};
    Row row = {
        "plan " BASE "precision.recipe=nvfp4", EXIT_DATA, {"cannot write to standard output"}};
    expect_refused(&row, &l);
}

/* The checkpoint before the one that did not fit is still there, and the run goes on from it. */
CASE(file_size_limit_in_a_checkpoint) {
    expect_refused_at(BASE "log.dir=limit_2", 100000, "ckpt.dir", "model.safetensors");
    EXPECT(strstr(ran.err, strerror(EFBIG)), "%s", ran.err);
    runs_in(work, with_data(BASE "log.dir=limit_2 train.steps=2 sched.type=constant"));
    expect_refused_at(BASE "log.dir=limit_2 sched.type=constant", 400000, "ckpt.dir",
                      "optimizer.safetensors");
    EXPECT_EQ_I64(count_entries(text("%s/limit_2/ckpt", work), "step_"), 1, "whole checkpoints");
    runs_in(work, with_data(BASE "log.dir=limit_2 sched.type=constant"));
    EXPECT(strstr(ran.out, "step_00000002: step 2"), "%s", ran.out);
    runs_in(work, "ckpt verify limit_2/ckpt/step_00000004");
}

CASE(full_standard_output) {
    static const char *const lines[] = {
        "help",
        "--help",
        "plan " BASE,
        "eval " BASE "log.dir=@/trained",
        "sample " BASE "log.dir=@/trained data.tokenizer=@/byte.vocab",
        "ckpt verify @/trained/ckpt",
    };
    Launch l = {.dir = work, .stdout_to = "/dev/full"};
    for (int i = 0; i < ARRAY_LEN(lines); i++) {
        Row row = {lines[i], EXIT_DATA, {"cannot write to standard output"}};
        expect_refused(&row, &l);
    }
}

TEST_MAIN_END
