// attention_cudnn -- attention by cuDNN's fused kernels, through its C++ frontend; the only C++
// file of the program. cuDNN reads and writes the packed tensors in place: a head is a range of
// columns, so only strides differ. Plans are built once for each AttentionDims and kept; both
// passes must have one. Which implementation runs is decided in attention.cu.
#include "attention_cudnn.h"

#include <math.h>
#include <memory>
#include <stdio.h>
#include <unordered_map>

#include <cudnn_frontend.h>

#include "../common.h"
#include "../device_cuda.cuh"

namespace fe = cudnn_frontend;
using TensorAttributes = fe::graph::Tensor_attributes;
using GraphTensor = std::shared_ptr<TensorAttributes>;

// The tensors of a graph by number; the pointers are given under these when it runs.
enum GraphTensorId { Q_ID = 1, K_ID, V_ID, OUT_ID, LSE_ID, DOUT_ID, DQ_ID, DK_ID, DV_ID };

// On Hopper the deterministic backward pass of cuDNN stores ds: 2 bytes for each score of all
// heads. Above this the own kernels, which store no scores, are the better choice.
static const size_t MAX_WORKSPACE_BYTES = (size_t)4 << 30;

// Where the last tile of keys was not whole, several versions of cuDNN gave NaN gradients
// (cudnn-frontend issues 160 and 1072, pytorch issue 196678); with whole tiles there is nothing to
// get wrong.
enum { KEY_TILE = 128 };

struct Plans {
    AttentionDims dims;
    int any_order;
    CudnnSupport support;
    fe::graph::Graph forward, backward;
    Plans *next;
};

static cudnnHandle_t handle;   // of the one CUDA device of this process
static Plans *all_plans;

