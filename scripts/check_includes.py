#!/usr/bin/env python3
"""Checks what the layout of this program promises (`make includes`): files include only their own
or a lower layer and never in a circle, each header compiles alone as C11 and C++17, CUDA stays in
CUDA files, WITH_CUDA in main, and files, functions, parameter lists and lines keep their limits.
Prints each breach as FILE:LINE and exits 1; it changes nothing. Needs Python, gcc and g++ only."""

import concurrent.futures
import fnmatch
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAIN = "train_gpt_nvfp4.cu"

# The first matching row decides; a file of llmc/ in no row is a breach: give it a place here.
LAYERS = [
    (8, "main", [MAIN]),
    (9, "tests and tools", ["test/*", "dev/*"]),
    (0, "facts", ["llmc/common.*", "llmc/dtype.*", "llmc/rng.*", "llmc/outfile.*",
                  "llmc/cache.*", "llmc/json_count.h", "llmc/stop.*", "llmc/version.*"]),
    (1, "the machine", ["llmc/device*", "llmc/tensor.*", "llmc/comm.*", "llmc/comm_*",
                        "llmc/zero.*"]),
    (2, "precision as data", ["llmc/recipe*"]),
    (3, "ops", ["llmc/ops.h", "llmc/ops_*", "llmc/ops/*"]),
    (4, "config, linear layers", ["llmc/config*", "llmc/schedule.*", "llmc/linear*"]),
    (5, "blocks", ["llmc/blocks/*"]),
    (6, "model", ["llmc/model*"]),
    (7, "training services", [f"llmc/{name}" for name in (
        "dataloader*", "tokenizer*", "optimizer*", "safetensors*", "checkpoint*",
        "metrics*", "eval*", "sampler*", "plan*", "train*", "guard*", "selftest*", "backend*",
        "gemm_rates*", "gemm_cache*", "resume*", "predict*", "network.*", "run.*", "run_*",
        "gradients*", "verbs*", "plain*", "parallel*", "telemetry*", "gradient_noise*",
        "oscillation*", "out_control*")]),
]

C_SUFFIXES = {".c", ".h", ".cu", ".cuh", ".cpp"}
CUDA_FILES = ("*.cu", "*.cuh", "*.cpp")
MAX_FILE, MAX_WIDTH, MAX_PARAMETERS = 800, 100, 8
MAX_FUNCTION, MAX_MAIN, MAX_KERNEL = 70, 100, 120

CUDA_NAME = re.compile(r"\b(cuda[A-Z]\w*|cublas\w*|nccl[A-Z]\w*|cudnn\w*|__nv_\w+|__half\w*|dim3)\b")
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def layer_of(path):
    for number, _, patterns in LAYERS:
        if any(fnmatch.fnmatch(path, pattern) for pattern in patterns):
            return number
    return None


def blank(text):
    """The source without comments and without what strings hold, every line where it was."""
    pattern = r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"

    def replace(match):
        found = match.group()
        if found[0] == "/":
            return re.sub(r"[^\n]", " ", found)
        return found[0] + " " * (len(found) - 2) + found[0]

    return re.sub(pattern, replace, text, flags=re.DOTALL)


class Source:
    def __init__(self, path):
        self.path = path
        self.text = (ROOT / path).read_text(encoding="utf-8")
        self.is_c = pathlib.PurePath(path).suffix in C_SUFFIXES
        self.code = blank(self.text) if self.is_c else ""

    def included(self):
        """(line, path from the root) of each include of a file of this program."""
        folder = os.path.dirname(self.path)
        lines = zip(self.text.split("\n"), self.code.split("\n"))
        for number, (line, code) in enumerate(lines, 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match or "#" not in code:   # no include, or one inside a comment
                continue
            for base in (folder, "llmc", ""):
                candidate = os.path.normpath(os.path.join(base, match.group(1)))
                if (ROOT / candidate).is_file():
                    yield number, candidate
                    break
            else:
                yield number, None

    def functions(self):
        """(name, signature, first line, lines) of each function body."""
        code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group()),
                      self.code, flags=re.MULTILINE)
        depth, wrappers, signature_at, body = 0, [], 0, None
        for match in re.finditer(r"[{};]", code):
            at, char = match.start(), match.group()
            signature = code[signature_at:at].strip()
            if char == "{":
                if depth == 0 and re.match(r'(extern\s+"\s*"|namespace\b[^()=]*)$', signature):
                    wrappers.append(at)
                    signature_at = at + 1
                    continue
                if depth == 0 and "=" not in signature.split("(")[0] and ")" in signature:
                    body = (signature, at)
                depth += 1
            elif char == "}":
                if depth == 0 and wrappers:
                    wrappers.pop()
                depth = max(0, depth - 1)
                if depth == 0 and body:
                    name = re.search(r"(\w+)\s*\(", re.sub(r"__\w+__\s*\([^()]*\)", "", body[0]))
                    first = code.count("\n", 0, body[1]) + 1
                    yield (name.group(1) if name else "?", body[0], first,
                           code.count("\n", body[1], at) + 1)
                    body = None
            if depth == 0:
                signature_at = at + 1


