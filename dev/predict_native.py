#!/usr/bin/env python3
"""
predict_native -- predicts one optimizer step with native NVFP4 GEMMs, and with BF16, on GPUs that
nobody here has: a roofline count of the program as it is. Nothing is measured and nothing is
fitted: every rate is a peak from a data sheet times a share that somebody measured or that is
assumed, and SOURCES says which.

    python3 dev/predict_native.py                          # the tables of dev/SPEED.md
    python3 dev/predict_native.py --detail gpt2-124m B200  # one row, term by term
    python3 dev/predict_native.py --check                  # counts against models' known sizes

What a step is made of, each part alone on the GPU, one after the other, without launch gaps:
  GEMM          the larger of FLOPs / rate and bytes / bandwidth; a native wgrad with fewer 128x128
                tiles than multiprocessors uses that share of them (cuBLASLt does not split K)
  quantisers    x and dy of a linear, bytes an element: 2 for the maxima of both operands, 2 to read,
                2 x 9/16 to write both; emulated operands are written as BF16, 2 x 2.
                Weights likewise, once a step (emulated fprop and dgrad share one copy)
  attention     causal half of 2 products forward, of 5 backward, BF16
  element-wise  45 x dim x 2 bytes a token and layer of attention and MLP, half of it a lone block
  head          three BF16 GEMMs, and 4 bytes a logit for the loss
  AdamW         38 bytes a parameter: 30 in the step, 4 for the norm, 4 to zero the gradient
Not counted: communication, evaluation, loading, Mamba's scan and convolution (2.4 % of its FLOPs).
"""

import argparse
import math
import sys
from dataclasses import dataclass, field

STEP_TOKENS = 524288
BANDWIDTH_SHARE = 0.85
KEEP_LAST = 0.15         # of the blocks: recipe.c, keep_last_frac
TILE = 128
NVFP4_BYTES = 9 / 16     # 4 bits, and an 8-bit scale for each 16
STATE_BYTES = 18         # value 2; gradient, master, m, v 4 each: adamw.h
ADAMW_BYTES = 38
CROSS_ENTROPY_BYTES = 4  # a logit: cross_entropy.cu


@dataclass(frozen=True)
class Device:
    bf16: float              # dense peaks, FLOP/s; fp4 0: emulated
    fp4: float
    bandwidth: float         # bytes/s
    memory: float            # bytes
    multiprocessors: int
    bf16_share: float        # of the peak, in GEMMs
    fp4_share: float
    attention: dict[int, tuple[float, float]]   # head dim: shares of the BF16 peak, both passes


def shares(forward: float, backward: float, head_64: float) -> dict[int, tuple[float, float]]:
    return {128: (forward, backward), 64: (forward * head_64, backward * head_64)}


PETA, TERA, GIGA = 1e15, 1e12, 1e9
DEVICES = {
    "B200": Device(2.25 * PETA, 9 * PETA, 8 * TERA, 180 * GIGA, 148,
                   1.46 / 2.25, 5.09 / 13.3, shares(1574 / 2500, 1157 / 2500, 0.57)),
    "GB300": Device(2.5 * PETA, 15 * PETA, 8 * TERA, 288 * GIGA, 148,
                    1.46 / 2.25, 5.09 / 13.3, shares(1856 / 2500, 1279 / 2500, 0.57)),
    "RTX PRO 6000": Device(0.504 * PETA, 2.015 * PETA, 1.792 * TERA, 96 * GIGA, 188,
                           0.43 / 0.504, 1.4 / 2.015, shares(0.6, 0.4, 1)),
    "RTX 5090": Device(0.2095 * PETA, 1.676 * PETA, 1.792 * TERA, 32 * GIGA, 170,
                       0.188 / 0.2095, 1.283 / 1.676, shares(0.6, 0.4, 1)),
    "H200": Device(0.989 * PETA, 0, 4.8 * TERA, 141 * GIGA, 132,
                   624 / 989, 0, {128: (562 / 989, 401 / 989), 64: (324 / 989, 226 / 989)}),
}
SOURCES = {
    "B200": "BF16 0.65 and NVFP4 0.38 of peak: as third parties measured on a B300",
    "GB300": "BF16 0.65 (1.46 of 2.25 PF), NVFP4 0.38 (5.09 of 13.3): third parties, B300, 16k tokens",
    "RTX PRO 6000": "BF16 0.85, NVFP4 0.69 of peak: assumed",
    "RTX 5090": "NVFP4 0.77 (1.283 of 1.676 PF, n = 8192): third party; BF16 0.90: assumed",
    "H200": "BF16 0.63: middle of 495 to 753 TF measured over shapes; attention as in dev/SPEED.md",
}
# dev/SPEED.md, tokens/s
MEASURED = {("gpt2-124m", "bf16"): 534e3, ("gpt2-124m", "all"): 449e3,
            ("llama-30m", "bf16"): 1130e3, ("llama-30m", "all"): 953e3}


@dataclass(frozen=True)
class Block:
    linears: tuple[tuple[int, int], ...]   # (in, out)
    branches: int = 1                      # 2: attention and MLP in one block
    attention: bool = False
    extra: int = 0                         # parameters outside linears and norms


