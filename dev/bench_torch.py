#!/usr/bin/env python3
"""
bench_torch -- how fast PyTorch trains the shapes of scripts/bench_h200.sh on this machine: the
other side of its ratios. Needs torch. Prints one JSON object.

    python dev/bench_torch.py 124M --micro 64 [--steps 5] [--seconds 60] [--compile model]

What is measured is a trainer as one would write it today: torch.compile, FP32 parameters under
bfloat16 autocast, a residual stream in bfloat16, scaled_dot_product_attention (flash attention),
the head tied where the model has it so, gradients accumulated in FP32 over micro-batches, their
norm clipped to 1, fused AdamW. Attention's backward is PyTorch's default and not reproducible,
tokens are random and already on the device, and nothing is logged: each favours PyTorch. It trains
nothing worth keeping.

tokens_per_s is that of the median step. --compile block compiles one block, for all of them, and
the head by themselves: seconds instead of minutes for deep models, at some cost in fusion.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    layers: int
    dim: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int  # padded to a multiple of 128
    seq_len: int
    llama: bool = False  # RMSNorm, rotary positions, SwiGLU, no biases, a head of its own


def gpt2(layers, dim, heads):
    return Shape(layers, dim, heads, heads, 4 * dim, 50304, 1024)


SHAPES = {
    "tiny": Shape(2, 64, 2, 2, 256, 512, 64),
    "124M": gpt2(12, 768, 12),
    "350M": gpt2(24, 1024, 16),
    "774M": gpt2(36, 1280, 20),
    "1558M": gpt2(48, 1600, 25),
    "llama-1b": Shape(20, 2048, 16, 8, 5632, 32768, 2048, llama=True),
}
WARM_UP = 2  # steps, of two micro-batches: the first compiles, the second has optimizer state


def rotate(x, cosines, sines):
    """Rotary positions of x (B,heads,T,head_dim), pairs half a head apart."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cosines - b * sines, a * sines + b * cosines), dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = s.heads, s.kv_heads, s.dim // s.heads
        self.qkv = nn.Linear(s.dim, (s.heads + 2 * s.kv_heads) * self.head_dim, bias=not s.llama)
        self.proj = nn.Linear(s.dim, s.dim, bias=not s.llama)

    def forward(self, x, angles):
        batch, length, _ = x.shape
        qkv = self.qkv(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if angles is not None:
            q, k = rotate(q, *angles), rotate(k, *angles)
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads
        )
        return self.proj(y.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.llama = s.llama
        self.up = nn.Linear(s.dim, (2 if s.llama else 1) * s.ffn, bias=not s.llama)
        self.down = nn.Linear(s.ffn, s.dim, bias=not s.llama)

    def forward(self, x):
        h = self.up(x)
        if not self.llama:
            return self.down(F.gelu(h, approximate="tanh"))
        gate, up = h.chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        norm = nn.RMSNorm if s.llama else nn.LayerNorm
        self.attn_norm, self.attn = norm(s.dim, eps=1e-5), Attention(s)
        self.mlp_norm, self.mlp = norm(s.dim, eps=1e-5), Mlp(s)

    def forward(self, x, angles):
        x = x + self.attn(self.attn_norm(x), angles)
        return x + self.mlp(self.mlp_norm(x))


class Head(nn.Module):
    """Final norm, logits and their mean cross-entropy."""

    def __init__(self, s):
        super().__init__()
        self.norm = nn.RMSNorm(s.dim, eps=1e-5) if s.llama else nn.LayerNorm(s.dim, eps=1e-5)
        self.out = nn.Linear(s.dim, s.vocab, bias=False)

    def forward(self, x, targets):
        logits = self.out(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class Model(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embed = nn.Embedding(s.vocab, s.dim)
        self.positions = None if s.llama else nn.Embedding(s.seq_len, s.dim)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.head = Head(s)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if not s.llama:
            self.head.out.weight = self.embed.weight
        pairs = torch.arange(0, s.dim // s.heads, 2) / (s.dim // s.heads)
        angle = torch.outer(torch.arange(s.seq_len).float(), 10000.0**-pairs)
        self.register_buffer("cosines", angle.cos())
        self.register_buffer("sines", angle.sin())

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        angles = (self.cosines, self.sines)
        if self.positions is not None:
            x, angles = x + self.positions.weight, None
        x = x.bfloat16()  # autocast would leave the residual stream in FP32
        for block in self.blocks:
            x = block(x, angles)
        return self.head(x, targets)


def make_optimizer(model):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)


class Trainer:
    def __init__(self, args, shape):
        self.device = torch.device(args.device)
        with self.device:
            self.model = Model(shape)
            ids = torch.randint(shape.vocab, (args.micro, shape.seq_len + 1))
        self.tokens, self.targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        self.optimizer = make_optimizer(self.model)
        self.accumulation = args.total_tokens // (args.micro * shape.seq_len)
        self.step_tokens = self.accumulation * args.micro * shape.seq_len
        self.forward = self.model
        if args.compile == "model":
            self.forward = torch.compile(self.model, dynamic=False)
        elif args.compile == "block":
            for module in [*self.model.blocks, self.model.head]:
                module.compile(dynamic=False)

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def step(self, accumulation):
        loss_sum = 0.0
        for _ in range(accumulation):
            with torch.autocast(self.device.type, dtype=torch.bfloat16):
                loss = self.forward(self.tokens, self.targets) / accumulation
            loss.backward()
            loss_sum = loss_sum + loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss_sum

    def timed_step(self, accumulation):
        """Seconds and loss of one whole step."""
        self.synchronize()
        started = time.perf_counter()
        loss = self.step(accumulation).item()
        self.synchronize()
        return time.perf_counter() - started, loss


def note(text):
    print(text, file=sys.stderr, flush=True)


def measure(args, shape):
    """Steps until there are enough, or until the next one would end after args.seconds."""
    torch.manual_seed(1)
    began = time.perf_counter()
    trainer = Trainer(args, shape)
    for i in range(WARM_UP):
        seconds, loss = trainer.timed_step(min(2, trainer.accumulation))
        note(f"warm-up {i + 1}: {seconds:.1f} s, loss {loss:.4f}")
    compiled = time.perf_counter() - began
    times = []
    while len(times) < args.steps:
        seconds, loss = trainer.timed_step(trainer.accumulation)
        times.append(seconds)
        note(f"step {len(times)}: {1000 * seconds:.1f} ms, loss {loss:.4f}")
        if time.perf_counter() - began + seconds > args.seconds:
            break
    median = statistics.median(times)
    return {
        "size": args.size,
        "micro": args.micro,
        "seq_len": shape.seq_len,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "step_tokens": trainer.step_tokens,
        "steps": len(times),
        "step_ms": round(1000 * median, 2),
        "tokens_per_s": round(trainer.step_tokens / median, 1),
        "loss": round(loss, 4),
        "compile": args.compile,
        "compile_s": round(compiled, 1),
    }


def parse_args():
    p = argparse.ArgumentParser(description="Time PyTorch's training steps.")
    p.add_argument("size", choices=SHAPES)
    p.add_argument("--micro", type=int, required=True, help="sequences a micro-batch")
    p.add_argument("--total-tokens", type=int, default=524288, help="tokens a step")
    p.add_argument("--steps", type=int, default=5, help="timed steps at most, at least one")
    p.add_argument("--seconds", type=float, default=600, help="of all, compiling included")
    p.add_argument("--compile", choices=("model", "block", "none"), default="model")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = p.parse_args()
    shape = SHAPES[args.size]
    if args.total_tokens % (args.micro * shape.seq_len):
        p.error(f"--total-tokens {args.total_tokens} is no multiple of --micro x {shape.seq_len}")
    return args, shape


def main():
    args, shape = parse_args()
    torch.set_float32_matmul_precision("high")
    result = measure(args, shape)
    on_gpu = args.device == "cuda"
    result["peak_memory_bytes"] = torch.cuda.max_memory_allocated() if on_gpu else None
    result["torch"] = torch.__version__
    result["device"] = torch.cuda.get_device_name() if on_gpu else args.device
    print(json.dumps(result))


if __name__ == "__main__":
    main()
