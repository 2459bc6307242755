#!/usr/bin/env python3
"""Turns UTF-8 text into the token shards that train_gpt_nvfp4 reads; formats: data/README.md.

Two passes over the input: the first one checks it, measures every document and hashes the files;
the second one encodes. Documents go through in pieces, so memory does not grow with the input.
All output is made in a hidden folder inside --out and renamed at the end, dataset.json last.
It does not download, clean, filter or de-duplicate text.
"""

import argparse
import collections
import contextlib
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

try:
    import numpy
    from tqdm import tqdm
except ImportError as missing:
    print(f"error: {missing}; run scripts/setup.sh and use .venv/bin/python, or pip install -r "
          "scripts/requirements.txt", file=sys.stderr)
    sys.exit(3)

from text_input import END_OF_TEXT, PIECE_BYTES, DataError, Piece, Source
from text_tokenizers import END_OF_TEXT_NAMES, load_tokenizer, train_bpe, write_vocabulary

EXIT_DATA, EXIT_INTERRUPTED = 3, 130
BATCH_BYTES = 1 << 21          # text that is encoded together
HEADER_INTS = 256
MAX_SHARD_TOKENS = 2**31 - 1   # llm.c keeps the count in an int32


# --- progress ---


class Progress:
    """A bar on a terminal; elsewhere a plain line every ten seconds and one at the end."""

    def __init__(self, title, total_bytes):
        self.title, self.total, self.done = title, total_bytes, 0
        self.started = self.printed = time.monotonic()
        self.bar = None
        if sys.stderr.isatty():
            self.bar = tqdm(desc=title, total=total_bytes, unit="B", unit_scale=True)

    def add(self, num_bytes):
        self.done += num_bytes
        if self.bar is not None:
            self.bar.update(num_bytes)
        elif time.monotonic() - self.printed >= 10.0:
            self.printed = time.monotonic()
            self.print_line()

    def print_line(self):
        seconds = time.monotonic() - self.started
        share = 100.0 * self.done / self.total if self.total else 100.0
        speed = self.done / 1e6 / max(seconds, 1e-3)
        print(f"{self.title}: {share:.0f} %, {self.done / 1e6:.1f} MB, {seconds:.1f} s, "
              f"{speed:.1f} MB/s", file=sys.stderr)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.close()
        else:
            self.print_line()


# --- validation split ---

# Documents with these numbers are held out; of tail_document, the bytes from tail_from on.
Split = collections.namedtuple("Split", "documents tail_document tail_from")
NO_SPLIT = Split(frozenset(), None, 0)


def choose_split(sizes, val_bytes, seed):
    """Whole documents in a random order until val_bytes are reached, leaving out those that would
    overshoot by more than a tenth; where none fits, the tail of the last document."""
    if val_bytes <= 0:
        return NO_SPLIT
    total = sum(sizes)
    if val_bytes >= total:
        raise DataError(f"cannot hold out {val_bytes} bytes for validation of {total} bytes in all")
    draw = random.Random(seed)
    held, documents = 0, set()
    for _, document in sorted((draw.random(), i) for i in range(len(sizes))):
        if held + sizes[document] <= val_bytes * 1.1 and len(documents) < len(sizes) - 1:
            documents.add(document)
            held += sizes[document]
        if held >= val_bytes:
            break
    if documents:
        return Split(frozenset(documents), None, 0)
    return Split(frozenset(), len(sizes) - 1, max(0, sizes[-1] - val_bytes))


def tail_start(data, at):
    """Where the held-out tail begins: after the next line end, or else at a character near `at`."""
    line_end = data.find(b"\n", at) + 1
    if 0 < line_end < len(data):
        return line_end
    while at > 0 and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


def routed(pieces, split):
    """Pairs of (goes to validation, piece) for the pieces of the sources, in order."""
    document, at = -1, 0
    for piece in pieces:
        if piece.starts_document:
            document, at = document + 1, 0
        start, at = at, at + piece.num_bytes
        if document != split.tail_document or at <= split.tail_from:
            yield document in split.documents, piece
        elif start > split.tail_from:
            yield True, piece
        else:
            data = piece.text.encode()
            cut = tail_start(data, split.tail_from - start)
            if cut > 0:
                yield False, Piece(piece.starts_document, data[:cut].decode(), cut)
            yield True, Piece(True, data[cut:].decode(), len(data) - cut)


# --- shards ---


