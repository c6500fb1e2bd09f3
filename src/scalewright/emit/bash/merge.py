"""The state after branches of which nobody knows which one is taken: what is equal in all of them stays.

TP=8 | TP=1                       TP       a mark: it depends on `[ $X = a ]`: 8 or 1
A=(a) | A=(a --bf16)              A        (a, a mark): the words that may follow
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from scalewright.emit.bash.state import State, Value
from scalewright.emit.bash.unknown import Marks

SHOWN = 60  # characters of a value in a reason


def merged(states: Sequence[State], marks: Marks, condition: str, line: int) -> State:
    """One state for all of these; `condition`: what decides, for the reasons."""
    result = states[0]
    for name in dict.fromkeys(name for state in states for name in state.variables):
        values = [state.variables.get(name) for state in states]
        if all(value == values[0] for value in values):
            continue
        texts = dict.fromkeys(_text(value, marks)[:SHOWN] for value in values)
        why = f"it depends on `{' '.join(condition.split())}`: {' or '.join(texts)}"
        result.variables[name] = _merged(name, values, marks.make(f"${name}", why, line))
    for state in states[1:]:
        result.exported |= state.exported
        result.functions |= state.functions
        result.files |= state.files
        result.unset &= state.unset
    return result


def _merged(name: str, values: Sequence[Value | None], mark: str) -> Value:
    """What all begin with, and a mark."""
    if all(isinstance(value, dict) for value in values):
        lists = [list(value.values()) for value in values if isinstance(value, dict)]
        begin = _beginning(lists)
        return dict(enumerate([*begin, mark]))
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) == len(values):
        words = _beginning([text.split() for text in texts])
        return " ".join([*words, mark]) if words else mark
    return mark


def _beginning(lists: Sequence[list[str]]) -> list[str]:
    """What all lists begin with."""
    return [items[0] for items in takewhile(lambda items: len(set(items)) == 1, zip(*lists, strict=False))]


def _text(value: Value | None, marks: Marks) -> str:
    if value is None:
        return "nothing"
    text = " ".join(value.values()) if isinstance(value, dict) else value
    return marks.shown(text) or "nothing"
