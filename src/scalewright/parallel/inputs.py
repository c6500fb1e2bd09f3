"""Batches on their way to the model: cut into micro-batches, moved to the device, without needless masks."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scalewright.parallel.stages import stages_of


class BatchArrays(Protocol):
    """A batch of the data, as numpy arrays [B, T]; `documents` where attention may need a mask."""

    @property
    def tokens(self) -> NDArray[np.int64]: ...
    @property
    def targets(self) -> NDArray[np.int64]: ...
    @property
    def positions(self) -> NDArray[np.int64]: ...
    @property
    def documents(self) -> NDArray[np.int32] | None: ...


class Micro(NamedTuple):
    """One micro-batch on the device."""

    tokens: Tensor  # [B, T]
    targets: Tensor  # [B, T]
    arguments: dict[str, Tensor]  # `positions` and `documents`, or `position_ids`, [B, T], where needed


def micro_batches(
    batch: BatchArrays, size: int, device: torch.device, accepts: frozenset[str]
) -> list[Micro]:
    """A batch cut into micro-batches of `size` rows, on the device."""
    starts = range(0, len(batch.tokens), size)
    return [_micro_batch(batch, slice(start, start + size), device, accepts) for start in starts]


def accepted_arguments(model: nn.Module) -> frozenset[str]:
    """Which of `positions`, `documents` and `position_ids` the model's forward takes besides its tokens.

    A model of transformers takes `position_ids`, and from positions that begin anew it makes the mask between
    documents (its packed sequences); it ignores the others.
    """
    forward = inspect.signature(next(iter(stages_of(model).values())).forward).parameters
    if "position_ids" in forward and "documents" not in forward:
        return frozenset({"position_ids"})
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in forward.values()):
        return frozenset({"positions", "documents"})
    return frozenset({"positions", "documents"} & set(forward))


def document_arguments(accepts: frozenset[str]) -> dict[str, str]:
    """For rows of several documents: the model's arguments, and the field of a batch for each."""
    if "position_ids" in accepts:
        return {"position_ids": "positions"}
    if "documents" not in accepts:
        return {}
    return {name: name for name in ("documents", "positions") if name in accepts}


def _micro_batch(batch: BatchArrays, rows: slice, device: torch.device, accepts: frozenset[str]) -> Micro:
    """Rows of one document each need no mask and no positions: plain causal attention is the same, faster."""
    arguments: dict[str, Tensor] = {}
    documents = None if batch.documents is None else batch.documents[rows]
    if documents is not None and documents.any():
        for name, field in document_arguments(accepts).items():
            arguments[name] = _move(getattr(batch, field)[rows], device)
    return Micro(_move(batch.tokens[rows], device), _move(batch.targets[rows], device), arguments)


def _move(array: NDArray[Any], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
