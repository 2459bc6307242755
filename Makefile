# train_gpt_nvfp4 -- `make help` lists the targets. No configure step: what this machine has is looked
# up below and printed. Optional libraries choose source files, never an #ifdef; the one macro is
# WITH_CUDA, for train_gpt_nvfp4.cu.

# --- what a user may set: make cuda SM="90a" CUDNN_FRONTEND=/opt/cudnn-frontend/include ---

ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin CXX),default)
CXX := g++
endif
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
NVCC_THREADS ?= 2
# For the machine that compiles; a program to be carried elsewhere wants ARCH=x86-64-v3 or the like.
ARCH ?= native
# Empty (WERROR=) lets a compiler newer than this file warn without stopping.
WERROR ?= -Werror
# CUDNN_FRONTEND is the folder of cudnn_frontend.h, and then the only one that counts; `none` or nothing
# builds without cuDNN. Unset: the wheel that scripts/setup.sh installs, else the system's.
# Runs only the test programs whose name contains it: make test ONLY=quantize
ONLY ?=
FUZZ_SECONDS ?= 20
# Which dev/bench_*.c or .cu `make bench` builds and runs.
BENCH ?= bench_step
BUILD ?= build

PROGRAM := train_gpt_nvfp4

# --- what this machine has ---

# $(call links,HEADER,FLAGS): "yes" where a program that includes the header links with the flags.
links = $(shell echo 'int main(void) { return 0; }' | \
    $(CXX) -include $(1) -x c++ - $(2) -o /dev/null 2>/dev/null && echo yes)

NO_CUDA := no nvcc
ifneq ($(NVCC),)
ifeq ($(shell $(NVCC) --list-gpu-code 2>/dev/null | grep -x sm_120),)
NO_CUDA := $(NVCC) is older than CUDA 12.8
override NVCC :=
endif
endif

CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_LINK := -I$(CUDA_HOME)/include -L$(CUDA_HOME)/lib64

MPI_COMPILE := $(shell mpicc --showme:compile 2>/dev/null)
MPI_LINK := $(shell mpicc --showme:link 2>/dev/null)
OPENBLAS := $(call links,cblas.h,-lopenblas)

ifneq ($(NVCC),)
NCCL := $(call links,nccl.h,$(CUDA_LINK) -lnccl)
CUDNN := $(call links,cudnn.h,$(CUDA_LINK) -lcudnn)
frontend_in = $(patsubst %/,%,$(dir $(firstword $(wildcard $(addsuffix /cudnn_frontend.h,$(1))))))
ifeq ($(origin CUDNN_FRONTEND),undefined)
FRONTEND := $(call frontend_in,.venv/lib/python3*/site-packages/include /usr/include /usr/local/include)
NO_FRONTEND := $(if $(CUDNN), frontend)
else
ASKED_FRONTEND := $(filter-out none,$(CUDNN_FRONTEND))
FRONTEND := $(call frontend_in,$(ASKED_FRONTEND))
ifeq ($(FRONTEND),)
NO_FRONTEND := $(if $(ASKED_FRONTEND), frontend at $(ASKED_FRONTEND))
NOT_A_FRONTEND := $(wildcard $(ASKED_FRONTEND))
endif
endif
USE_CUDNN := $(and $(CUDNN),$(FRONTEND))
# All GPUs this program knows, 80 also as PTX for the others. nvcc 12.8 has no family targets yet.
FAMILIES := $(shell $(NVCC) --help | grep -q compute_120f && echo yes)
ALL_SM := 80 90a 100a $(if $(FAMILIES),103a 120f,120a)
# Compute capability of the GPUs present -> the target with their tensor core instructions.
GPU_SM = $(sort $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
    sed -n 's/^\([0-9]*\)\.\([0-9]\)$$/\1\2/p' | \
    sed 's/^\(90\|100\|103\)$$/\1a/; s/^12[01]$$/$(filter 120%,$(ALL_SM))/'))
SM ?= $(or $(GPU_SM),$(ALL_SM))
SM := $(SM)
endif

# --- sources, by layer; alternatives are taken out and one of each put back ---

C_ALTERNATIVES := llmc/comm_mpi_absent.c llmc/comm_mpi.c llmc/comm_device_host.c \
    llmc/ops/gemm_plain.c llmc/ops/gemm_openblas.c llmc/ops/attention_cudnn_absent.c
