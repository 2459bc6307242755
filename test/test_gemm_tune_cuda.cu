// test_gemm_tune_cuda -- GEMMs by measured algorithms: what they compute, that they repeat their
// bits, and that another process, here another Device of the same GPU, takes them from a text as
// they are, or not at all.
#include <string>
#include <vector>

#include "../llmc/common.h"
#include "../llmc/device_cuda.cuh"
#include "../llmc/ops.h"
#include "../llmc/ops/gemm_choices.h"
#include "../llmc/rng.h"
#include "test.h"

typedef struct {
    const char *name;
    int64_t m, n, k;
    int a_k_contiguous, b_k_contiguous;
    DType d_type;
    int bias, accumulate;
} Case;

static const Case cases[] = {
    {"fprop", 4096, 2304, 768, 1, 1, DT_BF16, 1, 0},
    {"dgrad", 4096, 768, 2304, 1, 0, DT_BF16, 0, 0},
    {"wgrad", 768, 768, 16384, 0, 0, DT_F32, 0, 1},   // few tiles: K is worth splitting
    {"wide wgrad", 2304, 768, 4096, 0, 0, DT_F32, 0, 1},
    {"ragged", 200, 136, 40, 1, 1, DT_F32, 0, 0},   // multiples of a vector, of no tile
    {"one row", 1, 96, 136, 1, 1, DT_BF16, 1, 0},
};

// --- products ---

/* Operands and results of one case on one device. */
typedef struct {
    Device *device;
    const Case *c;
    Tensor d, a, b, bias;
} Product;

static Tensor new_tensor(Device *dev, DType type, int64_t rows, int64_t cols) {
    return tensor_view(device_alloc(dev, dtype_bytes(type, rows * cols), "test"), type, rows, cols);
}

/* Values in [-1, 1), or their magnitudes. */
static Tensor random_tensor(Device *dev, int64_t rows, int64_t cols, uint32_t seed, int positive) {
    Tensor t = new_tensor(dev, DT_BF16, rows, cols);
    std::vector<bf16_t> values((size_t)(rows * cols));
    for (size_t i = 0; i < values.size(); i++) {
        Philox4 draw = philox4x32_10(rng_group_counter(i, 0, 0), seed, 0);
        float x = 2.0f * rng_uniform(draw.w[0]) - 1.0f;
        values[i] = bf16_from_f32(positive ? fabsf(x) : x);
    }
    dev->upload(dev, t.data, values.data(), tensor_bytes(t));
    return t;
}

static Product product_open(Device *dev, const Case *c, int positive) {
    Product p = {};
    p.device = dev;
    p.c = c;
    p.d = new_tensor(dev, c->d_type, c->m, c->n);
    p.a = random_tensor(dev, c->a_k_contiguous ? c->m : c->k, c->a_k_contiguous ? c->k : c->m, 1,
                        positive);
    p.b = random_tensor(dev, c->b_k_contiguous ? c->n : c->k, c->b_k_contiguous ? c->k : c->n, 2,
                        positive);
    if (c->bias) p.bias = random_tensor(dev, 1, c->n, 3, positive);
    return p;
}

static void product_close(Product *p) {
    const Tensor all[] = {p->d, p->a, p->b, p->bias};
    for (const Tensor &t : all) p->device->free(p->device, t.data);
}

static void call(const Product *p,
                 void (*op)(Device *, Tensor, const QOperand *, const QOperand *, GemmEpilogue)) {
    QOperand a = operand_from_tensor(p->a, FORMAT_BF16, p->c->a_k_contiguous);
    QOperand b = operand_from_tensor(p->b, FORMAT_BF16, p->c->b_k_contiguous);
    GemmEpilogue epilogue = {p->bias, p->c->accumulate};
    op(p->device, p->d, &a, &b, epilogue);
}

static void tune(const Product *p) { call(p, gemm_tune_cuda); }

/* The bytes of d after one product into zeros. */
static std::vector<uint8_t> multiply(const Product *p) {
    std::vector<uint8_t> bytes(tensor_bytes(p->d));
    p->device->zero(p->device, p->d.data, bytes.size());
    call(p, gemm_cuda);
    p->device->download(p->device, bytes.data(), p->d.data, bytes.size());
    return bytes;
}

