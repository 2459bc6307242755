#!/usr/bin/env bash
# Speed of training one model size on one GPU, beside PyTorch's and what is aimed at: BF16, NVFP4
# emulated in all linears, FP8, BF16 without determinism, and dev/bench_torch.py, at the same
# micro-batch and 524,288 tokens a step, in one call of less than 5 minutes. Appends a table to
# OUT/bench_SIZE.md.
# usage: scripts/bench_h200.sh SIZE [DATA] [OUT]
#   SIZE   124M, 350M, 774M, 1558M, llama-1b; tiny tries the script out
#   DATA   folder that data/prepare_text.py wrote with the GPT-2 tokenizer, default data/h200;
#          without train_*.bin there, and for llama-1b and tiny, whose vocabularies are smaller, a
#          shard of random tokens
#   OUT    default dev/results/DATE_h200
# Variables:
#   RUNS     the rows to make, in this order, of: bf16 pytorch nvfp4 fp8 bf16_any (default: all)
#   PROGRAM  a program that is built already; without it `make` builds first what has changed, with
#            make's variables (SM, CUDNN_FRONTEND) from the environment
#   LIMIT    seconds of the whole call, the build apart; a row that needs more than are left is left
#            out
#   CUDA_VISIBLE_DEVICES   the GPU to measure, by nvidia-smi's number or full UUID
# Calls for different GPUs may run side by side: each has its folder of work and its cache of
# algorithms below build/bench. Nothing is validated, sampled or saved: each run is killed after its
# last step, and its first steps are not counted. Exit status: 0, 1 where the build or a run failed,
# 2 usage.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
export LC_ALL=C CUDA_DEVICE_ORDER=PCI_BUS_ID

usage() { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }

# Of each size: sequences of a micro-batch; steps not counted and counted; seconds that a run takes
# at about the speed aimed at, its start included; PyTorch's counted steps, seconds and what it
# compiles as a whole; seconds of the call; keys of the shape.
total=524288 keys=(batch.seq_len=1024)
case ${1-} in
    124M)
        micro=64 warm_up=3 counted=5 seconds=18 limit=150
        torch_steps=5 torch_seconds=60 torch_compile=model
        keys+=(model.preset=gpt2-124m) ;;
    350M)
        micro=32 warm_up=2 counted=4 seconds=26 limit=200
        torch_steps=4 torch_seconds=80 torch_compile=model
        keys+=(model.preset=gpt2-350m) ;;
    774M)
        micro=16 warm_up=2 counted=3 seconds=38 limit=230
        torch_steps=3 torch_seconds=50 torch_compile=block
        keys+=(model.preset=gpt2-774m) ;;
    1558M)
        micro=16 warm_up=1 counted=3 seconds=50 limit=280
        torch_steps=3 torch_seconds=70 torch_compile=block
        keys+=(model.preset=gpt2-1558m) ;;
    llama-1b)
        micro=16 warm_up=2 counted=3 seconds=40 limit=120
        torch_steps=3 torch_seconds=55 torch_compile=block
        keys=(batch.seq_len=2048 model.preset=nemotron-1.2b model.act=swiglu model.ffn=5632
            model.vocab=32768) ;;
    tiny)
        micro=2 warm_up=3 counted=5 seconds=60 limit=470 total=512
        torch_steps=3 torch_seconds=170 torch_compile=model
        keys=(batch.seq_len=64 model.layers=2 model.dim=64 model.heads=2 model.vocab=512) ;;
    *) usage ;;
esac
size=$1 data=${2:-data/h200} out=${3:-dev/results/$(date +%F)_h200}
read -ra wanted <<< "${RUNS:-bf16 pytorch nvfp4 fp8 bf16_any}"
for name in "${wanted[@]}"; do
    case $name in
        bf16 | pytorch | nvfp4 | fp8 | bf16_any) ;;
        *)
            echo "RUNS names '$name'; the rows are bf16 pytorch nvfp4 fp8 bf16_any" >&2
            usage
            ;;
    esac
done
limit=${LIMIT:-$limit}
program=${PROGRAM:-./train_gpt_nvfp4}
gpu=${CUDA_VISIBLE_DEVICES:-0}
gpu=${gpu%%,*}
failed=0 running=
mkdir -p "$out" build/bench || exit 1
work=$(mktemp -d "$PWD/build/bench/$size.XXXXXX") || exit 1
rows=$work/rows   # a line a run: name, MiB of the device's memory

