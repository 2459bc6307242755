/*
test_selftest -- the self-test passes on a sound CPU, whatever multiplies, and names the row where a
fault is planted; and what passed is remembered, once and for this very tuple.
*/
#include "../llmc/selftest.h"

#include <glob.h>
#include <sys/stat.h>

#include "../llmc/selftest_start.h"
#include "selftest_faults.h"

static Device *cpu;

CASE(passes_when_emulated) {
    expect_pass(cpu, FP4_EMULATED, "gemm wgrad 192x64x96 nvfp4 emulated");
}

CASE(passes_with_packed_operands) {
    expect_pass(cpu, FP4_LIBRARY, "gemm fprop 96x96x64 nvfp4 native");
}

/* As on a GPU with FP4 units, where weight gradients of few tiles are cut along the tokens. */
CASE(passes_with_sliced_operands) {
    Device gpu = *cpu;
    gpu.native_fp4 = 1;
    gpu.num_threads = 148;
    EXPECT(gemm_slices(&gpu, 128, 128, 16384) > 1, "nothing is sliced");
    expect_pass(&gpu, FP4_LIBRARY, "long sums wgrad 128x128x16384 nvfp4 native");
}

CASE(passes_in_f32) {
    SmallModel m;
    small_model_open_as(&m, "model.dtype=f32", "precision.recipe=f32");
    SelftestReport r = small_model_test(&m, cpu, &ops_cpu, FP4_EMULATED);
    EXPECT_EQ_I64(r.failed, 0, "\n%s", r.table);
    EXPECT(table_has(r.table, "PASS", "gemm wgrad 192x64x96 f32"), "%s", r.table);
    free(r.table);
    small_model_close(&m);
}

CASE(passes_with_fp8_operands) {
    SmallModel m;
    for (int packed = 0; packed < 2; packed++) {
        small_model_open_as(&m, "model.dtype=bf16", "precision.recipe=fp8");
        SelftestOptions o = {cpu, &ops_cpu, FP4_EMULATED, &m.model, 96, 0, packed};
        SelftestReport r = selftest_run(&o);
        EXPECT_EQ_I64(r.failed, 0, "\n%s", r.table);
        EXPECT(table_has(r.table, "PASS",
                         packed ? "gemm dgrad 96x64x192 e5m2*e4m3 native"
                                : "gemm dgrad 96x64x192 e5m2*e4m3 emulated"),
               "%s", r.table);
        free(r.table);
        small_model_close(&m);
    }
}

CASE(shapes_of_equal_linears_appear_once) {
    SmallModel m;
    small_model_open(&m);
    SelftestReport r = small_model_test(&m, cpu, &ops_cpu, FP4_EMULATED);
    const char *row = "gemm dgrad 96x64x192 nvfp4", *first = strstr(r.table, row);
    REQUIRE(first, "no row \"%s\" in\n%s", row, r.table);
    EXPECT(!strstr(first + 1, row), "twice in\n%s", r.table);
    EXPECT(table_has(r.table, "PASS", "gemm dgrad 96x64x192 bf16"), "blocks kept in BF16");
    free(r.table);
    small_model_close(&m);
}

CASE(the_table_explains_itself) {
    SmallModel m;
    small_model_open(&m);
    SelftestReport r = small_model_test(&m, cpu, &ops_cpu, FP4_EMULATED);
    const char *legend = strstr(r.table, "\nerrors are absolute, those of products parts of ");
    EXPECT(strncmp(r.table, "      check  ", 13) == 0, "%s", r.table);
    EXPECT(table_has(r.table, "  ", "worst error  allowed   of it  against"), "%s", r.table);
    EXPECT(table_has(r.table, "PASS  step_decide ", "0.0e+00  0.0e+00     0 %  known decisions"),
           "%s", r.table);
    EXPECT(legend && !strstr(legend, "\nPASS") && strstr(legend, "\nlong sums: over "), "%s",
           r.table);
    free(r.table);
    small_model_close(&m);
}

// --- planted faults ---

CASE(planted_faults_show_when_emulated) {
    for (int i = 0; i < ARRAY_LEN(faults); i++)
        if (faults[i].when_emulated) expect_fault_shown(cpu, &faults[i], FP4_EMULATED);
}

CASE(planted_faults_show_with_packed_operands) {
    for (int i = 0; i < ARRAY_LEN(faults); i++)
        if (faults[i].when_packed) expect_fault_shown(cpu, &faults[i], FP4_LIBRARY);
}

// --- rounding by the GPU's convert, played by the CPU ---

static int no_codes;   // else codes to nearest