/* On a device of its own, which knows `text`. */
static std::vector<uint8_t> multiply_knowing(const char *text, const Case *c) {
    Device *dev = device_cuda_open(0);
    if (text) gemm_choices_load_cuda(dev, text);
    Product p = product_open(dev, c, 0);
    std::vector<uint8_t> bytes = multiply(&p);
    product_close(&p);
    dev->close(dev);
    return bytes;
}

static std::string saved(Device *dev) {
    char *text = gemm_choices_save_cuda(dev);
    std::string copy = text;
    free(text);
    return copy;
}

/* The choices in a text of this GPU; caller frees the items. */
static GemmChoices choices_in(const std::string &text, std::string *header) {
    Device *dev = device_cuda_open(0);
    GemmChoices list = {NULL, 0};
    char *lines = gemm_choices_header(dev);
    gemm_choices_read(&list, text.c_str(), lines);
    *header = lines;
    free(lines);
    dev->close(dev);
    return list;
}

static double value_at(const std::vector<uint8_t> &bytes, DType type, size_t i) {
    if (type == DT_BF16) return bf16_to_f32(((const bf16_t *)bytes.data())[i]);
    return ((const float *)bytes.data())[i];
}

static void expect_same(const std::vector<uint8_t> &got, const std::vector<uint8_t> &want,
                        const char *name) {
    EXPECT_EQ_I64(got.size(), want.size(), "%s", name);
    EXPECT_BITS(got.data(), want.data(), want.size(), "%s", name);
}

// --- what is computed ---

/* Two orders of an f32 sum differ by at most twice (K / 16 + 1) 2^-23 of the sum of the magnitudes
   of its terms (test_ops.cu, gemm_bound), and then by one rounding to bf16: 2^-7 of the value. The
   magnitudes' own sum may be 2^-7 off. */
static void expect_close(const Case *c, const std::vector<uint8_t> &got,
                         const std::vector<uint8_t> &want, const std::vector<uint8_t> &magnitudes) {
    double unit = 2.0 * (double)(c->k / 16 + 1) * ldexp(1.0, -23) * (1 + ldexp(1.0, -7));
    for (size_t i = 0; i < (size_t)(c->m * c->n); i++) {
        double g = value_at(got, c->d_type, i), w = value_at(want, c->d_type, i);
        double allowed = unit * value_at(magnitudes, c->d_type, i);
        if (c->d_type == DT_BF16) allowed += ldexp(1.0, -7) * fabs(w);
        EXPECT_NEAR(g, w, allowed, "%s, element %zu", c->name, i);
    }
}

CASE(measured_algorithms_compute_the_same_product) {
    Device *plain = device_cuda_open(0), *tuned = device_cuda_open(0);
    for (const Case &c : cases) {
        Product p = product_open(plain, &c, 0), q = product_open(tuned, &c, 0);
        Product positive = product_open(plain, &c, 1);
        tune(&q);
        std::vector<uint8_t> got = multiply(&q), want = multiply(&p);
        expect_close(&c, got, want, multiply(&positive));
        for (int run = 0; run < 3; run++) expect_same(multiply(&q), got, c.name);
        product_close(&positive);
        product_close(&q);
        product_close(&p);
    }
    plain->close(plain);
    tuned->close(tuned);
}

CASE(what_is_measured_is_not_measured_again) {
    Device *dev = device_cuda_open(0);
    Product p = product_open(dev, &cases[0], 0);
    tune(&p);
    std::string first = saved(dev);
    std::string header;
    GemmChoices list = choices_in(first, &header);
    REQUIRE(list.count == 1, "%s", first.c_str());
    EXPECT(list.items[0].tflops > 0, "%s", first.c_str());
    free(list.items);
    for (int i = 0; i < 3; i++) tune(&p);
    EXPECT(saved(dev) == first, "was\n%sis\n%s", first.c_str(), saved(dev).c_str());
    product_close(&p);
    dev->close(dev);
}

// --- texts ---

/* The choices of all cases, and what their products are. */
static std::string tuned_text(std::vector<std::vector<uint8_t>> *results) {
    Device *dev = device_cuda_open(0);
    for (const Case &c : cases) {
        Product p = product_open(dev, &c, 0);
        tune(&p);
        results->push_back(multiply(&p));
        product_close(&p);
    }
    std::string text = saved(dev);
    dev->close(dev);
    return text;
}

