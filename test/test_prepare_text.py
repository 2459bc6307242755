#!/usr/bin/env python3
"""Tests of data/prepare_text.py by its command line, within this process where nothing ends it.
No harness: cases are the functions named case_*, and the last line is `N passed, N failed`. It
needs the packages of scripts/requirements.txt.

    python3 test/test_prepare_text.py [WORD]     only cases whose name contains WORD
"""

import base64
import contextlib
import hashlib
import io
import json
import lzma
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import numpy
import tokenizers
import zstandard

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "data" / "prepare_text.py"
FIXTURES = ROOT / "test" / "fixtures"
ALPHABET = FIXTURES / "text_alphabet.txt"
sys.path.insert(0, str(ROOT / "data"))
import prepare_text
import text_input


def prepare(folder, *arguments):
    """(exit code, standard error)."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = prepare_text.main([*map(str, arguments), "--out", str(folder / "out")])
        except SystemExit as stop:   # argparse
            code = stop.code
    return code, errors.getvalue()


def prepared(folder, *arguments):
    code, errors = prepare(folder, *arguments)
    assert code == 0, errors
    return json.loads((folder / "out" / "dataset.json").read_text())


def command(folder, *arguments):
    return [sys.executable, PROGRAM, *arguments, "--out", folder / "out"]


def shard(path):
    """(header, tokens) of a shard; its size is that of its header's count."""
    header = numpy.fromfile(path, "<i4", 256)
    dtype = {20240520: "<u2", 20240801: "<u4"}[int(header[0])]
    tokens = numpy.fromfile(path, dtype, offset=1024)
    assert header[2] == len(tokens) and not header[3:].any(), header[:8]
    return header, tokens


def split_tokens(folder, split):
    paths = sorted((folder / "out").glob(f"{split}_*.bin"))
    return numpy.concatenate([shard(path)[1] for path in paths]).tolist()


def vocabulary(folder):
    head, *lines = (folder / "out" / "tokenizer.vocab").read_text().splitlines()
    return head, [None if line == "-" else base64.b64decode(line, validate=True) for line in lines]


def documents(tokens, table, end_of_text):
    """The texts between the end-of-text tokens."""
    texts = []
    for token in tokens:
        if token == end_of_text:
            texts.append(b"")
        else:
            texts[-1] += table[token]
    return texts


# --- input ---


def case_bytes_literally(folder):
    source = folder / "a.txt"
    source.write_bytes(b"ab\n<|endoftext|>\n<|endoftext|>\nc<|endoftext|>\n <|endoftext|>\n"
                       b"\xc3\xa9\n<|endoftext|>")
    result = prepared(folder, source, "--val-fraction", 0)
    header, tokens = shard(folder / "out" / "train_000000.bin")
    assert header[:3].tolist() == [20240520, 1, len(tokens)]
    second = b"c<|endoftext|>\n <|endoftext|>\n\xc3\xa9\n"
    assert tokens.tolist() == [256, *b"ab\n", 256, *second]
    assert sorted(os.listdir(folder / "out")) == ["dataset.json", "tokenizer.vocab",
                                                  "train_000000.bin"]
    head, table = vocabulary(folder)
    assert head == "# train_gpt_nvfp4 vocabulary v1, size 257, end_of_text 256, kind byte"
    assert table == [bytes([i]) for i in range(256)] + [None]
    size = 3 + len(second)
    assert result["train"] == {"documents": 2, "bytes": size, "tokens": size + 2, "shards": 1,
                               "bytes_per_token": round(size / (size + 2), 4)}
    assert (result["vocab"], result["end_of_text"], result["token_type"]) == (257, 256, "uint16")
    assert result["sources"] == [{"file": "a.txt", "split": "train",
                                  "bytes": source.stat().st_size,
                                  "sha256": hashlib.sha256(source.read_bytes()).hexdigest()}]


