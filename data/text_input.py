"""Reads the input files of prepare_text.py: file -> bytes -> documents -> pieces of text.

Nothing is held in full: a document comes in pieces that end between two words. Every error names
the file and the byte or line, as DataError. It knows no tokenizer and no shard.
"""

import collections
import hashlib
import io
import json
import lzma
import pathlib
import re

END_OF_TEXT = "<|endoftext|>"
CHUNK_BYTES = 1 << 20
PIECE_BYTES = 1 << 16   # usual size of a piece; pieces are encoded in parallel
# A piece ends between a letter and the space before the next word: no pre-tokenizer of a byte-level
# BPE looks across that place, so the ids are those of the whole document.
PIECE_END = re.compile(rb"[A-Za-z](?= [A-Za-z])")


class DataError(Exception):
    """The input cannot be used; the text says which file and what to do."""


class HashingFile:
    """The raw bytes of a file, hashed as they are read. `progress` counts them, or is None."""

    def __init__(self, file, progress):
        self.file, self.progress, self.sha256 = file, progress, hashlib.sha256()

    def read(self, size=-1):
        data = self.file.read(size)
        self.sha256.update(data)
        if self.progress:
            self.progress.add(len(data))
        return data


def plain_chunks(file):
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def xz_chunks(file):
    yield from plain_chunks(lzma.LZMAFile(file))


def zst_chunks(file):
    try:
        import zstandard
    except ImportError as error:
        raise DataError("reading .zst needs the package zstandard: "
                        "pip install -r scripts/requirements.txt") from error
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame, inside = decompressor.decompressobj(), False
    for chunk in plain_chunks(file):
        while chunk:
            try:
                data = frame.decompress(chunk)
            except zstandard.ZstdError as error:
                raise DataError(f"not a sound zstd file: {error}") from error
            if data:
                yield data
            inside, chunk = not frame.eof, frame.unused_data
            if frame.eof:
                frame = decompressor.decompressobj()
    if inside:
        raise DataError("the zstd file is truncated")


class ChunkReader(io.RawIOBase):
    """Chunks of bytes as a raw stream, for io.BufferedReader and its readline."""

    def __init__(self, chunks):
        self.chunks, self.rest = chunks, b""

    def readable(self):
        return True

    def readinto(self, buffer):
        if not self.rest:
            self.rest = next(self.chunks, b"")
        size = min(len(buffer), len(self.rest))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size


Piece = collections.namedtuple("Piece", "starts_document text num_bytes")


class PieceCutter:
    """Collects the bytes of a document and gives them out in pieces."""

    def __init__(self, piece_bytes):
        self.piece_bytes = piece_bytes
        self.held, self.starts_document, self.searched = bytearray(), True, 0
        self.offset = 0   # of held[0] in the file

    def take(self, size):
        data = bytes(self.held[:size])
        del self.held[:size]
        try:
            piece = Piece(self.starts_document, data.decode("utf-8"), size)
        except UnicodeDecodeError as error:
            raise DataError(f"invalid UTF-8 at byte {self.offset + error.start} of the text: "
                            f"0x{data[error.start]:02x}, {error.reason}") from error
        self.offset += size
        self.starts_document, self.searched = False, 0
        return piece

    def add(self, data):
        self.held += data
        while len(self.held) >= self.piece_bytes:
            end = PIECE_END.search(self.held, max(self.piece_bytes - 1, self.searched))
            if not end:
                self.searched = len(self.held) - 2   # the match may begin with the last letters
                return
            yield self.take(end.end())

    def finish(self):
        """Ends the document; one without text leaves no trace."""
        if self.held:
            yield self.take(len(self.held))
        self.starts_document = True


def text_pieces(reader, piece_bytes):
    cutter = PieceCutter(piece_bytes)
    separator = END_OF_TEXT.encode()
    at_line_start = True
    while line := reader.readline(CHUNK_BYTES):
        is_separator = at_line_start and line in (separator, separator + b"\n")
        at_line_start = line.endswith(b"\n")
        if is_separator:
            yield from cutter.finish()
            cutter.offset += len(line)
        else:
            yield from cutter.add(line)
    yield from cutter.finish()


def jsonl_pieces(reader, piece_bytes):
    cutter = PieceCutter(piece_bytes)
    for number, line in enumerate(reader, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(f"line {number}: invalid UTF-8 at byte {error.start} of the line: "
                            f"0x{line[error.start]:02x}, {error.reason}") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"line {number}: not JSON: {error}") from error
        if not isinstance(record, dict) or "text" not in record:
            raise DataError(f"line {number}: expected an object with a field \"text\"")
        if not isinstance(record["text"], str):
            raise DataError(f"line {number}: field \"text\" is not a string")
        try:
            data = record["text"].encode("utf-8")
        except UnicodeEncodeError as error:
            raise DataError(f"line {number}: field \"text\" has half of a surrogate pair at "
                            f"character {error.start}") from error
        yield from cutter.add(data)
        yield from cutter.finish()


FORMATS = {".txt": text_pieces, ".jsonl": jsonl_pieces}
COMPRESSIONS = {"": plain_chunks, ".xz": xz_chunks, ".zst": zst_chunks}


class Source:
    """One input file. `sizes` (bytes of its documents) and `sha256` are known after scan()."""

    def __init__(self, path, split):
        self.path, self.split = pathlib.Path(path), split
        suffixes = self.path.suffixes
        packed = suffixes.pop() if suffixes and suffixes[-1] in (".xz", ".zst") else ""
        self.chunks = COMPRESSIONS[packed]
        self.cut = FORMATS.get(suffixes[-1] if suffixes else "")
        if not self.cut:
            raise DataError(f"{path}: unknown kind of file; expected .txt or .jsonl, or one of "
                            "these with .xz or .zst after it")
        if not self.path.is_file():
            raise DataError(f"{path}: no such file")
        self.file_bytes = self.path.stat().st_size
        self.sizes, self.sha256 = [], None

    def pieces(self, piece_bytes, raw_progress=None):
        """Every error of reading gets the name of the file here."""
        try:
            with open(self.path, "rb") as file:
                raw = HashingFile(file, raw_progress)
                reader = io.BufferedReader(ChunkReader(self.chunks(raw)), CHUNK_BYTES)
                yield from self.cut(reader, piece_bytes)
        except DataError as error:
            raise DataError(f"{self.path}: {error}") from error
        except (lzma.LZMAError, EOFError) as error:
            raise DataError(f"{self.path}: not a sound xz file: {error}") from error
        sha256 = raw.sha256.hexdigest()
        if self.sha256 not in (None, sha256):
            raise DataError(f"{self.path}: changed while it was being read; start again")
        self.sha256 = sha256

    def scan(self, raw_progress):
        for piece in self.pieces(PIECE_BYTES, raw_progress):
            if piece.starts_document:
                self.sizes.append(0)
            self.sizes[-1] += piece.num_bytes
        if not self.sizes:
            raise DataError(f"{self.path}: holds no text")
