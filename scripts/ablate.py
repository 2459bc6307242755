#!/usr/bin/env python3
"""Runs an ablation: every row of a set with every seed, then the gaps to the reference row.

    scripts/ablate.py SET [KEY=VALUE ...] [--seeds N] [--data DIR] [--budget MIN] [--jobs N]

SET is a file, or the name of one in configs/ablations/sets (configs/ablations/README.md describes
it). KEY=VALUE words are appended to every run's.
All rows with seed 1 come first, in the order of the set, then those that have a seed 2, and so on.
The seed gives initial weights and data order, so runs of one seed differ in the row alone.

What is done is not done again: the final losses are in the file --results, by default in --out, a
line each, told apart by row, seed, steps and a hash of the row's whole config, words and data.
Interrupted runs go on from their checkpoint in --out. The checkpoints of finished runs are removed.
A run that its config or data ends (exit codes 2, 3) ends the set, but for --keep-going: what is
wrong with one is mostly wrong with all.

Exit codes: 0 all is done, 1 a run failed (its log is named), 2 bad arguments or set, 3 a file,
4 rows are open that did not fit the budget, 130 interrupted; the same command goes on.
"""

import argparse
import contextlib
import csv
import json
import math
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields

import ablation_report
import quiet_pipe
from ablation_set import MAX_SEEDS, ROOT, Row, SetError, find_set, read_set

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_DATA, EXIT_OPEN, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 130
PROGRAM_CONFIG, PROGRAM_DATA = 2, 3   # exit codes of the program
PROGRAM_DIVERGED = 6
PROGRAM_INTERRUPTED = 130
DONE, DIVERGED = "done", "diverged"
POLL_SECONDS = 0.1
STOP_SECONDS = 60      # that a stopped run has to save its checkpoint


@dataclass
class Result:
    """A line of the file of results."""

    row: str
    seed: int
    steps: int
    hash: str
    status: str
    val_loss: float
    train_loss: float
    tokens: int
    seconds: float     # of the whole run, beside jobs - 1 others
    jobs: int
    device: str
    precision: str
    git_hash: str

    def key(self):
        return self.row, self.seed, self.steps, self.hash


def read_results(path):
    """{key: Result} of the file, none where it does not exist."""
    if not path.exists():
        return {}
    names = [field.name for field in fields(Result)]
    results = {}
    with open(path, newline="", encoding="utf-8") as file:
        lines = csv.DictReader(file)
        if lines.fieldnames != names:
            raise SetError(f"'{path}' is no file of results: its first line is not "
                           f"{','.join(names)}")
        for number, line in enumerate(lines, 2):
            try:
                result = Result(**{f.name: f.type(line[f.name]) for f in fields(Result)})
            except (ValueError, TypeError):
                raise SetError(f"'{path}', line {number} is damaged; mend or remove it") from None
            results[result.key()] = result
    return results


def write_results(path, results):
    """By way of a rename, so that an interruption leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    with open(fresh, "w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, [f.name for f in fields(Result)], lineterminator="\n")
        out.writeheader()
        out.writerows(asdict(result) for result in results.values())
    fresh.replace(path)


# --- one run ---


@dataclass
class Task:
    row: Row
    seed: int

    def key(self):
        return self.row.name, self.seed, self.row.steps, self.row.hash

    def name(self):
        return f"{self.row.name} seed {self.seed}"


def tasks_of(ablation):
    """Seed by seed, and within a seed in the order of the set."""
    most = max(row.seeds for row in ablation.rows)
    return [Task(row, seed) for seed in range(1, most + 1) for row in ablation.rows
            if seed <= row.seeds]


def read_records(folder):
    """The lines of metrics.jsonl; one that a killed run left half written is passed over."""
    records = []
    try:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        return records
    for line in lines:
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def run_facts(folder):
    try:
        return json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def result_of(task, folder, seconds, jobs, diverged):
    """What the run's record says, or None when it does not hold the loss of the last step."""
    val = train = None
    tokens = 0
    for record in read_records(folder):
        if record.get("val_loss") is not None and record.get("step") == task.row.steps:
            val = record["val_loss"]
        if record.get("train_loss") is not None:
            train, tokens = record["train_loss"], record["tokens"]
    if val is None and not diverged:
        return None
    facts = run_facts(folder)
    part = 1 - facts.get("first_step", 0) / task.row.steps   # that this attempt trained
    return Result(
        *task.key(), DIVERGED if diverged else DONE, math.nan if diverged else float(val),
        math.nan if train is None else float(train), tokens,
        round(seconds / part if part > 0 else seconds, 1), jobs, facts.get("device", "?"),
        facts.get("precision", "?"), facts.get("git_hash", "?"))


