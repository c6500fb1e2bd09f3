"""What a dry run does where a rank looks at a tensor's numbers, or at its memory: fake tensors have neither.

Functions of a real run know no fake tensors; here each gets a stand-in for these, where it is looked up. Real
tensors go to the function itself, also those of a run in another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise
from types import ModuleType
from typing import Any

from torch import Tensor

from scalewright.model import moe
from scalewright.model.torch_private import FakeTensor, collectives, unset_fake_temporarily
from scalewright.parallel import context, functions

FIRST_KEYS = context.first_keys_on_host


def use_stand_ins() -> None:
    """From now on fake tensors go to the stand-ins below. Once is enough."""
    for module, name, stand_in in STAND_INS:
        function = getattr(module, name)
        if not hasattr(function, "__wrapped__"):
            setattr(module, name, _for_fake_tensors(function, stand_in))


def _for_fake_tensors(function: Callable[..., Any], stand_in: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def choose(tensors: Tensor | Sequence[Tensor], *rest: Any, **more: Any) -> Any:
        first = tensors if isinstance(tensors, Tensor) else tensors[0]
        return (stand_in if isinstance(first, FakeTensor) else function)(tensors, *rest, **more)

    return choose


def _evenly(counts: Sequence[Tensor], totals: Sequence[int]) -> list[list[int]]:
    """Each of `totals`, which the counts add up to, spread evenly over them."""
    ends = [[total * part // len(c) for part in range(len(c) + 1)] for c, total in zip(counts, totals, strict=True)]
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


STAND_INS: tuple[tuple[ModuleType, str, Callable[..., Any]], ...] = (
    (moe, "on_host", _evenly),
    (functions, "start_all_gather", _all_gather),
    (context, "first_keys_on_host", _first_keys_on_host),
)
