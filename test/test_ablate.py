#!/usr/bin/env python3
"""Tests of scripts/ablate.py: statistics against values worked out by hand, and running, skipping,
resuming and budgets with a program that only pretends to train. No harness: cases are the functions
named case_*, and the last line is `N passed, N failed`. Needs the standard library alone.

    python3 test/test_ablate.py [WORD]     only cases whose name contains WORD
"""

import contextlib
import csv
import io
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "scripts" / "ablate.py"
sys.path.insert(0, str(ROOT / "scripts"))
import ablate
import ablation_report
import ablation_set

# Writes the records of a run of `train.steps` steps. Its loss is fake.loss plus a hundredth of the
# seed, and it appends its row, seed and first step to the file fake.trace. With a file fake.wait it
# waits until that is gone, or SIGTERM comes: then it leaves a checkpoint at step 1, from which it
# goes on. fake.exit is its exit code.
FAKE = '''#!{python}
import json, pathlib, signal, sys, time
words = dict(w.split("=", 1) for w in sys.argv[2:])
log = pathlib.Path(words["log.dir"])
steps, seed = int(words["train.steps"]), int(words["seed"])
(log / "ckpt").mkdir(parents=True, exist_ok=True)
first = 1 if (log / "ckpt" / "step_1").exists() else 0
def stop(*_):
    (log / "ckpt" / "step_1").touch()
    sys.exit(130)
signal.signal(signal.SIGTERM, stop)
with open(words["fake.trace"], "a") as trace:
    trace.write(f"{{log.name.rsplit('-', 1)[0]}}@{{first}}\\n")
wait = pathlib.Path(words.get("fake.wait", "/nonexistent/file"))
while wait.exists():
    time.sleep(0.01)
code = int(words.get("fake.exit", 0))
if code:
    print("error: the fake was told to fail")
    sys.exit(code)
records = [{{"step": s, "tokens": 10 * (s + 1), "train_loss": 5 - s}} for s in range(first, steps)]
records.append({{"step": steps, "tokens": 10 * steps,
                "val_loss": float(words["fake.loss"]) + seed / 100}})
with open(log / "metrics.jsonl", "a") as file:
    file.writelines(json.dumps(r) + "\\n" for r in records)
(log / "run.json").write_text(json.dumps({{"device": "fake", "first_step": first}}))
'''


class Bench:
    """A set, the fake program, and what they leave, in a folder."""

    def __init__(self, folder, rows, words=()):
        self.folder, self.rows = folder, rows
        self.trace = folder / "trace"
        self.words = ["train.steps=3", f"fake.trace={self.trace}", *words]
        self.program = folder / "fake"
        self.program.write_text(FAKE.format(python=sys.executable))
        self.program.chmod(0o755)
        (folder / "base.json").write_text('{"precision": {"recipe": "bf16"}}  // a comment\n')
        self.write()

    def write(self):
        rows = [{"config": str(self.folder / "base.json"), **row} for row in self.rows]
        (self.folder / "set.json").write_text(
            json.dumps({"reference": "bf16", "words": self.words, "rows": rows}))

    def arguments(self, *more):
        return [str(self.folder / "set.json"), "--program", str(self.program), "--out",
                str(self.folder / "out"), "--results", str(self.folder / "results.csv"),
                *map(str, more)]

    def run(self, *more):
        """(exit code, standard output and errors)."""
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            try:
                code = ablate.main(self.arguments(*more))
            except SystemExit as stop:   # argparse
                code = stop.code
        return code, text.getvalue()

    def traced(self):
        """The runs that were started since the last call, in order."""
        lines = self.trace.read_text().split() if self.trace.exists() else []
        self.trace.unlink(missing_ok=True)
        return lines

    def results(self):
        with open(self.folder / "results.csv", newline="") as file:
            return list(csv.DictReader(file))


def loss(value):
    return [f"fake.loss={value}"]


