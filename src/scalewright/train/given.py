"""A run as a caller names it (a file, plain data or a RunSpec, with overrides), read as a RunSpec."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from scalewright.spec.run import RunSpec, apply_override, load_run

Overrides = str | Sequence[str] | Mapping[str, Any]


def read_overrides(overrides: Overrides) -> list[str]:
    """Overrides as `key=value` texts, from those, from one, or from a dictionary."""
    if isinstance(overrides, str):
        return [overrides]
    if isinstance(overrides, Mapping):
        return [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    return list(overrides)


def read_run(run: str | Path | dict[str, Any] | RunSpec, overrides: Sequence[str]) -> RunSpec:
    """The run of a file, of plain data or of a RunSpec, with `key=value` overrides; raises UserError."""
    if isinstance(run, (str, Path)):
        return load_run(run, list(overrides))
    data = run.dump() if isinstance(run, RunSpec) else deepcopy(run)  # the caller's own stays as it is
    for override in overrides:
        apply_override(data, override)
    return RunSpec.parse(data)
