#!/usr/bin/env python3
"""Writes configs/ablations: one config for each row of the published ablations, at the size of the
paper and scaled down to S1 and S2, and a set for scripts/ablate.py for each paper and size.

    scripts/make_ablations.py [--check] [--out DIR]

--check writes nothing and fails when a file is missing, differs or is left over. Only files under
configs/ablations are its own, and of configs/ablations/sets those whose rows are; the set h200 is
written by hand. Which published figure or table a row belongs to is said in its first line.
"""

import argparse
import json
import pathlib
import sys
import textwrap
from dataclasses import dataclass, field

from ablation_set import read_config

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "configs" / "ablations"
BY_HAND = {"README.md", "sets/h200.json"}

# --- sizes ---


@dataclass
class Size:
    name: str
    layers: int
    base: dict
    about: str


ADAMW = {"betas": [0.9, 0.95], "weight_decay": 0.1, "grad_clip": 1.0}


def size(name, layers, about, model, micro, seq_len, total, steps, lr, sched):
    return Size(name, layers, {
        "model": model,
        "batch": {"micro": micro, "seq_len": seq_len, "total_tokens": total},
        "train": {"steps": steps},
        "optim": {"lr": lr, **ADAMW},
        "sched": sched}, about)


def cosine(warmup):
    return {"type": "cosine", "warmup_steps": warmup, "final_frac": 0.1}


