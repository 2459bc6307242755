#!/usr/bin/env python3
"""
predict -- the tables of dev/SPEED.md on native steps: asks `train_gpt_nvfp4 plan` for each model,
GPU and precision, and prints what it answers as Markdown. Counts nothing itself.

    python3 dev/predict.py [PROGRAM]      # default ./train_gpt_nvfp4
"""

import re
import subprocess
import sys

STEP = "batch.total_tokens=524288"
MODELS = {
    "gpt2-124m": "model.preset=gpt2-124m batch.micro=32",
    "gpt2-1558m": "model.preset=gpt2-1558m batch.micro=16",
    "llama2-7b": "model.preset=llama2-7b batch.micro=1",
    # The hybrid of arXiv:2509.25149: 6 blocks of attention, 28 MLPs and, for its 28 Mamba-2 blocks,
    # 22 more MLPs, which have 2 % fewer weights than these.
    "12B": "model.pattern=" + 6 * "-------*-" + "-- model.dim=5120 model.heads=40 "
           "model.kv_heads=8 model.head_dim=128 model.ffn=20480 model.act=relu2 model.pos=none "
           "model.norm=rmsnorm model.bias=false model.tied=false model.vocab=131072 "
           "batch.seq_len=8192 batch.micro=1",
}
GPUS = ["B200", "GB300", "RTX PRO 6000", "RTX 5090"]
PRECISIONS = {
    "bf16": "precision.recipe=bf16",
    "recipe": "precision.recipe=nvfp4",
    "all": "precision.recipe=nvfp4 precision.keep_bf16.last=0",
}
LLAMA_30M = "model.preset=llama-30m model.vocab=50257 batch.micro=64 batch.total_tokens=131072"
# Of dev/SPEED.md, tokens/s on the H200; llama-30m before the kernels that the others ran with.
MEASURED = [("gpt2-124m", f"model.preset=gpt2-124m batch.micro=64 {STEP}",
             {"bf16": 604e3, "all": 505e3}),
            ("gpt2-350m", f"model.preset=gpt2-350m batch.micro=32 {STEP}",
             {"bf16": 223e3, "all": 188e3}),
            ("gpt2-774m", f"model.preset=gpt2-774m batch.micro=16 {STEP}",
             {"bf16": 103e3, "all": 89e3}),
            ("gpt2-1558m", f"{MODELS['gpt2-1558m']} {STEP}", {"bf16": 55e3, "all": 49e3}),
            ("llama-30m", LLAMA_30M, {"bf16": 1130e3, "all": 953e3})]


class Plan:
    def __init__(self, program: str, words: str, gpu: str):
        command = [program, "plan", *words.split(), f"plan.device={gpu}"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.speed = float(re.search(r"^ +(\d+) tokens/s$", text, re.MULTILINE)[1])
        self.ms = float(re.search(r"^  step .* ([\d.]+) ms ", text, re.MULTILINE)[1])
        memory = re.search(r"memory .* ([\d.]+) of (\d+) GB(: does not fit)?$", text, re.MULTILINE)
        self.memory = f"{float(memory[1]):.0f}, {memory[2]}{' **no**' if memory[3] else ''}"

    def __str__(self) -> str:
        digits = 0 if self.speed > 1e5 else 1
        return f"{self.speed / 1e3:.{digits}f}k, {self.ms:,.0f} ms"


def main() -> int:
    program = sys.argv[1] if len(sys.argv) > 1 else "./train_gpt_nvfp4"
    print("| model | GPU | BF16 | NVFP4, recipe | x BF16 | NVFP4, all linears | x BF16 | GB, of |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, model in MODELS.items():
        for gpu in GPUS:
            bf16, recipe, every = (Plan(program, f"{model} {STEP} {words}", gpu)
                                   for words in PRECISIONS.values())
            print(f"| {name} | {gpu} | {bf16} | {recipe} | {recipe.speed / bf16.speed:.2f} | "
                  f"{every} | {every.speed / bf16.speed:.2f} | {recipe.memory} |")
    print("\n| on an H200 | | predicted tok/s | measured | predicted / measured |\n"
          "| --- | --- | --- | --- | --- |")
    for name, words, speeds in MEASURED:
        for precision, measured in speeds.items():
            predicted = Plan(program, f"{words} {PRECISIONS[precision]}", "H200").speed
            label = "BF16" if precision == "bf16" else "NVFP4 emulated, all linears"
            print(f"| {name} | {label} | {predicted / 1e3:.0f}k | {measured / 1e3:.0f}k | "
                  f"{predicted / measured:.2f} |")
    return 0


sys.exit(main())
