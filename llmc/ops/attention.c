/*
attention -- CPU reference of attention.h: causal attention in blocks of queries, and rope.
The formulas of the header are written as matrix products over a block of queries and all keys up
to its last one; the T x T matrix exists one block at a time. test_ops_cpu.c compares with the
plain triple loop in double.
One task is one key/value head of one sequence with all query heads of its group, so dk and dv are
summed over the group in a fixed order.
*/
#include "attention.h"

#include <math.h>

#include "fast_exp.h"
#include "gemm.h"
#include "row_io.h"
#include "scratch_cpu.h"

enum { QUERY_BLOCK = 64 };

void attention_check(Tensor out, Tensor lse, Tensor qkv, AttentionDims dims) {
    CHECK(dims.num_kv_heads > 0 && dims.num_heads % dims.num_kv_heads == 0,
          "%d query heads, %d key/value heads", dims.num_heads, dims.num_kv_heads);
    int64_t rows = (int64_t)dims.B * dims.T;
    expect_bf16_or_f32(qkv, "attention qkv");
    tensor_expect(qkv, "attention qkv", qkv.dtype, rows, attention_qkv_cols(dims));
    tensor_expect(out, "attention out", qkv.dtype, rows, (int64_t)dims.num_heads * dims.head_dim);
    tensor_expect(lse, "attention lse", DT_F32, (int64_t)dims.B * dims.num_heads, dims.T);
}

// --- work space of one thread, f32 ---

typedef struct {
    float *k, *v, *dk, *dv;       // (T,HS): one key/value head of one sequence
    float *q, *out, *dout, *dq;   // (QUERY_BLOCK,HS)
    float *p, *ds;                // (QUERY_BLOCK,T): probabilities, and the gradient of scores
} Work;

static int64_t work_count(AttentionDims dims) {
    int64_t head = (int64_t)dims.T * dims.head_dim;
    int64_t block = (int64_t)QUERY_BLOCK * dims.head_dim;
    return 4 * round_up(head, ROW_ALIGN) + 4 * block + 2 * (int64_t)QUERY_BLOCK * dims.T;
}

size_t attention_scratch_cpu(AttentionDims dims) {
    return (size_t)(work_count(dims) * omp_get_max_threads()) * sizeof(float);
}

static Work work_of_thread(float *scratch, AttentionDims dims) {
    int64_t head = round_up((int64_t)dims.T * dims.head_dim, ROW_ALIGN);
    int64_t block = (int64_t)QUERY_BLOCK * dims.head_dim;
    float *k = scratch + work_count(dims) * omp_get_thread_num();
    float *q = k + 4 * head, *p = q + 4 * block;
    Work w = {.k = k, .v = k + head, .dk = k + 2 * head, .dv = k + 3 * head};
    w.q = q;
    w.out = q + block;
    w.dout = q + 2 * block;
    w.dq = q + 3 * block;
    w.p = p;
    w.ds = p + (int64_t)QUERY_BLOCK * dims.T;
    return w;
}

// --- what both passes share ---

/* A task: one key/value head of one sequence. */
typedef struct {
    AttentionDims dims;
    int64_t row;   // first row of the sequence
    int b, kv_head;
    float scale;   // 1 / sqrt(HS)
} Task;

/* Queries [begin, begin + count) of one query head; they see keys [0, keys). */
typedef struct {
    int head;
    int64_t begin, count, keys;
} Queries;

static Task task_at(AttentionDims dims, int index) {
    int b = index / dims.num_kv_heads;
    Task t = {dims, (int64_t)b * dims.T, b, index % dims.num_kv_heads,
              1.0f / sqrtf((float)dims.head_dim)};
    return t;
}

static Queries queries_at(const Task *t, int head, int64_t begin) {
    int64_t end = min_i64(begin + QUERY_BLOCK, t->dims.T);
    Queries q = {head, begin, end - begin, end};
    return q;
}