/* A convert that does not round stochastically. */
static void quantize_pair_broken(Device *d, QOperand *row, const Quantizer *row_how,
                                 QOperand *token, const Quantizer *token_how, Tensor x) {
    int hardware = row && token && row_how->hardware_rounding && token_how->hardware_rounding;
    if (!hardware || row->form != FORM_PACKED) {
        sound->quantize_pair(d, row, row_how, token, token_how, x);
        return;
    }
    Quantizer nearest[2] = {*row_how, *token_how};
    for (int i = 0; i < 2; i++) nearest[i].how.rounding = ROUND_NEAREST;
    sound->quantize_pair(d, row, &nearest[0], token, &nearest[1], x);
    if (!no_codes) return;
    memset(row->data, 0, quantize_packed_bytes(row->rows, row->k));
    memset(token->data, 0, quantize_packed_bytes(token->rows, token->k));
}

static SelftestReport test_in_hardware(const Ops *ops) {
    SmallModel m;
    small_model_open(&m);
    m.model.engine.hardware_rounding = 1;
    SelftestReport r = small_model_test(&m, cpu, ops, FP4_LIBRARY);
    small_model_close(&m);
    return r;
}

CASE(rounding_in_hardware_is_a_row_of_its_own) {
    SelftestReport r = test_in_hardware(&ops_cpu);
    EXPECT(table_has(r.table, "PASS", "stochastic rounding, hardware "), "%s", r.table);
    EXPECT_EQ_I64(r.failed, 0, "\n%s", r.table);
    free(r.table);
    Ops ops = *sound;
    ops.quantize_pair = quantize_pair_broken;
    for (no_codes = 0; no_codes < 2; no_codes++) {
        r = test_in_hardware(&ops);
        EXPECT(table_has(r.table, "FAIL", "stochastic rounding, hardware "), "%s", r.table);
        EXPECT_EQ_I64(r.failed, 1, "\n%s", r.table);
        free(r.table);
    }
}

// --- what is remembered ---

static SelftestOptions options(SmallModel *m) {
    SelftestOptions o = {cpu, &ops_cpu, FP4_EMULATED, &m->model, 96, 0, 0};
    return o;
}

/* The only file in the cache; caller frees the pattern's result. */
static void cache_file(char *path, size_t size) {
    glob_t found;
    path[0] = '\0';
    if (glob(test_scratch("cache/deep/train_gpt_nvfp4/*"), 0, NULL, &found) == 0) {
        if (found.gl_pathc == 1) snprintf(path, size, "%s", found.gl_pathv[0]);
        globfree(&found);
    }
}

CASE(a_tuple_is_known_once_remembered) {
    SmallModel m;
    small_model_open(&m);
    SelftestOptions o = options(&m);
    char *tuple = selftest_tuple(&o), path[512];
    REQUIRE(tuple, "no tuple");
    setenv("XDG_CACHE_HOME", test_scratch("cache/deep"), 1);
    EXPECT_EQ_I64(mkdir(test_scratch("cache"), 0777), 0);
    EXPECT_EQ_I64(selftest_known(tuple), 0, "before");
    selftest_remember(tuple);
    EXPECT_EQ_I64(selftest_known(tuple), 1, "after");
    cache_file(path, sizeof(path));
    REQUIRE(path[0], "not one file in the cache");
    char *text = read_text_file(path, "cache", NULL);
    EXPECT(strcmp(text, tuple) == 0, "%s", text);
    EXPECT(strstr(text, cpu->name) && strstr(text, "product wgrad 192x64"), "%s", text);
    free(text);
    test_put_file(path, tuple, strlen(tuple) - 1);
    EXPECT_EQ_I64(selftest_known(tuple), 0, "cut short");
    char *longer = format_string("%s\n", tuple);
    test_put_file(path, longer, strlen(longer));
    EXPECT_EQ_I64(selftest_known(tuple), 0, "with more behind it");
    longer[3] ^= 1;
    test_put_file(path, longer, strlen(tuple));
    EXPECT_EQ_I64(selftest_known(tuple), 0, "another text, as after a collision");
    selftest_remember(tuple);
    EXPECT_EQ_I64(selftest_known(tuple), 1, "again");
    free(longer), free(tuple);
    small_model_close(&m);
}

CASE(a_pass_is_kept_whole_and_taken_back_by_a_failure) {
    SmallModel m;
    small_model_open(&m);
    SelftestOptions o = options(&m);
    SelftestReport r;
    memset(&r, 0, sizeof(r));
    char *tuple = selftest_tuple(&o);
    setenv("XDG_CACHE_HOME", test_scratch("record"), 1);
    r.reduced = 1;
    selftest_record(tuple, &r);
    EXPECT_EQ_I64(selftest_known(tuple), 0, "on fewer tokens");
    r.reduced = 0;
    selftest_record(tuple, &r);
    EXPECT_EQ_I64(selftest_known(tuple), 1, "passed");
    r.failed = 1;
    selftest_record(tuple, &r);
    EXPECT_EQ_I64(selftest_known(tuple), 0, "failed later");
    unsetenv("XDG_CACHE_HOME");
    free(tuple);
    small_model_close(&m);
}

