#!/usr/bin/env python3
"""
predict_native -- predicts an optimizer step with native NVFP4 GEMMs, and with BF16, on GPUs that
were not at hand: a roofline count of the program as it is. Nothing is fitted: a rate is a data
sheet's peak times a share that somebody measured or that is assumed; Device.source says which.

    python3 dev/predict_native.py                          # the tables of dev/SPEED.md
    python3 dev/predict_native.py --detail gpt2-124m B200  # one row, term by term
    python3 dev/predict_native.py --check                  # counts against models' known sizes

Parts of a step, one after the other and without launch gaps:
  GEMM          the larger of FLOPs / rate and bytes / bandwidth; a native wgrad with fewer 128x128
                tiles, in all slices of gemm_slices, than multiprocessors uses that share of them
  quantisers    x and dy of a linear, bytes an element: 2 for the maxima of both operands, 2 to
                read, 2 x 9/16 to write both, emulated 2 x 2; w likewise, once a step
  attention     causal half of 2 products forward and of 5 backward, in BF16
  element-wise  45 x dim x 2 bytes a token and layer of attention and MLP; half for a lone branch
  head          three BF16 GEMMs, and 4 bytes a logit for the loss
  AdamW         38 bytes a parameter: 30 in the step, 4 for the norm, 4 to zero the gradient
Not counted: communication, evaluation, loading, Mamba's scan and convolution (1 % of the FLOPs).
"""

import argparse
import math
import sys
from collections import defaultdict
from dataclasses import dataclass, replace

STEP_TOKENS = 524288
BANDWIDTH_SHARE = 0.85
MEMORY_SHARE = 0.95      # of a GPU's memory may be planned
KEEP_LAST = 0.15         # of the blocks stay BF16: keep_last_frac in recipe.c
TILE = 128
NVFP4_BYTES = 9 / 16     # 4 bits, and an 8-bit scale for each 16
STATE_BYTES = 18         # value 2; gradient, master, m, v 4 each: adamw.h
ADAMW_BYTES = 38
LOSS_BYTES = 4           # a logit: cross_entropy.cu
MODES = ("bf16", "recipe", "all")   # recipe: nvfp4 with its last blocks in BF16


@dataclass(frozen=True)
class Device:
    bf16: float              # dense peaks in PFLOP/s; fp4 0: emulated
    fp4: float
    bandwidth: float         # TB/s
    memory: float            # GB
    multiprocessors: int
    bf16_share: float        # of those peaks, in GEMMs
    fp4_share: float
    attention: dict[int, tuple[float, float]]   # head dim: shares of the BF16 peak, both passes
    source: str              # of the shares


B300 = "GEMMs: third parties on a B300 of 2.25 and 13.3 PF, 16k tokens"
ASSUMED_ATTENTION = {128: (0.6, 0.4), 64: (0.6, 0.4)}
DEVICES = {
    "B200": Device(2.25, 9, 8, 180, 148, 1.46 / 2.25, 5.09 / 13.3,
                   {128: (0.63, 0.46), 64: (0.36, 0.26)}, B300 + "; attention: GB200"),
    "GB300": Device(2.5, 15, 8, 288, 148, 1.46 / 2.25, 5.09 / 13.3,
                    {128: (0.74, 0.51), 64: (0.42, 0.29)}, B300 + "; attention: GB300"),
    "RTX PRO 6000": Device(0.504, 2.015, 1.792, 96, 188, 0.43 / 0.504, 1.4 / 2.015,
                           ASSUMED_ATTENTION, "all assumed"),
    "RTX 5090": Device(0.2095, 1.676, 1.792, 32, 170, 0.188 / 0.2095, 1.283 / 1.676,
                       ASSUMED_ATTENTION, "NVFP4: third party, n = 8192; the others assumed"),
    "H200": Device(0.989, 0, 4.8, 141, 132, 0.624 / 0.989, 0,
                   {128: (0.57, 0.41), 64: (0.33, 0.23)},
                   "measured: middle of 495 to 753 TF over GEMM shapes; attention of SPEED.md"),
}
# Of dev/SPEED.md, tokens/s on the H200.
MEASURED = {("gpt2-124m", "bf16"): 534e3, ("gpt2-124m", "all"): 449e3,
            ("llama-30m", "bf16"): 1130e3, ("llama-30m", "all"): 953e3}


