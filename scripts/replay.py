#!/usr/bin/env python3
"""Computes a step again that was not finite, from the replay file that the run left in log.dir:

    scripts/replay.py runs/my/replay_step_00000123.json [key=value ...]

It goes on from the checkpoint that the file names, or the newest one before the step that is still
there, or from the beginning, with the same number of ranks, up to and with that step, into a
directory of its own. The same bits come again: it ends with the same message and exit code 6, and
says so. Words go to the program, to see what helps: precision.recipe=bf16, optim.grad_clip=0.1. Exit
code 0: the step is finite this time. Run it where the run was started. Needs the standard library.

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


def start_from(replay):
    """The checkpoint to go on from: the one named, or the newest before the step; None: none."""
    if not replay["checkpoint"]:
        return None
    named = pathlib.Path(replay["checkpoint"])
    if named.is_dir():
        return named
    older = [path for path in named.parent.glob("step_*") if int(path.name[5:]) <= replay["step"]]
    return max(older, default=None)


def command_of(replay, options):
    checkpoint = start_from(replay)
    ranks = replay["world_size"]
    launcher = shlex.split(options.mpirun) + [str(ranks)] if ranks > 1 else []
    return [*launcher, options.program, replay["config"], f"log.dir={options.out}",
            f"ckpt.dir={options.out}/ckpt", f"ckpt.resume={checkpoint or 'never'}", "ckpt.every=0",
            f"ckpt.until={replay['step'] + 1}", "eval.every=0", "sample.every=0",
            "log.telemetry_every=0", "log.reference=", "guard.nan=stop", *options.words]


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
        replay = json.loads(options.file.read_text())
        command = command_of(replay, options)
    except (OSError, ValueError, KeyError) as error:
        print(f"replay: {options.file}: {error!r}", file=sys.stderr)
        return EXIT_CONFIG
    print("replay:", shlex.join(command), flush=True)
    if options.only_print:
        return 0
    code = subprocess.run(command).returncode
    again = options.out / options.file.name
    if code == 0:
        print(f"replay: step {replay['step'] + 1} is finite with these words")
    elif code == EXIT_DIVERGED and again.exists():
        found = json.loads(again.read_text())
        differing = [key for key in COMPARED if found[key] != replay[key]]
        print("replay: the same again" if not differing else f"replay: other {', '.join(differing)}")
    else:
        print(f"replay: ended with {code}, and not at step {replay['step'] + 1}")
    return code


if __name__ == "__main__":
    sys.exit(main())
