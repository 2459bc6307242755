"""
oracle_models -- what the model fixtures are computed with: four tiny decoders, twice.

`loss_jax` is written for automatic differentiation: batched einsums, float32. `loss_loops` is the
same mathematics written a second time, by other means: NumPy, float64, one sequence, one head and
one position at a time, complex numbers for RoPE, no shared helper. A gradient of the first that
agrees with central differences of the second vouches for both.

Shares nothing with the C program but the parameter names and the shapes, which are part of its file
format. It is no training framework and no reference for low precision: all is f32 or f64.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_default_matmul_precision", "highest")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The `model` section of the program's config; all fields explicit, nothing derived."""

    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    norm: str  # layernorm | rmsnorm
    norm_eps: float
    act: str  # gelu (tanh form) | swiglu | relu2
    pos: str  # learned | rope | none
    rope_theta: float
    bias: bool
    tied: bool


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Twenty steps that pass through warm-up, decay and the floor of the cosine."""

    steps: int = 20
    batch: int = 2
    seq_len: int = 16
    lr: float = 1e-3
    warmup_steps: int = 5
    final_frac: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    grad_clip: float = 1.0


# The vocabulary is no multiple of 128, so that padding of the head shows. All but GPT-2 have fewer
# kv_heads than heads, so that the mapping of query heads shows; in the last model heads * head_dim
# is not dim.
MODELS = {
    "gpt2": ModelConfig(
        layers=2,
        dim=32,
        heads=2,
        kv_heads=2,
        head_dim=16,
        ffn=128,
        vocab=61,
        norm="layernorm",
        norm_eps=1e-5,
        act="gelu",
        pos="learned",
        rope_theta=10000.0,
        bias=True,
        tied=True,
    ),
    "llama": ModelConfig(
        layers=2,
        dim=32,
        heads=4,
        kv_heads=2,
        head_dim=8,
        ffn=64,
        vocab=61,
        norm="rmsnorm",
        norm_eps=1e-5,
        act="swiglu",
        pos="rope",
        rope_theta=10000.0,
        bias=False,
        tied=False,
    ),
    "nemotron": ModelConfig(
        layers=2,
        dim=32,
        heads=4,
        kv_heads=2,
        head_dim=8,
        ffn=96,
        vocab=61,
        norm="rmsnorm",
        norm_eps=1e-5,
        act="relu2",
        pos="none",
        rope_theta=10000.0,
        bias=False,
        tied=False,
    ),
    "nemotron_rope": ModelConfig(
        layers=2,
        dim=32,
        heads=4,
        kv_heads=2,
        head_dim=16,
        ffn=96,
        vocab=61,
        norm="rmsnorm",
        norm_eps=1e-5,
        act="relu2",
        pos="rope",
        rope_theta=10000.0,
        bias=False,
        tied=False,
    ),
}


def parameter_shapes(c, seq_len):
    """Name -> shape of every parameter; matrices are (out, in)."""
    shapes = {"embed.tokens.weight": (c.vocab, c.dim)}
    if c.pos == "learned":
        shapes["embed.positions.weight"] = (seq_len, c.dim)
    qkv_rows = (c.heads + 2 * c.kv_heads) * c.head_dim
    up_rows = 2 * c.ffn if c.act == "swiglu" else c.ffn
    for i in range(c.layers):
        shapes.update(norm_shapes(c, f"blocks.{i}.attn_norm"))
        shapes.update(linear_shapes(c, f"blocks.{i}.attn.qkv", qkv_rows, c.dim))
        shapes.update(linear_shapes(c, f"blocks.{i}.attn.proj", c.dim, c.heads * c.head_dim))
        shapes.update(norm_shapes(c, f"blocks.{i}.mlp_norm"))
        shapes.update(linear_shapes(c, f"blocks.{i}.mlp.up", up_rows, c.dim))
        shapes.update(linear_shapes(c, f"blocks.{i}.mlp.down", c.dim, c.ffn))
    shapes.update(norm_shapes(c, "final_norm"))
    if not c.tied:
        shapes["head.weight"] = (c.vocab, c.dim)
    return shapes


def norm_shapes(c, name):
    shapes = {name + ".weight": (c.dim,)}
    if c.norm == "layernorm":
        shapes[name + ".bias"] = (c.dim,)
    return shapes


def linear_shapes(c, name, rows, cols):
    shapes = {name + ".weight": (rows, cols)}
    if c.bias:
        shapes[name + ".bias"] = (rows,)
    return shapes


def initial_weights(c, seq_len, seed):
    """Not an init anyone would train with: every tensor, biases too, is far from constant, so that
    none can be left out unnoticed. RandomState, because NumPy promises to keep its stream."""
    draw = np.random.RandomState(seed)
    weights = {}
    for name, shape in parameter_shapes(c, seq_len).items():
        std = 0.2 if len(shape) == 2 else 0.1
        mean = 1.0 if name.endswith("norm.weight") else 0.0
        weights[name] = (mean + std * draw.standard_normal(shape)).astype(np.float32)
    return weights


def token_batches(c, t, seed):
    """(steps, batch, seq_len + 1) int32: consecutive windows of one stream, each sharing its last
    token with the next window's first, as the data loader cuts a shard. Four of five tokens follow
    from the one before, so there is something to learn."""
    draw = np.random.RandomState(seed)
    stream = [int(draw.randint(c.vocab))]
    for _ in range(t.steps * t.batch * t.seq_len):
        follows = draw.random_sample() < 0.8
        stream.append((5 * stream[-1] + 7) % c.vocab if follows else int(draw.randint(c.vocab)))
    starts = np.arange(t.steps * t.batch) * t.seq_len
    windows = np.asarray(stream, np.int32)[starts[:, None] + np.arange(t.seq_len + 1)]
    return windows.reshape(t.steps, t.batch, t.seq_len + 1)


# --- First writing: JAX, batched


def loss_jax(c, w, tokens):
    """Mean cross-entropy in nats over all batch * seq_len targets; tokens (B, T+1)."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = w["embed.tokens.weight"][inputs]
    if c.pos == "learned":
        x = x + w["embed.positions.weight"][: inputs.shape[1]]
    for i in range(c.layers):
        x = x + attention_jax(c, w, f"blocks.{i}.attn", norm_jax(c, w, f"blocks.{i}.attn_norm", x))
        x = x + mlp_jax(c, w, f"blocks.{i}.mlp", norm_jax(c, w, f"blocks.{i}.mlp_norm", x))
    head = w["embed.tokens.weight"] if c.tied else w["head.weight"]
    logits = norm_jax(c, w, "final_norm", x) @ head.T
    log_p = jax.nn.log_softmax(logits, axis=-1)
    return -jnp.mean(jnp.take_along_axis(log_p, targets[..., None], axis=-1))


