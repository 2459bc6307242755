#!/usr/bin/env python3
"""Tests of scripts/compare.py --telemetry by its command line: the table of a record, the chosen
step, what is refused, and that a picture is written. Cases are the functions named case_*, and the
last line is `N passed, N failed`. It needs the packages of scripts/requirements.txt."""

import json
import pathlib
import subprocess
import sys
import tempfile
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
SQNR = {"fprop": 15.25, "dgrad": None, "wgrad": 14.0}


def report(step, linear, gemm, gain):
    operand = {"saturated": 0.025, "underflowed": 0.5, "zero_scales": 0, "amax": 448.0}
    return {"step": step, "telemetry": linear, "gemm": gemm, "gain": gain, "cosine": 0.98,
            "sqnr_db": SQNR[gemm], "dy" if gemm != "fprop" else "x": operand}


def put_record(folder, name="run"):
    """Two steps of two linears, the second with a gain that went wrong; a line cut short."""
    records = [{"step": 0, "tokens": 10, "train_loss": 4.0}]
    for step in (0, 100):
        for linear in ("blocks.0.attn.qkv", "blocks.1.mlp.up"):
            for gemm in SQNR:
                wrong = step == 100 and linear == "blocks.1.mlp.up" and gemm == "fprop"
                records.append(report(step, linear, gemm, 0.5 if wrong else 0.9975))
        records.append({"step": step, "gradient_snr": 1.5 if step else None,
                        "gradient_snr_of": {"blocks.0.attn.qkv": 1.5}})
    run = folder / name
    run.mkdir()
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (run / "metrics.jsonl").write_text(lines + '{"step": 101, "telem')
    (run / "run.json").write_text('{"precision": "nvfp4(emulated)"}')
    return run


def compare(*words):
    command = [sys.executable, ROOT / "scripts" / "compare.py", "--telemetry", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def expect_line(text, *cells):
    lines = [line.split() for line in text.splitlines()]
    assert list(cells) in lines, f"no line {cells} in\n{text}"


def case_table_of_the_last_step(folder):
    run = put_record(folder)
    result = compare(run)
    assert result.returncode == 0, result.stderr
    assert "run (nvfp4(emulated)), before step 101" in result.stdout, result.stdout
    expect_line(result.stdout, "blocks.1.mlp.up", "fprop", "0.5000", "0.9800", "15.2", "x", "2.50",
                "50.00", "0.00", "448")
    expect_line(result.stdout, "blocks.0.attn.qkv", "dgrad", "0.9975", "0.9800", "inf", "dy",
                "2.50", "50.00", "0.00", "448")
    assert ("gradient SNR: n/a before step 1, 1.50 before step 101; below sqrt(3) first before "
            "step 101") in result.stdout, result.stdout
    picture = run / "telemetry.png"
    assert picture.read_bytes()[:4] == b"\x89PNG" and picture.stat().st_size > 10000


def case_an_earlier_step_of_two_runs(folder):
    first, second = put_record(folder, "a"), put_record(folder, "b")
    out = folder / "both.svg"
    result = compare(first, second, "--step", 0, "--out", out)
    assert result.returncode == 0, result.stderr
    assert "a (nvfp4(emulated)), before step 1\n" in result.stdout, result.stdout
    assert "b (nvfp4(emulated)), before step 1\n" in result.stdout, result.stdout
    assert "0.5000" not in result.stdout, result.stdout
    assert out.read_text(encoding="utf-8").count("<svg") == 1


def case_what_is_not_there_is_said(folder):
    run = put_record(folder)
    result = compare(run, "--step", 7)
    assert result.returncode == 3 and "no telemetry of step 7; there is 0, 100" in result.stderr
    (run / "metrics.jsonl").write_text('{"step":0,"tokens":10,"train_loss":4.0}\n')
    result = compare(run)
    assert result.returncode == 3 and "log.telemetry_every=100 records it" in result.stderr
    result = compare(folder / "nothing")
    assert result.returncode == 3 and "nothing/metrics.jsonl" in result.stderr, result.stderr


def main():
    passed = failed = 0
    for name, case in list(globals().items()):
        if not name.startswith("case_"):
            continue
        try:
            with tempfile.TemporaryDirectory() as folder:
                case(pathlib.Path(folder))
            passed += 1
            print(f"ok   {name[5:]}", flush=True)
        except Exception:
            traceback.print_exc(file=sys.stdout)
            failed += 1
            print(f"FAIL {name[5:]}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
