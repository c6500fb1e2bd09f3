"""Batches on their way to the model: cut into micro-batches, moved to the device, without needless documents.

Under context parallelism a rank gets its tokens of each row, with their positions, and whose documents the
whole row has: its queries look at the keys of other ranks. On a GPU, documents come with what its kernels
need to have on the host: where each begins, and how long the longest is.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scalewright.model.decoder import Decoder
from scalewright.model.gpu_rows import Packing, Segments, bounds_of
from scalewright.model.visible import first_keys
from scalewright.parallel.stages import stages_of
from scalewright.spec.sequence_cut import SequenceCut


class BatchArrays(Protocol):
    """A batch of the data, as numpy arrays [B, T]; `documents` where rows may hold several."""

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

    tokens: Tensor  # [B, T]; T/cp under context parallelism
    targets: Tensor  # the same
    # `positions` [B or 1, as tokens], `documents` [B, T], `packing`; or `position_ids` [B, T]; where needed
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """What a model's forward takes."""

    arguments: frozenset[str] = frozenset()  # of `positions`, `documents` and `position_ids`
    cut: SequenceCut | None = None  # this rank's tokens of each row; null: all
    packing: bool = False  # documents as the host has them, too

    def of_row(self, values: NDArray[Any]) -> NDArray[Any]:
        """This rank's part of rows [..., T]."""
        return values if self.cut is None else values[..., self.cut.tokens(values.shape[-1])]


def micro_batches(batch: BatchArrays, size: int, device: torch.device, wanted: Wanted) -> list[Micro]:
    """A batch cut into micro-batches of `size` rows, on the device."""
    starts = range(0, len(batch.tokens), size)
    return [_micro_batch(batch, slice(start, start + size), device, wanted) for start in starts]


def wanted_by(model: nn.Module) -> Wanted:
    """What a model takes, or one rank's stages of it."""
    stage = next(iter(stages_of(model).values()))
    return Wanted(
        _accepted_arguments(stage), getattr(stage, "sequence_cut", None), isinstance(stage, Decoder)
    )


def _accepted_arguments(stage: nn.Module) -> frozenset[str]:
    """Which of `positions`, `documents` and `position_ids` the model's forward takes besides its tokens.

    A model of transformers takes `position_ids`, and from positions that begin anew it makes the mask between
    documents (its packed sequences); it ignores the others.
    """
    forward = inspect.signature(stage.forward).parameters
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


def _micro_batch(batch: BatchArrays, rows: slice, device: torch.device, wanted: Wanted) -> Micro:
    """Rows of one document each need no documents, no positions: causal attention is the same, faster."""
    arguments: dict[str, NDArray[Any]] = {}
    documents = None if batch.documents is None else batch.documents[rows]
    if documents is not None and documents.any():
        fields = document_arguments(wanted.arguments)
        arguments = {name: getattr(batch, field)[rows] for name, field in fields.items()}
    if wanted.cut is not None:
        whole = arguments.get("positions", np.arange(batch.tokens.shape[-1])[None])
        arguments["positions"] = wanted.of_row(whole)
    moved: dict[str, Any] = {name: _move(values, device) for name, values in arguments.items()}
    if wanted.packing and "documents" in arguments and device.type == "cuda":
        moved["packing"] = packing_of(arguments["documents"], device)
    return Micro(
        _move(wanted.of_row(batch.tokens[rows]), device),
        _move(wanted.of_row(batch.targets[rows]), device),
        moved,
    )


def packing_of(documents: NDArray[Any], device: torch.device) -> Packing:
    """What a GPU's kernels need of documents [B, T] on the host."""
    index = torch.arange(documents.shape[1])
    first = first_keys(index, torch.from_numpy(np.ascontiguousarray(documents)))
    bounds, longest = bounds_of(first.numpy())
    return Packing(documents, Segments(_move(bounds, device), longest))


def _move(array: NDArray[Any], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
