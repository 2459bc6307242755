"""Statistics of an ablation and its reports: a table on the screen, CSV, Markdown and a picture.

A gap is (row - reference) / reference of the final validation loss in percent, of two runs with the
same seed, so with the same initial weights and the same batches: positive is worse. Needs only the
standard library; the picture needs matplotlib and is left out without it. Not here: what runs and
in which order (ablate.py).
"""

import csv
import math
import statistics
from dataclasses import dataclass

# Two-sided 95 % points of Student's t for 1 to 30 degrees of freedom.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
        2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
        2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)
SEEDS_OF_AN_INTERVAL = 3


def t_95(freedom):
    """Beyond the table within 0.001: the first terms of the expansion in 1 / freedom."""
    return T_95[freedom - 1] if freedom <= len(T_95) else 1.960 + 2.373 / freedom + 2.8 / freedom**2


@dataclass
class RowSummary:
    """None stands for what the number of pairs does not give."""

    name: str
    about: str
    runs: int              # that finished
    diverged: int
    planned: int           # seeds that the set asks for
    loss: float | None     # mean over its finished runs
    pairs: int             # seeds that row and reference both finished
    gap: float | None      # mean of the pairs
    deviation: float | None
    error: float | None    # of the mean
    interval: float | None   # half width of 95 %


def summarize_row(name, about, planned, losses, diverged, reference):
    """losses and reference: {seed: validation loss}."""
    gaps = [100 * (losses[s] - reference[s]) / reference[s]
            for s in sorted(losses) if s in reference]
    n = len(gaps)
    deviation = statistics.stdev(gaps) if n >= 2 else None
    error = deviation / math.sqrt(n) if n >= 2 else None
    return RowSummary(
        name, about, len(losses), diverged, planned,
        statistics.fmean(losses.values()) if losses else None, n,
        statistics.fmean(gaps) if n else None, deviation, error,
        t_95(n - 1) * error if n >= SEEDS_OF_AN_INTERVAL else None)


@dataclass
class Noise:
    seeds: int             # of the reference
    between_seeds: float | None   # deviation of its losses, percent of their mean
    paired: float | None   # deviation of a single pair's gap, pooled over rows
    freedom: int


def noise_of(reference, summaries):
    """summaries: of the rows but the reference, whose gap to itself says nothing."""
    losses = list(reference.values())
    between = None
    if len(losses) >= 2:
        between = 100 * statistics.stdev(losses) / statistics.fmean(losses)
    several = [s for s in summaries if s.deviation is not None]
    freedom = sum(s.pairs - 1 for s in several)
    pooled = None
    if freedom:
        pooled = math.sqrt(sum((s.pairs - 1) * s.deviation**2 for s in several) / freedom)
    return Noise(len(losses), between, pooled, freedom)


def is_within_noise(summary, noise):
    """Whether the mean gap is below twice its standard error, by the pooled deviation; None where
    no row has two pairs."""
    if summary.gap is None or noise.paired is None:
        return None
    return abs(summary.gap) < 2 * noise.paired / math.sqrt(summary.pairs)


# --- output ---

HEADER = ("row", "val loss", "gap %", "s.e.", "paired s.d.", "95 % interval", "seeds")


def text_of(value, pattern):
    return "-" if value is None else format(value, pattern)


def seeds_text(s):
    text = f"{s.runs}/{s.planned}"
    return f"{text}, {s.diverged} diverged" if s.diverged else text


def table(summaries, noise, reference_name):
    yield HEADER
    for s in summaries:
        if s.name == reference_name:
            yield (s.name, text_of(s.loss, ".4f"), "ref.", "-", "-", "-", seeds_text(s))
            continue
        gap = text_of(s.gap, "+.2f") + (" ~" if is_within_noise(s, noise) else "")
        interval = "-"
        if s.interval is not None:
            interval = f"{s.gap - s.interval:+.2f} to {s.gap + s.interval:+.2f}"
        yield (s.name, text_of(s.loss, ".4f"), gap, text_of(s.error, ".2f"),
               text_of(s.deviation, ".2f"), interval, seeds_text(s))


def notes(noise, reference_name):
    yield (f"gap: (row - {reference_name}) / {reference_name} of the final validation loss, same "
           "seed, mean over seeds; positive = worse")
    if noise.between_seeds is not None:
        yield (f"noise between seeds of {reference_name}: s.d. {noise.between_seeds:.2f} % of its "
               f"mean, n = {noise.seeds}")
    if noise.paired is not None:
        yield (f"noise of one pair: s.d. {noise.paired:.2f} %, pooled over rows "
               f"({noise.freedom} degrees of freedom); ~: a gap below twice its standard error")
    else:
        yield "noise of one pair: unknown, as no row has two seeds yet"


def screen(summaries, noise, reference_name):
    rows = list(table(summaries, noise, reference_name))
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    for row in rows:
        cells = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
        yield "  ".join(cells).rstrip()
    yield from notes(noise, reference_name)


def write_markdown(path, title, summaries, noise, reference_name):
    rows = list(table(summaries, noise, reference_name))
    lines = [f"# {title}", "", "| " + " | ".join(HEADER) + " |",
             "| --- |" + " ---: |" * (len(HEADER) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows[1:]]
    lines += ["", *(f"- {note}" for note in notes(noise, reference_name))]
    abouts = [f"- `{s.name}`: {s.about}" for s in summaries if s.about]
    lines += ["", "Rows:", "", *abouts] if abouts else []
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_csv(path, summaries):
    names = ("row", "seeds", "planned", "diverged", "pairs", "val_loss", "gap_percent",
             "standard_error", "paired_deviation", "interval_95")
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(names)
        for s in summaries:
            numbers = (s.loss, s.gap, s.error, s.deviation, s.interval)
            out.writerow((s.name, s.runs, s.planned, s.diverged, s.pairs,
                          *("" if v is None else f"{v:.6g}" for v in numbers)))


def write_picture(path, title, summaries, reference_name):
    """False where there is no matplotlib, or nothing to show."""
    shown = [s for s in summaries if s.gap is not None and s.name != reference_name]
    try:
        import matplotlib
    except ImportError:
        return False
    if not shown:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.4 * len(shown)), layout="constrained")
    places = range(len(shown))
    axes.errorbar([s.gap for s in shown], places, xerr=[s.error or 0 for s in shown],
                  fmt="o", color="C0", capsize=4)
    axes.set_yticks(list(places), [f"{s.name} (n={s.pairs})" for s in shown])
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=1)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(f"gap to {reference_name} [%], mean and standard error; positive = worse")
    axes.set_title(title, fontsize="medium")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