TWO_ROWS = [{"name": "bf16", "words": loss(4), "seeds": 2},
            {"name": "nvfp4", "words": loss(4.4), "seeds": 1}]


# --- statistics ---


def close(value, expected, tolerance=1e-9):
    assert abs(value - expected) <= tolerance, (value, expected)


def case_gaps_are_paired_by_seed(_):
    reference = {1: 4.0, 2: 5.0, 3: 2.0}
    s = ablation_report.summarize_row("a", "", 4, {1: 4.04, 2: 5.1, 3: 2.06, 4: 9.0}, 0, reference)
    # Gaps of 1, 2 and 3 percent; seed 4 has no partner.
    assert (s.runs, s.pairs, s.planned) == (4, 3, 4)
    close(s.gap, 2.0)
    close(s.deviation, 1.0)
    close(s.error, 0.5773502691896258)
    close(s.interval, 4.303 * 0.5773502691896258)
    close(s.loss, 5.05)


def case_few_seeds_give_no_interval(_):
    reference = {1: 4.0, 2: 5.0}
    two = ablation_report.summarize_row("a", "", 2, {1: 4.04, 2: 5.1}, 0, reference)
    close(two.gap, 1.5)
    close(two.error, 0.5)
    assert two.interval is None
    one = ablation_report.summarize_row("a", "", 2, {2: 4.9}, 1, reference)
    close(one.gap, -2.0)
    assert one.error is None and one.deviation is None and one.diverged == 1
    none = ablation_report.summarize_row("a", "", 2, {}, 0, reference)
    assert none.gap is None and none.loss is None and none.pairs == 0


def case_noise_is_pooled(_):
    reference = {1: 4.0, 2: 4.1, 3: 4.2}
    rows = [ablation_report.summarize_row("a", "", 3, {1: 4.04, 2: 4.182, 3: 4.326}, 0, reference),
            ablation_report.summarize_row("b", "", 2, {1: 4.04, 2: 4.264}, 0, reference),
            ablation_report.summarize_row("c", "", 1, {1: 4.08}, 0, reference),
            ablation_report.summarize_row("d", "", 1, {1: 4.2}, 0, reference)]
    noise = ablation_report.noise_of(reference, rows)
    close(noise.between_seeds, 100 * 0.1 / 4.1)
    # Variances 1 (two degrees of freedom) and 4.5 (one).
    assert noise.freedom == 3
    close(noise.paired, (6.5 / 3) ** 0.5)
    # c is 2 % and d 5 % above; twice the error of one pair is 2.94 %.
    assert ablation_report.is_within_noise(rows[2], noise) is True
    assert ablation_report.is_within_noise(rows[3], noise) is False
    alone = ablation_report.noise_of({1: 4.0}, rows[2:])
    assert alone.between_seeds is None and alone.paired is None
    assert ablation_report.is_within_noise(rows[2], alone) is None


def case_student_t(_):
    for freedom, expected in ((1, 12.706), (2, 4.303), (10, 2.228), (30, 2.042), (31, 2.0395),
                              (60, 2.0003), (120, 1.9799)):
        close(ablation_report.t_95(freedom), expected, 1.1e-3)


# --- sets ---


def case_configs_resolve_with_extends_and_comments(folder):
    (folder / "a.json").write_text(
        '{"model": {"dim": 8, "act": "a//b"}, // "dim": 9\n "train.steps": 4}')
    (folder / "b.json").write_text('{"extends": "a.json", "model": {"dim": 16}}')
    flat = ablation_set.read_config(folder / "b.json")
    assert flat == {"model.dim": 16, "model.act": "a//b", "train.steps": 4}, flat


