#!/usr/bin/env python3
"""Compares runs by their records: a table, and a picture of the loss curves and of the gap.

    scripts/compare.py RUN_A RUN_B [RUN_C ...] [--out FILE]
    scripts/compare.py --telemetry RUN [RUN ...] [--step N] [--out FILE]

Each argument is the log.dir of a run, and the first is the reference. All losses are compared at
equal tokens: at the last place that both runs reached, on a straight line between neighbours where
one of them has no value just there. The gap is (run - reference) / reference in percent, so
positive is worse than the reference; papers often use the opposite sign.

With --telemetry it shows what log.telemetry_every recorded instead: for each linear and GEMM how
true the quantised product is, as a table and as heat maps.

It reads metrics.jsonl and run.json and nothing else, so a run may still be going on. Exit code 3,
with a message, when a run cannot be read or the picture cannot be written.
"""

import argparse
import io
import json
import math
import os
import sys
from dataclasses import dataclass

import numpy as np

import compare_telemetry
import quiet_pipe

EXIT_DATA = 3
SKIPPED_STEPS = 2  # of the speed: the first steps also pay for warming up


class RunError(Exception):
    """Something about a run's files that the user has to know."""


@dataclass
class Curve:
    """Losses over tokens seen, tokens rising."""

    tokens: np.ndarray
    loss: np.ndarray

    def at(self, tokens):
        """Straight lines between points; NaN outside of them."""
        if len(self.tokens) == 0:
            return np.full(np.shape(tokens), math.nan)
        return np.interp(tokens, self.tokens, self.loss, left=math.nan, right=math.nan)

    def smoothed(self, window_tokens):
        """Each point the mean of itself and those less than window_tokens before it."""
        sums = np.concatenate([[0.0], np.cumsum(self.loss)])
        end = np.arange(1, len(self.loss) + 1)
        begin = np.searchsorted(self.tokens, self.tokens - window_tokens, side="right")
        return Curve(self.tokens, (sums[end] - sums[begin]) / (end - begin))


@dataclass
class Run:
    name: str
    precision: str
    train: Curve
    val: Curve
    tokens_per_s: float


def read_records(directory):
    """The lines of metrics.jsonl; what is no record (a run killed while writing) is passed over."""
    path = os.path.join(directory, "metrics.jsonl")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise RunError(f"cannot read '{path}': {error.strerror}") from None
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def curve_of(records, key):
    """Nulls (not finite) are left out; of two records at the same tokens the later one counts."""
    points = {
        record["tokens"]: record[key]
        for record in records
        if is_number(record.get("tokens")) and is_number(record.get(key))
    }
    tokens = sorted(points)
    loss = [points[t] for t in tokens]
    return Curve(np.array(tokens, dtype=float), np.array(loss, dtype=float))


def read_precision(directory):
    """Of run.json, if there is one: a record without it can be compared all the same."""
    try:
        with open(os.path.join(directory, "run.json"), encoding="utf-8") as file:
            return str(json.load(file)["precision"])
    except (OSError, ValueError, KeyError, TypeError):
        return "?"


def read_run(directory, name):
    records = read_records(directory)
    train = curve_of(records, "train_loss")
    if len(train.tokens) == 0:
        raise RunError(f"'{directory}/metrics.jsonl' holds no training step")
    speeds = [r["tokens_per_s"] for r in records if is_number(r.get("tokens_per_s"))]
    speeds = speeds[SKIPPED_STEPS:] or speeds
    return Run(name, read_precision(directory), train, curve_of(records, "val_loss"),
               float(np.median(speeds)) if speeds else math.nan)


def short_names(directories):
    """The last parts of the paths, as many as it takes to tell them apart."""
    parts = [os.path.normpath(os.path.abspath(d)).split(os.sep) for d in directories]
    for length in range(1, max(map(len, parts)) + 1):
        names = [os.sep.join(p[-length:]) for p in parts]
        if len(set(names)) == len(set(map(tuple, parts))):
            break
    return names


def compare_at_equal_tokens(curve, reference):
    """Where both ended, the loss there, that of the reference, and the gap in percent."""
    if len(curve.tokens) == 0 or len(reference.tokens) == 0:
        return math.nan, math.nan, math.nan, math.nan
    place = min(curve.tokens[-1], reference.tokens[-1])
    loss, expected = float(curve.at(place)), float(reference.at(place))
    return place, loss, expected, gap_percent(loss, expected)


def gap_percent(loss, reference):
    return 100.0 * (loss - reference) / reference


def cell(value, pattern):
    return format(value, pattern) if math.isfinite(value) else "-"


def smooth_trains(runs, window):
    """Training curves averaged over as many tokens as `window` steps of the reference have."""
    steps = np.diff(runs[0].train.tokens)
    window_tokens = window * float(np.median(steps)) if len(steps) else 1.0
    return [run.train.smoothed(window_tokens) for run in runs]