@dataclass(frozen=True)
class Block:
    linears: tuple[tuple[int, int], ...]   # (in, out), two a branch
    attention: bool = False
    extra: int = 0                         # parameters outside linears and norms

    @property
    def branches(self) -> int:
        return len(self.linears) // 2


@dataclass(frozen=True)
class Model:
    dim: int
    heads: int
    head_dim: int
    vocab: int
    seq_len: int
    micro: int               # sequences of a micro-batch
    blocks: list[Block]
    gpt2: bool = False       # biases, learned positions, tied head, LayerNorm

    @property
    def linear_weights(self) -> int:
        return sum(i * o for block in self.blocks for i, o in block.linears)

    @property
    def parameters(self) -> int:
        norms = sum(block.branches for block in self.blocks) + 1
        rest = norms * self.dim + sum(block.extra for block in self.blocks)
        if not self.gpt2:
            return self.linear_weights + rest + 2 * self.vocab * self.dim
        biases = norms * self.dim + sum(o for block in self.blocks for _, o in block.linears)
        return self.linear_weights + rest + biases + (self.vocab + self.seq_len) * self.dim

    @property
    def padded_vocab(self) -> int:
        return math.ceil(self.vocab / 128) * 128

    def least_memory(self) -> float:
        """State, FP4 weights, one sequence: BF16 residual and inputs and outputs of the linears."""
        kept = sum(self.dim + sum(first) + second[0] for block in self.blocks
                   for first, second in zip(block.linears[::2], block.linears[1::2]))
        return (STATE_BYTES * self.parameters + 2 * NVFP4_BYTES * self.linear_weights +
                2 * self.seq_len * (kept + self.padded_vocab))


def transformer(layers: int, dim: int, up: int, ffn: int) -> list[Block]:
    return [Block(((dim, 3 * dim), (dim, dim), (dim, up), (ffn, dim)), attention=True)] * layers


def hybrid_12b() -> list[Block]:
    """Attention with 8 of 40 heads for keys and values; Mamba-2 with 128 heads of 80, 8 groups."""
    dim, ffn, inner, mamba_heads = 5120, 20480, 10240, 128
    conv = inner + 2 * 8 * 128
    kinds = {
        "M": Block(((dim, inner + conv + mamba_heads), (inner, dim)),
                   extra=5 * conv + 3 * mamba_heads + inner),
        "-": Block(((dim, ffn), (ffn, dim))),
        "*": Block(((dim, (40 + 2 * 8) * 128), (40 * 128, dim)), attention=True),
    }
    return [kinds[symbol] for symbol in 6 * "M-M-M-M*-" + "M-M-M-M-"]


MODELS = {
    "gpt2-124m": Model(768, 12, 64, 50257, 1024, 32, transformer(12, 768, 3072, 3072), True),
    "gpt2-1558m": Model(1600, 25, 64, 50257, 1024, 16, transformer(48, 1600, 6400, 6400), True),
    "llama2-7b": Model(4096, 32, 128, 32000, 4096, 4, transformer(32, 4096, 22016, 11008)),
    "nemotron-h-12b": Model(5120, 40, 128, 131072, 8192, 2, hybrid_12b()),
    "llama-30m": Model(640, 5, 128, 50257, 512, 64, transformer(6, 640, 3584, 1792)),
}


def gemm_slices(tiles: int, multiprocessors: int, tokens: int) -> int:
    """As in llmc/ops/gemm.c: parts of a native wgrad's contraction."""
    counts = [n for n in (2, 4, 8) if n * tiles <= multiprocessors and
              tokens % (n * TILE) == 0 and tokens >= n * 1024]
    return max(counts, default=1)


