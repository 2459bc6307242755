#!/usr/bin/env bash
# What needs a GPU, in stages: builds, compares every CUDA op with its reference, trains GPT-2 124M
# in BF16 and NVFP4 and compares both, checks BF16 against PyTorch, two ranks against one, that a
# run repeated, resumed or recomputing has the same losses; looks for races and bad accesses.
# usage: scripts/run_gpu_check.sh DATA OUT [STAGE ...]
#   DATA   folder that data/prepare_text.py wrote with the GPT-2 tokenizer
#   OUT    folder for logs and runs
#   STAGE  build test selftest mma memcheck racecheck short parity train repeat resume recompute
#          memory telemetry ranks (default: all but ranks, which needs two GPUs)
# Exit status: 0, 1 where a step failed, 2 usage.
set -uo pipefail
[ $# -ge 2 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
data=$1 out=$2
shift 2
stages=("$@")
for stage in "${stages[@]}"; do
    grep -q "^stage_$stage()" "$0" || { echo "run_gpu_check: there is no stage '$stage'" >&2; exit 2; }
done
compgen -G "$data/train_*.bin" > /dev/null || {
    echo "run_gpu_check: '$data' has no train_*.bin; data/prepare_text.py writes them" >&2
    exit 2
}
[ $# -gt 0 ] || stages=(build test selftest mma memcheck racecheck short parity train repeat
    resume recompute memory telemetry)
mkdir -p "$out"
summary=$out/summary.txt
program=./train_gpt_nvfp4
failed=
common=("data.train=$data/train_*.bin" "data.val=$data/val_*.bin"
    "data.tokenizer=$data/tokenizer.vocab")

note() { echo "$*" | tee -a "$summary"; }

# Runs a command with its output in OUT/NAME.log, notes its exit status, seconds and last lines.
step() {   # NAME LINES COMMAND...
    local name=$1 lines=$2 started=$SECONDS status=0
    shift 2
    "$@" > "$out/$name.log" 2>&1 || status=$?
    [ $status -eq 0 ] || failed="$failed $name"
    note "== $name: exit $status, $((SECONDS - started)) s"
    tail -n "$lines" "$out/$name.log" | tee -a "$summary"
    return $status
}

train() {   # NAME CONFIG KEY=VALUE...
    local name=$1 config=$2
    shift 2
    step "$name" 4 "$program" "configs/runs/$config.json" "${common[@]}" \
        "log.dir=$out/runs/$name" ckpt.resume=never "$@"
}

stage_build() { step build 2 make cuda -j"$(nproc)"; }

stage_test() { step test_cuda 30 make -s -k test-cuda -j"$(nproc)"; }

stage_selftest() {
    step selftest 1 "$program" selftest model.preset=gpt2-124m precision.recipe=nvfp4 batch.micro=16
    step plan 30 "$program" plan model.preset=gpt2-124m precision.recipe=nvfp4 batch.micro=64
}

# The losses of two runs, step by step: the largest difference is at most LIMIT.
losses_agree() {   # RUN RUN LIMIT
    python3 - "$@" << 'PYTHON'
import json, sys
losses = []
for run in sys.argv[1:3]:
    lines = [json.loads(line) for line in open(run + "/metrics.jsonl")]
    losses.append([line["train_loss"] for line in lines if "train_loss" in line])
worst = max(abs(a - b) for a, b in zip(*losses, strict=True))
print(f"{len(losses[0])} steps, largest loss difference {worst:.2e}, limit {sys.argv[3]}")
sys.exit(worst > float(sys.argv[3]))
PYTHON
}

# 20 steps through the own NVFP4 GEMM (in software before sm_120) and by emulation; its races. The
# first steps are equal; then the last bits of sums move codes to their neighbours, and the losses
# part at a pace that grows with the learning rate and with the noise of the batch.
stage_mma() {
    local keys=(model.preset=s1-7m model.vocab=50257 batch.micro=16 batch.seq_len=512
        batch.total_tokens=32768 train.steps=20 sched.warmup_steps=5 optim.lr=1e-4 eval.every=0
        ckpt.resume=never precision.recipe=nvfp4 precision.keep_bf16.last=0)
    step mma_emulated 2 "$program" "${common[@]}" "${keys[@]}" "log.dir=$out/runs/mma_emulated"
    step mma_own 2 "$program" "${common[@]}" "${keys[@]}" "log.dir=$out/runs/mma_own" \
        precision.gemm=mma
    step mma_losses 1 losses_agree "$out/runs/mma_emulated" "$out/runs/mma_own" 1e-3
    step mma_racecheck 2 compute-sanitizer --tool racecheck --error-exitcode 9 \
        build/cuda/test/test_gemm_mma_cuda odd_shapes
}

# Each op once; the long sweeps of the tests would take hours under the sanitizer.
stage_memcheck() {
    local test filter
    while read -r test filter; do
        step "memcheck_${test}_$filter" 2 compute-sanitizer --tool memcheck --error-exitcode 9 \
            "build/cuda/test/$test" "$filter"
    done << 'LIST'
test_ops
test_quantize_cuda pairs_of_values
test_quantize_cuda pairs_of_codes
test_quantize_cuda hadamard_op
test_quantize_cuda every_bf16_magnitude
test_quantize_fp8_cuda every_pair
test_attention_cuda flash_small
test_attention_cuda cudnn_small
LIST
    step memcheck_train 3 compute-sanitizer --tool memcheck --error-exitcode 9 \
        "$program" configs/runs/gpt2_124m_nvfp4.json "${common[@]}" "log.dir=$out/runs/memcheck" \
        train.steps=1 sched.warmup_steps=0 model.layers=2 batch.micro=2 batch.total_tokens=2048 \
        eval.every=0 eval.tokens=2048 ckpt.resume=never precision.keep_bf16.last=0
}

# Kernels whose threads share memory. Racecheck is slow: what takes longer than its limit says so
# with exit status 124.
stage_racecheck() {
    local test filter
    while read -r test filter; do
        step "racecheck_${test}_$filter" 2 timeout --kill-after=5 90 \
            compute-sanitizer --tool racecheck --error-exitcode 9 "build/cuda/test/$test" "$filter"
    done << 'LIST'
test_ops layernorm
test_ops rmsnorm
test_ops cross_entropy
test_ops column_sum
test_quantize_cuda pairs_of_values_at
test_quantize_cuda pairs_of_codes_at
test_quantize_cuda two_forms
test_quantize_cuda hadamard_op
test_quantize_fp8_cuda beside_nvfp4
test_quantize_fp8_cuda every_pair
LIST
}

stage_short() {
    train short_bf16 gpt2_124m_bf16 train.steps=6 sched.warmup_steps=2 eval.every=0
    train short_nvfp4 gpt2_124m_nvfp4 train.steps=6 sched.warmup_steps=2 eval.every=0 \
        precision.keep_bf16.last=0
}

# 20 steps in file order beside a PyTorch model with the same weights and batches.
stage_parity() {
    local keys=(train.steps=20 sched.warmup_steps=5 sched.final_frac=0.1 optim.lr=6e-4
        data.shuffle=0 eval.every=0)
    train parity_init gpt2_124m_bf16 "${keys[@]}" train.steps=1 sched.warmup_steps=0 \
        optim.lr=1e-30 optim.weight_decay=0   # its checkpoint holds the initial weights
    train parity gpt2_124m_bf16 "${keys[@]}"
    step parity_torch 4 python3 dev/parity_gpt2.py --data "$data/train_*.bin" \
        --weights "$out/runs/parity_init/ckpt/step_00000001/model.safetensors" \
        --micro 16 --total-tokens 524288 --steps 20 --lr 6e-4 --warmup-steps 5 \
        --total-steps 20 --final-frac 0.1 --compare "$out/runs/parity/metrics.jsonl"
}

stage_train() {
    local keys=(train.steps=50 sched.warmup_steps=10 eval.every=25 eval.tokens=1048576)
    train train_bf16 gpt2_124m_bf16 "${keys[@]}"
    train train_nvfp4 gpt2_124m_nvfp4 "${keys[@]}" precision.keep_bf16.last=0
    step compare 12 python3 scripts/compare.py "$out/runs/train_bf16" "$out/runs/train_nvfp4" \
        --out "$out/compare.png"
}

# Each run has STEPS steps, and each loss and gradient norm is the first run's to the last digit.
same_records() {   # STEPS RUN RUN ...
    python3 - "$@" << 'PYTHON'
import json, sys
num_steps, paths = int(sys.argv[1]), sys.argv[2:]
failed = False
for path in paths:
    lines = [json.loads(line) for line in open(path + "/metrics.jsonl")]
    run = [(r["step"], r["train_loss"], r["grad_norm"]) for r in lines if "train_loss" in r]
    if path == paths[0]:
        first = run
    parted = [i for i, (a, b) in enumerate(zip(first, run)) if a != b]
    failed |= len(run) != num_steps or bool(parted)
    print(f"{path}: {len(run)} of {num_steps} steps, "
          + (f"parts at step {parted[0] + 1}: {run[parted[0]]}, not {first[parted[0]]}" if parted
             else f"the same to the last, {run[-1] if run else None}"))
sys.exit(failed)
PYTHON
}

# A run's last checkpoint takes 1.5 GB.
drop_checkpoints() { rm -rf "$out"/runs/*/ckpt; }

# Steps small enough to make many of.
small=(batch.micro=16 batch.total_tokens=32768 eval.every=0 eval.tokens=16384 ckpt.every=0)

stage_repeat() {
    local recipe
    for recipe in bf16 nvfp4; do
        local keys=("${small[@]}" train.steps=50 sched.warmup_steps=10)
        train "repeat_${recipe}_once" "gpt2_124m_$recipe" "${keys[@]}"
        train "repeat_${recipe}_again" "gpt2_124m_$recipe" "${keys[@]}"
        step "repeat_$recipe" 2 same_records 50 "$out/runs/repeat_${recipe}_once" \
            "$out/runs/repeat_${recipe}_again"
        drop_checkpoints
    done
}

# Runs a command and asks it to end when RUN has had STEPS steps; as it should, it exits with 130.
interrupted() {   # RUN STEPS COMMAND...
    local record=$1/metrics.jsonl steps=$2 done=0 pid status=0
    shift 2
    "$@" &
    pid=$!
    while kill -0 $pid && [ "$done" -lt "$steps" ]; do
        sleep 0.05
        done=$(grep -cs train_loss "$record")
        done=${done:-0}
    done
    kill -TERM $pid
    wait $pid || status=$?
    echo "exit status $status, 130 is right"
    [ $status -eq 130 ]
}

# The second start finds no cache of algorithms: it has the checkpoint's.
stage_resume() {
    local run=$out/runs/resume cache
    local command=("$program" configs/runs/gpt2_124m_nvfp4.json "${common[@]}" "${small[@]}"
        train.steps=40 sched.warmup_steps=10 "log.dir=$run")
    train resume_whole gpt2_124m_nvfp4 "${small[@]}" train.steps=40 sched.warmup_steps=10
    rm -rf "$run"
    cache=$(mktemp -d)
    step resume_killed 2 interrupted "$run" 10 "${command[@]}"
    XDG_CACHE_HOME=$cache step resume_finished 2 "${command[@]}"
    rm -rf "$cache"
    step resume 2 same_records 40 "$out/runs/resume_whole" "$run"
    drop_checkpoints
}

# Ten blocks in NVFP4 and two in BF16.
stage_recompute() {
    local level runs=()
    for level in none activation norm block; do
        train "recompute_$level" gpt2_124m_nvfp4 "${small[@]}" train.steps=3 sched.warmup_steps=1 \
            "memory.recompute=$level"
        runs+=("$out/runs/recompute_$level")
    done
    step recompute 4 same_records 3 "${runs[@]}"
    drop_checkpoints
}

# Until a run has had STEPS steps, then it is killed: no last checkpoint is written.
steps_alone() {   # RUN STEPS CONFIG KEY=VALUE...
    local run=$1 steps=$2 config=$3 pid done=0
    shift 3
    "$program" "configs/runs/$config.json" "${common[@]}" "log.dir=$run" train.steps=100 \
        sched.warmup_steps=1 eval.every=0 ckpt.every=0 ckpt.resume=never \
        precision.keep_bf16.last=0 "$@" &
    pid=$!
    while kill -0 $pid && [ "$done" -lt "$steps" ]; do
        sleep 0.05
        done=$(grep -cs train_loss "$run/metrics.jsonl")
        done=${done:-0}
    done
    kill -KILL $pid
    wait $pid 2> /dev/null
    [ "$done" -ge "$steps" ]
}

# What each level of memory.recompute costs and saves: milliseconds of the last of four steps, and
# the plan's memory.
stage_memory() {
    local size micro total recipe level name
    while read -r size micro total; do
        for recipe in bf16 nvfp4; do
            for level in none activation norm block; do
                name=memory_${size}_${recipe}_$level
                step "$name" 0 steps_alone "$out/runs/$name" 4 "gpt2_124m_$recipe" \
                    "model.preset=gpt2-$size" "batch.micro=$micro" "batch.total_tokens=$total" \
                    "memory.recompute=$level"
                note "$(grep -E '^ *(saved activations|all) ' "$out/$name.log" | tr -s ' \n' ' ')" \
                    "$(grep '^step *4/' "$out/$name.log")"
            done
        done
    done << 'LIST'
124m 64 524288
1558m 16 65536
LIST
}

# Of the time of 100 steps, the share of telemetry with the gradients' noise at one of them; the
# second look counts, as the first one sets up libraries.
stage_telemetry() {
    step telemetry_run 0 steps_alone "$out/runs/telemetry" 4 gpt2_124m_nvfp4 batch.micro=64 \
        log.telemetry_every=2 log.gradient_noise=true
    step telemetry 1 python3 - "$out/telemetry_run.log" "$out/runs/telemetry/metrics.jsonl" \
        << 'PYTHON'
import json, re, statistics, sys
looks = re.findall(r"^telemetry before step .* (\d+) ms$", open(sys.argv[1]).read(), re.M)
steps = [r["time_ms"] for r in map(json.loads, open(sys.argv[2])) if "train_loss" in r]
step, look = statistics.median(steps[1:]), float(looks[1])
share = 100 * look / (100 * step)
print(f"a look {look:.0f} ms, a step {step:.0f} ms: {share:.2f} % of 100 steps, limit 2 %")
sys.exit(share > 2)
PYTHON
}

stage_ranks() {
    local keys=(train.steps=5 sched.warmup_steps=2 eval.every=0 ckpt.every=0 ckpt.resume=never)
    train one_rank gpt2_124m_bf16 "${keys[@]}"
    step two_ranks 4 mpirun --allow-run-as-root -np 2 "$program" configs/runs/gpt2_124m_bf16.json \
        "${common[@]}" "log.dir=$out/runs/two_ranks" "${keys[@]}"
    step compare_ranks 4 python3 scripts/compare.py "$out/runs/one_rank" "$out/runs/two_ranks" \
        --out "$out/ranks.png"
}

for stage in "${stages[@]}"; do "stage_$stage"; done
[ -z "$failed" ] || note "failed:$failed"
[ -z "$failed" ]
