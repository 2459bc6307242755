#!/usr/bin/env bash
# What a second GPU brings: one model size on one GPU and on two of the same machine, in BF16 and in
# NVFP4 emulated in all linears, at 524,288 tokens a step and with no accumulation at all, and the
# memory and time of ZeRO-1, 2 and 3; in one call of less than 8 minutes. Appends tables to
# OUT/ranks_SIZE.md: scaling of tokens/s, communication left exposed (two ranks' step against one
# GPU's with the same work for each GPU), distance of losses, memory; and NCCL's bandwidth as
# dev/bench_comm.cu measures it.
# usage: scripts/bench_ranks.sh SIZE [DATA] [OUT]
#   SIZE   124M, 1558M; tiny tries the script out, on two CPU ranks where there is no GPU
#   DATA   folder that data/prepare_text.py wrote with the GPT-2 tokenizer, default data/h200;
#          without train_*.bin there a shard of random tokens
#   OUT    default dev/results/DATE_h200
# Variables:
#   RUNS     which of these to make, in this order (default: all): comm bf16 nvfp4 zero
#   PROGRAM  a program that is built already; without it `make` builds first what has changed
#   LIMIT    seconds of the whole call, the build apart; a run that needs more than are left is left
#            out
#   CUDA_VISIBLE_DEVICES   the two GPUs to measure
# Nothing is validated or saved: each run is killed after its last step. Exit status: 0, 1 where the
# build or a run failed, 2 usage.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
export LC_ALL=C CUDA_DEVICE_ORDER=PCI_BUS_ID

usage() { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }

# Of each size: sequences of a micro-batch; steps not counted and counted, at 524,288 tokens and
# with one micro-step; seconds that a run of a second a step more than that takes to start and end;
# seconds of a step of 524,288 tokens on one GPU.
total=524288 keys=(batch.seq_len=1024) limit=470
case ${1-} in
    124M)
        micro=64 warm_up=3 counted=6 short_warm_up=8 short_counted=30 start=9 step=1.1
        keys+=(model.preset=gpt2-124m) ;;
    1558M)
        micro=16 warm_up=1 counted=2 short_warm_up=4 short_counted=12 start=14 step=11
        keys+=(model.preset=gpt2-1558m) ;;
    tiny)
        micro=2 warm_up=2 counted=3 short_warm_up=2 short_counted=5 start=6 step=1 total=512
        keys=(batch.seq_len=64 model.layers=2 model.dim=64 model.heads=2 model.vocab=512) ;;
    *) usage ;;
esac
size=$1 data=${2:-data/h200} out=${3:-dev/results/$(date +%F)_h200}
read -ra wanted <<< "${RUNS:-comm bf16 nvfp4 zero}"
limit=${LIMIT:-$limit}
program=${PROGRAM:-./train_gpt_nvfp4}
failed=0 running=
mkdir -p "$out" build/bench || exit 1
work=$(mktemp -d "$PWD/build/bench/ranks_$size.XXXXXX") || exit 1
export XDG_CACHE_HOME=$PWD/build/bench/cache   # algorithms that were timed serve all runs

say() { echo "bench_ranks $size: $*"; }
left() { echo $((limit + begin - SECONDS)); }   # seconds

choose_data() {
    pattern="$data/train_*.bin"
    [ "$size" != tiny ] && compgen -G "$pattern" > /dev/null && return
    pattern=$work/train_000000.bin
    python3 - "$pattern" << 'PYTHON' || exit 1
import random, struct, sys
count = 1 << 22
body = bytearray(random.Random(1).randbytes(2 * count))
body[1::2] = bytes(body[1::2]).translate(bytes(byte & 1 for byte in range(256)))
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<3i", 20240520, 1, count).ljust(1024, b"\0") + body)
PYTHON
    say "tokens are random"
}