class ShardWriter:
    """Writes the shards of one split into a folder. `tokens` has the count of each shard."""

    def __init__(self, folder, split, vocab_size, shard_tokens):
        self.folder, self.split, self.shard_tokens = folder, split, shard_tokens
        wide = vocab_size > 65536
        self.dtype = numpy.dtype("<u4" if wide else "<u2")
        self.magic, self.version = (20240801, 7) if wide else (20240520, 1)
        self.file, self.tokens, self.documents, self.num_bytes = None, [], 0, 0

    def path(self, shard):
        return self.folder / f"{self.split}_{shard:06d}.bin"

    def add(self, ids):
        while len(ids):
            if not self.tokens or self.tokens[-1] == self.shard_tokens:
                self.open_next()
            part = ids[:self.shard_tokens - self.tokens[-1]]
            self.file.write(part.astype(self.dtype).tobytes())
            self.tokens[-1] += len(part)
            ids = ids[len(part):]

    def open_next(self):
        self.close()
        self.tokens.append(0)
        self.file = open(self.path(len(self.tokens) - 1), "wb")
        self.file.write(bytes(4 * HEADER_INTS))   # the header is filled in by finish()

    def close(self):
        if self.file:
            self.file.close()

    def finish(self):
        self.close()
        # A last shard shorter than a sequence would be refused: a short one joins its neighbour.
        if len(self.tokens) > 1 and self.tokens[-1] < self.shard_tokens // 10:
            last = self.path(len(self.tokens) - 1)
            with open(last, "rb") as source, open(self.path(len(self.tokens) - 2), "ab") as target:
                source.seek(4 * HEADER_INTS)
                shutil.copyfileobj(source, target)
            last.unlink()
            self.tokens[-2:] = [sum(self.tokens[-2:])]
        for shard, count in enumerate(self.tokens):
            header = numpy.array([self.magic, self.version, count], "<i4")
            with open(self.path(shard), "r+b") as file:
                file.write(header.tobytes())
                file.flush()
                os.fsync(file.fileno())

    def summary(self):
        tokens = sum(self.tokens)
        return {"documents": self.documents, "bytes": self.num_bytes, "tokens": tokens,
                "bytes_per_token": round(self.num_bytes / max(tokens, 1), 4),
                "shards": len(self.tokens)}


def encode_all(tokenizer, routed_pieces, writers, progress):
    """writers: (train, validation). Batches are encoded together, written in order."""
    batch, batch_bytes = [], 0
    end_of_text = numpy.array([tokenizer.end_of_text], numpy.uint32)

    def flush():
        encoded = tokenizer.encode([piece.text for _, piece in batch])
        for (writer, piece), ids in zip(batch, encoded):
            if piece.starts_document:
                writer.documents += 1
                writer.add(end_of_text)
            writer.num_bytes += piece.num_bytes
            writer.add(ids)
            progress.add(piece.num_bytes)
        batch.clear()

    for to_validation, piece in routed_pieces:
        batch.append((writers[to_validation], piece))
        batch_bytes += piece.num_bytes
        if batch_bytes >= BATCH_BYTES:
            flush()
            batch_bytes = 0
    flush()


# --- the whole ---


def results_in(folder):
    names = ("dataset.json", "tokenizer.vocab", "tokenizer.json")
    shards = [*folder.glob("train_*.bin"), *folder.glob("val_*.bin")]
    return [folder / name for name in names if (folder / name).exists()] + sorted(shards)


