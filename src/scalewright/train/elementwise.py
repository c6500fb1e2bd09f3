"""Whether a user's own optimizer may be given parts of tensors: only one that treats each number by itself.

    tp, ZeRO 1-3     a rank's optimizer gets its own rows, columns or shard of every tensor
    elementwise      a number's update depends on that number, its gradient and its state: a part is enough
    anything else    a matrix's (Muon), a row's (Adafactor) or a tensor's norm (LAMB) would be the part's:
                     another update for every layout, and nothing that shows it

torch's own are listed by name. Others declare it: `elementwise = True` on the class or the function that the run file
names, or on the optimizer that it returns. Whoever declares it is tried, since a wrong word trains on in silence: three
steps of made-up tensors, whole and in quarters, before any process starts. In a pipeline ranks have whole tensors, but
not all of them: there an update of each must not depend on the others (Prodigy's does), which is tried as well. No
torch is imported at the top, since most runs are checked without.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.memory import is_sharded
from scalewright.spec.run import OptimizerSpec, PythonRef
from scalewright.spec.user_code import import_object

# torch.optim's, but for Adafactor, LBFGS, Muon and SparseAdam.
OF_TORCH = {"ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"}
SAME = 1e-4  # of an update's norm: elementwise ones differ by 0; in quarters LAMB by 0.003, Muon 0.1, Adafactor 0.9

Held = list[tuple[int, Any]]  # a rank's parts of the trial's four tensors: 0 and 1 are matrices, 2 and 3 vectors
WHOLE: list[Held] = [[(tensor, ...) for tensor in range(4)]]
APART: list[Held] = [[(0, ...), (2, ...)], [(1, ...), (3, ...)]]
HALF = slice(None, 128), slice(128, None)
QUARTERS: list[Held] = [[(0, (row, column)), (1, (row, column)), (2, row), (3, row)] for row in HALF for column in HALF]


def check_named(spec: OptimizerSpec | PythonRef, layout: Layout) -> None:
    """Raises UserError for an optimizer that isn't declared elementwise, or isn't, where a layout cuts tensors; in a
    pipeline, for one that needs all tensors. One that can't be tried (it wants a GPU, or a process group) is left to
    `check_made`; one with `communicates = True` sums over ranks itself."""
    parts = cuts(layout) or layout.ep * layout.etp > 1
    if not isinstance(spec, PythonRef) or not (parts or layout.pp > 1):
        return
    named = import_object(spec.python)
    if parts and isinstance(named, type) and not says_elementwise(named):
        raise _refusal(spec)
    made, differs = _try(lambda groups: named(groups, **spec.arguments), QUARTERS if parts else APART)
    if parts and made is not None:
        check_made(spec, made)
    if differs <= SAME or getattr(named, "communicates", False):
        return
    what = "parts of tensors than whole ones" if parts else "some of the tensors than all of them"
    problem = f"{spec.python} gives other updates to {what} (by {differs:.2g} in a trial), and ranks here have those"
    how = "use layout.zero_stage=0 layout.tp=1 layout.pp=1, or one device; one that sums over ranks itself declares "
    raise UserError(problem, "optimizer", f"{how}communicates = True")


def _try(make: Callable[[Any], Any], ranks: list[Held]) -> tuple[object, float]:
    """What `make` returns (None: it couldn't be made), and the share of their norm by which the updates of `ranks`
    differ from one device's: 0 for torch's own, for updates by chance, and where it can't be tried."""
    import torch

    made = []
    grow, fall = torch.logspace(-1, 1, 256), torch.logspace(1, -1, 320)  # so that a part's norm isn't the whole's
    scales = [grow[:, None] * fall, grow[:, None] * fall.flip(0), grow, grow.flip(0)]
    draw = torch.Generator().manual_seed(1)
    first, *gradients = ([scale * torch.randn(scale.shape, generator=draw) for scale in scales] for _ in range(4))

    def updates(ranks: list[Held]) -> torch.Tensor:
        after = [torch.empty_like(tensor) for tensor in first]
        for held in ranks:
            weights = [torch.nn.Parameter(0.02 * first[tensor][part]) for tensor, part in held]
            middle = len(weights) // 2
            made.append(make([{"params": weights[:middle]}, {"params": weights[middle:], "weight_decay": 0.0}]))
            for gradient in gradients:
                for weight, (tensor, part) in zip(weights, held, strict=True):
                    weight.grad = gradient[tensor][part].clone()
                made[-1].step()
            for weight, (tensor, part) in zip(weights, held, strict=True):
                after[tensor][part] = weight.detach()
        return torch.cat([(new - 0.02 * old).flatten() for new, old in zip(after, first, strict=True)])

    differs = 0.0
    with suppress(Exception), torch.random.fork_rng(devices=[]):  # a user's code may raise anything
        once = updates(WHOLE)
        if not _of_torch(type(made[0])) and torch.equal(once, updates(WHOLE)):
            differs = float(torch.dist(once, updates(ranks)) / once.norm())
    return (made[0] if made else None), differs


def check_made(spec: PythonRef, made: object) -> None:
    """Raises UserError for an optimizer of parts of tensors that isn't declared elementwise."""
    if not says_elementwise(made) and not says_elementwise(import_object(spec.python)):
        raise _refusal(spec)


def says_elementwise(what: Any) -> bool:
    """Whether a class, a function or an optimizer is declared elementwise, or is one of torch's that are. A class that
    inherits from one of torch's may do anything, and is asked itself."""
    if (declared := getattr(what, "elementwise", None)) is not None:
        return bool(declared)
    return _of_torch(what if isinstance(what, type) else type(what))


def _of_torch(kind: type) -> bool:
    return kind.__module__.split(".")[:2] == ["torch", "optim"] and kind.__name__ in OF_TORCH


def cuts(layout: Layout) -> bool:
    """Whether a rank's optimizer gets parts of tensors. Pipelines give it whole ones."""
    return layout.tp > 1 or (is_sharded(layout) and layout.dp_shard * layout.cp > 1)


def _refusal(spec: PythonRef) -> UserError:
    problem = f"{spec.python} doesn't say that it is elementwise, and this layout gives it parts of tensors"
    how = "if each number's update depends on its own gradient and state alone, set elementwise = True on it, or name "
    how += "a function of yours that returns it and says so; else keep tensors whole: layout.zero_stage=0 layout.tp=1, "
    return UserError(problem, "optimizer", f"{how}or one device")
