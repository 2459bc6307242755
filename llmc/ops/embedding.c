/*
embedding -- CPU reference of embedding.h.
*/
#include "embedding.h"

#include "row_io.h"

enum { COLUMNS_PER_TASK = 64 };

static void check_positions(Tensor positions, Tensor tokens) {
    CHECK(positions.rows >= tokens.cols, "%lld positions for sequences of %lld tokens",
          (long long)positions.rows, (long long)tokens.cols);
}

void embedding_check(Tensor out, Tensor tokens, Tensor table, Tensor positions) {
    expect_bf16_or_f32(table, "embedding table");
    tensor_expect(tokens, "embedding tokens", DT_I32, tokens.rows, tokens.cols);
    tensor_expect(out, "embedding out", table.dtype, tensor_count(tokens), table.cols);
    if (tensor_empty(positions)) return;
    tensor_expect(positions, "embedding positions", table.dtype, positions.rows, table.cols);
    check_positions(positions, tokens);
}

void embedding_forward_cpu(Device *d, Tensor out, Tensor tokens, Tensor table, Tensor positions) {
    (void)d;
    embedding_check(out, tokens, table, positions);
    const int32_t *ids = (const int32_t *)tokens.data;
    int64_t T = tokens.cols, C = out.cols;
#pragma omp parallel for
    for (int64_t n = 0; n < out.rows; n++) {
        float sum[SPAN], position[SPAN];
        for (int64_t c = 0; c < C; c += SPAN) {
            int64_t count = min_i64(SPAN, C - c);
            load_span(sum, table, ids[n] * C + c, count);
            if (!tensor_empty(positions)) {
                load_span(position, positions, n % T * C + c, count);
                for (int64_t i = 0; i < count; i++) sum[i] += position[i];
            }
            store_span(out, n * C + c, sum, count);
        }
    }
}

/* Threads share the columns, so each element of a gradient is summed in the order of the tokens. */
void embedding_backward_cpu(Device *d, Tensor dtable, Tensor dpositions, Tensor dout,
                            Tensor tokens) {
    (void)d;
    expect_bf16_or_f32(dout, "embedding dout");
    tensor_expect(tokens, "embedding tokens", DT_I32, tokens.rows, tokens.cols);
    tensor_expect(dout, "embedding dout", dout.dtype, tensor_count(tokens), dout.cols);
    tensor_expect(dtable, "embedding dtable", DT_F32, dtable.rows, dout.cols);
    if (!tensor_empty(dpositions)) {
        tensor_expect(dpositions, "embedding dpositions", DT_F32, dpositions.rows, dout.cols);
        check_positions(dpositions, tokens);
    }
    const int32_t *ids = (const int32_t *)tokens.data;
    int64_t T = tokens.cols, C = dout.cols;
#pragma omp parallel for
    for (int64_t c = 0; c < C; c += COLUMNS_PER_TASK) {
        float row[COLUMNS_PER_TASK];
        int64_t count = min_i64(COLUMNS_PER_TASK, C - c);
        for (int64_t n = 0; n < dout.rows; n++) {
            load_span(row, dout, n * C + c, count);
            // out[n] = table[ids[n]] + positions[n % T]
            float *token_grad = (float *)dtable.data + ids[n] * C + c;
            for (int64_t i = 0; i < count; i++) token_grad[i] += row[i];
            if (tensor_empty(dpositions)) continue;
            float *position_grad = (float *)dpositions.data + n % T * C + c;
            for (int64_t i = 0; i < count; i++) position_grad[i] += row[i];
        }
    }
}
