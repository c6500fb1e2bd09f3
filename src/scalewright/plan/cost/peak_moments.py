"""A moment of a step when a rank may hold the most, and what an outer step adds to all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from scalewright.plan.cost.states import States
from scalewright.plan.cost.table import Facts, Table
from scalewright.spec.memory import FP32


@dataclass(frozen=True)
class Kept:
    """Bytes that an average block keeps of a micro-batch, and more while its backward runs."""

    block: np.ndarray
    rebuilt: np.ndarray
    last: np.ndarray  # what a stage's last block keeps


@dataclass(frozen=True)
class Moment:
    """Bytes beside parameters and optimizer states, a number a row."""

    activations: np.ndarray
    buffers: np.ndarray
    gradients: np.ndarray
    other: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """Their sum."""
        return np.asarray(self.activations + self.buffers + self.gradients + self.other)


def with_outer(table: Table, facts: Facts, held: States, moments: tuple[Moment, ...]) -> tuple[Moment, ...]:
    """The moments of a rank of an island: an outer step's own beside them, and what overlapped ones add.

    train/diloco.py: a fragment's difference to the outer weights, in fp32. Where less than fp32 travels,
    `Mean` (parallel/wire.py) has a padded sum, its packed form, and that unpacked, beside it.
    """
    there = (facts.trainers["inner_steps"][table.unit] > 0) & (table.dp_replicate > 1)
    if not there.any():
        return moments
    fragments, narrow, wire, flying = (
        facts.trainers[name][table.unit] for name in ("fragments", "narrow", "wire_bytes", "under_way")
    )
    part = np.where(there, held.gradients / FP32 / fragments, 0.0)  # numbers: gradients are fp32
    made = narrow * part * (2 * FP32 + 2 * wire)
    way = flying * part * (FP32 + narrow * 2 * wire)
    nothing = np.zeros(len(table))
    outer = Moment(nothing, part * FP32 + narrow * part * wire, held.gradients * there, made)
    return (*(replace(moment, buffers=moment.buffers + way) for moment in moments), outer)
