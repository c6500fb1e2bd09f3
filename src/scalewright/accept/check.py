"""What a check found, and whether the cluster is accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

State = Literal["passed", "warned", "failed", "skipped"]


@dataclass(frozen=True)
class Check:
    """One line of the page. `fix` is what to do about a warning or a failure; `figures` are its numbers."""

    name: str
    state: State
    words: str
    fix: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def took(self, seconds: float) -> Check:
        """The same, with its duration."""
        return replace(self, seconds=round(seconds, 2))


@dataclass(frozen=True)
class Acceptance:
    """Every check of one run on one cluster."""

    run: str
    about: Mapping[str, Any]  # layout, device, world, hosts, versions, time
    checks: Sequence[Check]

    @property
    def ok(self) -> bool:
        """Whether no check failed; a warning doesn't keep a run from starting."""
        return all(check.state != "failed" for check in self.checks)

    @property
    def seconds(self) -> float:
        return sum(check.seconds for check in self.checks)

    def dump(self) -> dict[str, Any]:
        """Plain data for --json."""
        checks = [asdict(check) for check in self.checks]
        return {
            "run": self.run,
            "ok": self.ok,
            "seconds": round(self.seconds, 1),
            **self.about,
            "checks": checks,
        }