def norm_jax(c, w, name, x):
    if c.norm == "layernorm":
        centred = x - x.mean(-1, keepdims=True)
        rstd = jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + c.norm_eps)
        return centred * rstd * w[name + ".weight"] + w[name + ".bias"]
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + c.norm_eps) * w[name + ".weight"]


def linear_jax(c, w, name, x):
    y = x @ w[name + ".weight"].T
    return y + w[name + ".bias"] if c.bias else y


def rope_jax(c, x):
    """x (B, H, T, head_dim); element i turns with element i + head_dim/2."""
    half = c.head_dim // 2
    frequency = c.rope_theta ** (-2.0 * np.arange(half) / c.head_dim)
    angle = jnp.asarray(np.arange(x.shape[2])[:, None] * frequency, x.dtype)
    a, b = x[..., :half], x[..., half:]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attention_jax(c, w, name, x):
    B, T, _ = x.shape
    qkv = linear_jax(c, w, name + ".qkv", x)
    qkv = qkv.reshape(B, T, c.heads + 2 * c.kv_heads, c.head_dim).swapaxes(1, 2)
    q, k, v = jnp.split(qkv, [c.heads, c.heads + c.kv_heads], axis=1)
    if c.pos == "rope":
        q, k = rope_jax(c, q), rope_jax(c, k)
    k, v = (jnp.repeat(y, c.heads // c.kv_heads, axis=1) for y in (k, v))
    scores = jnp.einsum("bhtd,bhsd->bhts", q, k) / math.sqrt(c.head_dim)
    scores = jnp.where(np.tril(np.ones((T, T), bool)), scores, -jnp.inf)
    out = jnp.einsum("bhts,bhsd->bthd", jax.nn.softmax(scores, axis=-1), v)
    return linear_jax(c, w, name + ".proj", out.reshape(B, T, c.heads * c.head_dim))


def mlp_jax(c, w, name, x):
    h = linear_jax(c, w, name + ".up", x)
    if c.act == "gelu":
        h = jax.nn.gelu(h, approximate=True)
    elif c.act == "swiglu":
        h = jax.nn.silu(h[..., : c.ffn]) * h[..., c.ffn :]
    else:
        h = jnp.maximum(h, 0) ** 2
    return linear_jax(c, w, name + ".down", h)


# --- Second writing: NumPy, float64, loops


def loss_loops(c, w, tokens):
    """As loss_jax; w holds float64 arrays, tokens (B, T+1)."""
    nats = [nats_of_sequence(c, w, sequence) for sequence in tokens]
    return sum(nats) / (tokens.shape[0] * (tokens.shape[1] - 1))


def nats_of_sequence(c, w, sequence):
    x = np.stack([w["embed.tokens.weight"][token] for token in sequence[:-1]])
    if c.pos == "learned":
        x = np.stack([row + w["embed.positions.weight"][t] for t, row in enumerate(x)])
    for i in range(c.layers):
        normed = norm_loops(c, w, f"blocks.{i}.attn_norm", x)
        x = x + attention_loops(c, w, f"blocks.{i}.attn", normed)
        normed = norm_loops(c, w, f"blocks.{i}.mlp_norm", x)
        x = x + mlp_loops(c, w, f"blocks.{i}.mlp", normed)
    head = w["embed.tokens.weight" if c.tied else "head.weight"]
    nats = 0.0
    for row, target in zip(norm_loops(c, w, "final_norm", x), sequence[1:]):
        logits = head @ row
        nats += np.log(np.sum(np.exp(logits - logits[target])))
    return nats


def norm_loops(c, w, name, x):
    rows = []
    for row in x:
        if c.norm == "layernorm":
            normed = (row - np.mean(row)) / np.sqrt(np.var(row) + c.norm_eps)
            rows.append(normed * w[name + ".weight"] + w[name + ".bias"])
        else:
            normed = row / np.sqrt(np.dot(row, row) / c.dim + c.norm_eps)
            rows.append(normed * w[name + ".weight"])
    return np.stack(rows)


def linear_loops(c, w, name, x):
    bias = w[name + ".bias"] if c.bias else 0.0
    return np.stack([w[name + ".weight"] @ row + bias for row in x])


def turned(c, head, position):
    """One head's vector: elements i and i + head_dim/2 are the parts of a complex number."""
    half = c.head_dim // 2
    z = np.array([complex(head[i], head[i + half]) for i in range(half)])
    z *= np.array(
        [np.exp(1j * position / c.rope_theta ** (2 * i / c.head_dim)) for i in range(half)]
    )
    return np.concatenate([z.real, z.imag])


def attention_loops(c, w, name, x):
    qkv = linear_loops(c, w, name + ".qkv", x)
    size = c.head_dim
    out = np.zeros((len(x), c.heads * size))
    for h in range(c.heads):
        kv = h // (c.heads // c.kv_heads)
        q_at, k_at, v_at = h * size, (c.heads + kv) * size, (c.heads + c.kv_heads + kv) * size
        q, k, v = (qkv[:, at : at + size] for at in (q_at, k_at, v_at))
        if c.pos == "rope":
            q, k = (np.stack([turned(c, row, t) for t, row in enumerate(y)]) for y in (q, k))
        for t in range(len(x)):
            weight = np.exp(k[: t + 1] @ q[t] / np.sqrt(size))
            out[t, h * size : (h + 1) * size] = weight @ v[: t + 1] / np.sum(weight)
    return linear_loops(c, w, name + ".proj", out)


def mlp_loops(c, w, name, x):
    h = linear_loops(c, w, name + ".up", x)
    if c.act == "gelu":
        h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
    elif c.act == "swiglu":
        gate, up = h[:, : c.ffn], h[:, c.ffn :]
        h = gate / (1 + np.exp(-gate)) * up
    else:
        h = np.where(h > 0, h * h, 0.0)
    return linear_loops(c, w, name + ".down", h)


# --- Training


def learning_rate(t, step):
    """Warm-up reaches lr at its last step; the cosine's last step is exactly final_frac * lr."""
    if step < t.warmup_steps:
        return t.lr * (step + 1) / t.warmup_steps
    progress = (step - t.warmup_steps) / (t.steps - 1 - t.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return t.lr * (t.final_frac + (1 - t.final_frac) * cosine)


def adamw_step(t, step, weights, moments, grads, norm):
    """In place. Matrices decay, embeddings included; norms and biases do not. `norm` is the global
    norm of the gradients, which clipping scales down to grad_clip."""
    lr = learning_rate(t, step)
    scale = min(1.0, t.grad_clip / norm)
    for name, w in weights.items():
        g = grads[name] * np.float32(scale)
        m, v = moments[name]
        m[...] = t.beta1 * m + (1 - t.beta1) * g
        v[...] = t.beta2 * v + (1 - t.beta2) * g * g
        m_hat = m / (1 - t.beta1 ** (step + 1))
        v_hat = v / (1 - t.beta2 ** (step + 1))
        decay = t.weight_decay if w.ndim == 2 else 0.0
        w -= lr * (m_hat / (np.sqrt(v_hat) + t.eps) + decay * w)


def train(c, t, weights, batches):
    """Losses, global gradient norms before clipping, first gradients, and the trained weights."""
    loss_and_grads = jax.jit(jax.value_and_grad(functools.partial(loss_jax, c)))
    weights = {name: w.copy() for name, w in weights.items()}
    moments = {name: (np.zeros_like(w), np.zeros_like(w)) for name, w in weights.items()}
    losses, norms, first_grads = [], [], None
    for step, tokens in enumerate(batches):
        loss, grads = loss_and_grads(weights, tokens)
        grads = {name: np.asarray(g) for name, g in grads.items()}
        norm = math.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in grads.values()))
        first_grads = first_grads or grads
        losses.append(float(loss))
        norms.append(norm)
        adamw_step(t, step, weights, moments, grads, norm)
    return losses, norms, first_grads, weights
