"""The tokenizers of prepare_text.py, and the vocabulary file that the program reads.

Every tokenizer has: name, kind (byte or bpe), size, end_of_text, whole_documents (its ids depend on
where a text begins), encode(texts) -> arrays of ids, and token_bytes: the bytes of every id, None
for special tokens and ids that stand for nothing.
"""

import base64
import binascii
import json
import pathlib
import re
import sys

import numpy

from text_input import END_OF_TEXT, DataError

# What tokenizer.json files call the token between documents; --end-of-text names another.
END_OF_TEXT_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")
# Ranks files whose pre-tokenizer is not GPT-2's, by their number of ranks.
FOREIGN_RANKS = {100256: "cl100k_base", 199998: "o200k_base"}


def byte_level_alphabet():
    """The letters by which GPT-2's files write bytes: printable ones stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in letters]
    letters.update({byte: chr(256 + i) for i, byte in enumerate(others)})
    return letters


class ByteTokenizer:
    name, kind, size, end_of_text, whole_documents = "byte", "byte", 257, 256, False
    token_bytes = [bytes([i]) for i in range(256)] + [None]

    def encode(self, texts):
        return [numpy.frombuffer(text.encode(), numpy.uint8) for text in texts]

    def save(self, folder):
        """Nothing but tokenizer.vocab is needed."""


class BpeTokenizer:
    """A tokenizer of the `tokenizers` library, of whatever origin."""

    kind = "bpe"

    def __init__(self, name, tokenizer, end_of_text, save_json):
        self.name, self.tokenizer, self.save_json = name, tokenizer, save_json
        self.tokenizer.encode_special_tokens = True   # "<|endoftext|>" inside a text is only text
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.size = max(self.vocabulary.values()) + 1
        self.end_of_text = self.find_end_of_text(end_of_text)
        self.token_bytes = self.make_token_bytes()
        # A tokenizer that treats the start of a text specially (SentencePiece's first space)
        # gives other ids for a document in pieces.
        probe = ["Some words in a", " row, or two"]
        parts = [token for ids in self.encode(probe) for token in ids]
        self.whole_documents = parts != list(self.encode(["".join(probe)])[0])

    def find_end_of_text(self, wanted):
        names = [wanted] if wanted else END_OF_TEXT_NAMES
        for name in names:
            if name in self.vocabulary:
                return self.vocabulary[name]
        raise DataError(f"tokenizer {self.name} has no token {' or '.join(names)}; name the token "
                        "between documents with --end-of-text")

    def encode(self, texts):
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [numpy.array(encoding.ids, numpy.uint32) for encoding in encodings]

    def make_token_bytes(self):
        described = json.loads(self.tokenizer.to_str())
        to_bytes = token_decoder(self.name, described)
        table = [None] * self.size
        for token, index in self.tokenizer.get_vocab(with_added_tokens=False).items():
            table[index] = to_bytes(token)
        for added in described["added_tokens"]:   # these are written as they are
            table[added["id"]] = None if added["special"] else added["content"].encode()
        table[self.end_of_text] = None
        return table

    def save(self, folder):
        if self.save_json:
            self.tokenizer.save(str(folder / "tokenizer.json"))


def token_decoder(name, described):
    """A function from a token as the tokenizer.json writes it to its bytes."""
    model, decoder = described["model"]["type"], described.get("decoder") or {}
    steps = decoder.get("decoders", [decoder])
    kinds = {step.get("type") for step in steps}
    spaces = [step["pattern"].get("String", "") for step in steps
              if step.get("type") == "Replace" and step.get("content") == " "]
    spaces += [step["replacement"] for step in steps if step.get("type") == "Metaspace"]
    if model not in ("BPE", "Unigram") or not (spaces or kinds & {"ByteLevel", "ByteFallback"}):
        raise DataError(f"tokenizer {name}: model {model} with decoder {sorted(map(str, kinds))} "
                        "is not supported; expected BPE or Unigram with a ByteLevel, Metaspace or "
                        "ByteFallback decoder")
    if "ByteLevel" in kinds:
        byte_of = {letter: byte for byte, letter in byte_level_alphabet().items()}

        def from_byte_level(token):
            if all(letter in byte_of for letter in token):
                return bytes(byte_of[letter] for letter in token)
            return token.encode()

        return from_byte_level

    def from_pieces(token):
        if "ByteFallback" in kinds and re.fullmatch("<0x[0-9A-Fa-f]{2}>", token):
            return bytes([int(token[3:5], 16)])
        for space in spaces:
            token = token.replace(space, " ")
        return token.encode()

    return from_pieces


def import_tokenizers():
    try:
        import tokenizers
    except ImportError as error:
        raise DataError("this tokenizer needs the package tokenizers: "
                        "pip install -r scripts/requirements.txt") from error
    return tokenizers


def read_ranks(path):
    """The tokens of a ranks file, by rank."""
    tokens = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            token, rank = line.split(b" ")
            tokens.append(base64.b64decode(token, validate=True))
            in_order = int(rank) == number - 1
        except (ValueError, binascii.Error) as error:
            raise DataError(f"{path}: line {number}: expected a base64 token, a space and a "
                            "rank") from error
        if not in_order:
            raise DataError(f"{path}: line {number}: rank {rank.decode()}, expected {number - 1}")
    if len(tokens) in FOREIGN_RANKS:
        raise DataError(f"{path}: these are the ranks of {FOREIGN_RANKS[len(tokens)]}, which "
                        "splits text in another way than GPT-2; give its tokenizer.json instead")
    missing = [byte for byte in range(256) if bytes([byte]) not in tokens[:256]]
    if missing:
        raise DataError(f"{path}: the first 256 ranks lack byte 0x{missing[0]:02x}")
    if len(set(tokens)) != len(tokens):
        raise DataError(f"{path}: a token has two ranks")
    return tokens


def merges_of_ranks(path, tokens):
    """The pair that each token was merged from: what is left of the token when every merge of a
    lower rank has been done inside it, lowest first."""
    rank_of = {token: rank for rank, token in enumerate(tokens)}
    merges = []
    for rank, token in enumerate(tokens[256:], 256):
        parts = [token[i:i + 1] for i in range(len(token))]
        while len(parts) > 2:
            pair_ranks = [rank_of.get(a + b, rank) for a, b in zip(parts, parts[1:])]
            lowest = min(pair_ranks)
            if lowest >= rank:
                break
            at = pair_ranks.index(lowest)
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) != 2:
            raise DataError(f"{path}: line {rank + 1}: no two tokens of lower rank make this one")
        merges.append(tuple(parts))
    return merges


def byte_level_tokenizer(tokenizers, model):
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def add_end_of_text(tokenizers, tokenizer):
    """The special token gets the next free id, the last one."""
    tokenizer.add_special_tokens([tokenizers.AddedToken(END_OF_TEXT, special=True)])


def load_ranks(path):
    tokenizers = import_tokenizers()
    tokens = read_ranks(path)
    letters = byte_level_alphabet()

    def spelled(token):
        return "".join(letters[byte] for byte in token)

    vocabulary = {spelled(token): rank for rank, token in enumerate(tokens)}
    merges = [(spelled(a), spelled(b)) for a, b in merges_of_ranks(path, tokens)]
    tokenizer = byte_level_tokenizer(tokenizers, tokenizers.models.BPE(vocabulary, merges))
    add_end_of_text(tokenizers, tokenizer)
    return BpeTokenizer(path.name, tokenizer, END_OF_TEXT, save_json=False)


def load_json(path, end_of_text):
    tokenizers = import_tokenizers()
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:   # the library raises nothing narrower
        raise DataError(f"{path}: not a tokenizer.json that can be read: {error}") from error
    return BpeTokenizer(path.name, tokenizer, end_of_text, save_json=True)


def train_bpe(vocab_size, texts):
    tokenizers = import_tokenizers()
    tokenizer = byte_level_tokenizer(tokenizers, tokenizers.models.BPE())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size - 1, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    add_end_of_text(tokenizers, tokenizer)
    trained = BpeTokenizer(f"bpe-{vocab_size}", tokenizer, END_OF_TEXT, save_json=True)
    if trained.size < vocab_size:
        print(f"warning: the text yields only {trained.size} of {vocab_size} tokens",
              file=sys.stderr)
    return trained


def load_tokenizer(name, end_of_text):
    if name == "byte":
        return ByteTokenizer()
    path = pathlib.Path(name)
    if not path.is_file():
        raise DataError(f"--tokenizer {name}: no such file; expected byte, a ranks file "
                        "(.tiktoken) or a tokenizer.json")
    if path.suffix == ".tiktoken":
        return load_ranks(path)
    if path.suffix == ".json":
        return load_json(path, end_of_text)
    raise DataError(f"--tokenizer {name}: unknown kind of file; expected .tiktoken or .json")


def write_vocabulary(tokenizer, path):
    lines = [f"# train_gpt_nvfp4 vocabulary v1, size {tokenizer.size}, "
             f"end_of_text {tokenizer.end_of_text}, kind {tokenizer.kind}"]
    for token in tokenizer.token_bytes:
        lines.append(base64.b64encode(token).decode() if token else "-")
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
