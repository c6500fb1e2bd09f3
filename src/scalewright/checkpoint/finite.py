"""Whether a checkpoint holds numbers that a run can go on from, and which ones are kept because of it.

`state.json` holds `finite`: the loss and the gradient norm of its step were, and so is every number of the
files (looked at as they are written); `nonfinite` names the first tensors that aren't. A checkpoint from
before this was recorded counts as finite.

    keep 2     steps 400 and 600 finite, 800 not      400 and 600 stay; so does 800, as the newest, for a look
               1000 finite                            600 and 1000 stay
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalewright.checkpoint.format import read_state
from scalewright.spec.errors import UserError

NAMED = 5  # tensors named in state.json


def is_finite(folder: Path) -> bool:
    """Whether a finished checkpoint is finite; one whose state can't be read counts as such."""
    try:
        return bool(read_state(folder).get("finite", True))
    except (UserError, AttributeError):
        return True


def finite_first(folders: Sequence[Path]) -> list[Path]:
    """The finite ones, then the others, each in the order given."""
    return sorted(folders, key=lambda folder: not is_finite(folder))


def superfluous(folders: Sequence[Path], keep: int) -> list[Path]:
    """The finished checkpoints (newest first) that may go: all but the newest `keep` finite ones, and
    the newest of all where that isn't finite."""
    finite = [folder for folder in folders if is_finite(folder)]
    kept = {*finite[:keep], *folders[:1]}
    return [folder for folder in folders if folder not in kept]


def all_finite(tensor: Tensor) -> bool:
    """Whether every number is finite: one pass, no copy (the largest magnitude of a NaN is NaN)."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return bool(torch.isfinite(torch.linalg.vector_norm(tensor, float("inf"))))


def finite_entry(of_step: bool, written: Sequence[Any]) -> dict[str, object]:
    """The entries of `state.json`; `written`: every rank's result of `write_chunks`."""
    names = sorted({name for rank in written for name in rank.get("nonfinite", ())})
    return {"finite": of_step and not names, **({"nonfinite": names[:NAMED]} if names else {})}