# Ends all processes of the run that goes on.
stop() {
    [ -n "$running" ] || return
    kill -KILL -- "-$running" 2>/dev/null
    wait "$running" 2>/dev/null
    running=
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start_ranks() {   # RANKS COMMAND...
    local ranks=$1 r
    shift
    if [ "$ranks" -eq 1 ]; then
        "$@"
        return
    fi
    for ((r = 1; r < ranks; r++)); do
        RANK=$r WORLD_SIZE=$ranks LOCAL_RANK=$r "$@" &
    done
    RANK=0 WORLD_SIZE=$ranks LOCAL_RANK=0 "$@"
    wait
}

# Runs until metrics.jsonl has its steps; three times the expected seconds end it, too.
run() {   # NAME RANKS TOKENS KEY=VALUE...
    local name=$1 ranks=$2 tokens=$3 steps=$((warm_up + counted)) seconds done=0 end
    local metrics=$work/$1/metrics.jsonl
    shift 3
    [[ $name != *_short_* ]] || steps=$((short_warm_up + short_counted))
    seconds=$(awk -v t="$tokens" -v all="$total" -v r="$ranks" -v s="$step" -v n="$steps" \
        -v start="$start" 'BEGIN { printf "%d", start + n * s * t / all / r + 1 }')
    if [ "$(left)" -lt "$seconds" ]; then
        say "$name left out: it takes about $seconds s, and $(left) s are left"
        return
    fi
    end=$((SECONDS + 3 * seconds))
    set -m   # a process group of its own
    start_ranks "$ranks" "$program" "${keys[@]}" batch.micro=$micro batch.total_tokens="$tokens" \
        "data.train=$pattern" "log.dir=$work/$name" train.steps=100000 eval.every=0 ckpt.every=0 \
        ckpt.resume=never "$@" > "$work/$name.log" 2>&1 < /dev/null &
    running=$!
    set +m
    while kill -0 "$running" 2>/dev/null && [ "$done" -lt "$steps" ] && [ $SECONDS -lt "$end" ]; do
        sleep 0.2
        done=$(grep -c train_loss "$metrics" 2>/dev/null)
        done=${done:-0}
    done
    stop
    say "$name: $done of $steps steps"
    [ "$done" -ge "$steps" ] && return
    failed=1
    tail -n 5 "$work/$name.log"
}

recipe_keys() {   # NAME
    [ "$1" = bf16 ] && echo precision.recipe=bf16 ||
        echo precision.recipe=nvfp4 precision.keep_bf16.last=0 precision.backend=emulate
}

# On one GPU all tokens, and half of them: what each of two has to do.
make_scaling() {   # RECIPE
    local recipe
    read -ra recipe <<< "$(recipe_keys "$1")"
    local micro_tokens=$((micro * ${keys[0]#batch.seq_len=}))
    run "$1_two" 2 "$total" "${recipe[@]}"
    run "$1_one" 1 "$total" "${recipe[@]}"
    run "$1_half" 1 $((total / 2)) "${recipe[@]}"
    run "$1_short_two" 2 $((2 * micro_tokens)) "${recipe[@]}"
    run "$1_short_one" 1 $micro_tokens "${recipe[@]}"
}

make_zero() {
    local level recipe
    for level in 1 2 3; do
        run "bf16_zero$level" 2 "$total" precision.recipe=bf16 parallel.zero=$level
    done
    read -ra recipe <<< "$(recipe_keys nvfp4)"
    run nvfp4_zero3 2 "$total" "${recipe[@]}" parallel.zero=3
}

make_comm() {
    local bench=build/cuda/dev/bench_comm
    [ -x "$bench" ] || { say "comm left out: there is no $bench"; return; }
    start_ranks 2 "$bench" "$work" > "$work/comm.txt" 2>&1 || { failed=1; tail -n 5 "$work/comm.txt"; }
}

report() {
    python3 - "$size" "$work" "$warm_up" "$counted" "$short_warm_up" "$short_counted" << 'PYTHON'
import json, os, re, statistics, sys, time

size, work = sys.argv[1:3]
long, short = tuple(map(int, sys.argv[3:5])), tuple(map(int, sys.argv[5:7]))

def read(name):
    try:
        with open(f"{work}/{name}/metrics.jsonl") as file:
            steps = [r for r in map(json.loads, file) if "train_loss" in r]
    except OSError:
        return None
    warm_up, counted = short if "_short_" in name else long
    steady = steps[warm_up : warm_up + counted]
    if len(steady) < counted:
        return None
    with open(f"{work}/{name}.log", errors="replace") as file:
        text = file.read()
    arenas = {m[1].strip(): float(m[2]) for m in re.finditer(r"^([a-z ,]+?) +([0-9.]+) MiB$",
                                                               text, re.M)}
    return {"ms": statistics.median(r["time_ms"] for r in steady),
            "rate": statistics.median(r["tokens_per_s"] for r in steady),
            "losses": [r["train_loss"] for r in steps], "arenas": arenas}

print(f"\n## {size}, two GPUs, {time.strftime('%Y-%m-%d %H:%M')}, `scripts/bench_ranks.sh {size}`\n")
print("| recipe | step | one GPU, tok/s | two, tok/s | scaling | exposed | losses apart |")
print("| --- | --- | --- | --- | --- | --- | --- |")
for recipe in ("bf16", "nvfp4"):
    for title, one, two, same_work in (("524,288 tokens", "one", "two", "half"),
                                       ("no accumulation", "short_one", "short_two", "short_one")):
        one, two, same = (read(f"{recipe}_{name}") for name in (one, two, same_work))
        if not (one and two):
            continue
        exposed = f"{100 * (1 - same['ms'] / two['ms']):.2f} %" if same else ""
        # Without accumulation two GPUs take other batches than one.
        apart = max(abs(a / b - 1) for a, b in zip(two["losses"], one["losses"]))
        apart = f"{apart:.1e}" if title[0] == "5" else ""
        print(f"| {recipe} | {title} | {one['rate']:,.0f} | {two['rate']:,.0f} | "
              f"{two['rate'] / one['rate']:.3f} | {exposed} | {apart} |")

rows = [(f"{recipe}, ZeRO-{level}", read(f"{recipe}_zero{level}" if level else f"{recipe}_two"))
        for recipe in ("bf16", "nvfp4") for level in range(4)]
rows = [(title, run) for title, run in rows if run]
if rows:
    names = ["parameters", "gradients", "optimizer", "quantised weights", "all"]
    print(f"\n| two ranks | ms a step | {' | '.join(name + ', MiB' for name in names)} |")
    print("| --- " * (2 + len(names)) + "|")
    for title, run in rows:
        cells = " | ".join(f"{run['arenas'].get(name, float('nan')):,.0f}" for name in names)
        print(f"| {title} | {run['ms']:,.1f} | {cells} |")
if os.path.exists(f"{work}/comm.txt"):
    print("\n```")
    print(open(f"{work}/comm.txt").read().strip())
    print("```")
PYTHON
}

if [ -z "${PROGRAM-}" ]; then
    make || exit 1
    if have_nvcc; then make build/cuda/dev/bench_comm || exit 1; fi
fi
begin=$SECONDS
choose_data
for name in "${wanted[@]}"; do
    case $name in
        comm) make_comm ;;
        bf16 | nvfp4) make_scaling "$name" ;;
        zero) make_zero ;;
        *)
            echo "RUNS names '$name'; legal: comm bf16 nvfp4 zero" >&2
            usage
            ;;
    esac
done
report > "$work/table.md" || failed=1
cat "$work/table.md" >> "$out/ranks_$size.md"
cat "$work/table.md"
say "$((SECONDS - begin)) s; appended to $out/ranks_$size.md; records in $work"
exit $failed
