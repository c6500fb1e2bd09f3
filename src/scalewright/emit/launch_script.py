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
from math import prod
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
from scalewright.emit.foreign import whole_of
from scalewright.emit.other_training import other_program
from scalewright.emit.scripts.model import preset_of
from scalewright.spec.base import parse_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.question import Unread

STARTS = re.compile(
    r"(?m)^#!.*\b(?:ba|z)?sh\b|^#SBATCH|^#PBS|"
    r"\b(?:torchrun|srun|deepspeed|accelerate launch|llamafactory-cli|axolotl)\s|"
    r"\bpython[\d.]*\s+(?:-\w\s+)*\S+|\bmegatron (?:sft|pt|rlhf)\b"
)
MEGATRON = {"num-layers", "tensor-model-parallel-size", "micro-batch-size", "hidden-size", "use-mcore-models"}
# As such scripts call model_name_or_path.
MODELS = (
    "model", "model_name", "model_id", "model_path", "base_model", "base_model_name", "pretrained_model_name_or_path",
    "model_id_or_path", "model_dir",
)  # fmt: skip
HYDRA = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:[./]\w+)*)=(.*)", re.DOTALL)
MODEL_PARALLEL = ("tensor-model", "pipeline-model", "context")
SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".pbs")
MORE = re.compile(
    r"\$\{\w+\[[@*]\]\}|\$[@*]|\$\{?\w*(?:ARGS?|OPTS?|OPTIONS|EXTRA|FLAGS|PARAMS|OVERRIDES)\w*\}?", re.IGNORECASE
)  # several words
# A folder before a file's name, which is the script's own: `$PWD/`, `$(dirname $0)/`, `${SCRIPT_DIR}/`.
HERE = re.compile(r"^(?:`pwd`|\$\(pwd\)|\$\{?(?:PWD|\w*(?:DIR|ROOT|HOME|PATH))\}?)/+")
LAUNCHERS = ("zero_stage", "offload", "recompute", "dp_replicate", "tp", "cp", "cp_kind")  # what accelerate decides
# Names of flags that take the trainer's own file, and those of other files.
CONFIG, OTHER = (
    re.compile(r"conf|cfg|file|yaml|json|recipe|args|script"),
    re.compile(r"deepspeed|fsdp|data|tok|model|vocab|host"),
)
FILES = (".yaml", ".yml", ".json", ".toml")
DEFAULTS = re.compile(r"(^|/)base\.ya?ml$")  # MaxText's, which its reader has
# What NeMo's megatron_llama_config.yaml (at 00a115fe) has, with which megatron_llama_pretraining.py begins; its
# tokenizer's words.
LLAMA = {"normalization": "rmsnorm", "activation": "fast-swiglu", "bias": False, "position_embedding_type": "rope",
         "share_embeddings_and_output_weights": False, "hidden_dropout": 0.0, "attention_dropout": 0.0}  # fmt: skip
LLAMA_WORDS = 32_000
SWIFT = {"bf16": True, "use-distributed-optimizer": True, "micro-batch-size": "1", "global-batch-size": "16",
         "recompute-granularity": "selective", "lr-decay-style": "cosine", "weight-decay": "0.1", "clip-grad": "1.0",
         "adam-beta2": "0.95"}  # its MegatronArguments (4.6.0); bf16 is its models'  # fmt: skip
