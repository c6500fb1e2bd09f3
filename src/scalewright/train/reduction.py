"""The reduction of a user's own loss, as the run file declares it: `{python: mine:loss, reduction: mean}`.

No torch is imported here: it is read before any process starts.
"""

from __future__ import annotations

import inspect
from typing import Any

from scalewright.spec.errors import UserError
from scalewright.spec.run import PythonRef
from scalewright.spec.user_code import import_object

REDUCTIONS = ("sum", "mean")


def reduction_of(loss: PythonRef) -> str:
    """The reduction that the run file declares; raises UserError for a reduction that isn't one."""
    chosen = loss.arguments.get("reduction", "sum")
    if chosen not in REDUCTIONS:
        raise UserError(f"reduction {chosen!r} gives no single number", "loss", "use reduction: sum or reduction: mean")
    return str(chosen)


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
