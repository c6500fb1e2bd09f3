"""The errors with which a command ends, each one line for the user.

    UserError   the user can fix it: exit code 2, one line, no traceback
    RunError    a run failed: exit code 1, one line, the details in the run's folder
    Stopped     a signal stopped a run, which saved its state: exit code 75 ("requeue me")

The message is `error: WHAT is wrong (WHERE): HOW to fix it`; the command line prints it unchanged. What a look at a
machine, a start or a new cluster found is a Finding (doctor, preflight, accept):

    ok          as it should be
    note        worth knowing, nothing to fix; also "cannot tell here", which is an answer too
    warn        it works, but slower or less safely than it could
    problem     a run fails on it: it doesn't start, and a cluster isn't accepted
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

T = TypeVar("T")
MOST_MISTAKES = 8  # shown in one line


class UserError(ValueError):
    """A mistake of the user's, in one line: what is wrong, where, and how to fix it."""

    exit_code = 2
    parts: tuple[UserError, ...] = ()  # of several mistakes in one

    def __init__(self, what: str, where: str = "", how: str = "") -> None:
        self.what, self.where, self.how = shortened(what), shortened(where), shortened(how, 800)
        place, fix = f" ({self.where})" if where else "", f": {self.how}" if how else ""
        super().__init__(self.what + place + fix)


class Mistakes:
    """Mistakes of the user's in one place, so that one error names them all.

    >>> mistakes = Mistakes()
    >>> device = mistakes.of(lambda: load_device(name))  # None where it raises UserError
    >>> mistakes.stop()  # raises what was noted
    """

    def __init__(self) -> None:
        self.noted: list[UserError] = []

    def of(self, check: Callable[[], T]) -> T | None:
        """What the check returns; its UserError is noted."""
        try:
            return check()
        except UserError as error:
            self.noted += error.parts or [error]
            return None

    def stop(self) -> None:
        """Raises what was noted, if anything was."""
        if self.noted:
            raise self.together()

    def together(self) -> UserError:
        """A single mistake as it is, several in one line."""
        parts = tuple({str(error): error for error in self.noted}.values())
        if len(parts) == 1:
            return parts[0]
        shown, left = "; ".join(map(str, parts[:MOST_MISTAKES])), len(parts) - MOST_MISTAKES
        together = UserError("; ".join(part.what for part in parts))
        together.parts = parts
        together.args = (f"{len(parts)} things to mend: {shown}" + (f"; and {left} more" if left > 0 else ""),)
        return together


class RunError(RuntimeError):
    """A run that failed for a reason outside the user's input (a full disk, a worker that died)."""

    exit_code = 1
    ranks: tuple[int, ...] = ()  # that died, or that the others waited for, where it is known
    failure: str = ""  # alike for failures that are alike: what a restart compares
    failed_at: float | None = None  # seconds since 1970


class Stopped(Exception):
    """A run that was stopped by a signal, and saved its state first."""

    exit_code = 75
    by_signal = True  # false: the launcher of local ranks asked by itself


def shortened(text: str, most: int = 300) -> str:
    """At most so many characters of a text, its middle left out: it may echo a value of any length."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) + 1 - most // 2 :]}"


def reason(error: Exception) -> str:
    """Why a file can't be read, without the path: the message around it has that."""
    return getattr(error, "strerror", None) or getattr(error, "what", None) or str(error)


def install(extra: str) -> str:
    """The command that installs an extra, from the checkout: on PyPI others may take the package's name."""
    return f"run `pip install -e '.[{extra}]'` in scalewright's checkout"


def nearest(name: str, known: Iterable[str], count: int = 3, cutoff: float = 0.5) -> list[str]:
    """The known names most like `name`, best first; empty when none is near."""
    by_folded = {option.lower(): option for option in reversed(list(known))}  # of two alike the first
    return [by_folded[key] for key in difflib.get_close_matches(name.lower(), by_folded, n=count, cutoff=cutoff)]


def unknown(
    kind: str, name: str, known: Iterable[str], where: str = "", more: str = "", cutoff: float = 0.5
) -> UserError:
    """The error for a name that isn't known, with the nearest valid ones (or all, if they are few)."""
    options = list(known)
    near = nearest(name, options, cutoff=cutoff)
    meant = "did you mean " + " or ".join(f"'{option}'" for option in near) + "?"
    how = meant if near else "use one of " + ", ".join(options) if len(options) <= 26 else ""
    return UserError(f"unknown {kind} '{name}'", where, f"{how} {more}".strip())


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
        return f"{self.what} ({self.place})" + (f": {self.how}" if self.how else "")

    @property
    def row(self) -> dict[str, str]:
        """Of a file, as plain data."""
        return {key: getattr(self, key) for key in ("severity", "subject", "rule", "where", "what", "how")}


def worst(findings: Iterable[Finding]) -> Severity:
    """The severity of the gravest; ok without any."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default="ok")