# What one call measures, another does not change; what PyTorch compiled is kept for later calls.
export XDG_CACHE_HOME=$work/cache TORCHINDUCTOR_CACHE_DIR=$PWD/build/bench/torch_$size
export TORCHINDUCTOR_COMPILE_THREADS=${TORCHINDUCTOR_COMPILE_THREADS:-$((($(nproc) + 1) / 2))}

say() { echo "bench_h200 $size: $*"; }

left() { echo $((limit + begin - SECONDS)); }   # seconds

# Whether there is time for a run; says so when there is none.
time_for() {   # NAME SECONDS
    [ "$(left)" -ge "$2" ] && return
    say "$1 left out: it takes about $2 s, and of the call's $limit s $(left) s are left"
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

# MiB that the GPU has given out, contexts included; nothing where there is none. nvidia-smi shows
# every GPU, whatever CUDA_VISIBLE_DEVICES says.
device_mib() {
    nvidia-smi --id="$gpu" --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null
}

read_memory() {
    local mib
    mib=$(device_mib)
    [[ $mib =~ ^[0-9]+$ ]] && [ "$mib" -gt "$peak" ] && peak=$mib
}

stamp() { while IFS= read -r line; do echo "$EPOCHREALTIME $line"; done; }

# Ends what runs with all that it has started; returns when its memory is given back.
stop() {
    [ -n "$running" ] || return
    kill -KILL -- "-$running" 2>/dev/null
    wait "$running" 2>/dev/null
    running=
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Runs a command until FILE has STEPS lines with PATTERN, it ends, or its time is over: three times
# its seconds, or the call's. Its output goes to WORK/NAME.log, each line with the time. Leaves the
# number of lines in `done` and the largest memory read in `peak`; from QUIET lines on none is read
# before the last, so that nothing disturbs what is counted.
follow() {   # NAME SECONDS QUIET STEPS FILE PATTERN COMMAND...
    local name=$1 quiet=$3 steps=$4 file=$5 lines=$6 started=$SECONDS log stamper end
    end=$((SECONDS + ($(left) < 3 * $2 ? $(left) : 3 * $2)))
    shift 6
    done=0 peak=0
    exec {log}> >(stamp > "$work/$name.log")
    stamper=$!
    set -m   # a process group of its own
    "$@" >&"$log" 2>&1 < /dev/null &
    running=$!
    set +m
    exec {log}>&-
    while kill -0 "$running" 2>/dev/null && [ "$done" -lt "$steps" ] && [ $SECONDS -lt "$end" ]; do
        [ "$done" -ge "$quiet" ] || read_memory
        sleep 0.2
        done=$(grep -cE "$lines" "$file" 2>/dev/null)
        done=${done:-0}
    done
    read_memory
    stop
    for _ in {1..20}; do   # until the last lines are written
        kill -0 $stamper 2>/dev/null || break
        sleep 0.1
    done
    printf '%s\t%s\n' "$name" "$peak" >> "$rows"
    say "$name: $done of $steps steps, $((SECONDS - started)) s"
}

run_ours() {   # NAME KEY=VALUE...
    local name=$1
    shift
    time_for "$name" "$seconds" || return
    follow "$name" "$seconds" "$warm_up" $((warm_up + counted)) "$work/$name/metrics.jsonl" \
        train_loss "$program" "${keys[@]}" batch.micro=$micro batch.total_tokens=$total \
        "data.train=$pattern" "log.dir=$work/$name" train.steps=100000 eval.every=0 ckpt.every=0 \
        ckpt.resume=never "$@"
    [ "$done" -le "$warm_up" ] || return
    failed=1
    tail -n 5 "$work/$name.log"
}

# Two steps that compile, and a last line with what was measured. It ends by itself.
run_torch() {
    local log=$work/pytorch.log
    time_for pytorch $torch_seconds || return
    if ! python3 -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("torch"))'; then
        say "pytorch left out: python3 has no torch"
        return
    fi
    follow pytorch $torch_seconds 3 $((2 + torch_steps + 1)) "$log" '^[0-9.]+ (warm-up|step|\{)' \
        python3 dev/bench_torch.py "$size" --micro $micro --total-tokens $total \
        --steps $torch_steps --seconds $(($(left) - 5)) --compile $torch_compile
    grep -q '^[0-9.]* {' "$log" && return
    failed=1
    tail -n 5 "$log"
}

# One of the rows; an emulated one keeps no block in BF16.
make_row() {   # NAME
    case $1 in
        bf16) run_ours bf16 precision.recipe=bf16 ;;
        pytorch) run_torch ;;
        nvfp4)
            run_ours nvfp4 precision.recipe=nvfp4 precision.keep_bf16.last=0 \
                precision.backend=emulate ;;
        fp8) run_ours fp8 precision.recipe=fp8 precision.keep_bf16.last=0 ;;
        bf16_any) run_ours bf16_any precision.recipe=bf16 memory.deterministic=false ;;
    esac
}

