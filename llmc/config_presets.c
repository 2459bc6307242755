/*
config_presets -- shapes of known models. What belongs to training them (learning rate, batch,
schedule) stands in configs/runs.
  source  gpt2-*: Radford et al. 2019; llama-*: the models of Quartet II; nemotron-1.2b:
          arXiv:2509.25149 appendix A; llama2-7b: arXiv:2307.09288; llama3-70b: arXiv:2407.21783
          table 3; nemotron-12b-dense: the widths of the 12B hybrid of arXiv:2509.25149, its Mamba
          blocks left out, and as many layers as give its size
*/
#include <string.h>

#include "config_parts.h"

#define GPT2                                                                                       \
    " model.kv_heads=0 model.head_dim=0 model.ffn=0 model.vocab=50257 model.norm=layernorm"        \
    " model.norm_eps=1e-5 model.act=gelu model.pos=learned model.bias=true model.tied=true"        \
    " model.init_std=0.02 batch.seq_len=1024"
/* The two families without biases and with a head of its own. */
#define UNTIED                                                                                     \
    " model.norm=rmsnorm model.norm_eps=1e-5 model.pos=rope model.rope_theta=10000"                \
    " model.bias=false model.tied=false model.init_std=0.02"
#define LLAMA UNTIED " model.kv_heads=0 model.head_dim=0 model.act=swiglu"

// clang-format off
const Preset presets[] = {
    // name, summary, keys
    {"gpt2-124m",     "GPT-2 small, 124,439,808 parameters",
     "model.layers=12 model.dim=768 model.heads=12" GPT2},
    {"gpt2-350m",     "GPT-2 medium",
     "model.layers=24 model.dim=1024 model.heads=16" GPT2},
    {"gpt2-774m",     "GPT-2 large",
     "model.layers=36 model.dim=1280 model.heads=20" GPT2},
    {"gpt2-1558m",    "GPT-2 XL",
     "model.layers=48 model.dim=1600 model.heads=25" GPT2},
    {"llama-30m",     "Llama of Quartet II, 30,482,560 parameters outside embedding and head",
     "model.layers=6 model.dim=640 model.heads=5 model.ffn=1792 model.vocab=32000"
     " batch.seq_len=512" LLAMA},
    {"llama-50m",     "Llama of Quartet II, 49,556,736 parameters outside embedding and head",
     "model.layers=7 model.dim=768 model.heads=6 model.ffn=2048 model.vocab=32000"
     " batch.seq_len=512" LLAMA},
    {"llama-100m",    "Llama of Quartet II, 102,777,856 parameters outside embedding and head",
     "model.layers=8 model.dim=1024 model.heads=8 model.ffn=2816 model.vocab=32000"
     " batch.seq_len=512" LLAMA},
    {"llama-200m",    "Llama of Quartet II, 203,188,480 parameters outside embedding and head",
     "model.layers=10 model.dim=1280 model.heads=10 model.ffn=3584 model.vocab=32000"
     " batch.seq_len=512" LLAMA},
    {"s1-7m",         "small Llama for ablations, vocabulary 8192",
     "model.layers=4 model.dim=384 model.heads=3 model.ffn=1024 model.vocab=8192"
     " batch.seq_len=512" LLAMA},
    {"s2-30m",        "llama-30m with vocabulary 8192, for ablations",
     "model.layers=6 model.dim=640 model.heads=5 model.ffn=1792 model.vocab=8192"
     " batch.seq_len=512" LLAMA},
    {"nemotron-1.2b", "transformer of the NVFP4 paper, 1,291,929,600 parameters",
     "model.layers=20 model.dim=2048 model.heads=16 model.kv_heads=8 model.head_dim=128"
     " model.ffn=6144 model.vocab=131072 model.act=relu2 batch.seq_len=8192" UNTIED},
    {"llama2-7b",     "Llama 2 7B, 6,738,415,616 parameters",
     "model.layers=32 model.dim=4096 model.heads=32 model.ffn=11008 model.vocab=32000"
     " batch.seq_len=4096" LLAMA},
    {"nemotron-12b-dense", "attention and MLP of the NVFP4 paper's 12B hybrid, 40 of each, "
     "12,247,782,400 parameters",
     "model.layers=40 model.dim=5120 model.heads=40 model.kv_heads=8 model.head_dim=128"
     " model.ffn=20480 model.vocab=131072 model.act=relu2 batch.seq_len=8192" UNTIED},
    {"llama3-70b",    "Llama 3 70B, 70,553,706,496 parameters",
     "model.layers=80 model.dim=8192 model.heads=64 model.kv_heads=8 model.head_dim=128"
     " model.ffn=28672 model.vocab=128256 model.act=swiglu batch.seq_len=8192" UNTIED
     " model.rope_theta=500000"},
};
// clang-format on
const int num_presets = ARRAY_LEN(presets);

const Preset *preset_find(const char *name) {
    for (int i = 0; i < num_presets; i++) {
        if (strcmp(presets[i].name, name) == 0) return &presets[i];
    }
    return NULL;
}
