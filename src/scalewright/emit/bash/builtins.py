"""Bash's builtins that change what a script starts: eval, source, set, shift, read, test, unset, return.

set -- --tp 4; shift; echo $1        eval "torchrun $ARGS"        source env.sh        read -r A B <<< "1 2"
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from scalewright.emit.bash.conditions import holds
from scalewright.emit.bash.shell import Ended, Left, Shell


class WithBuiltins(Shell):
    """A shell that has them."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        leaves = {name: partial(self.leave, name) for name in ("exit", "return", "break", "continue")}
        self.builtins = {
            "eval": self.evaluate, "source": self.source_, ".": self.source_, "test": self.test, "[": self.bracket,
            "cd": self.cd, "unset": self.unset, "set": self.set_, "shift": self.shift, "read": self.read,
            "mapfile": self.mapfile, "readarray": self.mapfile, "true": self.nothing, ":": self.nothing,
            "false": self.not_so, "getopts": self.not_so, **leaves,
        }  # fmt: skip

    def evaluate(self, words: list[str]) -> bool | None:
        return self.text(" ".join(words), "eval")

    def source_(self, words: list[str]) -> bool | None:
        text = self._file(words[0]) if words else None
        if text is None:
            path = self.result.marks.shown(words[0]) if words else ""
            self.note(f"{path} is sourced, and isn't beside the script: what it sets isn't known")
            return None if self.asking else True
        before = self.state.arguments
        if len(words) > 1:
            self.state.arguments = words[1:]
        try:
            return self.text(text, words[0])
        except Left as left:
            if left.kind != "return":
                raise
            return True
        finally:
            self.state.arguments = before

    def test(self, words: list[str]) -> bool | None:
        return holds(words, self.state)

    def bracket(self, words: list[str]) -> bool | None:
        return holds(words[:-1] if words[-1:] == ["]"] else words, self.state)

    def cd(self, words: list[str]) -> bool | None:
        self.state.directory = self.state.path(words[-1]) if words else "~"
        return True

    def unset(self, words: list[str]) -> bool | None:
        for word in words:
            if not word.startswith("-"):
                self.state.remove(word)
                self.state.exported.discard(word)
        return True

    def set_(self, words: list[str]) -> bool | None:
        if "--" in words:
            self.state.arguments = words[words.index("--") + 1 :]
        elif words and words[0][:1] not in "-+":
            self.state.arguments = list(words)
        return True

    def shift(self, words: list[str]) -> bool | None:
        count = int(words[0]) if words and words[0].isdecimal() else 1
        if self.state.arguments is not None:
            self.state.arguments = self.state.arguments[count:]
        return True

    def read(self, words: list[str]) -> bool | None:
        """A line of the input, where it is known."""
        names = [word for word in words if re.fullmatch(r"[A-Za-z_]\w*", word)] or ["REPLY"]
        if self.input is None:
            for name in names:
                self.state.put(name, self.result.marks.make(f"${name}", "it is read from a file or a program", 0))
            return None
        line, _, self.input = self.input.partition("\n")
        if "-a" in words:
            self.state.variables[names[0]] = dict(enumerate(line.split()))
        else:
            parts = line.split(None, len(names) - 1)
            for name, part in zip(names, [*parts, *[""] * len(names)], strict=False):
                self.state.put(name, part)
        return bool(line)

    def mapfile(self, words: list[str]) -> bool | None:
        name = next((word for word in words if re.fullmatch(r"[A-Za-z_]\w*", word)), "MAPFILE")
        if self.input is None:
            self.state.variables[name] = {0: self.result.marks.make(f"${{{name}[@]}}", "it is read from a program", 0)}
        else:
            self.state.variables[name] = dict(enumerate(self.input.splitlines()))
        return True

    def leave(self, kind: str, words: list[str]) -> bool | None:
        if kind == "exit":
            raise Ended
        number = int(words[0]) if words and words[0].isdecimal() else 0 if kind == "return" else 1
        raise Left(kind, number)

    def nothing(self, words: list[str]) -> bool | None:
        return True

    def not_so(self, words: list[str]) -> bool | None:
        """`false`, and `getopts` where there are no arguments."""
        return False