def case_hash_tells_configs_apart(folder):
    bench = Bench(folder, TWO_ROWS)

    def hashes(data=None):
        return [row.hash for row in ablation_set.read_set(folder / "set.json", 5, data).rows]

    first = hashes()
    assert first[0] != first[1]
    (folder / "base.json").write_text('{"precision":\n{"recipe":"bf16"}, "log": {"every": 5}}')
    assert hashes() == first   # comments, layout and the log change no result
    (folder / "base.json").write_text('{"precision": {"recipe": "nvfp4"}}')
    assert hashes() != first
    data = folder / "data"
    data.mkdir()
    (data / "train_0.bin").write_bytes(b"12")
    with_data = hashes(data)
    (data / "train_0.bin").write_bytes(b"123")
    assert len({*with_data, *hashes(data), *hashes()}) == 6
    bench.rows = TWO_ROWS[:1]
    bench.write()


def case_bad_sets_are_refused(folder):
    bench = Bench(folder, TWO_ROWS)
    for change, said in (
            ([{"name": "nvfp4"}], "reference 'bf16' is no row"),
            ([{"name": "bf16"}, {"name": "bf16"}], "two rows are called 'bf16'"),
            ([{"name": "a/b"}], "has more than letters"),
            ([{"name": "bf16", "seed": 3}], "unknown key \"seed\""),
            ([{"name": "bf16", "words": ["loss"]}], "'loss' is no key=value word"),
            ([{"name": "bf16", "words": ["train.steps=x"]}], "give train.steps"),
            ([{"name": "bf16", "config": "configs/none.json"}], "cannot read"),
            ([{"name": "bf16", "words": loss(1)}], "say how many with --seeds N")):
        bench.rows = change
        bench.write()
        code, text = bench.run()
        assert code == ablate.EXIT_USAGE and said in text, (said, code, text)
    assert bench.traced() == []
    code, text = bench.run("--seeds", 0)
    assert code == 2 and "whole number" in text, text
    bench.rows = TWO_ROWS
    bench.write()
    code, text = bench.run("--data", folder / "none")
    assert code == ablate.EXIT_USAGE and "there is no train_*.bin" in text, text
    code, text = bench.run("--program", folder / "none")
    assert code == ablate.EXIT_USAGE and "there is no program" in text, text


# --- running ---


