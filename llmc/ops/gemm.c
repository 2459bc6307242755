/*
gemm -- CPU reference of gemm.h: threads share the rows of d in panels, each panel is one
single-threaded f32 product (sgemm_one_thread). Panels depend on the shape alone, so the result
does not depend on the number of threads.
*/
#include "gemm.h"

#include "row_io.h"
#include "scratch_cpu.h"

enum {
    PANEL = 64,       // rows of d in one product
    FP4_TILE = 128,   // of d, that a multiprocessor works on; also what slices of k come in
    MAX_SLICES = 8,
    MIN_SLICE = 1024,   // shorter ones would gain less than their sum costs
};

int gemm_slices(const Device *dev, int64_t m, int64_t n, int64_t k) {
    if (!dev->native_fp4) return 1;
    int64_t tiles = ceil_div(m, FP4_TILE) * ceil_div(n, FP4_TILE);
    int slices = 1;
    while (slices < MAX_SLICES && 2 * slices * tiles <= dev->num_threads &&
           k % (2 * slices * FP4_TILE) == 0 && k / (2 * slices) >= MIN_SLICE)
        slices *= 2;
    return slices;
}

void gemm_check(Tensor d, const QOperand *a, const QOperand *b, GemmEpilogue epilogue) {
    CHECK(a->form == b->form, "gemm operands have forms %d and %d", (int)a->form, (int)b->form);
    CHECK(a->k == b->k, "gemm contraction: a has k %lld, b %lld", (long long)a->k, (long long)b->k);
    int slices = quantize_num_slices(a);
    CHECK(slices == quantize_num_slices(b), "gemm: a has %d slices, b %d", slices,
          quantize_num_slices(b));
    CHECK(slices == 1 || epilogue.accumulate, "gemm: %d slices, not accumulating", slices);
    if (a->form == FORM_VALUES) {
        CHECK(a->dtype == b->dtype && (a->dtype == DT_BF16 || a->dtype == DT_F32),
              "gemm operands are %s and %s; both must be bf16, or both f32",
              dtype_info[a->dtype].name, dtype_info[b->dtype].name);
    }
    expect_bf16_or_f32(d, "gemm d");
    tensor_expect(d, "gemm d", d.dtype, a->rows, b->rows);
    if (!tensor_empty(epilogue.bias))
        tensor_expect(epilogue.bias, "gemm bias", d.dtype, 1, b->rows);
    CHECK(!epilogue.accumulate || d.dtype == DT_F32, "gemm accumulates into %s, not f32",
          dtype_info[d.dtype].name);
}

size_t gemm_scratch_cpu(int64_t n, int64_t k, int64_t b_count) {
    int64_t panel = PANEL * (round_up(k, ROW_ALIGN) + round_up(n, ROW_ALIGN));
    int64_t count = round_up(b_count, ROW_ALIGN) + omp_get_max_threads() * panel;
    return (size_t)count * sizeof(float);
}

static Tensor operand_values(const QOperand *q) {
    return q->k_contiguous ? tensor_view(q->data, q->dtype, q->rows, q->k)
                           : tensor_view(q->data, q->dtype, q->k, q->rows);
}

/* Tensor decode scales and constant of the formula; 1 for plain operands. */
static float product_alpha(const QOperand *a, const QOperand *b) {
    float alpha = 1.0f;
    if (a->amax) alpha *= *a->amax;
    if (b->amax) alpha *= *b->amax;
    return alpha * operand_alpha_mult(a, b);
}

/* A matrix in f32, as sgemm_one_thread takes it. */
typedef struct {
    const float *data;
    int64_t stride;
} Matrix;

/* Rows [row, row + rows) of packed codes as the values that they stand for, (rows,k). */
static Matrix decode_rows(const QOperand *q, int64_t row, int64_t rows, float *copy) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t k = 0; k < q->k; k++) {
            copy[r * q->k + k] = quantize_decode(q, row + r, k);
        }
    }
    Matrix m = {copy, q->k};
    return m;
}

/* All of operand b; what is not f32 already is copied to `copy`. */
static Matrix whole_operand(const QOperand *b, float *copy) {
    if (b->form == FORM_PACKED) {
#pragma omp parallel for
        for (int64_t row = 0; row < b->rows; row++) decode_rows(b, row, 1, copy + row * b->k);
        Matrix decoded = {copy, b->k};
        return decoded;
    }
    Tensor values = operand_values(b);
    Matrix m = {(const float *)values.data, values.cols};
    if (values.dtype == DT_F32) return m;
    int64_t total = tensor_count(values);
#pragma omp parallel for
    for (int64_t first = 0; first < total; first += SPAN)
        load_span(copy + first, values, first, min_i64(SPAN, total - first));
    m.data = copy;
    return m;
}

