"""Rules between our keys and theirs, both ways; what depends on more than one key is a trainer's own code.

    Word("layout.tp", "tensor-model-parallel-size", back=whole)     a value, as it is or converted
    Pick("model.norm_type", "norm", {"rmsnorm": "RMSNorm"}, why)    a value by another name
    Fixed("model.positions", ("rope",), why)                        the one value that they have, with no key
    Lacks("model.qk_norm", why)                                     no such thing: dropped, with the reason

What a trainer lacks of a layout isn't here: spec/capabilities.yaml has it, with the reasons.
write_rules(settings, RULES) -> their keys          read_rules(foreign, RULES, run): puts ours into the run
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from scalewright.emit.foreign import ForeignKeys, RunKeys
from scalewright.emit.settings import NEUTRAL, Settings

Words = dict[str, object]


def same(value: Any) -> Any:
    """A value that both write alike."""
    return value


class Word(NamedTuple):
    """A key of ours, the same key in their words, and the conversions of its value."""

    ours: str
    foreign: str
    to: Callable[[Any], Any] = same
    back: Callable[[Any], Any] = same
    always: bool = True  # written even where our value is neutral

    def write(self, s: Settings) -> dict[str, object]:
        """Their key, where the run has ours; null stays out."""
        value = s.take(self.ours) if s.has(self.ours) else None
        if value is None or (not self.always and NEUTRAL.get(self.ours) == value):
            return {}
        return {self.foreign: self.to(value)}

    def read(self, t: ForeignKeys, run: RunKeys) -> None:
        """Our key, where theirs is set."""
        value = t.take(self.foreign)
        if value is not None:
            put(run, self.ours, self.back(value))


class Pick(NamedTuple):
    """A key of ours whose values have other names there; of several keys there, the names are tuples."""

    ours: str
    foreign: str | tuple[str, ...]
    names: Mapping[Any, Any]  # ours -> theirs
    why: str = ""
    instead: Any = None  # ours, written for a value that they lack; None: that is dropped
    absent: Any = None  # theirs, where their file has no such key
    unknown: Any = None  # ours, for a name that isn't here; None: no key of ours
    back: Callable[[Any], Any] = same  # of a name that is read

    def write(self, s: Settings) -> dict[str, object]:
        """Their keys."""
        name = s.choose(self.ours, self.names, self.why, self.instead)
        if name is None:
            return {}
        if isinstance(self.foreign, tuple):
            return dict(zip(self.foreign, name, strict=True))
        return {self.foreign: name}

    def read(self, t: ForeignKeys, run: RunKeys) -> None:
        """Our key."""
        if isinstance(self.foreign, tuple):
            absent = zip(self.foreign, self.absent, strict=True)
            name: Any = tuple(self.back(t.take(key, value)) for key, value in absent)
        else:
            name = self.back(t.take(self.foreign, self.absent))
        ours = inverse(self.names).get(name, self.unknown)
        if ours is not None:
            put(run, self.ours, ours)


class Fixed(NamedTuple):
    """A key of ours of which they have some values alone, without a key; another is dropped or changed."""

    ours: str
    values: tuple[Any, ...]
    why: str
    instead: Any = None  # one of the values, which runs in the place of others

    def write(self, s: Settings) -> dict[str, object]:
        """Nothing, and the reason for another value."""
        s.choose(self.ours, dict.fromkeys(self.values), self.why, self.instead)
        return {}

    def read(self, t: ForeignKeys, run: RunKeys) -> None:
        """Nothing: their file has no key."""


class Lacks(NamedTuple):
    """A key of ours that they have no word for."""

    ours: str
    why: str

    def write(self, s: Settings) -> dict[str, object]:
        """Nothing, and the reason."""
        s.drop(self.ours, self.why)
        return {}

    def read(self, t: ForeignKeys, run: RunKeys) -> None:
        """Nothing: their file has no key."""


Rule = Word | Pick | Fixed | Lacks


def write_rules(settings: Settings, rules: Iterable[Rule]) -> dict[str, object]:
    """Their keys of all rules."""
    written: dict[str, object] = {}
    for rule in rules:
        written |= rule.write(settings)
    return written


def read_rules(foreign: ForeignKeys, rules: Iterable[Rule], run: RunKeys) -> None:
    """Puts our keys of all rules into a nested run."""
    for rule in rules:
        rule.read(foreign, run)


def put(run: RunKeys | dict[str, object], key: str, value: Any) -> None:
    """Sets a dotted key of nested data."""
    *parents, last = key.split(".")
    node: Any = run
    for parent in parents:
        node = node.setdefault(parent, {})
    node[last] = value


def nested(keys: Mapping[str, Any], *sections: str) -> dict[str, object]:
    """Dotted keys as nested data, whose sections come in this order."""
    data: dict[str, object] = {section: {} for section in sections}
    for key, value in keys.items():
        put(data, key, value)
    return data


def inverse(words: Mapping[Any, Any]) -> dict[Any, Any]:
    """Ours by theirs; of several that they write alike, the first."""
    return {value: key for key, value in reversed(list(words.items()))}
