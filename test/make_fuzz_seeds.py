#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets, test/fuzz_corpus/X/seed_*, small files as the program and
data/prepare_text.py write them, in the form that each target takes (see the head of test/fuzz_X.c),
and dictionaries, test/fuzz_corpus/X.dict. Seeds of configs are written by hand and those named
seed_program by the program; what is named otherwise are inputs on which a reader once failed. Needs
Python only."""

import base64
import json
import pathlib
import re
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORPUS = ROOT / "test" / "fuzz_corpus"


def write(target, name, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed_{name}").write_bytes(data)


def shard(magic, version, code, tokens):
    header = struct.pack("<256i", magic, version, len(tokens), *([0] * 253))
    return header + struct.pack(f"<{len(tokens)}{code}", *tokens)


def dataloader():
    options = {   # sequence length - 1, bits of the vocabulary, flags, weight - 1
        "narrow": bytes([7, 16, 0, 0]),
        "shuffled": bytes([2, 16, 1, 0]),
        "mixture": bytes([4, 17, 7, 9]),
    }
    tokens = [i * 37 % 251 for i in range(40)]
    for name, head in options.items():
        write("dataloader", name, head + shard(20240520, 1, "H", tokens))
    write("dataloader", "small", bytes([0, 16, 0, 0]) + shard(20240520, 1, "H", [1, 2, 3]))
    write("dataloader", "wide", bytes([7, 18, 1, 0]) + shard(20240801, 7, "I", [100000] * 20))


def safetensors(tensors, metadata=None):
    """Header and data of {name: (dtype, shape, bytes)}."""
    header, at = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return text, b"".join(data for _, _, data in tensors.values())


def floats(count):
    return struct.pack(f"<{count}f", *[0.5 + i for i in range(count)])


def whole_file(tensors):
    text, data = safetensors(tensors, {"format": "pt"})
    return struct.pack("<Q", len(text)) + text + data


def safetensors_files():
    tensors = {
        "w": ("F32", [3, 2], floats(6)),
        "b": ("BF16", [4], bytes(8)),
        "scalar": ("F32", [], floats(1)),
        "empty": ("U8", [0, 7], b""),
    }
    text, data = safetensors(tensors, {"format": "pt"})
    write("safetensors", "header", text + b"\n" + data)
    write("safetensors", "file", whole_file(tensors))
    write("safetensors", "no_tensor", whole_file({}))
    text, data = safetensors({"w": ("U8", [4], bytes(4))})
    write("safetensors", "small", text + b"\n" + data)


def archive(files):
    """The files that fuzz_checkpoint takes, {number of the name: bytes}."""
    return b"".join(struct.pack("<BH", name, len(data)) + data for name, data in files.items())


def index(weight_map):
    return json.dumps({"metadata": {"total_size": 32}, "weight_map": weight_map}).encode()


def checkpoint():
    model = {"w": ("F32", [3, 2], floats(6)), "b": ("F32", [2], floats(2))}
    moments = {f"{m}.{name}": entry for m in "mv" for name, entry in model.items()}
    recipe = {"recipe.w.amax": ("F32", [2], floats(2))}
    one_rank = {0: whole_file(model), 1: whole_file(moments)}
    write("checkpoint", "one_rank", archive(one_rank))
    write("checkpoint", "recipe", archive({**one_rank, 2: whole_file(recipe),
                                           3: b"gemm algorithms 1 | GPU\n"}))

    # w is cut after four elements, b is the second rank's.
    first, second = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    of_ranks = {4: index({"w": {"shape": [3, 2], "parts": [[first, 0, 4], [second, 4, 6]]},
                          "b": second}),
                6: whole_file({"w": ("F32", [4], floats(4))}),
                7: whole_file({"w": ("F32", [2], floats(2)), "b": ("F32", [2], floats(2))})}
    write("checkpoint", "cut_model", archive({**of_ranks, 1: one_rank[1]}))
    moment_map = {name: f"optimizer-0000{1 + name.startswith('v')}-of-00002.safetensors"
                  for name in moments}
    halves = [whole_file({n: e for n, e in moments.items() if n.startswith(m)}) for m in "mv"]
    write("checkpoint", "two_ranks", archive({**of_ranks, 5: index(moment_map), 8: halves[0],
                                              9: halves[1]}))


def state():
    body = {
        "version": 1, "step": 120, "position": 15360, "tokens": 983040,
        "seed": "18446744073709551615", "config": "{\n  \"seed\": 7\n}\n",
        "files": {"model.safetensors": {"bytes": 1024, "crc32": "89abcdef"},
                  "optimizer.safetensors": {"bytes": 2048, "crc32": "00000000"}},
        "fields": {"whole": -7, "seed": "7", "real": 0.30000000000000004, "text": "a\u00e9\"",
                   "reals": [4.5, 1e-300, -0.0], "more": [2, 1234]},
    }
    write("state", "body", json.dumps(body, indent=4).encode())
    del body["fields"]["more"]
    write("state", "without_optional", json.dumps(body).encode())
    small = dict(body, config="", files={}, fields=dict(body["fields"], text="", reals=[]))
    write("state", "small", json.dumps(small, separators=(",", ":")).encode())
    write("state", "file", b'{"crc32": "43b8c2f1", "checkpoint": {"version": 1}}\n')
    write("state", "not_json", b"\x00\x01")


def vocabulary(kind, tokens):
    lines = [base64.b64encode(t).decode() if t else "-" for t in tokens]
    head = f"# train_gpt_nvfp4 vocabulary v1, size {len(tokens)}, end_of_text {len(tokens) - 1}"
    return "\n".join([f"{head}, kind {kind}", *lines, ""]).encode()


def tokenizer():
    all_bytes = [bytes([i]) for i in range(256)]
    write("tokenizer", "byte", vocabulary("byte", [*all_bytes, b""]))
    write("tokenizer", "bpe", vocabulary("bpe", [*all_bytes, b"th", b" th", b"the", b" the", b""]))
    write("tokenizer", "few", vocabulary("bpe", [b"a", b"b", b"ab", b""]))


def cache():
    line = "%d 2304 768 14 14 14 1 1 1 0 1 256 256 16 33554432 701.2 " + "0000000000000042" * 8
    write("cache", "lines", "".join(line % m + "\n" for m in (1, 64, 65536)).encode())
    write("cache", "line", (line % 64 + "\n").encode())
    write("cache", "cut", (line % 64).encode())
    write("cache", "other_device", b"!gemm algorithms 1 | another GPU\n")
    write("cache", "selftest", b"!passed\n")


def metrics():
    lines = [{"step": s, "tokens": 64 * (s + 1), "train_loss": 4.5 - 0.01 * s, "grad_norm": 1.0,
              "lr": 6e-4, "time_ms": 1.5, "tokens_per_s": 42666.7, "mfu": None}
             for s in range(24)]
    lines.insert(3, {"step": 3, "tokens": 192, "val_loss": 4.4, "gap_percent": 0.5})
    lines.insert(5, {"step": 4, "tokens": 320, "train_loss": None, "nonfinite": True})
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    for first_step in (0, 4, 30):
        write("metrics", f"resumed_at_{first_step}", bytes([first_step]) + text.encode())
    write("metrics", "small", b"\x01" + b'{"step":0,"tokens":64,"train_loss":4}\n')
    write("metrics", "cut", bytes([2]) + text.encode()[:-20])
    write("metrics", "main_log", bytes([1]) + b"s:0 trl:4.5 lr:0.000600 norm:1.00\ns:1 tel:4.4\n"
          + b'{"tokens":64,"train_loss":4}\n')


# Words that chance would not find; {numbers} of JSON that readers must bound go to all that read it.
WORDS = {
    "safetensors": ['"__metadata__":{', '"dtype":"F32"', '"dtype":"BF16"', '"dtype":"U8"', '":{',
                    '"shape":[', '"data_offsets":[', ',"', "{numbers}",
                    '{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}\n'],
    "checkpoint": ['"dtype":"F32"', '"dtype":"BF16"', '"shape":[3,2]', '"shape":[2]',
                   '"data_offsets":[0,24]', '"data_offsets":[24,32]', '"m.w"', '"v.b"',
                   '"recipe.w.amax"', '{"weight_map":{', '"weight_map": {}', '"shape": [3, 2]',
                   '"parts": [', '"model-00001-of-00002.safetensors"',
                   '["model-00002-of-00002.safetensors", 0, 6]', "{numbers}"],
    "state": ['"version": 1', '"step": ', '"position": ', '"tokens": ', '"seed": "7"',
              '"config": "', '"files": {', '"model.safetensors": {', '"bytes": ', '"crc32": "',
              '"fields": {', '"whole": ', '"real": ', '"text": "', '"reals": [', '"more": [',
              '{"crc32": "00000000", "checkpoint": ', "{numbers}"],
    "metrics": ['"step":', '"tokens":', '"train_loss":', '"val_loss":', '"nonfinite":true',
                "\n{", "}\n", "s:", " trl:", " tel:", "{numbers}"],
    "tokenizer": ["# train_gpt_nvfp4 vocabulary v1, size ", ", end_of_text ", ", kind bpe\n",
                  ", kind byte\n", "-\n", "AA==\n", "AAA=\n", "AAAA\n", "16777216",
                  "2147483647"],
    "cache": ["gemm algorithms 1 | ", " 256 256 256 0 0 ", " 1e+05 ", "0000000000000000",
              "ffffffffffffffff", "-1", "9223372036854775807", "18446744073709551615"],
}
NUMBERS = ["-1", "0", "0.5", "1e999", "-1e999", "1e300", "9007199254740992", "9007199254740993",
           "18446744073709551615", "null", "true", "[]", "{}", '""']


def config_words():
    """What README's reference of keys sets in backticks: names of keys, recipes, formats, values."""
    reference = (ROOT / "README.md").read_text().split("## Config reference")[1]
    return sorted(set(re.findall(r"`([^`\n]{1,60})`", reference)))


def quoted(word):
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\x0a")
    return f'"{escaped}"'


def dictionaries():
    words = dict(WORDS, config=[*config_words(), "{numbers}"], plan=config_words())
    for target, texts in words.items():
        all_texts = [t for text in texts for t in (NUMBERS if text == "{numbers}" else [text])]
        (CORPUS / f"{target}.dict").write_text("".join(quoted(t) + "\n" for t in all_texts))


for make in (dataloader, safetensors_files, checkpoint, state, tokenizer, cache, metrics,
             dictionaries):
    make()
