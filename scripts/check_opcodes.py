#!/usr/bin/env python3
"""Checks the machine code that `make cuda` built, without a GPU: check_opcodes.py [FOLDER], by
default build/cuda. The NVFP4 GEMM must hold FP4 tensor core instructions for sm_120, what writes
codes of FP4 the hardware's conversion, also the stochastic one of sm_100 and sm_103, and none in
software, wherever there is one; their kernels
must not spill registers and must fit into a block's shared memory. Prints totals and changes
nothing. Exits 1 on a breach; else 2 where a GPU target was not built, which is not checked then.

Source of the numbers: the low 12 bits of a 16-byte instruction are its opcode; those of interest
were found by assembling one instruction at a time with CUDA 13.0."""

import collections
import pathlib
import re
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED_LIMIT = 99 * 1024

# What is counted: name, opcode, immediate operand (None: any), and bits of the second word that tell
# variants apart.
OPCODES = [
    ("OMMA", 0x47F, None, 0, 0),                          # mma.sync mxf4nvf4
    ("F2FP.E2M1", 0x23E, None, 0x0FFFFF00, 0x04207000),   # cvt.rn.satfinite.e2m1x2.f32
    ("F2FP.E2M1.RS", 0x23E, None, 0x0FFFFF00, 0x04227000),   # half a cvt.rs...e2m1x4
    ("FMUL 2^-126", 0x820, 0x00800000, 0, 0),             # how e2m1x8_encode makes codes without it
    ("LDL", 0x983, None, 0, 0),                           # spills come back
    ("STL", 0x387, None, 0, 0),                           # spills go out
]

# `kernel`: a pattern of its name. Mode 0 of a pair's operand is "absent".
Rule = collections.namedtuple("Rule", "object kernel arches opcode least most")
ANY = 1 << 30
GEMM, QUANTIZE = "llmc/ops/gemm_mma.cu.o", "llmc/ops/quantize.cu.o"
CELL = "llmc/ops/quantize_cell.cu.o"             # each thread: 16 elements of any operand
WITH_FP4, WITHOUT_FP4 = (100, 103, 120), (80, 90)
WITH_RANDOM, WITHOUT_RANDOM = (100, 103), (80, 90, 120)
TWO_CODED = "PairCodesL8PairMode[12]ELS1_[12]E"   # each thread: 32 elements of either operand
ONE_CODED = "PairCodesL8PairMode(0ELS1_[12]|[12]ELS1_0)E"
BOTH_RANDOM = "PairCodesL8PairMode2ELS1_2E"       # mode 2 is "stochastic"
ONE_RANDOM = "PairCodesL8PairMode(2ELS1_[01]|[01]ELS1_2)E"
NOT_RANDOM = "PairCodesL8PairMode[01]ELS1_[01]E|PairValues"
RULES = [
    Rule(GEMM, "gemm_mma_kernel", (120,), "OMMA", 32, 32),
    Rule(GEMM, "gemm_mma_kernel", (80, 90, 100, 103), "OMMA", 0, 0),
    Rule(GEMM, "", (120,), "LDL", 0, 0),
    Rule(GEMM, "", (120,), "STL", 0, 0),
    Rule(QUANTIZE, TWO_CODED, WITH_FP4, "F2FP.E2M1", 32, 32),
    Rule(QUANTIZE, ONE_CODED, WITH_FP4, "F2FP.E2M1", 16, 16),
    Rule(QUANTIZE, BOTH_RANDOM, WITH_RANDOM, "F2FP.E2M1.RS", 32, 32),
    Rule(QUANTIZE, ONE_RANDOM, WITH_RANDOM, "F2FP.E2M1.RS", 16, 16),
    Rule(QUANTIZE, NOT_RANDOM, WITH_RANDOM, "F2FP.E2M1.RS", 0, 0),
    Rule(QUANTIZE, "", WITHOUT_RANDOM, "F2FP.E2M1.RS", 0, 0),
    Rule(QUANTIZE, "", WITH_FP4, "FMUL 2^-126", 0, 0),
    Rule(QUANTIZE, f"{TWO_CODED}|{ONE_CODED}", WITHOUT_FP4, "FMUL 2^-126", 1, ANY),
    Rule(QUANTIZE, "", WITH_FP4, "LDL", 0, 0),
    Rule(QUANTIZE, "", WITH_FP4, "STL", 0, 0),
    Rule(CELL, "cell_kernel", WITH_FP4, "F2FP.E2M1", 8, 8),
    Rule(CELL, "cell_kernel", WITH_FP4, "FMUL 2^-126", 0, 0),
    Rule(CELL, "cell_kernel", WITHOUT_FP4, "FMUL 2^-126", 1, ANY),
]