@dataclass(frozen=True)
class Model:
    dim: int
    heads: int
    head_dim: int
    vocab: int
    seq_len: int
    micro: int                             # sequences of a micro-batch
    blocks: list[Block]
    gpt2: bool = False                     # biases, learned positions, tied head, LayerNorm
    fits: str = field(default="", compare=False)

    @property
    def linear_weights(self) -> int:
        return sum(i * o for block in self.blocks for i, o in block.linears)

    @property
    def block_parameters(self) -> int:
        biases = sum(o for b in self.blocks for _, o in b.linears) if self.gpt2 else 0
        norms = sum(b.branches for b in self.blocks) * self.dim * (2 if self.gpt2 else 1)
        return self.linear_weights + biases + norms + sum(b.extra for b in self.blocks)

    @property
    def parameters(self) -> int:
        outside = self.vocab * self.dim * (1 if self.gpt2 else 2)
        outside += self.seq_len * self.dim if self.gpt2 else 0
        return self.block_parameters + outside + self.dim * (2 if self.gpt2 else 1)

    @property
    def padded_vocab(self) -> int:
        return math.ceil(self.vocab / 128) * 128

    @property
    def activation_bytes(self) -> float:
        """Of a token, kept for backward in BF16: residual, norm output, both sides of the core."""
        return sum(2 * (2 * self.dim * b.branches + sum(self.core_widths(b))) for b in self.blocks)

    @staticmethod
    def core_widths(block: Block) -> list[int]:
        """Of a branch's two linears, what the first puts out and the second takes."""
        return [width for first, second in zip(block.linears[::2], block.linears[1::2])
                for width in (first[1], second[0])]

    def kept_bf16(self, mode: str) -> int:
        """How many blocks at the end stay in BF16."""
        last = max(1, math.floor(KEEP_LAST * len(self.blocks) + 0.5))
        return {"bf16": len(self.blocks), "recipe": last, "all": 0}[mode]


def gpt2(layers: int, dim: int, heads: int, micro: int) -> Model:
    block = Block(((dim, 3 * dim), (dim, dim), (dim, 4 * dim), (4 * dim, dim)), 2, True)
    return Model(dim, heads, 64, 50257, 1024, micro, [block] * layers, gpt2=True)