/* Place of head number `head` of a row of qkv, in a whole sequence, and that of a block of it. */
static Block sequence_block(const Task *t, int head) {
    Block b = {t->row, t->dims.T, (int64_t)head * t->dims.head_dim, t->dims.head_dim};
    return b;
}

static Block query_block(const Task *t, Queries q) {
    Block b = {t->row + q.begin, q.count, (int64_t)q.head * t->dims.head_dim, t->dims.head_dim};
    return b;
}

static int key_head(const Task *t) { return t->dims.num_heads + t->kv_head; }
static int value_head(const Task *t) { return key_head(t) + t->dims.num_kv_heads; }

static float *lse_row(const Task *t, Tensor lse, Queries q) {
    return (float *)lse.data + ((int64_t)t->b * t->dims.num_heads + q.head) * t->dims.T + q.begin;
}

/* scores (count,keys) = factor * rows (count,HS) . keys (keys,HS)^T */
static void rows_times_transposed(float *scores, const float *rows, const float *keys, Queries q,
                                  int64_t HS, float factor) {
    SgemmShape s = {.trans_b = 1, .m = q.count, .n = q.keys, .k = HS};
    s.lda = s.ldb = HS;
    s.ldc = q.keys;
    s.alpha = factor;
    sgemm_one_thread(s, rows, keys, scores);
}

/* rows (count,HS) = factor * scores (count,keys) . values (keys,HS) */
static void scores_times(float *rows, const float *scores, const float *values, Queries q,
                         int64_t HS, float factor) {
    SgemmShape s = {.m = q.count, .n = HS, .k = q.keys};
    s.lda = q.keys;
    s.ldb = s.ldc = HS;
    s.alpha = factor;
    sgemm_one_thread(s, scores, values, rows);
}

/* sums (keys,HS) += factor * scores (count,keys)^T . rows (count,HS) */
static void add_transposed_times(float *sums, const float *scores, const float *rows, Queries q,
                                 int64_t HS, float factor) {
    SgemmShape s = {.trans_a = 1, .m = q.keys, .n = HS, .k = q.count};
    s.lda = q.keys;
    s.ldb = s.ldc = HS;
    s.alpha = factor;
    s.beta = 1.0f;
    sgemm_one_thread(s, scores, rows, sums);
}

// --- forward ---

/* p (count,keys): scores become exp(score - maximum of the row), 0 past the diagonal. Writes lse
   and the factors 1 / sum that make rows of out out of sums over p. */
static void softmax_forward(float *p, float *lse, float *row_factor, Queries q) {
    for (int64_t i = 0; i < q.count; i++) {
        float *row = p + i * q.keys;
        int64_t visible = q.begin + i + 1;   // j <= i
        float maximum = row[0], sum = 0.0f;
#pragma omp simd reduction(max : maximum)
        for (int64_t j = 0; j < visible; j++) maximum = row[j] > maximum ? row[j] : maximum;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < visible; j++) {
            row[j] = fast_exp(row[j] - maximum);
            sum += row[j];
        }
        for (int64_t j = visible; j < q.keys; j++) row[j] = 0.0f;
        lse[i] = maximum + logf(sum);
        row_factor[i] = 1.0f / sum;
    }
}

static void forward_task(const Task *t, const Work *w, Tensor out, Tensor lse, Tensor qkv) {
    int64_t HS = t->dims.head_dim;
    int group = t->dims.num_heads / t->dims.num_kv_heads;
    load_block(w->k, qkv, sequence_block(t, key_head(t)));
    load_block(w->v, qkv, sequence_block(t, value_head(t)));
    for (int head = t->kv_head * group; head < (t->kv_head + 1) * group; head++) {
        for (int64_t begin = 0; begin < t->dims.T; begin += QUERY_BLOCK) {
            Queries q = queries_at(t, head, begin);
            float row_factor[QUERY_BLOCK];
            load_block(w->q, qkv, query_block(t, q));
            rows_times_transposed(w->p, w->q, w->k, q, HS, t->scale);
            softmax_forward(w->p, lse_row(t, lse, q), row_factor, q);
            scores_times(w->out, w->p, w->v, q, HS, 1.0f);
            for (int64_t i = 0; i < q.count; i++)
                for (int64_t c = 0; c < HS; c++) w->out[i * HS + c] *= row_factor[i];
            store_block(out, query_block(t, q), w->out);
        }
    }
}

