"""A rule: when it is asked, what it needs, and a function that looks at the facts.

@network.rule("port-taken", "problem", "...", "torch.distributed: TCPStore", at=("meeting",))
def port_taken(facts: Facts) -> Said | None: ...

at       meeting   before ranks meet, on each of them: what would keep them from it
         node      once a node, where ranks run
         nodes     by what all nodes reported
         submit    where a job is written

problem  the start would fail or hang, or its work would be lost: it doesn't start
warn     it works, but slower or less safely
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from scalewright.launch.preflight.facts import NEEDS, Facts
from scalewright.spec.errors import Finding, Severity

Moment = Literal["meeting", "node", "nodes", "submit"]
Moments = tuple[Moment, ...]


@dataclass(frozen=True)
class RuleFailure:
    """What a rule says of the facts: what is wrong, where, and how to mend it."""

    what: str
    where: str
    how: str


@dataclass(frozen=True)
class Rule:
    """A row of docs/preflight.md."""

    name: str
    subject: str
    severity: Severity
    title: str  # what it looks for
    source: str  # of its claim
    at: Moments
    needs: tuple[str, ...]  # names of NEEDS: without them it isn't asked
    check: Callable[[Facts], RuleFailure | None]

    def look(self, facts: Facts) -> Finding | None:
        """What it finds; None where all is well, or where it doesn't apply."""
        if not all(NEEDS[need](facts) for need in self.needs):
            return None
        failure = self.check(facts)
        if failure is None:
            return None
        return Finding(self.subject, self.name, self.severity, failure.what, failure.how, where=failure.where)


class Subject:
    """The rules of a file, in their order."""

    def __init__(self, name: str) -> None:
        self.name, self.rules = name, list[Rule]()

    def rule(
        self,
        name: str,
        severity: Severity,
        title: str,
        source: str,
        *,
        at: Moments = ("node", "submit"),
        needs: tuple[str, ...] = (),
    ) -> Callable[[Callable[[Facts], RuleFailure | None]], Callable[[Facts], RuleFailure | None]]:
        """Makes a rule of the function below it."""

        def add(check: Callable[[Facts], RuleFailure | None]) -> Callable[[Facts], RuleFailure | None]:
            self.rules.append(Rule(name, self.name, severity, title, source, at, needs, check))
            return check

        return add
