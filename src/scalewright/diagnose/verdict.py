"""A cause with its evidence and the gain of its fix; what rules in several files share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalewright.diagnose.ranks import Ranks


@dataclass(frozen=True)
class Verdict:
    """A cause with its evidence, in sentences; gains in percent of the window; confidence in 0..1."""

    cause: str
    evidence: list[str]
    fix: str
    gain_p10: float
    gain_p50: float
    gain_p90: float
    confidence: float

    def dump(self) -> dict[str, object]:
        """The keys of `diagnose --json`."""
        gain = {"p10": self.gain_p10, "p50": self.gain_p50, "p90": self.gain_p90}
        return {"cause": self.cause, "evidence": self.evidence, "gain_pct": gain, "fix": self.fix,
                "confidence": self.confidence}  # fmt: skip


def name(ranks: Ranks, place: int) -> str:
    """`rank 6`, or the file's name where no rank is known."""
    trace = ranks.ranks[place].trace
    return trace.path.name if trace.rank is None else f"rank {trace.rank}"


def ratio_to_median(values: Sequence[int], place: int) -> float:
    """The median of the others over the value at a place; 1 at most."""
    others = [value for other, value in enumerate(values) if other != place]
    return min(float(np.median(others)) / max(values[place], 1), 1.0)
