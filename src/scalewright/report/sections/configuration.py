"""A run's settings that differ from the defaults, as cards; all of them folded; its machine and software."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic_core import PydanticUndefined

from scalewright.report.folder import RunFolder
from scalewright.report.page import Section
from scalewright.spec.base import Spec
from scalewright.spec.common.formatting import dotted
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import DataSpec, OptimizerSpec, RunSpec

GROUPS = ("model", "layout", "data", "train", "optimizer", "lr_schedule", "checkpoint", "track", "profile")
DERIVED = ("layout.zero_stage", "layout.global_batch")  # by the run, from other keys
ABSENT = ("no", "0", "–", "none")
TITLES = {"lr_schedule": "Learning rate", "train": "Training", "track": "Tracking"}


@dataclass(frozen=True)
class Card:
    title: str
    rows: list[tuple[str, str]]


def section(run: RunFolder) -> Section | None:
    """The settings that differ from the defaults as cards, the rest folded; None without a run.yaml."""
    if not run.config_text.strip():
        return None
    data = {
        "cards": [card for card in cards(run.config, changed_only=True) if card.rows],
        "all": cards(run.config),
        "text": _without_environment(run.config_text),
    }
    return Section("configuration", "Configuration", "configuration.html", data)


def cards(config: Mapping[str, Any], changed_only: bool = False) -> list[Card]:
    """One card a group; single values are in the first. Keys that a model doesn't use are left out."""
    usual = usual_values() if changed_only else {}
    single = {key: value for key, value in config.items() if not isinstance(value, Mapping) and key != "version"}
    shown = [Card("Run", _changed(single, usual, ""))] if single else []
    for name in (*GROUPS, *(key for key in config if key not in GROUPS)):
        value = config.get(name)
        if not isinstance(value, Mapping) or not value:
            continue
        rows = _changed(value, usual, f"{name}.")
        if name == "model":
            rows = [(key, text) for key, text in rows if text not in ABSENT and key != "version"]
        shown.append(Card(TITLES.get(name, name.replace("_", " ").capitalize()), rows))
    return shown


def _changed(group: Mapping[str, Any], usual: Mapping[str, str], prefix: str) -> list[tuple[str, str]]:
    """The rows of a group that `usual` doesn't hold with the same value."""
    return [(key, text) for key, text in flat(group) if usual.get(prefix + key) != text]


@lru_cache(maxsize=1)
def usual_values() -> dict[str, str]:
    """The defaults of run.yaml and of a model, as `flat` words them.

    Derived values have none: the ZeRO stage and the batch are always shown.
    """
    defaults = {"out_dir": "", **_defaults(RunSpec, ""), "layout.dp": "1"}
    return {key: text for key, text in defaults.items() if key not in DERIVED}


def _defaults(spec: type[Spec], prefix: str) -> dict[str, str]:
    """A spec's defaults, inner specs by their own keys; those of parts that must be given, too."""
    inner: dict[str, type[Spec]] = {"layout": Layout, "data": DataSpec, "optimizer": OptimizerSpec, "model": ModelSpec}
    defaults: dict[str, str] = {}
    for key, info in spec.model_fields.items():
        name = f"{prefix}{info.alias or key}"
        default = info.get_default(call_default_factory=True)
        if isinstance(default, Spec):
            defaults |= _defaults(type(default), f"{name}.")
        elif not prefix and key in inner:
            defaults |= _defaults(inner[key], f"{name}.")
        elif default is not PydanticUndefined:
            defaults |= {f"{prefix}{key}": text for key, text in flat({info.alias or key: default})}
    return defaults


