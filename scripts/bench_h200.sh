#!/usr/bin/env bash
# Speed of training one model size on one GPU, beside PyTorch's and what is aimed at: BF16, NVFP4
# emulated in all linears, FP8, BF16 without determinism (the last two where this build has them),
# and dev/bench_torch.py, at the same micro-batch and 524,288 tokens a step, in one call of less
# than 8 minutes. Appends a table to OUT/bench_SIZE.md. Builds first what has changed; variables of
# make (SM, CUDNN_FRONTEND) are taken from the environment.
# usage: scripts/bench_h200.sh SIZE [DATA] [OUT]
#   SIZE   124M, 350M, 774M, 1558M, llama-1b; tiny tries the script out
#   DATA   folder that data/prepare_text.py wrote with the GPT-2 tokenizer, default data/h200;
#          without train_*.bin there, and for llama-1b and tiny, whose vocabularies are smaller, a
#          shard of random tokens
#   OUT    default dev/results/DATE_h200
# Nothing is validated, sampled or saved: each run is killed after its last step. Of its steps the
# first 3 are not counted. Exit status: 0, 1 where the build or a run failed, 2 usage.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
export LC_ALL=C

limit=470   # seconds of the whole call
# Of each size: tokens of a step, sequences of a micro-batch, steps, seconds that a run may take;
# steps and seconds of PyTorch, which compiles first; keys of the shape.
total=524288 keys=(batch.seq_len=1024)
case ${1-} in
    124M)
        micro=64 steps=14 seconds=60 torch_steps=8 torch_seconds=150
        keys+=(model.preset=gpt2-124m) ;;
    350M)
        micro=32 steps=10 seconds=70 torch_steps=6 torch_seconds=200
        keys+=(model.preset=gpt2-350m) ;;
    774M)
        micro=16 steps=8 seconds=90 torch_steps=5 torch_seconds=140
        keys+=(model.preset=gpt2-774m) ;;
    1558M)
        micro=16 steps=6 seconds=110 torch_steps=3 torch_seconds=140
        keys+=(model.preset=gpt2-1558m) ;;
    llama-1b)
        micro=16 steps=8 seconds=90 torch_steps=5 torch_seconds=200
        keys=(batch.seq_len=2048 model.preset=nemotron-1.2b model.act=swiglu model.ffn=5632
            model.vocab=32768) ;;
    tiny)
        micro=2 steps=8 seconds=60 torch_steps=3 torch_seconds=170 total=512
        keys=(batch.seq_len=64 model.layers=2 model.dim=64 model.heads=2 model.vocab=512) ;;
    *) sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2 ;;
esac
size=$1 data=${2:-data/h200} out=${3:-dev/results/$(date +%F)_h200}
program=./train_gpt_nvfp4
failed=0
mkdir -p "$out" build/bench
work=$(mktemp -d "build/bench/$size.XXXXXX")
rows=$work/rows   # a line a run: name, what it left, MiB of the device's memory

say() { echo "bench_h200: $*"; }

# Whether there is time for a run; says so when there is none.
time_for() {   # NAME SECONDS
    [ $((SECONDS + $2)) -le $limit ] && return
    say "$1 left out: $SECONDS s are gone, it may take $2 s, and the call ends within $limit s"
    return 1
}

# 2^23 tokens at random, each below 256 times the mask plus one: an llm.c shard (data/README.md).
random_shard() {   # PATH MASK
    python3 - "$1" "$2" << 'PYTHON'
import random, struct, sys
count = 1 << 23
body = bytearray(random.Random(1).randbytes(2 * count))
body[1::2] = bytes(body[1::2]).translate(bytes(byte & int(sys.argv[2]) for byte in range(256)))
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<3i", 20240520, 1, count).ljust(1024, b"\0") + body)
PYTHON
}

choose_data() {
    local mask=127   # tokens below 32768
    pattern="$data/train_*.bin"
    case $size in
        tiny) mask=1 ;;
        llama-1b) ;;
        *) compgen -G "$pattern" > /dev/null && return ;;
    esac
    pattern=$work/train_000000.bin
    random_shard "$pattern" $mask || exit 1
    say "tokens are random"
}

# MiB that the device has given out; nothing where there is no GPU.
device_mib() {
    nvidia-smi --id=0 --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null
}

stamp() { while IFS= read -r line; do echo "$EPOCHREALTIME $line"; done; }

