#!/usr/bin/env bash
# Sets up, builds, prepares a text, trains the same tiny byte-level GPT-2 in BF16 and in NVFP4 on
# what this machine has (a GPU, else the CPU), samples from it, compares and plots. Asks nothing;
# where packages are missing and it is not root, it stops with the one command to run.
# usage: scripts/demo.sh [--text FILE] [key=value ...]
#   --text FILE   UTF-8 text, .xz too; default: the King James Bible of Debian's package bible-kjv
#   key=value     for both runs, e.g. train.steps=50 for a quick look; a run that is not longer than
#                 the warm-up is warmed up for a tenth of it, unless sched.warmup_steps is given
#   --help        prints this
# Results lie in runs/demo, which a later demo replaces. The verdict: both runs end below the bigram
# entropy of the text, NVFP4 at most 5 % above BF16. A run shortened by a key=value is not judged.
# Exit status: 0 passed or not judged, 1 not passed or no packages, 2 usage; else that of the
# command which failed.
set -euo pipefail
usage="usage: scripts/demo.sh [--text FILE] [key=value ...]"
root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/runs/demo
mark=$out/.made_by_demo   # a folder without it is somebody else's and stays
started=$SECONDS

say() { printf '\ndemo: %s\n' "$*"; }
stop() { echo "demo: $*" >&2; exit 2; }

text="" overrides=()
use_text() {
    if [ -d "$1" ] || [ ! -r "$1" ]; then stop "cannot read the text '$1'"; fi
    text=$(realpath "$1")
}
while [ $# -gt 0 ]; do
    case "$1" in
        -h | --help)
            sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
            exit 0 ;;
        --text)
            [ $# -ge 2 ] || stop "--text needs a file; $usage"
            use_text "$2"
            shift ;;
        --text=*) use_text "${1#--text=}" ;;
        log.dir=* | data.*=*) stop "the demo itself sets ${1%%=*}; $usage" ;;
        -*) stop "unknown option '$1'; $usage" ;;
        *=*) overrides+=("$1") ;;
        *) stop "unknown argument '$1'; $usage" ;;
    esac
    shift