def table_rows(runs, trains):
    yield ("run", "precision", "tokens", "val loss", "ref. there", "gap %", "train loss", "gap %",
           "tok/s")
    for run, curve in zip(runs, trains):
        place, val, val_there, val_gap = compare_at_equal_tokens(run.val, runs[0].val)
        train_place, train, _, train_gap = compare_at_equal_tokens(curve, trains[0])
        is_reference = run is runs[0]
        yield (
            run.name,
            run.precision,
            cell(place if math.isfinite(place) else train_place, ".0f"),
            cell(val, ".4f"),
            cell(val_there, ".4f"),
            "ref." if is_reference else cell(val_gap, "+.2f"),
            cell(train, ".4f"),
            "ref." if is_reference else cell(train_gap, "+.2f"),
            cell(run.tokens_per_s, ".0f"),
        )


def print_table(runs, trains, window):
    rows = list(table_rows(runs, trains))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        texts = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
        print("  ".join(texts).rstrip())
    print("gap: (run - reference) / reference at equal tokens, "
          f"positive = worse than {runs[0].name}")
    print(f"train loss: mean over the tokens of {window} steps of the reference; "
          f"tok/s: median of all steps but the first {SKIPPED_STEPS}")


def plot_dots(axes, tokens, values, color):
    axes.plot(tokens, values, color=color, linestyle="none", marker="o", markersize=4)


def draw(runs, trains, window):
    """A figure: loss curves on top, the gap to the reference below."""
    try:
        import matplotlib
    except ImportError:
        raise RunError("no picture: matplotlib is missing; scripts/setup.sh installs it") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (top, bottom) = pyplot.subplots(
        2, 1, figsize=(9, 8), sharex=True, height_ratios=[2, 1], layout="constrained")
    for index, (run, train) in enumerate(zip(runs, trains)):
        color = f"C{index % 10}"
        top.plot(train.tokens, train.loss, color=color, label=f"{run.name} ({run.precision})")
        plot_dots(top, run.val.tokens, run.val.loss, color)
        if index == 0:
            continue
        train_gap = gap_percent(train.loss, trains[0].at(train.tokens))
        bottom.plot(train.tokens, train_gap, color=color)
        val_gap = gap_percent(run.val.loss, runs[0].val.at(run.val.tokens))
        plot_dots(bottom, run.val.tokens, val_gap, color)
    top.set_title(f"line: training, mean of {window} steps; dots: validation", fontsize="medium")
    top.set_ylabel("loss [nats per token]")
    top.legend()
    bottom.axhline(0, color="C0", linewidth=1)
    bottom.set_ylabel(f"gap to {runs[0].name} [%]\npositive = worse")
    bottom.set_xlabel("tokens")
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
    return figure


def save(figure, path):
    """By way of memory: matplotlib does not report every failure to write."""
    extension = os.path.splitext(path)[1][1:] or "png"
    image = io.BytesIO()
    try:
        figure.savefig(image, dpi=120, format=extension)
        with open(path, "wb") as file:
            file.write(image.getvalue())
    except ValueError as error:  # a file type that matplotlib does not know
        raise RunError(f"cannot write '{path}': {error}") from None
    except OSError as error:
        raise RunError(f"cannot write '{path}': {error.strerror}") from None
    print(f"picture: {path}")


def positive_int(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN",
                        help="log.dir of a run; the first is the reference")
    parser.add_argument("--out", metavar="FILE",
                        help="picture to write (default: beside the first RUN's record)")
    parser.add_argument("--telemetry", action="store_true",
                        help="quantised products beside BF16 ones (picture: telemetry.png)")
    parser.add_argument("--step", type=int, metavar="N",
                        help="with --telemetry: of this `step` of the record (default: the last)")
    parser.add_argument("--smooth", type=positive_int, default=20, metavar="STEPS",
                        help="training losses are means of this many steps (default: %(default)s)")
    arguments = parser.parse_args()
    picture = "telemetry.png" if arguments.telemetry else "compare.png"
    arguments.out = arguments.out or os.path.join(arguments.runs[0], picture)
    return arguments


def show_telemetry(arguments, names):
    runs = []
    for directory, name in zip(arguments.runs, names):
        records = read_records(directory)
        steps = compare_telemetry.reports_of(records)
        step = compare_telemetry.choose_step(directory, steps, arguments.step)
        run = (name, read_precision(directory), step, steps[step],
               compare_telemetry.noise_of(records))
        compare_telemetry.print_table(*run)
        runs.append(run)
    save(compare_telemetry.draw(runs), arguments.out)


def main():
    arguments = parse_arguments()
    try:
        names = short_names(arguments.runs)
        if arguments.telemetry:
            show_telemetry(arguments, names)
            return 0
        runs = [read_run(directory, name) for directory, name in zip(arguments.runs, names)]
        trains = smooth_trains(runs, arguments.smooth)
        print_table(runs, trains, arguments.smooth)
        save(draw(runs, trains, arguments.smooth), arguments.out)
    except (RunError, compare_telemetry.TelemetryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_DATA
    return 0


if __name__ == "__main__":
    sys.exit(quiet_pipe.run(main))
