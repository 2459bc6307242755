#!/usr/bin/env python3
"""Computes a step again that was not finite, from the replay file that the run left in log.dir:

    scripts/replay.py runs/my/replay_step_00000123.json [key=value ...]

It goes on from the checkpoint that the file names, or the newest one before the step that is still
there, or from the beginning, with the same number of ranks, up to and with that step, into a
directory of its own. Steps before it that are not finite are skipped again (guard.nan=skip), as is
the step itself. The same bits come again: the program gives the same message, and this script says
so and ends with exit code 6. Words go to the program, to see what helps: precision.recipe=bf16,
optim.grad_clip=0.1. Exit code 0: the step is finite this time; 2: the file is not a replay file, or
the command is not legal. Run it where the run was started. Needs the standard library.

  --program PATH   the program (default: ./train_gpt_nvfp4)
  --out DIR        log.dir of the replay (default: beside the file, its name with .run)
  --print          only prints the command
"""

import argparse
import json
import pathlib
import shlex
import subprocess
import sys

EXIT_CONFIG, EXIT_DIVERGED = 2, 6
COMPARED = ("train_loss", "grad_norm", "lr", "rank", "micro_batch", "forward", "gradient")
MAX_SKIPS = 1 << 20   # the most that guard.max_skips may be
FIELDS = {"step": int, "world_size": int, "config": str, "checkpoint": (str, type(None))}


def read_replay(path):
    """What the run wrote; ValueError says what of it is missing or wrong."""
    replay = json.loads(path.read_text())
    if not isinstance(replay, dict):
        raise ValueError("it holds no JSON object")
    missing = [key for key in (*FIELDS, *COMPARED) if key not in replay]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")
    for key, kind in FIELDS.items():
        if not isinstance(replay[key], kind):
            raise ValueError(f"its {key} is {replay[key]!r}")
    return replay



def start_from(replay):
    """The checkpoint to go on from: the one named, or the newest before the step; None: none."""
    if not replay["checkpoint"]:
        return None
    named = pathlib.Path(replay["checkpoint"])
    if named.is_dir():
        return named
    older = [path for path in named.parent.glob("step_*")
             if path.name[5:].isdecimal() and int(path.name[5:]) <= replay["step"]]
    return max(older, default=None)


def command_of(replay, options):
    checkpoint = start_from(replay)
    ranks = replay["world_size"]
    launcher = shlex.split(options.mpirun) + [str(ranks)] if ranks > 1 else []
    return [*launcher, options.program, replay["config"], f"log.dir={options.out}",
            f"ckpt.dir={options.out}/ckpt", f"ckpt.resume={checkpoint or 'never'}", "ckpt.every=0",
            f"ckpt.until={replay['step'] + 1}", "eval.every=0", "sample.every=0",
            "log.telemetry_every=0", "log.reference=", "guard.nan=skip",
            f"guard.max_skips={MAX_SKIPS}", *options.words]


def was_skipped(record, step):
    """Whether the run of this metrics.jsonl skipped a step, counted from 0."""
    for line in reversed(record.read_text().splitlines()):
        row = json.loads(line)
        if "train_loss" in row and row["step"] == step:
            return row.get("skipped", False)
    return False


def verdict(replay, options, code):
    """What came of the step, in words, and the exit code."""
    number, again = replay["step"] + 1, options.out / options.file.name
    if code in (0, EXIT_DIVERGED) and again.exists():
        found = read_replay(again)
        differing = [key for key in COMPARED if found[key] != replay[key]]
        return f"other {', '.join(differing)}" if differing else "the same again", EXIT_DIVERGED
    if code == 0 and was_skipped(options.out / "metrics.jsonl", replay["step"]):
        return f"step {number} is skipped, and {options.out} has no replay file of it", EXIT_DIVERGED
    if code == 0:
        return f"step {number} is finite with these words", 0
    return f"ended with {code}, and not at step {number}", code


def refuse(words):
    print(f"replay: {words}", file=sys.stderr)
    return EXIT_CONFIG


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("words", nargs="*", metavar="key=value")
    parser.add_argument("--program", default="./train_gpt_nvfp4")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--mpirun", default="mpirun --allow-run-as-root --oversubscribe -np")
    parser.add_argument("--print", action="store_true", dest="only_print")
    options = parser.parse_intermixed_args()
    options.out = options.out or options.file.with_suffix(".run")
    try:
        replay = read_replay(options.file)
    except OSError as error:
        return refuse(f"{options.file} cannot be read: {error.strerror}")
    except ValueError as error:
        return refuse(f"{options.file} is not a replay file: {error}")
    again = options.out / options.file.name
    if again.exists() and again.samefile(options.file):
        return refuse(f"--out is the directory of {options.file} itself; name another")
    command = command_of(replay, options)
    print("replay:", shlex.join(command), flush=True)
    if options.only_print:
        return 0
    again.unlink(missing_ok=True)
    try:
        code = subprocess.run(command).returncode
    except OSError as error:
        return refuse(f"{command[0]} cannot be run: {error.strerror}")
    words, code = verdict(replay, options, code)
    print("replay:", words)
    return code


if __name__ == "__main__":
    sys.exit(main())
