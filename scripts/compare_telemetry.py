"""How true the quantised products of runs are: `compare.py --telemetry`. Reads the lines that
log.telemetry_every leaves in metrics.jsonl (llmc/telemetry.h says what the numbers are) and makes a
text table of one step and a picture: heat maps of gain and SQNR, layers down, GEMMs across, and
where it was measured the gradient's signal to noise over the steps. Imported by compare.py; no
program of its own."""

import math

GEMMS = ("fprop", "dgrad", "wgrad")
SQRT3 = math.sqrt(3.0)


class TelemetryError(Exception):
    """Something about a run's telemetry that the user has to know."""


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def reports_of(records):
    """{step: {(linear, GEMM): report}} of all lines of telemetry."""
    steps = {}
    for record in records:
        if isinstance(record.get("telemetry"), str) and record.get("gemm") in GEMMS:
            step = steps.setdefault(record.get("step"), {})
            step[record["telemetry"], record["gemm"]] = record
    return steps


def noise_of(records):
    """(step, r) of all measurements of the gradient's noise; NaN where both gradients agree, or one
    of them is not finite."""
    points = [(r["step"], r["gradient_snr"]) for r in records if "gradient_snr" in r]
    return [(step, snr if is_number(snr) else math.nan) for step, snr in points]


def choose_step(name, steps, wanted):
    if not steps:
        raise TelemetryError(f"'{name}' holds no telemetry; log.telemetry_every=100 records it")
    if wanted is None:
        return max(steps)
    if wanted not in steps:
        known = ", ".join(str(step) for step in sorted(steps))
        raise TelemetryError(f"'{name}' holds no telemetry of step {wanted}; there is {known}")
    return wanted


def linears_of(reports):
    """In the order of the record, which is that of the model."""
    return list(dict.fromkeys(linear for linear, _ in reports))


def percent(operand, key):
    value = operand.get(key)
    return f"{100 * value:.2f}" if is_number(value) else "-"


def number(value, pattern):
    return format(value, pattern) if is_number(value) else "inf" if pattern == ".1f" else "-"


def ratio(snr):
    return f"{snr:.2f}" if math.isfinite(snr) else "n/a"


def table_rows(reports):
    """One line for each linear and GEMM, and what quantising did to its operands."""
    yield ("linear", "GEMM", "gain", "cosine", "SQNR dB", "operand", "clipped %", "lost %",
           "zero scales %", "amax")
    for linear in linears_of(reports):
        for gemm in GEMMS:
            report = reports.get((linear, gemm))
            if report is None:
                continue
            head = (linear, gemm, number(report.get("gain"), ".4f"),
                    number(report.get("cosine"), ".4f"), number(report.get("sqnr_db"), ".1f"))
            operands = [(k, v) for k, v in report.items() if isinstance(v, dict)] or [("-", {})]
            for index, (name, operand) in enumerate(operands):
                yield (head if index == 0 else ("",) * 5) + (
                    name, percent(operand, "saturated"), percent(operand, "underflowed"),
                    percent(operand, "zero_scales"), number(operand.get("amax"), ".4g"))


def print_table(name, precision, step, reports, noise):
    rows = list(table_rows(reports))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    print(f"{name} ({precision}), before step {step + 1}")
    for row in rows:
        left = (0, 1, 5)
        texts = [c.ljust(w) if i in left else c.rjust(w)
                 for i, (c, w) in enumerate(zip(row, widths))]
        print("  ".join(texts).rstrip())
    if noise:
        below = [at for at, snr in noise if snr < SQRT3]
        print(f"gradient SNR: {ratio(noise[0][1])} before step {noise[0][0] + 1}, "
              f"{ratio(noise[-1][1])} before step {noise[-1][0] + 1}; below sqrt(3) "
              + (f"first before step {below[0] + 1}" if below else "never"))


def heat_map(axes, reports, key, center):
    """Gains around 1 in two colours, ratios in one; each cell with its number."""
    import numpy as np

    linears = linears_of(reports)
    values = np.array([[reports.get((linear, gemm), {}).get(key) for gemm in GEMMS]
                       for linear in linears], dtype=float)   # null: not a number
    if center is not None:
        reach = max(0.05, float(np.nanmax(np.abs(values - center), initial=0.0)))
        image = axes.imshow(values, cmap="RdBu_r", vmin=center - reach, vmax=center + reach,
                            aspect="auto")
    else:
        image = axes.imshow(values, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(GEMMS)), GEMMS)
    axes.set_yticks(range(len(linears)), linears, fontsize="small")
    for (row, column), value in np.ndenumerate(values):
        text = f"{value:.3f}" if center is not None else f"{value:.1f}"
        axes.text(column, row, text if math.isfinite(value) else "-", ha="center", va="center",
                  fontsize="x-small", color="black",
                  bbox={"facecolor": "white", "alpha": 0.6, "edgecolor": "none", "pad": 1})
    return image


def draw(runs):
    """A row of panels for each of (name, precision, step, reports, noise)."""
    try:
        import matplotlib
    except ImportError:
        raise TelemetryError(
            "no picture: matplotlib is missing; scripts/setup.sh installs it") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with_noise = any(noise for *_, noise in runs)
    columns = 3 if with_noise else 2
    most = max(len(linears_of(reports)) for _, _, _, reports, _ in runs)
    figure, panels = pyplot.subplots(
        len(runs), columns, figsize=(5 * columns, len(runs) * max(3.0, 1.2 + 0.28 * most)),
        squeeze=False, layout="constrained")
    for row, (name, precision, step, reports, noise) in zip(panels, runs):
        for axes, key, center, title in ((row[0], "gain", 1.0, "gain"),
                                         (row[1], "sqnr_db", None, "SQNR [dB]")):
            figure.colorbar(heat_map(axes, reports, key, center), ax=axes)
            axes.set_title(f"{name} ({precision}), before step {step + 1}: {title}",
                           fontsize="small")
        if not with_noise:
            continue
        finite = [(at, snr) for at, snr in noise if math.isfinite(snr)]
        row[2].plot([at for at, _ in finite], [snr for _, snr in finite], marker="o", markersize=3)
        row[2].axhline(SQRT3, color="C3", linewidth=1)
        row[2].set_title("gradient SNR; line: sqrt(3)", fontsize="small")
        row[2].set_xlabel("step")
        row[2].grid(alpha=0.3)
    return figure
