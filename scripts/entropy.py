#!/usr/bin/env python3
"""Prints what a byte-level model has to beat: the entropy of a text's bytes alone (unigram) and given
the byte before (bigram), in nats per byte, both from the text's own counts.
usage: entropy.py FILE [--field unigram|bigram]     --field prints that number only"""

import argparse
import sys

import numpy


def entropies(text):
    """(unigram, bigram) of at least two bytes: H(x) and H(x, next) - H(x)."""
    codes = numpy.frombuffer(text, dtype=numpy.uint8).astype(numpy.int64)
    pairs = numpy.bincount(codes[:-1] * 256 + codes[1:], minlength=1 << 16)

    def entropy(counts):
        share = counts[counts > 0] / counts.sum()
        return float(-(share * numpy.log(share)).sum())

    before = pairs.reshape(256, 256).sum(axis=1)
    return entropy(numpy.bincount(codes)), entropy(pairs) - entropy(before)


def main():
    parser = argparse.ArgumentParser(description="Entropy of a text in nats per byte.")
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--field", choices=["unigram", "bigram"], help="print this number only")
    arguments = parser.parse_args()
    try:
        with open(arguments.file, "rb") as file:
            text = file.read()
    except OSError as error:
        sys.exit(f"entropy.py: cannot read {arguments.file}: {error.strerror}")
    if len(text) < 2:
        sys.exit(f"entropy.py: {arguments.file} has {len(text)} bytes; needs at least 2")
    unigram, bigram = entropies(text)
    if arguments.field:
        print(f"{unigram if arguments.field == 'unigram' else bigram:.4f}")
    else:
        print(f"{arguments.file}: {unigram:.4f} nats per byte alone, "
              f"{bigram:.4f} given the byte before")


if __name__ == "__main__":
    main()
