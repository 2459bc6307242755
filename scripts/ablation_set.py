"""An ablation's set: its rows, their whole configs, and the hash that tells configs apart.

A set is a JSON file: {"about", "reference", "words", "rows": [{"name", "config", "words", "seeds",
"about"}]}. `config` is a path from the repository's root, `words` are key=value words as on the
program's command line, those of the set before those of the row, then the caller's. `reference` names the row that the
others are compared with; `seeds` is the most seeds a row gets. Not here: running (ablate.py).
"""

import hashlib
import json
import pathlib
import re
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
SETS = ROOT / "configs" / "ablations" / "sets"
MAX_SEEDS = 1000

# What changes no result, or is hashed by its content.
NOT_HASHED = re.compile(r"(log|ckpt|sample|plan)\.|seed$|threads$|device$"
                        r"|data\.(train|val|tokenizer)$|eval\.(every|micro)$")


class SetError(Exception):
    """Something about a set or its configs that the user has to know."""


def strip_comments(text):
    """Without // comments, which strings may hold."""
    return re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*', lambda match: match.group(1) or "", text)


def read_json(path):
    try:
        return json.loads(strip_comments(pathlib.Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise SetError(f"cannot read '{path}': {error.strerror}") from None
    except ValueError as error:
        raise SetError(f"'{path}' is no JSON: {error}") from None


def flatten(value, prefix=""):
    """{dotted key: value}; lists are values."""
    flat = {}
    for key, member in value.items():
        name = f"{prefix}.{key}" if prefix else key
        flat.update(flatten(member, name) if isinstance(member, dict) else {name: member})
    return flat


def read_config(path):
    """A config file and those it extends, later ones winning."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise SetError(f"'{path}' holds no JSON object")
    bases = value.pop("extends", [])
    flat = {}
    for base in [bases] if isinstance(bases, str) else bases:
        flat.update(read_config(pathlib.Path(path).parent / base))
    flat.update(flatten(value))
    return flat


def word_value(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def data_identity(folder):
    """What tells data sets apart: dataset.json where there is one, else names and sizes."""
    if folder is None:
        return ""
    folder = pathlib.Path(folder)
    shards = sorted(folder.glob("*.bin"))
    if not any(s.name.startswith("train_") for s in shards):
        raise SetError(f"there is no train_*.bin in '{folder}'; data/prepare_text.py makes them")
    if (folder / "dataset.json").exists():
        description = read_json(folder / "dataset.json")
    else:
        description = [[s.name, s.stat().st_size] for s in shards]
    return json.dumps(description, sort_keys=True)


@dataclass
class Row:
    name: str
    config: str
    words: list
    seeds: int
    about: str
    steps: int
    hash: str


@dataclass
class AblationSet:
    name: str
    about: str
    reference: str
    rows: list


def find_set(text):
    path = pathlib.Path(text)
    if not path.exists() and (SETS / f"{text}.json").exists():
        path = SETS / f"{text}.json"
    if not path.is_file():
        legal = ", ".join(sorted(p.stem for p in SETS.glob("*.json"))) or "none"
        raise SetError(f"there is no set '{text}'; a path, or one of configs/ablations/sets: "
                       f"{legal}")
    return path


def checked(value, key, kind, where):
    if not isinstance(value, kind) or isinstance(value, bool):
        raise SetError(f"{where}: \"{key}\" is missing or not of its kind")
    return value


def checked_words(words, where):
    for word in words:
        if not isinstance(word, str) or not re.match(r"[a-z_0-9.]+=", word):
            raise SetError(f"{where}: {word!r} is no key=value word")
    return words


def words_of(value, where):
    return checked_words(checked(value.get("words", []), "words", list, where), where)


def row_of(value, common, extra, max_seeds, data, where):
    if not isinstance(value, dict):
        raise SetError(f"{where} is no object")
    unknown = set(value) - {"name", "config", "words", "seeds", "about"}
    if unknown:
        raise SetError(f"{where}: unknown key \"{sorted(unknown)[0]}\"")
    name = checked(value.get("name"), "name", str, where)
    if not re.fullmatch(r"[A-Za-z0-9_.+-]+", name):
        raise SetError(f"{where}: the name '{name}' has more than letters, digits and _ . + -")
    config = checked(value.get("config"), "config", str, where)
    words = common + words_of(value, where) + extra
    seeds = checked(value.get("seeds", max_seeds), "seeds", int, where)
    flat = read_config(ROOT / config)
    flat.update((word.split("=", 1)[0], word_value(word.split("=", 1)[1])) for word in words)
    steps = flat.get("train.steps")
    if not isinstance(steps, int) or steps < 1:
        raise SetError(f"{where} ('{name}'): give train.steps, by which results are told apart")
    kept = {key: member for key, member in flat.items() if not NOT_HASHED.match(key)}
    text = json.dumps(kept, sort_keys=True) + data
    return Row(name, config, words, min(seeds, max_seeds), value.get("about", ""), steps,
               hashlib.sha256(text.encode()).hexdigest()[:16])


def read_set(path, max_seeds=MAX_SEEDS, data_folder=None, extra_words=()):
    value = read_json(path)
    if not isinstance(value, dict):
        raise SetError(f"'{path}' holds no JSON object")
    common, data = words_of(value, f"'{path}'"), data_identity(data_folder)
    extra = checked_words(list(extra_words), "command line")
    rows = [row_of(row, common, extra, max_seeds, data, f"'{path}', row {i}")
            for i, row in enumerate(checked(value.get("rows"), "rows", list, f"'{path}'"))]
    names = [row.name for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise SetError(f"'{path}': two rows are called '{name}'")
    reference = checked(value.get("reference"), "reference", str, f"'{path}'")
    if reference not in names:
        raise SetError(f"'{path}': the reference '{reference}' is no row of the set")
    return AblationSet(pathlib.Path(path).stem, value.get("about", ""), reference, rows)