def parameters(signature):
    inside = re.search(r"\w+\s*\((.*)\)", signature, flags=re.DOTALL)
    if not inside or not inside.group(1).strip():
        return 0
    flat = inside.group(1)
    while "(" in flat:
        shorter = re.sub(r"\([^()]*\)", "", flat)
        if shorter == flat:
            break
        flat = shorter
    return flat.count(",") + 1


def check_layers(source, graph):
    own = layer_of(source.path)
    if own is None and source.path.startswith("llmc/"):
        yield f"{source.path}:1: in no layer; give it a row in LAYERS of scripts/check_includes.py"
    for line, target in source.included():
        if target is None:
            yield f"{source.path}:{line}: includes a file that does not exist"
            continue
        graph.setdefault(source.path, []).append(target)
        other = layer_of(target)
        if own is not None and other is not None and other > own:
            yield f"{source.path}:{line}: layer {own} includes {target} of layer {other}"


def check_cuda(source):
    cuda = any(fnmatch.fnmatch(source.path, pattern) for pattern in CUDA_FILES)
    for number, line in enumerate(source.code.split("\n"), 1):
        found = CUDA_NAME.search(line)
        if found and not cuda:
            yield f"{source.path}:{number}: {found.group()} outside of CUDA files"
        if "WITH_CUDA" in line and source.path != MAIN:
            yield f"{source.path}:{number}: WITH_CUDA outside of {MAIN}"


def check_sizes(source):
    lines = source.text.split("\n")
    if len(lines) > MAX_FILE:
        yield f"{source.path}:1: {len(lines)} lines (limit {MAX_FILE})"
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_WIDTH and source.is_c:
            yield f"{source.path}:{number}: {len(line)} columns (limit {MAX_WIDTH})"
        if LEFTOVER.search(line) and source.path != "scripts/check_includes.py":
            yield f"{source.path}:{number}: leftover: {line.strip()[:60]}"
    for name, signature, first, length in source.functions():
        kernel = "__global__" in signature
        limit = MAX_KERNEL if kernel else MAX_MAIN if name == "main" else MAX_FUNCTION
        if length > limit:
            yield f"{source.path}:{first}: {name} has {length} lines (limit {limit})"
        count = parameters(signature)
        if count > MAX_PARAMETERS and not kernel:
            yield f"{source.path}:{first}: {name} has {count} parameters (limit {MAX_PARAMETERS})"


def check_cycles(graph):
    done = set()

    def visit(path, trail):
        if path in trail:
            yield "includes in a circle: " + " -> ".join(trail[trail.index(path):] + [path])
            return
        if path in done:
            return
        for target in graph.get(path, []):
            yield from visit(target, trail + [path])
        done.add(path)

    for path in sorted(graph):
        yield from visit(path, [])


def compile_header(path):
    flags = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-Illmc"]
    for command in (["gcc", "-std=c11", "-x", "c"], ["g++", "-std=c++17", "-x", "c++"]):
        result = subprocess.run(command + flags + ["-include", path, "/dev/null"], cwd=ROOT,
                                capture_output=True, text=True)
        if result.returncode:
            text = "\n".join(result.stderr.strip().split("\n")[:4])
            yield f"{path}:1: does not compile alone with {command[0]} {command[1]}:\n{text}"


def sources():
    folders = ["llmc", "test", "dev", "data", "scripts"]
    found = [MAIN] if (ROOT / MAIN).is_file() else []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            relative = str(path.relative_to(ROOT))
            if "test/fixtures" in relative or not path.is_file():
                continue
            if path.suffix in C_SUFFIXES | {".py", ".sh"}:
                found.append(relative)
    return [Source(path) for path in found]


def main():
    breaches, graph, files = [], {}, sources()
    for source in files:
        breaches += check_sizes(source)
        if source.is_c:
            breaches += check_layers(source, graph)
            breaches += check_cuda(source)
    breaches += check_cycles(graph)
    headers = [source.path for source in files if source.path.endswith(".h")]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(lambda path: list(compile_header(path)), headers):
            breaches += found
    print("\n".join(breaches + [f"includes: {len(files)} files, {len(headers)} headers, "
                                f"{len(breaches)} breaches"]))
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
