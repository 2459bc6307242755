"""
recipe_numpy -- an independent implementation, in numpy, of what every cell of a recipe makes of a
tensor: written from the specification (dev/NUMERICS.md, the description at the head of
llmc/ops/cell.h and of llmc/rng.h), not from the code that it is compared with. Every operation on
float32 arrays is one rounding; what is rounded to a smaller format goes through float64, where it
is exact. For make_recipe_vectors.py.

A tensor is a float32 array (rows, columns) of bf16 numbers. Inside, the contraction is the last
dimension: a token operand is transposed first.
"""

import dataclasses

import numpy as np

F32 = np.float32
FLT_MAX = np.finfo(F32).max
MASK32 = np.uint64(0xFFFFFFFF)


# --- formats ---

@dataclasses.dataclass(frozen=True)
class Minifloat:
    mantissa_bits: int
    min_exponent: int   # of normal numbers
    max: float


FORMATS = {
    "e2m1": Minifloat(1, 0, 6.0),
    "e1m2": Minifloat(2, 0, 1.75),
    "e4m3": Minifloat(3, -6, 448.0),
    "e5m2": Minifloat(2, -14, 57344.0),
    "e1m6": Minifloat(6, 1, 127 * 2.0**-5),
    "e2m5": Minifloat(5, 0, 7.875),
    "e3m4": Minifloat(4, -2, 31.0),
    "e6m1": Minifloat(1, -30, 1.5 * 2.0**32),
    "ue5m3": Minifloat(3, -14, 61440.0),
}
E2M1_GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], F32)
# Codes of E8M0 whose products with every element are bf16 numbers.
POWER_CODES = {"e2m1": (2, 252), "e1m2": (2, 252), "e4m3": (3, 246), "e5m2": (10, 239)}


def grid_place(x, name):
    """|x| in units of the grid's step around it, and that step; both exact in float64."""
    f = FORMATS[name]
    magnitude = np.abs(x.astype(np.float64))
    exponent = np.frexp(magnitude)[1] - 1
    exponent = np.where(magnitude > 0, np.maximum(exponent, f.min_exponent), f.min_exponent)
    step = np.ldexp(1.0, exponent - f.mantissa_bits)
    return magnitude / step, step


def signed(units, step, x, name):
    return np.copysign(np.minimum(units * step, FORMATS[name].max), x).astype(F32)


def nearest(x, name):
    units, step = grid_place(x, name)
    return signed(np.rint(units), step, x, name)


def nearest_away(x, name):
    units, step = grid_place(x, name)
    return signed(np.floor(units + 0.5), step, x, name)


def stochastic(x, name, draws, bits):
    units, step = grid_place(x, name)
    below = np.floor(units)
    up = np.floor((units - below) * 2.0**bits) + draws >= 2.0**bits
    return signed(below + up, step, x, name)


