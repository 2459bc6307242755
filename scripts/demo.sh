#!/usr/bin/env bash
# From a bare Debian or Ubuntu machine to a trained model, with no question asked: sets up, prepares
# a text, trains the same tiny byte-level model in BF16 and in NVFP4, samples from it and compares.
# usage: scripts/demo.sh [--text FILE] [key=value ...]
#   --text FILE   UTF-8 text, .xz too; default: the King James Bible of Debian's package bible-kjv
#   key=value     for both runs, e.g. train.steps=50 for a quick look
# Results lie in runs/demo. Ends with a verdict: both runs below the bigram entropy of the text,
# NVFP4 within 5 % of BF16; exit status 1 if not.
set -euo pipefail
usage="usage: scripts/demo.sh [--text FILE] [key=value ...]"
root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/runs/demo
started=$SECONDS

say() { printf '\ndemo: %s\n' "$*"; }
stop() { echo "demo: $*" >&2; exit 2; }

text=""
if [ "${1:-}" = --text ]; then
    [ $# -ge 2 ] || stop "--text needs a file; $usage"
    [ -r "$2" ] || stop "cannot read the text '$2'"
    text=$(realpath "$2")
    shift 2
fi
overrides=("$@")
for word in "$@"; do
    [[ $word == *=* ]] || stop "unknown argument '$word'; $usage"
done
cd "$root"
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

rm -rf "$out"
mkdir -p "$out"
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
bigram=$(.venv/bin/python scripts/entropy.py "$out/text.txt" --field bigram)
.venv/bin/python scripts/entropy.py "$out/text.txt"
echo "plot: $out/compare.png"
echo "time: $((SECONDS - started)) s"
awk -v bf16="$(last_validation_loss bf16)" -v nvfp4="$(last_validation_loss nvfp4)" \
    -v bigram="$bigram" '
    BEGIN {
        gap = bf16 > 0 ? 100 * (nvfp4 - bf16) / bf16 : 100
        passed = bf16 > 0 && nvfp4 > 0 && bf16 < bigram && nvfp4 < bigram && gap <= 5
        printf "validation loss in nats per byte: BF16 %.4f, NVFP4 %.4f (%+.2f %%), bigrams %.4f\n",
               bf16, nvfp4, gap, bigram
        printf "demo %s: both below the bigram entropy, NVFP4 within 5 %% of BF16\n",
               passed ? "passed" : "FAILED"
        exit !passed
    }'
