"""What a dry run does where a rank looks at a tensor's numbers, or at its memory: fake tensors have neither.

The functions below are replaced where they are looked up: the code of a real run knows no fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import ModuleType
from typing import Any

from torch import Tensor

from scalewright.model import moe
from scalewright.model.torch_private import collectives, unset_fake_temporarily
from scalewright.parallel import context, functions

FIRST_KEYS = context.first_keys_on_host


@contextmanager
def no_numbers() -> Iterator[None]:
    """While it is entered, a rank's program needs no numbers."""
    originals = [(module, name, getattr(module, name)) for module, name, _ in REPLACED]
    for module, name, function in REPLACED:
        setattr(module, name, function)
    try:
        yield
    finally:
        for module, name, function in originals:
            setattr(module, name, function)


def _evenly(counts: Sequence[Tensor], totals: Sequence[int]) -> list[list[int]]:
    """Each of `totals`, which the counts add up to, spread evenly over them."""
    ends = [
        [total * part // len(c) for part in range(len(c) + 1)]
        for c, total in zip(counts, totals, strict=True)
    ]
    return [[end - start for start, end in pairwise(of_one)] for of_one in ends]


def _all_gather(x: Tensor, group: functions.AxisGroup) -> Tensor:
    """To tensors without memory torch describes the other call as if it made a second output."""
    started: Tensor = collectives.all_gather_into_tensor(x, group.size, group.name)
    return started


def _first_keys_on_host(first: Tensor, documents: Tensor | None, packing: Any, **rule: Any) -> Any:
    """A dry run's own numbers are on the host, but not those of a batch's documents."""
    if documents is not None and packing is None:
        return None
    with unset_fake_temporarily():
        return FIRST_KEYS(first, documents, packing, **rule)


REPLACED: tuple[tuple[ModuleType, str, Callable[..., Any]], ...] = (
    (moe, "on_host", _evenly),
    (functions, "start_all_gather", _all_gather),
    (context, "first_keys_on_host", _first_keys_on_host),
)
