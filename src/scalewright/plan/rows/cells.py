"""The cells of a row: numbers, text and options, checked; what is assumed for blanks; a layout where none is stated.

{"tp": "8", "vocab": "", "options": "node_gbps=400;compile=1"}          units: plan/data/README.md

usual layouts   tp 1 2 4 8 x pp 1 2 4 8 16 x micro-batch 1 2 4 x ep, batch as stated or by default; FSDP on TPUs
                and in trainers that use it, else a sharded optimizer: the fastest that fits
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from scalewright.plan.chips import constants_of
from scalewright.plan.cost.evaluate import evaluate, prepare
from scalewright.plan.request import Request
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
    if cell is None:
        return None
    try:
        value = _parse(cell) if isinstance(cell, str) else float(cell)
    except (TypeError, ValueError):
        raise UserError(f"{key} is {cell!r}", "row", "give a number, or leave it blank") from None
    if value is None:
        return None
    if not math.isfinite(value) or not 0 <= value <= LARGEST:
        raise UserError(f"{key} is {cell}", "row", "give a finite number of a sensible size")
    return value


@lru_cache(maxsize=8192)
def _parse(cell: str) -> float | None:
    """A written number, None for a blank; some tables write a blank as "nan"."""
    word = cell.strip().lower()
    value = math.nan if word in BLANKS else float(word)
    return None if math.isnan(value) else value


def text(row: Row, key: str) -> str:
    """A cell as text; "" for a blank."""
    value = row.get(key)
    return "" if value is None else str(value).strip()


def check_sizes(row: Row) -> None:
    """Raises UserError for a size that is no whole number within its limits."""
    for key, most in MOST.items():
        value, least = number(row, key), 0 if key in MAY_BE_ZERO else 1
        if value is not None and (value != int(value) or not least <= value <= most):
            raise UserError(f"{key} is {value:g}", "row", f"give a whole number from {least} to {most}")


def read_options(cell: str) -> dict[str, str]:
    """`key=value;key=value` as a dict; raises UserError where a number isn't one."""
    parts = (part.partition("=") for part in cell.split(";"))
    options = {key.strip(): word.strip() for key, _, word in parts if key.strip()}
    for key in (*WHOLE_OPTIONS, "recompute_share"):
        value = number(options, key) if key in options else 1.0
        least = 0 if key in OPTIONS_FROM_ZERO else 1
        if value is None or value < least or (key in WHOLE_OPTIONS and value != int(value)):
            raise UserError(f"option {key} is '{options[key]}'", "row", "give a number above 0")
    return options


def best_usual(bare: Sequence[tuple[Request, Mapping[str, Any]]]) -> list[Request]:
    """Each request (given with its row) in its fastest usual layout that fits; the leanest if none does."""
    candidates = [list(_candidates(r, number(row, "gbs"), number(row, "mbs"))) or [r] for r, row in bare]
    c = constants_of(request.chip for request, _ in bare)
    outcome = evaluate(prepare([r for group in candidates for r in group], c), c)
    ends = np.cumsum([len(group) for group in candidates])[:-1]
    columns = (np.split(x, ends) for x in (outcome.step.seconds, outcome.memory.fits, outcome.memory.peak))
    chosen = []
    for (request, _), group, seconds, fits, peak in zip(bare, candidates, *columns, strict=True):
        rate = np.array([r.global_batch for r in group]) / seconds
        best = np.argmax(np.where(fits, rate, 0.0)) if fits.any() else np.argmin(peak)
        chosen.append(_noted(request, group[int(best)]))
    return chosen


def _noted(request: Request, chosen: Request) -> Request:
    """The chosen request, with the layout among its assumptions."""
    words = f"layout tp {chosen.tp}, pp {chosen.pp}, zero {chosen.zero_stage}, mbs {chosen.micro_batch}"
    words += (f", ep {chosen.ep}" if chosen.ep > 1 else "") + " (the planner's choice)"
    replaced = ("tp ", "pp ", "cp ", "mbs ", "gbs ", "sharding")
    kept = [line for line in request.assumed if not line.startswith(replaced)]
    return replace(chosen, assumed=(*kept, words))


def _candidates(request: Request, batch: float | None, mbs: float | None) -> Iterator[Request]:
    model, torus = request.model, request.chip.kind == "tpu"
    for tp, pp in product((1,) if torus else (1, 2, 4, 8), (1,) if torus else (1, 2, 4, 8, 16)):
        if request.devices % (tp * pp) or pp > model.num_hidden_layers or tp > model.num_attention_heads:
            continue
        dp = request.devices // (tp * pp)
        sharded = torus or (pp == 1 and tp == 1 and request.framework.zero_stage == 3)
        sp, stage = tp > 1 and request.framework.sequence_parallel, 3 if sharded else 1
        shape = replace(request, tp=tp, pp=pp, sp=sp, zero_stage=stage)
        for micro in (int(mbs),) if mbs else (1, 2, 4):
            total = batch or micro * dp * (4 * pp if pp > 1 else 1)
            if total < micro * dp:
                continue
            batched = replace(shape, micro_batch=micro, accumulation=total / (micro * dp))
            for chunks, ep in product(_chunks(request, pp), _experts(request, dp)):
                yield replace(batched, virtual_stages=chunks, schedule="interleaved" if chunks > 1 else "1f1b", ep=ep)


def _experts(request: Request, dp: int) -> list[int]:
    """Sizes of ep: the stated one, else those that divide the experts and the ranks."""
    moe = request.model.moe
    if moe is None or request.ep > 1:
        return [request.ep]
    return [ep for ep in (1, 4, 8, 16, 32, 64) if moe.num_experts % ep == 0 and dp % ep == 0]


def _chunks(request: Request, pp: int) -> list[int]:
    """Virtual stages that Megatron's recipes use; other trainers run one stage per rank."""
    layers = request.model.num_hidden_layers
    wide = pp > 1 and request.framework.kernels == "modern"
    return [1, *(v for v in (2, 4, 6) if wide and layers % (pp * v) == 0)]
