"""The differences of two checkpoints: where they stand, how their runs were set up, and every tensor.

Layouts cut tensors in other places: both are put together and compared bit for bit, one tensor in memory at a
time. A part is layout, model, step, samples, or a key of state.json (run, data, optimizer, guard, ...).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalewright.checkpoint.read import CheckpointReader
from scalewright.spec.common.formatting import dotted
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import RunSpec

ABSENT = "(absent)"
PARTS = ("step", "samples", "model", "layout")  # of the manifest
NAMES = ("name", "out_dir", "resume", "init", "launch", "model", "layout")  # no difference, or one of PARTS


def settings(first: Path, second: Path) -> dict[str, dict[str, list[Any]]]:
    """The numbers and settings that differ, by part and dotted key: [first, second]; raises UserError. A key that an
    older release's checkpoint lacks is no difference where the other has its default."""
    differences: dict[str, dict[str, list[Any]]] = {}
    flat = [dict(dotted(_settings(folder))) for folder in (first, second)]
    for key in {**flat[0], **flat[1]}:
        values = [side.get(key, ABSENT) for side in flat]
        of_user = any(f"{key.rpartition('.')[0]}.python" in side for side in flat)
        unset = ABSENT in values and not all(values) and not of_user  # arguments of a user's code have no default
        if values[0] != values[1] and not unset:
            differences.setdefault(key.split(".")[0], {})[key] = values
    return differences


def tensors(first: Path, second: Path) -> Iterator[dict[str, Any]]:
    """A row for every tensor, `equal` or how it differs; raises UserError. `only` (first, second): the other lacks it.
    `shape`, `dtype`: [first, second] where these differ. Else `numbers` that differ, of `of`, `largest`: absolute
    difference (null: not finite), and `relative`: the norm of the difference over the first's."""
    readers = [CheckpointReader(folder) for folder in (first, second)]
    for name in sorted({name for reader in readers for name in reader.manifest.tensors}):
        left, right = (reader.manifest.tensors.get(name) for reader in readers)
        row: dict[str, object] = {"name": name, "equal": False}
        if left is None or right is None:
            yield {**row, "only": "first" if right is None else "second"}
            continue
        pairs = {key: [getattr(left, key), getattr(right, key)] for key in ("shape", "dtype")}
        if differing := {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}:
            yield {**row, **differing}
        else:
            yield {**row, **_numbers(*(reader.read(name).reshape(-1) for reader in readers))}


def _numbers(first: Tensor, second: Tensor) -> dict[str, float | bool | None]:
    """How the numbers of two tensors of a shape and type differ."""
    same = (first.view(torch.uint8) == second.view(torch.uint8)).reshape(-1, first.element_size()).all(1)
    if not (count := int((~same).sum())):
        return {"equal": True}
    a, b = first[~same].double(), second[~same].double()
    largest, norm = float((a - b).abs().max()), float(torch.linalg.vector_norm(first.double()))
    finite = largest < float("inf")  # false for NaN
    relative = float(torch.linalg.vector_norm(a - b)) / norm if finite and norm else None
    return {"numbers": count, "of": len(first), "largest": largest if finite else None, "relative": relative}


def _settings(folder: Path) -> dict[str, object]:
    """State and manifest under one root, each spec with the defaults of keys that its release lacked. A converted
    checkpoint has no `run`, and gets none."""
    reader = CheckpointReader(folder)
    parts = {key: getattr(reader.manifest, key) for key in PARTS}
    for key, spec in (("model", ModelSpec), ("layout", Layout)):
        with suppress(UserError):  # a user's own module, or a value that this release refuses: as it is
            parts[key] = spec.parse(parts[key]).dump()
    if run := reader.state.get("run") or {}:
        run = _filled(run, RunSpec.parse({"model": "any", "data": "any"}).dump())
    run = {key: value for key, value in run.items() if key not in NAMES}
    return {**reader.state, "run": run, **parts}


def _filled(values: Any, defaults: Any) -> Any:
    """A run's settings with the defaults of keys that they lack; a user's own code has none."""
    if not isinstance(values, dict) or not isinstance(defaults, dict) or "python" in values:
        return values
    return {**defaults, **{key: _filled(value, defaults.get(key)) for key, value in values.items()}}