void attention_forward_cpu(Device *d, Tensor out, Tensor lse, Tensor qkv, AttentionDims dims) {
    attention_check(out, lse, qkv, dims);
    float *scratch = (float *)device_scratch(d, attention_scratch_cpu(dims));
    int num_tasks = dims.B * dims.num_kv_heads;
#pragma omp parallel for
    for (int index = 0; index < num_tasks; index++) {
        Task t = task_at(dims, index);
        Work w = work_of_thread(scratch, dims);
        forward_task(&t, &w, out, lse, qkv);
    }
}

// --- backward ---

/* p (count,keys): scores become probabilities, p = exp(s - lse) of the forward pass. */
static void softmax_again(float *p, const float *lse, Queries q) {
    for (int64_t i = 0; i < q.count; i++) {
        float *row = p + i * q.keys;
        int64_t visible = q.begin + i + 1;
        for (int64_t j = 0; j < visible; j++) row[j] = fast_exp(row[j] - lse[i]);
        for (int64_t j = visible; j < q.keys; j++) row[j] = 0.0f;
    }
}

/* ds (count,keys) holds dp; p = exp(s - lse(s)): ds = p (dp - sum_j p dp), and that sum is
   delta = dout . out because out = sum_j p v_j and dp_j = dout . v_j. */
static void softmax_backward(const Work *w, Queries q, int64_t HS) {
    for (int64_t i = 0; i < q.count; i++) {
        const float *dout = w->dout + i * HS, *out = w->out + i * HS, *p = w->p + i * q.keys;
        float *ds = w->ds + i * q.keys, delta = 0.0f;
#pragma omp simd reduction(+ : delta)
        for (int64_t c = 0; c < HS; c++) delta += dout[c] * out[c];
        for (int64_t j = 0; j < q.keys; j++) ds[j] = p[j] * (ds[j] - delta);
    }
}

typedef struct {
    Tensor dqkv, dout, out, lse, qkv;
} BackwardTensors;

static void backward_task(const Task *t, const Work *w, const BackwardTensors *x) {
    int64_t HS = t->dims.head_dim;
    size_t head_bytes = (size_t)(t->dims.T * HS) * sizeof(float);
    int group = t->dims.num_heads / t->dims.num_kv_heads;
    load_block(w->k, x->qkv, sequence_block(t, key_head(t)));
    load_block(w->v, x->qkv, sequence_block(t, value_head(t)));
    memset(w->dk, 0, head_bytes);
    memset(w->dv, 0, head_bytes);
    for (int head = t->kv_head * group; head < (t->kv_head + 1) * group; head++) {
        for (int64_t begin = 0; begin < t->dims.T; begin += QUERY_BLOCK) {
            Queries q = queries_at(t, head, begin);
            load_block(w->q, x->qkv, query_block(t, q));
            load_block(w->out, x->out, query_block(t, q));
            load_block(w->dout, x->dout, query_block(t, q));
            rows_times_transposed(w->p, w->q, w->k, q, HS, t->scale);
            softmax_again(w->p, lse_row(t, x->lse, q), q);
            add_transposed_times(w->dv, w->p, w->dout, q, HS, 1.0f);     // out = p v
            rows_times_transposed(w->ds, w->dout, w->v, q, HS, 1.0f);    // out = p v: dp
            softmax_backward(w, q, HS);                                  // p = exp(s - lse)
            scores_times(w->dq, w->ds, w->k, q, HS, t->scale);           // s = scale q k^T
            add_transposed_times(w->dk, w->ds, w->q, q, HS, t->scale);   // s = scale q k^T
            store_block(x->dqkv, query_block(t, q), w->dq);
        }
    }
    store_block(x->dqkv, sequence_block(t, key_head(t)), w->dk);
    store_block(x->dqkv, sequence_block(t, value_head(t)), w->dv);
}

