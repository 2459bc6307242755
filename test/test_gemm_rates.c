/*
test_gemm_rates -- the products whose algorithms gemm_rates lets a device choose are those that
training computes, in sizes, layouts, epilogues and alignments. Both are recorded through tables of
ops on a CPU that passes for a GPU.
*/
#include "../llmc/gemm_rates.h"

#include "../llmc/common.h"
#include "../llmc/config.h"
#include "test.h"

enum { MAX_PRODUCTS = 256, MOST_ALIGN = 256 };

/* What an algorithm is chosen for; cuBLASLt's types stand in gemm_plan.cu. */
typedef struct {
    int64_t m, n, k;
    int32_t form, a_format, b_format;   // formats of codes; 0 of values
    int32_t d_type, a_k_contiguous, b_k_contiguous, has_bias, accumulate, slices;
    int32_t a_align, b_align, d_align, bias_align;
    int32_t unused;   // no hole for a comparison to meet
} Product;

typedef struct {
    Product items[MAX_PRODUCTS];
    int count;
} Products;

static Products *recording;

static int32_t alignment(const void *p) {
    int32_t align = MOST_ALIGN;
    while ((uintptr_t)p % (uintptr_t)align) align /= 2;
    return align;
}

static int has_product(const Products *list, const Product *p) {
    for (int i = 0; i < list->count; i++) {
        if (memcmp(&list->items[i], p, sizeof(*p)) == 0) return 1;
    }
    return 0;
}

static void record(Device *d, Tensor out, const QOperand *a, const QOperand *b, GemmEpilogue e) {
    (void)d;
    gemm_check(out, a, b, e);
    Product p = {.m = a->rows, .n = b->rows, .k = a->k, .form = (int32_t)a->form};
    if (a->form == FORM_PACKED) p.a_format = a->format;
    if (b->form == FORM_PACKED) p.b_format = b->format;
    p.d_type = (int32_t)out.dtype;
    p.a_k_contiguous = a->k_contiguous;
    p.b_k_contiguous = b->k_contiguous;
    p.has_bias = !tensor_empty(e.bias);
    p.accumulate = e.accumulate;
    p.slices = quantize_num_slices(a);
    p.a_align = alignment(a->data);
    p.b_align = alignment(b->data);
    p.d_align = alignment(out.data);
    p.bias_align = p.has_bias ? alignment(e.bias.data) : 0;
    if (has_product(recording, &p) || recording->count == MAX_PRODUCTS) return;
    recording->items[recording->count++] = p;
}

static void compute_and_record(Device *d, Tensor out, const QOperand *a, const QOperand *b,
                               GemmEpilogue e) {
    record(d, out, a, b, e);
    gemm_cpu(d, out, a, b, e);
}

static void compute_nothing(Device *d, Tensor out, const QOperand *a, const QOperand *b,
                            GemmEpilogue e) {
    (void)d, (void)out, (void)a, (void)b, (void)e;
}

static Device *open_gpu_double(void) {
    Device *d = device_cpu_open(0);
    d->native_fp4 = d->native_fp8 = 1;
    d->num_threads = 132;
    return d;
}

/* What one micro-batch of training computes. */
static Products trained(const Config *c, Fp4Gemm fp4) {
    Products list = {.count = 0};
    Model m;
    Ops ops = ops_cpu;
    ops.gemm = compute_and_record;
    Device *d = open_gpu_double();
    model_declare(&m, c);
    m.engine.fp4 = fp4;
    m.engine.fp8 = fp4 != FP4_EMULATED;   // codes of either format, or neither's
    model_place(&m, c, d, &ops, 1);
    model_init(&m, 7);
    model_prepare_weights(&m);
    model_zero_gradients(&m);
    int count = c->batch.micro * c->batch.seq_len;
    int32_t *tokens = (int32_t *)xmalloc((size_t)count * sizeof(int32_t));
    recording = &list;
    model_forward_backward(&m, tokens, tokens, c->batch.micro, c->batch.seq_len, 1.0f);
    free(tokens);
    model_free(&m);
    d->close(d);
    return list;
}