class Running:
    """A run that was started; its standard output and errors go to a log beside its folder."""

    def __init__(self, task, options):
        self.task = task
        row = task.row
        self.folder = options.out / "runs" / f"{row.name}-s{task.seed}-{row.hash[:8]}"
        self.log = self.folder.with_suffix(self.folder.suffix + ".log")
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        command = [options.program, row.config, *row.words, *options.data_words,
                   f"seed={task.seed}", f"log.dir={self.folder}"]
        self.started = time.monotonic()
        with open(self.log, "a", encoding="utf-8") as log:
            # A session of its own: Ctrl-C reaches it by way of stop() alone.
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, start_new_session=True)

    def seconds(self):
        return time.monotonic() - self.started

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()

    def last_words(self):
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"


# --- all of them ---


def expected_seconds(task, results, jobs):
    """The longest finished run of the same row, or of all rows of as many steps; None: unknown."""
    like = [r for r in results if r.steps == task.row.steps and r.jobs == jobs]
    same = [r for r in like if (r.row, r.hash) == (task.row.name, task.row.hash)]
    return max((r.seconds for r in same or like), default=None)


class Ablation:
    """The tasks of a set and what is known of them."""

    def __init__(self, ablation, options):
        self.set, self.options = ablation, options
        self.results = read_results(options.results)
        self.tasks = tasks_of(ablation)
        self.open = [task for task in self.tasks if task.key() not in self.results]
        self.running, self.failed, self.timed = [], [], []
        self.halted = False   # by a run that could not start
        self.started = time.monotonic()
        self.deadline = math.inf
        if options.budget is not None:
            self.deadline = self.started + 60 * options.budget

    def say(self, text):
        print(f"[{(time.monotonic() - self.started) / 60:5.1f} min] {text}", flush=True)

    def fits(self, task):
        """What this session saw counts before what another machine may have seen."""
        jobs = self.options.jobs
        seconds = expected_seconds(task, self.timed, jobs)
        if seconds is None:
            seconds = expected_seconds(task, self.results.values(), jobs)
        return time.monotonic() + (seconds or 0) <= self.deadline

    def start_next(self):
        """Whether one was started; the first that does not fit ends the starting, so that rows are
        done in order."""
        if self.halted or not self.open or len(self.running) >= self.options.jobs:
            return False
        if not self.fits(self.open[0]):
            return False
        task = self.open.pop(0)
        self.running.append(Running(task, self.options))
        self.say(f"{task.name()} starts")
        return True

    def finish(self, run):
        code, task = run.process.returncode, run.task
        self.running.remove(run)
        if code == PROGRAM_INTERRUPTED:
            self.open = [t for t in self.tasks if t is task or t in self.open]
            self.say(f"{task.name()} was interrupted; it goes on from its checkpoint next time")
            return
        result = None
        if code in (0, PROGRAM_DIVERGED):
            result = result_of(task, run.folder, run.seconds(), self.options.jobs, code != 0)
        if result is None:
            self.failed.append(task)
            self.say(f"{task.name()} failed with exit code {code}: {run.last_words()} ({run.log})")
            if code in (PROGRAM_CONFIG, PROGRAM_DATA) and not self.options.keep_going:
                self.halted = True
                self.say("no further run is started: mend it, or go on with --keep-going")
            return
        self.results[result.key()] = result
        self.timed.append(result)
        write_results(self.options.results, self.results)
        shutil.rmtree(run.folder / "ckpt", ignore_errors=True)
        outcome = "diverged" if result.status == DIVERGED else f"val loss {result.val_loss:.4f}"
        self.say(f"{task.name()}: {outcome}, {run.seconds():.0f} s")

    def harvest(self):
        for run in list(self.running):
            if run.process.poll() is not None:
                self.finish(run)

    def run(self):
        while self.start_next():
            pass
        while self.running:
            time.sleep(POLL_SECONDS)
            self.harvest()
            if time.monotonic() > self.deadline:
                self.stop()
            while self.start_next():
                pass

    def stop(self):
        """Ends what runs, each with a checkpoint."""
        for run in self.running:
            run.stop()
        give_up = time.monotonic() + STOP_SECONDS
        while self.running and time.monotonic() < give_up:
            self.harvest()
            time.sleep(POLL_SECONDS)
        for run in self.running:
            run.process.kill()
            run.process.wait()
        self.harvest()

    def summaries(self):
        by_row = {row.name: [] for row in self.set.rows}
        for task in self.tasks:
            if task.key() in self.results:
                by_row[task.row.name].append(self.results[task.key()])
        losses = {name: {r.seed: r.val_loss for r in results if r.status == DONE}
                  for name, results in by_row.items()}
        reference = losses[self.set.reference]
        summaries = [
            ablation_report.summarize_row(
                row.name, row.about, row.seeds, losses[row.name],
                sum(r.status == DIVERGED for r in by_row[row.name]), reference)
            for row in self.set.rows]
        others = [s for s in summaries if s.name != self.set.reference]
        return summaries, ablation_report.noise_of(reference, others)

    def report(self):
        """The table on the screen; CSV, Markdown, picture and the runs' results in --out."""
        summaries, noise = self.summaries()
        out, name, reference = self.options.out, self.set.name, self.set.reference
        for line in ablation_report.screen(summaries, noise, reference):
            print(line)
        out.mkdir(parents=True, exist_ok=True)
        title = self.set.about or name
        ablation_report.write_csv(out / f"{name}.csv", summaries)
        ablation_report.write_markdown(out / f"{name}.md", title, summaries, noise, reference)
        pictured = ablation_report.write_picture(out / f"{name}.png", title, summaries, reference)
        if self.results and self.options.results != out / f"{name}_runs.csv":
            write_results(out / f"{name}_runs.csv", self.results)
        print(f"reports: {out / name}.csv, .md{', .png' if pictured else ''}; "
              f"results: {self.options.results}")


