#!/usr/bin/env python3
"""
make_fixtures -- writes test/fixtures/model_*.safetensors and .json, or checks that the files are
what this script makes.

    python dev/make_fixtures.py            self-check, then write the files
    python dev/make_fixtures.py --check    self-check, then compare with the files; writes nothing

The self-check holds the oracle's float32 gradients (JAX) against central differences of a second
writing of the same model, float64 loops in NumPy. test/fixtures/README.md says what the files hold.
Needs jax and numpy. Prints a line for each failure, and `N passed, N failed`; exit status 1 if
anything failed.
"""

import argparse
import dataclasses
import json
import pathlib
import struct
import sys

import jax
import numpy as np

import oracle_models as oracle

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "test" / "fixtures"
TRAIN = oracle.TrainConfig()
SEED = 20240520
DTYPES = {"F32": np.dtype("<f4"), "I32": np.dtype("<i4")}

# Two machines sum float32 in different orders; a wrong formula is off by far more.
FILE_TOLERANCE = 1e-5
# Float32 rounding of the gradient; the float64 difference quotient itself is good to about 1e-9.
DIFFERENCE_TOLERANCE = 1e-5
DIFFERENCE_STEP = 1e-5
LOSS_TOLERANCE = 2e-6  # a few float32 roundings


def save_safetensors(path, tensors, metadata):
    header, offset = {"__metadata__": metadata}, 0
    for name, array in tensors.items():
        dtype = next(key for key, value in DTYPES.items() if value == array.dtype)
        end = offset + array.nbytes
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def load_safetensors(path):
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + at for at in entry["data_offsets"])
        flat = np.frombuffer(raw[begin:end], DTYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors, metadata


def program_config(c):
    """The run in the program's own config keys."""
    t = TRAIN
    return {
        "model": dataclasses.asdict(c),
        "batch": {"micro": t.batch, "seq_len": t.seq_len, "total_tokens": t.batch * t.seq_len},
        "train": {"steps": t.steps},
        "optim": {
            "lr": t.lr,
            "betas": [t.beta1, t.beta2],
            "eps": t.eps,
            "weight_decay": t.weight_decay,
            "grad_clip": t.grad_clip,
        },
        "sched": {"type": "cosine", "warmup_steps": t.warmup_steps, "final_frac": t.final_frac},
    }


def make_fixture(c):
    """The tensors of one file, and the weights after training, which no file holds."""
    weights = oracle.initial_weights(c, TRAIN.seq_len, SEED)
    batches = oracle.token_batches(c, TRAIN, SEED + 1)
    losses, norms, grads, trained = oracle.train(c, TRAIN, weights, batches)
    tensors = dict(weights)
    tensors.update({"grad." + name: grads[name] for name in weights})
    tensors["tokens"] = batches
    tensors["loss"] = np.array(losses[:1], np.float32)
    tensors["losses"] = np.array(losses, np.float32)
    tensors["grad_norms"] = np.array(norms, np.float32)
    rates = [oracle.learning_rate(TRAIN, step) for step in range(TRAIN.steps)]
    tensors["learning_rates"] = np.array(rates, np.float32)
    return tensors, trained


def relative_error(got, want):
    """Largest difference over the tensor's largest magnitude."""
    return float(np.max(np.abs(got.astype(np.float64) - want)) / max(np.max(np.abs(want)), 1e-30))


def as_float64(tensors):
    return {key: array.astype(np.float64) for key, array in tensors.items()}


class Report:
    """Counts expectations; prints those that fail."""

    def __init__(self):
        self.passed = self.failed = 0

    def expect(self, condition, message):
        if condition:
            self.passed += 1
        else:
            self.failed += 1
            print("FAILED", message)


def check_loss(report, name, c, tensors, trained):
    """Both writings agree on the first loss, and at weights moved by training."""
    tokens = tensors["tokens"][0]
    initial = {key: tensors[key] for key in trained}
    for when, weights in (("first", initial), ("trained", trained)):
        got = float(oracle.loss_jax(c, weights, tokens))
        want = oracle.loss_loops(c, as_float64(weights), tokens)
        report.expect(
            abs(got - want) <= LOSS_TOLERANCE * want,
            f"{name}: {when} loss {got:.8f}, by loops {want:.8f}",
        )
    report.expect(tensors["losses"][-1] < tensors["losses"][0], f"{name}: the loss does not fall")


def check_gradients(report, name, c, tensors):
    """Per tensor: the largest gradient and two at random, against central differences."""
    tokens = tensors["tokens"][0]
    names = oracle.parameter_shapes(c, TRAIN.seq_len)
    weights = as_float64({key: tensors[key] for key in names})
    draw = np.random.RandomState(SEED)
    worst = 0.0
    for key, w in weights.items():
        grad = tensors["grad." + key]
        scale = float(np.max(np.abs(grad)))
        report.expect(scale > 0, f"{name}: grad.{key} is zero")
        for i in (int(np.argmax(np.abs(grad))), draw.randint(w.size), draw.randint(w.size)):
            saved = w.flat[i]
            w.flat[i] = saved + DIFFERENCE_STEP
            above = oracle.loss_loops(c, weights, tokens)
            w.flat[i] = saved - DIFFERENCE_STEP
            below = oracle.loss_loops(c, weights, tokens)
            w.flat[i] = saved
            want = (above - below) / (2 * DIFFERENCE_STEP)
            error = abs(float(grad.flat[i]) - want) / scale
            worst = max(worst, error)
            got_and_want = f"{grad.flat[i]:.8g}, by differences {want:.8g}"
            report.expect(
                error <= DIFFERENCE_TOLERANCE, f"{name}: grad.{key}[{i}] = {got_and_want}"
            )
    print(f"{name}: gradients within {worst:.1e} of their tensor's largest, by central differences")


def check_files(report, name, tensors, config):
    path = FIXTURES / f"model_{name}.safetensors"
    if not path.exists() or not path.with_suffix(".json").exists():
        report.expect(False, f"{path.name} or its .json is missing")
        return
    committed, metadata = load_safetensors(path)
    beside = json.loads(path.with_suffix(".json").read_text())
    report.expect(json.loads(metadata["config"]) == config, f"{path.name}: other config inside")
    report.expect(beside == config, f"{path.stem}.json: other config")
    report.expect(list(committed) == list(tensors), f"{path.name}: other tensor names")
    worst = 0.0
    for key in [key for key in tensors if key in committed]:
        got, want = tensors[key], committed[key]
        if got.shape != want.shape or got.dtype != want.dtype:
            found = f"{want.dtype}{want.shape}, not {got.dtype}{got.shape}"
            report.expect(False, f"{path.name}: {key} is {found}")
            continue
        error = relative_error(got, want)
        worst = max(worst, error)
        tolerance = 0 if got.dtype.kind == "i" else FILE_TOLERANCE
        report.expect(error <= tolerance, f"{path.name}: {key} differs by {error:.2e}")
    print(f"{path.name}: made again within {worst:.1e}")


def write_files(name, tensors, config):
    path = FIXTURES / f"model_{name}.safetensors"
    FIXTURES.mkdir(parents=True, exist_ok=True)
    metadata = {
        "config": json.dumps(config, separators=(",", ":")),
        "jax": jax.__version__,
        "numpy": np.__version__,
    }
    save_safetensors(path, tensors, metadata)
    path.with_suffix(".json").write_text(json.dumps(config, indent=2) + "\n")
    print(f"wrote {path.name}, {path.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description="Make or check the model fixtures.")
    parser.add_argument("--check", action="store_true", help="compare with the files, do not write")
    check = parser.parse_args().check
    report = Report()
    for name, c in oracle.MODELS.items():
        config = program_config(c)
        tensors, trained = make_fixture(c)
        check_loss(report, name, c, tensors, trained)
        check_gradients(report, name, c, tensors)
        if check:
            check_files(report, name, tensors, config)
        elif report.failed == 0:
            write_files(name, tensors, config)
    print(f"{report.passed} passed, {report.failed} failed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
