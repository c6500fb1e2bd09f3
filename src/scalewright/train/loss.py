"""The loss of a run, as a sum over a micro-batch's counted tokens.

A step divides the sums by the tokens of the whole global batch, which is known before the first backward, so that
ranks, micro-batches and masks change nothing. The built-in one is `parallel/cross_entropy.py`. A user's own,
`loss: {python: mine:loss, reduction: mean}`, is called with (logits [B, T, V], targets [B, T]).

    reduction: sum (default)    the number is the sum over counted tokens (targets other than -100)
    reduction: mean             it is their mean; it is multiplied by the micro-batch's counted tokens

A mean taken for a sum would train with gradients that many times too small, without an error. The first micro-batch
shows which it is: a sum over twice the tokens is twice as large, a mean stays.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from scalewright.data.batch import IGNORED
from scalewright.parallel.cross_entropy import CrossEntropy, full_logits, make_columns
from scalewright.parallel.execute import Loss
from scalewright.parallel.mesh import Mesh
from scalewright.spec.errors import UserError
from scalewright.spec.run import PythonRef
from scalewright.spec.user_code import import_object
from scalewright.train.resolve import reduction_of

DEFAULT_LOSS = "cross_entropy"


def build_loss(
    loss: PythonRef | str,
    z_loss: float,
    load: Callable[[PythonRef], Callable[..., Tensor]],
    mesh: Mesh | None = None,
    vocabulary: int | None = None,
    *,
    check: bool = False,
    mtp_weight: float = 0.0,
) -> Loss:
    """The run's loss. `check`: the first micro-batches show whether a user's own is the sum or the mean that the run
    file declares. `mtp_weight`: of the loss of prediction modules, where the model gives `Predictions`.

    Under tensor parallelism (`mesh` with tp > 1) it takes this rank's columns of a `vocabulary` of that many tokens. A
    user's own then gets whole logits, gathered, on every rank, and must give the same on each.
    """
    columns = None
    if mesh is not None and mesh.size("tp") > 1:
        if vocabulary is None:
            raise ValueError("tensor parallelism cuts the vocabulary: say how large it is")
        columns = make_columns(mesh, vocabulary)
    if not isinstance(loss, PythonRef):
        return CrossEntropy(z_loss, columns, mtp_weight=mtp_weight)
    own_loss = OwnLoss(load(called_part(loss)), loss, check=check)

    def wrapped(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        total = own_loss(logits if columns is None else full_logits(logits, columns), targets)
        return total, total.new_zeros(())

    return wrapped


COLUMNS = 64  # tokens of the row that the check looks at: its copies of the logits stay small
ATTEMPTS = 8  # micro-batches after which a loss that can't be judged (always 0, say) is used as declared
SAME, TWICE = 1.0, 2.0
TOLERANCE = 0.02  # bf16 logits and a few rounded sums are within it; a mean and a sum are 1 apart

Function = Callable[..., Tensor]


class OwnLoss:
    """A user's loss as a sum over counted tokens; its first micro-batches are checked against `reduction`."""

    def __init__(self, function: Function, loss: PythonRef, *, check: bool = True) -> None:
        self.function, self.name, self.reduction = function, loss.python, reduction_of(loss)
        self.attempts = ATTEMPTS if check else 0

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The sum over the micro-batch's counted tokens, an fp32 scalar; raises UserError."""
        if self.attempts and torch.is_grad_enabled():
            self.attempts -= 1
            if self._settled(logits.detach(), targets):
                self.attempts = 0
        total = self._scalar(self.function(logits, targets))
        if logits.requires_grad and not total.requires_grad and torch.is_grad_enabled():
            how = "compute it from the logits with torch operations, without .item() or .detach()"
            raise UserError("the loss has no gradient", f"python: {self.name}", how)
        if self.reduction == "sum":
            return total
        counted = (targets != IGNORED).sum()
        # a mean over no token is 0/0 in most losses
        return torch.where(counted > 0, total, torch.zeros_like(total)) * counted

    def _scalar(self, value: Any) -> Tensor:
        """The loss in fp32; raises UserError when it isn't one number."""
        if not isinstance(value, Tensor) or value.numel() != 1:
            kind = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            how = "return the sum over counted tokens as a tensor of one number"
            raise UserError(f"the loss gave {kind}, not one number", f"python: {self.name}", how)
        return value.reshape(()).float()

    @torch.no_grad()
    def _settled(self, logits: Tensor, targets: Tensor) -> bool:
        """Whether the loss was seen to have its declared reduction; raises UserError for the other one."""
        if (part := _counted_part(logits, targets)) is None:
            return False
        growth = [self._growth(*part, dim) for dim in (0, 1)]  # with twice the rows, twice the length
        if not all(map(math.isfinite, growth)):
            return False
        same, twice = ([abs(value - kept) < TOLERANCE for value in growth] for kept in (SAME, TWICE))
        if self.reduction == "mean":
            if all(twice):
                problem = "reduction: mean is set, but the loss of twice the tokens is twice as large: a sum"
                how = "remove reduction: mean, or return the mean over counted tokens"
                raise UserError(problem, f"python: {self.name}", how)
        elif all(same):
            mean = "the loss is a mean (twice the tokens give the same number)"
            problem = f"{mean}, and a step divides sums by the global batch's tokens"
            how = "return the sum over counted tokens, or set reduction: mean beside python:"
            raise UserError(problem, f"python: {self.name}", how)
        # The same from twice the rows or twice the length alone is no mean: a loss may count one token a row.
        return True

    def _growth(self, logits: Tensor, targets: Tensor, dim: int) -> float:
        """loss(part twice) / loss(part); not finite where there is none: of 0, or not for such a part."""
        try:
            with _random_state_kept(logits.device):
                once = self._scalar(self.function(logits, targets)).item()
            with _random_state_kept(logits.device):
                doubled = self.function(torch.cat([logits] * 2, dim), torch.cat([targets] * 2, dim))
                twice = self._scalar(doubled).item()
        except Exception:  # a loss that takes whole rows alone; if it is wrong, the real call raises it
            return math.nan
        return twice / once if once else math.nan


def _counted_part(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor] | None:
    """One row's tokens from its first counted one on, [1, <=COLUMNS, V] and [1, <=COLUMNS]; null: none."""
    if logits.dim() != 3 or targets.shape != logits.shape[:2]:
        return None
    places = (targets != IGNORED).nonzero()
    if not len(places):
        return None
    row, first = places[0].tolist()
    rows, columns = slice(row, row + 1), slice(first, first + COLUMNS)
    return logits[rows, columns], targets[rows, columns]


def _random_state_kept(device: torch.device) -> AbstractContextManager[Any]:
    """Random numbers that the check draws leave the run's own as they were."""
    if device.type == "mps":
        return nullcontext()
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def called_part(loss: PythonRef) -> PythonRef:
    """The part with the arguments that its function gets: `reduction` only where the function names it."""
    if "reduction" not in loss.arguments:
        return loss
    try:
        names: Any = inspect.signature(import_object(loss.python)).parameters
    except ValueError:  # a builtin without a signature
        names = ()
    if "reduction" in names:
        return loss
    arguments = {key: value for key, value in loss.arguments.items() if key != "reduction"}
    return PythonRef(python=loss.python, **arguments)
