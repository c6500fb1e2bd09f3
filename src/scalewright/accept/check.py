"""The findings of a new cluster's checks, and whether it is accepted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scalewright.spec.finding import Finding

checked = partial(Finding, "acceptance")
STATES = {"ok": "passed", "note": "skipped", "warn": "warned", "problem": "failed"}  # of --json and the page


def timed(check: Finding, start: float) -> Finding:
    """The same with its duration, from `start` of perf_counter on."""
    return replace(check, seconds=round(time.perf_counter() - start, 2))


@dataclass(frozen=True)
class Acceptance:
    """Every check of one run on one cluster."""

    run: str
    about: Mapping[str, Any]  # layout, device, world, hosts, versions, time
    checks: Sequence[Finding]

    @property
    def ok(self) -> bool:
        """Whether no check failed; a warning doesn't keep a run from starting."""
        return all(check.severity != "problem" for check in self.checks)

    @property
    def seconds(self) -> float:
        return sum(check.seconds for check in self.checks)

    def dump(self) -> dict[str, object]:
        """Plain data for --json."""
        checks = [
            {
                "name": check.rule, "state": STATES[check.severity], "words": check.what, "fix": check.how,
                "figures": check.data, "seconds": check.seconds,
            }
            for check in self.checks
        ]  # fmt: skip
        return {"run": self.run, "ok": self.ok, "seconds": round(self.seconds, 1), **self.about, "checks": checks}