const char *attention_cudnn_version(void) {
    static char text[32];
    const size_t v = cudnnGetVersion();
    snprintf(text, sizeof(text), "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    return text;
}

// --- graphs ---

// The shape of `num_heads` heads that are neighbours in rows of `row_cols` elements.
static TensorAttributes &shape_heads(TensorAttributes &t, AttentionDims d, int num_heads,
                                     int64_t row_cols) {
    return t.set_dim({d.B, num_heads, d.T, d.head_dim})
        .set_stride({d.T * row_cols, d.head_dim, row_cols, 1});
}

static TensorAttributes &shape_lse(TensorAttributes &t, AttentionDims d) {
    const int64_t NH = d.num_heads, T = d.T;
    return t.set_dim({d.B, NH, T, 1})
        .set_stride({NH * T, T, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
}

static GraphTensor add_heads(fe::graph::Graph *g, GraphTensorId id, AttentionDims d, int num_heads,
                             int64_t row_cols) {
    TensorAttributes t;
    return g->tensor(shape_heads(t, d, num_heads, row_cols).set_uid(id));
}

static void set_types(fe::graph::Graph *g) {
    g->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
}

static float score_scale(AttentionDims d) { return (float)(1 / sqrt((double)d.head_dim)); }

static void describe_forward(fe::graph::Graph *g, AttentionDims d) {
    const int64_t qkv_cols = attention_qkv_cols(d), out_cols = (int64_t)d.num_heads * d.head_dim;
    set_types(g);
    GraphTensor q = add_heads(g, Q_ID, d, d.num_heads, qkv_cols);
    GraphTensor k = add_heads(g, K_ID, d, d.num_kv_heads, qkv_cols);
    GraphTensor v = add_heads(g, V_ID, d, d.num_kv_heads, qkv_cols);
    auto options = fe::graph::SDPA_attributes()
                       .set_generate_stats(true)
                       .set_attn_scale(score_scale(d))
                       .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                       .set_diagonal_band_right_bound(0);
    auto [out, lse] = g->sdpa(q, k, v, options);
    shape_heads(out->set_output(true).set_uid(OUT_ID), d, d.num_heads, out_cols);
    shape_lse(lse->set_output(true).set_uid(LSE_ID), d);
}

static void describe_backward(fe::graph::Graph *g, AttentionDims d, int any_order) {
    const int64_t qkv_cols = attention_qkv_cols(d), out_cols = (int64_t)d.num_heads * d.head_dim;
    set_types(g);
    GraphTensor q = add_heads(g, Q_ID, d, d.num_heads, qkv_cols);
    GraphTensor k = add_heads(g, K_ID, d, d.num_kv_heads, qkv_cols);
    GraphTensor v = add_heads(g, V_ID, d, d.num_kv_heads, qkv_cols);
    GraphTensor out = add_heads(g, OUT_ID, d, d.num_heads, out_cols);
    GraphTensor dout = add_heads(g, DOUT_ID, d, d.num_heads, out_cols);
    TensorAttributes lse_shape;
    GraphTensor lse = g->tensor(shape_lse(lse_shape, d).set_uid(LSE_ID));
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_attn_scale(score_scale(d))
                       .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                       .set_diagonal_band_right_bound(0)
                       .set_deterministic_algorithm(!any_order);
    auto [dq, dk, dv] = g->sdpa_backward(q, k, v, out, dout, lse, options);
    shape_heads(dq->set_output(true).set_uid(DQ_ID), d, d.num_heads, qkv_cols);
    shape_heads(dk->set_output(true).set_uid(DK_ID), d, d.num_kv_heads, qkv_cols);
    shape_heads(dv->set_output(true).set_uid(DV_ID), d, d.num_kv_heads, qkv_cols);
}

// --- plans ---

// Turns one described graph into a plan. 0, with the reason in the support, where cuDNN has none.
static int build_plan(fe::graph::Graph *g, const char *pass, CudnnSupport *support) {
    auto status = g->build(handle, {fe::HeurMode_t::A});
    int64_t bytes = 0;
    if (status.is_good()) status = g->get_workspace_size(bytes);
    if (status.is_bad()) {
        snprintf(support->refusal, sizeof(support->refusal), "it has no plan for the %s pass: %s",
                 pass, status.get_message().c_str());
        return 0;
    }
    support->workspace_bytes = (size_t)max_i64((int64_t)support->workspace_bytes, bytes);
    return 1;
}

static void build_plans(Plans *p) {
    CudnnSupport *support = &p->support;
    if (p->dims.T % KEY_TILE != 0) {
        snprintf(support->refusal, sizeof(support->refusal),
                 "it is used only for T a multiple of %d", KEY_TILE);
        return;
    }
    const cudnnStatus_t status = handle ? CUDNN_STATUS_SUCCESS : cudnnCreate(&handle);
    if (status != CUDNN_STATUS_SUCCESS) {
        snprintf(support->refusal, sizeof(support->refusal), "it does not start: %s",
                 cudnnGetErrorString(status));
        return;
    }
    describe_forward(&p->forward, p->dims);
    describe_backward(&p->backward, p->dims, p->any_order);
    if (!build_plan(&p->forward, "forward", support) ||
        !build_plan(&p->backward, "backward", support))
        return;
    if (support->workspace_bytes > MAX_WORKSPACE_BYTES) {
        snprintf(support->refusal, sizeof(support->refusal), "it needs %.1f GiB of work space",
                 (double)support->workspace_bytes / (1 << 30));
        return;
    }
    support->runs = 1;
}

static int same_dims(AttentionDims a, AttentionDims b) {
    return a.B == b.B && a.T == b.T && a.num_heads == b.num_heads &&
           a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim;
}

/* Those prepared last for these dims. */
static Plans *find_plans(AttentionDims dims) {
    Plans *p = all_plans;
    while (p && !same_dims(p->dims, dims)) p = p->next;
    return p;
}

CudnnSupport attention_cudnn_prepare(AttentionDims dims, int any_order) {
    Plans *p = find_plans(dims);
    if (!p || p->any_order != any_order) {
        p = new Plans();
        p->dims = dims;
        p->any_order = any_order;
        p->next = all_plans;
        all_plans = p;
        build_plans(p);
        if (!p->support.runs) p->support.workspace_bytes = 0;
    }
    return p->support;
}

static void destroy_plans(void *) {
    while (all_plans) {
        Plans *next = all_plans->next;
        delete all_plans;
        all_plans = next;
    }
    cudnnDestroy(handle);
    handle = NULL;
}

// --- execution ---

static void run(Device *d, const fe::graph::Graph &graph, const CudnnSupport &support,
                std::unordered_map<int64_t, void *> pointers) {
    DeviceAttachment *attachment = device_cuda_attachment(d, ATTACHMENT_ATTENTION);
    attachment->data =
        &all_plans;   // anything but NULL: then the device calls destroy when it closes
    attachment->destroy = destroy_plans;
    const cudnnStatus_t status = cudnnSetStream(handle, device_cuda_stream(d));
    if (status != CUDNN_STATUS_SUCCESS)
        die(EXIT_DEVICE, "cudnnSetStream: %s", cudnnGetErrorString(status));
    auto result = graph.execute(handle, pointers, device_scratch(d, support.workspace_bytes));
    if (result.is_bad())
        die(EXIT_DEVICE, "attention by cuDNN failed: %s", result.get_message().c_str());
}

static const Plans *plans_to_run(AttentionDims dims) {
    const Plans *p = find_plans(dims);
    CHECK(p && p->support.runs, "no cuDNN plan for attention of B %d, T %d", dims.B, dims.T);
    return p;
}

// First row of a range of heads: query heads, then key heads, then value heads.
static void *heads_from(Tensor qkv, AttentionDims d, int first_head) {
    return (char *)qkv.data + dtype_bytes(qkv.dtype, (int64_t)first_head * d.head_dim);
}

void attention_cudnn_forward(Device *d, Tensor out, Tensor lse, Tensor qkv, AttentionDims dims) {
    const Plans *p = plans_to_run(dims);
    const int NH = dims.num_heads, NKV = dims.num_kv_heads;
    run(d, p->forward, p->support,
        {{Q_ID, qkv.data},
         {K_ID, heads_from(qkv, dims, NH)},
         {V_ID, heads_from(qkv, dims, NH + NKV)},
         {OUT_ID, out.data},
         {LSE_ID, lse.data}});
}

void attention_cudnn_backward(Device *d, Tensor dqkv, Tensor dout, Tensor out, Tensor lse,
                              Tensor qkv, AttentionDims dims) {
    const Plans *p = plans_to_run(dims);
    const int NH = dims.num_heads, NKV = dims.num_kv_heads;
    run(d, p->backward, p->support,
        {{Q_ID, qkv.data},
         {K_ID, heads_from(qkv, dims, NH)},
         {V_ID, heads_from(qkv, dims, NH + NKV)},
         {OUT_ID, out.data},
         {DOUT_ID, dout.data},
         {LSE_ID, lse.data},
         {DQ_ID, dqkv.data},
         {DK_ID, heads_from(dqkv, dims, NH)},
         {DV_ID, heads_from(dqkv, dims, NH + NKV)}});
}