# --- command line ---


def count(text):
    if not text.isdecimal() or not 1 <= int(text) <= MAX_SEEDS:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 1 to {MAX_SEEDS}")
    return int(text)


def minutes(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of minutes")
    return value


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", metavar="SET", help="a set's file, or its name")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE",
                        help="appended to the words of every run, e.g. train.steps=100")
    parser.add_argument("--seeds", type=count, default=MAX_SEEDS, metavar="N",
                        help="no more than N seeds of a row; needed where a row says no number")
    parser.add_argument("--budget", type=minutes, metavar="MIN",
                        help="start no run that would not fit in MIN minutes; stop at their end")
    parser.add_argument("--data", metavar="DIR", help="folder that data/prepare_text.py wrote")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR",
                        help="runs and reports (default: runs/ablate/SET)")
    parser.add_argument("--jobs", type=count, default=1, metavar="N",
                        help="runs at a time: small models leave a GPU idle (default: 1)")
    parser.add_argument("--results", type=pathlib.Path, metavar="FILE",
                        help="results that are carried over (default: SET_runs.csv in --out)")
    parser.add_argument("--keep-going", action="store_true",
                        help="start further runs after one whose config or data is refused")
    parser.add_argument("--program", default=str(ROOT / "train_gpt_nvfp4"), metavar="FILE")
    parser.add_argument("--report", action="store_true", help="run nothing, only report")
    return parser.parse_intermixed_args(arguments)


def settle(options, path):
    """The defaults that hang on others; paths no longer hang on the current directory."""
    options.out = (options.out or ROOT / "runs" / "ablate" / path.stem).absolute()
    options.results = (options.results or options.out / f"{path.stem}_runs.csv").absolute()
    options.data_words = []
    if options.data is not None:
        folder = pathlib.Path(options.data).absolute()
        options.data_words = [f"data.train={folder}/train_*.bin", f"data.val={folder}/val_*.bin"]
    program = shutil.which(options.program)
    if program is None and not options.report:
        raise SetError(f"there is no program '{options.program}'; build it with make, or name it "
                       "with --program")
    options.program = program and str(pathlib.Path(program).absolute())


def main(arguments=None):
    options = parse_arguments(arguments)
    try:
        path = find_set(options.set)
        ablation = read_set(path, options.seeds, options.data, options.words)
        if any(row.seeds >= MAX_SEEDS for row in ablation.rows):
            raise SetError(f"'{path}' has rows without \"seeds\"; say how many with --seeds N")
        settle(options, path)
    except SetError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        work = Ablation(ablation, options)
    except SetError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_DATA
    print(f"{path.stem}: {len(work.tasks)} runs, {len(work.tasks) - len(work.open)} done")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    interrupted = False
    try:
        if not options.report:
            work.run()
        work.report()
    except KeyboardInterrupt:
        interrupted = True
        work.stop()
        work.report()
    except BrokenPipeError:   # nobody reads on: the runs go on from their checkpoints next time
        with contextlib.redirect_stdout(None):
            work.stop()
        raise
    except OSError as error:
        work.stop()
        print(f"error: {error}", file=sys.stderr)
        return EXIT_DATA
    if work.open:
        print("open: " + ", ".join(task.name() for task in work.open))
    if work.failed:
        print("failed: " + ", ".join(task.name() for task in work.failed))
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if work.failed else EXIT_OPEN if work.open else EXIT_DONE


if __name__ == "__main__":
    sys.exit(quiet_pipe.run(main))