C_SOURCES := $(filter-out $(C_ALTERNATIVES),$(wildcard llmc/*.c llmc/ops/*.c llmc/blocks/*.c)) \
    $(if $(MPI_LINK),llmc/comm_mpi.c,llmc/comm_mpi_absent.c) \
    $(if $(OPENBLAS),llmc/ops/gemm_openblas.c,llmc/ops/gemm_plain.c)
CPU_SOURCES := $(C_SOURCES) llmc/comm_device_host.c
CUDA_SOURCES := $(C_SOURCES) \
    $(filter-out llmc/comm_nccl.cu,$(wildcard llmc/*.cu llmc/ops/*.cu)) \
    $(if $(NCCL),llmc/comm_nccl.cu,llmc/comm_device_host.c) \
    $(if $(USE_CUDNN),llmc/ops/attention_cudnn.cpp,llmc/ops/attention_cudnn_absent.c)

# --- flags ---

# -ffp-contract=off   the reference rounds where its source says so, on every processor
# -fno-math-errno, -fno-trapping-math   let loops with sqrtf and conditionals vectorise; they change no
#                     result. Nothing of -ffast-math beyond these: sums keep their order.
OPTIMISE := -O3 -march=$(ARCH) -ffp-contract=off -fno-math-errno -fno-trapping-math
WARN := -Wall -Wextra $(WERROR)
COMMON := -g -fopenmp -D_GNU_SOURCE -I. -Illmc -MMD -MP $(WARN)
C_FLAGS := -std=c11 $(COMMON)
CXX_FLAGS := -std=c++17 $(COMMON)
SANITIZE := -O1 -ffp-contract=off -fno-omit-frame-pointer -fsanitize=address,undefined \
    -fsanitize=float-cast-overflow -fno-sanitize-recover=all
LIBS := -lcjson $(if $(OPENBLAS),-lopenblas) $(MPI_LINK) -lm -lpthread

# The defaults of nvcc, said aloud: denormals are kept and division is exact. Kernels may contract
# to fma; quantisers, which must not, use the _rn intrinsics, or -fmad=false (see below).
gencode = -gencode arch=compute_$(1),code=$(if $(filter 80,$(1)),[sm_80$(COMMA)compute_80],sm_$(1))
COMMA := ,
NVCC_FLAGS = -O3 -std=c++17 -g -lineinfo -I. -Illmc -MMD -MP -DWITH_CUDA \
    -ftz=false -prec-div=true -prec-sqrt=true \
    $(if $(WERROR),-Werror all-warnings) --threads $(NVCC_THREADS) \
    -Xcompiler -fopenmp,-ffp-contract=off,-Wall,-Wextra$(if $(WERROR),$(COMMA)-Werror) \
    $(foreach sm,$(SM),$(call gencode,$(sm)))
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt $(if $(NCCL),-lnccl) \
    $(if $(USE_CUDNN),-lcudnn -lnvrtc) -lcudart_static -ldl -lrt

# Maps of fuzz targets are copies (test/fuzzing.c), and refusals return from die() to libFuzzer. clang
# takes omp.h (and nothing beside it) and libgomp from gcc, and runs loops on one thread.
WRAP_MAPS := -Wl,--wrap=mmap,--wrap=munmap
FUZZ := -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined \
    -idirafter $(BUILD)/fuzz/include
FUZZ_LINK := -fsanitize=fuzzer,address,undefined -Wl,--wrap=die $(WRAP_MAPS) \
    -L$(dir $(shell $(CC) -print-file-name=libgomp.so)) -lgomp

has_mpi := $(if $(MPI_LINK),MPI,no MPI)
has_blas := $(if $(OPENBLAS),OpenBLAS,no OpenBLAS)
has_nccl := $(if $(NCCL),NCCL,no NCCL)
has_cudnn := $(if $(USE_CUDNN),cuDNN,no cuDNN$(NO_FRONTEND))
CPU_BUILD := CPU build ($(has_mpi), $(has_blas))
CUDA_BUILD := CUDA build for $(SM) ($(has_nccl), $(has_cudnn), $(has_mpi), $(has_blas))

# --- targets ---

.PHONY: all cpu cuda test test-cuda test-cuda-nogpu asan fuzz bench includes format help all-sm clean FORCE
.DELETE_ON_ERROR:
# Objects of libraries and tests stay, though make sees them as steps on the way.
.SECONDARY:

ifneq ($(NVCC),)
HERE := cuda
else
HERE := cpu
endif

all: $(HERE)   ## this machine's program: CUDA where nvcc is found, else CPU (the default)

cpu: $(BUILD)/cpu/$(PROGRAM)   ## the program without CUDA, whatever this machine has
	@echo '$(CPU_BUILD)$(if $(NVCC),,: $(NO_CUDA))'
	@ln -sfn $< $(PROGRAM)

ifneq ($(NVCC),)
cuda: $(BUILD)/cuda/$(PROGRAM)   ## the program with CUDA; SM="80 90a 100a 103a 120f" picks GPUs
	@printf '%s: %s\n' '$(CUDA_BUILD)' "$$(wc -c < $< | awk '{ printf "%.1f MB", $$1 / 1e6 }')"
	@ln -sfn $< $(PROGRAM)
else
cuda:
	@echo 'make cuda: $(NO_CUDA)' >&2; exit 1
endif

# A fuzz target is a test, too: of the inputs in test/fuzz_corpus.
FUZZ_TESTS := $(basename $(notdir $(wildcard test/fuzz_*.c)))
C_TESTS := $(basename $(notdir $(wildcard test/test_*.c test/test_*.cpp))) $(FUZZ_TESTS)
CUDA_TESTS := $(basename $(notdir $(wildcard test/test_*.cu)))
NOGPU_TESTS := test_gemm_descriptors
only = $(if $(ONLY),$(foreach name,$(1),$(if $(findstring $(ONLY),$(name)),$(name))),$(1))

test: $(addprefix $(BUILD)/cpu/test/,$(call only,$(C_TESTS)))   ## tests on the CPU; ONLY=word picks some
	@scripts/run_tests.sh $^

test-cuda: $(addprefix $(BUILD)/cuda/test/,$(call only,$(CUDA_TESTS)))   ## tests that need a GPU
	@scripts/run_tests.sh $^

test-cuda-nogpu: $(addprefix $(BUILD)/cuda/test/,$(NOGPU_TESTS))   ## those that need nvcc but no GPU
	@scripts/run_tests.sh $^

asan: $(addprefix $(BUILD)/asan/test/,$(call only,$(C_TESTS)))   ## CPU tests under ASan and UBSan
	@scripts/run_tests.sh $^

# Each runs for FUZZ_SECONDS; what it finds lies beside it, in build/fuzz. An input of 4 KB or less
# has no business with 64 MB or 10 s.
FUZZERS := $(addprefix $(BUILD)/fuzz/,$(call only,$(FUZZ_TESTS)))
FUZZ_RUN := -max_total_time=$(FUZZ_SECONDS) -timeout=10 -malloc_limit_mb=64 -rss_limit_mb=1024 \
    -print_final_stats=1
ifneq ($(shell command -v clang),)
fuzz: $(FUZZERS)   ## libFuzzer on all readers of files, FUZZ_SECONDS each (scripts/setup.sh --fuzz)
	@set -e; for fuzzer in $^; do \
	    corpus=test/fuzz_corpus/$${fuzzer##*/fuzz_}; \
	    mkdir -p $$fuzzer.corpus; \
	    echo "== $${fuzzer##*/}"; \
	    TMPDIR=$${TMPDIR:-$$(ls -d /dev/shm 2>/dev/null || echo /tmp)} $$fuzzer $(FUZZ_RUN) \
	        $$(ls $$corpus.dict 2>/dev/null | sed 's/^/-dict=/') -artifact_prefix=$$fuzzer. \
	        $$fuzzer.corpus $$corpus; \
	done
else
fuzz:
	@echo 'make fuzz needs clang and its libFuzzer: scripts/setup.sh --fuzz' >&2; exit 1
endif

# A benchmark in C runs on the CPU, one in CUDA on a GPU.
bench_path = $(BUILD)/$(if $(wildcard dev/$(1).cu),cuda,cpu)/dev/$(1)
bench: $(foreach name,$(BENCH),$(call bench_path,$(name)))   ## speed of the demo's step; BENCH=name for others
	@set -e; for bench in $^; do $$bench; done

includes:   ## layering, sizes, and that each header compiles alone
	@python3 scripts/check_includes.py

format:   ## clang-format over all C and CUDA files
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp')

help:   ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*##* \(.*\)/\1 \2/p' Makefile | \
	    while read -r name text; do printf '  make %-15s %s\n' "$$name" "$$text"; done
	@echo '  here: $(if $(NVCC),$(CUDA_BUILD),$(CPU_BUILD): $(NO_CUDA))'

all-sm:   ## prints every GPU target that nvcc can build for; nothing without nvcc
	@echo '$(ALL_SM)'

clean:   ## removes the build folder and the program
	rm -rf $(BUILD) $(PROGRAM)

# --- rules: objects of each kind of build lie apart; .cu and .cpp keep their suffix, as an op's
#     reference and its CUDA version share a name ---

objects = $(addprefix $(BUILD)/$(1)/,$(patsubst %.cu,%.cu.o,$(patsubst %.cpp,%.cpp.o, \
    $(patsubst %.c,%.o,$(2))))) $(BUILD)/$(1)/version.o
mpi_flags = $(if $(filter %comm_mpi.c,$<),$(MPI_COMPILE))

$(BUILD)/cpu/%.o: %.c $(BUILD)/cpu/flags
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) $(OPTIMISE) $(mpi_flags) -c $< -o $@

