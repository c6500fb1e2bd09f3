"""A rule: when it is asked, what it needs, and a function that looks at the facts.

@network.rule("port-taken", "problem", "...", "torch.distributed: TCPStore", at=("meeting",))
def port_taken(facts: Facts) -> RuleFailure | None: ...

at       meeting   before ranks meet, on each of them: what would keep them from it
         node      once a node, where ranks run
         nodes     by what all nodes reported
         submit    where a job is written

problem  the start would fail or hang, or its work would be lost: it doesn't start
warn     it works, but slower or less safely
"""

from __future__ import annotations

import re
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


Check = Callable[[Facts], RuleFailure | None]


@dataclass(frozen=True)
class Rule:
    """A row of docs/preflight-rules.md."""

    name: str
    subject: str
    severity: Severity
    title: str  # what it looks for
    source: str  # of its claim
    at: Moments
    needs: tuple[str, ...]  # names of NEEDS: without them it isn't asked
    check: Check

    def look(self, facts: Facts) -> Finding | None:
        """What it finds; None where all is well, or where it doesn't apply."""
        if not all(NEEDS[need](facts) for need in self.needs) or (failure := self.check(facts)) is None:
            return None
        return Finding(self.subject, self.name, self.severity, failure.what, failure.how, where=failure.where)


class Subject:
    """The rules of a file, in their order; `at` and `needs` of those that have none of their own."""

    def __init__(self, name: str, at: Moments = ("node", "submit"), needs: tuple[str, ...] = ()) -> None:
        self.name, self.at, self.needs, self.rules = name, at, needs, list[Rule]()

    def rule(
        self, name: str, severity: Severity, title: str, source: str, *, at: Moments | None = None,
        needs: tuple[str, ...] | None = None,
    ) -> Callable[[Check], Check]:  # fmt: skip
        """Makes a rule of the function below it."""

        def add(check: Check) -> Check:
            moments, needed = (self.at if at is None else at), (self.needs if needs is None else needs)
            self.rules.append(Rule(name, self.name, severity, title, source, moments, needed, check))
            return check

        return add

    def setting(
        self, name: str, title: str, source: str, what: str, *, needs: tuple[str, ...] | None = None, how: str = ""
    ) -> None:
        """Makes a warning of a variable that is to be unset; `what` begins with it: NAME=1 for a switch, NAME=VALUE.

        `how`: what follows the advice.
        """
        variable, value = re.split(r"[= :]", what)[:2]

        def check(facts: Facts) -> RuleFailure | None:
            text = facts.environ.get(variable, "")
            there = facts.on(variable) if value == "1" else text.upper() == value
            return RuleFailure(what, facts.where, facts.unset(variable) + how) if there else None

        self.rule(name, "warn", title, source, needs=needs)(check)
