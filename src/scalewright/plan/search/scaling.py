"""Strong scaling of a run: the best layout of each device count, and the serial share of the work.

    seconds(n) ~ w (s + (1 - s) / n)      Amdahl 1967: s is the serial share of one device's work w
                                          fitted by least squares on relative errors over the counts that fit

`serial_part`: the parts of a step that are farthest from perfect scaling. Near the given count and batch the same run
may be faster (`nearby`); one search per candidate, where the count isn't a power of two of whole nodes or doesn't
divide the batch:

100 devices, 512 sequences: 25 does not divide 512, so that only pipelines of 25 stages use all devices
    96 devices: 1.9 times the tokens/s                 500 sequences on all 100: likewise
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from scalewright.plan.records import Curve, Nearby, ScalingRow, SerialPart
from scalewright.plan.search.branch_and_bound import Stop, Tell
from scalewright.plan.search.choices import Plan
from scalewright.plan.search.objective import Goal
from scalewright.plan.search.search import Choice, better_than, search
from scalewright.spec.errors import UserError
from scalewright.spec.question import Question
from scalewright.spec.step_parts import PART_TERMS

MIN_GAIN = 0.05  # of tokens/s: smaller gains aren't reported
MIN_SHARE = 0.75  # of the devices and of the batch that a candidate keeps
MAX_COUNTS = 3


def scaling(
    question: Question, goal: Goal, counts: Sequence[int], stop: Stop | None = None, tell: Tell | None = None
) -> dict[str, object]:
    """The best layout of every count at one global batch: `scaling` of `plan --json`, with the keys of a `Curve`.

    `tell` is called as each count's search goes.
    """
    if not counts:
        raise UserError("no device counts to plan for", "scaling", "give a range such as 8..4096")
    searched: dict[int, Choice | UserError] = {}
    for devices in counts:
        if stop is not None and stop():
            break
        try:
            plan = search(question, replace(goal, devices=devices, top=1), tell=tell, stop=stop, explain=False)
            searched[devices] = plan.best[0]
        except UserError as error:
            searched[devices] = error
    fitting = {devices: choice for devices, choice in searched.items() if isinstance(choice, Choice)}
    if not fitting:
        how = str([*searched.values()][-1]) if searched else "let it run on"
        raise UserError("no count has a layout that fits", "scaling", how)
    base, first = next(iter(fitting.items()))
    rows = [_row(devices, choice, base, first) for devices, choice in searched.items()]
    return {"global_batch": goal.global_batch, "rows": rows, **_fit_curve(fitting)}


def _row(devices: int, choice: Choice | UserError, base: int, first: Choice) -> ScalingRow:
    """One device count: the best layout and its gain over `first` on `base` devices, or why there is none."""
    if isinstance(choice, UserError):
        nothing = dict.fromkeys(("step_time_s", "tokens_per_s", "speedup", "efficiency", "prediction"))
        return ScalingRow(**{"devices": devices, "problem": str(choice), **nothing})  # type: ignore[typeddict-item]
    prediction = choice.prediction
    speedup = first.prediction.step_time_s / prediction.step_time_s
    return {
        "devices": devices,
        "step_time_s": prediction.step_time_s,
        "tokens_per_s": prediction.tokens_per_s,
        "speedup": speedup,
        "efficiency": speedup * base / devices,
        "problem": None,
        "prediction": choice.dump(),
    }


def _fit_curve(fitting: Mapping[int, Choice]) -> Curve:
    """Amdahl's law fitted to the times of the counts that fit."""
    if len(fitting) < 2:
        return Curve(serial_share=None, one_device_s=None, fit_error=None, limit=None, serial_part=[])
    n = np.array(list(fitting), dtype=float)
    seconds = np.array([choice.prediction.step_time_s for choice in fitting.values()])
    constant, work = fit_amdahl(n, seconds)
    (few, first), *_, (many, last) = fitting.items()
    return {
        "serial_share": constant / (constant + work),
        "one_device_s": constant + work,
        "fit_error": float(np.abs((constant + work / n) / seconds - 1).max()),
        "limit": (constant + work) / constant if constant else None,
        "serial_part": _serial_parts(few, first, many, last),
    }


def fit_amdahl(n: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """a and b of a + b / n, neither below zero, by least squares on relative errors."""
    columns = np.stack([np.ones_like(n), 1 / n], 1) / seconds[:, None]
    (constant, work), *_ = np.linalg.lstsq(columns, np.ones_like(n), rcond=None)
    if constant < 0:
        inverse = 1 / (n * seconds)
        constant, work = 0.0, inverse.sum() / (inverse**2).sum()
    elif work < 0:
        inverse = 1 / seconds
        constant, work = inverse.sum() / (inverse**2).sum(), 0.0
    return float(constant), float(work)


def _serial_parts(few: int, first: Choice, many: int, last: Choice) -> list[SerialPart]:
    """Seconds by which the parts of the last step exceed perfect scaling of the first, largest first."""
    before, after = first.prediction.breakdown, last.prediction.breakdown
    above = {part: after[part] - before[part] * few / many for part in after}
    total = sum(value for value in above.values() if value > 0)
    order = sorted((part for part in above if above[part] > 0.01 * total), key=lambda part: -above[part])
    return [
        SerialPart(part=part, words=PART_TERMS[part], seconds=above[part], share=above[part] / total) for part in order
    ]


def nearby(plan: Plan) -> list[Nearby]:
    """The device count and the batch that gain most, if they gain; largest gain first."""
    rate = plan.best[0].prediction.tokens_per_s
    largest: dict[bool, Nearby] = {}
    for devices, batch in _candidates(plan.goal.devices, plan.goal.global_batch, plan.template.chip.node):
        # a score is seconds, or in proportion to them and the devices; joules of another run have no such bound
        slowest = plan.best[0].score * (batch / plan.goal.global_batch) / (1 + MIN_GAIN)
        slowest *= {"time": 1.0, "energy": inf}.get(plan.objective.name, devices / plan.goal.devices)
        best = better_than(plan, slowest * (1 + 1e-9), usual=True, devices=devices, global_batch=batch)
        if best is None:
            continue
        candidate: Nearby = {
            "devices": devices,
            "global_batch": batch,
            "step_time_s": best.prediction.step_time_s,
            "tokens_per_s": best.prediction.tokens_per_s,
            "gain_pct": 100 * (best.prediction.tokens_per_s / rate - 1),
            "layout": best.keys,
        }
        same_count = devices == plan.goal.devices
        if candidate["gain_pct"] >= (largest[same_count]["gain_pct"] if same_count in largest else 100 * MIN_GAIN):
            largest[same_count] = candidate
    return sorted(largest.values(), key=lambda candidate: -candidate["gain_pct"])


def _candidates(devices: int, batch: int, node: int) -> Iterator[tuple[int, int]]:
    """(devices, batch) to search: multiples of 1, 2, 4 ... nodes; the nearest batch that devices divide."""
    sizes = (node << power for power in range((devices // node).bit_length()))
    multiples = dict.fromkeys(devices // size * size for size in sizes)
    counts = [count for count in multiples if MIN_SHARE * devices <= count < devices][:MAX_COUNTS]
    yield from ((count, batch) for count in sorted(counts, reverse=True))
    near = round(batch / devices) * devices
    if batch % devices and near and abs(near - batch) <= (1 - MIN_SHARE) * batch:
        yield devices, near
