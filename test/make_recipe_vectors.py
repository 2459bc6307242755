#!/usr/bin/env python3
"""
make_recipe_vectors -- writes test/fixtures/recipe_vectors.txt, or checks that the file is what this
script makes.

    python test/make_recipe_vectors.py            self-check, then write the file
    python test/make_recipe_vectors.py --check    self-check, then compare with the file

What recipe_numpy.py makes of formulaic inputs: of every recipe the six operands of one linear; of
cells that no recipe has both operands of a tensor, and their values at the edges of numbers and
shapes; of NVFP4 the codes of tensors over the whole range of numbers. The self-check holds
recipe_numpy.py against known answers of dev/NUMERICS.md. The file's lines are described in
test/fixtures/README.md; who reads them is test_recipe_vectors.c. Needs numpy. Prints a line for
each failure, and `N passed, N failed`; exit status 1 if anything failed.
"""

import argparse
import dataclasses
import pathlib
import sys
import zlib

import numpy as np

import recipe_numpy as rn

FIXTURE = pathlib.Path(__file__).resolve().parent / "fixtures" / "recipe_vectors.txt"
SEED, STEP, TOKEN_BASE = 0x0123456789ABCDEF, 100, 1152
TOKENS, IN, OUT = 128, 128, 256
LINEAR, SWEEP_LINEAR = 3, 5
KEPT = 0.3   # of a tensor's maximum: what the sweep keeps from earlier steps
RUNS, RUN_LENGTH = ((100, 96), (5, 32)), 8   # where values are printed: row, first k


# --- inputs ---

def mix(i, seed):
    h = (i.astype(np.uint64) * np.uint64(0x9E3779B9) + np.uint64(seed)) & rn.MASK32
    h ^= h >> np.uint64(16)
    h = h * np.uint64(0x85EBCA6B) & rn.MASK32
    h ^= h >> np.uint64(13)
    h = h * np.uint64(0xC2B2AE35) & rn.MASK32
    return (h ^ h >> np.uint64(16)).astype(np.int64)


def from_fields(sign, exponent, mantissa):
    """bf16 numbers of biased exponents that may lie outside: cut to subnormals, held at 254."""
    shift = np.clip(1 - exponent, 0, 8)
    cut = (mantissa | 0x80) >> shift
    bits = np.where(exponent < 1, cut, np.minimum(exponent, 254) << 7 | mantissa) | sign << 15
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def trailing_zeros(x, most):
    x = x | 1 << most
    return np.log2(x & -x).astype(np.int64)


def tensor(rows, cols, seed, base):
    """Numbers below 2^(base + 1), mostly within 8 binades; tiles of 16 x 16 that are zero, tiny, on
    the edge of what a scale reaches, larger, or full of ties; outliers; a row and a column of
    zeros."""
    r, c = np.indices((rows, cols))
    i = r * cols + c
    h, tile = mix(i, seed), mix(r // 16 * 4096 + c // 16, seed ^ 0xA5A5A5A5)
    kind = tile % 16
    mantissa, exponent = h & 0x7F, 127 + base - trailing_zeros(h >> 7 & 0xFFFF, 8)
    exponent = np.where(kind == 1, exponent - 40, exponent)
    exponent = np.where((kind == 2) | (kind > 13), exponent - 4 - (tile >> 8) % 12, exponent)
    exponent = np.where(kind == 3, exponent + 2, exponent)
    exponent = np.where(kind == 4, 127 + base - (h >> 7 & 3), exponent)
    mantissa = np.where(kind == 4, mantissa & 0x60, mantissa)
    exponent = np.where(mix(i, seed ^ 0x5EED) % 997 == 0, exponent + 3, exponent)
    zero = (kind == 0) | (r == 37) | (c == 77)
    return from_fields(h >> 31, np.where(zero, -100, exponent), np.where(zero, 0, mantissa))


BLOCK_ROWS, BLOCK_COLS = 32, 256   # a tensor of 512 blocks
BLOCK_EXPONENTS = (-130, -126, -118, -100, -80, -60, -40, -20, -8, 0, 5, 20, 40, 60, 80, 100, 110,
                   120, 126, 127)
TIES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 22, 24)   # quarters: the grid and its ties