def llama(name, layers, lr, steps, tokens):
    return size(name, layers, f"Llama of Quartet II, {tokens} tokens", {"preset": f"llama-{name}"},
                64, 512, 262144, steps, lr, cosine(steps // 10))


def twin(name, layers, run):
    return Size(name, layers, {"extends": f"../../../runs/{run}"}, f"the scaled twin, as {run}")


S1, S2 = twin("s1", 4, "s1_7m_bf16.json"), twin("s2", 6, "s2_30m_bf16.json")
NEMOTRON = size(
    "1.2b", 20, "1.2B transformer of arXiv:2509.25149, 1 trillion tokens; the warm-up is a guess",
    {"preset": "nemotron-1.2b"}, 1, 8192, 6291456, 158946, 1.2e-3,
    {"type": "wsd", "warmup_steps": 2000, "decay_frac": 0.15, "final_frac": 0.01})


def small_llama(layers, dim, heads, ffn):
    return {"preset": "llama2-7b", "layers": layers, "dim": dim, "heads": heads, "ffn": ffn}


FAW_350M = size("350m", 24, "Llama of 350M, 20 billion tokens; arXiv:2505.19115 gives no more, the "
                "inner width is the usual one made a multiple of 128",
                small_llama(24, 1024, 16, 2816), 8, 4096, 524288, 38147, 3e-4, cosine(2000))
FAW_60M = size("60m", 8, "Llama of 60M; arXiv:2505.19115 gives no more",
               small_llama(8, 512, 8, 1376), 64, 1024, 262144, 4000, 1e-3, cosine(400))
FAW_7B = size("7b", 32, "Llama 2 7B, 1 trillion tokens", {"preset": "llama2-7b"}, 1, 4096, 4194304,
              238419, 3e-4, cosine(2000))
LLAMAS = [llama("30m", 6, 1.2e-3, 11444, "3 billion"), llama("50m", 7, 1.2e-3, 19073, "5 billion"),
          llama("100m", 8, 9e-4, 38147, "10 billion"),
          llama("200m", 10, 7.2e-4, 76294, "20 billion")]

# --- rows ---


@dataclass
class Row:
    name: str
    about: str
    recipe: str
    rules: list = field(default_factory=list)
    keep: tuple = (0, 0)       # blocks of 20, first and last, that stay in BF16
    schedule: list = field(default_factory=list)
    tokens: float = 1          # times those of the size
    precision: dict = field(default_factory=dict)   # further keys
    log: dict = field(default_factory=dict)
    resets_from: float = 0     # share of the steps from which swinging weights are reset
    features_from: float = 0   # share of the steps from which the norms of features are summed


def rule(gemm=None, operand=None, **fields):
    chosen = {"gemm": gemm, "operand": operand}
    return {**{k: v for k, v in chosen.items() if v}, **fields}


def nearest(gemm=None, operand=None):
    return rule(gemm, operand, rounding="nearest")


def stochastic(gemm=None, operand=None):
    return rule(gemm, operand, rounding="stochastic")


ROW_WEIGHTS = rule(operand="w", tile="row", source="tensor")   # each GEMM its own blocks
PLAIN_DY = nearest("backward", "dy")
NO_RHT = rule("wgrad", hadamard=0)
BACK_BF16, FORE_BF16 = rule("backward", recipe="bf16"), rule("fprop", recipe="bf16")
LAST_4 = (0, 4)


def nv(name, about, *rules, keep=LAST_4, **more):
    return Row(name, about, "nvfp4", list(rules), keep, **more)


def rht(name, gemms, wgrad):
    """Hadamard transforms on some GEMMs; weights in rows, as square tiles have none."""
    rules = [ROW_WEIGHTS] + [rule(g, hadamard=16) for g in gemms]
    return nv(name, "Fig. 11: transform on " + " and ".join([*gemms, *["wgrad"] * wgrad]),
              *rules, *([] if wgrad else [NO_RHT]))


NVFP4_ROWS = [
    Row("bf16", "the reference of all figures", "bf16"),
    nv("nvfp4", "the whole recipe; in Fig. 6a, 8 to 14 the row that others are changed from"),
    Row("mxfp4", "Fig. 6a: the same in MXFP4", "mxfp4", keep=LAST_4),
    *(Row(f"mxfp4_tokens_{t:g}", f"Fig. 6b: MXFP4 on {t:g} times the tokens", "mxfp4", keep=LAST_4,
          tokens=t) for t in (1.125, 1.25, 1.36, 1.5)),
    Row("fp8_block", "Fig. 2: FP8 in blocks, the reference of the 12B run, with the first 1 and "
        "last 2 of 62 blocks in BF16", "fp8_block", keep=(0, 1)),
    # Fig. 4: from a third of the training on
    nv("late_no_sr", "Fig. 4: without stochastic rounding from 34 % of the steps on",
       schedule=[{"at": 0.343, **PLAIN_DY}]),
    nv("late_no_rht", "Fig. 4: without the transform from 34 % of the steps on",
       schedule=[{"at": 0.343, **NO_RHT}]),
    nv("late_no_2d", "Fig. 4: rows instead of square weight tiles from 34 % of the steps on",
       schedule=[{"at": 0.343, **ROW_WEIGHTS}]),
    # Fig. 7
    nv("switch_both", "Fig. 7: all GEMMs in BF16 from 82 % of the steps on",
       schedule=[{"at": 0.82, "recipe": "bf16"}]),
    nv("switch_forward", "Fig. 7: fprop in BF16 from 82 % of the steps on",
       schedule=[{"at": 0.82, **FORE_BF16}]),
    nv("switch_backward", "Fig. 7: dgrad and wgrad in BF16 from 82 % of the steps on; weights in "
       "rows there", ROW_WEIGHTS, schedule=[{"at": 0.82, **BACK_BF16}]),
    nv("switch_both_late", "Fig. 7: all GEMMs in BF16 for the last percent",
       schedule=[{"at": 0.99, "recipe": "bf16"}]),
    # Fig. 8
    nv("stack_0_all_fp4", "Fig. 8: all blocks in FP4, rows, nearest, no transform", ROW_WEIGHTS,
       PLAIN_DY, NO_RHT, keep=(0, 0)),
    nv("stack_1_last_4", "Fig. 8: and the last 4 of 20 blocks in BF16", ROW_WEIGHTS, PLAIN_DY,
       NO_RHT),
    nv("stack_2_square_tiles", "Fig. 8: and square weight tiles", PLAIN_DY, NO_RHT),
    nv("stack_3_rht", "Fig. 8: and the transform; Fig. 10: no stochastic rounding", PLAIN_DY),
    # Fig. 9
    nv("keep_none", "Fig. 9: no block in BF16", keep=(0, 0)),
    nv("keep_last_1", "Fig. 9: the last of 20 blocks in BF16", keep=(0, 1)),
    nv("keep_last_2", "Fig. 9, 4: the last 2 of 20 blocks in BF16", keep=(0, 2)),
    nv("keep_first_2_last_2", "Fig. 9: first 2 and last 2 of 20 blocks in BF16", keep=(2, 2)),
    nv("keep_first_4", "Fig. 9: the first 4 of 20 blocks in BF16", keep=(4, 0)),
    # Fig. 10
    nv("sr_dgrad", "Fig. 10: stochastic dY in dgrad alone", nearest("wgrad", "dy")),
    nv("sr_wgrad", "Fig. 10: stochastic dY in wgrad alone", nearest("dgrad", "dy")),
    nv("sr_activations", "Fig. 10: stochastic x alone", PLAIN_DY, stochastic(operand="x")),
    nv("sr_weights", "Fig. 10: stochastic w alone", PLAIN_DY, stochastic(operand="w")),
    nv("sr_backward", "Fig. 10: stochastic operands of dgrad and wgrad; w quantised again in rows",
       stochastic("backward"), rule("dgrad", "w", tile="row", source="tensor")),
    # Fig. 11
    nv("rht_none", "Fig. 11: no transform", NO_RHT),
    nv("rht_rows", "Fig. 11: transform on wgrad, weights in rows: what the next rows are changed "
       "from; Fig. 14: weights in rows of their own in each GEMM", ROW_WEIGHTS),
    rht("rht_fprop", ["fprop"], False), rht("rht_dgrad", ["dgrad"], False),
    rht("rht_fprop_wgrad", ["fprop"], True), rht("rht_dgrad_wgrad", ["dgrad"], True),
    rht("rht_all", ["fprop", "dgrad"], True),
    # Fig. 12, 13; 16 and one fixed vector are the recipe's
    *(nv(f"rht_size_{n}", f"Fig. 12: a transform of {n}", rule("wgrad", hadamard=n))
      for n in (4, 8, 32, 64, 128)),
    nv("rht_signs_none", "Fig. 13: no random signs", rule("wgrad", signs="none")),
    nv("rht_signs_step", "Fig. 13: signs drawn anew for each step and GEMM",
       rule("wgrad", signs="step")),
    # Fig. 14
    nv("weights_same_values", "Fig. 14: weights in rows, dgrad takes the values of fprop",
       rule("fprop", "w", tile="row"), rule("dgrad", "w", tile="row", source="values")),
    nv("x_same_values", "Fig. 14: wgrad takes the values of fprop's x; no transform: see rht_none",
       NO_RHT, rule("wgrad", "x", source="values")),
]

OPERANDS = [("fprop", "x"), ("fprop", "w"), ("dgrad", "dy"), ("dgrad", "w"), ("wgrad", "dy"),
            ("wgrad", "x")]


def faw(name, about, *rules, **more):
    return Row(name, about, "fp4_all_the_way", list(rules), **more)


FAW_ROWS = [
    Row("bf16", "the reference", "bf16"),
    faw("fp4", "the whole recipe: stochastic dY, and x in wgrad"),
    Row("fp4_encode", "the same with the arithmetic of the authors' code",
        "fp4_all_the_way_encode"),
    *(faw(f"scale_{s}", f"Fig. 1: {s} scales for blocks of 16", rule(scale=s))
      for s in ("e1m6", "e2m5", "e3m4", "e5m2", "e6m1", "e8m0")),
    *(faw(f"block_{b}_{s}", f"Fig. 2: blocks of {b}, {s} scales", rule(scale=s, block=b))
      for s in ("e4m3", "e8m0") for b in (8, 32, 64, 128)),
    faw("nearest", "Fig. 3: no stochastic rounding", nearest()),
    *(faw(f"sr_{g}_{o}", f"Fig. 3: {g}'s {o} alone is rounded stochastically", nearest(),
          stochastic(g, o)) for g, o in OPERANDS),
    faw("stochastic", "Fig. 7: all operands are rounded stochastically", stochastic()),
    *(faw(f"nearest_{g}_{o}", f"Fig. 7: all but {g}'s {o} are rounded stochastically", stochastic(),
          nearest(g, o)) for g, o in OPERANDS),
]


def qaf(name, about, share):
    """A finish that is `share` of the training before it: backward in BF16, the rate warmed up."""
    start = {"at": round(1 / (1 + share), 4), **BACK_BF16, "lr": {"warmup_steps": 40, "final_frac": 0}}
    return faw(name, about, schedule=[start], tokens=1 + share, precision=SMOOTH)


SMOOTH = {"smooth_swiglu": "token"}
NOISE = {"telemetry_every": 50, "gradient_noise": True}
FAW_7B_ROWS = [
    Row("bf16", "Fig. 6: the reference", "bf16", precision=SMOOTH),
    faw("fp4", "Fig. 6a: the whole recipe, with Smooth-SwiGLU", precision=SMOOTH),
    qaf("fp4_qaf", "Fig. 6b, Table 3: and a finish of 4 %: backward in BF16", 0.04),
    qaf("fp4_qaf_2", "Table 5: a finish of 2 %", 0.02),
    qaf("fp4_qaf_8", "Table 5: a finish of 8 %", 0.08),
]
FAW_60M_ROWS = [
    Row("bf16", "Fig. 5: the reference", "bf16"),
    faw("fp4", "Fig. 5: FP4 to the end; the ratio of gradient and noise is logged", log=NOISE),
    faw("switch_quarter", "Fig. 5: backward in BF16 from iteration 1000 on, a quarter of the steps",
        schedule=[{"at": 0.25, **BACK_BF16}]),
    faw("switch_half", "Fig. 5: backward in BF16 from half of the steps on",
        schedule=[{"at": 0.5, **BACK_BF16}]),
    faw("switch_sqrt3", "Fig. 5: backward in BF16 once the ratio falls below the root of 3",
        schedule=[{"at": "sqrt3", **BACK_BF16}], log=NOISE),
]

SIX, NO_SIX = {"select": "mse", "top_scale": "256", "arithmetic": "1"}, {"select": "none"}


def forward(name, about, *rules):
    return Row(name, f"forward alone: {about}", "nvfp4", [*rules, BACK_BF16])


def backward(name, about, recipe, *rules):
    return Row(name, f"backward alone: {about}", recipe, [FORE_BF16, *rules])


def rht_back(size_, *more):
    """Rows quantised from the tensor, a transform with fresh signs on both backward GEMMs."""
    return [rule("dgrad", "w", tile="row", source="tensor"),
            rule("backward", hadamard=size_, signs="step"), *more]


QUARTET2_HEADLINES = [
    Row("bf16", "the reference", "bf16"),
    Row("nvfp4", "NVIDIA's recipe on all blocks", "nvfp4"),
    Row("four_over_six", "NVIDIA's recipe with four-over-six", "four_over_six"),
    Row("tetrajet2", "TetraJet-v2 without resets and chosen features", "tetrajet2"),
    Row("quartet2_no_46", "Quartet II without four-over-six", "quartet2",
        [rule("fprop", **NO_SIX)]),
    Row("quartet2", "Quartet II", "quartet2"),
]
QUARTET2_ROWS = QUARTET2_HEADLINES + [
    Row("tetrajet2_resets", "TetraJet-v2 with its resets, as long as those of its 70M model",
        "tetrajet2", resets_from=0.64),
    Row("tetrajet2_out_control", "TetraJet-v2 with the tenth of the features of largest norm in "
        "MXFP8, chosen after twice the warm-up", "tetrajet2", features_from=0.2),
    Row("tetrajet2_whole", "TetraJet-v2 with resets and chosen features", "tetrajet2",
        resets_from=0.64, features_from=0.2),
    Row("quartet", "Quartet, its predecessor in MXFP4", "quartet"),
    Row("mxfp4", "NVIDIA's comparison in MXFP4", "mxfp4"),
    Row("fp8", "8 bits, one scale a tensor", "fp8"),
    Row("nvfp4_sr_forward", "NVIDIA's recipe, x and w rounded stochastically in fprop", "nvfp4",
        [stochastic(operand="w"), stochastic("fprop", "x")]),
    Row("nvfp4_mae", "four-over-six by the absolute error", "four_over_six", [rule(select="mae")]),
    Row("nvfp4_headroom", "NVIDIA's recipe, scales with head-room where rounding is stochastic",
        "nvfp4", [rule("backward", "dy", headroom=1, dither_bits=16)]),
    forward("forward_rows", "weights in rows", ROW_WEIGHTS),
    forward("forward_rows_46", "weights in rows, four-over-six", ROW_WEIGHTS, rule("fprop", **SIX)),
    forward("forward_square", "square weight tiles"),
    forward("forward_square_46", "square weight tiles, four-over-six", rule("fprop", **SIX)),
    forward("forward_rows_rht", "weights in rows, transform of 16", ROW_WEIGHTS,
            rule("fprop", hadamard=16)),
    backward("backward_sr", "transform of 128, all operands stochastic", "nvfp4",
             *rht_back(128, stochastic("backward"))),
    backward("backward_eden", "MS-EDEN", "quartet2"),
    backward("backward_sr_dy", "as in NVIDIA's recipe", "nvfp4"),
    backward("backward_wgrad_sr", "wgrad alone, transform of 128, stochastic", "nvfp4",
             *rht_back(128, stochastic("backward")), rule("dgrad", recipe="bf16")),
    backward("backward_wgrad_eden", "wgrad alone, MS-EDEN", "quartet2",
             rule("dgrad", recipe="bf16")),
    backward("backward_dgrad_sr", "dgrad alone, transform of 128, stochastic", "nvfp4",
             *rht_back(128, stochastic("backward")), rule("wgrad", recipe="bf16")),
    backward("backward_dgrad_eden", "dgrad alone, MS-EDEN", "quartet2",
             rule("wgrad", recipe="bf16")),
    backward("backward_mxfp4_sr", "MXFP4, transform of 32, stochastic", "mxfp4",
             *rht_back(32, stochastic("backward"))),
    backward("backward_mxfp4_nearest", "MXFP4, transform of 32, nearest", "mxfp4",
             *rht_back(32, nearest("backward"))),
]

UE5M3_ROWS = [
    Row("bf16", "Table 10: the reference", "bf16"),
    Row("ue5m3", "Table 10: UE5M3 scales, held maxima, no transform, all blocks", "ue5m3"),
    Row("ue5m3_block_32", "Table 10: the same in blocks of 32", "ue5m3", [rule(block=32)]),
    Row("ue5m3_as_nvfp4", "Table 10: NVIDIA's recipe with UE5M3 scales", "nvfp4",
        [rule(scale="ue5m3")], keep=(0, 3)),
    Row("nvfp4", "Table 10: NVIDIA's recipe, the last 8 of 52 blocks in BF16", "nvfp4",
        keep=(0, 3)),
    Row("nvfp4_plain", "Table 10: NVIDIA's recipe without transform, all blocks", "nvfp4",
        [NO_RHT]),
]

UFP4_ROWS = [
    Row("bf16", "the reference", "bf16"),
    Row("ufp4", "transform on all GEMMs", "ufp4"),
    Row("ufp4_none", "no transform", "ufp4", [rule(hadamard=0)]),
    Row("ufp4_wgrad", "transform on wgrad", "ufp4",
        [rule("fprop", hadamard=0), rule("dgrad", hadamard=0)]),
    Row("ufp4_fprop_wgrad", "transform on fprop and wgrad", "ufp4", [rule("dgrad", hadamard=0)]),
    Row("ufp4_dgrad_wgrad", "transform on dgrad and wgrad", "ufp4", [rule("fprop", hadamard=0)]),
    Row("nvfp4_rows", "the same with NVFP4's grid and scales, transform on all GEMMs",
        "ufp4", [rule(elem="e2m1", scale="e4m3")]),
]

# Paper, sizes, rows. The 8B and 12B hybrids of arXiv:2509.25149 have Mamba-2 blocks, which this
# program has not: what they vary is varied on the 1.2B transformer.
TABLES = [
    ("nvfp4", "arXiv:2509.25149", [NEMOTRON, S1, S2], NVFP4_ROWS),
    ("fp4_all_the_way", "arXiv:2505.19115, formats and rounding", [FAW_350M, S1, S2], FAW_ROWS),
    ("fp4_threshold", "arXiv:2505.19115, the threshold", [FAW_60M, S1, S2], FAW_60M_ROWS),
    ("fp4_finish", "arXiv:2505.19115, the finish", [FAW_7B, S1, S2], FAW_7B_ROWS),
    ("quartet2", "arXiv:2601.22813", [LLAMAS[0], S1, S2], QUARTET2_ROWS),
    ("quartet2", "arXiv:2601.22813", LLAMAS[1:], QUARTET2_HEADLINES),
    ("ue5m3", "arXiv:2609.02846", [NEMOTRON, S1, S2], UE5M3_ROWS),
    ("ufp4", "arXiv:2606.20381", [NEMOTRON, S1, S2], UFP4_ROWS),
]

# --- files ---


def kept(blocks, layers):
    """Of 20 blocks, scaled: at least one where there was one."""
    return max(1, round(blocks * layers / 20)) if blocks else 0


def steps_of(size_):
    if "train" in size_.base:
        return size_.base["train"]["steps"]
    run = pathlib.Path(size_.base["extends"]).name
    return read_config(ROOT / "configs" / "runs" / run)["train.steps"]


def kept_rules(first, last, layers):
    """Blocks stay in BF16 behind rules, too, that make sense for quantised operands alone."""
    ranges = [(0, first - 1)] * (first > 0) + [(layers - last, layers - 1)] * (last > 0)
    return [{"layers": f"blocks.{a}-{b}.*", "recipe": "bf16"} for a, b in ranges]


def scaled_warmup(entry, steps):
    """A warm-up that resets the rate takes no more than a quarter of what is left."""
    if "lr" not in entry:
        return entry
    left = round((1 - entry["at"]) * steps)
    return {**entry, "lr": {**entry["lr"], "warmup_steps": min(entry["lr"]["warmup_steps"], left // 4)}}


def config_of(row, size_, paper):
    first, last = (kept(blocks, size_.layers) for blocks in row.keep)
    precision = {"recipe": row.recipe, "keep_bf16": {"first": first, "last": last}, **row.precision}
    if row.rules:
        needs_blocks = any("scale" in changed for changed in row.rules)
        precision["rules"] = row.rules + (
            kept_rules(first, last, size_.layers) if needs_blocks else [])
    config = {"extends": "base.json", "precision": precision}
    steps = round(row.tokens * steps_of(size_))
    if row.schedule:
        precision["schedule"] = [scaled_warmup(entry, steps) for entry in row.schedule]
    if row.resets_from:
        precision["osci_reset"] = {"start": round(row.resets_from * steps), "period": 200}
    if row.features_from:
        first = round(row.features_from * steps) + 1
        precision["out_control"] = {"fraction": 0.1, "from": first, "to": first + 49}
    if row.tokens != 1:
        config["train"] = {"steps": steps}
    return {**config, "log": {"dir": f"runs/{paper}_{size_.name}_{row.name}", **row.log}}


def layout(value, before=0, indent=""):
    """JSON on one line where that fits in 100 columns, `before` of them taken; else split up."""
    line = json.dumps(value)
    if before + len(line) + 1 <= 100 or not isinstance(value, (dict, list)):
        return line
    deeper = indent + "    "
    if isinstance(value, dict):
        heads = [f"{deeper}{json.dumps(key)}: " for key in value]
        members = [h + layout(v, len(h), deeper) for h, v in zip(heads, value.values())]
    else:
        members = [deeper + layout(member, len(deeper), deeper) for member in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + "\n" + ",\n".join(members) + f"\n{indent}{closing}"


def text_of(config, about):
    comment = textwrap.fill(about, 100, initial_indent="// ", subsequent_indent="// ")
    return f"{comment}\n{layout(config)}\n"


def distinct_rows(paper, size_, rows):
    """Pairs of row and config; of rows that the scaling makes alike the first."""
    seen = set()
    for row in rows:
        config = config_of(row, size_, paper)
        said = json.dumps({key: value for key, value in config.items() if key != "log"})
        if said not in seen:
            seen.add(said)
            yield row, config


def set_text(about, names, folder):
    rows = [{"name": name, "config": f"configs/ablations/{folder}/{name}.json"} for name in names]
    return layout({"about": about, "reference": "bf16", "rows": rows}) + "\n"


def all_files():
    """{path below configs/ablations: text}."""
    files = {}
    for paper, source, sizes, rows in TABLES:
        for size_ in sizes:
            folder = f"{paper}/{size_.name}"
            files[f"{folder}/base.json"] = text_of(size_.base, size_.about)
            names = []
            for row, config in distinct_rows(paper, size_, rows):
                names.append(row.name)
                files[f"{folder}/{row.name}.json"] = text_of(config, f"{source}: {row.about}")
            files[f"sets/{paper}_{size_.name}.json"] = set_text(
                f"{source} at size {size_.name}", names, folder)
    return files


def present_files(out):
    return {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} - BY_HAND


def check(out, files):
    wrong = sorted(present_files(out) ^ files.keys())
    wrong += [path for path in sorted(files.keys() & present_files(out))
              if (out / path).read_text(encoding="utf-8") != files[path]]
    for path in wrong:
        print(f"{path} is not what scripts/make_ablations.py writes; run it")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    parser.add_argument("--out", type=pathlib.Path, default=OUT, metavar="DIR")
    options = parser.parse_args()
    files = all_files()
    if options.check:
        return check(options.out, files)
    for path in present_files(options.out) - files.keys():
        (options.out / path).unlink()
    for path, text in files.items():
        (options.out / path).parent.mkdir(parents=True, exist_ok=True)
        (options.out / path).write_text(text, encoding="utf-8")
    print(f"{len(files)} files in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