done
cd "$root"
config_number() { sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" configs/runs/demo_bf16.json; }
steps="" warmup=""   # of the overrides
for word in "${overrides[@]}"; do
    case "$word" in
        train.steps=*) steps=${word#*=} ;;
        sched.warmup_steps=*) warmup=${word#*=} ;;
    esac
done
if [ -z "$warmup" ] && [[ "$steps" =~ ^[1-9][0-9]*$ ]] &&
    [ "$steps" -le "$(config_number warmup_steps)" ]; then
    overrides+=("sched.warmup_steps=$((steps / 10))")
fi
if [ -e "$out" ] && [ ! -e "$mark" ]; then
    stop "$out is there and no demo made it; move it away, or remove it"
fi
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

# --- the default text: the King James Bible, 4.1 MB ---

install_bible() {
    export DEBIAN_FRONTEND=noninteractive
    say "installing Debian's package bible-kjv"
    apt-get install -y -q bible-kjv || { apt-get update -q && apt-get install -y -q bible-kjv; }
}

unpack_bible() {   # FOLDER: the way without root
    say "unpacking Debian's package bible-kjv into $1"
    mkdir -p "$1"
    (cd "$1" && apt-get download -q bible-kjv bible-kjv-text &&
        for package in ./*.deb; do dpkg -x "$package" .; done)
}

write_kjv() {   # FILE: one verse a line
    local folder=$root/.local/bible-kjv bible=(bible)
    if ! command -v bible >/dev/null && ! { [ "$(id -u)" -eq 0 ] && install_bible; }; then
        [ -x "$folder/usr/bin/bible" ] || unpack_bible "$folder" ||
            stop "cannot get Debian's package bible-kjv; give a text of your own: --text FILE"
        bible=("$folder/usr/bin/bible" -p "$folder/usr/lib")
    fi
    "${bible[@]}" -f 'gen1:1-rev22:21' < /dev/null | sed -E 's/^[0-9A-Za-z]+:[0-9]+ //' > "$1"
    [ "$(wc -c < "$1")" -gt 4000000 ] || stop "bible-kjv gave no whole text; use --text FILE"
}

# --- set up, build ---

scripts/setup.sh
target=cpu   # nvcc without a GPU would only cost time here
if have_nvcc && have_gpu; then target=all; fi
say "building"
make -s -j"$(nproc)" $target

# --- prepare, train, sample ---

for run in bf16 nvfp4; do   # a wrong key=value is told before the work
    ./train_gpt_nvfp4 plan "configs/runs/demo_$run.json" "${overrides[@]}" > /dev/null
done

rm -rf "$out"
mkdir -p "$out"
echo "scripts/demo.sh made this folder and will replace it" > "$mark"
case "$text" in
    "") write_kjv "$out/text.txt" ;;
    *.xz) xz -dc --memlimit-decompress=300MiB "$text" > "$out/text.txt" ;;
    *) cp "$text" "$out/text.txt" ;;
esac
say "preparing $(wc -c < "$out/text.txt") bytes of text"
.venv/bin/python data/prepare_text.py --tokenizer byte --out "$out/data" "$out/text.txt"

for run in bf16 nvfp4; do
    say "training in $run"
    ./train_gpt_nvfp4 "configs/runs/demo_$run.json" "data.train=$out/data/train_*.bin" \
        "data.val=$out/data/val_*.bin" "data.tokenizer=$out/data/tokenizer.vocab" \
        "log.dir=$out/$run" "${overrides[@]}"
done

say "a sample of the NVFP4 model"
./train_gpt_nvfp4 sample "$out/nvfp4/config.resolved.json" "sample.prompt=And the LORD said" \
    sample.tokens=120

# --- compare, judge ---

say "comparison"
.venv/bin/python scripts/compare.py "$out/bf16" "$out/nvfp4" --out "$out/compare.png"

last_validation_loss() {   # RUN: from lines "s:STEP tel:LOSS"
    sed -n 's/^s:[0-9]* tel:\([0-9.e+-]*\).*/\1/p' "$out/$1/main.log" | tail -1
}
trained_tokens() {   # RUN
    sed -n 's/.*"tokens": *\([0-9]*\).*/\1/p' "$out/$1/metrics.jsonl" | tail -1
}

bf16=$(last_validation_loss bf16) nvfp4=$(last_validation_loss nvfp4)
bigram=$(.venv/bin/python scripts/entropy.py "$out/text.txt" --field bigram)
.venv/bin/python scripts/entropy.py "$out/text.txt"
echo "plot: $out/compare.png"
echo "time: $((SECONDS - started)) s"
if [ -z "$bf16" ] || [ -z "$nvfp4" ]; then
    echo "demo FAILED: a run has no validation loss"
    exit 1
fi
awk -v bf16="$bf16" -v nvfp4="$nvfp4" -v bigram="$bigram" 'BEGIN {
    printf "validation loss in nats per byte: BF16 %.4f, NVFP4 %.4f (%+.2f %%), bigrams %.4f\n",
           bf16, nvfp4, 100 * (nvfp4 - bf16) / bf16, bigram }'
full_tokens=$(($(config_number steps) * $(config_number total_tokens)))
if [ "$(trained_tokens nvfp4)" -lt "$full_tokens" ]; then
    echo "demo done (shortened run: not judged)"
    exit 0
fi
awk -v bf16="$bf16" -v nvfp4="$nvfp4" -v bigram="$bigram" '
    function require(holds, what) {
        printf "%s: %s\n", holds ? "holds" : "does NOT hold", what
        failed += !holds
    }
    BEGIN {
        entropy = sprintf("is below the bigram entropy %.4f", bigram)
        require(bf16 < bigram, sprintf("BF16 %.4f %s", bf16, entropy))
        require(nvfp4 < bigram, sprintf("NVFP4 %.4f %s", nvfp4, entropy))
        require(nvfp4 <= 1.05 * bf16,
                sprintf("NVFP4 %.4f is at most 5 %% above BF16 %.4f", nvfp4, bf16))
        print failed ? "demo FAILED" : "demo passed"
        exit failed > 0
    }'