# Runs the program until it has done its steps or used its seconds. Memory is read in the steps
# that are not counted.
run_ours() {   # NAME KEY=VALUE...
    local name=$1 dir=$work/$1 started=$SECONDS pid mib peak=0 done=0
    shift
    time_for "$name" "$seconds" || return
    "$program" "${keys[@]}" batch.micro=$micro batch.total_tokens=$total "data.train=$pattern" \
        "log.dir=$dir" train.steps=100000 eval.every=0 ckpt.every=0 ckpt.resume=never "$@" \
        > >(stamp > "$dir.log") 2>&1 &
    pid=$!
    while kill -0 $pid 2>/dev/null && [ "$done" -lt "$steps" ] &&
        [ $((SECONDS - started)) -lt "$seconds" ]; do
        sleep 0.2
        done=$(grep -c train_loss "$dir/metrics.jsonl" 2>/dev/null)
        done=${done:-0}
        if [ "$done" -eq 1 ] || [ "$done" -eq 2 ]; then
            mib=$(device_mib)
            [ "${mib:-0}" -le "$peak" ] || peak=$mib
        fi
    done
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    say "$name: $done steps, $((SECONDS - started)) s"
    if [ "$done" -le 3 ]; then
        failed=1
        sleep 0.2
        tail -n 5 "$dir.log"
    fi
    printf '%s\t%s\t%s\n' "$name" "$dir" "$peak" >> "$rows"
}

run_torch() {
    local started=$SECONDS
    time_for pytorch $torch_seconds || return
    if timeout $torch_seconds python3 dev/bench_torch.py "$size" --micro $micro \
        --total-tokens $total --steps $torch_steps --seconds 50 \
        > "$work/torch.json" 2> "$work/torch.log"; then
        printf 'pytorch\t%s\t0\n' "$work/torch.json" >> "$rows"
    else
        failed=1
        tail -n 5 "$work/torch.log"
    fi
    say "pytorch: $((SECONDS - started)) s"
}

