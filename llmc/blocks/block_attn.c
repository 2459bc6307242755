/* block_attn -- causal self-attention as the core of a block: qkv (N, (NH + 2 NKV) HS) to heads (N,
   NH HS). */
#include "block.h"

static AttentionDims dims_of(const Block *b, int64_t rows, int T) {
    const ModelConfig *m = b->model;
    AttentionDims dims = {(int)(rows / T), T, m->heads, m->kv_heads, m->head_dim};
    return dims;
}

static int qkv_cols(const ModelConfig *m) { return (m->heads + 2 * m->kv_heads) * m->head_dim; }

static int heads_cols(const ModelConfig *m) { return m->heads * m->head_dim; }

static void place(Block *b, Arena *saved, int64_t tokens) {
    b->lse = arena_tensor(saved, DT_F32, b->model->heads, tokens);
}

static Tensor lse_of(const Block *b, AttentionDims dims) {
    return tensor_view(b->lse.data, DT_F32, (int64_t)dims.B * dims.num_heads, dims.T);
}

static void core_forward(Engine *e, Block *b, Tensor out, Tensor qkv, int T) {
    AttentionDims dims = dims_of(b, out.rows, T);
    if (b->model->pos == POS_ROPE) e->ops->rope_forward(e->device, qkv, b->rope_table, dims);
    e->ops->attention_forward(e->device, out, lse_of(b, dims), qkv, dims);
}

static void core_backward(Engine *e, Block *b, Tensor dqkv, Tensor dout, Tensor out, Tensor qkv,
                          int T) {
    AttentionDims dims = dims_of(b, out.rows, T);
    e->ops->attention_backward(e->device, dqkv, dout, out, lse_of(b, dims), qkv, dims);
    if (b->model->pos == POS_ROPE) e->ops->rope_backward(e->device, dqkv, b->rope_table, dims);
}

const BlockKind block_attn = {
    .symbol = '*',
    .name = "attn",
    .in_name = "qkv",
    .out_name = "proj",
    .in_cols = qkv_cols,
    .core_cols = heads_cols,
    .backward_reads_output = 1,
    .core_again = RECOMPUTE_BLOCK,   // and rotary positions are written over qkv
    .place = place,
    .core_forward = core_forward,
    .core_backward = core_backward,
};
