"""Lines with the same parts as one before are read by one pattern that was made from it.

    iteration 7/ 30 | elapsed time (ms): 690.8 | scale: 1.0 | lm loss: 3.2E+00 |
    no ": " in here | elapsed time (ms): ([^|]*)| scale: [^|]*| lm loss: ([^|]*)|

A trainer prints the same keys on each step, and to split 250,000 lines into pairs of which half aren't wanted
takes longer than all the rest. A line whose keys differ, or whose numbers aren't numbers, goes the long way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scalewright.diagnose.logs.values import number

MOST = 4  # kinds of lines that are kept
PAIR = re.compile(r"(.*): (.*)", re.S)


@dataclass(frozen=True)
class Template:
    """`pattern` matches a line from its first bar on; its groups are the numbers of `keys` x `factors`."""

    pattern: re.Pattern[str]
    wanted: tuple[tuple[str, int, float], ...]  # key, group, factor
    units: bool

    def read(self, text: str) -> dict[str, float] | None:
        """The values of a line like the one that this was made of; None for another."""
        bar = text.find("|")
        match = self.pattern.fullmatch(text, bar)
        if match is None or text.find(": ", 0, bar) >= 0:
            return None
        groups = match.groups()
        try:
            return {key: float(groups[place]) * factor for key, place, factor in self.wanted}
        except ValueError:
            return self._read(groups)

    def _read(self, groups: Sequence[str]) -> dict[str, float] | None:
        """The values where not every number is plain."""
        if any(": " in group for group in groups):  # then another part of the text is the key
            return None
        amounts = [number(groups[place], self.units) for _, place, _ in self.wanted]
        values = {
            key: amount * factor
            for (key, _, factor), amount in zip(self.wanted, amounts, strict=True)
            if amount is not None
        }
        return values if len(values) == len(self.wanted) else None


def template_of(text: str, fields: Mapping[str, tuple[str, float]], units: bool) -> Template | None:
    """Of a line of `... | key: value | key: value |`; None where none is wanted, or one can't be read."""
    first, *others = text.split("|")
    if ": " in first:
        return None
    parts: list[str] = []
    wanted: dict[str, tuple[str, int, float]] = {}
    for part in others:
        pair = PAIR.fullmatch(part)
        if pair is None:
            if part.strip():
                return None
            parts.append(r"\s*")
            continue
        key, factor = fields.get(pair[1].strip(), ("", 1.0))
        new = bool(key) and key not in wanted
        if new and number(pair[2], units) is None:
            return None
        parts.append(re.escape(pair[1]) + (": ([^|]*)" if new else ": [^|]*"))
        if new:
            wanted[key] = (key, len(wanted), factor)
    pattern = re.compile("".join(rf"\|{part}" for part in parts))
    return Template(pattern, tuple(wanted.values()), units) if wanted else None


@dataclass
class Templates:
    """The templates of one kind of line, the last that matched first."""

    kept: list[Template] = field(default_factory=list)

    def read(self, text: str) -> dict[str, float] | None:
        """The values of a line like one before."""
        for place, template in enumerate(self.kept):
            values = template.read(text)
            if values is not None:
                if place:
                    self.kept.insert(0, self.kept.pop(place))
                return values
        return None

    def learn(self, text: str, fields: Mapping[str, tuple[str, float]], units: bool) -> None:
        """Keeps this line's template, as long as there are few."""
        if len(self.kept) < MOST and (template := template_of(text, fields, units)) is not None:
            self.kept.append(template)