def case_packed_and_jsonl_give_the_same(folder):
    texts = ["one \u00e9\n", "two\r\n\u2028x", "three" * 1000]
    plain = "\n<|endoftext|>\n".join(text.removesuffix("\n") for text in texts).encode() + b"\n"
    want_text = [text.removesuffix("\n").encode() + b"\n" for text in texts]
    lines = "".join(json.dumps({"id": 1, "text": text.decode()}) + "\n\n" for text in want_text)
    frames = zstandard.compress(plain[:40]) + zstandard.compress(plain[40:])
    files = {"a.txt": plain, "a.txt.xz": lzma.compress(plain), "a.txt.zst": frames,
             "a.jsonl": lines.encode(), "a.jsonl.xz": lzma.compress(lines.encode()),
             "b.v1.jsonl.zst": zstandard.compress(lines.encode())}
    for name, data in files.items():
        (folder / name).write_bytes(data)
        result = prepared(folder, folder / name, "--val-fraction", 0, "--overwrite")
        got = documents(split_tokens(folder, "train"), vocabulary(folder)[1], 256)
        assert got == want_text, (name, got)
        assert result["sources"][0]["sha256"] == hashlib.sha256(data).hexdigest(), name


def case_pieces_are_the_document(folder):
    """Pieces of any size, cut only between a letter and the space before a letter."""
    text = ALPHABET.read_bytes()
    for size in (1, 7, 64, 1000, 10**6):
        cutter = text_input.PieceCutter(size)
        pieces = [piece for at in range(0, len(text), 10) for piece in cutter.add(text[at:at + 10])]
        pieces += cutter.finish()
        assert "".join(piece.text for piece in pieces).encode() == text, size
        assert [piece.starts_document for piece in pieces] == [True] + [False] * (len(pieces) - 1)
        assert len(pieces) > 1 or size == 10**6, size
        for left, right in zip(pieces, pieces[1:]):
            assert left.text[-1].isalpha() and right.text[0] == " " and right.text[1].isalpha()


def case_separator_after_a_very_long_line_is_text(folder):
    """The line comes in several reads, and the last of them looks like a separator."""
    text = b"x" * text_input.CHUNK_BYTES + b"<|endoftext|>\n"
    pieces = list(text_input.text_pieces(io.BytesIO(text), text_input.PIECE_BYTES))
    assert "".join(piece.text for piece in pieces).encode() == text


# --- tokenizers ---


def case_trained_bpe_and_reloaded_ones_agree(folder):
    result = prepared(folder, ALPHABET, "--train-bpe", 512, "--val-fraction", 0)
    tokens, (head, table) = split_tokens(folder, "train"), vocabulary(folder)
    assert head == "# train_gpt_nvfp4 vocabulary v1, size 512, end_of_text 511, kind bpe"
    assert documents(tokens, table, 511) == [ALPHABET.read_bytes()]
    assert len(tokens) == result["train"]["tokens"] < result["train"]["bytes"] / 2
    assert (folder / "out" / "tokenizer.vocab").read_text() \
        == (FIXTURES / "tokenizer_bpe.vocab").read_text()
    saved = (folder / "out" / "tokenizer.json").rename(folder / "tokenizer.json")
    ranks = folder / "small.tiktoken"
    ranks.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n"
                             for rank, token in enumerate(table[:-1])))
    for name in (saved, ranks):
        prepared(folder, ALPHABET, "--tokenizer", name, "--val-fraction", 0, "--overwrite")
        assert split_tokens(folder, "train") == tokens, name
        assert vocabulary(folder) == (head, table), name
    assert not (folder / "out" / "tokenizer.json").exists()


def case_fixtures_are_what_their_generator_makes(folder):
    subprocess.run([sys.executable, FIXTURES / "make_tokenizer.py", folder], check=True,
                   capture_output=True)
    for name in ("tokenizer_bpe.vocab", "tokenizer_cases.txt"):
        assert (folder / name).read_text() == (FIXTURES / name).read_text(), name


def case_special_tokens_in_text_are_text(folder):
    source = folder / "a.txt"
    source.write_text("say <|endoftext|> aloud\n")
    prepared(folder, source, "--train-bpe", 300, "--val-fraction", 0)
    tokens = split_tokens(folder, "train")
    head, table = vocabulary(folder)
    end = len(table) - 1
    assert tokens.count(end) == 1 and tokens[0] == end, head
    assert documents(tokens, table, end) == [source.read_bytes()]