void attention_backward_cpu(Device *d, Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv,
                            AttentionDims dims) {
    attention_check(out, lse, qkv, dims);
    attention_check(dout, lse, dqkv, dims);
    tensor_expect(dqkv, "attention dqkv", qkv.dtype, qkv.rows, qkv.cols);
    float *scratch = (float *)device_scratch(d, attention_scratch_cpu(dims));
    BackwardTensors tensors = {dqkv, dout, out, lse, qkv};
    int num_tasks = dims.B * dims.num_kv_heads;
#pragma omp parallel for
    for (int index = 0; index < num_tasks; index++) {
        Task t = task_at(dims, index);
        Work w = work_of_thread(scratch, dims);
        backward_task(&t, &w, &tensors);
    }
}

// --- rope ---

void rope_fill_table(float *table, int rows, int head_dim, double theta) {
    int pairs = head_dim / 2;
    for (int t = 0; t < rows; t++) {
        for (int i = 0; i < pairs; i++) {
            double angle = t * pow(theta, -2.0 * i / head_dim);
            table[(int64_t)t * head_dim + i] = (float)cos(angle);
            table[(int64_t)t * head_dim + pairs + i] = (float)sin(angle);
        }
    }
}

void rope_check(Tensor qkv, Tensor table, AttentionDims dims) {
    CHECK(dims.head_dim % 2 == 0, "head_dim %d is odd", dims.head_dim);
    expect_bf16_or_f32(qkv, "rope qkv");
    tensor_expect(qkv, "rope qkv", qkv.dtype, (int64_t)dims.B * dims.T, attention_qkv_cols(dims));
    tensor_expect(table, "rope table", DT_F32, table.rows, dims.head_dim);
    CHECK(table.rows >= dims.T, "rope table of %lld positions, sequences of %d",
          (long long)table.rows, dims.T);
}

/* Turns every query and key head by +angle or, with direction -1, by -angle. */
static void rotate(Tensor qkv, Tensor table, AttentionDims dims, float direction) {
    int64_t HS = dims.head_dim, pairs = HS / 2;
    int num_heads = dims.num_heads + dims.num_kv_heads;   // q and k; v is not turned
#pragma omp parallel for
    for (int64_t n = 0; n < qkv.rows; n++) {
        const float *cosine = (const float *)table.data + n % dims.T * HS;
        const float *sine = cosine + pairs;
        float a[SPAN], b[SPAN];
        for (int64_t at = n * qkv.cols; at < n * qkv.cols + num_heads * HS; at += HS) {
            for (int64_t first = 0; first < pairs; first += SPAN) {
                int64_t count = min_i64(SPAN, pairs - first);
                load_span(a, qkv, at + first, count);
                load_span(b, qkv, at + pairs + first, count);
                for (int64_t i = 0; i < count; i++) {
                    float c = cosine[first + i], s = direction * sine[first + i];
                    float turned = a[i] * c - b[i] * s;
                    b[i] = a[i] * s + b[i] * c;
                    a[i] = turned;
                }
                store_span(qkv, at + first, a, count);
                store_span(qkv, at + pairs + first, b, count);
            }
        }
    }
}

void rope_forward_cpu(Device *d, Tensor qkv, Tensor table, AttentionDims dims) {
    (void)d;
    rope_check(qkv, table, dims);
    rotate(qkv, table, dims, 1.0f);
}

void rope_backward_cpu(Device *d, Tensor dqkv, Tensor table, AttentionDims dims) {
    (void)d;
    rope_check(dqkv, table, dims);
    rotate(dqkv, table, dims, -1.0f);   // the inverse of a rotation is its transpose
}
