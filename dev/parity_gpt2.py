#!/usr/bin/env python3
"""
parity_gpt2 -- trains a plain GPT-2 in PyTorch from the same weights and batches as a run of the
program, and compares the losses. Needs torch and numpy.

    python dev/parity_gpt2.py --weights CHECKPOINT/model.safetensors --data 'SHARDS/train-*.bin' \
        --micro 16 --total-tokens 524288 --steps 20 --lr 6e-4 --warmup-steps 700 \
        --total-steps 18865 --final-frac 0 --compare RUN/metrics.jsonl

The run must read its data in file order (data.shuffle=0) and start from those weights. Prints a
JSON object for each step, with the keys of metrics.jsonl; with --compare also the largest
differences and PASS or FAIL (exit status 1).

Precision as in the program's bf16 recipe: f32 masters, bf16 copies of them in every operation, bf16
residual stream and logits, cross-entropy in f32, gradients summed over micro-batches in f32. One
thing differs: autograd rounds the weight gradient of each micro-batch to bf16 before that sum.
It is a yardstick for one model, not a trainer: no resume, no validation, no dropout, one device.
"""

import argparse
import glob
import json
import math
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

SHARD_KINDS = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
SHARD_HEADER_BYTES = 1024


def load_weights(path):
    """The parameters of a safetensors file, f32; leaves out the gradients in a test fixture."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    weights = {}
    for name, entry in header.items():
        if name.startswith("grad.") or not name.endswith((".weight", ".bias")):
            continue
        if entry["dtype"] != "F32":
            sys.exit(f"{path}: {name} is {entry['dtype']}, expected F32 master weights")
        begin, end = entry["data_offsets"]
        flat = np.frombuffer(data[begin:end], "<f4").copy()
        weights[name] = torch.from_numpy(flat.reshape(entry["shape"]))
    return weights


class Windows:
    """Windows of shards in file order: seq_len + 1 tokens, stride seq_len, none across shards."""

    def __init__(self, pattern, seq_len):
        self.seq_len = seq_len
        paths = sorted(glob.glob(pattern))
        if not paths:
            sys.exit(f"{pattern}: no such file")
        self.shards = [self.open_shard(path) for path in paths]
        self.counts = [(len(shard) - 1) // seq_len for shard in self.shards]

    @staticmethod
    def open_shard(path):
        header = np.fromfile(path, "<i4", count=3)
        dtype = SHARD_KINDS.get(tuple(header[:2].tolist()))
        if dtype is None:
            sys.exit(f"{path}: magic and version {header[:2].tolist()} are none of an llm.c shard")
        shape = (int(header[2]),)
        return np.memmap(path, dtype, mode="r", offset=SHARD_HEADER_BYTES, shape=shape)

    def window(self, i):
        i %= sum(self.counts)
        for shard, count in zip(self.shards, self.counts):
            if i < count:
                return shard[i * self.seq_len : (i + 1) * self.seq_len + 1].astype(np.int64)
            i -= count

    def batch(self, first, count):
        """Inputs and targets, (count, seq_len) each."""
        tokens = torch.from_numpy(np.stack([self.window(first + i) for i in range(count)]))
        return tokens[:, :-1], tokens[:, 1:]


def gpt2_loss(masters, tokens, targets, args):
    """Mean cross-entropy in nats. tokens, targets: (B, T)."""
    w = {name: master.to(args.dtype) for name, master in masters.items()}

    def norm(name, x):
        return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], args.norm_eps)

    def linear(name, x):
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    # Gathered from the masters and then rounded: the same values as rows of the rounded table, but
    # the tied table's two gradients meet in f32.
    x = F.embedding(tokens, masters["embed.tokens.weight"]).to(args.dtype)
    B, T, C = x.shape
    x = x + w["embed.positions.weight"][:T]
    block = 0
    while f"blocks.{block}.attn.qkv.weight" in w:
        name = f"blocks.{block}"
        qkv = linear(name + ".attn.qkv", norm(name + ".attn_norm", x))
        q, k, v = qkv.view(B, T, 3, C // args.head_dim, args.head_dim).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(name + ".attn.proj", y.transpose(1, 2).reshape(B, T, C))
        h = F.gelu(linear(name + ".mlp.up", norm(name + ".mlp_norm", x)), approximate="tanh")
        x = x + linear(name + ".mlp.down", h)
        block += 1
    logits = norm("final_norm", x) @ w["embed.tokens.weight"].T
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def learning_rate(step, args):
    """Warm-up reaches lr at its last step; the last of total_steps is at final_frac * lr."""
    if step < args.warmup_steps:
        return args.lr * (step + 1) / args.warmup_steps
    progress = (step - args.warmup_steps) / max(1, args.total_steps - 1 - args.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return args.lr * (args.final_frac + (1 - args.final_frac) * cosine)


def make_optimizer(masters, args):
    matrices = [w for w in masters.values() if w.dim() == 2]
    vectors = [w for w in masters.values() if w.dim() != 2]
    groups = [
        {"params": matrices, "weight_decay": args.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=args.lr, betas=tuple(args.betas), eps=args.eps)


def train(args):
    """Yields one record a step."""
    device = torch.device(args.device)
    masters = {k: w.to(device).requires_grad_() for k, w in load_weights(args.weights).items()}
    seq_len = args.seq_len or masters["embed.positions.weight"].shape[0]
    windows = Windows(args.data, seq_len)
    optimizer = make_optimizer(masters, args)
    sequences = args.total_tokens // seq_len
    if sequences % args.micro or args.total_tokens % seq_len:
        sys.exit(f"--total-tokens {args.total_tokens} is no multiple of {args.micro} x {seq_len}")
    for step in range(args.steps):
        loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        for first in range(step * sequences, (step + 1) * sequences, args.micro):
            tokens, targets = (t.to(device) for t in windows.batch(first, args.micro))
            loss = gpt2_loss(masters, tokens, targets, args)
            (loss * (args.micro / sequences)).backward()
            loss_sum += loss.detach().double() * (args.micro / sequences)
        grads = [w.grad for w in masters.values()]
        norm = math.sqrt(sum(g.double().square().sum().item() for g in grads))
        for g in grads:
            g.mul_(min(1.0, args.grad_clip / norm))
        lr = learning_rate(step, args)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad()
        yield {"step": step, "train_loss": loss_sum.item(), "grad_norm": norm, "lr": lr}


def load_metrics(path, steps):
    """The first `steps` training records; a step written again after a resume counts once."""
    by_step = {}
    with open(path) as file:
        for line in file:
            record = json.loads(line)
            if record.get("train_loss") is not None:
                by_step[record["step"]] = record
    first = min(by_step, default=0)
    missing = [first + s for s in range(steps) if first + s not in by_step]
    if missing:
        sys.exit(
            f"{path}: no train_loss for step {missing[0]}; {steps} steps from {first} are needed"
        )
    return [by_step[first + s] for s in range(steps)]


def compare(ours, theirs, tolerance):
    """Whether all losses agree; prints the largest differences."""
    losses = [abs(a["train_loss"] - b["train_loss"]) for a, b in zip(ours, theirs)]
    norms = [abs(a["grad_norm"] - b["grad_norm"]) / a["grad_norm"] for a, b in zip(ours, theirs)]
    ok = all(difference <= tolerance for difference in losses)
    at = int(np.argmax(losses))
    print(f"largest loss difference {losses[at]:.6f} nats at step {at}, tolerance {tolerance}")
    print(f"largest gradient norm difference {100 * max(norms):.3f} %")
    print("PASS" if ok else "FAIL")
    return ok


def parse_args():
    p = argparse.ArgumentParser(description="Train GPT-2 in PyTorch and compare with a run.")
    p.add_argument("--weights", required=True, help="safetensors with the initial f32 masters")
    p.add_argument("--data", required=True, help="glob of llm.c shards")
    p.add_argument("--compare", metavar="METRICS", help="metrics.jsonl of the run")
    p.add_argument("--tolerance", type=float, default=0.01, help="nats, default %(default)s")
    p.add_argument("--device", default="cuda")
    p.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    p.add_argument("--head-dim", type=int, default=64)
    p.add_argument("--norm-eps", type=float, default=1e-5)
    p.add_argument("--seq-len", type=int, help="default: rows of the position table")
    p.add_argument("--micro", type=int, default=16, help="sequences a micro-batch")
    p.add_argument("--total-tokens", type=int, default=524288, help="tokens a step")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--total-steps", type=int, help="length of the cosine, default --steps")
    p.add_argument("--warmup-steps", type=int, default=0)
    p.add_argument("--final-frac", type=float, default=0.0)
    p.add_argument("--lr", type=float, default=6e-4)
    p.add_argument("--betas", type=float, nargs=2, default=(0.9, 0.95))
    p.add_argument("--eps", type=float, default=1e-8)
    p.add_argument("--weight-decay", type=float, default=0.1)
    p.add_argument("--grad-clip", type=float, default=1.0)
    args = p.parse_args()
    args.dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[args.dtype]
    args.total_steps = args.total_steps or args.steps
    return args


def main():
    args = parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    theirs = load_metrics(args.compare, args.steps) if args.compare else None
    ours = []
    for record in train(args):
        ours.append(record)
        print(json.dumps(record), flush=True)
    return 0 if theirs is None or compare(ours, theirs, args.tolerance) else 1


if __name__ == "__main__":
    sys.exit(main())