def case_wide_ids_take_uint32(folder):
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    unused = [f"unused{i}" for i in range(70000 - len(letters))]
    vocab = {token: i for i, token in enumerate([*letters, *unused, "zz"])}
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [("z", "z")]))
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.add_special_tokens(["<end>"])
    bpe.save(str(folder / "wide.json"))
    (folder / "a.txt").write_text("zz")
    end = bpe.token_to_id("<end>")
    prepared(folder, folder / "a.txt", "--tokenizer", folder / "wide.json", "--end-of-text",
             "<end>", "--val-fraction", 0)
    header, tokens = shard(folder / "out" / "train_000000.bin")
    assert header[:2].tolist() == [20240801, 7] and tokens.tolist() == [end, 70000]
    table = vocabulary(folder)[1]
    assert end == 70001 and len(table) == 70002
    assert table[69999:] == [unused[-1].encode(), b"zz", None]


def sentencepiece_like(path):
    """Llama 2's way: a space before every text, spaces as U+2581, bytes as fallback."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)),
              "\u2581a", "\u2581", "a", "b"]
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE(
        {piece: i for i, piece in enumerate(pieces)}, [("\u2581", "a")], unk_token="<unk>",
        byte_fallback=True))
    bpe.normalizer = tokenizers.normalizers.Sequence([
        tokenizers.normalizers.Prepend("\u2581"), tokenizers.normalizers.Replace(" ", "\u2581")])
    bpe.decoder = tokenizers.decoders.Sequence([
        tokenizers.decoders.Replace("\u2581", " "), tokenizers.decoders.ByteFallback(),
        tokenizers.decoders.Fuse(), tokenizers.decoders.Strip(" ", 1, 0)])
    bpe.add_special_tokens(["<unk>", "<s>", "</s>"])
    bpe.save(str(path))


def case_sentencepiece_like(folder):
    sentencepiece_like(folder / "sp.json")
    text = "a b\n" + "a b " * 40000   # more than two pieces, if it were cut
    (folder / "a.txt").write_text(text)
    prepared(folder, folder / "a.txt", "--tokenizer", folder / "sp.json", "--val-fraction", 0)
    tokens, table = split_tokens(folder, "train"), vocabulary(folder)[1]
    assert tokens[:5] == [2, 259, 260, 262, 3 + 10], tokens[:5]   # </s>, " a", " ", "b", byte 10
    assert documents(tokens, table, 2) == [b" " + text.encode()]   # one space, not one a piece
    assert table[:4] == [None, None, None, b"\0"] and table[259:261] == [b" a", b" "]


# --- validation and shards ---


def case_whole_documents_are_held_out(folder):
    texts = [f"{i} ".encode() * 50 + b"\n" for i in range(100)]
    (folder / "a.txt").write_bytes(b"<|endoftext|>\n".join(texts))
    total, seen = sum(map(len, texts)), []
    for option in (("--val-fraction", 0.1), ("--val-bytes", total // 10), ("--seed", 2)):
        prepared(folder, folder / "a.txt", "--overwrite", *option)
        table = vocabulary(folder)[1]
        train, val = (documents(split_tokens(folder, split), table, 256)
                      for split in ("train", "val"))
        assert sorted(train + val) == sorted(texts)
        assert val == [text for text in texts if text in val]   # in their order
        share = 0.01 if option[0] == "--seed" else 0.1
        assert abs(len(b"".join(val)) - total * share) <= total * share * 0.5, option
        seen.append(val)
    assert seen[0] == seen[1] and len(seen[2]) < len(seen[0])


def case_large_documents_stay_in_training(folder):
    texts = [bytes([65 + i]) * (10 if i else 5000) + b"\n" for i in range(20)]
    (folder / "a.txt").write_bytes(b"<|endoftext|>\n".join(texts))
    for seed in range(10):
        prepared(folder, folder / "a.txt", "--val-bytes", 50, "--seed", seed, "--overwrite")
        val = documents(split_tokens(folder, "val"), vocabulary(folder)[1], 256)
        assert len(val) == 5 and texts[0] not in val, val


def case_tail_of_a_single_document(folder):
    text = "".join(f"l\u00efne {i}\n" for i in range(1000)).encode()
    (folder / "a.txt").write_bytes(text)
    result = prepared(folder, folder / "a.txt", "--val-bytes", 1005)
    table = vocabulary(folder)[1]
    train, val = (documents(split_tokens(folder, split), table, 256) for split in ("train", "val"))
    assert len(train) == len(val) == 1 and train[0] + val[0] == text
    assert len(val[0]) == 1000 and val[0].startswith(b"l")   # from the next line on
    assert result["val"]["documents"] == result["train"]["documents"] == 1
    # Without line ends it is cut between characters, here within the 2 bytes of the first one.
    (folder / "a.txt").write_bytes("\u00ef".encode() * 100)
    prepared(folder, folder / "a.txt", "--val-bytes", 51, "--overwrite")
    assert len(split_tokens(folder, "val")) == 1 + 52


def case_tail_beyond_many_pieces(folder):
    text = ALPHABET.read_bytes() * 60   # six pieces; the tail begins in the fifth
    (folder / "a.txt").write_bytes(text)
    prepared(folder, folder / "a.txt", "--val-bytes", 80000)
    table = vocabulary(folder)[1]
    train, val = (documents(split_tokens(folder, split), table, 256) for split in ("train", "val"))
    assert len(train) == len(val) == 1 and train[0] + val[0] == text
    assert 75000 < len(val[0]) <= 80000


def case_val_file(folder):
    (folder / "a.txt").write_text("train\n<|endoftext|>\nmore\n")
    (folder / "b.jsonl").write_text('{"text": "held"}\n')
    result = prepared(folder, folder / "a.txt", "--val", folder / "b.jsonl")
    assert split_tokens(folder, "train") == [256, *b"train\n", 256, *b"more\n"]
    assert split_tokens(folder, "val") == [256, *b"held"]
    assert [source["split"] for source in result["sources"]] == ["train", "val"]


def case_shards_join_to_the_whole(folder):
    (folder / "a.txt").write_bytes(bytes(range(32, 127)) * 11)   # 1045 bytes, 1046 tokens
    for shard_tokens, sizes in ((100, [100] * 10 + [46]), (130, [130] * 8 + [6]),
                                (1046, [1046]), (1045, [1046]), (700, [700, 346])):
        if shard_tokens == 130:
            sizes = [130] * 7 + [136]   # 6 are fewer than a tenth, so they join the shard before
        result = prepared(folder, folder / "a.txt", "--val-fraction", 0, "--shard-tokens",
                          shard_tokens, "--overwrite")
        paths = sorted((folder / "out").glob("*.bin"))
        assert [path.name for path in paths] == [f"train_{i:06d}.bin" for i in range(len(sizes))]
        assert [len(shard(path)[1]) for path in paths] == sizes, shard_tokens
        assert split_tokens(folder, "train") == [256, *bytes(range(32, 127)) * 11]
        assert result["train"]["shards"] == len(sizes)


# --- refusals ---


def expect_refusal(folder, code, message, *arguments):
    got, errors = prepare(folder, *arguments)
    assert got == code and message in errors, (got, message, errors)
    left = sorted(os.listdir(folder / "out")) if (folder / "out").exists() else []
    assert left == [], (message, left)


def case_bad_inputs_refused(folder):
    xz, zst = lzma.compress(b"some text " * 999), zstandard.compress(os.urandom(9999))
    rows = [
        ("a.txt", b"good\nb\xffd\n", "a.txt: invalid UTF-8 at byte 6 of the text: 0xff"),
        ("a.txt", b"good\n<|endoftext|>\nbad\xe2\x82", "invalid UTF-8 at byte 22 of the text"),
        ("a.txt", b"word " * 60000 + b"\xc0", "invalid UTF-8 at byte 300000 of the text: 0xc0"),
        ("a.txt", b"", "a.txt: holds no text"),
        ("a.txt", b"<|endoftext|>\n<|endoftext|>\n", "a.txt: holds no text"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": "b"\n', "a.jsonl: line 3: not JSON"),
        ("a.jsonl", b'{"text": "a"}\n{"txt": "b"}\n', "line 2: expected an object with a field"),
        ("a.jsonl", b'["text"]\n', "line 1: expected an object with a field \"text\""),
        ("a.jsonl", b'{"text": 7}\n', "line 1: field \"text\" is not a string"),
        ("a.jsonl", b'{"text": "\xff"}\n', "line 1: invalid UTF-8 at byte 10 of the line: 0xff"),
        ("a.jsonl", b'{"text": "ab\\ud800"}\n', "line 1: field \"text\" has half of a surrogate"),
        ("a.jsonl", b"[" * 100000 + b"\n", "line 1: not JSON"),
        ("a.jsonl", b'{"text": ""}\n', "a.jsonl: holds no text"),
        ("a.txt.xz", xz[:-30], "a.txt.xz: not a sound xz file"),
        ("a.txt.xz", b"no archive", "a.txt.xz: not a sound xz file"),
        ("a.txt.zst", zst[:-30], "a.txt.zst: the zstd file is truncated"),
        ("a.txt.zst", b"no archive", "a.txt.zst: not a sound zstd file"),
        ("a.pdf", b"text", "a.pdf: unknown kind of file; expected .txt or .jsonl"),
        ("a.xz", xz, "a.xz: unknown kind of file"),
        ("plain", b"text", "plain: unknown kind of file"),
    ]
    for name, data, message in rows:
        (folder / name).write_bytes(data)
        expect_refusal(folder, 3, message, folder / name)
    (folder / "good.txt").write_text("good")
    expect_refusal(folder, 3, "absent.txt: no such file", folder / "absent.txt")
    expect_refusal(folder, 3, "a.pdf", folder / "good.txt", "--val", folder / "a.pdf")
    expect_refusal(folder, 3, "cannot hold out 4 bytes for validation of 4 bytes in all",
                   folder / "good.txt", "--val-bytes", 4)


def case_bad_tokenizers_refused(folder):
    (folder / "good.txt").write_text("good")
    wordpiece = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "good": 1},
                                                                 unk_token="[UNK]"))
    wordpiece.decoder = tokenizers.decoders.WordPiece()
    wordpiece.save(str(folder / "wordpiece.json"))
    no_end = tokenizers.Tokenizer(tokenizers.models.BPE({"g": 0}, []))
    no_end.decoder = tokenizers.decoders.ByteLevel()
    no_end.save(str(folder / "no_end.json"))
    wordpiece.add_special_tokens(["</s>"])
    wordpiece.save(str(folder / "wordpiece.json"))
    byte_ranks = [f"{base64.b64encode(bytes([i])).decode()} {i}\n" for i in range(256)]
    rows = [
        ("absent.json", None, "no such file; expected byte, a ranks file"),
        ("a.model", "", "unknown kind of file; expected .tiktoken or .json"),
        ("a.json", "{}", "a.json: not a tokenizer.json that can be read"),
        ("a.json", "not json", "a.json: not a tokenizer.json that can be read"),
        ("wordpiece.json", None, "model WordPiece with decoder ['WordPiece'] is not supported"),
        ("no_end.json", None, "no_end.json has no token <|endoftext|> or"),
        ("a.tiktoken", "IQ==\n", "a.tiktoken: line 1: expected a base64 token, a space and a rank"),
        ("a.tiktoken", "I!== 0\n", "a.tiktoken: line 1: expected a base64 token"),
        ("a.tiktoken", "IQ== x\n", "a.tiktoken: line 1: expected a base64 token"),
        ("a.tiktoken", "IQ== 1\n", "a.tiktoken: line 1: rank 1, expected 0"),
        ("a.tiktoken", "".join(byte_ranks[:-1]), "the first 256 ranks lack byte 0xff"),
        ("a.tiktoken", "".join(byte_ranks) + "IQ== 256\n", "a token has two ranks"),
        ("a.tiktoken", "".join(byte_ranks) + "YWJj 256\n",
         "line 257: no two tokens of lower rank make this one"),
    ]
    for name, text, message in rows:
        if text is not None:
            (folder / name).write_text(text)
        expect_refusal(folder, 3, message, folder / "good.txt", "--tokenizer", folder / name)


def case_bad_options_refused(folder):
    (folder / "good.txt").write_text("good")
    rows = [
        (("--train-bpe", 257), "--train-bpe 257: at least 258"),
        (("--train-bpe", 512, "--tokenizer", "byte"), "not allowed with argument"),
        (("--val-fraction", 1), "--val-fraction 1.0: at least 0 and below 1"),
        (("--val-fraction", "nan"), "--val-fraction nan: at least 0 and below 1"),
        (("--val-bytes", -1), "--val-bytes -1: at least 0"),
        (("--shard-tokens", 0), "--shard-tokens 0: 1 to 2147483647"),
        (("--shard-tokens", 2**31), "--shard-tokens 2147483648: 1 to 2147483647"),
    ]
    for options, message in rows:
        expect_refusal(folder, 2, message, folder / "good.txt", *options)


def case_existing_dataset_is_kept(folder):
    (folder / "a.txt").write_text("first text\n")
    prepared(folder, folder / "a.txt", "--shard-tokens", 4, "--val-fraction", 0)
    before = sorted(os.listdir(folder / "out"))
    assert len(before) == 2 + 3, before
    code, errors = prepare(folder, folder / "a.txt")
    assert code == 3 and "--overwrite to replace" in errors, errors
    assert sorted(os.listdir(folder / "out")) == before
    # A bad input does not cost the old dataset, and a good one leaves none of its shards.
    (folder / "bad.txt").write_bytes(b"\xff")
    assert prepare(folder, folder / "bad.txt", "--overwrite")[0] == 3
    assert sorted(os.listdir(folder / "out")) == before
    prepared(folder, folder / "a.txt", "--overwrite", "--val-fraction", 0)
    assert sorted(os.listdir(folder / "out")) == ["dataset.json", "tokenizer.vocab",
                                                  "train_000000.bin"]


def case_unwritable_folder_refused(folder):
    (folder / "out").write_text("a file, not a folder")
    (folder / "a.txt").write_text("text")
    code, errors = prepare(folder, folder / "a.txt")
    assert code == 3 and errors.startswith("error: ") and "out: File exists" in errors, errors


def case_file_size_limit_leaves_nothing(folder):
    (folder / "a.txt").write_bytes(b"word " * 50000)
    done = subprocess.run(["bash", "-c", 'ulimit -f 64; exec "$@"', "bash",
                           *command(folder, folder / "a.txt")], capture_output=True, text=True)
    assert done.returncode == 3 and "out: File too large" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert os.listdir(folder / "out") == []


def case_interrupt_leaves_nothing(folder):
    """Interrupted while it encodes: the hidden folder exists by then, final files do not."""
    (folder / "a.txt").write_bytes(ALPHABET.read_bytes() * 8000)
    for number in (signal.SIGINT, signal.SIGTERM):
        running = subprocess.Popen(command(folder, folder / "a.txt"), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        give_up = time.monotonic() + 60
        while not list(folder.glob("out/.prepare_text-*/*")) and time.monotonic() < give_up:
            assert running.poll() is None, running.communicate()
            time.sleep(0.001)
        running.send_signal(number)
        errors = running.communicate(timeout=60)[1]
        assert running.returncode == 130, (running.returncode, errors)
        assert "interrupted; nothing was written" in errors and "Traceback" not in errors, errors
        assert os.listdir(folder / "out") == [], os.listdir(folder / "out")


def main():
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    passed = failed = 0
    for name, case in list(globals().items()):
        if not name.startswith("case_") or word not in name:
            continue
        started = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as folder:
                case(pathlib.Path(folder))
            passed += 1
            verdict = "ok  "
        except Exception:
            traceback.print_exc(file=sys.stdout)
            failed += 1
            verdict = "FAIL"
        print(f"{verdict} {name[5:]} ({1000 * (time.monotonic() - started):.0f} ms)", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
