"""A cause with its evidence and the gain of its fix; what rules in several files share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from scalewright.diagnose.ranks import Ranks


class Gain(NamedTuple):
    """What a fix gains, in percent of the window (of a trace) or of the time (of a log)."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True)
class Verdict:
    """A cause with its evidence, in sentences, and its fix: of whatever was read."""

    cause: str
    evidence: list[str]
    fix: str
    confidence: float | None = None  # in 0..1
    gain: Gain | None = None  # null: it isn't time that the fix gains
    more: Mapping[str, Any] = field(default_factory=dict)  # what one kind of input has: GiB saved, ranks

    @property
    def usual_gain(self) -> float:
        """The gain in percent; 0 where there is none."""
        return self.gain.p50 if self.gain else 0.0

    def dump(self) -> dict[str, object]:
        """The keys of `diagnose --json`."""
        gain = {"gain_pct": self.gain._asdict()} if self.gain else {}
        sure = {"confidence": self.confidence} if self.confidence is not None else {}
        return {"cause": self.cause, "evidence": self.evidence, **gain, "fix": self.fix, **self.more, **sure}


def evidence_of(verdict: Mapping[str, Any]) -> list[str]:
    """The lines below a dumped verdict: its evidence, and from where ranks that hang were last called."""
    frames = [f"last called from {frame}" for frame in verdict.get("frames", ()) if frame]
    return [*verdict["evidence"], *frames]


def saves(verdict: Mapping[str, Any]) -> str:
    """`saves 12% (5 to 20%)`; empty where no time is gained."""
    gain = verdict.get("gain_pct")
    return f"saves {gain['p50']:.0f}% ({gain['p10']:.0f} to {gain['p90']:.0f}%)" if gain and gain["p90"] else ""


def name(ranks: Ranks, place: int) -> str:
    """`rank 6`, or the file's name where no rank is known."""
    trace = ranks.ranks[place].trace
    return trace.path.name if trace.rank is None else f"rank {trace.rank}"


def named_ranks(ranks: Sequence[int], most: int | None = None) -> str:
    """`rank 3`, `ranks 3, 4, 9 and 12 more`: all of them without `most`."""
    rest = len(ranks) - len(ranks[:most])
    shown = ", ".join(map(str, ranks[:most])) + (f" and {rest} more" if rest else "")
    return f"{'ranks' if len(ranks) != 1 else 'rank'} {shown}"


def ratio_to_median(values: Sequence[int], place: int) -> float:
    """The median of the others over the value at a place; 1 at most."""
    others = [value for other, value in enumerate(values) if other != place]
    return min(float(np.median(others)) / max(values[place], 1), 1.0)