def has_ties(index):
    return index % 3 == 1 and abs(BLOCK_EXPONENTS[index]) <= 100


def block_tensor(index):
    """Largest magnitude about 2^exponent; blocks of up to 35 binades less, and a few of zeros. With
    ties: every block on multiples of a quarter of its scale, under a maximum of 2688 2^exponent."""
    seed, base = 0xB10C + index, BLOCK_EXPONENTS[index]
    r, c = np.indices((BLOCK_ROWS, BLOCK_COLS))
    i = r * BLOCK_COLS + c
    h, block = mix(i, seed), mix(i // 16, seed ^ 0xA5A5A5A5)
    if has_ties(index):
        quarters = np.where(c % 16 == 0, 24, np.array(TIES)[h % 16])
        scale = 2.0 ** (block % 18 - 9 + base)
        x = np.where(h >> 31 == 1, -1.0, 1.0) * quarters * 0.25 * scale
        x[0, 0] = 2688.0 * 2.0**base
        return x.astype(np.float32)
    down = np.where(block % 4 == 0, 0, (block >> 8) % 36)
    exponent = 127 + base - down - trailing_zeros(h >> 7 & 0xFFFF, 8)
    zero = block % 32 == 5
    return from_fields(h >> 31, np.where(zero, -100, exponent), np.where(zero, 0, h & 0x7F))


# --- cells: the fields of llmc/recipe.h Operand ---

@dataclasses.dataclass(frozen=True)
class Cell:
    format: str
    elem: str
    scale: str
    block: int
    outer: int = 0
    scale_rule: str = "nearest"
    amax: str = "none"
    zero_scale: str = "keep"
    top_scale: int = 0
    tile: str = "row"
    hadamard: int = 0
    signs: str = "fixed"
    rounding: str = "nearest"
    dither_bits: int = 8
    source: str = "tensor"
    headroom: int = 0
    select: str = "none"
    mask: int = 0
    arithmetic: int = 2

    def but(self, **fields):
        return dataclasses.replace(self, **fields)


BF16 = Cell("bf16", "bf16", "f32", 0)
NVFP4 = Cell("nvfp4", "e2m1", "e4m3", 16, amax="current", top_scale=448)
MXFP4 = Cell("mxfp4", "e2m1", "e8m0", 32, scale_rule="ceil")
MXFP8 = Cell("mxfp8", "e4m3", "e8m0", 32, scale_rule="ceil")
E4M3 = Cell("e4m3", "e4m3", "f32", 0, amax="current")
E5M2 = Cell("e5m2", "e5m2", "f32", 0, amax="current")
FP8_BLOCK = Cell("e4m3_block", "e4m3", "f32", 128)
UE5M3 = Cell("ue5m3", "e2m1", "ue5m3", 16, amax="current", zero_scale="one", top_scale=448)
INT4 = Cell("int4", "e1m2", "f32", 16)
FORMATS = {c.format: c for c in (BF16, NVFP4, MXFP4, MXFP8, E4M3, E5M2, FP8_BLOCK, UE5M3, INT4)}


def with_scale(c, scale):
    """A cell with another format of scales, and what is usual for it."""
    rule = "ceil" if scale == "e8m0" else "nearest"
    amax = "none" if scale in ("e8m0", "f32") else "current"
    return c.but(scale=scale, scale_rule=rule, amax=amax, top_scale=0)


def cell_text(c):
    """What sets the cell, key=value, the format first and then what differs from it."""
    usual = FORMATS[c.format]
    words = [f"format={c.format}"]
    if c.scale != usual.scale:
        usual = with_scale(usual, c.scale)
        words.append(f"scale={c.scale}")
    for field in dataclasses.fields(c)[1:]:
        value = getattr(c, field.name)
        if value == getattr(usual, field.name):
            continue
        words.append(f"{field.name}={'max' if (field.name, value) == ('top_scale', 0) else value}")
    return " ".join(words)


def values_dtype(c):
    """bf16 where it holds every product of an element and a scale."""
    if not c.block or c.scale == "e8m0":   # whose scales are kept where it does
        return "bf16"
    if c.scale == "f32" or c.outer or c.scale_rule == "encode":
        return "f32"
    products = np.outer(rn.positive_numbers(c.elem), rn.positive_numbers(c.scale))
    exact = rn.bf16(products.astype(np.float32)) == products
    return "bf16" if exact.all() else "f32"


def is_packable(c):
    """Cells whose codes the native GEMMs take: NVFP4 as it is, and FP8 of one scale a tensor."""
    plain = (c.elem, c.scale, c.block, c.outer, c.scale_rule, c.zero_scale) == \
        ("e2m1", "e4m3", 16, 0, "nearest", "keep")
    return (c.format == "nvfp4" and plain and c.amax != "none") or c.format in ("e4m3", "e5m2")


# --- recipes: dev/NUMERICS.md 5; {fprop {x, w}, dgrad {dy, w}, wgrad {dy, x}} ---

def sr(c):
    return c.but(rounding="stochastic")


def tile(c):
    return c.but(tile="square")


def shared(c):
    return c.but(source="transposed")


def again(c):
    return c.but(source="requantized")


def as_is(c):
    return c.but(source="values")


def six(fx, fw, dy, dw, gy, gx):
    return ((fx, fw), (dy, dw), (gy, gx))


ROTATED = NVFP4.but(hadamard=16)
MX_ROTATED = MXFP4.but(hadamard=32)
DELAYED_X, DELAYED_DY = E4M3.but(amax="delayed"), E5M2.but(amax="delayed")
ENCODE = NVFP4.but(scale_rule="encode", top_scale=240)
QUEST = MXFP4.but(scale_rule="quest", hadamard=32, signs="none", mask=1)
QUARTET = MXFP4.but(scale_rule="floor", hadamard=32, signs="step", rounding="stochastic",
                    headroom=1)
SELECT = NVFP4.but(top_scale=256, select="mse", arithmetic=1)
EDEN = NVFP4.but(top_scale=256, hadamard=128, signs="step", rounding="eden", dither_bits=16)
OUTER = NVFP4.but(outer=128, amax="none", zero_scale="least")
OUTER_SR = sr(OUTER.but(hadamard=16, signs="step"))
HELD = UE5M3.but(amax="held")
FLOOR_AWAY = MXFP4.but(scale_rule="floor", rounding="away")
INT4_ROTATED = INT4.but(hadamard=16)

RECIPES = {
    "nvfp4": six(NVFP4, tile(NVFP4), sr(NVFP4), shared(tile(NVFP4)), sr(ROTATED), ROTATED),
    "fp8": six(E4M3, E4M3, E5M2, shared(E4M3), E5M2, E4M3),
    "fp8_delayed": six(DELAYED_X, DELAYED_X, DELAYED_DY, shared(DELAYED_X), DELAYED_DY, DELAYED_X),
    "fp8_block": six(FP8_BLOCK, tile(FP8_BLOCK), FP8_BLOCK, shared(tile(FP8_BLOCK)), FP8_BLOCK,
                     FP8_BLOCK),
    "mxfp8": six(*[MXFP8] * 6),
    "mxfp4": six(MXFP4, tile(MXFP4), sr(MXFP4), shared(tile(MXFP4)), sr(MX_ROTATED), MX_ROTATED),
    "fp4_all_the_way": six(NVFP4, NVFP4, sr(NVFP4), NVFP4, sr(NVFP4), sr(NVFP4)),
    "fp4_all_the_way_encode": six(ENCODE, ENCODE, sr(ENCODE), ENCODE, sr(ENCODE), sr(ENCODE)),
    "quartet": six(QUEST, QUEST, QUARTET, again(QUARTET), QUARTET, again(QUARTET)),
    "quartet2": six(SELECT, SELECT, EDEN, again(EDEN), EDEN, again(EDEN)),
    "four_over_six": six(SELECT, tile(SELECT), sr(SELECT), shared(tile(SELECT)),
                         sr(SELECT.but(hadamard=16)), SELECT.but(hadamard=16)),
    "tetrajet2": six(OUTER, OUTER, OUTER_SR, again(OUTER_SR), OUTER_SR, again(OUTER_SR)),
    "ufp4": six(INT4_ROTATED, INT4_ROTATED, sr(INT4_ROTATED), INT4_ROTATED, sr(INT4_ROTATED),
                INT4_ROTATED),
    "ue5m3": six(HELD, tile(HELD), sr(HELD), shared(tile(HELD)), sr(HELD), HELD),
    "mx_library": six(*[FLOOR_AWAY] * 6),
    # Not recipes: what rules may make of them.
    "values": six(NVFP4, NVFP4, sr(NVFP4), as_is(NVFP4), sr(NVFP4), as_is(NVFP4)),
    "values_masked": six(QUEST, QUEST, QUARTET.but(hadamard=0), as_is(QUEST),
                         QUARTET.but(hadamard=0), as_is(QUEST)),
    "values_in_f32": six(NVFP4, NVFP4, sr(INT4), as_is(NVFP4), sr(INT4), as_is(NVFP4)),
    "values_by_way_of_f32": six(NVFP4, NVFP4, sr(INT4), as_is(NVFP4), sr(NVFP4), as_is(NVFP4)),
    "values_of_f32": six(INT4, NVFP4, sr(NVFP4), as_is(NVFP4), sr(NVFP4), as_is(INT4)),
    "transposed_of_f32": six(INT4, tile(NVFP4), sr(NVFP4), shared(tile(NVFP4)), sr(NVFP4), NVFP4),
    "transposed_in_f32": six(NVFP4, tile(NVFP4), sr(INT4), shared(tile(NVFP4)), sr(NVFP4), NVFP4),
    "again_of_encode": six(ENCODE, ENCODE, sr(ENCODE), again(NVFP4), sr(ENCODE), again(sr(NVFP4))),
    "again_of_held": six(HELD, tile(HELD), sr(NVFP4), again(NVFP4), sr(NVFP4), again(sr(NVFP4))),
    "again_of_fp8": six(E4M3, E4M3, sr(NVFP4), again(NVFP4), sr(NVFP4), again(NVFP4)),
    "one_operand": six(NVFP4, BF16, sr(ROTATED.but(hadamard=0)), BF16, BF16, INT4),
}
GEMMS = ("fprop", "dgrad", "wgrad")
OPERANDS = (("x", "w"), ("dy", "w"), ("dy", "x"))
FIRST_DELAYED = {"e4m3": 448.0, "e5m2": 57344.0}   # in use without a history: the scale is 1


# --- cells that no recipe has ---

def sweep():
    blocks = (8, 16, 32, 64, 128)
    scales = ("e1m6", "e2m5", "e3m4", "e5m2", "e6m1", "ue5m3", "f32", "e8m0")
    top256 = NVFP4.but(top_scale=256)
    cells = [NVFP4, NVFP4.but(amax="none"), NVFP4.but(amax="held"), NVFP4.but(amax="delayed"),
             NVFP4.but(arithmetic=1), NVFP4.but(top_scale=240), top256, NVFP4.but(top_scale=0),
             NVFP4.but(rounding="away"), NVFP4.but(mask=1), NVFP4.but(zero_scale="one"),
             NVFP4.but(zero_scale="least"), NVFP4.but(headroom=1), sr(NVFP4.but(headroom=1)),
             NVFP4.but(headroom=1, arithmetic=1), UE5M3, UE5M3.but(top_scale=2048), E4M3, E5M2,
             E4M3.but(amax="delayed"), E5M2.but(amax="delayed")]
    cells += [sr(NVFP4.but(dither_bits=bits)) for bits in (8, 16, 24)]
    cells += [sr(MXFP8.but(dither_bits=bits)) for bits in (8, 16, 24)]
    cells += [NVFP4.but(block=b) for b in blocks] + [tile(NVFP4.but(block=b)) for b in blocks]
    cells += [sr(tile(NVFP4.but(dither_bits=24)))]
    cells += [with_scale(NVFP4, s) for s in scales] + [sr(with_scale(NVFP4, s)) for s in scales]
    cells += [tile(with_scale(NVFP4.but(block=b), s)) for b, s in zip(blocks, scales[2:])]
    cells += [with_scale(NVFP4.but(block=b), s) for b, s in zip(blocks, scales[3:])]
    cells += [with_scale(NVFP4, s).but(arithmetic=1, headroom=1) for s in scales[:6]]
    cells += [with_scale(NVFP4, s).but(zero_scale="least") for s in scales[:6]]
    cells += [MXFP4.but(scale_rule=rule, block=b) for rule in ("floor", "ceil", "even", "quest")
              for b in (16, 32, 128)]
    cells += [MXFP8.but(scale_rule=rule, elem=e) for rule in ("floor", "ceil", "even")
              for e in ("e4m3", "e5m2", "e1m2")]
    cells += [MXFP4.but(scale_rule="floor", headroom=1, elem=e) for e in ("e2m1", "e1m2")]
    cells += [tile(MXFP4.but(scale_rule="even", mask=1)), sr(MXFP4.but(scale_rule="floor", mask=1))]
    cells += [with_scale(NVFP4, s).but(elem="e1m2") for s in ("e4m3", *scales)]
    cells += [NVFP4.but(elem="e1m2", rounding=r) for r in ("stochastic", "away")]
    cells += [NVFP4.but(elem=e) for e in ("e4m3", "e5m2")] + [tile(INT4), sr(tile(FP8_BLOCK))]
    cells += [FP8_BLOCK.but(elem="e5m2", block=32), sr(FP8_BLOCK.but(elem="e5m2"))]
    cells += [ENCODE.but(top_scale=t) for t in (448, 256, 0)] + [ENCODE.but(elem="e1m2", mask=1)]
    cells += [ENCODE.but(amax="held", top_scale=448)]
    cells += [with_scale(NVFP4, s).but(scale_rule="encode") for s in ("e3m4", "e5m2", "ue5m3")]
    cells += [OUTER.but(zero_scale="keep", block=8), OUTER.but(zero_scale="one", block=32),
              OUTER.but(block=128)]
    cells += [OUTER.but(elem="e1m2", mask=1), OUTER.but(scale="e5m2", top_scale=0)]
    cells += [top256.but(select=s, arithmetic=a) for s in ("mse", "mae") for a in (1, 2)]
    cells += [sr(top256.but(select="mae")), tile(top256.but(select="mae")),
              tile(top256.but(select="mse", block=32)), top256.but(select="mse", mask=1),
              top256.but(select="mse", zero_scale="least"), top256.but(select="mae", block=64)]
    cells += [EDEN.but(hadamard=h) for h in (0, 16)] + [EDEN.but(zero_scale="least")]
    cells += [NVFP4.but(hadamard=h, signs=s) for h in (4, 8, 16, 32, 64, 128)
              for s in ("fixed", "none", "step")]
    cells += [sr(MXFP4.but(hadamard=64, signs="step")), INT4.but(hadamard=8, signs="none")]
    return cells


# --- lines of the file ---

def crc(array):
    return f"{zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}"


def f32_bits(x):
    """Every NaN as one."""
    x = np.ascontiguousarray(x, np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), x).view(np.uint32)