$(BUILD)/cpu/$(PROGRAM).o: $(PROGRAM).cu $(BUILD)/cpu/flags
	@mkdir -p $(@D)
	$(CXX) $(CXX_FLAGS) -O2 -x c++ -c $< -o $@

# Kernels under a host simulation: #pragma unroll means nothing here.
$(BUILD)/cpu/%.o: %.cpp $(BUILD)/cpu/flags
	@mkdir -p $(@D)
	$(CXX) $(CXX_FLAGS) -Wno-unknown-pragmas $(OPTIMISE) -c $< -o $@

$(BUILD)/cuda/%.o: %.c $(BUILD)/cuda/flags
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) $(OPTIMISE) $(mpi_flags) -c $< -o $@

# -O1 without -g: the cuDNN frontend's headers take minutes and gigabytes otherwise, for code that runs
# once a shape.
$(BUILD)/cuda/%.cpp.o: %.cpp $(BUILD)/cuda/flags
	@mkdir -p $(@D)
	$(CXX) $(filter-out -g,$(CXX_FLAGS)) -O1 -isystem $(CUDA_HOME)/include \
	    -isystem $(FRONTEND) -c $< -o $@

$(BUILD)/cuda/%.cu.o: %.cu $(BUILD)/cuda/flags
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) -MT $@ -MF $(@:.o=.d) -c $< -o $@

