#!/usr/bin/env bash
# Installs what the program and its scripts need on Debian or Ubuntu, and only what is missing:
#   packages   compiler, make, cJSON, Open MPI, OpenBLAS, Python with venv, xz
#   .venv      Python packages pinned in scripts/requirements*.txt
# usage: scripts/setup.sh [--tests] [--fuzz]
#   --tests    adds what only the tests need (JAX; iproute2, for ranks in network namespaces)
#   --fuzz     adds what `make fuzz` needs (clang with libFuzzer)
# Says what it does, asks nothing, and does nothing and needs no network where all is there. Without
# root it prints the command to run. CUDA is not installed: see README.md.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup: $*"; }
stop() { echo "setup: $*" >&2; exit 1; }

with_tests=0 with_fuzz=0
for argument in "$@"; do
    case "$argument" in
        --tests) with_tests=1 ;;
        --fuzz) with_fuzz=1 ;;
        *)
            say "unknown argument '$argument'; usage: scripts/setup.sh [--tests] [--fuzz]" >&2
            exit 2
            ;;
    esac
done

# --- system packages ---

has_package() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q "ok installed"; }
has_header() {
    local folder
    for folder in /usr/include "/usr/include/$(uname -m)-linux-gnu" /usr/local/include; do
        [ ! -e "$folder/$1" ] || return 0
    done
    return 1
}

# A Python of at least 3.10 that can make virtual environments: first in PATH, else the system's.
find_python() {
    local python test='import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))'
    for python in python3 /usr/bin/python3; do
        if "$python" -c "$test" 2>/dev/null; then
            echo "$python"
            return
        fi
    done
}

missing_packages() {
    command -v gcc >/dev/null || echo gcc
    command -v g++ >/dev/null || echo g++
    command -v make >/dev/null || echo make
    command -v xz >/dev/null || echo xz-utils
    command -v git >/dev/null || echo git
    command -v mpirun >/dev/null || echo openmpi-bin
    command -v mpicc >/dev/null || echo libopenmpi-dev
    has_package libcjson-dev || has_header cjson/cJSON.h || echo libcjson-dev
    has_package libopenblas-dev || has_header cblas.h || echo libopenblas-dev
    [ -n "$(find_python)" ] || echo python3-venv
    [ "$with_tests" -eq 0 ] || command -v ip >/dev/null || echo iproute2
}

has_fuzzer() {
    echo 'int LLVMFuzzerTestOneInput(const char *data, long size) { return size > 0 && *data; }' |
        clang -fsanitize=fuzzer -x c - -o /dev/null 2>/dev/null
}

# clang's run-time libraries are a package of their own in some releases, and only there.
missing_fuzzer() {
    echo clang
    ! apt-cache show libclang-rt-dev >/dev/null 2>&1 || echo libclang-rt-dev
}

install_packages() {   # PACKAGE...
    local missing=$*
    if [ -z "$missing" ]; then
        say "system packages: all there"
        return
    fi
    command -v apt-get >/dev/null ||
        stop "not Debian or Ubuntu; install by hand what these packages hold: $missing"
    if [ "$(id -u)" -ne 0 ]; then
        echo "setup: these packages are missing, and installing them needs root. Run:" >&2
        echo "    sudo apt-get update &&" \
            "sudo apt-get install -y --no-install-recommends $missing" >&2
        echo "and start this again." >&2
        exit 1
    fi
    say "installing $missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q || say "apt-get update failed; trying with the package lists at hand"
    # shellcheck disable=SC2086  # one word a package
    apt-get install -y -q --no-install-recommends $missing ||
        stop "apt-get could not install: $missing"
}

# --- Python packages ---

# A stamp holds the checksum of the file it stands for, so that a new pin is installed once.
is_current() { [ "$(cat ".venv/$1.stamp" 2>/dev/null)" = "$(sha256sum < "scripts/$1.txt")" ]; }

pip_install() {   # NAME [pip options]: installs scripts/NAME.txt; false where that fails
    local name=$1
    shift
    is_current "$name" && return
    say "installing the Python packages of scripts/$name.txt into .venv"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --progress-bar off "$@" \
        -r "scripts/$name.txt" || return 1
    sha256sum < "scripts/$name.txt" > ".venv/$name.stamp"
}

make_venv() {
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        local python
        python=$(find_python)
        [ -n "$python" ] || stop "no Python 3.10 or newer with venv; install python3-venv"
        say "making .venv with $("$python" --version)"
        rm -rf .venv
        "$python" -m venv .venv
    fi
    pip_install requirements || stop "pip could not install scripts/requirements.txt"
    if [ "$with_tests" -eq 1 ]; then
        pip_install requirements-test || stop "pip could not install scripts/requirements-test.txt"
    fi
    if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
        pip_install requirements-cuda --no-deps ||
            say "no cuDNN frontend: GPU attention will use the program's own kernel"
    fi
    say "Python packages: all there"
}

# shellcheck disable=SC2046  # one word a package
install_packages $(missing_packages)
if [ "$with_fuzz" -eq 1 ]; then
    # shellcheck disable=SC2046
    has_fuzzer || install_packages $(missing_fuzzer)
    has_fuzzer || stop "this clang has no libFuzzer; install its compiler-rt"
fi
make_venv
