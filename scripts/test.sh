#!/usr/bin/env bash
# Sets up what is missing, builds the program and runs every test that this machine can run; those
# that need a GPU run where there is one. Asks nothing. The last line is "N passed, N failed".
# usage: scripts/test.sh
set -uo pipefail
[ $# -eq 0 ] || { echo "test: unknown argument '$1'; usage: scripts/test.sh" >&2; exit 2; }
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

scripts/setup.sh --tests || exit 1
jobs=-j$(nproc)

check "build without CUDA" make -s "$jobs" build/cpu/train_gpt_nvfp4
check "layering, sizes, headers" make -s includes
check "config reference of README.md" python3 scripts/update_readme.py --check
check "fixtures are what their generator makes" .venv/bin/python dev/make_fixtures.py --check
check "recipe vectors are what their generator makes" \
    .venv/bin/python test/make_recipe_vectors.py --check
suite "make test" make -s -k "$jobs" test
shopt -s nullglob
scripted=(test/test_*.py test/test_*.sh)
[ ${#scripted[@]} -eq 0 ] || suite "scripted tests" scripts/run_tests.sh "${scripted[@]}"
if have_nvcc && have_gpu; then
    suite "make test-cuda" make -s "$jobs" test-cuda
else
    echo "no GPU here: the CUDA tests did not run (make test-cuda)"
fi
finish
