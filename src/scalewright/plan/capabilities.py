"""Trainers' capabilities (spec/capabilities.py) as the planner asks for them.

A trainer that is priced as another may have an entry of its own (`of_framework`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from scalewright.plan.frameworks import OURS, Framework, framework_names
from scalewright.spec.capabilities import ABOVE_ONE, Capabilities, Rule, find_capabilities, trainers_on
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.trains import why_not_trained


def forbidden(rules: Iterable[Rule], columns: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
    """A mask of the rows that a rule forbids; rules with an axis that isn't a column are skipped."""
    mask = np.zeros(rows, dtype=bool)
    for rule in rules:
        if rule.keys() <= columns.keys():
            match = np.ones(rows, dtype=bool)
            for axis, values in rule.items():
                match &= columns[axis] > 1 if values == ABOVE_ONE else np.isin(columns[axis], list(values))
            mask |= match
    return mask


def of_framework(framework: Framework) -> Capabilities:
    """A trainer's capabilities; where it is priced as another, those of its own entry, if it has one."""
    if framework.asked not in framework_names():
        asked = find_capabilities(framework.asked)
        if asked.known:
            return asked
    return find_capabilities(framework.name)


def why_untrainable(model: ModelSpec, layout: Layout, seq_len: int, kind: str) -> str | None:
    """Why `train` can't run this on devices of this kind, in one line; None when it can."""
    ours = find_capabilities(OURS)
    if ours.runs_on(kind):
        return why_not_trained(model, layout, seq_len)
    others = " or ".join(trainers_on(kind))
    instead = f": plan with --framework {others}" if others else ""
    return f"it runs on {', '.join(ours.devices)} alone, not on a {kind}{instead}"
