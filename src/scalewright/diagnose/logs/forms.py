"""What a step's line looks like: the table in forms.yaml, whose first row that has steps in a log is its trainer's own.

    megatron      iteration  27/  30 | elapsed time per iteration (ms): 690.8 | lm loss: 3.198841E+00 | ...
    nemo          ... | global_step: 1 | reduced_train_loss: 11.03 | train_step_timing in s: 7.549 | ...
    torchtitan    step: 10  loss: 10.42  memory: 30.89GiB(32.51%)  tps: 6,344  tflops: 367.39  mfu: 37.15%

To read another trainer, add a row.

Lines with the same parts as one before are read by one pattern that was made from it:

    iteration 7/ 30 | elapsed time (ms): 690.8 | scale: 1.0 | lm loss: 3.2E+00 |
    no ": " in here | elapsed time (ms): ([^|]*)| scale: [^|]*| lm loss: ([^|]*)|

A trainer prints the same keys on each step, and to split 250,000 lines into pairs of which half aren't wanted takes
longer than all the rest. A line whose keys differ, or whose numbers aren't numbers, goes the long way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalewright.diagnose.logs.by_words import NAMES as BY_WORDS
from scalewright.diagnose.logs.by_words import alone, by_words
from scalewright.diagnose.logs.lines import barred, number, quoted, words
from scalewright.spec.base import read_yaml

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
        except ValueError:  # not every number is plain
            values = {
                key: amount * factor
                for key, place, factor in self.wanted
                if (amount := number(groups[place], self.units)) is not None
            }
        # With another ": " in it, another part of the text is the key.
        return values if len(values) == len(self.wanted) and not any(": " in group for group in groups) else None


def template_of(text: str, fields: Mapping[str, tuple[str, float]], units: bool) -> Template | None:
    """Of a line of `... | key: value | key: value |`; None where none is wanted, or one can't be read."""
    first, *others = text.split("|")
    if ": " in first:
        return None
    parts: list[str] = []
    wanted: dict[str, tuple[str, int, float]] = {}
    for part in others:
        pair = PAIR.fullmatch(part)
        if pair is None and not part.strip():
            parts.append(r"\s*")
            continue
        if pair is None:
            return None
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
                self.kept.insert(0, self.kept.pop(place))
                return values
        return None

    def learn(self, text: str, fields: Mapping[str, tuple[str, float]], units: bool) -> None:
        """Keeps this line's template, as long as there are few."""
        if len(self.kept) < MOST and (template := template_of(text, fields, units)) is not None:
            self.kept.append(template)


Fields = Mapping[str, tuple[str, float]]
COUNTS = {"step", "epoch", "global_batch", "seq_len", "skipped", "nan"}
LARGEST = 1e15  # of a count: more is damage


@dataclass(frozen=True)
class Form:
    """A kind of step line, a row of forms.yaml; `fields`: a trainer's words -> ours, and the factor to our unit."""

    name: str
    framework: str
    mark: str
    pairs: Callable[[str], Iterator[tuple[str, str]]]
    fields: Fields
    head: re.Pattern[str]
    heads: tuple[tuple[str, float], ...]  # the keys and factors of head's groups
    units: bool
    joins: bool
    gathers: bool

    def read(self, text: str, like: Templates | None = None) -> dict[str, float] | None:
        """The line's values in our words and units; None for a line of another kind. `like`: lines before."""
        match = self.head.search(text)
        if match is None:
            return None
        values = {
            key: float(group.replace(",", "")) * factor
            for (key, factor), group in zip(self.heads, match.groups(), strict=True)
            if group is not None
        }
        quick = like.read(text) if like is not None else None
        if quick is not None:
            values = quick | values
        else:
            for word, value in self.pairs(text):
                key, factor = self.fields.get(word, ("", 0.0))
                if key and key not in values and (amount := number(value, self.units)) is not None:
                    values[key] = amount * factor
            if like is not None and self.pairs is barred:
                like.learn(text, self.fields, self.units)
        damaged = {key for key in COUNTS if key in values and not abs(values[key]) < LARGEST}  # or NaN
        return {key: values[key] for key in values if key not in damaged} if damaged else values or None


def _train(text: str) -> Iterator[tuple[str, str]]:
    """`Train loss/train/total: 10.97`, of Composer."""
    return ((key.removeprefix("Train "), value) for key, value in barred(text))


def _equals(text: str) -> Iterator[tuple[str, str]]:
    """`iteration= 10/ 500 | lm_loss=2.1 | [LM]TFLOPs=37.7`, in Megatron's words."""
    for part in text.split("|"):
        key, _, value = part.rpartition("=")
        yield re.sub(r"^\s*\[LM\]|[\W_]+", " ", key).strip(), value


def _assigned(text: str) -> Iterator[tuple[str, str]]:
    """`    train/CE loss=10.05`, of OLMo."""
    key, _, value = text.partition("=")
    yield key.strip(), value


TABLE = read_yaml(Path(__file__).with_name("forms.yaml"))
OPEN = "lines of a step"  # of no trainer's own
PAIRS = {
    "barred": barred, "quoted": quoted, "words": words, "train": _train, "equals": _equals, "assigned": _assigned,
    "by words": by_words, "alone": alone,
}  # fmt: skip


def _forms() -> Iterator[Form]:
    fields = {trainer: dict(_fields(own)) for trainer, own in TABLE["words"].items()}
    in_keys = {re.sub(r"\W+", " ", word).strip(): ours for word, ours in fields["megatron"].items()}
    fields["megatron keys"] |= in_keys
    fields["any"] = {key: (key, 1.0) for key in BY_WORDS}
    for row in TABLE["forms"]:
        head, heads = re.compile(row.get("head", "")), tuple(row.get("heads", {}).items())
        for mark in row.get("marks") or [row["mark"]]:
            yield Form(
                row["name"], row["framework"], mark, PAIRS[row["pairs"]], fields.get(row.get("words"), {}),
                head, heads, units="units" in row, joins="joins" in row, gathers="gathers" in row,
            )  # fmt: skip


def _fields(own: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, float]]]:
    """A trainer's words with ours; those that have a factor are a mapping."""
    for ours, its_words in own.items():
        for word in its_words:
            yield word, (ours, its_words[word] if isinstance(its_words, dict) else 1.0)


FORMS = tuple(_forms())
NAMES = tuple(TABLE["known"])
