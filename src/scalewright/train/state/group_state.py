"""A user's optimizer state beside that of the weights: values of its groups, entries of its own.

    schedule-free   k, weight_sum, lr_max, train_mode       in param_groups
    Prodigy         d, d_max, d_numerator, k                in param_groups

Of each group's values a checkpoint holds those that changed since the optimizer was made, with what they began as; the
built-in ones change none. On a resume

    the run file gives the same beginning    the saved value is taken: the optimizer's own progress
    it gives another beginning               that is taken: the user changed a setting
    lr, initial_lr                           are always the run file's and the schedule's

Small Python values as JSON and back, exactly: numbers, tuples, tensors of a few numbers.

    tensor(3.)               3.0                                           a 0-dim fp32 tensor, as Adam's step
    tensor([7])              {"tensor": "int64", "shape": [1], "data": [7]}
    7, True, "train", None   {"python": 7}, ...
    (0.9, 0.95)              {"tuple": [{"python": 0.9}, {"python": 0.95}]}

A float's text has the digits that give the same bits back, and Python's JSON has NaN and infinities.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from scalewright.parallel.collectives import gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.spec.errors import UserError

_OTHERS = frozenset({"params", "lr", "initial_lr"})  # set by `build_optimizer` and by the schedule each step


class GroupState:
    """One optimizer's groups: what they began with, how to save what changed, and how to bring it back."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Called before the first update."""
        self.optimizer = optimizer
        self._first = [_values(group) for group in optimizer.param_groups]
        self._objects = [dict(group) for group in optimizer.param_groups]

    def check(self) -> None:
        """Raises UserError when something that changed can't be saved."""
        self.changed()

    def read(self, mesh: Mesh) -> dict[str, object]:
        """{"groups": ..., "entries": ...} of all ranks, or {"ranks": [each one's own]} where they differ."""
        ranks = gather_json(self.changed(), mesh)
        return ranks[0] if all(rank == ranks[0] for rank in ranks) else {"ranks": ranks}

    def write(self, saved: Mapping[str, Any], mesh: Mesh) -> None:
        """Brings saved values back; raises UserError when they are of other groups, or of other ranks."""
        if "ranks" in saved:
            saved = own_values(saved["ranks"], mesh, "group state", "optimizer")
        groups = self.optimizer.param_groups
        for group, first in zip(groups, self._first, strict=False):
            _reset(group, first)
        if len(saved.get("groups", [])) not in (0, len(groups)):
            problem = f"the checkpoint's optimizer has {len(saved['groups'])} groups, and this one {len(groups)}"
            raise UserError(problem, "optimizer", "make as many groups as before")
        for group, first, changed in zip(groups, self._first, saved.get("groups", []), strict=False):
            device = next((p.device for p in group["params"]), None)
            for key, value in changed.items():
                if first.get(key) == value["first"]:
                    group[key] = decode(value["now"], device)
        entries: dict[Any, Any] = self.optimizer.state
        entries.update({name: decode(value) for name, value in saved.get("entries", {}).items()})

    def changed(self) -> dict[str, object]:
        """The values that have changed, encoded: [{key: {"first", "now"}}] of the groups, and entries of
        the optimizer's state that belong to no weight."""
        groups = []
        for group, first, objects in zip(self.optimizer.param_groups, self._first, self._objects, strict=False):
            now = _values(group)
            for key in group.keys() - now.keys() - _OTHERS:
                if group[key] is not objects.get(key):
                    raise _refused(f"group value '{key}'", group[key])
            groups.append({key: {"first": first.get(key), "now": now[key]} for key in _changed_keys(now, first)})
        entries = {}
        states: dict[Any, Any] = self.optimizer.state
        for key, value in states.items():
            if not isinstance(key, Tensor):
                try:
                    entries.update(encode({key: value})["dict"])
                except TypeError:
                    raise _refused(f"state '{key}'", value) from None
        return {"groups": groups, "entries": entries}


def _values(group: dict[str, object]) -> dict[str, object]:
    """A group's values that have a plain form, encoded."""
    encoded = {}
    for key, value in group.items():
        if key not in _OTHERS:
            with suppress(TypeError):
                encoded[key] = encode(value)
    return encoded


def _changed_keys(now: dict[str, object], first: dict[str, object]) -> list[str]:
    return [key for key, value in now.items() if not same(value, first.get(key))]


def _reset(group: dict[str, Any], first: dict[str, object]) -> None:
    """A group's values as they were in the beginning: those of a run that goes back have moved on."""
    device = next((p.device for p in group["params"]), None)
    for key in _changed_keys(_values(group), first):
        if key in first:
            group[key] = decode(first[key], device)
        else:
            del group[key]


def own_values(ranks: list[Any], mesh: Mesh, what: str, where: str) -> Any:
    """This rank's part of values that every rank saved its own of; raises UserError for other ranks."""
    if len(ranks) != mesh.world:
        problem = f"the optimizer's {what} differs between the {len(ranks)} ranks that saved it"
        raise UserError(f"{problem}, and there are {mesh.world} now", where, "resume on the layout of the checkpoint")
    return ranks[mesh.rank]


def _refused(what: str, value: Any) -> UserError:
    problem = f"the optimizer's {what} is a {type(value).__name__}, which a checkpoint can't hold"
    keep = "keep numbers, texts, lists or small tensors there"
    return UserError(problem, "optimizer", f"{keep}, or save nothing: checkpoint.every=0 checkpoint.at_end=false")


LARGEST = 4096  # numbers of a tensor; larger ones have no place in a JSON file


def encode(value: Any) -> Any:
    """A value as JSON types; raises TypeError for one that has no such form."""
    if isinstance(value, Tensor):
        if value.is_complex() or value.numel() > LARGEST:
            raise TypeError(f"a tensor of {value.numel()} {value.dtype} numbers")
        numbers = value.detach().flatten().tolist()
        if value.dtype == torch.float32 and value.dim() == 0:
            return numbers[0]
        return {"tensor": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "data": numbers}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"python": value}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [encode(item) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: encode(item) for key, item in value.items()}}
    raise TypeError(f"a {type(value).__name__}")


def same(a: Any, b: Any) -> bool:
    """Whether two encoded values are equal: as JSON text, where a NaN equals itself."""
    return json.dumps(a) == json.dumps(b)


def decode(value: Any, device: torch.device | None = None) -> Any:
    """The values given to `encode`, tensors on `device`; raises ValueError for JSON that it didn't write."""
    if isinstance(value, (int, float)):
        return torch.tensor(value, dtype=torch.float32, device=device)
    if not isinstance(value, dict):
        raise ValueError(f"not an encoded value: {value!r}")
    if "tensor" in value:
        dtype = getattr(torch, value["tensor"])
        return torch.tensor(value["data"], dtype=dtype, device=device).reshape(value["shape"])
    if "python" in value:
        return value["python"]
    if "dict" in value:
        return {key: decode(item, device) for key, item in value["dict"].items()}
    for kind in (list, tuple):
        if kind.__name__ in value:
            return kind(decode(item, device) for item in value[kind.__name__])
    raise ValueError(f"not an encoded value: {value!r}")
