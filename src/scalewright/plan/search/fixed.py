"""Axes that a user fixes (`tp=8,pp=4`), checked alone and together; each error lists values that work.

{"tp": 8, "recompute": ["none", "full"]} --read_fixed--> {"tp": (8,), "recompute": ("none", "full")}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scalewright.plan.request import CP_KINDS, OFFLOADS, SCHEDULES, Request
from scalewright.plan.search.axes import AXES, Fixed, divisors, make_space, tensor_sizes
from scalewright.plan.search.space import Space
from scalewright.spec.capabilities import Capabilities, kind_of
from scalewright.spec.errors import UserError, unknown
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout

ELSEWHERE = ("devices", "global_batch", "seq_len", "precision")
WORDS: dict[str, tuple[str, ...]] = {"schedule": SCHEDULES, "cp_kind": CP_KINDS, "offload": OFFLOADS}
WHERE = "fixed"


def read_fixed(given: Mapping[str, Any], template: Request) -> Fixed:
    """The fixed axes as tuples of values, each of which is legal alone. Raises UserError."""
    fixed: dict[str, tuple[Any, ...]] = {}
    for key, value in given.items():
        if key in ELSEWHERE:
            raise UserError(f"{key} is not an axis of the search", WHERE, f"give {key} itself")
        if key not in AXES:
            raise unknown("axis", key, AXES, WHERE)
        if value is None:
            continue
        values = as_tuple(value)
        if not values:
            raise UserError(f"{key} is fixed to nothing", WHERE, f"give {key} a value, or leave it out")
        for item in values:
            _check_type(key, item)
            _check_value(key, item, template)
        fixed[key] = values
    return fixed


def as_tuple(value: Any) -> tuple[Any, ...]:
    """The values of an axis that is fixed to one, or to several."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _check_type(key: str, value: Any) -> None:
    """Raises UserError for a value that the axis has in no run."""
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
    """Raises UserError for a fixed value that the trainer doesn't support; the error lists those it does."""
    for key, values in fixed.items():
        for value in values:
            if not trainer.allows(key, value):
                allowed = " or ".join(map(str, trainer.axes[key]))
                raise UserError(f"{trainer.trainer} has no {key} {kind_of(value)}", WHERE, f"use {key} {allowed}")


def _check_value(key: str, value: Any, template: Request) -> None:
    """Raises UserError when no layout of this run can have the value; the error lists the nearest others."""
    options = _options(key, template)
    if options is None or value in options:
        return
    keys = {"devices": template.devices, key: value} | ({"sp": False} if key == "tp" else {})
    why = f"{key} {value} does not divide devices {template.devices}"
    if key in ("ep", "etp") and template.model.moe is None:
        why = f"{key} {value} but this model has no experts"
    elif key not in ("dp", "dp_replicate") and template.devices % value == 0:
        try:
            check_layout(Layout.parse(keys), template.model, template.seq_len)
        except UserError as error:
            why = error.what
    raise UserError(why, f"{WHERE}: {key}", f"use {key} {_nearest(options, value)}")


def _nearest(options: Iterable[int], value: int) -> str:
    """The five options nearest to a value, ascending."""
    near = sorted(options, key=lambda option: (abs(option - value), option))[:5]
    return " or ".join(map(str, sorted(near)))


def _options(key: str, template: Request) -> tuple[int, ...] | None:
    """The legal values of an axis alone; None where they depend on the other axes."""
    moe, sizes = template.model.moe, divisors(template.devices)
    match key:
        case "tp":
            return tensor_sizes(template)
        case "pp":
            return tuple(size for size in sizes if size <= template.model.num_hidden_layers)
        case "cp":
            return tuple(size for size in sizes if template.seq_len % size == 0)
        case "dp" | "dp_replicate":
            return sizes
        case "ep" | "etp":
            return (1,) if moe is None else divisors(moe.num_experts if key == "ep" else moe.moe_intermediate_size)
    return None


def no_layout(template: Request, global_batch: int, fixed: Fixed) -> UserError:
    """The error for an empty space: names a fixed axis that can be changed, or a batch that works."""
    what = "no legal layout has " + ", ".join(f"{key} {_text(values)}" for key, values in fixed.items())
    for key in fixed:
        space = make_space(template, global_batch, {k: v for k, v in fixed.items() if k != key})
        if space.size:
            return UserError(what, WHERE, _instead(key, fixed[key], space))
    if fixed and make_space(template, global_batch, {}).size:
        return UserError(what, WHERE, "fix fewer of them")
    return _batch_error(template, global_batch)


def _text(values: tuple[Any, ...]) -> str:
    return " or ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)


def _instead(key: str, given: tuple[Any, ...], space: Space) -> str:
    """A fix for one axis: values that are legal with the other fixed axes."""
    if key in space.core and isinstance(given[0], int) and not isinstance(given[0], bool):
        near = _nearest(set(space.core[key].tolist()), given[0])
        return f"beside the others {key} may be {near}"
    return f"leave {key} {_text(given)} out"


def _batch_error(template: Request, global_batch: int) -> UserError:
    """The error for a batch that no layout can divide over the devices."""
    devices, layers = template.devices, template.model.num_hidden_layers
    shapes = [t * p for t in tensor_sizes(template) for p in divisors(devices) if p <= layers]
    ranks = sorted({devices // size for size in shapes if devices % size == 0})
    least = ranks[0] if ranks else devices
    batch = max(1, round(global_batch / least)) * least
    what = f"global_batch {global_batch} can't be dealt to {devices} devices: no tp, pp leave a dp for it"
    return UserError(what, "layout", f"use global_batch {batch}, or a number of devices with small divisors")
