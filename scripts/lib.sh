# shellcheck shell=bash
# Functions that the scripts share; sourced, not run. Counting of tests:
#   suite LABEL COMMAND...   a command that closes with "N passed, N failed"; adds its counts.
#                            Without that line, or with a bad exit status beside "0 failed", it is
#                            one failure
#   check LABEL COMMAND...   a command that passes or fails as a whole
#   finish                   prints what did not pass and, last, "N passed, N failed" over all

# Threads that wait for others give up their core: on a shared machine the default, to spin, was seen
# to make a step ten times as slow.
export OMP_WAIT_POLICY=passive

num_passed=0 num_failed=0 not_passed=""

check() {
    local label=$1
    shift
    echo "== $label"
    if "$@"; then
        num_passed=$((num_passed + 1))
    else
        num_failed=$((num_failed + 1))
        not_passed="$not_passed, $label"
    fi
}

suite() {
    local label=$1 log status line failed=1
    shift
    echo "== $label"
    log=$(mktemp)
    "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -1)
    rm -f "$log"
    if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
        num_passed=$((num_passed + BASH_REMATCH[1]))
        failed=${BASH_REMATCH[2]}
        [ "$status" -eq 0 ] || [ "$failed" -gt 0 ] || failed=1
    fi
    [ "$failed" -eq 0 ] || not_passed="$not_passed, $label (exit status $status)"
    num_failed=$((num_failed + failed))
}

finish() {
    [ -z "$not_passed" ] || echo "not passed: ${not_passed#, }"
    echo "$num_passed passed, $num_failed failed"
    [ "$num_failed" -eq 0 ] && [ "$num_passed" -gt 0 ]
}

have_nvcc() { [ -n "$(make -s all-sm)" ]; }   # one that the Makefile would use
have_gpu() { nvidia-smi >/dev/null 2>&1; }