# Words whose values are names of the user's: they may be anything.
NAMES = re.compile(
    r"(path|dir|file|load|save|name|model|addr|port|host|rank|project|entity|token|url|config|dataset|cache|id|prefix|"
    r"folder|group|tag|comment|endpoint)s?$"
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
    starts = sorted((_named(start, script) for start in launched(script)), key=lambda start: -len(start.words))
    reasons = []
    for start in starts:
        try:
            reading = _read(start, script, where, read, trainer)
        except UserError as error:
            reasons.append(error)
            continue
        if reading is not None:
            return _noted(reading, start, script)
    if reasons:
        raise reasons[0]
    if not starts and script.result.ended:
        how = f'give the line that `bash -x {path.name} ...` shows with its arguments: scalewright read --argv "..."'
        raise UserError(f"it ends before it starts anything: {script.result.ended}", where, how)
    if not starts:
        how = 'paste the command line itself: scalewright read --argv "torchrun ... pretrain_gpt.py ..."'
        raise UserError("no command line of a Python program in this script", where, how)
    titles = ", ".join(entry.title for entry in trainers.TRAINERS.values() if entry.reads)
    programs = ", ".join(dict.fromkeys(script.shown([start.program])[0] for start in starts[:3]))
    if other := other_program(starts[0].program):
        raise UserError(f"it trains {other}; read here are trainings of a decoder", where, f"it reads {titles}")
    raise UserError(f"it starts {programs}, with no trainer's words that are known here", where, f"it reads {titles}")


def _named(start: Launched, script: Script) -> Launched:
    """With the names of files that the script itself writes as they stand in it: `ds.$SLURM_JOB_ID.json`."""

    def named(word: str) -> str:
        text = script.shown([word])[0]
        return text if text != word and script.written(text.rpartition("=")[2]) is not None else word

    return replace(start, words=[*map(named, start.words)], config_file=start.config_file and named(start.config_file))


def _read(start: Launched, script: Script, where: str, read: ReadText, trainer: str | None) -> Reading | None:
    words = flags(start.words)
    has_file = bool(_sorted(start.words)[0])
    if (len(MEGATRON & words.keys()) > 1 and not has_file) or re.search(r"pretrain_\w+\.py$|^megatron ", start.program):
        return _megatron(start, script, where, read) if trainer in (None, "megatron") else None
    if "per-device-train-batch-size" in words and not has_file:
        return _hugging_face(start, script, where, read) if trainer in (None, "transformers") else None
    document = _litgpt(start.words) if start.program.startswith("litgpt ") else _hydra(start.words)
    llama = re.search(r"megatron_llama\w*\.py$", start.program)
    if llama and isinstance(document.get("model"), dict):
        document["model"] = {**LLAMA, **document["model"]}
    names = [name for name, entry in trainers.TRAINERS.items() if entry.reads and trainer in (None, name)]
    document = {} if any(not DEFAULTS.search(file) for file in _sorted(start.words)[0]) else document
    name = next((name for name in names if document and trainers.module_of(name).recognises(document, "")), None)
    if name is not None:
        _asked(start, script, where)
        module = trainers.module_of(name)
        reading = trainers.checked(name, lambda: module.read(document, "", where), where)
        guess = next((text for text in reading.assumed if text.startswith("vocab_size ")), None) if llama else None
        if guess is not None and isinstance(model := reading.run.get("model"), dict):
            assumed = tuple(
                f"vocab_size {LLAMA_WORDS}, of Llama 2" if text == guess else text for text in reading.assumed
            )
            run = {**reading.run, "model": {**model, "vocab_size": LLAMA_WORDS}}
            reading = replace(reading, run=run, assumed=assumed)
        return _on(start, reading, script, where, read)
    return _file(start, script, where, read)


def _megatron(start: Launched, script: Script, where: str, read: ReadText) -> Reading:
    from scalewright.emit.megatron.files import read_flags

    values = flags(_asked(start, script, where))
    swift = start.program.startswith("megatron ")
    values = _swift(values) if swift else values
    if not values.keys() & MEGATRON and not swift:
        raise UserError("the arguments of its training aren't in the script", where, "give the script that sets them")
    engine = values.pop("deepspeed-config", None)
    each = prod(whole_of(values.get(f"{kind}-parallel-size")) or 1 for kind in MODEL_PARALLEL)
    few = start.one_node and each > (start.devices or 0)
    reading = trainers.checked("megatron", lambda: read_flags(values, None if few else start.devices), where)
    if isinstance(engine, str) and (text := _written(engine, script, where)) is not None:
        return _sharded(reading, read(text, ".json", engine), ("zero_stage", "offload"))
    if engine is not None:
        missing = Unread("deepspeed-config", str(engine), "it isn't beside the script: its ZeRO stage isn't known")
        return replace(reading, unread=(*reading.unread, missing))
    if not swift:
        return reading
    silent = [f"{name} {value}" for name, value in SWIFT.items() if name not in flags(start.words)]
    reading = replace(reading, assumed=(*reading.assumed, f"ms-swift's defaults: {', '.join(silent)}"))
    loaded = str(values.get("model", values.get("load", "")))
    name = preset_of(loaded)
    if "model" in reading.run or name is None:
        return reading
    assumed = f"model {name}, by the name of {loaded}, which it loads"
    unread = tuple(item for item in reading.unread if item.key != "model")
    return replace(reading, run={**reading.run, "model": name}, assumed=(assumed, *reading.assumed), unread=unread)


def _swift(values: Mapping[str, object]) -> dict[str, object]:
    """ms-swift's words as Megatron-LM's: `true` stands where Megatron has a flag alone."""
    renamed = {"max-length": "seq-length", "max-epochs": "train-epochs"}
    changed = {renamed.get(name, name): True if value == "true" else value for name, value in values.items()}
    return {name: value for name, value in {**SWIFT, **changed}.items() if value != "false"}


def _swift_trainer(values: Mapping[str, object]) -> dict[str, object]:
    """ms-swift's own words as those of TrainingArguments; it trains adapters unless it is told otherwise."""
    values = {"gradient-checkpointing": True, **values}
    kind, dtype = values.pop("train-type", values.pop("tuner-type", "lora")), values.pop("torch-dtype", "bfloat16")
    values |= {} if kind == "full" else {"train-type": kind}
    values |= {"model-name-or-path": values.pop("model", None), "bf16": dtype == "bfloat16", "fp16": dtype == "float16"}
    if zero := re.fullmatch(r"zero([0-3])(_offload)?", str(values.get("deepspeed"))):
        parts = ("offload_optimizer", "offload_param")[: int(zero[1]) - 1] if zero[2] else ()
        stage = {"stage": int(zero[1]), **{part: {"device": "cpu"} for part in parts}}
        values["deepspeed"] = {"zero_optimization": stage}
    return values


def _hugging_face(start: Launched, script: Script, where: str, read: ReadText) -> Reading:
    """TrainingArguments as their document."""
    values = flags(_asked(start, script, where))
    values = _swift_trainer(values) if start.program.startswith("swift ") else values
    document: dict[str, Any] = {"output_dir": "out"}
    document |= {name.replace("-", "_"): _value(value) for name, value in values.items()}
    for key in ("deepspeed", "fsdp_config"):
        if isinstance(name := document.get(key), str) and (text := script.written(name)) is not None:
            document[key] = trainers.parse(script.shown([text])[0], ".json", name)
    if "zero_stage" in document:  # DeepSpeed-Chat's words for its file
        cpu = {"device": "cpu"} if document.pop("offload", False) else None
        stage = {"stage": document.pop("zero_stage"), "offload_optimizer": cpu, "offload_param": cpu}
        document |= {"deepspeed": {"zero_optimization": stage}, str(document.pop("dtype", "fp16")): True}
        document["warmup_steps"] = document.pop("num_warmup_steps", 0)
    if "model_name_or_path" not in document and (loaded := [document.pop(key) for key in MODELS if key in document]):
        document["model_name_or_path"] = loaded[0]
    module = trainers.module_of("transformers")
    reading = trainers.checked("transformers", lambda: module.read(document, "", where), where)
    return _on(start, reading, script, where, read)


def _value(value: object) -> object:
    """A word as YAML has it, `1e-5` a number; several stay words."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d{1,3}", value):
        return float(value)
    try:
        return parse_yaml(value, "a word", yaml.SafeLoader) if isinstance(value, str) else value
    except UserError:
        return value


def _hydra(words: Sequence[str]) -> dict[str, Any]:
    """`model.num_layers=32` of all words as a document; empty where the words are others."""
    pairs = [match for word in words if not word.startswith("--") and (match := HYDRA.fullmatch(word))]
    document: dict[str, Any] = {}
    return document if len(pairs) > 2 and all(_put(document, match[1], match[2]) for match in pairs) else {}


def _litgpt(words: Sequence[str]) -> dict[str, Any]:
    """`pythia-1b --train.micro_batch_size 4` as the document that `--config` has; empty where it has one."""
    files, pairs, rest = _sorted(words)
    document: dict[str, Any] = {"model_name": rest[0]} if rest else {}
    fits = not files and all(_put(document, name, value) for name, value in pairs.items())
    return document if fits else {}


def _put(document: dict[str, Any], name: str, value: object) -> bool:
    """Sets `section.key`; false where the section is a value already."""
    *sections, last = re.split(r"[./]", name)
    inner: Any = document
    for section in sections:
        inner = inner.setdefault(section, {})
        if not isinstance(inner, dict):
            return False
    inner[last] = _value(value)
    return True


def _file(start: Launched, script: Script, where: str, read: ReadText) -> Reading | None:
    """The configuration that the words name, in the script itself or beside it, with what else they set."""
    words = [HERE.sub("", script.shown([word])[0]) if word.endswith(FILES) else word for word in start.words]
    words = _asked(replace(start, words=words), script, where)
    files, pairs, rest = _sorted(words)
    if start.program.endswith("deepy.py"):  # GPT-NeoX: a program, a folder and files that may lack their suffix
        folder = str(pairs.pop("d", pairs.pop("conf_dir", ".")))
        names = [word for word in words if word in {*files, *rest} and not word.endswith(".py")]
        files, rest = [f"{folder}/{name}" + ("" if name.endswith(FILES) else ".yml") for name in names], []
    if not files:
        named = [key for key, value in pairs.items() if str(value).endswith(FILES)]
        name = next(iter(sorted(named, key=lambda key: bool(OTHER.search(key)) - bool(CONFIG.search(key)))), "")
        files = [str(pairs.pop(name, start.config_file or ""))]
        if "deepspeed" in name:  # a script's own words, which aren't keys of that file
            rest, pairs = [*rest, *(f"--{key} {value}" for key, value in pairs.items())], {}
        pairs |= {name: True} if len(name) > 1 and not CONFIG.search(name) else {}  # a flag alone before the file
    texts = [(name, _text(name, start, script, where)) for name in files if name and known(name)]
    if not texts:
        return None
    name, text = texts[0]
    if pairs or len(texts) > 1:
        document: dict[str, Any] = {}
        for name, text in texts:
            document |= trainers.parse(text, Path(name).suffix, name) or {}
        rest += [key for key, value in pairs.items() if not _put(document, key, value)]
        text, suffix = json.dumps(document, default=str), ".json"
    first = Path(texts[0][0])
    path = Path(where).parent / (first.name if script.written(str(first)) is not None else first)
    reading = read(text, suffix if pairs or len(texts) > 1 else Path(name).suffix, str(path))
    ignored = tuple(Unread("the command line", word, "it isn't applied to the file") for word in rest)
    reading = replace(reading, unread=(*reading.unread, *ignored))
    launcher = start.config_file if start.config_file not in files else None
    return _on(replace(start, config_file=launcher), reading, script, where, read)


def _sorted(words: Sequence[str]) -> tuple[list[str], dict[str, object], list[str]]:
    """A trainer's words: files of configurations, values that go before those of the files, and others."""
    files, pairs, rest, name = list[str](), dict[str, object](), list[str](), ""
    for word in words:
        match = HYDRA.fullmatch(word)
        if word.startswith("-") and not re.match(r"-[\d.]", word):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            pairs[name] = value if equals else True
            name = "" if equals else name
        elif name:
            pairs[name], name = word, ""
        elif match and not match[2].endswith(FILES):
            pairs[match[1]] = match[2]
        elif word.endswith(FILES):
            files.append(match[2] if match else word)
        else:
            rest.append(word)
    named = [key for key in pairs if re.fullmatch(r"(job\.|run\.)?config(_?file|_?path)?", key)]
    return [*files, *(str(pairs.pop(key)) for key in named)], pairs, rest


def _text(name: str, start: Launched, script: Script, where: str) -> str:
    text = _written(name, script, where)
    if text is None:
        named = not re.search(r"[./]", name)
        what, how = ("a name of its own and no file", "give the file that has it") if named else (
            "which isn't beside it", f"give {name} itself")  # fmt: skip
        raise UserError(f"it starts {start.program} with {name}, {what}", where, how)
    return text


def _written(name: str, script: Script, where: str) -> str | None:
    """The text of a file that the script wrote or that lies beside it; None where neither is so."""
    text, path = script.written(name), Path(where).parent / HERE.sub("", name)
    return trainers.file_text(path) if text is None and path.is_file() else text


def _on(start: Launched, reading: Reading, script: Script, where: str, read: ReadText) -> Reading:
    """The same as it is launched: sharded as accelerate's file has it, and on as many devices, where that was open."""
    layout = dict(reading.run.get("layout") or {})
    if (name := start.config_file) is not None and known(name):
        launcher = read(_text(name, start, script, where), Path(name).suffix, str(Path(where).parent / name))
        devices = start.devices or (None if "devices" in launcher.guessed else launcher.run["layout"].get("devices"))
        start, reading = replace(start, devices=devices), _sharded(reading, launcher)
        layout = reading.run["layout"]
    if start.devices is None or ("devices" in layout and "devices" not in reading.guessed):
        return reading
    before = layout.get("devices")
    layout["devices"] = start.devices
    if "global_batch" in reading.guessed and before and layout.get("global_batch"):
        layout["global_batch"] = layout["global_batch"] * start.devices // before
    guessed = {key: value for key, value in reading.guessed.items() if key not in ("devices", "global_batch")}
    assumed = tuple(text for text in reading.assumed if not text.startswith(("devices ", "global_batch ")))
    return replace(reading, run={**reading.run, "layout": layout}, guessed=guessed, assumed=assumed)


def _sharded(reading: Reading, launcher: Reading, keys: Sequence[str] = LAUNCHERS) -> Reading:
    """With what a file of accelerate or DeepSpeed says of ZeRO and offload."""
    layout = dict(reading.run.get("layout") or {})
    sharding = {key: value for key, value in launcher.run["layout"].items() if key in keys}
    layout |= {} if layout.get("zero_stage") and keys is LAUNCHERS else sharding
    return replace(reading, run={**reading.run, "layout": layout}, unread=(*reading.unread, *launcher.unread))


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
        unknown.append(f"{name or script.shown([word])[0]} ({'; '.join(f'{mark.text}: {mark.why}' for mark in marks)})")
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
    one_node = start.one_node and start.devices == dict(reading.run.get("layout") or {}).get("devices")
    conditions += [f"one node: {start.one_node} isn't known (give --devices)"] if one_node else []
    how = f"it isn't followed: `bash -x {script.state.name}` shows what it gives"
    notes = tuple(Unread("script", note, "it isn't there" if "(give" in note else how) for note in script.result.notes)
    other = reading.other or other_program(start.program)
    unread = (*reading.unread, *notes)
    return replace(reading, assumed=(*assumed, *conditions, *reading.assumed), unread=unread, other=other)
