#!/usr/bin/env python3
"""The fault matrix: runs of the program that are killed, starved of disk, given damaged files and
jumping clocks. Each is then started again by the same command, and must leave the record of a run
that nothing happened to, by step and bit for bit, times apart; what it lost are the steps since its
last checkpoint; and its message said what happened. CPU only; ranks need mpirun. Needs the standard
library, gcc for one case, and the program (`make cpu`).

    python3 test/test_faults.py [--moments N] [--seed S] [--program PATH] [WORD]

--moments is the number of random kills (10). The seed is printed. Cases are the functions named
case_*, WORD picks some; the last line is `N passed, N failed`.
"""

import argparse
import array
import contextlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS, EVERY = 30, 3          # of a run; between its checkpoints
DEAD_WITHIN_S = 60            # all ranks, after one of them was killed
RANKS = (1, 2, 4)             # 1: without mpirun
TIMES = ("time_ms", "tokens_per_s", "mfu")
MPIRUN = "mpirun --allow-run-as-root --oversubscribe --bind-to none -np".split()
ENVIRONMENT = {**os.environ, "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
               "OMP_WAIT_POLICY": "passive", "ASAN_OPTIONS": "detect_leaks=0"}
EXIT_DONE, EXIT_DATA, EXIT_HANG, EXIT_INTERRUPTED, KILLED = 0, 3, 7, 130, 137

options = None


# --- runs ---

def write_shard(path, count, seed):
    draw = random.Random(seed)
    header = struct.pack("<256i", 20240520, 1, count, *[0] * 253)
    tokens = array.array("H", (draw.randrange(64) for _ in range(count)))
    path.write_bytes(header + tokens.tobytes())


def write_data(folder):
    write_shard(folder / "train_0.bin", 9 * 32 + 5, 1)
    write_shard(folder / "train_1.bin", 8 * 32 + 1, 2)
    write_shard(folder / "val.bin", 8 * 32 + 1, 3)


class Run:
    """One run in a folder of its own, with as many starts as it takes."""

    def __init__(self, folder, name, ranks=1, *words):
        self.folder, self.ranks, self.out, self.err = folder / name, ranks, "", ""
        self.folder.mkdir()
        self.command = [str(options.program), f"data.train={folder}/train_*.bin",
                        f"data.val={folder}/val.bin", "model.layers=2", "model.dim=64",
                        "model.heads=2", "model.ffn=128", "model.vocab=64", "batch.micro=2",
                        "batch.seq_len=32", "batch.total_tokens=256", f"train.steps={STEPS}",
                        "optim.lr=3e-3", "precision.recipe=nvfp4", "precision.keep_bf16.last=0",
                        "eval.every=5", "eval.micro=2", "threads=1", "device=cpu",
                        f"ckpt.every={EVERY}", "log.dir=run", *words]
        self.log, self.ckpt = self.folder / "run", self.folder / "run" / "ckpt"
        self.process, self.before = None, []

    def start(self, environment=None):
        """Starts it, its ranks with more of an environment, of which mpirun itself sees nothing."""
        launcher = MPIRUN + [str(self.ranks)] if self.ranks > 1 else []
        extra = ["env", *(f"{key}={value}" for key, value in (environment or {}).items())]
        self.files = [open(self.folder / name, "w+") for name in ("stdout", "stderr")]
        self.process = subprocess.Popen([*self.before, *launcher, *extra, *self.command],
                                        cwd=self.folder, stdout=self.files[0],
                                        stderr=self.files[1], env=ENVIRONMENT,
                                        start_new_session=True)
        return self

    def wait(self, seconds=240):
        code = self.process.wait(timeout=seconds)
        for file in self.files:
            file.close()
        self.out, self.err = ((self.folder / n).read_text(errors="replace")
                              for n in ("stdout", "stderr"))
        return code if code >= 0 else 128 - code

    def run(self, environment=None):
        return self.start(environment).wait()

    def finish(self):
        """Starts it again, undisturbed this time, and expects success."""
        code = self.run()
        assert code == EXIT_DONE, f"exit code {code}\n{self.out}\n{self.err}"

    # --- what is seen from outside while it runs ---

    def reported(self):
        """Steps done, by the record."""
        path = self.log / "metrics.jsonl"
        text = path.read_text(errors="replace") if path.exists() else ""
        return 1 + max((json.loads(line)["step"] for line in text.split("\n")[:-1]
                        if line.startswith("{") and '"train_loss"' in line), default=-1)

    def wait_for_step(self, step):
        deadline = time.monotonic() + 120
        while self.reported() < step:
            assert self.process.poll() is None, f"ended before step {step}: {self.wait()}"
            assert time.monotonic() < deadline, f"no step {step}"
            time.sleep(0.005)

    def wait_for_checkpoint_write(self):
        """Until a checkpoint is being written, or it has ended."""
        while self.process.poll() is None:
            with contextlib.suppress(FileNotFoundError):
                if any(name.startswith(".tmp") for name in os.listdir(self.ckpt)):
                    return

    def processes(self):
        """Process ids of the ranks."""
        found = []
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                words = pathlib.Path("/proc", entry, "cmdline").read_bytes().split(b"\0") \
                    if entry.isdigit() else []
                here = words and os.readlink(f"/proc/{entry}/cwd") == str(self.folder)
                if here and words[0] == str(options.program).encode():
                    found.append(int(entry))
        return sorted(found)

    # --- what it left ---

    def checkpoints(self):
        return sorted(path.name for path in self.ckpt.glob("step_*"))

    def newest(self):
        return int(self.checkpoints()[-1][5:]) if self.checkpoints() else 0

    def record(self):
        """Lines of metrics.jsonl without what a clock measured; each must be whole."""
        text = (self.log / "metrics.jsonl").read_text()
        assert text.endswith("\n"), "torn last line"
        lines = [json.loads(line) for line in text.splitlines()]
        return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