/* Plain products have no operands to lay out, whatever their sizes. */
CASE(odd_sizes_pass_where_nothing_is_quantised) {
    SmallModel m;
    small_model_open_as(&m, "model.dtype=bf16", "precision.recipe=bf16");
    SelftestOptions o = {cpu, &ops_cpu, FP4_EMULATED, &m.model, 33, 0, 0};
    model_linear(&m.model, 0)->in = 63;
    SelftestReport r = selftest_run(&o);
    EXPECT_EQ_I64(r.failed, 0, "\n%s", r.table);
    free(r.table);
    small_model_close(&m);
}

CASE(a_tuple_tells_apart_what_matters) {
    SmallModel m;
    small_model_open(&m);
    SelftestOptions o = options(&m), other;
    char *tuple = selftest_tuple(&o);
    Device device = *cpu;
    snprintf(device.libraries, sizeof(device.libraries), "driver 13.1");
    for (int i = 0; i < 4; i++) {
        other = o;
        if (i == 0) other.fp4 = FP4_LIBRARY;
        if (i == 1) other.tokens = 192;
        if (i == 2) other.device = &device;
        if (i == 3) m.model.blocks[0].in.out = 256;
        char *changed = selftest_tuple(&other);
        EXPECT(strcmp(tuple, changed) != 0, "change %d", i);
        free(changed);
    }
    free(tuple);
    small_model_close(&m);
}

CASE(a_cache_that_cannot_be_written_is_no_error) {
    test_put_file(test_scratch("file"), "", 0);
    setenv("XDG_CACHE_HOME", test_scratch("file"), 1);   // a file, where a folder should be
    selftest_remember("tuple\n");
    EXPECT_EQ_I64(selftest_known("tuple\n"), 0);
    setenv("XDG_CACHE_HOME", "relative", 1);   // does not count
    setenv("HOME", test_temp_dir(), 1);
    selftest_remember("tuple\n");
    EXPECT_EQ_I64(selftest_known("tuple\n"), 1);
    EXPECT(file_exists(test_scratch(".cache/train_gpt_nvfp4")), "in HOME");
    unsetenv("XDG_CACHE_HOME");
    EXPECT_EQ_I64(selftest_known("tuple\n"), 1);
    unsetenv("HOME");
    EXPECT_EQ_I64(selftest_known("tuple\n"), 0);
    selftest_remember("tuple\n");
    EXPECT_EQ_I64(selftest_known(NULL), 0);
}

// --- at the start of a run ---

/* selftest_at_start of the small model with a fault planted. */
static int start_with(void (*plant)(Ops *ops), Fp4Gemm fp4, BackendKind backend) {
    Ops ops = *sound;
    SmallModel m;
    plant(&ops);
    small_model_open(&m);
    m.config.precision.backend = backend;
    SelftestOptions o = {cpu, &ops, fp4, &m.model, 96, 0, 0};
    Comm *host = comm_host_open(NULL);
    int emulate = selftest_at_start(&o, &m.config, host);
    host->close(host);
    small_model_close(&m);
    return emulate;
}

static void plant_nothing(Ops *ops) { (void)ops; }

CASE(a_start_falls_back_only_where_the_keys_let_it) {
    setenv("XDG_CACHE_HOME", test_scratch("start"), 1);
    EXPECT_EQ_I64(start_with(plant_alpha, FP4_LIBRARY, BACKEND_AUTO), 1, "auto");
    EXPECT_DIES(EXIT_DEVICE, "does not multiply packed codes as it should",
                start_with(plant_alpha, FP4_LIBRARY, BACKEND_NATIVE));
    EXPECT_DIES(EXIT_DEVICE, "FAIL  alpha fprop",
                start_with(plant_alpha, FP4_LIBRARY, BACKEND_NATIVE));
    EXPECT_DIES(EXIT_DEVICE, ">999 %  exact sums, emulated (",
                start_with(plant_alpha, FP4_LIBRARY, BACKEND_NATIVE));
    EXPECT_DIES(EXIT_DEVICE, " does not compute what it should\n      check  ",
                start_with(plant_alpha, FP4_EMULATED, BACKEND_AUTO));
    EXPECT_DIES(EXIT_DEVICE, "FAIL  stochastic rounding",
                start_with(plant_draws, FP4_LIBRARY, BACKEND_AUTO));
    // A failure is not remembered, a pass is: the fault that comes after it is not looked for.
    EXPECT_EQ_I64(start_with(plant_nothing, FP4_LIBRARY, BACKEND_NATIVE), 0, "sound");
    EXPECT_EQ_I64(start_with(plant_alpha, FP4_LIBRARY, BACKEND_NATIVE), 0, "remembered");
    unsetenv("XDG_CACHE_HOME");
}

int main(int argc, char **argv) {
    cpu = device_cpu_open(0);
    sound = &ops_cpu;
    int status = test_run(argc, argv);
    cpu->close(cpu);
    return status;
}
