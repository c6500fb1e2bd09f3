"""A launch script as a run: what it starts, and the trainer's own words or file that this leads to.

torchrun pretrain_gpt.py --num-layers 32 ...                Megatron-LM's flags; ms-swift's `megatron sft`, too
torchrun run_clm.py --per_device_train_batch_size 4 ...     TrainingArguments, with the DeepSpeed JSON that they name
llamafactory-cli train sft.yaml, axolotl train x.yml, ...   the file beside the script
torchrun pretraining.py model.num_layers=32 ...             Hydra's overrides, as the document that they make
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from scalewright.emit import trainers
from scalewright.emit.bash.launched import Launched, launched
from scalewright.emit.bash.script import Script, read_script
from scalewright.emit.bash.unknown import known
from scalewright.emit.bash.words import OUTSIDE
from scalewright.emit.command_lines import flags
from scalewright.emit.emitted import Reading
from scalewright.spec.base import parse_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.question import Unread

STARTS = re.compile(
    r"(?m)^#!.*\b(?:ba|z)?sh\b|^#SBATCH|^#PBS|"
    r"\b(?:torchrun|srun|deepspeed|accelerate launch|llamafactory-cli|axolotl)\s|"
    r"\bpython[\d.]*\s+(?:-\w\s+)*\S+|\bmegatron (?:sft|pt|rlhf)\b"
)
MEGATRON = {"num-layers", "tensor-model-parallel-size", "micro-batch-size", "hidden-size", "use-mcore-models"}
HUGGING_FACE = {"per-device-train-batch-size", "model-name-or-path", "gradient-accumulation-steps"}
# A sequence's length in scripts around Hugging Face's Trainer: run_clm.py's, TRL's, FastChat's, LLaMA-Factory's.
LENGTHS = ("block_size", "max_seq_length", "max_seq_len", "model_max_length", "cutoff_len", "max_length", "seq_length")
HYDRA = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:[./]\w+)*)=(.*)", re.DOTALL)
SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".pbs")
MORE = re.compile(
    r"\$\{\w+\[[@*]\]\}|\$[@*]|\$\{?\w*(?:ARGS?|OPTS?|OPTIONS|EXTRA|FLAGS)\w*\}?", re.IGNORECASE
)  # several words
FILES = (".yaml", ".yml", ".json", ".toml")
# Words whose values are names of the user's: they may be anything.
NAMES = re.compile(
    r"(path|dir|file|load|save|name|model|addr|port|host|rank|project|entity|token|url|config|dataset|cache|id|prefix)s?$"
)


def is_script(text: str, suffix: str = "") -> bool:
    """Whether a text starts something, as a shell would."""
    if suffix in SUFFIXES:
        return True
    return bool(STARTS.search(text)) and not re.search(r"(?m)^(?:def |import |from \w+ import )", text)


ReadText = Callable[[str, str, str], Reading]  # text, suffix, where


def read_launch(text: str, where: str, read: ReadText, trainer: str | None = None) -> Reading:
    """The run that a script starts; `read`: of a file that it names. `trainer`: of it alone.

    Raises UserError where no trainer's words are known, or a value isn't in the script.
    """
    path = Path(where)
    script = read_script(text, path.name, path.parent if path.exists() else None)
    starts = sorted(launched(script), key=lambda start: -len(start.words))
    for start in starts:
        reading = _read(start, script, where, read, trainer)
        if reading is not None:
            return _noted(reading, start, script)
    if not starts:
        how = 'paste the command line itself: scalewright read --argv "torchrun ... pretrain_gpt.py ..."'
        raise UserError("no command line of a Python program in this script", where, how)
    titles = ", ".join(entry.title for entry in trainers.TRAINERS.values() if entry.reads)
    programs = ", ".join(dict.fromkeys(start.program for start in starts[:3]))
    raise UserError(f"it starts {programs}, with no trainer's words that are known here", where, f"it reads {titles}")


def _read(start: Launched, script: Script, where: str, read: ReadText, trainer: str | None) -> Reading | None:
    words = flags(start.words)
    readings = {
        "megatron": lambda: _megatron(start, script, where),
        "transformers": lambda: _hugging_face(start, script, where),
    }
    if MEGATRON & words.keys() or re.search(r"pretrain_\w+\.py$|^megatron ", start.program):
        return readings["megatron"]() if trainer in (None, "megatron") else None
    if words.keys() | {"gradient-accumulation-steps"} >= HUGGING_FACE or "per-device-train-batch-size" in words:
        return readings["transformers"]() if trainer in (None, "transformers") else None
    document = _hydra(start.words)
    names = [name for name, entry in trainers.TRAINERS.items() if entry.reads and trainer in (None, name)]
    name = next((name for name in names if document and trainers.module_of(name).recognises(document, "")), None)
    if name is not None:
        _asked(start, script, where)
        module = trainers.module_of(name)
        return _on(start, trainers.checked(name, lambda: module.read(document, "", where), where))
    return _file(start, script, where, read)


def _megatron(start: Launched, script: Script, where: str) -> Reading:
    from scalewright.emit.megatron.files import read_flags

    values = flags(_asked(start, script, where))
    if start.program.startswith("megatron "):
        values = _swift(values)
    return trainers.checked("megatron", lambda: read_flags(values, start.devices), where)


def _swift(values: Mapping[str, object]) -> dict[str, object]:
    """ms-swift's words as Megatron-LM's: `true` stands where Megatron has a flag alone."""
    renamed = {"max-length": "seq-length", "max-epochs": "train-epochs", "load": "load", "min-lr": "min-lr"}
    changed = {renamed.get(name, name): True if value == "true" else value for name, value in values.items()}
    return {name: value for name, value in changed.items() if value != "false"}


def _hugging_face(start: Launched, script: Script, where: str) -> Reading:
    """TrainingArguments as their document."""
    values = flags(_asked(start, script, where))
    document: dict[str, Any] = {"output_dir": "out"}
    document |= {name.replace("-", "_"): _value(value) for name, value in values.items()}
    for key in ("deepspeed", "fsdp_config"):
        if isinstance(name := document.get(key), str) and name in script.state.files:
            document[key] = json.loads(script.state.files[name])
    lengths = [document.pop(key) for key in LENGTHS if key in document]
    module = trainers.module_of("transformers")
    reading = _on(start, trainers.checked("transformers", lambda: module.read(document, "", where), where))
    if lengths and isinstance(lengths[0], int):
        reading = replace(reading, run={**reading.run, "data": {**reading.run.get("data", {}), "seq_len": lengths[0]}})
    return reading


def _value(value: object) -> object:
    """A word as YAML has it; several stay words."""
    try:
        return parse_yaml(value, "a word", yaml.SafeLoader) if isinstance(value, str) else value
    except UserError:
        return value


def _hydra(words: Sequence[str]) -> dict[str, Any]:
    """`model.num_layers=32` of all words as a document; empty where the words are others."""
    document: dict[str, Any] = {}
    pairs = [match for word in words if not word.startswith("--") and (match := HYDRA.fullmatch(word))]
    for match in pairs:
        *sections, last = re.split(r"[./]", match[1])
        inner = document
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                return {}
        inner[last] = _value(match[2])
    return document if len(pairs) > 2 else {}


def _file(start: Launched, script: Script, where: str, read: ReadText) -> Reading | None:
    """The configuration that the words name: in the script itself, or beside it."""
    for word in [*start.words, start.config_file or ""]:
        name = word.rpartition("=")[2]
        if not name.endswith(FILES) or not known(name):
            continue
        text = script.state.files.get(script.state.path(name))
        path = Path(where).parent / name
        if text is None and not path.is_file():
            raise UserError(
                f"it starts {start.program} with {name}, which isn't beside it", where, f"give {name} itself"
            )
        text = trainers.file_text(path) if text is None else text
        suffix, origin = Path(name).suffix, str(path)
        reading = read(text, suffix, origin)
        return _on(start, reading)
    return None


def _on(start: Launched, reading: Reading) -> Reading:
    """The same on as many devices as the launch line starts, where the configuration left that open."""
    layout = dict(reading.run.get("layout") or {})
    if start.devices is None or ("devices" in layout and "devices" not in reading.guessed):
        return reading
    before = layout.get("devices")
    layout["devices"] = start.devices
    if "global_batch" in reading.guessed and before and layout.get("global_batch"):
        layout["global_batch"] = layout["global_batch"] * start.devices // before
    guessed = {key: value for key, value in reading.guessed.items() if key not in ("devices", "global_batch")}
    assumed = tuple(text for text in reading.assumed if not text.startswith(("devices ", "global_batch ")))
    return replace(reading, run={**reading.run, "layout": layout}, guessed=guessed, assumed=assumed)


def _asked(start: Launched, script: Script, where: str) -> list[str]:
    """The words, shown; raises UserError for a number that the script doesn't tell."""
    unknown, name = [], ""
    for word in start.words:
        name = word.partition("=")[0] if word.startswith("--") or "=" in word else name
        if known(word) or NAMES.search(name.lstrip("-").replace("-", "_").lower()):
            continue
        marks = script.unknown([word])
        if MORE.fullmatch(script.shown([word])[0]):
            script.result.notes.append(f"{marks[0].text}: {marks[0].why}")
            continue
        unknown.append(f"{name or word} ({'; '.join(f'{mark.text}: {mark.why}' for mark in marks)})")
    if unknown:
        more = f" and {len(unknown) - 4} more" if len(unknown) > 4 else ""
        how = 'write them into the script, or give the line that `bash -x` shows: scalewright read --argv "..."'
        raise UserError(f"values that the script doesn't tell: {'; '.join(unknown[:4])}{more}", where, how)
    shown = zip(start.words, script.shown(start.words), strict=True)
    return [text for word, text in shown if known(word) or not MORE.fullmatch(text)]


def _noted(reading: Reading, start: Launched, script: Script) -> Reading:
    """With what was assumed about the script, and what of it isn't known."""
    used = [f"${name}" for name in script.result.assumed if re.fullmatch(r"\w+", name) and not OUTSIDE.fullmatch(name)]
    assumed = [f"{', '.join(used)} aren't set outside of the script"] if len(used) > 1 else [
        f"{name} isn't set outside of the script" for name in used
    ]  # fmt: skip
    conditions = [f"it starts only if {text}" for text in start.command.when]
    notes = tuple(Unread("script", note, "it can't be followed") for note in script.result.notes)
    return replace(reading, assumed=(*reading.assumed, *assumed, *conditions), unread=(*reading.unread, *notes))