def bf16(x):
    """Rounds to bf16, ties to even; finite."""
    u = x.astype(F32).view(np.uint32)
    u = (u + np.uint32(0x7FFF) + ((u >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return u.view(F32)


def positive_numbers(name):
    """Every one of a format, as float64."""
    f = FORMATS[name]
    step = 2.0 ** (f.min_exponent - f.mantissa_bits)
    numbers = [np.arange(1, 2**f.mantissa_bits) * step]
    while step * 2**f.mantissa_bits <= f.max:
        numbers.append(np.arange(2**f.mantissa_bits, 2 ** (f.mantissa_bits + 1)) * step)
        step *= 2
    numbers = np.concatenate(numbers)
    return numbers[numbers <= f.max]


def least(name):
    f = FORMATS[name]
    return F32(2.0 ** (f.min_exponent - f.mantissa_bits))


# --- random bits ---

def philox(counter, key):
    """Philox4x32-10; counter: four uint32 arrays or numbers. Returns four uint64 arrays."""
    c = [np.asarray(word, np.uint64) for word in counter]
    k = [np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)]
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        high0, high1 = p0 >> np.uint64(32), p1 >> np.uint64(32)
        c = [high1 ^ c[1] ^ k[0], p1 & MASK32, high0 ^ c[3] ^ k[1], p0 & MASK32]
        k = [(k[0] + np.uint64(0x9E3779B9)) & MASK32, (k[1] + np.uint64(0xBB67AE85)) & MASK32]
    return c


@dataclasses.dataclass(frozen=True)
class Draws:
    """What names an operand's random bits; tag without sub-draw."""
    seed: int
    step: int
    tag: int
    first_row: int   # of the tensor's rows within the step's batch


def place_in_groups(shape, token_operand, first_row):
    """Group of 16 and place in it of element (row, k)."""
    rows, k = np.indices(shape, np.uint64)
    sixteen = np.uint64(16)
    if token_operand:
        token = k + np.uint64(first_row)
        return token // sixteen * np.uint64(shape[0]) + rows, token % sixteen
    token = rows + np.uint64(first_row)
    return token * np.uint64(shape[1] // 16) + k // sixteen, k % sixteen


def group_words(d, group, sub_draw):
    low, high = group & MASK32, group >> np.uint64(32)
    return np.stack(philox((low, high, d.tag | sub_draw, d.step), d.seed))


def element_draws(d, shape, token_operand, bits):
    group, place = place_in_groups(shape, token_operand, d.first_row)
    per_draw = {8: 16, 16: 8, 24: 4}[bits]
    per_word = per_draw // 4
    words = np.stack([group_words(d, group, s) for s in range(16 // per_draw)])
    sub_draw, inside = (place // np.uint64(per_draw)).astype(int), place % np.uint64(per_draw)
    at = np.indices(shape)
    word = words[sub_draw, (inside // np.uint64(per_word)).astype(int), at[0], at[1]]
    if bits == 24:
        return word >> np.uint64(8)
    shift = inside % np.uint64(per_word) * np.uint64(bits)
    return word >> shift & np.uint64((1 << bits) - 1)


# --- Hadamard transform ---

def fixed_signs():
    """128 bits: the vector of 16 of dev/NUMERICS.md 4, then Philox's of counter and key 0."""
    words = [int(w) for w in philox((0, 0, 0, 0), 0)]
    return [words[0] & 0xFFFF0000 | 0xD7E8] + words[1:]


def step_signs(d):
    return [int(w) for w in philox((0, 0, 0x83000000 | d.tag >> 4, d.step), d.seed)]


def hadamard(v, size, signs, d):
    words = {"fixed": fixed_signs, "none": lambda: [0] * 4, "step": lambda: step_signs(d)}[signs]()
    flip = np.array([words[i // 32] >> (i % 32) & 1 for i in range(size)], bool)
    groups = v.reshape(-1, size)
    groups = np.where(flip, -groups, groups)
    stride = 1
    while stride < size:
        pairs = groups.reshape(len(groups), -1, 2, stride)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        groups = np.stack([a + b, a - b], axis=2).reshape(len(groups), size)
        stride *= 2
    return bf16(groups * F32(1 / np.sqrt(np.float64(size)))).reshape(v.shape)


# --- block scales ---

def pairwise(x):
    """Sum along the last dimension, neighbours first."""
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return x


def block_sum(blocks, square):
    """One sum a block of (rows, blocks, elements), of a square tile over its rows' sums, which are
    pairwise too; shape (rows, blocks, 1)."""
    sums = pairwise(blocks)
    if not square:
        return sums
    size = blocks.shape[-1]
    tiles = sums[..., 0].reshape(-1, size, sums.shape[1])
    total = pairwise(np.moveaxis(tiles, 1, -1))
    return np.repeat(total[..., 0], size, axis=0)[..., None]


def block_max(blocks, square):
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    if not square:
        return largest
    size = blocks.shape[-1]
    tiles = largest[..., 0].reshape(-1, size, largest.shape[1]).max(axis=1)
    return np.repeat(tiles, size, axis=0)[..., None]


class Scaling:
    """One operand's formulas: c the cell, m_t the tensor's maximum (0 where there is no scale)."""

    def __init__(self, c, m_t):
        self.c = c
        self.E = F32(FORMATS[c.elem].max)
        self.T = F32(c.top_scale or (FORMATS[c.scale].max if c.scale in FORMATS else 1))
        self.ET = self.E * self.T
        self.m_t = F32(m_t)
        has_scale = c.amax != "none" and self.m_t != 0
        self.S_enc = min(self.ET / self.m_t, FLT_MAX) if has_scale else F32(1)
        self.S_dec = F32(1) / self.S_enc

    def number(self, s):
        """The scale format's number nearest to s, with what stands for zero."""
        scale = nearest(np.minimum(s, FLT_MAX), self.c.scale)
        substitute = {"keep": F32(0), "one": F32(1), "least": least(self.c.scale)}
        return np.where(scale == 0, substitute[self.c.zero_scale], scale)

    def multiplier(self, scale):
        return np.minimum(F32(1) / (scale * self.S_dec), FLT_MAX)

    def nearest(self, m_b):
        if self.c.arithmetic == 2:
            s = m_b * (self.S_enc * (F32(1) / self.E))
        else:
            s = m_b / self.E * self.S_enc
        if self.c.headroom:
            s = s * F32(17 / 16)
        scale = self.number(s)
        return scale, self.multiplier(scale)

    def f32(self, m_b):
        zero = m_b == 0
        scale = np.where(zero, F32(1), m_b / self.E)
        return scale, np.where(zero, F32(1), np.minimum(self.E / m_b, FLT_MAX))

    def outer(self, m_b, m_o):
        o = m_o / self.T / self.E
        o = np.where(o == 0, F32(1), o)
        scale = self.number(m_b / o / self.E)
        return scale, np.minimum(F32(1) / (scale * o), FLT_MAX), o

    def power(self, m_b, blocks):
        rule = self.c.scale_rule
        e_max = int(np.floor(np.log2(self.E)))
        if rule == "floor":
            code = exponent_field(m_b) - e_max
        elif rule == "even":
            code = exponent_field((m_b.view(np.uint32) + np.uint32(0x200000)).view(F32)) - e_max
        elif rule == "ceil":
            s = m_b * (F32(1) / self.E)
            field, mantissa = exponent_field(s), s.view(np.uint32) & np.uint32(0x7FFFFF)
            code = field + (mantissa > np.where(field == 0, 0x400000, 0))
        else:
            code = exponent_field(quest(blocks))
        code = np.clip(code, *POWER_CODES[self.c.elem])
        scale = np.ldexp(F32(1), code - 127).astype(F32)
        mult = np.ldexp(F32(0.75 if self.c.headroom else 1), 127 - code).astype(F32)
        return scale, mult


def exponent_field(x):
    return (x.view(np.uint32) >> np.uint32(23)).astype(np.int64) & 0xFF


def quest(blocks):
    count = F32(blocks.shape[-1])
    mean = pairwise(blocks) / count
    difference = blocks - mean
    std = np.sqrt(pairwise(difference * difference) / count)
    return F32(2.92247856 / 6) * std + F32(1e-8)


# --- a cell ---

@dataclasses.dataclass
class Made:
    """An operand as made: arrays (rows, k), the contraction last."""
    values: np.ndarray        # decoded, without the tensor's scale
    elements: np.ndarray
    scales: np.ndarray        # one number an element; None without blocks
    amax: object              # in use; None where the tensor has no scale
    dequant_div: np.float32
    keep: np.ndarray          # |y| < E


def round_elements(c, y, draws, token_operand):
    if c.rounding == "stochastic":
        bits = element_draws(draws, y.shape, token_operand, c.dither_bits)
        return lambda y: stochastic(y, c.elem, bits, c.dither_bits)
    if c.rounding == "away":
        return lambda y: nearest_away(y, c.elem)
    return lambda y: nearest(y, c.elem)


def transformed(c, x, token_operand, draws):
    v = np.ascontiguousarray(x.T if token_operand else x)
    return hadamard(v, c.hadamard, c.signs, draws) if c.hadamard else v


def make(c, x, token_operand, draws, amax=None):
    """The operand that cell c makes of tensor x; amax: the maximum in use, where it is not x's."""
    v = transformed(c, x, token_operand, draws)
    m_t = np.abs(v).max() if amax is None else F32(amax)
    rounded = round_elements(c, v, draws, token_operand)
    with np.errstate(all="ignore"):
        if not c.block:
            made = make_whole(c, v, m_t, rounded)
        else:
            made = make_blocks(c, v, m_t, rounded, token_operand, draws)
    made.amax = None if c.amax == "none" else m_t
    return made


def make_whole(c, v, m_t, rounded):
    E = F32(FORMATS[c.elem].max)
    usable = m_t != 0 and np.isfinite(m_t)
    y = v * (min(E / m_t, FLT_MAX) if usable else F32(1))
    q = rounded(y)
    return Made(q, q, None, None, E, np.abs(y) < E)


def round_up(count, multiple):
    return -(-count // multiple) * multiple


def padded(x, rows, k):
    return np.pad(x, ((0, rows - x.shape[0]), (0, k - x.shape[1])))


def make_blocks(c, v, m_t, rounded, token_operand, draws):
    """Elements that a block at the edge lacks are zeros."""
    s = Scaling(c, m_t)
    square, span = c.tile == "square", c.outer or c.block
    rows = round_up(v.shape[0], c.block if square else 1)
    k = round_up(v.shape[1], span)
    blocks = padded(v, rows, k).reshape(rows, -1, c.block)
    m_b = block_max(blocks, square)

    def cropped(a):
        return np.broadcast_to(a, blocks.shape).reshape(rows, k)[: v.shape[0], : v.shape[1]]

    def quantized(y):
        return padded(rounded(cropped(y)), rows, k).reshape(blocks.shape)

    div, o = (F32(1) if c.amax == "none" else s.ET), F32(1)
    if c.select != "none":
        scale, y, q = select(s, blocks, m_b, square, quantized)
    elif c.rounding == "eden":
        first = place_in_groups(v.shape, token_operand, draws.first_row)[0][:, :: c.block]
        scale, y, q, div = eden(s, blocks, m_b, group_words(draws, first, 0)[0][..., None])
    elif c.scale_rule == "encode":
        scale, y, q = encode(s, blocks, m_b, quantized)
    else:
        scale, mult, o = block_scale(s, blocks, m_b)
        if c.scale_rule == "floor" and c.headroom:
            div = F32(0.75)
        y = blocks * mult
        q = quantized(y)
    values = q / scale if c.scale_rule == "encode" else q * scale * o
    return Made(cropped(values), cropped(q), cropped(scale), None, div, cropped(np.abs(y) < s.E))


def block_scale(s, blocks, m_b):
    """Of the rules that only multiply: scale, multiplier, and the outer scale or 1."""
    c = s.c
    if c.outer:
        spans = blocks.reshape(len(blocks), -1, c.outer)
        m_o = np.repeat(block_max(spans, False), c.outer // c.block, axis=1)
        return s.outer(m_b, m_o)
    if c.scale == "f32":
        return *s.f32(m_b), F32(1)
    if c.scale == "e8m0":
        return *s.power(m_b, blocks), F32(1)
    return *s.nearest(m_b), F32(1)


def select(s, blocks, m_b, square, quantized):
    """Four over six: the better of two block scales; scale, y and q of it."""
    base = m_b / s.E * s.S_enc
    candidates = []
    for wanted in (base, F32(1.5) * base):
        scale = s.number(wanted)
        y = blocks * s.multiplier(scale)
        q = quantized(y)
        e = q * scale * s.m_t / s.ET - blocks
        e = e * e if s.c.select == "mse" else np.abs(e)
        candidates.append((scale, y, q, block_sum(e, square)))
    six, four = candidates
    better = four[3] < six[3]
    return tuple(np.where(better, four[i], six[i]) for i in range(3))


def encode(s, blocks, m_b, quantized):
    """The multiplier of the elements is what is rounded; m, y and q."""
    g = s.m_t / s.ET if s.m_t != 0 else F32(1)
    m = nearest(np.minimum(s.E / (m_b / g), FLT_MAX), s.c.scale)
    m = np.where((m == 0) | (m_b == 0), F32(1), m)
    y = blocks / g * m
    return m, y, quantized(y)


def eden(s, blocks, m_b, words):
    """MS-EDEN: corrected scale, y, q and the operand's divisor."""
    u = F32(6 / (17 / 16 * 0.93))
    div = F32(256) * u
    g = s.m_t / div if s.m_t != 0 else F32(1)
    first = s.number(m_b / (g * u))
    y = blocks * np.minimum(F32(1) / (first * g), FLT_MAX)
    q = nearest(y, s.c.elem)
    r = q * first * g
    divisor = pairwise(blocks * r)
    S = np.where(divisor > 0, pairwise(blocks * blocks) / divisor, F32(1))
    wanted = S * first
    drawn = stochastic(wanted, "e4m3", words & np.uint64(0xFFFF), 16)
    scale = np.where(wanted >= F32(2.0**-6), drawn, nearest(wanted, "e4m3"))
    return scale, y, q, div


def values_again(made):
    """The elements that an operand of source requantized is made from: (rows, k)."""
    decode = F32(1) / made.dequant_div
    if made.amax is not None:
        decode = made.amax * decode
    return bf16(made.values * decode)


# --- as stored ---

def bf16_bits(x):
    return (x.astype(F32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def e2m1_codes(q):
    index = np.searchsorted(E2M1_GRID, np.abs(q))
    return (index | np.signbit(q).astype(int) << 3).astype(np.uint8)


def fp8_codes(q, name):
    """Codes of numbers of E4M3 or E5M2."""
    f = FORMATS[name]
    units, step = grid_place(q, name)
    bias = 1 - f.min_exponent
    field = np.frexp(step)[1] - 1 + f.mantissa_bits + bias   # 1 for subnormals too
    code = units.astype(int) + ((field - 1) << f.mantissa_bits)
    return (code | np.signbit(q).astype(int) << 7).astype(np.uint8)


def packed_codes(made, elem):
    if elem != "e2m1":
        return fp8_codes(made.elements, elem)
    codes = e2m1_codes(made.elements)
    return codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)


def tiled_scales(made, block):
    """Codes of E4M3 block scales in tiles of 128 x 4, padding 0."""
    codes = fp8_codes(np.ascontiguousarray(made.scales[:, ::block]), "e4m3")
    rows, cols = -(-codes.shape[0] // 128) * 128, -(-codes.shape[1] // 4) * 4
    r, c = np.indices(codes.shape)
    out = np.zeros(rows * cols, np.uint8)
    out[((r // 128 * (cols // 4) + c // 4) * 32 + r % 32) * 16 + r % 128 // 32 * 4 + c % 4] = codes
    return out


def mask_bytes(keep):
    return np.packbits(keep, axis=1, bitorder="little")