CASE(a_text_gives_the_same_algorithms) {
    std::vector<std::vector<uint8_t>> results;
    std::string text = tuned_text(&results);
    Device *dev = device_cuda_open(0);
    EXPECT_EQ_I64(gemm_choices_load_cuda(dev, text.c_str()), ARRAY_LEN(cases));
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        Product p = product_open(dev, &cases[i], 0);
        tune(&p);   // settled by the text: nothing is measured
        expect_same(multiply(&p), results[i], cases[i].name);
        product_close(&p);
    }
    EXPECT(saved(dev) == text, "was\n%sis\n%s", text.c_str(), saved(dev).c_str());
    dev->close(dev);
}

/* Products that ran before the text came, as a self-test's do, are no reason to measure. */
CASE(a_text_that_comes_late_counts) {
    std::vector<std::vector<uint8_t>> results;
    std::string text = tuned_text(&results);
    Device *dev = device_cuda_open(0);
    Product p = product_open(dev, &cases[2], 0);
    multiply(&p);
    gemm_choices_load_cuda(dev, text.c_str());
    tune(&p);
    expect_same(multiply(&p), results[2], cases[2].name);
    product_close(&p);
    dev->close(dev);
}

CASE(another_devices_text_is_not_taken) {
    std::vector<std::vector<uint8_t>> results;
    std::string text = tuned_text(&results);
    Device *dev = device_cuda_open(0);
    std::string other = text;
    other.replace(text.find(dev->name), strlen(dev->name), "NVIDIA Nowhere");
    EXPECT_EQ_I64(gemm_choices_load_cuda(dev, other.c_str()), 0);
    other = text;
    other.replace(text.find("cuBLASLt "), 9, "cuBLASLt 1");
    EXPECT_EQ_I64(gemm_choices_load_cuda(dev, other.c_str()), 0);
    EXPECT_EQ_I64(gemm_choices_load_cuda(dev, text.c_str()), ARRAY_LEN(cases));
    dev->close(dev);
}

/* The text with one algorithm spoilt for every case. */
static std::string spoilt(const std::string &text, void (*spoil)(cublasLtMatmulAlgo_t *algo)) {
    std::string header;
    GemmChoices list = choices_in(text, &header);
    for (int i = 0; i < list.count; i++) {
        cublasLtMatmulAlgo_t algo;
        memcpy(&algo, list.items[i].algo, sizeof(algo));
        spoil(&algo);
        memcpy(list.items[i].algo, &algo, sizeof(algo));
    }
    char *again = gemm_choices_text(&list, header.c_str());
    std::string copy = again;
    free(again);
    free(list.items);
    return copy;
}

static void all_ones(cublasLtMatmulAlgo_t *algo) { memset(algo, 0xFF, sizeof(*algo)); }

/* Partial sums in whatever order they are done: legal, and not the same from run to run. */
static void reduce_in_place(cublasLtMatmulAlgo_t *algo) {
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_INPLACE;
    int32_t parts = 4;
    CUBLAS_CHECK(cublasLtMatmulAlgoConfigSetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                                      sizeof(parts)));
    CUBLAS_CHECK(cublasLtMatmulAlgoConfigSetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                      &scheme, sizeof(scheme)));
}

CASE(algorithms_that_are_none_or_not_deterministic_are_refused) {
    void (*const spoils[])(cublasLtMatmulAlgo_t *) = {all_ones, reduce_in_place};
    std::vector<std::vector<uint8_t>> results;
    std::string text = tuned_text(&results);
    log_set_rank(1, 2);   // warnings go nowhere
    for (auto spoil : spoils) {
        std::string bad = spoilt(text, spoil);
        for (const Case &c : cases) {
            expect_same(multiply_knowing(bad.c_str(), &c), multiply_knowing(NULL, &c), c.name);
        }
    }
    log_set_rank(0, 1);
}

int main(int argc, char **argv) {
    Device *dev = device_cuda_open(0);
    printf("%s, %s\n", dev->name, dev->libraries);
    dev->close(dev);
    return test_run(argc, argv);
}