def f32_text(x):
    return f"{np.float32(x).view(np.uint32):08x}"


def made_lines(c, made, token_operand, dtype, runs):
    layout = made.values.T if token_operand else made.values
    amax = "-" if made.amax is None else f32_text(made.amax)
    has_mask = c.mask and not token_operand
    mask = crc(rn.mask_bytes(made.keep)) if has_mask else "-"
    codes = scales = "-"
    if is_packable(c) and c.source in ("tensor", "transposed"):
        codes = crc(rn.packed_codes(made, c.elem))
        scales = crc(rn.tiled_scales(made, c.block)) if c.block else "-"
    yield f"cell {cell_text(c)}"
    yield (f"made dtype={dtype} values={crc(f32_bits(layout))} amax={amax} "
           f"div={f32_text(made.dequant_div)} mask={mask} codes={codes} "
           f"scales={scales}")
    for row, k in runs:
        words = f32_bits(made.values[row, k : k + RUN_LENGTH])
        texts = [f"{w:08x}" if dtype == "f32" else f"{w >> 16:04x}" for w in words]
        yield f"at {row} {k} {' '.join(texts)}"


def transposed(made):
    scales = None if made.scales is None else made.scales.T
    return dataclasses.replace(made, values=made.values.T, elements=made.elements.T, scales=scales,
                               keep=made.keep.T)