# Its functions are C's (ops/cell.h), which the CPU compiles without contraction.
$(BUILD)/cuda/llmc/ops/quantize_cell.cu.o: NVCC_FLAGS += -fmad=false

$(BUILD)/asan/%.o: %.c $(BUILD)/asan/flags
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) $(SANITIZE) $(mpi_flags) -c $< -o $@

$(BUILD)/asan/%.o: %.cpp $(BUILD)/asan/flags
	@mkdir -p $(@D)
	$(CXX) $(CXX_FLAGS) -Wno-unknown-pragmas $(SANITIZE) -c $< -o $@

$(BUILD)/asan/$(PROGRAM).o: $(PROGRAM).cu $(BUILD)/asan/flags
	@mkdir -p $(@D)
	$(CXX) $(CXX_FLAGS) $(SANITIZE) -x c++ -c $< -o $@

$(BUILD)/fuzz/%.o: %.c $(BUILD)/fuzz/flags
	@mkdir -p $(@D)
	clang $(filter-out -fopenmp,$(C_FLAGS)) -Wno-unknown-pragmas $(FUZZ) $(mpi_flags) -c $< -o $@

# Programs link against one library a build, so that each takes only what it uses.
$(BUILD)/cpu/libllmc.a: $(call objects,cpu,$(CPU_SOURCES))
$(BUILD)/cuda/libllmc.a: $(call objects,cuda,$(CUDA_SOURCES))
$(BUILD)/asan/libllmc.a: $(call objects,asan,$(CPU_SOURCES))
$(BUILD)/fuzz/libllmc.a: $(call objects,fuzz,$(CPU_SOURCES))
%/libllmc.a:
	@rm -f $@
	ar rcs $@ $^

# What makes a test program of a fuzz target.
REPLAY := test/fuzzing.o test/fuzzing_replay.o

LINK_CPU = $(CXX) -fopenmp $^ -o $@ $(LIBS)
LINK_CUDA = $(CXX) -fopenmp $^ -o $@ $(LIBS) $(CUDA_LIBS)

$(BUILD)/cpu/$(PROGRAM): $(BUILD)/cpu/$(PROGRAM).o $(BUILD)/cpu/libllmc.a
	$(LINK_CPU)
$(BUILD)/cpu/test/%: $(BUILD)/cpu/test/%.o $(BUILD)/cpu/libllmc.a
	$(LINK_CPU)
$(BUILD)/cpu/dev/%: $(BUILD)/cpu/dev/%.o $(BUILD)/cpu/libllmc.a
	$(LINK_CPU)
$(BUILD)/cuda/$(PROGRAM): $(BUILD)/cuda/$(PROGRAM).cu.o $(BUILD)/cuda/libllmc.a
	$(LINK_CUDA)