# The table of what the runs left.
report() {
    python3 - "$size" "$micro" "$warm_up" "$counted" "$work" << 'PYTHON'
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
AGREE = 0.01  # program and script
size, micro, warm_up, counted, work = *sys.argv[1:3], *map(int, sys.argv[3:5]), sys.argv[5]
layers, dim, block, vocab, seq_len = SHAPES[size]
flops_per_token = 6 * (layers * block + vocab * dim) + 6 * layers * dim * seq_len

def our_run(name):
    with open(f"{work}/{name}/metrics.jsonl") as file:
        steps = [r for r in map(json.loads, file) if "train_loss" in r][: warm_up + counted]
    steady = steps[warm_up:]
    rate = statistics.median(r["tokens_per_s"] for r in steady)
    # Step lines come as each step ends: the last that is not counted starts the clock.
    with open(f"{work}/{name}.log", errors="replace") as file:
        found = (re.match(r"(\S+) step (\d+)/\d+ \| loss", line) for line in file)
        ends = {int(m[2]) - 1: float(m[1]) for m in found if m}
    clock = ends[steady[-1]["step"]] - ends[steps[warm_up - 1]["step"]]
    with open(f"{work}/{name}/run.json") as file:
        facts = json.load(file)
    return {"rate": rate, "ms": 1000 * steady[0]["tokens"] / (steady[0]["step"] + 1) / rate,
            "steps": len(steady), "facts": facts,
            "clock": clock / (sum(r["time_ms"] for r in steady) / 1000) - 1,
            "mfu": statistics.median(r["mfu"] or 0 for r in steady)}

def torch_run():
    with open(f"{work}/pytorch.log", errors="replace") as file:
        last = [line.split(" ", 1)[1] for line in file if re.match(r"\S+ {", line)][-1]
    found = json.loads(last)
    return {"rate": found["tokens_per_s"], "ms": found["step_ms"], "steps": found["steps"],
            "facts": {"torch": f"PyTorch {found['torch']}, compiled by {found['compile']}"}}

runs = {}
with open(f"{work}/rows") as file:
    for name, mib in (line.split() for line in file):
        try:
            runs[name] = torch_run() if name == "pytorch" else our_run(name)
            runs[name]["gb"] = int(mib) * 2**20 / 1e9 or None
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
      "T) of 989 TFLOP/s. GB: the most that the GPU had given out, context included.")

def agreement(off):
    return f"{100 * off:+.2f} % ({'ok' if abs(off) <= AGREE else 'OFF, more than 1 %'})"

for name, r in runs.items():
    if name != "pytorch":
        mfu = r["mfu"] / (r["rate"] * flops_per_token / PEAK) - 1
        print(f"{name}, the step line beside this script: tokens/s {agreement(r['clock'])}, MFU "
              + (agreement(mfu) if r["mfu"] else "n/a") + ".")
if size in EARLIER:
    llmc, nanogpt, gb = EARLIER[size]
    print(f"Earlier on such a card: llm.c with cuDNN {llmc:,.0f} tokens/s"
          + (f", compiled nanoGPT {nanogpt:,.0f}." if nanogpt else "."))
    if gb and "bf16" in runs and runs["bf16"]["gb"]:
        share = runs["bf16"]["gb"] / gb
        print(f"llm.c took {gb} GB; bf16 here {share:.2f} times that, at most 1.10 are aimed at: "
              f"{'ok' if share <= 1.1 else 'OVER'}.")
print()
PYTHON
}

if [ -z "${PROGRAM-}" ]; then   # calls side by side build one after the other
    flock build/bench/lock make -s -j"$(nproc)" > "$work/build.log" 2>&1 || {
        tail -n 20 "$work/build.log"
        exit 1
    }
fi
choose_data
begin=$SECONDS
for name in "${wanted[@]}"; do make_row "$name"; done
[ -s "$rows" ] || exit 1
report > "$work/table.md" || failed=1
cat "$work/table.md" >> "$out/bench_$size.md"
cat "$work/table.md"
say "$((SECONDS - begin)) s; appended to $out/bench_$size.md; records in $work"
exit $failed
