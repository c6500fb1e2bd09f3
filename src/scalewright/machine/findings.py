"""The findings of an examination of this machine, as a page and as `--json`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scalewright.spec.common.formatting import gib as in_gib
from scalewright.spec.errors import SEVERITIES, Finding, Severity, worst

KEYS = {  # of --json -> of a finding
    "group": "subject", "name": "rule", "severity": "severity", "what": "what", "mend": "how", "data": "data"
}  # fmt: skip


@dataclass(frozen=True)
class Report:
    """Everything that was looked at, in the order of a printed page."""

    findings: tuple[Finding, ...]
    versions: dict[str, str | None]
    seconds: float
    looks: int | None = None  # null: a finding each
    unasked: str = ""  # what matters and couldn't be looked at here, with what to do

    @property
    def worst(self) -> Severity:
        return worst(self.findings)

    @property
    def checks(self) -> int:
        """The number of looks."""
        return len(self.findings) if self.looks is None else self.looks

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(finding.subject for finding in self.findings))

    def of(self, group: str) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.subject == group)

    @property
    def counts(self) -> dict[Severity, int]:
        """Findings of each severity."""
        return {name: sum(finding.severity == name for finding in self.findings) for name in SEVERITIES}

    def dump(self) -> dict[str, object]:
        """Plain data: `{worst, ready, unasked, counts, versions, findings, seconds}`."""
        return {
            "worst": self.worst,
            "ready": self.worst != "problem" and not self.unasked,
            "unasked": self.unasked,
            "counts": self.counts,
            "versions": dict(self.versions),
            "findings": [{key: getattr(finding, name) for key, name in KEYS.items()} for finding in self.findings],
            "seconds": round(self.seconds, 3),
        }


def guarded(group: str, name: str, check: Callable[[], Finding | Iterable[Finding] | None]) -> list[Finding]:
    """The findings of `check`; where it can't look (another system, no permission), an honest note."""
    try:
        findings = check()
    except Exception as error:  # a look at a machine must never stop the examination
        detail = ": ".join([type(error).__name__, *(line[:120] for line in str(error).splitlines()[:1] if line)])
        return [Finding(group, name, "note", f"cannot tell here ({detail})")]
    return [findings] if isinstance(findings, Finding) else list(findings or ())


def gib(count: float) -> str:
    """Bytes as GiB, for people."""
    return in_gib(count / 2**30)