def flat(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Dotted keys with values in words; what is null is left out."""
    rows: list[tuple[str, str]] = []
    for key, value in dotted(data):
        if isinstance(value, (list, tuple)) and value and all(isinstance(item, Mapping) for item in value):
            rows += [(key, source(item, alone=len(value) == 1)) for item in value]
        elif value is not None:
            rows.append((key, say(value)))
    return rows


def source(item: Mapping[str, Any], alone: bool) -> str:
    """One source of data: its path, and its weight when it isn't the only one."""
    if "path" not in item:
        return say(item)
    weight = item.get("weight")
    return f"{item['path']}" if alone or weight is None else f"{item['path']}, weight {say(weight)}"


def say(value: Any) -> str:
    """A value as a person writes it: `yes`, `3e-4`, `a, b`."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {say(item)}" for key, item in value.items()) or "–"
    if isinstance(value, (list, tuple)):
        return ", ".join(say(item) for item in value) or "–"
    return str(value)


def _without_environment(text: str) -> str:
    return "\n".join(re.sub(r"(?ms)^environment:.*?(?=^[^\s-]|\Z)", "", text).splitlines())


def environment_section(run: RunFolder) -> Section | None:
    filled = [card for card in environment_cards(run.environment) if card.rows]
    if not filled:
        return None
    text = json.dumps(run.environment, indent=2, default=str)
    data = {"cards": filled, "text": text, "summary": summary(run.environment)}
    return Section("environment", "Environment", "environment.html", data)


def summary(environment: Mapping[str, Any]) -> str:
    """The line over the folded cards: `2 × NVIDIA H200, 140.4 GiB · torch 2.13.0 · python 3.11.7 · host`."""
    gpus = _gpus([gpu for gpu in environment.get("gpus") or [] if isinstance(gpu, Mapping)])
    torch = _mapping(environment.get("versions")).get("torch")
    parts = [gpus or _mapping(environment.get("cpu")).get("model"), torch and f"torch {torch}"]
    parts += [environment.get("python") and f"python {environment['python']}", environment.get("host")]
    return " · ".join(str(part) for part in parts if part) or "Machine, software, source and variables"


def environment_cards(environment: Mapping[str, Any]) -> list[Card]:
    cpu, torch = _mapping(environment.get("cpu")), _mapping(environment.get("torch"))
    gpus = [gpu for gpu in environment.get("gpus") or [] if isinstance(gpu, Mapping)]
    machine = {
        "host": environment.get("host"), "system": environment.get("system"), "processor": cpu.get("model"),
        "cores": cpu.get("cores"), "threads": cpu.get("usable_threads"),
        "flags": " ".join(cpu.get("flags") or ()) or None,
        "memory": f"{environment['memory_gib']} GiB" if environment.get("memory_gib") else None, "GPUs": _gpus(gpus),
        "driver": gpus[0].get("driver") if gpus else None,
    }  # fmt: skip
    software = {"python": environment.get("python"), **_mapping(environment.get("versions"))}
    software |= {f"torch {key.replace('_', ' ')}": torch.get(key) for key in ("cuda", "hip", "cudnn", "threads")}
    source = {"command": environment.get("command"), "time": environment.get("time")}
    source |= {"your code": _git(environment.get("git")), "scalewright": _git(environment.get("source"))}
    variables = _mapping(environment.get("variables"))
    groups = {"Machine": machine, "Software": software, "Source": source, "Variables": variables}
    return [Card(title, flat(group)) for title, group in groups.items()]


def _gpus(gpus: list[Mapping[str, Any]]) -> str | None:
    """`8 × NVIDIA H200, 140.4 GiB`; one line a kind."""
    kinds = Counter(f"{gpu.get('name')}, {say(gpu.get('memory_gib'))} GiB" for gpu in gpus)
    return "; ".join(f"{number} × {kind}" for kind, number in kinds.items()) or None


def _git(state: Any) -> str | None:
    if not isinstance(state, Mapping) or not state.get("commit"):
        return None
    dirty = {True: ", with changes that are not committed", False: "", None: ""}[state.get("dirty")]
    return f"{str(state['commit'])[:12]} on {state.get('branch')}{dirty}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
