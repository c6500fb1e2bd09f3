"""Axes that a user fixes: `tp=8,pp=4`, checked one by one, and together; each mistake says what would do.

{"tp": 8, "recompute": ["none", "full"]} --read_fixed--> {"tp": (8,), "recompute": ("none", "full")}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.plan.capabilities import Capabilities, kind_of
from scalewright.plan.request import CP_KINDS, OFFLOADS, SCHEDULES, Request
from scalewright.plan.search.axes import AXES, Fixed, divisors, make_space, tensor_sizes
from scalewright.plan.search.space import Space
from scalewright.spec.errors import UserError, unknown
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout

ELSEWHERE = ("devices", "global_batch", "seq_len", "precision")
WORDS: dict[str, tuple[str, ...]] = {"schedule": SCHEDULES, "cp_kind": CP_KINDS, "offload": OFFLOADS}
WHERE = "fixed"


def read_fixed(given: Mapping[str, Any], template: Request) -> Fixed:
    """The fixed axes as tuples of values, each of which is legal alone. Raises UserError."""
    found: dict[str, tuple[Any, ...]] = {}
    for key, value in given.items():
        if key in ELSEWHERE:
            raise UserError(f"{key} is not an axis of the search", WHERE, f"give {key} itself")
        if key not in AXES:
            raise unknown("axis", key, AXES, WHERE)
        if value is None:
            continue
        values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        if not values:
            raise UserError(f"{key} is fixed to nothing", WHERE, f"give {key} a value, or leave it out")
        for one in values:
            _check_kind(key, one)
            _check_value(key, one, template)
        found[key] = values
    return found


def _check_kind(key: str, value: Any) -> None:
    """Raises UserError when this isn't a value of that axis at all."""
    if key in WORDS:
        if value not in WORDS[key]:
            raise unknown(key, str(value), WORDS[key], WHERE)
    elif key == "sp":
        if not isinstance(value, bool):
            raise UserError(f"sp is {value!r}", WHERE, "use true or false")
    elif key == "recompute":
        Layout.parse({"recompute": value}, WHERE)
    elif isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"{key} is {value!r}", WHERE, f"use a whole number for {key}")
    elif key == "zero_stage":
        if value not in (0, 1, 2, 3):
            raise UserError(f"zero_stage is {value}", WHERE, "use 0, 1, 2 or 3")
    elif value < 1:
        raise UserError(f"{key} is {value}", WHERE, f"use {key} 1 or more")


def check_capable(fixed: Fixed, trainer: Capabilities) -> None:
    """Raises UserError for a fixed value that the trainer hasn't, with those that it has."""
    for key, values in fixed.items():
        for value in values:
            if not trainer.allows(key, value):
                has = " or ".join(str(one) for one in trainer.axes[key])
                raise UserError(f"{trainer.trainer} has no {key} {kind_of(value)}", WHERE, f"use {key} {has}")


def _check_value(key: str, value: Any, template: Request) -> None:
    """Raises UserError when no layout of this run can have that value, naming those that one can."""
    options = _options(key, template)
    if options is None or value in options:
        return
    some = {"devices": template.devices, key: value}
    if key == "tp":
        some["sp"] = False
    why = f"{key} {value} does not divide devices {template.devices}"
    if key in ("ep", "etp") and template.model.moe is None:
        why = f"{key} {value} but this model has no experts"
    elif key not in ("dp", "dp_replicate") and template.devices % value == 0:
        try:
            check_layout(Layout.parse(some), template.model, template.seq_len)
        except UserError as error:
            why = error.what
    near = sorted(options, key=lambda option: (abs(option - value), option))[:5]
    raise UserError(why, f"{WHERE}: {key}", f"use {key} " + " or ".join(map(str, sorted(near))))


def _options(key: str, template: Request) -> tuple[int, ...] | None:
    """The values that an axis can have alone; None where only the others decide."""
    model, sizes = template.model, divisors(template.devices)
    if key == "tp":
        return tensor_sizes(template)
    if key == "pp":
        return tuple(size for size in sizes if size <= model.num_hidden_layers)
    if key == "cp":
        return tuple(size for size in sizes if template.seq_len % size == 0)
    if key in ("dp", "dp_replicate"):
        return sizes
    if key == "ep":
        return divisors(model.moe.num_experts) if model.moe else (1,)
    if key == "etp":
        return divisors(model.moe.moe_intermediate_size) if model.moe else (1,)
    return None


def no_layout(template: Request, global_batch: int, fixed: Fixed) -> UserError:
    """Why the space is empty: the fixed axis that is in the way, or the batch."""
    for key in fixed:
        others = {name: values for name, values in fixed.items() if name != key}
        space = make_space(template, global_batch, others)
        if space.size:
            words = ", ".join(f"{name} {_text(values)}" for name, values in fixed.items())
            return UserError(f"no legal layout has {words}", WHERE, _instead(key, fixed[key], space))
    open_space = make_space(template, global_batch, {})
    if fixed and open_space.size:
        words = ", ".join(f"{name} {_text(values)}" for name, values in fixed.items())
        return UserError(f"no legal layout has {words}", WHERE, "fix fewer of them")
    return _batch_error(template, global_batch)


def _text(values: tuple[Any, ...]) -> str:
    return " or ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)


def _instead(key: str, given: tuple[Any, ...], space: Space) -> str:
    """What the axis may be beside the others."""
    names = {"zero_stage": None, "virtual_stages": None, "schedule": None}
    if key in space.core and key not in names:
        values = sorted(set(space.core[key].tolist()))
        if isinstance(given[0], int) and not isinstance(given[0], bool):
            near = sorted(sorted(values, key=lambda v: (abs(v - given[0]), v))[:5])
            return f"beside the others {key} may be " + " or ".join(map(str, near))
    return f"leave {key} {_text(given)} out"


def _batch_error(template: Request, global_batch: int) -> UserError:
    """No layout can deal this batch to these devices."""
    devices, layers = template.devices, template.model.num_hidden_layers
    shapes = [t * p for t in tensor_sizes(template) for p in divisors(devices) if p <= layers]
    ranks = sorted({devices // size for size in shapes if devices % size == 0})
    least = ranks[0] if ranks else devices
    batch = max(1, round(global_batch / least)) * least
    what = f"global_batch {global_batch} can't be dealt to {devices} devices: no tp, pp leave a dp for it"
    return UserError(what, "layout", f"use global_batch {batch}, or a number of devices with small divisors")
