"""What a look at a machine, a start or a new cluster found: doctor, preflight and accept have one record.

ok       as it should be
note     worth knowing, nothing to fix; also "cannot tell here", which is an answer too
warn     it works, but slower or less safely than it could
problem  a run fails on it: it doesn't start, and a cluster isn't accepted
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["ok", "note", "warn", "problem"]
SEVERITIES: tuple[Severity, ...] = ("ok", "note", "warn", "problem")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    subject: str  # of the rule: network, storage, ...
    rule: str
    severity: Severity
    what: str
    how: str = ""  # to mend it, where something is wrong
    data: Mapping[str, Any] = field(default_factory=dict)  # figures
    where: str = ""
    hosts: tuple[str, ...] = ()  # of several nodes: those that it was found on
    seconds: float = 0.0  # that the look took

    @property
    def place(self) -> str:
        """Where it is, with the names of nodes."""
        names = ", ".join(self.hosts[:3]) + (f" and {len(self.hosts) - 3} more" if self.hosts[3:] else "")
        return f"{self.where} on {names}" if names else self.where

    @property
    def line(self) -> str:
        """WHAT is wrong (WHERE): HOW to mend it."""
        return f"{self.what} ({self.place}): {self.how}"


def worst(findings: Iterable[Finding]) -> Severity:
    """The severity of the gravest; ok without any."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default="ok")
