"""Batches on their way to the model: cut into micro-batches, moved to the device, without needless documents.

Under context parallelism a rank gets its tokens of each row, with their positions and the whole row's documents: its
queries look at keys of other ranks. On a GPU, documents come with what kernels need on the host: where each begins, and
how long the longest is. Prediction modules (multi-token prediction) take the token of depth k ahead of each place, and
have the target of that token. Both are read from whole rows here, so that no rank has to ask another for them:

    tokens        the  cat  sat  <eod>  a    dog       targets       cat  sat   <eod>  -100  dog   ran
    ahead 1       cat  sat  <eod>  a   dog   0         of depth 1    sat  <eod>  -100  -100  ran  -100

At the end of a row and of a document nothing is counted: the token that would be predicted lies beyond it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scalewright.model.decoder import Decoder
from scalewright.model.gpu_rows import Packing, Segments, bounds_of
from scalewright.model.visible import first_keys
from scalewright.parallel.chunked_loss import IGNORED
from scalewright.parallel.stages import stages_of
from scalewright.spec.zigzag import SequenceCut


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
    targets: Tensor  # the same; with prediction modules [1 + depths, as tokens]
    # `positions` [B or 1, as tokens], `documents` [B, T], `packing`; or `position_ids` [B, T]; where needed;
    # `ahead` [depths, as tokens] with prediction modules
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Wanted:
    """What a model's forward takes."""

    arguments: frozenset[str] = frozenset()  # of `positions`, `documents` and `position_ids`
    cut: SequenceCut | None = None  # this rank's tokens of each row; null: all
    packing: bool = False  # documents as the host has them, too
    ahead: int = 0  # depths of prediction modules to be trained

    def of_row(self, values: NDArray[Any]) -> NDArray[Any]:
        """This rank's part of rows [..., T]."""
        return values if self.cut is None else values[..., self.cut.tokens(values.shape[-1])]


def micro_batches(batch: BatchArrays, size: int, device: torch.device, wanted: Wanted) -> list[Micro]:
    """A batch cut into micro-batches of `size` rows, on the device."""
    starts = range(0, len(batch.tokens), size)
    return [_micro_batch(batch, slice(start, start + size), device, wanted) for start in starts]


def wanted_by(model: nn.Module, *, trains: bool = False) -> Wanted:
    """What a model takes, or one rank's stages of it; `trains`: for its prediction modules, too."""
    stages = stages_of(model).values()
    stage = next(iter(stages))
    return Wanted(
        _accepted_arguments(stage),
        getattr(stage, "sequence_cut", None),
        packing=isinstance(stage, Decoder),
        ahead=max(len(getattr(s, "mtp", ())) for s in stages) if trains else 0,
    )


def _accepted_arguments(stage: nn.Module) -> frozenset[str]:
    """Which of `positions`, `documents` and `position_ids` the model's forward takes besides its tokens. A model of
    transformers takes `position_ids`, and from positions that begin anew it makes the mask between documents (its
    packed sequences); it ignores the others."""
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
    targets = batch.targets[rows]
    if wanted.ahead:
        ahead, further = ahead_of(batch.tokens[rows], targets, documents, wanted.ahead)
        arguments["ahead"] = wanted.of_row(ahead)
        targets = np.concatenate([targets[None], further])
    moved: dict[str, object] = {name: _move(values, device) for name, values in arguments.items()}
    if wanted.packing and "documents" in arguments and device.type == "cuda":
        moved["packing"] = packing_of(arguments["documents"], device)
    return Micro(_move(wanted.of_row(batch.tokens[rows]), device), _move(wanted.of_row(targets), device), moved)


def packing_of(documents: NDArray[Any], device: torch.device) -> Packing:
    """What a GPU's kernels need of documents [B, T] on the host."""
    first = first_keys(torch.arange(documents.shape[1]), torch.from_numpy(np.ascontiguousarray(documents)))
    bounds, longest = bounds_of(first.numpy())
    return Packing(documents, Segments(_move(bounds, device), longest))


def ahead_of(
    tokens: NDArray[np.int64], targets: NDArray[np.int64], documents: NDArray[np.int32] | None, depths: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The tokens ahead of each place of whole rows [B, T], and their targets; both [depths, B, T].

    A target is counted where its token is, and lies in the document of the place that predicts it.
    """
    ahead = np.zeros((depths, *tokens.shape), np.int64)
    further = np.full((depths, *tokens.shape), IGNORED, np.int64)
    for k in range(1, min(depths, tokens.shape[-1] - 1) + 1):
        ahead[k - 1, :, :-k] = tokens[:, k:]
        within = True if documents is None else documents[:, k:] == documents[:, :-k]
        further[k - 1, :, :-k] = np.where(within, targets[:, k:], IGNORED)
    return ahead, further


def _move(array: NDArray[Any], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