@contextlib.contextmanager
def scratch_folder(out):
    folder = pathlib.Path(tempfile.mkdtemp(prefix=".prepare_text-", dir=out))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def interrupts_ignored():
    handlers = {number: signal.signal(number, signal.SIG_IGN)
                for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def publish(scratch, out):
    """Old files go, dataset.json first; new ones come, dataset.json last: where it is, all is."""
    with interrupts_ignored():
        for path in results_in(out):
            path.unlink()
        for path in sorted(scratch.iterdir(), key=lambda path: path.name == "dataset.json"):
            path.replace(out / path.name)


def describe(tokenizer, writers, sources):
    return {
        "tokenizer": tokenizer.name, "kind": tokenizer.kind, "vocab": tokenizer.size,
        "end_of_text": tokenizer.end_of_text,
        "token_type": f"uint{8 * writers[0].dtype.itemsize}",
        **{writer.split: writer.summary() for writer in writers if writer.tokens},
        "sources": [{"file": source.path.name, "split": source.split, "bytes": source.file_bytes,
                     "sha256": source.sha256} for source in sources]}


def scan_sources(args):
    sources = [Source(path, "train") for path in args.files]
    sources += [Source(path, "val") for path in args.val or []]
    with Progress("check", sum(source.file_bytes for source in sources)) as progress:
        for source in sources:
            source.scan(progress)
    return sources


def pieces_of(sources, split_name, piece_bytes):
    for source in sources:
        if source.split == split_name:
            yield from source.pieces(piece_bytes)


def training_texts(sources, split, progress):
    for held_out, piece in routed(pieces_of(sources, "train", PIECE_BYTES), split):
        progress.add(piece.num_bytes)
        if not held_out:
            yield piece.text


def split_of(args, sources):
    if args.val:
        return NO_SPLIT
    sizes = [size for source in sources for size in source.sizes]
    val_bytes = args.val_bytes
    if val_bytes is None:
        val_bytes = int(sum(sizes) * args.val_fraction)
    return choose_split(sizes, val_bytes, args.seed)


def prepare(args, out):
    # A tokenizer that cannot be loaded is told of before the text is read.
    tokenizer = None
    if not args.train_bpe:
        tokenizer = load_tokenizer(args.tokenizer or "byte", args.end_of_text)
    sources = scan_sources(args)
    text_bytes = sum(sum(source.sizes) for source in sources)
    split = split_of(args, sources)
    if args.train_bpe:
        with Progress("train BPE", text_bytes) as progress:
            tokenizer = train_bpe(args.train_bpe, training_texts(sources, split, progress))
    with scratch_folder(out) as scratch:
        writers = [ShardWriter(scratch, name, tokenizer.size, args.shard_tokens)
                   for name in ("train", "val")]
        piece_bytes = sys.maxsize if tokenizer.whole_documents else PIECE_BYTES
        routes = itertools.chain(
            routed(pieces_of(sources, "train", piece_bytes), split),
            ((True, piece) for piece in pieces_of(sources, "val", piece_bytes)))
        with Progress("encode", text_bytes) as progress:
            encode_all(tokenizer, routes, writers, progress)
        if not writers[0].tokens:
            raise DataError("no text is left for training; hold out less for validation")
        for writer in writers:
            writer.finish()
        write_vocabulary(tokenizer, scratch / "tokenizer.vocab")
        tokenizer.save(scratch)
        result = describe(tokenizer, writers, sources)
        (scratch / "dataset.json").write_text(json.dumps(result, indent=2) + "\n")
        publish(scratch, out)
    return result


def report(result, out):
    for split in ("train", "val"):
        if split in result:
            print("{}: {documents} documents, {bytes} bytes, {tokens} tokens, {bytes_per_token} "
                  "bytes per token, {shards} shards".format(split, **result[split]))
    print(f"config: data.train={out}/train_*.bin"
          + (f" data.val={out}/val_*.bin" if "val" in result else "")
          + f" data.tokenizer={out}/tokenizer.vocab model.vocab={result['vocab']}")


def parse_arguments(argv):
    parser = argparse.ArgumentParser(
        description="Turns UTF-8 text into token shards.",
        epilog="Formats, and what is held out for validation: data/README.md.")
    parser.add_argument("files", nargs="+", metavar="FILE", help=".txt (documents separated by a "
                        f"line {END_OF_TEXT}) or .jsonl (field text); also with .xz or .zst")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the results")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--tokenizer", metavar="NAME", help="byte (default), GPT-2's "
                      "ranks file (.tiktoken), or a Hugging Face tokenizer.json")
    kind.add_argument("--train-bpe", type=int, metavar="SIZE",
                      help="train a byte-level BPE of SIZE tokens on the training text")
    parser.add_argument("--end-of-text", metavar="TOKEN", help="the token between documents of a "
                        "tokenizer.json; default: the first found of "
                        + " ".join(END_OF_TEXT_NAMES))
    held = parser.add_mutually_exclusive_group()
    held.add_argument("--val-fraction", type=float, default=0.01, metavar="F",
                      help="share of the text held out for validation, default 0.01, 0 for none")
    held.add_argument("--val-bytes", type=int, metavar="N", help="bytes held out for validation")
    held.add_argument("--val", action="append", metavar="FILE",
                      help="validate on this file; may be repeated")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of held-out documents")
    parser.add_argument("--shard-tokens", type=int, default=100_000_000, metavar="N",
                        help="tokens in a shard, default 100000000")
    parser.add_argument("--overwrite", action="store_true", help="replace the results in DIR")
    args = parser.parse_args(argv)
    if args.train_bpe is not None and args.train_bpe < 258:
        parser.error(f"--train-bpe {args.train_bpe}: at least 258, for 256 bytes, the end of text "
                     "and one merge")
    if not 0.0 <= args.val_fraction < 1.0:
        parser.error(f"--val-fraction {args.val_fraction}: at least 0 and below 1")
    if args.val_bytes is not None and args.val_bytes < 0:
        parser.error(f"--val-bytes {args.val_bytes}: at least 0")
    if not 1 <= args.shard_tokens <= MAX_SHARD_TOKENS:
        parser.error(f"--shard-tokens {args.shard_tokens}: 1 to {MAX_SHARD_TOKENS}")
    return args


def interrupt(*_):
    raise KeyboardInterrupt


def main(argv=None):
    args = parse_arguments(argv)
    signal.signal(signal.SIGTERM, interrupt)
    out = pathlib.Path(args.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        present = results_in(out)
        if present and not args.overwrite:
            raise DataError(f"{present[0]} exists; give another --out, or --overwrite to replace "
                            "the dataset there")
        report(prepare(args, out), out)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_DATA
    except OSError as error:
        print(f"error: {error.filename or out}: {error.strerror or error}", file=sys.stderr)
        return EXIT_DATA
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