# The table of what the runs left.
report() {
    python3 - "$size" "$micro" "$steps" "$rows" << 'PYTHON'
import json, os, re, statistics, sys, time

# layers, dim, weights of a block's products, vocabulary, sequence
SHAPES = {
    "124M": (12, 768, 12 * 768**2, 50257, 1024),
    "350M": (24, 1024, 12 * 1024**2, 50257, 1024),
    "774M": (36, 1280, 12 * 1280**2, 50257, 1024),
    "1558M": (48, 1600, 12 * 1600**2, 50257, 1024),
    "llama-1b": (20, 2048, 2048 * (32 * 128 + 2048 + 3 * 5632), 32768, 2048),
    "tiny": (2, 64, 12 * 64**2, 512, 64),
}
# Floor and goal: of BF16 and of BF16 without determinism tokens/s, of the others the ratio to the
# same call's BF16; of llama-1b the share of the peak.
AIMS = {
    "124M": {"bf16": (540e3, 600e3), "bf16_any": (570e3, None), "nvfp4": (0.80, 0.87),
             "fp8": (1.05, 1.15)},
    "350M": {"bf16": (203e3, 225e3), "bf16_any": (212e3, None), "nvfp4": (0.82, 0.89),
             "fp8": (1.10, 1.20)},
    "774M": {"bf16": (99e3, 110e3), "bf16_any": (103e3, None), "nvfp4": (0.84, 0.90),
             "fp8": (1.15, 1.25)},
    "1558M": {"bf16": (52e3, 58e3), "bf16_any": (54e3, None), "nvfp4": (0.85, 0.92),
              "fp8": (1.20, 1.30)},
    "llama-1b": {"bf16": (0.55, None)},
}
# Measured before on such a card: tokens/s of llm.c with cuDNN and of compiled nanoGPT, GB of llm.c.
EARLIER = {
    "124M": (494e3, 507e3, 27.9), "350M": (187.6e3, 196e3, None), "774M": (92.7e3, None, None),
    "1558M": (49.6e3, None, None),
}
PEAK = 989e12
WARM_UP = 3
size, micro, steps, rows_path = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
layers, dim, block, vocab, seq_len = SHAPES[size]
flops_per_token = 6 * (layers * block + vocab * dim) + 6 * layers * dim * seq_len

def our_run(folder, mib):
    with open(f"{folder}/metrics.jsonl") as file:
        records = [json.loads(line) for line in file]
    steady = [r for r in records if "train_loss" in r][WARM_UP:steps]
    rate = statistics.median(r["tokens_per_s"] for r in steady)
    tokens = steady[0]["tokens"] / (steady[0]["step"] + 1)
    with open(f"{folder}.log", errors="replace") as file:
        found = (re.match(r"(\S+) step (\d+)/\d+ \| loss", line) for line in file)
        seen = {int(m[2]) - 1: float(m[1]) for m in found if m}
    first, last = steady[0]["step"], steady[-1]["step"]
    clock = None
    if last > first:
        clock = tokens * (last - first) / (seen[last] - seen[first]) / rate - 1
    mfu = statistics.median(r["mfu"] or 0 for r in steady)
    with open(f"{folder}/run.json") as file:
        facts = json.load(file)
    return {"rate": rate, "ms": 1000 * tokens / rate, "steps": len(steady), "facts": facts,
            "clock": clock, "mfu": mfu, "gb": int(mib) * 2**20 / 1e9 or None}

def torch_run(path):
    with open(path) as file:
        found = json.loads(file.read().splitlines()[-1])
    return {"rate": found["tokens_per_s"], "ms": found["step_ms"], "steps": found["steps"],
            "gb": (found["device_memory_bytes"] or 0) / 1e9 or None,
            "facts": {"torch": f"PyTorch {found['torch']}, compiled by {found['compile']}"}}

runs = {}
with open(rows_path) as file:
    for name, path, mib in (line.rstrip("\n").split("\t") for line in file):
        try:
            runs[name] = torch_run(path) if name == "pytorch" else our_run(path, mib)
        except (OSError, ValueError, KeyError, IndexError, statistics.StatisticsError) as error:
            print(f"bench_h200: nothing to count of {name}: {error!r}", file=sys.stderr)
ours = [r for name, r in runs.items() if name != "pytorch"]

def cell(value, form):
    return "" if value is None else format(value, form)

def ratio(name, other):
    return runs[name]["rate"] / runs[other]["rate"] if other in runs and other != name else None

def verdict(value, floor, goal):
    if floor is None or value is None:
        return ""
    return "below the floor" if value < floor else "goal" if goal and value >= goal else "floor"

def row(name):
    r, (floor, goal) = runs[name], AIMS.get(size, {}).get(name, (None, None))
    share = r["rate"] * flops_per_token / PEAK
    relative = floor is not None and floor < 10
    value = r["rate"] if not relative else share if size == "llama-1b" else ratio(name, "bf16")
    form = ".2f" if relative else ",.0f"
    return [name, f"{r['rate']:,.0f}", f"{r['ms']:.1f} ({r['steps']})", f"{100 * share:.1f} %",
            cell(r["gb"], ".1f"), cell(ratio(name, "pytorch"), ".3f"),
            cell(ratio(name, "bf16"), ".3f"), cell(floor, form), cell(goal, form),
            verdict(value, floor, goal)]

facts = next((r["facts"] for r in ours), {})
print(f"## {size}, micro-batch {micro} x {seq_len}, {time.strftime('%F %H:%M')}\n")
print(f"{facts.get('device', '?')}; {facts.get('build', '?')}, {facts.get('git_hash', '?')}"
      + "".join(f"; {runs[n]['facts']['torch']}" for n in runs if n == "pytorch") + "\n")
head = ["run", "tokens/s", "ms a step (of)", "MFU", "GB", "/ PyTorch", "/ own BF16", "floor",
        "goal", "reached"]
for line in [head, ["---"] * len(head)] + [row(name) for name in runs]:
    print("| " + " | ".join(line) + " |")
print(f"\nMFU: {flops_per_token:.4g} FLOPs a token (6 x weights in products + 6 x layers x dim x "
      "T) of 989 TFLOP/s. GB: what the device had given out, context included.")
for name, r in runs.items():
    if name == "pytorch" or r["clock"] is None:
        continue
    here = r["rate"] * flops_per_token / PEAK
    known = f"{100 * (r['mfu'] / here - 1):+.2f} %" if r["mfu"] else "n/a"
    print(f"{name}: by the clock outside the program {100 * r['clock']:+.2f} % tokens/s; the step "
          f"line's MFU {known}.")
if size in EARLIER:
    llmc, nanogpt, gb = EARLIER[size]
    print(f"Earlier on such a card: llm.c with cuDNN {llmc:,.0f} tokens/s"
          + (f" in {gb} GB (1.1 times that: {1.1 * gb:.1f} GB)" if gb else "")
          + (f", compiled nanoGPT {nanogpt:,.0f}." if nanogpt else "."))
print()
PYTHON
}

make -s -j"$(nproc)" > "$work/build.log" 2>&1 || {
    tail -n 20 "$work/build.log"
    exit 1
}
choose_data
run_ours bf16 precision.recipe=bf16
run_torch
run_ours nvfp4 precision.recipe=nvfp4 precision.keep_bf16.last=0 precision.backend=emulate
if "$program" help fp8 > /dev/null 2>&1; then
    run_ours fp8 precision.recipe=fp8 precision.keep_bf16.last=0
else
    say "fp8 left out: this build has no recipe fp8"
fi
if "$program" help memory.deterministic > /dev/null 2>&1; then
    run_ours bf16_any precision.recipe=bf16 memory.deterministic=false
else
    say "bf16_any left out: this build has no key memory.deterministic"
fi
[ -s "$rows" ] || exit 1
report > "$work/table.md" || failed=1
cat "$work/table.md" >> "$out/bench_$size.md"
cat "$work/table.md"
say "$SECONDS s; appended to $out/bench_$size.md; records in $work"
exit $failed