def llama(layers: int, dim: int, ffn: int, vocab: int, seq_len: int, micro: int) -> Model:
    block = Block(((dim, 3 * dim), (dim, dim), (dim, 2 * ffn), (ffn, dim)), 2, True)
    return Model(dim, dim // 128, 128, vocab, seq_len, micro, [block] * layers)


def nemotron_12b() -> Model:
    dim, ffn, heads, kv_heads, inner, groups_state, mamba_heads = 5120, 20480, 40, 8, 10240, 1024, 128
    conv = inner + 2 * groups_state
    kinds = {
        "M": Block(((dim, inner + conv + mamba_heads), (inner, dim)),
                   extra=5 * conv + 3 * mamba_heads + inner),
        "-": Block(((dim, ffn), (ffn, dim))),
        "*": Block(((dim, (heads + 2 * kv_heads) * 128), (heads * 128, dim)), attention=True),
    }
    pattern = "M-M-M-M*-" + 5 * "M-M-M-M*-" + "M-M-M-M-"
    return Model(dim, heads, 128, 131072, 8192, 2, [kinds[symbol] for symbol in pattern])


MODELS = {
    "gpt2-124m": gpt2(12, 768, 12, 32),
    "gpt2-1558m": gpt2(48, 1600, 25, 16),
    "llama2-7b": llama(32, 4096, 11008, 32000, 4096, 4),
    "nemotron-h-12b": nemotron_12b(),
    "llama-30m": llama(6, 640, 1792, 50257, 512, 64),
}
TABLE_MODELS = [name for name in MODELS if name != "llama-30m"]
TABLE_DEVICES = [name for name in DEVICES if name != "H200"]


@dataclass
class Term:
    flops: float = 0
    bytes: float = 0
    seconds: float = 0


class Step:
    """The terms of one optimizer step of a model on a device, by name."""

    def __init__(self, model: Model, device: Device, mode: str):
        self.model, self.device, self.mode = model, device, mode
        self.bandwidth = device.bandwidth * BANDWIDTH_SHARE
        self.tokens = model.micro * model.seq_len
        self.micro_steps = STEP_TOKENS / self.tokens
        self.terms: dict[str, Term] = {}
        kept = model.kept_bf16(mode)
        for i, block in enumerate(model.blocks):
            self.add_block(block, quantised=i < len(model.blocks) - kept)
        self.add_head()
        self.add_bytes("AdamW", ADAMW_BYTES * model.parameters)

    @property
    def seconds(self) -> float:
        return sum(term.seconds for term in self.terms.values())

    @property
    def tokens_per_second(self) -> float:
        return STEP_TOKENS / self.seconds

    def add(self, name: str, flops: float, nbytes: float, seconds: float) -> None:
        term = self.terms.setdefault(name, Term())
        term.flops += flops
        term.bytes += nbytes
        term.seconds += seconds

    def add_bytes(self, name: str, nbytes: float) -> None:
        self.add(name, 0, nbytes, nbytes / self.bandwidth)

    def add_linear(self, name: str, n_in: int, n_out: int, native: bool) -> None:
        """fprop, dgrad and wgrad of all micro-steps."""
        device, tokens = self.device, self.tokens
        rate = device.fp4 * device.fp4_share if native else device.bf16 * device.bf16_share
        operand = NVFP4_BYTES if native else 2
        tiles = math.ceil(n_in / TILE) * math.ceil(n_out / TILE)
        x, w, y = tokens * n_in, n_in * n_out, tokens * n_out
        for gemm, left, right, out_bytes in (("fprop", x, w, 2 * y), ("dgrad", y, w, 2 * x),
                                             ("wgrad", y, x, 8 * w)):
            busy = min(1, tiles / device.multiprocessors) if native and gemm == "wgrad" else 1
            flops = 2 * tokens * w
            nbytes = operand * (left + right) + out_bytes
            seconds = max(flops / (rate * busy), nbytes / self.bandwidth)
            self.add(f"{name} {gemm}", flops * self.micro_steps, nbytes * self.micro_steps,
                     seconds * self.micro_steps)

    def add_block(self, block: Block, quantised: bool) -> None:
        model = self.model
        native = quantised and self.device.fp4 > 0
        for n_in, n_out in block.linears:
            name = "linears NVFP4" if native else "linears emulated" if quantised else "linears BF16"
            self.add_linear(name, n_in, n_out, native)
            if quantised:
                each = 4 + 2 * (NVFP4_BYTES if native else 2)
                self.add_bytes("quantise x and dy", each * (n_in + n_out) * STEP_TOKENS)
                self.add_bytes("quantise w", (each if native else 6) * n_in * n_out)
        if block.attention:
            self.add_attention()
        self.add_bytes("element-wise", 45 * model.dim * block.branches / 2 * 2 * STEP_TOKENS)

    def add_attention(self) -> None:
        model, device = self.model, self.device
        product = model.heads * model.head_dim * model.seq_len * STEP_TOKENS   # causal half of 2 m n k
        for name, count, share in zip(("forward", "backward"), (2, 5),
                                      device.attention[model.head_dim]):
            flops = count * product
            self.add(f"attention {name}", flops, 0, flops / (device.bf16 * share))

    def add_head(self) -> None:
        self.add_linear("head BF16", self.model.dim, self.model.padded_vocab, native=False)
        self.add_bytes("loss", CROSS_ENTROPY_BYTES * self.model.padded_vocab * STEP_TOKENS)


def fits(model: Model, device: Device) -> bool:
    """State, and the activations and logits of one sequence."""
    sequence = model.seq_len * (model.activation_bytes + 2 * model.padded_vocab)
    return STATE_BYTES * model.parameters + sequence < device.memory


def cell(step: Step) -> str:
    return f"{step.tokens_per_second / 1e3:.{0 if step.tokens_per_second > 1e5 else 1}f}k, " \
           f"{step.seconds * 1e3:.0f} ms"


def print_tables() -> None:
    print("| model | device | BF16 | NVFP4, recipe | x BF16 | NVFP4, all linears | x BF16 | one GPU |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for model_name in TABLE_MODELS:
        for device_name in TABLE_DEVICES:
            model, device = MODELS[model_name], DEVICES[device_name]
            bf16, recipe, all_ = (Step(model, device, mode) for mode in ("bf16", "recipe", "all"))
            print(f"| {model_name} | {device_name} | {cell(bf16)} | {cell(recipe)} "
                  f"| {bf16.seconds / recipe.seconds:.2f} | {cell(all_)} "
                  f"| {bf16.seconds / all_.seconds:.2f} | {'fits' if fits(model, device) else 'no'} |")
    print("\n| H200 | precision | predicted tok/s | measured | predicted / measured |")
    print("| --- | --- | --- | --- | --- |")
    for (model_name, mode), measured in MEASURED.items():
        speed = Step(MODELS[model_name], DEVICES["H200"], mode).tokens_per_second
        precision = "BF16" if mode == "bf16" else "NVFP4 emulated, all linears"
        print(f"| {model_name} | {precision} | {speed / 1e3:.0f}k | {measured / 1e3:.0f}k "
              f"| {speed / measured:.2f} |")


def print_detail(model_name: str, device_name: str) -> None:
    print(f"{model_name} on {device_name}, {STEP_TOKENS} tokens a step. {SOURCES[device_name]}")
    for mode in ("bf16", "recipe", "all"):
        step = Step(MODELS[model_name], DEVICES[device_name], mode)
        print(f"\n{mode}: {cell(step)} a step\n{'':24} {'PFLOP':>9} {'GB':>9} {'ms':>9} {'%':>6}")
        for name, term in step.terms.items():
            print(f"{name:24} {term.flops / PETA:9.2f} {term.bytes / GIGA:9.1f} "
                  f"{term.seconds * 1e3:9.1f} {100 * term.seconds / step.seconds:6.1f}")
