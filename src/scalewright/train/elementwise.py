"""Whether a user's own optimizer may be given parts of tensors: only one that treats each number by itself.

    tp, ZeRO 1-3     a rank's optimizer gets its own rows, columns or shard of every tensor
    elementwise      a number's update depends on that number, its gradient and its state: a part is enough
    anything else    a matrix's (Muon), a row's (Adafactor) or a tensor's norm (LAMB) would be the part's:
                     another update for every layout, and nothing that shows it

torch's own are listed by name. Others declare it: `elementwise = True` on the class or the function that the run file
names, or on the optimizer that it returns. No torch is imported here, since a run is checked before any process starts.
"""

from __future__ import annotations

from typing import Any

from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.memory import is_sharded
from scalewright.spec.run import OptimizerSpec, PythonRef
from scalewright.spec.user_code import import_object

# torch.optim's, but for Adafactor, LBFGS, Muon and SparseAdam.
OF_TORCH = {"ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"}


def check_named(spec: OptimizerSpec | PythonRef, layout: Layout) -> None:
    """Raises UserError for a class that isn't declared elementwise, where a layout cuts tensors. A function that
    doesn't may still return one that does: `check_made` sees to it."""
    if not isinstance(spec, PythonRef) or not cuts(layout):
        return
    named = import_object(spec.python)
    if isinstance(named, type) and not says_elementwise(named):
        raise _refusal(spec)


def check_made(spec: PythonRef, made: object) -> None:
    """Raises UserError for an optimizer of parts of tensors that isn't declared elementwise."""
    if not says_elementwise(made) and not says_elementwise(import_object(spec.python)):
        raise _refusal(spec)


def says_elementwise(what: Any) -> bool:
    """Whether a class, a function or an optimizer is declared elementwise, or is one of torch's that are. A class that
    inherits from one of torch's may do anything, and is asked itself."""
    if (declared := getattr(what, "elementwise", None)) is not None:
        return bool(declared)
    kind = what if isinstance(what, type) else type(what)
    return kind.__module__.split(".")[:2] == ["torch", "optim"] and kind.__name__ in OF_TORCH


def cuts(layout: Layout) -> bool:
    """Whether a rank's optimizer gets parts of tensors. Pipelines give it whole ones."""
    return layout.tp > 1 or (is_sharded(layout) and layout.dp_shard * layout.cp > 1)


def _refusal(spec: PythonRef) -> UserError:
    problem = f"{spec.python} doesn't say that it is elementwise, and this layout gives it parts of tensors"
    how = "if each number's update depends on its own gradient and state alone, set elementwise = True on it, or name "
    how += "a function of yours that returns it and says so; else keep tensors whole: layout.zero_stage=0 layout.tp=1, "
    return UserError(problem, "optimizer", f"{how}or one device")
