"""Tables between our words and theirs, for keys that mean the same in both.

    Word("layout.tp", "tensor-model-parallel-size")                 the value as it is
    Word("optimizer.betas", "adam-beta1", first, ...)               converted both ways

What depends on more than one key is a function of its trainer's file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from scalewright.emit.settings import NEUTRAL, Settings
from scalewright.emit.theirs import Theirs


def same(value: Any) -> Any:
    """A value that both write alike."""
    return value


class Word(NamedTuple):
    """A key of ours, the same key in their words, and the conversions of its value."""

    ours: str
    theirs: str
    to: Callable[[Any], Any] = same
    back: Callable[[Any], Any] = same
    always: bool = True  # written even where our value is neutral


def write_words(settings: Settings, words: Iterable[Word]) -> dict[str, Any]:
    """Their keys for all of these that the run has; null stays out."""
    written: dict[str, Any] = {}
    for word in words:
        if not settings.has(word.ours):
            continue
        value = settings.take(word.ours)
        if value is None or (not word.always and NEUTRAL.get(word.ours) == value):
            continue
        written[word.theirs] = word.to(value)
    return written


def read_words(theirs: Theirs, words: Iterable[Word], run: dict[str, Any]) -> None:
    """Puts all of these that are set into a nested run of ours."""
    for word in words:
        value = theirs.take(word.theirs)
        if value is not None:
            put(run, word.ours, word.back(value))


def put(run: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key of nested data."""
    *parents, last = key.split(".")
    node = run
    for parent in parents:
        node = node.setdefault(parent, {})
    node[last] = value