def case_rows_run_seed_by_seed_and_once(folder):
    bench = Bench(folder, TWO_ROWS)
    code, text = bench.run()
    assert code == 0, text
    assert bench.traced() == ["bf16-s1@0", "nvfp4-s1@0", "bf16-s2@0"]
    results = bench.results()
    assert [(r["row"], r["seed"], r["steps"], r["status"]) for r in results] == [
        ("bf16", "1", "3", "done"), ("nvfp4", "1", "3", "done"), ("bf16", "2", "3", "done")]
    assert [float(r["val_loss"]) for r in results] == [4.01, 4.41, 4.02]
    assert results[0]["train_loss"] == "3.0" and results[0]["tokens"] == "30", results[0]
    assert not list((folder / "out" / "runs").glob("*/ckpt"))
    code, again = bench.run()
    assert code == 0 and "3 runs, 3 done" in again and bench.traced() == [], again
    with open(folder / "out" / "set.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    close(float(rows[1]["gap_percent"]), 100 * 0.4 / 4.01, 1e-4)
    assert rows[1]["standard_error"] == "" and rows[0]["seeds"] == "2", rows
    assert "| nvfp4 | 4.4100 | +9.98 |" in (folder / "out" / "set.md").read_text()
    assert (folder / "out" / "set_runs.csv").read_text() == (folder / "results.csv").read_text()


def case_what_changed_runs_again(folder):
    bench = Bench(folder, TWO_ROWS)
    bench.run()
    bench.traced()
    bench.rows = [TWO_ROWS[0], {**TWO_ROWS[1], "words": loss(4.2)}]
    bench.write()
    code, text = bench.run()
    assert code == 0 and bench.traced() == ["nvfp4-s1@0"], text
    assert "+4.99" in text and "noise of one pair: unknown" in text, text
    bench.words[0] = "train.steps=4"
    bench.write()
    bench.run("--seeds", 1)
    assert bench.traced() == ["bf16-s1@0", "nvfp4-s1@0"]
    assert len(bench.results()) == 6


def case_failures_are_tried_again(folder):
    bench = Bench(folder, [{**TWO_ROWS[0], "words": loss(4) + ["fake.exit=5"]}, TWO_ROWS[1]])
    code, text = bench.run("--seeds", 1)
    assert code == ablate.EXIT_FAILED and "failed: bf16 seed 1" in text, text
    assert "exit code 5: error: the fake was told to fail" in text, text
    assert [r["row"] for r in bench.results()] == ["nvfp4"]
    code, text = bench.run("--seeds", 1)
    assert bench.traced() == ["bf16-s1@0", "nvfp4-s1@0", "bf16-s1@0"], text


def case_a_refused_config_ends_the_set(folder):
    bench = Bench(folder, [{**TWO_ROWS[0], "words": loss(4) + ["fake.exit=2"]}, TWO_ROWS[1]])
    code, text = bench.run("--seeds", 2)
    assert code == ablate.EXIT_FAILED and "no further run is started" in text, text
    assert bench.traced() == ["bf16-s1@0"], text
    code, text = bench.run("--seeds", 1, "--keep-going")
    assert code == ablate.EXIT_FAILED and bench.traced() == ["bf16-s1@0", "nvfp4-s1@0"], text


def case_words_go_to_every_run(folder):
    bench = Bench(folder, TWO_ROWS)
    assert bench.run("train.steps=5", "--seeds", 1, "fake.loss=7")[0] == 0
    results = bench.results()
    assert [r["steps"] for r in results] == ["5", "5"], results
    assert [r["val_loss"] for r in results] == ["7.01", "7.01"], results
    code, text = bench.run("--seeds", 1, "nonsense")
    assert code == ablate.EXIT_USAGE and "'nonsense' is no key=value word" in text, text


def case_results_stay_with_the_runs(folder):
    bench = Bench(folder, TWO_ROWS)
    arguments = bench.arguments("--seeds", 1)
    at = arguments.index("--results")
    with contextlib.redirect_stdout(io.StringIO()):
        assert ablate.main(arguments[:at] + arguments[at + 2:]) == 0
    assert (folder / "out" / "set_runs.csv").exists() and not (folder / "results.csv").exists()


def case_a_reader_may_leave(folder):
    bench = Bench(folder, TWO_ROWS)
    for script, arguments in ((PROGRAM, bench.arguments("--seeds", 1)),
                              (ROOT / "scripts" / "compare.py", ["--help"])):
        command = [sys.executable, str(script), *arguments]
        shell = subprocess.run(["bash", "-c", '"$@" | true; exit ${PIPESTATUS[0]}', "bash",
                                *command], capture_output=True, text=True, check=False)
        assert "Traceback" not in shell.stderr and "Broken pipe" not in shell.stderr, shell.stderr


def case_a_run_without_its_last_loss_failed(folder):
    bench = Bench(folder, TWO_ROWS[:1])
    bench.program.write_text(bench.program.read_text().replace('"step": steps,', '"step": 2,'))
    code, text = bench.run("--seeds", 1)
    assert code == ablate.EXIT_FAILED and not (folder / "results.csv").exists(), text


def case_divergence_is_a_result(folder):
    bench = Bench(folder, [TWO_ROWS[0], {**TWO_ROWS[1], "words": loss(4) + ["fake.exit=6"]}])
    code, text = bench.run("--seeds", 1)
    assert code == 0 and "0/1, 1 diverged" in text, text
    assert [r["status"] for r in bench.results()] == ["done", "diverged"]
    assert bench.run("--seeds", 1)[0] == 0 and len(bench.traced()) == 2


def case_runs_go_side_by_side(folder):
    wait = folder / "wait"
    wait.touch()
    bench = Bench(folder, TWO_ROWS, [f"fake.wait={wait}"])
    running = subprocess.Popen([sys.executable, PROGRAM, *bench.arguments("--jobs", 2)],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    give_up = time.monotonic() + 30
    while not (bench.trace.exists() and len(bench.trace.read_text().split()) == 2):
        assert time.monotonic() < give_up and running.poll() is None
        time.sleep(0.01)
    wait.unlink()
    text = running.communicate(timeout=30)[0]
    assert running.returncode == 0, text
    assert sorted(bench.traced()[:2]) == ["bf16-s1@0", "nvfp4-s1@0"]
    assert len(bench.results()) == 3 and {r["jobs"] for r in bench.results()} == {"2"}


def case_interrupted_runs_go_on(folder):
    wait = folder / "wait"
    bench = Bench(folder, TWO_ROWS, [f"fake.wait={wait}"])
    for number in (signal.SIGINT, signal.SIGTERM):
        shutil.rmtree(folder / "out", ignore_errors=True)
        (folder / "results.csv").unlink(missing_ok=True)
        wait.touch()
        running = subprocess.Popen([sys.executable, PROGRAM, *bench.arguments()],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        give_up = time.monotonic() + 30
        while not bench.trace.exists() or not bench.trace.read_text():
            assert time.monotonic() < give_up and running.poll() is None
            time.sleep(0.01)
        running.send_signal(number)
        text = running.communicate(timeout=30)[0]
        assert running.returncode == ablate.EXIT_INTERRUPTED, text
        assert "open: bf16 seed 1, nvfp4 seed 1, bf16 seed 2" in text, text
        wait.unlink()
        assert bench.run()[0] == 0
        assert bench.traced() == ["bf16-s1@0", "bf16-s1@1", "nvfp4-s1@0", "bf16-s2@0"]


def case_budget_ends_before_what_would_not_fit(folder):
    bench = Bench(folder, TWO_ROWS)
    code, text = bench.run("--budget", 0)
    assert code == ablate.EXIT_OPEN and bench.traced() == [], text
    bench.run("--seeds", 1)
    bench.traced()
    # As long as the finished runs took: an hour each.
    results = ablate.read_results(folder / "results.csv")
    for result in results.values():
        result.seconds = 3600
    ablate.write_results(folder / "results.csv", results)
    code, text = bench.run("--budget", 59)
    assert code == ablate.EXIT_OPEN and "open: bf16 seed 2" in text and bench.traced() == [], text
    assert bench.run("--budget", 61)[0] == 0 and bench.traced() == ["bf16-s2@0"]


def case_budget_stops_what_runs(folder):
    wait = folder / "wait"
    wait.touch()
    bench = Bench(folder, TWO_ROWS, [f"fake.wait={wait}"])
    code, text = bench.run("--budget", 0.02, "--jobs", 2)
    assert code == ablate.EXIT_OPEN and "bf16 seed 1 was interrupted" in text, text
    assert "open: bf16 seed 1, nvfp4 seed 1, bf16 seed 2" in text, text
    wait.unlink()
    assert bench.run()[0] == 0
    assert bench.traced()[2:] == ["bf16-s1@1", "nvfp4-s1@1", "bf16-s2@0"]


def case_damaged_results_are_refused(folder):
    bench = Bench(folder, TWO_ROWS)
    bench.run()
    path = folder / "results.csv"
    whole = path.read_text()
    path.write_text(whole.replace("4.01", "four"))
    code, text = bench.run()
    assert code == ablate.EXIT_DATA and "line 2 is damaged" in text, text
    path.write_text("a,b\n")
    code, text = bench.run()
    assert code == ablate.EXIT_DATA and "no file of results" in text, text


def case_shipped_sets_are_sound(_):
    for path in ablation_set.SETS.glob("*.json"):
        ablation = ablation_set.read_set(path)
        assert len({row.hash for row in ablation.rows}) == len(ablation.rows), path


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