class Step:
    """FLOPs, bytes and seconds of one optimizer step, by term."""

    def __init__(self, model: Model, device: Device, mode: str):
        self.model, self.device = model, device
        self.flops: dict[str, float] = defaultdict(float)
        self.bytes: dict[str, float] = defaultdict(float)
        self.seconds: dict[str, float] = defaultdict(float)
        blocks = len(model.blocks)
        last = max(1, math.floor(KEEP_LAST * blocks + 0.5))
        quantised = {"bf16": 0, "recipe": blocks - last, "all": blocks}[mode]
        for i, block in enumerate(model.blocks):
            self.add_block(block, i < quantised)
        self.add_linear("head BF16", model.dim, model.padded_vocab, native=False)
        self.add("loss", 0, LOSS_BYTES * model.padded_vocab * STEP_TOKENS)
        self.add("AdamW", 0, ADAMW_BYTES * model.parameters)
        self.total = sum(self.seconds.values())
        self.speed = STEP_TOKENS / self.total

    def add(self, name: str, flops: float, nbytes: float, rate: float = 1) -> None:
        """The larger of both times; rate in PFLOP/s."""
        self.flops[name] += flops
        self.bytes[name] += nbytes
        bandwidth = self.device.bandwidth * 1e12 * BANDWIDTH_SHARE
        self.seconds[name] += max(flops / (rate * 1e15), nbytes / bandwidth)

    def add_linear(self, name: str, n_in: int, n_out: int, native: bool) -> None:
        d = self.device
        rate = d.fp4 * d.fp4_share if native else d.bf16 * d.bf16_share
        operand = NVFP4_BYTES if native else 2
        tokens = self.model.micro * self.model.seq_len
        tiles = math.ceil(n_in / TILE) * math.ceil(n_out / TILE)
        slices = gemm_slices(tiles, d.multiprocessors, tokens) if native else 1
        busy = min(1, slices * tiles / d.multiprocessors) if native else 1
        dw_bytes = 8 + (8 * slices if slices > 1 else 0)
        micro_steps = STEP_TOKENS / tokens
        x, y, w = STEP_TOKENS * n_in, STEP_TOKENS * n_out, n_in * n_out * micro_steps
        flops = 2 * STEP_TOKENS * n_in * n_out
        self.add(name + " fprop", flops, operand * (x + w) + 2 * y, rate)
        self.add(name + " dgrad", flops, operand * (y + w) + 2 * x, rate)
        self.add(name + " wgrad", flops, operand * (y + x) + dw_bytes * w, rate * busy)

    def add_block(self, block: Block, quantised: bool) -> None:
        model, device = self.model, self.device
        native = quantised and device.fp4 > 0
        kind = "NVFP4" if native else "emulated" if quantised else "BF16"
        for n_in, n_out in block.linears:
            self.add_linear("linears " + kind, n_in, n_out, native)
            if quantised:
                each = 4 + 2 * (NVFP4_BYTES if native else 2)
                self.add("quantise x, dy", 0, each * (n_in + n_out) * STEP_TOKENS)
                self.add("quantise w", 0, (each if native else 6) * n_in * n_out)
        if block.attention:
            product = model.heads * model.head_dim * model.seq_len * STEP_TOKENS
            forward, backward = device.attention[model.head_dim]
            self.add("attention forward", 2 * product, 0, device.bf16 * forward)
            self.add("attention backward", 5 * product, 0, device.bf16 * backward)
        self.add("element-wise", 0, 45 * model.dim * block.branches * STEP_TOKENS)


def speed(step: Step) -> str:
    return f"{step.speed / 1e3:.{0 if step.speed > 1e5 else 1}f}k, {step.total * 1e3:,.0f} ms"