references = {}


def reference(folder, ranks):
    """The record of an undisturbed run, and that it is whole in itself."""
    if ranks not in references:
        run = Run(folder, f"reference_{ranks}", ranks)
        run.finish()
        steps = [line["step"] for line in run.record() if "train_loss" in line]
        assert steps == list(range(STEPS)), steps
        references[ranks] = run.record()
    return references[ranks]


def same_as_undisturbed(folder, run):
    got, want = run.record(), reference(folder, run.ranks)
    for a, b in zip(got, want):
        assert a == b, f"{a}\nis not\n{b}"
    assert len(got) == len(want), f"{len(got)} lines, not {len(want)}"
    assert json.loads((run.log / "run.json").read_text())["exit_reason"] == "finished"
    left = [name for name in os.listdir(run.ckpt) if name.startswith((".tmp", ".old"))]
    assert not left, left
    assert run.newest() == STEPS
    verified = subprocess.run([options.program, "ckpt", "verify", run.ckpt], capture_output=True)
    assert verified.returncode == 0, verified.stdout


def announced(out):
    """Newest checkpoint that standard output told of."""
    marks = [line.split("step_")[1] for line in out.splitlines()
             if line.startswith("checkpoint ") and "step_" in line]
    return max((int(mark[:8]) for mark in marks), default=0)


def resumes(folder, run):
    """By the same command, from the newest checkpoint, to what an undisturbed run leaves."""
    newest = run.newest()
    run.finish()
    if newest:
        assert f"step_{newest:08d}: step {newest}," in run.out, run.out
    same_as_undisturbed(folder, run)


# --- kill -9 ---