class Kernel:
    def __init__(self, arch, name):
        self.arch, self.name = arch, name
        self.counts = collections.Counter()
        self.shared = 0


def sections(elf):
    """(name, bytes in the file or None, size) of each section of a 64-bit ELF."""
    offset, = struct.unpack_from("<Q", elf, 40)
    entry, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, offset + i * entry) for i in range(count)]
    names_at = headers[names][4]
    for name_at, kind, _, _, at, size in headers:
        start = names_at + name_at
        name = elf[start:elf.index(b"\0", start)].decode()
        yield name, None if kind == 8 else elf[at:at + size], size   # 8: takes no room in the file


def images(data, path):
    """(architecture, ELF) of each GPU of the fat binaries in an object file."""
    at = data.find(struct.pack("<I", 0xBA55ED50))
    while at >= 0:
        header, size = struct.unpack_from("<HQ", data, at + 6)
        end = at + header + size
        at += header
        while at < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
            arch, = struct.unpack_from("<I", data, at + 28)
            image = data[at + header:at + header + size]
            if kind == 2:   # 1 is PTX
                if image[:4] != b"\x7fELF":
                    sys.exit(f"{path}: its code for sm_{arch} is compressed; build with "
                             "-Xfatbin=-no-compress")
                yield arch, image
            at += header + size
        at = data.find(struct.pack("<I", 0xBA55ED50), end)


def count_opcodes(code):
    counts = collections.Counter()
    for low, high in struct.iter_unpack("<QQ", code):
        for name, opcode, immediate, mask, bits in OPCODES:
            if (low & 0xFFF == opcode and high & mask == bits and
                    immediate in (None, low >> 32)):
                counts[name] += 1
    return counts


def read_kernels(path):
    kernels = {}
    for arch, image in images(path.read_bytes(), path):
        for section, data, size in sections(image):
            match = re.match(r"\.(text|nv\.shared)\.(_Z\w+)$", section)
            if not match:
                continue
            kernel = kernels.setdefault((arch, match.group(2)), Kernel(arch, match.group(2)))
            if match.group(1) == "text":
                kernel.counts = count_opcodes(data)
            else:
                kernel.shared = size
    return kernels.values()


def check_rule(rule, kernels):
    """Breaches of one rule among the kernels of its object, for the targets it was built for."""
    built = {k.arch for k in kernels}
    for arch in sorted(built & set(rule.arches)):
        found = [k for k in kernels if k.arch == arch and re.search(rule.kernel, k.name)]
        if not found:
            yield f"{rule.object}: sm_{arch}: no kernel is named like {rule.kernel}"
        for kernel in found:
            count = kernel.counts[rule.opcode]
            if not rule.least <= count <= rule.most:
                yield (f"{rule.object}: sm_{arch} {kernel.name}: {count} {rule.opcode}, "
                       f"want {rule.least} to {rule.most}")


def print_totals(name, arch, kernels):
    counts = sum((k.counts for k in kernels), collections.Counter())
    text = "  ".join(f"{opcode[0]} {counts[opcode[0]]}" for opcode in OPCODES)
    print(f"{name}  sm_{arch}  {len(kernels)} kernels  {text}  "
          f"shared up to {max(k.shared for k in kernels)}")


def check_object(name, kernels):
    """Breaches of the kernels of one object."""
    for k in kernels:
        if k.shared > SHARED_LIMIT:
            yield (f"{name}: sm_{k.arch} {k.name}: {k.shared} bytes of shared memory,"
                   f" limit {SHARED_LIMIT}")
    for rule in RULES:
        if rule.object == name:
            yield from check_rule(rule, kernels)


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/cuda")
    breaches, missing = [], []
    for name in dict.fromkeys(rule.object for rule in RULES):
        path = folder / name
        kernels = []
        if path.is_file():
            kernels = sorted(read_kernels(path), key=lambda k: (k.arch, k.name))
        built = sorted({k.arch for k in kernels})
        for arch in built:
            print_totals(name, arch, [k for k in kernels if k.arch == arch])
        breaches += check_object(name, kernels)
        absent = [f"sm_{arch}" for arch in WITHOUT_FP4 + WITH_FP4 if arch not in built]
        if absent:
            missing.append(f"{path}: not built for {', '.join(absent)}: not checked there")
    if missing:
        missing.append('make cuda SM="$(make -s all-sm)" builds all targets')
    verdict = f"opcodes: {len(breaches)} breaches"
    print("\n".join(breaches + missing + [verdict + ("; targets are missing" if missing else "")]))
    return 1 if breaches else 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
