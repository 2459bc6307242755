#!/usr/bin/env bash
# Runs a training command and starts it again when it was ended from outside, until it is done:
#
#   scripts/keep_running.sh [OPTION...] COMMAND...
#   scripts/keep_running.sh ./train_gpt_nvfp4 run.json
#   scripts/keep_running.sh --tries 20 mpirun -np 8 ./train_gpt_nvfp4 run.json
#
#   --tries N         starts in a row that may end without progress (default 5)
#   --progress DIR    ckpt.dir: progress is a new step_* there; without it, to have run 10 minutes
#   --wait SECONDS    before the second start, doubled for each one after it (default 10)
#   --most SECONDS    longest wait (default 600)
#   --also CODE       start again after this exit code, too; may be given several times
#   --requeue         under Slurm, after a signal: `scontrol requeue` this job
#
# Started again: 4 device, NCCL or MPI failed; 7 hang; 130 stopped by a signal that this script did
# not get; 128+N killed by signal N (137: kill -9, or the machine out of memory); 1 and 255, with which
# mpirun and srun end when they lose a process or a node. Never, without --also: 2 config, 3 data or
# disk, 5 out of memory, 6 diverged: the same command would end the same way.
#
# SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 ask the command to save and end, and this script ends
# with it. The command gets SIGUSR1 for each: mpirun passes that on to all ranks and waits for them,
# while it kills them a second or two after SIGTERM. A Slurm job that is told 2 minutes ahead:
#   #SBATCH --requeue --signal=B:USR1@120
#   exec scripts/keep_running.sh --requeue mpirun ./train_gpt_nvfp4 run.json
set -uo pipefail

tries=5 wait_s=10 most_s=600 progress="" requeue=0 again=" 1 4 7 130 255 "
HEALTHY_S=600

say() { echo "keep_running: $*" >&2; }

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }

refuse() {
    say "$*; --help explains"
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
    --tries | --wait | --most | --also)
        [[ ${2:-} =~ ^[0-9]+$ ]] || refuse "$1 needs a number, not '${2:-}'"
        [ "$1" != --tries ] || [ "$2" -gt 0 ] || refuse "--tries needs at least 1"
        case $1 in
        --tries) tries=$2 ;;
        --wait) wait_s=$2 ;;
        --most) most_s=$2 ;;
        --also) again="$again$2 " ;;
        esac
        shift 2
        ;;
    --progress)
        [ -n "${2:-}" ] || refuse "--progress needs a directory"
        progress=$2
        shift 2
        ;;
    --requeue) requeue=1 && shift ;;
    --help | -h) usage && exit 0 ;;
    --) shift && break ;;
    -*) refuse "unknown option $1" ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || refuse "there is no command"

child="" stopped_by=""

# A second signal is passed on, too: the command decides what it means.
pass_on() {   # NAME
    stopped_by=$1
    [ -z "$child" ] || kill -USR1 "$child" 2>/dev/null
}
for name in TERM INT HUP USR1 USR2; do
    # shellcheck disable=SC2064  # the name of this turn
    trap "pass_on SIG$name" "$name"
done

# Job control gives the command a process group of its own: Ctrl-C reaches this script alone.
set -m

# Runs the command; its exit code in $code. `wait` returns early for each signal.
run_once() {   # COMMAND...
    "$@" </dev/null &
    child=$!
    code=129
    while [ "$code" -gt 128 ] && kill -0 "$child" 2>/dev/null; do
        wait "$child"
        code=$?
    done
    [ "$code" -le 128 ] || { wait "$child" 2>/dev/null; code=$?; }
    child=""
}

describe() {   # EXIT_CODE
    case $1 in
    0) echo "done" ;;
    1) echo "mpirun or srun lost a process" ;;
    2) echo "command line or config" ;;
    3) echo "data, checkpoint or disk" ;;
    4) echo "device, NCCL or MPI" ;;
    5) echo "out of memory" ;;
    6) echo "diverged" ;;
    7) echo "hang, or a rank went away" ;;
    130) echo "stopped by a signal, checkpoint saved" ;;
    137) echo "killed: kill -9, or the machine ran out of memory" ;;
    *) if [ "$1" -gt 128 ]; then echo "killed by signal $(($1 - 128))"; else echo "unknown"; fi ;;
    esac
}

may_start_again() {   # EXIT_CODE
    [[ $again == *" $1 "* ]] || { [ "$1" -gt 128 ] && [ "$1" -lt 160 ]; }
}

newest_checkpoint() {
    [ -n "$progress" ] && find "$progress" -maxdepth 1 -name 'step_*' 2>/dev/null | sort | tail -1
}

progressed() {
    if [ -n "$progress" ]; then
        [ "$(newest_checkpoint)" != "$newest" ]
    else
        [ $((SECONDS - started)) -ge $HEALTHY_S ]
    fi
}

failures=0
delay=$wait_s
newest=$(newest_checkpoint)
while :; do
    started=$SECONDS
    run_once "$@"
    if [ -n "$stopped_by" ]; then
        say "$stopped_by: the command ended with $code ($(describe "$code"))"
        if [ "$requeue" -eq 1 ] && [ "$code" -ne 0 ] && [ -n "${SLURM_JOB_ID:-}" ]; then
            say "scontrol requeue $SLURM_JOB_ID"
            scontrol requeue "$SLURM_JOB_ID"
        fi
        exit "$code"
    fi
    [ "$code" -ne 0 ] || exit 0
    if ! may_start_again "$code"; then
        say "the command ended with $code ($(describe "$code")); it is not started again"
        exit "$code"
    fi
    if progressed; then failures=0 delay=$wait_s newest=$(newest_checkpoint); fi
    failures=$((failures + 1))
    ended="the command ended with $code ($(describe "$code"))"
    if [ "$failures" -ge "$tries" ]; then
        say "$ended; $failures starts in a row without progress are enough"
        exit "$code"
    fi
    say "$ended; starts again in $delay s, $failures of $tries without progress"
    sleep "$delay" &
    child=$!
    wait "$child"
    child=""
    if [ -n "$stopped_by" ]; then
        say "$stopped_by while it waited"
        exit 130
    fi
    delay=$((delay * 2 < most_s ? delay * 2 : most_s))
done