def make_operand(plan, gemm, side, tensors, made):
    c, name = plan[gemm][side], OPERANDS[gemm][side]
    token_operand = gemm == 2 or (gemm == 1 and side == 1)
    first = made.get((0, 1 if name == "w" else 0))
    if c.source in ("values", "transposed"):
        return transposed(first)
    x = tensors[name]
    if c.source == "requantized":
        x = rn.values_again(first)
    amax = FIRST_DELAYED[c.elem] if c.amax == "delayed" else None
    tag = LINEAR << 8 | gemm << 4 | side << 2
    draws = rn.Draws(SEED, STEP, tag, 0 if name == "w" else TOKEN_BASE)
    return rn.make(c, x, token_operand, draws, amax)


def gemm_dtypes(plan):
    """Of each GEMM's values: f32 where a cell of it asks for that, or one of a GEMM with which it
    shares values as they are."""
    needs = ["f32" in map(values_dtype, cells) for cells in plan]
    shares = [g == 0 or plan[g][1].source in ("values", "transposed") for g in range(3)]
    any_shared = any(needs[g] for g in range(3) if shares[g])
    return ["f32" if needs[g] or (shares[g] and any_shared) else "bf16" for g in range(3)]


def recipe_lines():
    tensors = {"x": tensor(TOKENS, IN, 1, 0), "w": tensor(OUT, IN, 2, -5),
               "dy": tensor(TOKENS, OUT, 3, -20)}
    for name, plan in RECIPES.items():
        made = {}
        for gemm in range(3):
            for side in range(2):
                yield f"recipe {name} {GEMMS[gemm]} {OPERANDS[gemm][side]}"
                c = plan[gemm][side]
                if c.format == "bf16":
                    yield f"cell {cell_text(c)}"
                    continue
                one = made[gemm, side] = make_operand(plan, gemm, side, tensors, made)
                token_operand = gemm == 2 or (gemm == 1 and side == 1)
                yield from made_lines(c, one, token_operand, gemm_dtypes(plan)[gemm], RUNS)


