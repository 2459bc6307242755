// test_gemm_descriptors -- what cuBLASLt is told of the GEMMs of GPT-2 124M, by its own log, beside
// fixtures/gemm_descriptors.txt; and which packed operands are refused. Needs cuBLASLt but neither
// GPU nor driver: without a handle the heuristic logs the descriptor it resolved and refuses.
// `test_gemm_descriptors --print` writes the fixture anew.
#include "linear_gemms.h"

#include <string>

#include "../llmc/device_cuda.cuh"
#include "../llmc/ops/gemm_plan.cuh"
#include "test.h"

static const char FIXTURE[] = "test/fixtures/gemm_descriptors.txt";
static const char *const kind_names[NUM_GEMMS] = {"fprop", "dgrad", "wgrad"};
static const size_t WORKSPACE_BYTES = (size_t)32 << 20;

static const LinearShape linears[] = {
    {"gpt2-124m", "qkv", 2304, 768, 1},
    {"gpt2-124m", "proj", 768, 768, 1},
    {"gpt2-124m", "up", 3072, 768, 1},
    {"gpt2-124m", "down", 768, 3072, 1},
};

static std::string logged;   // the last heuristic's line

static void keep_heuristic(int level, const char *function, const char *message) {
    (void)level;
    if (strcmp(function, "cublasLtMatmulAlgoGetHeuristic") == 0) logged = message;
}

/* The log's line of one GEMM, a line for each part: layouts, preference, product. */
static std::string describe_product(const LinearGemm &g, const std::string &name) {
    GemmPlan p = {};
    gemm_plan_describe(&p, gemm_plan_key(g.d, &g.a, &g.b, g.epilogue));
    gemm_plan_point(&p, &g.a, &g.b, g.epilogue.bias);
    logged.clear();
    cublasStatus_t status = gemm_plan_choose(&p, NULL, WORKSPACE_BYTES);
    EXPECT_EQ_I64(status, CUBLAS_STATUS_NOT_INITIALIZED, "an algorithm without a handle");
    gemm_plan_destroy(&p);
    std::string text = name + "\n  ";
    for (size_t i = 0; i < logged.size(); i++) {
        int ends = logged[i] == ']' && i + 1 < logged.size();
        text += logged[i];
        if (ends) text += "\n ";
    }
    return text + "\n";
}

static std::string describe(const char *recipe, LinearShape l, GemmKind kind, OperandForm form,
                            int slices) {
    LinearGemm g = linear_gemm_of(recipe, l, kind, form, 16384);
    g.a.slices = g.b.slices = slices;
    return describe_product(
        g, std::string(l.model) + " " + l.name + " " + kind_names[kind] +
               (form == FORM_VALUES ? ", values" : std::string(", packed ") + recipe) +
               (slices > 1 ? ", sliced" : ""));
}

/* Of f32 values, into f32 as gemm_part has them. */
static std::string describe_f32(LinearShape l, GemmKind kind) {
    LinearGemm g = linear_gemm(l, kind, FORM_VALUES, 16384);
    g.a.dtype = g.b.dtype = g.d.dtype = DT_F32;
    g.epilogue.bias.data = NULL;
    return describe_product(g, std::string(l.model) + " " + l.name + " " + kind_names[kind] +
                                   ", values in f32");
}

static std::string describe_all(void) {
    std::string text = "cublasLt " + std::to_string(cublasLtGetVersion()) + "\n";
    for (int form = 0; form < 2; form++)
        for (const LinearShape &l : linears)
            for (int kind = 0; kind < NUM_GEMMS; kind++)
                text += describe("nvfp4", l, (GemmKind)kind, (OperandForm)form, 1);
    text += describe("nvfp4", linears[1], GEMM_WGRAD, FORM_PACKED, 4);
    for (const LinearShape &l : linears)
        for (int kind = 0; kind < NUM_GEMMS; kind++)
            text += describe("fp8", l, (GemmKind)kind, FORM_PACKED, 1);
    for (int kind = 0; kind < NUM_GEMMS; kind++) text += describe_f32(linears[2], (GemmKind)kind);
    return text;
}

static std::string read_file(const char *path) {
    std::string text;
    FILE *f = fopen(path, "r");
    if (!f) return text;
    char chunk[4096];
    size_t got;
    while ((got = fread(chunk, 1, sizeof(chunk), f)) > 0) text.append(chunk, got);
    fclose(f);
    return text;
}

