#!/usr/bin/env python3
"""Writes `train_gpt_nvfp4 help --markdown` into README.md between its two marks; with --check only
says whether it is there already (exit 1 if not)."""
import pathlib
import subprocess
import sys

BEGIN = "<!-- config reference: begin -->\n"
END = "<!-- config reference: end -->\n"
root = pathlib.Path(__file__).resolve().parent.parent


def main():
    readme = root / "README.md"
    command = [root / "build/cpu/train_gpt_nvfp4", "help", "--markdown"]
    reference = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    wanted = before + BEGIN + reference.strip() + "\n" + END + rest.split(END)[1]
    if wanted == text:
        return 0
    if "--check" in sys.argv[1:]:
        print("README.md: the config reference is out of date; run scripts/update_readme.py")
        return 1
    readme.write_text(wanted, encoding="utf-8")
    return 0


sys.exit(main())