def make_of_sweep(c, x, token_operand):
    tag = SWEEP_LINEAR << 8 | (1 + token_operand) << 4
    draws = rn.Draws(SEED, STEP, tag, 0 if c.tile == "square" else TOKEN_BASE)
    keeps = c.amax in ("held", "delayed")
    amax = np.abs(x).max() * np.float32(KEPT) if keeps else None
    return rn.make(c, x, token_operand, draws, amax)


def sweep_lines():
    x = tensor(TOKENS, OUT, 4, 1)
    for i, c in enumerate(sweep()):
        for token_operand in (0, 1):
            made = make_of_sweep(c, x, token_operand)
            yield f"sweep {i} {'token' if token_operand else 'row'} -"
            yield from made_lines(c, made, token_operand, values_dtype(c), RUNS[:1])


def every_maximum():
    """Blocks of 16 with every bf16 significand as their maximum, over 12 binades, under a maximum
    of the tensor for which the order of operations shows in scales."""
    r, c = np.indices((96, BLOCK_COLS))
    i = r * BLOCK_COLS + c
    h, block = mix(i, 11), i // 16
    first = i % 16 == 0
    exponent = 127 - block // 128 - np.where(first, 0, 1 + trailing_zeros(h >> 7 & 0xFFFF, 8))
    mantissa = np.where(first, block % 128, h & 0x7F)
    return from_fields(h >> 31, np.where(i == 0, 128, exponent), np.where(i == 0, 42, mantissa))


