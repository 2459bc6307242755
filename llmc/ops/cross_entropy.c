/*
cross_entropy -- CPU reference of cross_entropy.h.
*/
#include "cross_entropy.h"

#include <math.h>

#include "fast_exp.h"
#include "row_io.h"
#include "scratch_cpu.h"

enum { THREAD_ROWS = 1, CHUNK_ROWS = 0 };   // the logits of one row

size_t cross_entropy_scratch_cpu(int64_t padded_vocab) {
    return row_scratch_bytes(padded_vocab, THREAD_ROWS, CHUNK_ROWS);
}

void cross_entropy_check(Tensor losses, Tensor logits, Tensor targets, int vocab) {
    expect_bf16_or_f32(logits, "cross_entropy logits");
    tensor_expect(losses, "cross_entropy losses", DT_F32, logits.rows, 1);
    tensor_expect(targets, "cross_entropy targets", DT_I32, logits.rows, 1);
    CHECK(vocab > 0 && vocab <= logits.cols, "vocabulary of %d, logits have %lld columns", vocab,
          (long long)logits.cols);
}

/* Loss of one row; row (V) becomes exp(logit - maximum), and *sum their sum. */
static float forward_row(float *row, float *sum, int V, int target) {
    float maximum = row[0], total = 0.0f;
#pragma omp simd reduction(max : maximum)
    for (int v = 0; v < V; v++) maximum = row[v] > maximum ? row[v] : maximum;
    float target_logit = row[target];
#pragma omp simd reduction(+ : total)
    for (int v = 0; v < V; v++) {
        row[v] = fast_exp(row[v] - maximum);
        total += row[v];
    }
    *sum = total;
    return logf(total) + maximum - target_logit;
}

void cross_entropy_cpu(Device *d, Tensor losses, Tensor logits, Tensor targets, int vocab,
                       float dloss) {
    cross_entropy_check(losses, logits, targets, vocab);
    RowScratch scratch = row_scratch(d, logits.cols, THREAD_ROWS, CHUNK_ROWS);
#pragma omp parallel for
    for (int64_t n = 0; n < logits.rows; n++) {
        float *row = thread_row(scratch, 0), sum;
        int target = ((const int32_t *)targets.data)[n];
        CHECK(target >= 0 && target < vocab, "target %d in row %lld, vocabulary of %d", target,
              (long long)n, vocab);
        load_span(row, logits, n * logits.cols, vocab);
        ((float *)losses.data)[n] = forward_row(row, &sum, vocab, target);
        if (dloss == 0.0f) continue;
        // loss = log(sum of exp) - logit of the target: softmax, minus 1 at the target
        float scale = 1.0f / sum;
        for (int v = 0; v < vocab; v++) row[v] = row[v] * scale * dloss;
        row[target] -= dloss;
        for (int64_t v = vocab; v < logits.cols; v++) row[v] = 0.0f;
        store_row(logits, n, row);
    }
}
