#!/usr/bin/env bash
# Runs test programs one after the other and sums them up: run_tests.sh PROGRAM...
# Each closes with "N passed, N failed" and has 10 minutes. Programs named test_parallel* run alone,
# with 2 and 3 ranks that know no more than their number and, where there is mpirun, with 1, 2, 3 and
# 4 ranks of MPI; .py files run in .venv. The last line is "N passed, N failed" over all.
set -uo pipefail
for program in "$@"; do
    [[ $program != -* ]] && continue
    echo "run_tests: unknown option '$program'; usage: scripts/run_tests.sh PROGRAM..." >&2
    exit 2
done
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# Ranks of a test share few cores: one thread each, and no complaint about root or about containers
# that forbid one process to read another's memory. MPI's own leaks are not this program's.
run_ranks() {   # RANKS PROGRAM
    OMP_NUM_THREADS=1 OMPI_MCA_btl_vader_single_copy_mechanism=none ASAN_OPTIONS=detect_leaks=0 \
        suite "${2##*/}, $1 ranks" timeout 600 \
        mpirun --allow-run-as-root --oversubscribe --bind-to none -np "$1" "$2"
}

# Rank 0 reports for all. They meet through a file in this folder that is named after the job.
socket_ranks() {   # RANKS PROGRAM
    local rank pid pids=() status=0
    export WORLD_SIZE=$1 TORCHELASTIC_RUN_ID=run_tests.$$ OMP_NUM_THREADS=1
    for ((rank = 1; rank < $1; rank++)); do
        RANK=$rank timeout 600 "$2" &
        pids+=($!)
    done
    RANK=0 timeout 600 "$2" || status=$?
    for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
    return "$status"
}

run_sockets() {   # RANKS PROGRAM
    suite "${2##*/}, $1 ranks over sockets" socket_ranks "$@"
}

for program in "$@"; do
    name=${program##*/}
    if [[ $name == *.py ]]; then
        suite "$name" timeout 600 .venv/bin/python "$program"
    else
        suite "$name" timeout 600 "$program"
    fi
    if [[ $name == test_parallel* ]]; then
        for ranks in 2 3; do run_sockets "$ranks" "$program"; done
        command -v mpirun >/dev/null || continue
        for ranks in 1 2 3 4; do run_ranks "$ranks" "$program"; done
    fi
done
finish