def edge_tensors():
    """All zeros of both signs; near the smallest and the largest numbers; every significand as a
    block's maximum; blocks cut short."""
    signs = mix(np.arange(BLOCK_ROWS * BLOCK_COLS).reshape(BLOCK_ROWS, BLOCK_COLS), 9) >> 31
    return {"zero": from_fields(signs, np.full_like(signs, -100), np.zeros_like(signs)),
            "tiny": block_tensor(0), "huge": block_tensor(16), "every": every_maximum(),
            "ragged": tensor(96, 160, 5, 1)}


def edge_lines():
    """The cells of the sweep on these. The specification does not say how quest counts what a block
    lacks, and eden's groups of draws are of 16."""
    for name, x in edge_tensors().items():
        yield f"edge {name} {crc(rn.bf16_bits(x))}"
        for i, c in enumerate(sweep()):
            for token_operand in (0, 1):
                k = x.shape[0] if token_operand else x.shape[1]
                if (c.hadamard and k % c.hadamard) or (c.scale_rule == "quest" and k % c.block):
                    continue
                made = make_of_sweep(c, x, token_operand)
                layout = made.values.T if token_operand else made.values
                yield f"{i} {'token' if token_operand else 'row'} {crc(f32_bits(layout))}"


def blocks_lines():
    """NVFP4: rows to nearest, and along the rows, transformed, stochastically."""
    for i, exponent in enumerate(BLOCK_EXPONENTS):
        x = block_tensor(i)
        yield f"blocks {i} {exponent} {'ties' if has_ties(i) else 'random'}"
        yield f"input {crc(rn.bf16_bits(x))}"
        for token_operand, c in ((0, NVFP4), (1, sr(ROTATED))):
            if token_operand and exponent > 120:
                continue   # the transform would overflow
            draws = rn.Draws(SEED, STEP, SWEEP_LINEAR << 8 | (1 + token_operand) << 4, TOKEN_BASE)
            made = rn.make(c, x, token_operand, draws)
            codes, scales = rn.packed_codes(made, "e2m1"), rn.tiled_scales(made, 16)
            first = " ".join(codes[0, 8 * b : 8 * b + 8].tobytes().hex() for b in range(2))
            yield (f"{'token' if token_operand else 'row'} amax={f32_text(made.amax)} "
                   f"codes={crc(codes)} scales={crc(scales)} first={first} "
                   f"{scales[:2].tobytes().hex()}")


