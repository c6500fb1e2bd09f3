"""Reads and checks the cells of a row: numbers, text and options; collects the assumptions for blanks.

    {"tp": "8", "vocab": "", "options": "node_gbps=400;compile=1"}

Units of the columns: plan/data/README.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from scalewright.spec.errors import UserError

Row = Mapping[str, Any]
BLANKS = ("", "unknown", "none", "null")  # as is "nan"
LARGEST = 1e15
# The largest value of a cell; a larger one is a typo.
MOST = {
    "layers": 2000, "hidden": 10**6, "heads": 10**5, "kv_heads": 10**5, "head_dim": 10**5, "ffn": 10**7,
    "vocab": 10**8, "seq": 10**8, "experts": 10**5, "topk": 10**4, "n_devices": 10**7, "mbs": 10**6,
    "gbs": 10**9, "vpp": 10**4, "dp": 10**7, "tp": 10**5, "pp": 10**5, "cp": 10**5, "ep": 10**5,
}  # fmt: skip
MAY_BE_ZERO = ("experts", "topk", "vpp")
# Options for the model or the layout, whole numbers; plan/switches.py has the switches
WHOLE_OPTIONS = ("ici_fsdp", "slices", "etp", "shared_ffn", "moe_every", "dense_ffn", "dense_layers", "mtp")
ROW_OPTIONS = (*WHOLE_OPTIONS, "recompute_share", "parallel_block", "hybrid", "schedule")
OPTIONS_FROM_ZERO = ("dense_layers", "mtp", "recompute_share", "shared_ffn")


class Assumptions(list[str]):
    """The assumptions for one row, in words."""

    def fill(self, row: Row, key: str, value: int, why: str = "") -> int:
        """The cell as a whole number; for a blank `value`, which is added to the assumptions."""
        given = number(row, key)
        if given is not None:
            return int(given)
        self.append(f"{key} {value}" + (f" ({why})" if why else ""))
        return value


def number(row: Row, key: str) -> float | None:
    """A cell as a number; None for a blank. Raises UserError for anything else."""
    cell = row.get(key)
    if cell is None or cell == "":
        return None
    try:
        value = float(cell)
    except (TypeError, ValueError):
        if str(cell).strip().lower() in BLANKS:
            return None
        raise UserError(f"{key} is {cell!r}", "row", "give a number, or leave it blank") from None
    if value != value and isinstance(cell, str):
        return None  # some tables write a blank as "nan"
    if not math.isfinite(value) or not 0 <= value <= LARGEST:
        raise UserError(f"{key} is {cell}", "row", "give a finite number of a sensible size")
    return value


def text(row: Row, key: str) -> str:
    """A cell as text; "" for a blank."""
    value = row.get(key)
    return "" if value is None else str(value).strip()


def check_sizes(row: Row) -> None:
    """Raises UserError for a size that is no whole number within its limits."""
    for key, most in MOST.items():
        value = number(row, key)
        least = 0 if key in MAY_BE_ZERO else 1
        if value is not None and (value != int(value) or not least <= value <= most):
            raise UserError(f"{key} is {value:g}", "row", f"give a whole number from {least} to {most}")


def read_options(cell: str) -> dict[str, str]:
    """`key=value;key=value` as a dict; raises UserError where a number isn't one."""
    options: dict[str, str] = {}
    for part in cell.split(";"):
        key, _, word = part.partition("=")
        if key.strip():
            options[key.strip()] = word.strip()
    for key in (*WHOLE_OPTIONS, "recompute_share"):
        value = number(options, key) if key in options else 1.0
        least = 0 if key in OPTIONS_FROM_ZERO else 1
        if value is None or value < least or (key in WHOLE_OPTIONS and value != int(value)):
            raise UserError(f"option {key} is '{options[key]}'", "row", "give a number above 0")
    return options
