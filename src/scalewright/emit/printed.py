"""Arguments as a log prints them: each line by itself, and the whole run where all of a trainer's are there.

  tensor_model_parallel_size ........ 4                DOTTED   Megatron-LM, DeepSpeed
--zero_stage 2                                         COMMANDS a command line
Config param per_device_batch_size: 24                 CONFIG   MaxText
"hidden_size": 3072,                                   JSON     config.json, as transformers prints it
Building device mesh with parallelism: pp=2, tp=4      EQUALS   torchtitan
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import yaml

from scalewright.emit import trainers
from scalewright.emit.command_lines import DOTTED, flags, read_words
from scalewright.emit.deepspeed.read import BATCH as DEEPSPEED
from scalewright.emit.emitted import Reading
from scalewright.emit.foreign import true, whole, whole_of
from scalewright.emit.maxtext import run as maxtext
from scalewright.emit.maxtext.layout import REMAT
from scalewright.emit.megatron import files as megatron
from scalewright.emit.megatron.keys import EXPERTS, LAYOUT, MIXTURE, MODEL, TRAINING
from scalewright.emit.read import read_argv
from scalewright.emit.rules import inverse
from scalewright.emit.transformers.arguments import BATCH
from scalewright.spec.errors import UserError

CONFIG = re.compile(r"Config param (\w{1,80}): ([^\n]{0,300})")
JSON = re.compile(r'"(\w{1,80})": "?([\w./-]{1,200})"?,?$')
EQUALS = re.compile(r"\b(\w{1,40})=(\d{1,12})\b")
SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "intermediate_size", "vocab_size")  # fmt: skip
FORMS = {" ....": DOTTED, "Config param ": CONFIG, **{f'"{key}": ': JSON for key in SHAPE}, "arallelism: ": EQUALS}
COMMANDS = (f"--{megatron.MARK}", "--model_name_or_path", f"--{BATCH.foreign}")  # flags of a command line
MARKS = (*FORMS, *COMMANDS)  # one of them is in every line that states an argument
MOST = 2000  # arguments of a trainer: MaxText has 700
LONGEST = 100_000  # characters of a command line
AXES = ("pp", "tp", "cp", "dp", "ep", "etp", "dp_shard", "dp_replicate")

# Whole numbers by their names with underscores: of the readers' rules, and what readers take from several.
SIZES: Mapping[str, str] = {
    rule.foreign.replace("-", "_"): rule.ours
    for rule in (*MODEL, *MIXTURE, *LAYOUT, *EXPERTS, *TRAINING, *maxtext.WORDS, *maxtext.MIXTURE)
    if rule.back is whole
} | {
    **dict(zip(DEEPSPEED, ("layout.global_batch", "layout.micro_batch", "layout.accumulation"), strict=True)),
    "world_size": "layout.devices", "num_devices": "layout.devices", "data_parallel_size": "layout.dp",
    "virtual_pipeline_model_parallel_size": "layout.virtual_stages", "microbatches": "layout.accumulation",
    "kv_channels": "model.head_dim", "padded_vocab_size": "model.vocab_size", "max_seq_len": "data.seq_len",
    BATCH.foreign: BATCH.ours, "ici_tensor_parallelism": "layout.tp", **{key: f"model.{key}" for key in SHAPE},
    **{axis: f"layout.{axis}" for axis in AXES},
}  # fmt: skip


def _name(text: str) -> str | None:
    text = text.strip().strip("'\"")
    return None if text in ("None", "none", "null", "", "[]", "default") else text[:200]


def _where_true(value: object, text: str) -> object | None:
    return value if true(text.strip()) else None


def _groups(text: str) -> int | None:
    """Query groups; 1 is printed for every model without, too."""
    return None if text.strip() == "1" else whole_of(text)


def _recomputed(text: str) -> str | None:
    kinds = {"full": "full", "uniform": "full", "block": "full", "selective": "selective"}
    return (kinds | inverse(REMAT)).get(text.strip())


WORDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "num_query_groups": ("model.num_key_value_heads", _groups), "model_name_or_path": ("model.name", _name),
    "model_name": ("model.name", _name), "swiglu": ("model.mlp_type", partial(_where_true, "swiglu")),
    "sequence_parallel": ("layout.sp", partial(_where_true, True)),
    "bf16": ("layout.precision", partial(_where_true, "bf16")),
    "fp16": ("layout.precision", partial(_where_true, "fp16")),
    "recompute_granularity": ("layout.recompute", _recomputed), "remat_policy": ("layout.recompute", _recomputed),
    "activations_checkpoint_method": ("layout.recompute", _recomputed),
    "checkpoint_activations": ("layout.recompute", partial(_where_true, "full")),
    "use_distributed_optimizer": ("layout.zero_stage", partial(_where_true, 1)),
    "zero_stage": ("layout.zero_stage", {"0": 0, "1": 1, "2": 2, "3": 3}.get),
}  # fmt: skip


class Printed:
    """The arguments in a log's lines; one that is printed again counts as printed last."""

    def __init__(self) -> None:
        self._arguments: dict[re.Pattern[str], dict[str, str]] = {DOTTED: {}, CONFIG: {}}
        self._command: tuple[Collection[str], str] = ((), "")

    def take(self, text: str) -> dict[str, object]:
        """What a line states, by our dotted keys; `layout.accumulation` and `model.name` among them."""
        stated: dict[str, object] = {}
        known_config = self._arguments[CONFIG]
        for pattern in dict.fromkeys(form for mark, form in FORMS.items() if mark in text):
            printed = pattern.findall(text)
            known = self._arguments.get(pattern)
            if known is not None and len(known) < MOST:
                known.update(printed)
            stated |= _stated(printed)
            if pattern is CONFIG and "per_device_batch_size" in known_config:
                each = whole_of(known_config["per_device_batch_size"])
                ranks = whole_of(known_config.get("ici_tensor_parallelism", "1"))
                stated |= {"layout.micro_batch": each * ranks} if each and ranks else {}
        if any(mark in text for mark in COMMANDS):
            given = flags(read_words(text[:LONGEST]))
            stated |= _stated((name, str(value)) for name, value in given.items())
            if megatron.MARK in given:
                self._command = given.keys(), text
        return stated

    def reading(self) -> Reading | None:
        """The whole run, of the reader of the trainer that printed it; None where only a part was."""
        dotted, config = self._arguments.values()
        try:
            if {"num_layers", "hidden_size", "seq_length", "tensor_model_parallel_size"} <= dotted.keys():
                return trainers.checked("megatron", lambda: megatron.read_printed(dotted), "the log")
            if {"per_device_batch_size", "model_name"} <= config.keys():
                document = {key: yaml.safe_load(value) for key, value in config.items()}
                return trainers.checked("maxtext", lambda: maxtext.read(document, "", "the log"), "the log")
            names, command = self._command
            if {"num-layers", "hidden-size", "seq-length"} <= set(names):
                return read_argv(command)
        except (UserError, yaml.YAMLError):
            return None
        return None


def _stated(printed: Iterable[tuple[str, str]]) -> dict[str, object]:
    stated: dict[str, object] = {}
    for name, value in printed:
        name = name.replace("-", "_")
        key, convert = (SIZES[name], whole_of) if name in SIZES else WORDS.get(name, ("", _name))
        if key and (ours := convert(value)) is not None:
            stated[key] = ours
    return stated
