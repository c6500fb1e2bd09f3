"""Rules between our keys and theirs, both ways; what depends on more than one key is a trainer's own code.

    Word("layout.tp", "tensor-model-parallel-size", back=whole)     a value, as it is or converted
    Pair("optimizer.betas", ("beta1", "beta2"), (0.9, 0.95))        two values, each under a key of its own
    Pick("model.norm_type", "norm", {"rmsnorm": "RMSNorm"}, why)    a value by another name
    Fixed("model.positions", ("rope",), why)                        the one value that they have, with no key
    Lacks("model.qk_norm", why)                                     no such thing: dropped, with the reason

What a trainer lacks of a layout isn't here: spec/capabilities.yaml has it, with the reasons.
settings.write(RULES) -> their keys          foreign.read(RULES, run): puts ours into the run
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import not_
from typing import Any

from scalewright.emit.foreign import ForeignKeys, RunKeys, number, real, whole
from scalewright.emit.settings import NEUTRAL, Settings
from scalewright.emit.tables import table

Words = dict[str, object]


def same(value: Any) -> Any:
    """A value that both write alike."""
    return value


BACK: Mapping[str, Callable[[Any], Any]] = {"whole": whole, "real": real, "not": not_}


@dataclass(frozen=True)
class Rule(ABC):
    """A key of ours."""

    ours: str

    @abstractmethod
    def write(self, s: Settings) -> Words:
        """Their keys; what they can't express is reported."""

    def read(self, t: ForeignKeys, run: RunKeys) -> None:  # noqa: B027 - some rules only write
        """Puts our key into the run; nothing where their file has none for it."""


@dataclass(frozen=True)
class Word(Rule):
    """The same key in their words, and the conversions of its value."""

    foreign: str
    to: Callable[[Any], Any] = same
    back: Callable[[Any], Any] = same
    always: bool = True  # written even where our value is neutral
    absent: Any = None  # theirs, where their file has no such key

    def write(self, s: Settings) -> Words:
        """Their key, where the run has ours; null stays out."""
        value = s.take(self.ours) if s.has(self.ours) else None
        if value is None or (not self.always and NEUTRAL.get(self.ours) == value):
            return {}
        return {self.foreign: self.to(value)}

    def read(self, t: ForeignKeys, run: RunKeys) -> None:
        """Our key, where theirs is set."""
        value = t.take(self.foreign, self.absent)
        if value is not None:
            put(run, self.ours, self.back(value))


def words_for(trainer: str) -> tuple[Word, ...]:
    """The words of a trainer in words.yaml."""
    return tuple(_word(ours, *text.split()) for ours, text in table("words.yaml")[trainer].items())


def _word(ours: str, foreign: str, *more: str) -> Word:
    back = next((BACK[name] for name in more if name in BACK), same)
    absent = next((number(name[1:]) for name in more if name.startswith("=")), None)
    to = int if "as-int" in more else not_ if "not" in more else same
    return Word(ours, foreign, to, back, "rarely" not in more, absent)


@dataclass(frozen=True)
class Pair(Rule):
    """Two values, each under a key of its own."""

    foreign: tuple[str, str]
    absent: tuple[float, float]  # theirs, where their file has no such keys

    def write(self, s: Settings) -> Words:
        """Both keys."""
        return dict(zip(self.foreign, s.take(self.ours), strict=True))

    def read(self, t: ForeignKeys, run: RunKeys) -> None:
        """Both values."""
        put(run, self.ours, [real(t.take(*key)) for key in zip(self.foreign, self.absent, strict=True)])


@dataclass(frozen=True)
class Pick(Rule):
    """A key of ours whose values have other names there; of several keys there, the names are tuples."""

    foreign: str | tuple[str, ...]
    names: Mapping[Any, Any]  # ours -> theirs
    why: str = ""
    instead: Any = None  # ours, written for a value that they lack; None: that is dropped
    absent: Any = None  # theirs, where their file has no such key
    unknown: Any = None  # ours, for a name that isn't here; None: no key of ours
    back: Callable[[Any], Any] = same  # of a name that is read
    refused: str = ""  # why a name that isn't here can't be ours

    def write(self, s: Settings) -> Words:
        """Their keys."""
        name = s.choose(self.ours, self.names, self.why, self.instead)
        if name is None:
            return {}
        return dict(zip(self.foreign, name, strict=True)) if isinstance(self.foreign, tuple) else {self.foreign: name}

    def read(self, t: ForeignKeys, run: RunKeys) -> None:
        """Our key."""
        if isinstance(self.foreign, tuple):
            absent = zip(self.foreign, self.absent, strict=True)
            name: Any = tuple(self.back(t.take(key, value)) for key, value in absent)
        else:
            name = self.back(t.take(self.foreign, self.absent))
            if self.refused and name not in self.names.values():
                t.refuse(self.foreign, self.refused)
        if (ours := inverse(self.names).get(name, self.unknown)) is not None:
            put(run, self.ours, ours)


@dataclass(frozen=True)
class Fixed(Rule):
    """A key of which they have some values alone, without a key; another is dropped or changed."""

    values: tuple[Any, ...]
    why: str
    instead: Any = None  # one of the values, which runs in the place of others

    def write(self, s: Settings) -> Words:
        """Nothing, and the reason for another value."""
        s.choose(self.ours, dict.fromkeys(self.values), self.why, self.instead)
        return {}


@dataclass(frozen=True)
class Lacks(Rule):
    """A key that they have no word for."""

    why: str

    def write(self, s: Settings) -> Words:
        """Nothing, and the reason."""
        s.drop(self.ours, self.why)
        return {}


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