def make_file():
    x = [tensor(TOKENS, IN, 1, 0), tensor(OUT, IN, 2, -5), tensor(TOKENS, OUT, 3, -20),
         tensor(TOKENS, OUT, 4, 1)]
    lines = ["# made by test/make_recipe_vectors.py; described in README.md"]
    lines.append("inputs " + " ".join(crc(rn.bf16_bits(t)) for t in x))
    for section in (recipe_lines(), sweep_lines(), edge_lines(), blocks_lines()):
        lines.extend(section)
    return "\n".join(lines) + "\n"


# --- self-check against dev/NUMERICS.md ---

class Report:
    def __init__(self):
        self.passed = self.failed = 0

    def expect(self, condition, what):
        self.passed, self.failed = self.passed + bool(condition), self.failed + (not condition)
        if not condition:
            print(f"failed: {what}")


def one_block(values, amax, c=NVFP4):
    draws = rn.Draws(0, 0, 0, 0)
    x = np.zeros((16, 16), np.float32)
    x[0] = values
    return rn.make(c, x, 0, draws, amax)


def packed_hex(made):
    return rn.packed_codes(made, "e2m1")[0].tobytes().hex()


def self_check(report):
    words = rn.philox((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), 0x299F31D0A4093822)
    report.expect([int(w) for w in words] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
                  "Philox 3.5")
    grid = np.array([.25, .75, 1.25, 1.75, 2.5, 3.5, 5, -.1, 6.2], np.float32)
    report.expect(list(rn.e2m1_codes(rn.nearest(grid, "e2m1"))) == [0, 2, 2, 4, 4, 6, 6, 8, 7],
                  "ties of E2M1, 1.1")
    outcomes = ((1.9, 1.5, 52), (3.9, 3, 26), (5.99, 4, 2), (-1.1, -1.5, 51), (2**-9, 0, 255))
    for x, low, count in outcomes:
        got = rn.stochastic(np.full(256, x, np.float32), "e2m1", np.arange(256), 8)
        report.expect(np.sum(got == low) == count, f"outcomes of {x}, 3.3")
    v4 = [2688, -2688, 1344, 672, 448, -448, 224, 112, 2240, 1568, 1120, 784, 560, 336, 111, -0.0]
    report.expect(packed_hex(one_block(v4, 2688)) == "f735a20166442280", "V4")
    v10 = [19.125, -19.125, 9.5625, 4.78125, 1.59375, 3.1875, 6.375, -12.75, .5, -0.0, 17, 8,
           2.390625, .796875, 15.9375, 11.15625]
    report.expect(packed_hex(one_block(v10, 25.5)) == "f73521e480470156", "V10, arithmetic 2")
    report.expect(packed_hex(one_block(v10, 25.5, NVFP4.but(arithmetic=1))) == "f73521e480571267",
                  "V10, arithmetic 1")
    v9 = [2.0**-120, -(2.0**-121), 2.0**-122] + [0] * 13
    report.expect(packed_hex(one_block(v9, 2.0**-120)) == "d703" + "00" * 6, "V9")
    v12 = one_block(np.arange(1, 17), 17.5, ROTATED)
    report.expect(packed_hex(v12) == "df85855f7511a1f6", "V12")
    v13 = one_block([10, 20, 30, 40] + [0] * 12, 40, SELECT)
    report.expect(packed_hex(v13) == "4265" + "00" * 6 and v13.scales[0, 0] == 384, "V13")
    check_powers(report)
    check_errors(report)