/* Rows [row, row + rows) of operand a in its own layout, (rows,k) or (k,rows). */
static Matrix operand_panel(const QOperand *a, int64_t row, int64_t rows, float *copy) {
    if (a->form == FORM_PACKED) return decode_rows(a, row, rows, copy);
    Tensor values = operand_values(a);
    if (values.dtype == DT_F32) {
        Matrix in_place = {(const float *)values.data + (a->k_contiguous ? row * a->k : row),
                           values.cols};
        return in_place;
    }
    Block k_contiguous = {row, rows, 0, a->k}, k_strided = {0, a->k, row, rows};
    Block block = a->k_contiguous ? k_contiguous : k_strided;
    load_block(copy, values, block);
    Matrix m = {copy, block.cols};
    return m;
}

/* Adds the bias to `rows` rows of sums (rows,N) and stores them as rows [row, ...) of d. */
static void finish_panel(Tensor d, int64_t row, int64_t rows, float *sums, Tensor bias) {
    for (int64_t c = 0; !tensor_empty(bias) && c < d.cols; c += SPAN) {
        float span[SPAN];
        int64_t count = min_i64(SPAN, d.cols - c);
        load_span(span, bias, c, count);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < count; i++) sums[r * d.cols + c + i] += span[i];
    }
    if (d.dtype == DT_BF16) store_span(d, row * d.cols, sums, rows * d.cols);
}

const char *gemm_error_cpu(Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                           GemmEpilogue epilogue) {
    (void)dev;
    gemm_check(d, a, b, epilogue);
    return NULL;
}

void gemm_tune_cpu(Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                   GemmEpilogue epilogue) {
    (void)dev;
    gemm_check(d, a, b, epilogue);
}

char *gemm_choices_save_cpu(Device *dev) {
    (void)dev;
    return xstrdup("");
}

int gemm_choices_load_cpu(Device *dev, const char *text) {
    (void)dev, (void)text;
    return 0;
}

/* The product of operands in one piece. */
static void multiply(Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                     GemmEpilogue epilogue) {
    int64_t M = a->rows, N = b->rows, K = a->k;
    int b_in_place = b->form == FORM_VALUES && b->dtype == DT_F32;
    int64_t b_count = b_in_place ? 0 : N * K;
    float *scratch = (float *)device_scratch(dev, gemm_scratch_cpu(N, K, b_count));
    float *panels = scratch + round_up(b_count, ROW_ALIGN);
    int64_t panel_a = PANEL * round_up(K, ROW_ALIGN);
    int64_t panel_stride = panel_a + PANEL * round_up(N, ROW_ALIGN);
    Matrix b_values = whole_operand(b, scratch);
    float alpha = product_alpha(a, b), beta = epilogue.accumulate ? 1.0f : 0.0f;
#pragma omp parallel for
    for (int64_t row = 0; row < M; row += PANEL) {
        int64_t rows = min_i64(PANEL, M - row);
        float *copy = panels + panel_stride * omp_get_thread_num();
        float *sums = d.dtype == DT_F32 ? (float *)d.data + row * N : copy + panel_a;
        Matrix a_values = operand_panel(a, row, rows, copy);
        SgemmShape shape = {.trans_a = !a->k_contiguous, .trans_b = b->k_contiguous};
        shape.m = rows;
        shape.n = shape.ldc = N;
        shape.k = K;
        shape.lda = a_values.stride;
        shape.ldb = b_values.stride;
        shape.alpha = alpha;
        shape.beta = beta;
        sgemm_one_thread(shape, a_values.data, b_values.data, sums);
        finish_panel(d, row, rows, sums, epilogue.bias);
    }
}

void gemm_cpu(Device *dev, Tensor d, const QOperand *a, const QOperand *b, GemmEpilogue epilogue) {
    gemm_check(d, a, b, epilogue);
    int slices = quantize_num_slices(a);
    if (slices == 1) multiply(dev, d, a, b, epilogue);
    for (int i = 0; slices > 1 && i < slices; i++) {
        QOperand a_slice = quantize_slice(a, i), b_slice = quantize_slice(b, i);
        multiply(dev, d, &a_slice, &b_slice, epilogue);
    }
}
