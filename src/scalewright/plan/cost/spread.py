"""The band of a prediction: the standard deviation of log seconds, by what isn't known of a run.

    base; a trainer that nobody knows, or knows and never measured; recomputation, layout or shapes that nobody stated;
    experts; the share of the step that links and hosts have; features that no run has; devices and families of
    devices that no run has; constants that one source of the table alone identifies

Deviations add up in squares. Each is a constant of `band`, read off errors on what was left out of a fit. Where runs
are left out, `Unseen` says what the others lack, so that a band is as wide as for a run that comes tomorrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scalewright.plan.constants import Constants, facts
from scalewright.plan.cost.columns import Columns
from scalewright.plan.cost.timeline import Step
from scalewright.plan.features import measured, never
from scalewright.plan.frameworks import HOSTS, KERNELS
from scalewright.plan.request import Request
from scalewright.spec.hardware.device_families import PRICED, Family
from scalewright.spec.hardware.devices import load_device
from scalewright.spec.hardware.topology import FABRICS

# Assumptions that move the time much: layout, batch, shape
HEAVY = ("tp ", "pp ", "mbs ", "gbs ", "shape ", "layers ", "layout", "seq ", "heads ")


@dataclass(frozen=True)
class Unseen:
    """Masks of the rows whose device, its family, or trainer no run has."""

    device: np.ndarray
    family: np.ndarray
    trainer: np.ndarray


def unseen(requests: Sequence[Request]) -> Unseen:
    """What the bundled table lacks of these."""
    return Unseen(
        device=np.array([request.chip.name not in measured().chips for request in requests], dtype=bool),
        family=np.array([request.chip.family.kernels not in _measured_kernels() for request in requests], dtype=bool),
        trainer=np.array([not request.framework.measured for request in requests], dtype=bool),
    )


def spread(
    step: Step, requests: Sequence[Request], unknown: np.ndarray, c: Constants, new: Unseen
) -> dict[str, np.ndarray]:
    """Standard deviations of log seconds by cause, a number a row; `unknown`: rows that state no recomputation."""
    at, parts = step.at, step.parts
    links = sum(parts[name] for name in ("tp_exposed", "dp_exposed", "cp_exposed", "ep_exposed", "pp_exposed"))
    wide = np.where(at.table.devices > at.chip.domain, 1.0, 0.5)
    alike = np.array([request.chip.timings is None for request in requests])  # others' own probe says enough
    guesses = np.array([sum(line.startswith(HEAVY) for line in r.assumed) for r in requests], dtype=float)
    causes = {
        "base": np.ones(len(at.table)),
        "trainer": 1 - at.trainer.known,
        "unmeasured": (at.trainer.known > 0) & new.trainer & alike,
        "recompute": unknown,
        "experts": at.work.sparse > 0,
        "links": links / step.seconds * wide,
        "host": np.minimum(step.host, 1.0),
        "guess": np.sqrt(guesses),
        "feature": np.sqrt([len(never(r)) for r in requests]) * alike,
        "device": new.family & alike,
        "sibling": new.device & alike,
        "alone": _alone(at) & alike,
    }
    return {name: c[f"band.{name}"] * share for name, share in causes.items()}


def _alone(at: Columns) -> np.ndarray:
    """Rows that are priced by a constant which one source of the table alone identifies."""
    mask = np.zeros(len(at.table), dtype=bool)
    for fact in facts():
        if fact.one_source and (uses := _uses(*fact.name.split(".", 1))) is not None:
            mask |= np.asarray(uses(at), dtype=bool)
    return mask


def _uses(group: str, name: str) -> Callable[[Columns], np.ndarray] | None:
    """Which rows a constant has a part in, of those that few rows use."""
    if group in ("matmul", "attention"):
        return lambda at: at.chip.priced == PRICED.index(name)
    if group == "passes":
        return lambda at: at.trainer.kernels == KERNELS.index(name)
    if group in ("exchange", "dispatch"):
        return lambda at: (at.chip.fabric == FABRICS.index(name)) & (at.table.ep > 1)
    if group == "host" and name in HOSTS:
        return lambda at: at.trainer.host == HOSTS.index(name)
    return {
        "narrow.bits8": lambda at: at.chip.width == 2,
        "narrow.bits4": lambda at: at.chip.width == 3,
        "narrow.blackwell8": lambda at: (at.chip.width == 2) & (at.chip.bound_by_power > 0),
        "kernel.exponentials": lambda at: at.chip.fast_exponentials > 0,
        "shape.reuse": lambda at: at.chip.tpu > 0,
        "shape.grouped": lambda at: at.work.sparse > 0,
        "shape.expert_rows": lambda at: at.work.sparse > 0,
    }.get(f"{group}.{name}")


@lru_cache(maxsize=1)
def _measured_kernels() -> frozenset[Family]:
    """The families whose constants were fitted on, or compared with, step times of some device."""
    return frozenset(load_device(name).resolved_family.kernels for name in measured().chips)