$(BUILD)/cuda/test/%: $(BUILD)/cuda/test/%.cu.o $(BUILD)/cuda/libllmc.a
	$(LINK_CUDA)
$(BUILD)/cuda/dev/%: $(BUILD)/cuda/dev/%.cu.o $(BUILD)/cuda/libllmc.a
	$(LINK_CUDA)
$(BUILD)/cuda/dev/%: $(BUILD)/cuda/dev/%.o $(BUILD)/cuda/libllmc.a
	$(LINK_CUDA)
$(BUILD)/cpu/test/fuzz_%: $(BUILD)/cpu/test/fuzz_%.o $(addprefix $(BUILD)/cpu/,$(REPLAY)) \
    $(BUILD)/cpu/libllmc.a
	$(LINK_CPU) $(WRAP_MAPS)
LINK_ASAN = $(CXX) -fopenmp -fsanitize=address,undefined $^ -o $@ $(LIBS)
$(BUILD)/asan/$(PROGRAM): $(BUILD)/asan/$(PROGRAM).o $(BUILD)/asan/libllmc.a
	$(LINK_ASAN)
$(BUILD)/asan/test/%: $(BUILD)/asan/test/%.o $(BUILD)/asan/libllmc.a
	$(LINK_ASAN)
$(BUILD)/asan/test/fuzz_%: $(BUILD)/asan/test/fuzz_%.o $(addprefix $(BUILD)/asan/,$(REPLAY)) \
    $(BUILD)/asan/libllmc.a
	$(LINK_ASAN) $(WRAP_MAPS)
$(BUILD)/fuzz/fuzz_%: $(BUILD)/fuzz/test/fuzz_%.o $(BUILD)/fuzz/test/fuzzing.o \
    $(BUILD)/fuzz/test/fuzzing_run.o $(BUILD)/fuzz/libllmc.a
	clang++ $^ -o $@ $(LIBS) $(FUZZ_LINK)

# These start the program of their own build.
PROGRAM_TESTS := $(filter test_program%,$(C_TESTS))
$(addprefix $(BUILD)/cpu/test/,$(PROGRAM_TESTS)): | $(BUILD)/cpu/$(PROGRAM)
$(addprefix $(BUILD)/asan/test/,$(PROGRAM_TESTS)): | $(BUILD)/asan/$(PROGRAM)

# Files whose content is a fact; written anew only when it changes, so that what depends on them is
# built anew only then: the flags of each build, and the commit.
write_if_changed = @mkdir -p $(@D); printf '%s\n' '$(1)' > $@.new; \
    if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(BUILD)/cpu/flags: FORCE
	$(call write_if_changed,$(CC) $(CXX) $(C_FLAGS) $(OPTIMISE) $(MPI_COMPILE))
$(BUILD)/cuda/flags: FORCE
	$(if $(NOT_A_FRONTEND),$(error CUDNN_FRONTEND is $(NOT_A_FRONTEND), where there is no cudnn_frontend.h; \
	    name its folder, or CUDNN_FRONTEND=none builds without cuDNN))
	$(call write_if_changed,$(CC) $(CXX) $(C_FLAGS) $(OPTIMISE) $(MPI_COMPILE) $(NVCC) $(NVCC_FLAGS) $(FRONTEND))
$(BUILD)/asan/flags: FORCE
	$(call write_if_changed,$(CC) $(CXX) $(C_FLAGS) $(SANITIZE) $(MPI_COMPILE))
$(BUILD)/fuzz/flags: FORCE
	@mkdir -p $(@D)/include
	@ln -sfn $(shell $(CC) -print-file-name=include/omp.h) $(@D)/include/omp.h
	$(call write_if_changed,$(C_FLAGS) $(FUZZ) $(MPI_COMPILE))

GIT_HASH := $(or $(shell git describe --always --abbrev=12 --exclude='*' --dirty 2>/dev/null),unknown)
version_source = \#include "llmc/version.h"\nconst char *version_git_hash(void) { return "$(GIT_HASH)"; }\nconst char *version_build(void) { return "$(1)"; }
write_version = @mkdir -p $(@D); printf '$(call version_source,$(1))\n' > $@.new; \
    if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(BUILD)/cuda/version.c: FORCE
	$(call write_version,$(CUDA_BUILD))
$(BUILD)/%/version.c: FORCE
	$(call write_version,$(CPU_BUILD))
$(BUILD)/%/version.o: $(BUILD)/%/version.c
	$(CC) $(C_FLAGS) -c $< -o $@

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
