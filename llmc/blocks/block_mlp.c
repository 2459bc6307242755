/* block_mlp -- the activation function as the core of a block: (N, F) or, gated, (N, 2F) to (N, F).
   */
#include "block.h"

static int up_cols(const ModelConfig *m) { return m->ffn * act_info[m->act].inputs_per_output; }

static int ffn_cols(const ModelConfig *m) { return m->ffn; }

static void core_forward(Engine *e, Block *b, Tensor out, Tensor in, int T) {
    (void)T;
    if (b->smooth) e->ops->smooth_swiglu_forward(e->device, out, block_row_scale(b, in.rows), in);
    else e->ops->activation_forward(e->device, out, in, b->model->act);
}

static void core_backward(Engine *e, Block *b, Tensor din, Tensor dout, Tensor out, Tensor in,
                          int T) {
    (void)T;
    (void)out;
    if (b->smooth)
        e->ops->smooth_swiglu_backward(e->device, din, dout, block_row_scale(b, in.rows), in);
    else e->ops->activation_backward(e->device, din, dout, in, b->model->act);
}

static void place(Block *b, Arena *saved, int64_t tokens) {
    if (b->smooth) b->row_scale = arena_tensor(saved, DT_F32, tokens, 1);
}

const BlockKind block_mlp = {
    .symbol = '-',
    .name = "mlp",
    .in_name = "up",
    .out_name = "down",
    .in_cols = up_cols,
    .core_cols = ffn_cols,
    .backward_reads_output = 0,
    .core_again = RECOMPUTE_ACTIVATION,
    .place = place,
    .core_forward = core_forward,
    .core_backward = core_backward,
};
