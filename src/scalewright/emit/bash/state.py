"""What a shell has at a moment: variables, arrays, functions, arguments, and files that the script wrote.

scalar    "8"                          array    {0: "--bf16", 1: "--lr"}, or {"key": "value"} of `declare -A`

The state after branches of which nobody knows which one is taken: what is equal in all of them stays.

TP=8 | TP=1                       TP       a mark: it depends on `[ $X = a ]`: 8 or 1
A=(a) | A=(a --bf16)              A        (a, a mark): the words that may follow
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from itertools import takewhile
from typing import TypeAlias

from scalewright.emit.bash.tree import Node
from scalewright.emit.bash.unknown import Marks

Array: TypeAlias = dict[int | str, str]
Value: TypeAlias = str | Array
SHOWN = 60  # characters of a value in a reason
LETTERS = {"e": "errexit", "f": "noglob"}  # of `set`


@lru_cache(10_000)
def _bucket(key: int | str) -> int:
    """Where bash 5.1 and later keeps a key: its order of numbers, and of an associative array's FNV hashes."""
    if isinstance(key, int):
        return key
    return reduce(lambda hash_, byte: hash_ * 16777619 % 2**32 ^ byte, key.encode(errors="replace"), 2166136261) % 1024


@dataclass
class State:
    """One shell's; a subshell has a copy."""

    name: str = "script.sh"  # $0
    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    unset: set[str] = field(default_factory=set)  # by the script: empty, where others come from outside
    arguments: list[str] | None = None  # null: those that the script is started with, which nobody knows
    functions: dict[str, tuple[Node, bytes]] = field(default_factory=dict)  # with the text that they stand in
    files: dict[str, str] = field(default_factory=dict)  # by path() of their names
    folders: frozenset[str] = frozenset()  # that it made, likewise
    directory: str = ""  # where `cd` went, from where the script is started
    local: dict[str, Value | None] | None = None  # a function's own: what they were before
    attributes: dict[str, str] = field(default_factory=dict)  # letters of `declare`: A, i, l, n, u
    status: str = "0"  # $?
    options: frozenset[str] = frozenset()  # of `set`: errexit, pipefail, noglob

    def copy(self) -> State:
        """Another shell that begins as this one."""
        variables = {name: dict(value) if isinstance(value, dict) else value for name, value in self.variables.items()}
        return replace(
            self, variables=variables, exported=set(self.exported), unset=set(self.unset),
            functions=dict(self.functions), files=dict(self.files), attributes=dict(self.attributes),
            local=None if self.local is None else dict(self.local),
        )  # fmt: skip

    def child(self, name: str, arguments: list[str], environ: Mapping[str, str]) -> State:
        """The shell of a program that this one starts: it has what was exported, and no functions."""
        variables: dict[str, Value] = {key: self.variables[key] for key in self.exported if key in self.variables}
        variables |= environ
        return State(name, variables, set(variables), set(), arguments, {}, self.files, self.folders, self.directory)

    def path(self, name: str) -> str:
        """A file's path from where the script is started."""
        return posixpath.normpath(posixpath.join(self.directory, name))

    def target(self, name: str) -> str:
        """The variable that `declare -n` has this name stand for."""
        pointed = self.variables.get(name) if "n" in self.attributes.get(name, "") else None
        return pointed if isinstance(pointed, str) else name

    def is_map(self, name: str) -> bool:
        value = self.variables.get(name := self.target(name))
        return "A" in self.attributes.get(name, "") or (isinstance(value, dict) and str in map(type, value))

    def scalar(self, name: str) -> str | None:
        """A variable's text; an array's is that of its first element. None where it isn't set."""
        value = self.variables.get(self.target(name), " \t\n" if name == "IFS" else None)
        return value.get(0, value.get("0")) if isinstance(value, dict) else value

    def items(self, name: str) -> Array:
        """A variable as an array, in the order in which bash lists it."""
        value = self.variables.get(self.target(name), {})
        return {key: value[key] for key in sorted(value, key=_bucket)} if isinstance(value, dict) else {0: value}

    def put(self, name: str, value: Value, key: int | str | None = None) -> None:
        """Sets a variable, or an element of it; a text set to an array goes to its first element, as in bash."""
        name = self.target(name)
        letters = self.attributes.get(name, "")
        if isinstance(value, str) and {"u", "l"} & set(letters):
            value = value.upper() if "u" in letters else value.lower()
        if isinstance(value, str) and (key is not None or isinstance(self.variables.get(name), dict)):
            before = self.variables.get(name, {})
            value = {**(before if isinstance(before, dict) else {0: before}), (0 if key is None else key): value}
        self.variables[name] = value
        self.unset.discard(name)

    def remove(self, name: str) -> None:
        """`unset`: from here on it is empty."""
        self.variables.pop(name, None)
        self.functions.pop(name, None)
        self.attributes.pop(name, None)
        self.exported.discard(name)
        self.unset.add(name)


def options_of(words: Sequence[str], before: frozenset[str] = frozenset()) -> frozenset[str]:
    """The options of `set -eo pipefail` or `bash -e`, by their long names, that change what is started."""
    options = set(before)
    for word, following in zip(words, [*words[1:], ""], strict=False):
        letters = word[1:] if word[:1] in ("-", "+") else ""
        names = {LETTERS.get(letter, following if letter == "o" else "") for letter in letters}
        options = options | names if word.startswith("-") else options - names
    return frozenset(options)


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