def check_powers(report):
    """Worked out by hand from the rules of 1.5."""
    maxima = (1, 2.9, 3, 3.01, 4, 6, 6.5, 7, 7.5, 8)
    exponents = {"floor": (-2, -1, -1, -1, 0, 0, 0, 0, 0, 1),
                 "ceil": (-2, -1, -1, 0, 0, 0, 1, 1, 1, 1),
                 "even": (-2, -1, -1, -1, 0, 0, 0, 1, 1, 1)}
    for rule, wanted in exponents.items():
        s = rn.Scaling(MXFP4.but(scale_rule=rule), 0)
        scale = s.power(np.array(maxima, np.float32), None)[0]
        report.expect(list(np.log2(scale)) == list(wanted), f"exponents of {rule}")


def check_errors(report):
    """Squared errors on N(0,1), within 2 %; those of plain NVFP4 stand in dev/NUMERICS.md 3.4."""
    x = rn.bf16(np.random.default_rng(7).standard_normal((256, 1024)).astype(np.float32))
    draws = rn.Draws(1, 2, 3, 0)
    cells = ((NVFP4, 9.06), (tile(NVFP4), 12.36), (SELECT, 7.56), (sr(NVFP4), 18.8),
             (EDEN.but(hadamard=0), 9.31), (MXFP4, 13.3), (MXFP4.but(scale_rule="floor"), 13.2),
             (MXFP4.but(scale_rule="even"), 12.5))
    for c, thousandths in cells:
        made = rn.make(c, x, 0, draws)
        decode = (made.amax if made.amax is not None else np.float32(1)) / made.dequant_div
        error = np.mean((made.values * decode - x) ** 2) * 1000
        report.expect(abs(error / thousandths - 1) < 0.02, f"error of {cell_text(c)}: {error:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="compare with the file; write nothing")
    check = parser.parse_args().check
    report = Report()
    self_check(report)
    text = make_file()
    if check:
        report.expect(FIXTURE.read_text(encoding="ascii") == text, f"{FIXTURE.name} is another")
    elif report.failed == 0:
        FIXTURE.write_text(text, encoding="ascii")
    print(f"{report.passed} passed, {report.failed} failed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
