"""What a shell has at a moment: variables, arrays, functions, arguments, and files that the script wrote.

scalar    "8"                          array    {0: "--bf16", 1: "--lr"}, or {"key": "value"} of `declare -A`
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from scalewright.emit.bash.tree import Node

Array: TypeAlias = dict[int | str, str]
Value: TypeAlias = str | Array


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
    directory: str = ""  # where `cd` went, from where the script is started
    local: dict[str, Value | None] = field(default_factory=dict)  # a function's own: what they were before

    def copy(self) -> State:
        """Another shell that begins as this one."""
        variables = {name: dict(value) if isinstance(value, dict) else value for name, value in self.variables.items()}
        return replace(
            self, variables=variables, exported=set(self.exported), unset=set(self.unset),
            arguments=None if self.arguments is None else list(self.arguments), functions=dict(self.functions),
            files=dict(self.files), local=dict(self.local),
        )  # fmt: skip

    def child(self, name: str, arguments: list[str], environ: Mapping[str, str]) -> State:
        """The shell of a program that this one starts: it has what was exported, and no functions."""
        variables: dict[str, Value] = {key: self.variables[key] for key in self.exported if key in self.variables}
        variables |= environ
        return State(name, variables, set(variables), set(), arguments, {}, self.files, self.directory)

    def path(self, name: str) -> str:
        """A file's path from where the script is started."""
        return posixpath.normpath(posixpath.join(self.directory, name))

    def scalar(self, name: str) -> str | None:
        """A variable's text; an array's is that of its first element. None where it isn't set."""
        value = self.variables.get(name)
        if isinstance(value, dict):
            return value.get(0, value.get("0"))
        return value

    def items(self, name: str) -> Array:
        """A variable as an array, in the order of its subscripts."""
        value = self.variables.get(name)
        if isinstance(value, dict):
            return (
                dict(sorted(value.items(), key=lambda item: item[0]))
                if all(isinstance(k, int) for k in value)
                else value
            )
        return {} if value is None else {0: value}

    def put(self, name: str, value: Value) -> None:
        """Sets a variable; a text set to an array goes to its first element, as in bash."""
        before = self.variables.get(name)
        if isinstance(before, dict) and isinstance(value, str):
            before[0] = value
        else:
            self.variables[name] = value
        self.unset.discard(name)

    def remove(self, name: str) -> None:
        """`unset`: from here on it is empty."""
        self.variables.pop(name, None)
        self.functions.pop(name, None)
        self.unset.add(name)
