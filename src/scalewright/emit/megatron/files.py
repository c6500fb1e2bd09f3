"""Megatron-LM's files: the run script that is written, and arguments that are read.

torchrun ... pretrain_gpt.py --num-layers 32 ...     words
GPT_ARGS=(--num-layers 32 ...)                       a script (emit/command_lines.py)
MODEL_ARGS: {--num-layers: 32}                       a functional test's model_config.yaml
  num_layers ...................... 32               between `---- arguments ----` in a log
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from scalewright.emit.command_lines import DOTTED, flags, nodes_of, ranks, read_words, spelled, split_launch
from scalewright.emit.emitted import Emitted, Reading
from scalewright.emit.foreign import ForeignKeys, RunKeys
from scalewright.emit.megatron.keys import ASIDE
from scalewright.emit.megatron.layout import read_layout, write_layout
from scalewright.emit.megatron.model import Arguments, read_model, write_model
from scalewright.emit.megatron.training import read_training, write_training
from scalewright.emit.settings import Settings
from scalewright.spec.common.shell import line

FLAG = re.compile(r"--(?:tensor-model-parallel-size|num-layers|micro-batch-size)\b|pretrain_\w+\.py")
MARK, PRINTED = "tensor-model-parallel-size", "tensor_model_parallel_size"
TITLE, VERSION = "Megatron-LM", "core 0.16 to 0.19"
FILE = "pretrain.sh"
WIDTH = 100
# It has no arguments for these fields of Megatron-Bridge's, or the same by default.
FIELDS_ALONE = ("original-max-position-embeddings", "beta-fast", "beta-slow", "bias-gelu-fusion")


def recognises(document: Any, text: str) -> bool:
    """A script or command line, a functional test's YAML, or arguments as they are printed."""
    if isinstance(document, dict):
        return any(str(key).startswith("--") for key in document.get("MODEL_ARGS") or ())
    return document is None and bool(FLAG.search(text) or _printed(text))


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run; raises UserError."""
    if isinstance(document, dict):
        return read_test(document)
    printed = _printed(text)
    if not printed:
        return read_argv(read_words(text))
    return read_printed(printed)


def _printed(text: str) -> dict[str, str]:
    """The arguments of a log; none of a script that prints one of them, or has one in a comment."""
    printed = dict(DOTTED.findall(text)) if PRINTED in text else {}
    whole = PRINTED in printed and ("num_layers" in printed or not FLAG.search(text))
    return printed if whole else {}


def read_argv(words: Sequence[str]) -> Reading:
    """A pasted command line, with or without its launcher."""
    before, _, after = split_launch(words)
    return _read(flags(after), ranks(before))


def read_flags(values: Mapping[str, object], world: int | None) -> Reading:
    """The flags of a launch line; `world`: ranks that it starts."""
    return _read(dict(values), world)


def is_printed(text: str) -> bool:
    """Whether a text has the arguments as Megatron prints them."""
    return bool(_printed(text))


def read_test(document: Mapping[str, Any]) -> Reading:
    """A functional test's `MODEL_ARGS`."""
    given = {str(name).lstrip("-").replace("_", "-"): value for name, value in document["MODEL_ARGS"].items()}
    return _read({name: value for name, value in given.items() if value is not False}, None)


def read_printed(printed: Mapping[str, str]) -> Reading:
    """The arguments that Megatron prints when it starts, by their names with underscores."""
    values: dict[str, object] = {}
    for name, value in printed.items():
        value = value.strip()
        if value not in ("None", "False", "[]", ""):
            values[name.replace("_", "-")] = True if value == "True" else value
    if "group_query_attention" not in printed and values.get("num-query-groups", "1") != "1":
        values["group-query-attention"] = True  # some of the arguments alone were pasted; 1 is the default
    world = values.pop("world-size", None)
    return _read(values, int(str(world)) if str(world).isdecimal() else None)


def read_arguments(foreign: ForeignKeys, world: int | None) -> RunKeys:
    """A run of arguments by their names; `world`: ranks, None where the launch line doesn't tell."""
    run: RunKeys = {}
    read_model(foreign, run)
    read_layout(foreign, run, world)
    read_training(foreign, run)
    layout = run["layout"]
    dp = layout["devices"] // (layout["tp"] * layout["pp"] * layout["cp"])
    if "global_batch" not in layout:
        layout["global_batch"] = layout["micro_batch"] * max(dp, 1)
        foreign.guess("global_batch", layout["global_batch"], ": one micro-batch of each data-parallel rank")
    if "micro-batch-size" not in foreign.values:  # theirs stops without one: the answer takes what fits
        del layout["micro_batch"]
    return run


def _read(values: dict[str, object], world: int | None) -> Reading:
    foreign = ForeignKeys(values, ASIDE)
    return foreign.reading("megatron", read_arguments(foreign, world))


def write(s: Settings) -> Emitted:
    """The complete script; raises UserError where it would be another layout."""
    network = {name: value for name, value in write_model(s).items() if name not in FIELDS_ALONE}
    groups = {"MODEL": network, "LAYOUT": write_layout(s), "TRAINING": write_training(s)}
    nodes, each = nodes_of(s.layout.devices)
    fsdp = "use-megatron-fsdp" in groups["LAYOUT"]
    lines = [
        "#!/usr/bin/env bash",
        f"# Written by `scalewright emit megatron`: arguments of Megatron-LM ({VERSION}).",
        f"# On each of {nodes} nodes: NODE_RANK=<0..{nodes - 1}> MASTER_ADDR=<the first node> bash {FILE}",
        "set -euo pipefail",
        # tp and cp overlap their messages only when kernels start in order; FSDP refuses that
        "unset CUDA_DEVICE_MAX_CONNECTIONS" if fsdp else "export CUDA_DEVICE_MAX_CONNECTIONS=1",
        "",
    ]
    for name, arguments in groups.items():
        lines += [f"{name}=(", *_rows(arguments), ")"]
    names = " ".join(f'"${{{name}[@]}}"' for name in groups)
    lines += [
        "",
        f"torchrun --nnodes {nodes} --nproc-per-node {each} --node-rank ${{NODE_RANK:-0}} \\",
        "  --master-addr ${MASTER_ADDR:-localhost} --master-port ${MASTER_PORT:-29500} \\",
        f'  "${{MEGATRON:-.}}/pretrain_gpt.py" {names}',
        "",
    ]
    s.assume("MEGATRON is the folder of its checkout; default: where the script is started")
    return s.emitted(TITLE, "megatron", VERSION, {FILE: "\n".join(lines)}, f"bash {FILE}")


def _rows(arguments: Arguments) -> list[str]:
    rows, row = [], ""
    for name, value in arguments.items():
        words = line(spelled(name, value))
        if row and len(row) + len(words) > WIDTH:
            rows.append(f"  {row}")
            row = ""
        row = f"{row} {words}".strip()
    return [*rows, f"  {row}"] if row else rows