def print_tables(devices: dict[str, Device]) -> None:
    print("| model | GPU | BF16 | NVFP4, recipe | x BF16 | NVFP4, all linears | x BF16 | GB, of |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, model in list(MODELS.items())[:-1]:
        for device_name, device in list(devices.items())[:-1]:
            bf16, recipe, every = (Step(model, device, mode) for mode in MODES)
            need = model.least_memory() / 1e9
            fits = "" if need < MEMORY_SHARE * device.memory else " **no**"
            print(f"| {name} | {device_name} | {speed(bf16)} | {speed(recipe)} | "
                  f"{recipe.speed / bf16.speed:.2f} | {speed(every)} | "
                  f"{every.speed / bf16.speed:.2f} | {need:.0f}, {device.memory:.0f}{fits} |")
    print("\n| on an H200 | | predicted tok/s | measured | predicted / measured |\n"
          "| --- | --- | --- | --- | --- |")
    for (name, mode), measured in MEASURED.items():
        predicted = Step(MODELS[name], devices["H200"], mode).speed
        print(f"| {name} | {'BF16' if mode == 'bf16' else 'NVFP4 emulated, all linears'} | "
              f"{predicted / 1e3:.0f}k | {measured / 1e3:.0f}k | {predicted / measured:.2f} |")


def print_detail(model_name: str, device_name: str, device: Device) -> None:
    print(f"{model_name} on {device_name}, {STEP_TOKENS} tokens a step; shares: {device.source}")
    for mode in MODES:
        step = Step(MODELS[model_name], device, mode)
        print(f"\n{mode}: {speed(step)}\n{'':24} {'PFLOP':>9} {'GB':>9} {'ms':>9} {'%':>6}")
        for name, seconds in step.seconds.items():
            print(f"{name:24} {step.flops[name] / 1e15:9.2f} {step.bytes[name] / 1e9:9.1f} "
                  f"{seconds * 1e3:9.1f} {100 * seconds / step.total:6.1f}")


def flops_per_token(model: Model) -> float:
    """By the usual rule, which counts 4 backward products of attention, not 5."""
    flops = Step(model, DEVICES["B200"], "all").flops
    return (sum(flops.values()) - flops["attention backward"] / 5) / STEP_TOKENS


def check() -> int:
    """Counts against numbers found elsewhere: published, or by hand. Returns how many differ."""
    gpt, gpt_xl, llama, hybrid, llama_30m = MODELS.values()
    state_space = 3 * 28 * 8126464   # FLOPs of 28 Mamba blocks, which are not counted here
    cases = [
        ("gpt2-124m parameters", gpt.parameters, 124439808, 0),
        ("gpt2-124m linears", gpt.linear_weights, 84934656, 0),
        ("gpt2-1558m parameters", gpt_xl.parameters, 1557611200, 0),
        ("llama2-7b parameters", llama.parameters, 6738415616, 0),
        ("llama-30m outside tables", llama_30m.parameters - 2 * 640 * 50257, 30482560, 0),
        ("nemotron-h-12b parameters", hybrid.parameters, 12310001152, 0),
        ("nemotron-h-12b linears", hybrid.linear_weights, 10965483520, 0),
        ("gpt2-124m FLOPs a token", flops_per_token(gpt),
         6 * (84934656 + 50304 * 768) + 6 * 12 * 768 * 1024, 1e-12),
        ("llama2-7b FLOPs a token", flops_per_token(llama),
         6 * (6738415616 - (32000 + 65) * 4096) + 6 * 32 * 4096 * 4096, 1e-12),
        ("nemotron-h-12b FLOPs a token", flops_per_token(hybrid) + state_space, 72.0e9, 0.05 / 72),
    ]
    wrong = 0
    for name, found, expected, tolerance in cases:
        differs = abs(found - expected) > tolerance * expected
        wrong += differs
        print(f"{'FAIL' if differs else 'ok':4} {name}: {found:.0f}, expected {expected:.0f}")
    print(f"{len(cases) - wrong} passed, {wrong} failed")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Roofline of a step with native NVFP4 GEMMs.")
    parser.add_argument("--detail", nargs=2, metavar=("MODEL", "DEVICE"), help="one row by terms")
    parser.add_argument("--fp4-share", type=float, help="of the FP4 peak, on every GPU")
    parser.add_argument("--check", action="store_true", help="counts against known sizes")
    args = parser.parse_args()
    if args.check:
        return min(1, check())
    devices = {name: replace(d, fp4_share=args.fp4_share or d.fp4_share)
               for name, d in DEVICES.items()}
    if not args.detail:
        print_tables(devices)
    elif args.detail[0] in MODELS and args.detail[1] in devices:
        print_detail(*args.detail, devices[args.detail[1]])
    else:
        parser.error(f"models: {', '.join(MODELS)}; devices: {', '.join(devices)}")
    return 0


sys.exit(main())