def kill_at(run, moment, draw):
    """Kills one rank or all at a random time, or within the writing of a checkpoint."""
    if moment["within_write"]:
        run.wait_for_step(draw.randrange(1, STEPS // 2))
        run.wait_for_checkpoint_write()
    else:
        time.sleep(moment["delay"])
    victims = run.processes()
    if moment["one"] and victims:
        victims = [draw.choice(victims)]
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(victims)


def kills_and_resumes(folder, index, draw, whole_s):
    moment = {"ranks": RANKS[index % len(RANKS)], "one": index % 2 == 0,
              "within_write": draw.random() < 0.5, "delay": 0.0}
    moment["delay"] = draw.uniform(0.05, 1.0) * whole_s[moment["ranks"]]
    run = Run(folder, f"killed_{index}", moment["ranks"]).start()
    hit = kill_at(run, moment, draw)
    killed_at = time.monotonic()
    code = run.wait(DEAD_WITHIN_S)
    took = time.monotonic() - killed_at
    while run.processes():
        assert time.monotonic() - killed_at < DEAD_WITHIN_S, f"left: {run.processes()}"
        time.sleep(0.05)
    done, newest, told = run.reported(), run.newest(), announced(run.out)
    where = "within a checkpoint's write" if moment["within_write"] else f"{moment['delay']:.2f} s"
    whom = "one" if moment["one"] else "all"
    print(f"  {moment['ranks']} ranks, {whom} killed at {where}: exit {code} after {took:.1f} s, "
          f"{done} steps done, checkpoint {newest}", flush=True)
    if hit and code != EXIT_DONE:
        assert code in (KILLED, EXIT_HANG), f"exit code {code}\n{run.err}"
        # Whoever is first: mpirun, which names the signal, or a rank that misses another.
        said = run.ranks == 1 or "signal 9" in run.err or "went away" in run.err
        assert said, f"nothing tells of the kill:\n{run.err}"
    assert newest >= told, f"checkpoint {told} was announced, {newest} is there"
    assert done - newest <= 2 * EVERY, f"{done} steps done, checkpoint {newest}"
    resumes(folder, run)
    shutil.rmtree(run.folder)


def case_kill_9_at_random_moments(folder):
    draw = random.Random(options.seed)
    whole_s = {}
    for ranks in RANKS:
        began = time.monotonic()
        reference(folder, ranks)
        whole_s[ranks] = time.monotonic() - began
    for index in range(options.moments):
        kills_and_resumes(folder, index, draw, whole_s)


# --- signals ---

def case_storm_of_signals_on_all_ranks(folder):
    """mpirun passes SIGUSR1 on; SIGTERM goes to the ranks as Slurm sends it."""
    for number, through_mpirun in ((signal.SIGUSR1, True), (signal.SIGTERM, False)):
        run = Run(folder, f"storm_{number}", 2).start()
        run.wait_for_step(4)
        for _ in range(100):
            ranks = run.processes()
            for pid in [run.process.pid] if through_mpirun and ranks else ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(0.002)
        code = run.wait(DEAD_WITHIN_S)
        assert code == EXIT_INTERRUPTED, f"{code}\n{run.err}"
        assert f"interrupted at step {run.newest()} by" in run.out, run.out
        resumes(folder, run)


# --- scripts/keep_running.sh ---

KEEP_RUNNING = ROOT / "scripts" / "keep_running.sh"


def case_keep_running_through_kills(folder):
    """Kills of one rank, some before there is a checkpoint; the script brings it to its end."""
    draw = random.Random(options.seed)
    for ranks in (1, 2):
        run = Run(folder, f"kept_{ranks}", ranks)
        run.before = [KEEP_RUNNING, "--wait", "0", "--tries", "5", "--progress", run.ckpt]
        run.start()
        for step in (1, EVERY + 1, 3 * EVERY + 2):
            run.wait_for_step(step)
            os.kill(draw.choice(run.processes()), signal.SIGKILL)
        code = run.wait()
        assert code == EXIT_DONE, f"{code}\n{run.err}"
        ends = [line for line in run.err.splitlines() if "starts again in 0 s" in line]
        assert len(ends) == 3, run.err
        assert all("137 (killed: kill -9" in end or "7 (hang" in end for end in ends), ends
        same_as_undisturbed(folder, run)


def case_keep_running_passes_signals_on(folder):
    """Also to the ranks of mpirun, which itself would leave them a second; then it ends."""
    for ranks, number in ((1, signal.SIGINT), (2, signal.SIGTERM), (2, signal.SIGUSR1)):
        run = Run(folder, f"told_{ranks}_{number}", ranks)
        run.before = [KEEP_RUNNING]
        run.start()
        run.wait_for_step(4)
        run.process.send_signal(number)
        run.process.send_signal(number)
        code = run.wait(DEAD_WITHIN_S)
        assert code == EXIT_INTERRUPTED, f"{code}\n{run.err}"
        assert f"{signal.Signals(number).name}: the command ended with 130 (stopped" in run.err
        run.before = []
        resumes(folder, run)


def case_keep_running_exit_codes(folder):
    """Which are started again, the limit, --also, and what it refuses."""
    count = folder / "count"

    def ends(code, *words):
        count.write_text("")
        done = subprocess.run([KEEP_RUNNING, "--wait", "0", "--tries", "3", *words, "bash", "-c",
                               f"echo >> {count}; exit {code}"], capture_output=True, text=True)
        return done.returncode, len(count.read_text()), done.stderr

    for code in (0, 2, 3, 5, 6, 126, 127):
        assert ends(code)[:2] == (code, 1), f"{code}: {ends(code)}"
    for code in (1, 4, 7, 130, 134, 137, 139, 255):
        assert ends(code)[:2] == (code, 3), f"{code}: {ends(code)}"
    assert ends(6, "--also", "3", "--also", "6")[:2] == (6, 3)
    assert "3 starts in a row without progress are enough" in ends(7)[2]
    for words in ([], ["--tries", "x", "true"], ["--tries", "0", "true"], ["--foo", "true"]):
        assert subprocess.run([KEEP_RUNNING, *words], capture_output=True).returncode == 2


# --- disks ---

def case_disk_full(folder):
    """From some step on no file may grow beyond 100 kB: training goes on to its end, the older
    checkpoints stay, and the exit code tells."""
    for ranks in (1, 2):
        run = Run(folder, f"full_{ranks}", ranks).start()
        run.wait_for_step(2 * EVERY + 1)
        for pid in run.processes():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
        code = run.wait()
        assert code == EXIT_DATA, f"{code}\n{run.err}"
        assert "NOT WRITTEN" in run.err and "File too large" in run.err, run.err
        assert "the next try comes at step" in run.err, run.err
        assert run.reported() == STEPS, run.reported()
        assert EVERY <= run.newest() < STEPS, run.checkpoints()
        resumes(folder, run)


def case_standard_output_full(folder):
    """The record does not depend on who listens."""
    run = Run(folder, "deaf")
    with open("/dev/full", "w") as full:
        code = subprocess.run(run.command, cwd=run.folder, stdout=full, env=ENVIRONMENT).returncode
    assert code == EXIT_DONE, code
    same_as_undisturbed(folder, run)


def case_directory_cannot_be_made(folder):
    (folder / "file").write_text("")
    for key in ("log.dir", "ckpt.dir"):
        run = Run(folder, f"unwritable_{key}", 1, f"{key}={folder}/file/below")
        assert run.run() == EXIT_DATA and key in run.err and f"{folder}/file" in run.err, run.err


def case_directory_lost(folder):
    """ckpt.dir becomes a file while the run is on, which trains to its end."""
    run = Run(folder, "lost").start()
    run.wait_for_step(EVERY + 1)
    aside = run.folder / "aside"
    run.ckpt.rename(aside)
    run.ckpt.write_text("")
    code = run.wait()
    assert code == EXIT_DATA and run.reported() == STEPS, f"{code}\n{run.err}"
    assert "ckpt" in run.err and "not a directory" in run.err.lower(), f"{code}\n{run.err}"
    run.ckpt.unlink()
    aside.rename(run.ckpt)
    resumes(folder, run)


# --- damaged files ---

def stopped_run(folder, name):
    run = Run(folder, name).start()
    run.wait_for_step(3 * EVERY + 1)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == EXIT_INTERRUPTED
    assert len(run.checkpoints()) == 2, run.checkpoints()
    return run


def refuses(run, damaged):
    """The run and `ckpt verify` do, name the file and the older checkpoint, and change nothing."""
    before = sorted(os.listdir(run.ckpt))
    code = run.run()
    assert code == EXIT_DATA, f"{damaged}: {code}\n{run.out}\n{run.err}"
    assert damaged.name in run.err and run.checkpoints()[0] in run.err, run.err
    assert sorted(os.listdir(run.ckpt)) == before
    verified = subprocess.run([options.program, "ckpt", "verify", run.ckpt], capture_output=True)
    assert verified.returncode == EXIT_DATA, f"{damaged} passes for sound"


def case_checkpoint_truncated(folder):
    run = stopped_run(folder, "truncated")
    for path in sorted((run.ckpt / run.checkpoints()[-1]).iterdir()):
        whole = path.read_bytes()
        for size in (0, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            refuses(run, path)
        path.write_bytes(whole)
    resumes(folder, run)


def case_checkpoint_bits_flipped(folder):
    """Wherever the bit is. Without the damaged checkpoint the older one serves."""
    draw = random.Random(options.seed)
    run = stopped_run(folder, "flipped")
    newest = run.ckpt / run.checkpoints()[-1]
    for path in sorted(newest.iterdir()):
        whole = path.read_bytes()
        for _ in range(3):
            bit = draw.randrange(8 * len(whole))
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            refuses(run, path)
        path.write_bytes(whole)
    shutil.rmtree(newest)
    resumes(folder, run)


def case_record_torn(folder):
    """A power cut leaves half a line, or zeros."""
    for index, tail in enumerate((b'{"step":11,"tok', b"\0" * 300, b"\0\n{")):
        run = stopped_run(folder, f"torn_{index}")
        for name in ("metrics.jsonl", "main.log"):
            with open(run.log / name, "ab") as file:
                file.write(tail)
        resumes(folder, run)


# --- what the machine's clock and disk do ---

def shim(folder):
    library = folder / "shim.so"
    if not library.exists():
        subprocess.run(["gcc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library,
                        ROOT / "test" / "faults_shim.c", "-ldl"], check=True)
    return str(library)


def case_clock_jumps(folder):
    """By up to a year at every look: durations are those of the monotonic clock."""
    for ranks in (1, 2):
        run = Run(folder, f"clock_{ranks}", ranks)
        began = time.monotonic()
        code = run.run(environment={"LD_PRELOAD": shim(folder), "FAULTS_CLOCK": "1"})
        took_ms = 1000 * (time.monotonic() - began)
        assert code == EXIT_DONE, f"{code}\n{run.err}"
        same_as_undisturbed(folder, run)
        times = [json.loads(line)["time_ms"] for line in open(run.log / "metrics.jsonl")
                 if "time_ms" in line]
        assert all(0 < ms < took_ms for ms in times) and sum(times) < took_ms, times
        started = json.loads((run.log / "run.json").read_text())["started"]
        assert started[:13] != time.strftime("%Y-%m-%dT%H", time.gmtime()), "the clock did not jump"


def case_record_reaches_the_disk_first(folder):
    """A power cut after a checkpoint got its name must find all lines before it on the disk."""
    run, trace = Run(folder, "order"), folder / "trace"
    code = run.run(environment={"LD_PRELOAD": shim(folder), "FAULTS_TRACE": str(trace)})
    assert code == EXIT_DONE, run.err
    synced, renames = False, 0
    for line in trace.read_text().splitlines():
        call, path = line.split(" ", 1)
        if call == "fsync" and path.endswith("/metrics.jsonl"):
            synced = True
        if call == "rename" and "/step_" in path and "/." not in path:
            assert synced, f"{path} was named before the record was synced"
            synced, renames = False, renames + 1
    assert renames == STEPS // EVERY, renames


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__, add_help=True,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--program", type=pathlib.Path,
                        default=ROOT / "build" / "cpu" / "train_gpt_nvfp4")
    parser.add_argument("word", nargs="?", default="")
    options = parser.parse_args()
    options.program = options.program.resolve()
    global RANKS
    if not shutil.which("mpirun"):
        RANKS = (1,)
        print("no mpirun here: one rank only")
    print(f"seed {options.seed}, {options.moments} moments")
    passed = failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_data(folder)
        for case_name, case in list(globals().items()):
            if not case_name.startswith("case_") or options.word not in case_name:
                continue
            began = time.monotonic()
            try:
                case(folder)
                passed, verdict = passed + 1, "ok  "
            except Exception:
                traceback.print_exc(file=sys.stdout)
                failed, verdict = failed + 1, "FAIL"
            took_ms = 1000 * (time.monotonic() - began)
            print(f"{verdict} {case_name[5:]} ({took_ms:.0f} ms)", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
