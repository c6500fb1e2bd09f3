"""The findings of an examination: facts, each with its severity and how to fix it.

ok       as it should be
note     worth knowing, nothing to fix; also "cannot tell here", which is an answer too
warn     it works, but slower or less safely than it could
problem  a run will fail on it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["ok", "note", "warn", "problem"]
SEVERITIES: tuple[Severity, ...] = ("ok", "note", "warn", "problem")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    group: str
    name: str
    severity: Severity
    what: str
    fix: str = ""  # where something is wrong
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """Everything that was looked at, in the order of a printed page."""

    findings: tuple[Finding, ...]
    versions: dict[str, str | None]
    seconds: float
    looks: int | None = None  # null: a finding each

    @property
    def worst(self) -> Severity:
        return max((finding.severity for finding in self.findings), key=SEVERITIES.index, default="ok")

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(finding.group for finding in self.findings))

    def of(self, group: str) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.group == group)

    def dump(self) -> dict[str, Any]:
        """Plain data: `{worst, counts, versions, findings, seconds}`."""
        counts = {name: sum(finding.severity == name for finding in self.findings) for name in SEVERITIES}
        return {
            "worst": self.worst,
            "counts": counts,
            "versions": dict(self.versions),
            "findings": [
                {"mend" if key == "fix" else key: value for key, value in asdict(finding).items()}
                for finding in self.findings
            ],
            "seconds": round(self.seconds, 3),
        }


def guarded(group: str, name: str, check: Callable[[], Finding | Iterable[Finding] | None]) -> list[Finding]:
    """The findings of `check`; where it can't look (another system, no permission), an honest note."""
    try:
        findings = check()
    except Exception as error:  # a look at a machine must never stop the examination
        reason = str(error).splitlines()[0][:120] if str(error) else ""
        detail = type(error).__name__ + (f": {reason}" if reason else "")
        return [Finding(group, name, "note", f"cannot tell here ({detail})")]
    if findings is None:
        return []
    return [findings] if isinstance(findings, Finding) else list(findings)


def gib(count: float) -> str:
    """Bytes as GiB, for people."""
    return f"{count / 2**30:.1f} GiB"
