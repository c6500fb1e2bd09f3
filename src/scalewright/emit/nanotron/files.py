"""nanotron's YAML, whole: what `run_train.py --config-file` takes."""

from __future__ import annotations

from functools import partial
from typing import Any

from scalewright.emit.arguments import torchrun
from scalewright.emit.emitted import Emitted, Reading, yaml_text
from scalewright.emit.nanotron.model import TITLE, read_model, write_model
from scalewright.emit.nanotron.run import (
    TOKENIZER,
    read_layout,
    read_stages,
    read_training,
    write_layout,
    write_stage,
    write_training,
)
from scalewright.emit.nanotron.words import ASIDE, SECTIONS
from scalewright.emit.rules import Words, put
from scalewright.emit.settings import Settings
from scalewright.emit.theirs import read_keys
from scalewright.spec.errors import UserError

VERSION = "main, April 2026"
FILE = "nanotron.yaml"
ORDER = ("general", "model", "parallelism", "tokens", "optimizer", "data_stages", "checkpoints", "tokenizer")


def write(s: Settings) -> Emitted:
    """The complete file; raises UserError where it would be another layout."""
    keys = {**write_training(s), **write_model(s), **write_layout(s)}
    data: Words = {section: {} for section in ORDER}
    for key, value in keys.items():
        put(data, key, value)
    data["model"] |= {
        "ddp_bucket_cap_mb": 25,
        "init_method": {"std": 0.02},
        "make_vocab_size_divisible_by": 1,
    }
    data["data_stages"] = [write_stage(s)]
    data["tokenizer"] = {"tokenizer_name_or_path": TOKENIZER}
    data["logging"] = {"iteration_step_info_interval": 1, "log_level": "info", "log_level_replica": "info"}
    s.assume("NANOTRON is the folder of its checkout; default: where it is started")
    launch = torchrun(s.layout.devices, f"${{NANOTRON:-.}}/run_train.py --config-file {FILE}")
    command = f"CUDA_DEVICE_MAX_CONNECTIONS=1 {launch}"
    comments = (f"Written by `scalewright emit nanotron`, for nanotron ({VERSION}).", command)
    files = {FILE: yaml_text(comments, data)}
    return s.emitted(TITLE, "nanotron", VERSION, files, command)


def recognises(document: Any, text: str) -> bool:
    """A document with nanotron's sections."""
    if not isinstance(document, dict):
        return False
    parallelism, model = document.get("parallelism"), document.get("model")
    return (
        isinstance(parallelism, dict)
        and "dp" in parallelism
        and isinstance(model, dict)
        and "model_config" in model
    )


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run; raises UserError for one whose sections aren't keys and values."""
    stages = document.get("data_stages") or [{"data": document.get("data")}]
    if not isinstance(stages, list):
        raise UserError("it holds no list", f"{where}: data_stages", "give the stages as a list")
    sections = {
        key: value for key, value in document.items() if key not in (*SECTIONS, "data_stages", "data")
    }
    data = partial(read_stages, stages=stages)
    return read_keys("nanotron", sections, ASIDE, where, read_model, read_layout, read_training, data)