static std::string take_line(std::string *text) {
    size_t end = text->find('\n');
    std::string line = text->substr(0, end);
    text->erase(0, end == std::string::npos ? end : end + 1);
    return line;
}

CASE(descriptors_are_those_of_the_fixture) {
    std::string got = describe_all(), want = read_file(FIXTURE), about;
    REQUIRE(!want.empty(), "no %s: run from the folder of the Makefile", FIXTURE);
    while (!got.empty() || !want.empty()) {
        std::string is = take_line(&got), should = take_line(&want);
        if (is[0] != ' ') about = is;
        EXPECT(is == should, "of %s:\n    got  %s\n    want %s", about.c_str(), is.c_str(),
               should.c_str());
    }
}

/* gemm_plan_key aborts on a product that `spoil` made illegal. */
static void expect_refused_of(const char *recipe, const char *text, void (*spoil)(LinearGemm *g)) {
    LinearGemm g = linear_gemm_of(recipe, linears[0], GEMM_FPROP, FORM_PACKED, 256);
    spoil(&g);
    EXPECT_ABORTS(text, gemm_plan_key(g.d, &g.a, &g.b, g.epilogue));
}

static void expect_refused(const char *text, void (*spoil)(LinearGemm *g)) {
    expect_refused_of("nvfp4", text, spoil);
}

CASE(packed_operands_that_have_no_kernel_are_refused) {
    expect_refused("forms", [](LinearGemm *g) { g->b.form = FORM_VALUES; });
    expect_refused("not NVFP4", [](LinearGemm *g) { g->a.format = FORMAT_BF16; });
    expect_refused("multiple of 32", [](LinearGemm *g) { g->a.k = g->b.k = 48; });
    expect_refused("operand b is strided", [](LinearGemm *g) { g->b.k_contiguous = 0; });
    expect_refused("lacks its scales", [](LinearGemm *g) { g->a.scales += 8; });
    expect_refused("lacks its scales", [](LinearGemm *g) { g->a.amax = NULL; });
    expect_refused("rows of d",
                   [](LinearGemm *g) { g->d.cols = g->b.rows = g->epilogue.bias.cols = 2300; });
    expect_refused("bias into bf16",
                   [](LinearGemm *g) { g->d.dtype = g->epilogue.bias.dtype = DT_F32; });
}

CASE(packed_fp8_operands_that_have_no_kernel_are_refused) {
    expect_refused_of("fp8", "both operands are packed e5m2",
                      [](LinearGemm *g) { g->a.format = g->b.format = FORMAT_E5M2; });
    expect_refused_of("fp8", "multiple of 16", [](LinearGemm *g) { g->a.k = g->b.k = 776; });
    expect_refused_of("fp8", "operand a is strided", [](LinearGemm *g) { g->a.k_contiguous = 0; });
    expect_refused_of("fp8", "lacks its scales", [](LinearGemm *g) { g->b.amax = NULL; });
    expect_refused_of("fp8", "rows of d",
                      [](LinearGemm *g) { g->d.cols = g->b.rows = g->epilogue.bias.cols = 2312; });
    expect_refused_of("fp8", "bias into bf16",
                      [](LinearGemm *g) { g->d.dtype = g->epilogue.bias.dtype = DT_F32; });
    expect_refused_of("fp8", "packed e4m3 by packed nvfp4", [](LinearGemm *g) {
        g->b.format = FORMAT_NVFP4;
        g->b.scales = (uint8_t *)nowhere(3);
    });
}

CASE(f32_values_go_into_f32) {
    LinearGemm g = linear_gemm(linears[0], GEMM_FPROP, FORM_VALUES, 256);
    g.a.dtype = g.b.dtype = DT_F32;
    EXPECT_ABORTS("f32 values into f32, not bf16", gemm_plan_key(g.d, &g.a, &g.b, g.epilogue));
    g.b.dtype = DT_BF16;
    EXPECT_ABORTS("f32 and bf16", gemm_plan_key(g.d, &g.a, &g.b, g.epilogue));
}

int main(int argc, char **argv) {
    FILE *elsewhere = fopen("/dev/null", "w");   // the log's own stream; stdout otherwise
    CUBLAS_CHECK(cublasLtLoggerSetFile(elsewhere));
    CUBLAS_CHECK(cublasLtLoggerSetCallback(keep_heuristic));
    CUBLAS_CHECK(cublasLtLoggerSetLevel(5));   // every call with its parameters
    if (argc > 1 && strcmp(argv[1], "--print") == 0) {
        printf("%s", describe_all().c_str());
        return 0;
    }
    return test_run(argc, argv);
}
