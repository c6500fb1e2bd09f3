"""The loss of a run, as a sum over a micro-batch's counted tokens.

A step divides the sums by the tokens of the whole global batch, which is known before the first backward, so
that ranks, micro-batches and masks change nothing. The built-in one is `parallel/cross_entropy.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from scalewright.parallel.cross_entropy import CrossEntropy
from scalewright.parallel.execute import Loss
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.vocabulary import full_logits, make_columns
from scalewright.spec.run import PythonRef
from scalewright.train.own_loss import OwnLoss
from scalewright.train.reduction import called_part

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
    """The run's loss. A user's own is called with (logits, targets); see `own_loss` for what it returns.

    `check`: the first micro-batches show whether it is the sum or the mean that the run file declares.
    `mtp_weight`: of the loss of prediction modules, where the model gives `Predictions`.

    Under tensor parallelism (`mesh` with tp > 1) it takes this rank's columns of a `vocabulary` of that many
    tokens. A user's own then gets whole logits, gathered, on every rank, and must give the same on each.
    """
    columns = None
    if mesh is not None and mesh.size("tp") > 1:
        if vocabulary is None:
            raise ValueError("tensor parallelism cuts the vocabulary: say how large it is")
        columns = make_columns(mesh, vocabulary)
    if isinstance(loss, PythonRef):
        custom_loss = OwnLoss(load(called_part(loss)), loss, check=check)

        def wrapped(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            total = custom_loss(logits if columns is None else full_logits(logits, columns), targets)
            return total, total.new_zeros(())

        return wrapped
    return CrossEntropy(z_loss, columns, mtp_weight=mtp_weight)
