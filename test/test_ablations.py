#!/usr/bin/env python3
"""Tests of configs/: the ablations are what their generator makes, and the program accepts each
file: all ablations plan, and every config passes --dry-run on a shard made here, whatever memory
this machine has. The program is build/cpu/train_gpt_nvfp4, or what TRAIN_GPT_NVFP4 names. No
harness: cases are the functions named case_*, and the last line is `N passed, N failed`.

    python3 test/test_ablations.py [WORD]     only cases whose name contains WORD
"""

import array
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs" / "ablations"
PROGRAM = pathlib.Path(os.environ.get("TRAIN_GPT_NVFP4", ROOT / "build/cpu/train_gpt_nvfp4"))
sys.path.insert(0, str(ROOT / "scripts"))
import ablation_set
import make_ablations


def program(folder, *arguments):
    done = subprocess.run([PROGRAM.absolute(), *map(str, arguments)], cwd=folder,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60)
    return done.returncode, done.stdout


def rows():
    return sorted(path for path in CONFIGS.glob("*/*/*.json") if path.name != "base.json")


def case_files_are_what_the_generator_makes(folder):
    assert make_ablations.check(CONFIGS, make_ablations.all_files()) == 0
    copy = folder / "ablations"
    shutil.copytree(CONFIGS, copy)
    (copy / "nvfp4/s1/extra.json").write_text("{}")
    assert make_ablations.check(copy, make_ablations.all_files()) == 1
    (copy / "nvfp4/s1/extra.json").unlink()
    with open(copy / "nvfp4/s1/bf16.json", "a") as file:
        file.write("\n")
    assert make_ablations.check(copy, make_ablations.all_files()) == 1


def case_rows_of_a_set_are_its_folder(_):
    for path in ablation_set.SETS.glob("*_*.json"):
        listed = {row.config for row in ablation_set.read_set(path).rows}
        folder = pathlib.Path(next(iter(listed))).parent
        found = {p.relative_to(ROOT).as_posix() for p in (ROOT / folder).glob("*.json")}
        assert listed == found - {f"{folder}/base.json"}, path


def case_scaling_keeps_at_least_one_block(_):
    assert [make_ablations.kept(b, 4) for b in (0, 1, 2, 4)] == [0, 1, 1, 1]
    assert [make_ablations.kept(b, 6) for b in (0, 1, 4)] == [0, 1, 1]
    assert [make_ablations.kept(b, 20) for b in (0, 1, 2, 4)] == [0, 1, 2, 4]


def case_every_row_has_a_plan(folder):
    wrong = []
    assert len(rows()) > 300
    for path in rows():
        code, text = program(folder, "plan", path)
        if code != 0:
            wrong.append(f"{path.relative_to(ROOT)}: {text.splitlines()[-1]}")
    assert not wrong, "\n".join(wrong)


def runs():
    """The words of every run in configs/: a recipe is put behind a run's file."""
    beside = ROOT / "configs/runs/demo_bf16.json"
    yield from ([path] for path in rows())
    yield from ([path] for path in sorted(ROOT.glob("configs/runs/*.json")))
    yield from ([path] for path in sorted(ROOT.glob("configs/models/*.json")))
    yield from ([beside, path] for path in sorted(ROOT.glob("configs/recipes/*.json")))


def write_shard(folder):
    """The words that name it as the data of a run."""
    tokens = array.array("H", [i % 256 for i in range(1 << 17)])
    header = array.array("i", [20240520, 1, len(tokens)] + [0] * 253)
    (folder / "shard.bin").write_bytes(header.tobytes() + tokens.tobytes())
    return ["data.train=shard.bin", "data.val=shard.bin", "log.dir=run"]


def case_every_config_passes_a_dry_run(folder):
    data = write_shard(folder)
    wrong = []
    for words in runs():
        code, text = program(folder, "--dry-run", *words, *data)
        if code != 0 or "\nop workspace " not in text:
            wrong.append(f"{words[-1].relative_to(ROOT)}: {text.splitlines()[-1]}")
    assert not wrong, "\n".join(wrong)
    assert not (folder / "run").exists()


def case_a_dry_run_of_what_no_machine_holds(folder):
    words = [ROOT / "configs/runs/demo_bf16.json", *write_shard(folder), "model.dim=65536",
             "model.layers=400", "model.heads=512", "model.ffn=262144"]
    code, text = program(folder, "--dry-run", *words)
    assert code == 0 and "training here would end with exit code 5" in text, text
    for refused in (["--dry-run", *words, "device=cpu"], words):   # this machine is meant
        code, text = program(folder, *refused)
        assert code == 5 and "error: the run needs " in text, text


def main():
    if not PROGRAM.exists():
        print(f"there is no {PROGRAM}; make it, or name the program by TRAIN_GPT_NVFP4")
        print("0 passed, 1 failed")
        return 1
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
