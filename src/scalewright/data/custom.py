"""A user's own data: `data: {python: package.module:name, ...}` names whatever gives batches by number.

    # my_data.py
    class Random:
        def __init__(self, split, seed, vocab=256): ...
        def batch(self, indices) -> Batch: ...
        def __len__(self): ...

The name is called with the arguments beside it, and with `split` and `seed` if it takes them.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

from scalewright.data.batch import Batch
from scalewright.spec.errors import UserError
from scalewright.spec.run import PythonRef
from scalewright.spec.user_code import import_object


class CustomDataset:
    """A user's object with what it leaves out filled in."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.bytes_per_token: float = getattr(inner, "bytes_per_token", nan)
        self.vocab_size: int | None = getattr(inner, "vocab_size", None)
        path = getattr(inner, "tokenizer_path", None)
        self.tokenizer_path: Path | None = Path(path) if path else None
        self.eod: int | None = getattr(inner, "eod", None)

    def __len__(self) -> int:
        return len(self.inner)

    def batch(self, indices: Sequence[int] | range) -> Batch:
        """The user's batch; raises UserError when it isn't a Batch of as many rows."""
        found = self.inner.batch(indices)
        if not isinstance(found, Batch) or len(found) != len(indices):
            kind = (
                f"{type(found).__name__} of {len(found)} rows"
                if isinstance(found, Batch)
                else type(found).__name__
            )
            raise UserError(
                f"batch() gave a {kind}",
                "data",
                f"return a scalewright.data.batch.Batch of {len(indices)} rows",
            )
        return found


def open_custom(ref: PythonRef, split: str, seed: int) -> CustomDataset:
    """The user's dataset; raises UserError when the name isn't there or can't be called so."""
    make = import_object(ref.python)
    arguments: dict[str, Any] = dict(ref.arguments)
    accepted = inspect.signature(make).parameters
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values())
    arguments.update(
        {name: value for name, value in (("split", split), ("seed", seed)) if takes_all or name in accepted}
    )
    try:
        inspect.signature(make).bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"{ref.python} can't be called so: {error}", "data", "give its arguments beside `python`"
        ) from None
    inner = make(**arguments)
    if not callable(getattr(inner, "batch", None)) or not hasattr(inner, "__len__"):
        raise UserError(
            f"{ref.python} gave a {type(inner).__name__} without batch(indices) and len()", "data", "add them"
        )
    return CustomDataset(inner)
