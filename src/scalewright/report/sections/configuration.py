"""The settings of a run.yaml that differ from the defaults, as cards; all of it folded below, and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic_core import PydanticUndefined

from scalewright.report.folder import RunFolder
from scalewright.report.page import Section
from scalewright.spec.base import Spec
from scalewright.spec.common.dotted import dotted
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
    single = {
        key: value for key, value in config.items() if not isinstance(value, Mapping) and key != "version"
    }
    shown = [Card("Run", _changed(single, usual, ""))] if single else []
    names = [*GROUPS, *(key for key in config if key not in GROUPS)]
    for name in names:
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
    inner: dict[str, type[Spec]] = {
        "layout": Layout, "data": DataSpec, "optimizer": OptimizerSpec, "model": ModelSpec,
    }  # fmt: skip
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
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "–"
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
    """The file without its environment block, which has a section of its own."""
    lines, skipping = [], False
    for line in text.splitlines():
        if line and not line[0].isspace() and line[0] != "-":
            skipping = line.startswith("environment:")
        if not skipping:
            lines.append(line)
    return "\n".join(lines)
