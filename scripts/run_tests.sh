#!/usr/bin/env bash
# Runs test programs one after the other and sums them up: run_tests.sh PROGRAM...
# Each closes with "N passed, N failed"; one that ends without it counts as a failure, and so does
# one that runs longer than 10 minutes. Programs named test_parallel* run alone and, where there is
# mpirun, with 1, 2 and 4 ranks. The last line is "N passed, N failed" over all.
set -u

passed=0 failed=0 broken=""

run() {   # LABEL COMMAND...
    local label=$1 output line status
    shift
    echo "== $label"
    output=$(mktemp)
    timeout 600 "$@" 2>&1 | tee "$output"
    status=${PIPESTATUS[0]}
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$output" | tail -1)
    rm -f "$output"
    if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
        passed=$((passed + BASH_REMATCH[1]))
        failed=$((failed + BASH_REMATCH[2]))
        if [ "$status" -ne 0 ] && [ "${BASH_REMATCH[2]}" -eq 0 ]; then
            echo "FAIL $label: exit status $status after its last case"
            failed=$((failed + 1))
        fi
    else
        echo "FAIL $label: ended with exit status $status and without a count"
        failed=$((failed + 1))
    fi
    [ "$status" -eq 0 ] || broken="$broken $label"
}

# Ranks of a test share few cores: one thread each, and no complaint about root or about containers
# that forbid one process to read another's memory.
run_ranks() {   # RANKS PROGRAM
    OMP_NUM_THREADS=1 OMPI_MCA_btl_vader_single_copy_mechanism=none \
        ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0" \
        run "${2##*/}, $1 ranks" \
        mpirun --allow-run-as-root --oversubscribe --bind-to none -np "$1" "$2"
}

for program in "$@"; do
    run "${program##*/}" "$program"
    if [[ ${program##*/} == test_parallel* ]] && command -v mpirun >/dev/null; then
        for ranks in 1 2 4; do run_ranks "$ranks" "$program"; done
    fi
done

[ -z "$broken" ] || echo "not passed:$broken"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ] && [ -z "$broken" ]