/* What is measured at start, before there is a model. */
static Products tuned(const Config *c, Fp4Gemm fp4) {
    Products list = {.count = 0};
    Model m;
    Ops ops = ops_cpu;
    ops.gemm = compute_nothing;
    ops.gemm_tune = record;
    Device *d = open_gpu_double();
    d->kind = DEVICE_CUDA;
    model_declare(&m, c);
    m.engine.fp4 = fp4;
    m.engine.fp8 = fp4 != FP4_EMULATED;   // codes of either format, or neither's
    model_measure(&m, c, d, &ops, 1);
    recording = &list;
    free(gemm_rates_measure(&m, (int64_t)c->batch.micro * c->batch.seq_len));
    model_free(&m);
    d->close(d);
    return list;
}

static void expect_all_tuned(int num_args, char **args, Fp4Gemm fp4, int least) {
    Config c;
    config_parse(&c, num_args, args);
    Products training = trained(&c, fp4), tuning = tuned(&c, fp4);
    EXPECT(training.count >= least, "only %d kinds of products", training.count);
    for (int i = 0; i < training.count; i++) {
        const Product *p = &training.items[i];
        EXPECT(has_product(&tuning, p),
               "%lld x %lld x %lld, form %d, %s by %s into %s, k contiguous %d %d, bias %d, "
               "accumulate %d, "
               "slices %d, aligned to %d %d %d, bias to %d",
               (long long)p->m, (long long)p->n, (long long)p->k, p->form,
               formats[p->a_format].name, formats[p->b_format].name, dtype_info[p->d_type].name,
               p->a_k_contiguous, p->b_k_contiguous, p->has_bias, p->accumulate, p->slices,
               p->a_align, p->b_align, p->d_align, p->bias_align);
    }
    config_free(&c);
}

CASE(of_a_bf16_model_with_biases) {
    char *args[] = {"test/fixtures/model_gpt2.json", "precision.recipe=bf16", "eval.micro=2"};
    expect_all_tuned(ARRAY_LEN(args), args, FP4_EMULATED, 12);
}

/* Chunks of 11 rows of 40 values begin at 880 bytes and multiples; the last has 10 rows. */
CASE(of_a_head_whose_chunks_differ) {
    char *args[] = {"test/fixtures/model_llama.json",
                    "precision.recipe=bf16",
                    "eval.micro=2",
                    "model.dim=40",
                    "model.head_dim=10",
                    "memory.lmhead_chunks=3"};
    expect_all_tuned(ARRAY_LEN(args), args, FP4_EMULATED, 21);
}

/* The head's chunks are of the larger evaluation micro-batch; training's tokens are fewer. */
CASE(of_a_head_with_rows_for_evaluation) {
    char *args[] = {"test/fixtures/model_llama.json", "precision.recipe=bf16", "eval.micro=16",
                    "model.dim=40", "model.head_dim=10"};
    expect_all_tuned(ARRAY_LEN(args), args, FP4_EMULATED, 12);
}

CASE(of_emulated_nvfp4) {
    char *args[] = {"test/fixtures/model_gpt2.json", "precision.recipe=nvfp4", "eval.micro=2",
                    "precision.keep_bf16.last=1"};
    expect_all_tuned(ARRAY_LEN(args), args, FP4_EMULATED, 12);
}

CASE(of_packed_fp8) {
    char *args[] = {"test/fixtures/model_gpt2.json", "precision.recipe=fp8", "eval.micro=2"};
    expect_all_tuned(ARRAY_LEN(args), args, FP4_LIBRARY, 13);
}

/* Blocks of both formats, by rules. */
CASE(of_packed_nvfp4_and_fp8) {
    char *args[] = {"test/fixtures/model_gpt2.json", "precision.recipe=fp8", "eval.micro=2",
                    "precision.rules=[{\"layers\": \"blocks.0.*\", \"recipe\": \"nvfp4\"}]"};
    expect_all_tuned(ARRAY_LEN(args), args, FP4_LIBRARY, 25);
}

/* Tokens enough that packed weight gradients are cut into slices. */
CASE(of_packed_nvfp4) {
    char *args[] = {"test/fixtures/model_gpt2.json", "precision.recipe=nvfp4", "eval.micro=2",
                    "precision.keep_bf16.last=1",    "batch.micro=4",          "batch.seq_len=512",
                    "batch.total_tokens=2048"};
    expect_all_tuned(ARRAY_LEN(args), args, FP4_LIBRARY, 25);
}

TEST_MAIN_END
