"""Bash's builtins that change what a script starts: eval, source, set, shift, read, test, unset, return.

set -- --tp 4; shift; echo $1        eval "torchrun $ARGS"        source env.sh        read -r A B <<< "1 2"
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from scalewright.emit.bash.beside import has_folder
from scalewright.emit.bash.conditions import holds
from scalewright.emit.bash.outputs import output
from scalewright.emit.bash.patterns import SPACES, cut
from scalewright.emit.bash.shell import Left, Shell
from scalewright.emit.bash.state import options_of
from scalewright.emit.bash.unknown import Ended, known

NAME = re.compile(r"[A-Za-z_]\w*")
CHANGES = {"nocasematch", "nullglob", "failglob", "lastpipe", "expand_aliases"}  # of words, which aren't followed


class WithBuiltins(Shell):
    """A shell that has them."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        leaves = {name: partial(self.leave, name) for name in ("exit", "return", "break", "continue")}
        tests = {"test": self.test, "[": lambda words: self.test(words[:-1])}
        lists = {"mapfile": self.mapfile, "readarray": self.mapfile}
        nothing = dict.fromkeys(("true", ":", "wait", "umask", "ulimit"), lambda words: True)
        self.builtins = {
            "eval": lambda words: self.text(" ".join(words), "eval"), "source": self.source_, ".": self.source_,
            "cd": self.cd, "unset": self.unset, "set": self.set_, "shift": self.shift, "read": self.read,
            "false": lambda words: False, "getopts": self.getopts, "trap": self.trap, "shopt": self.shopt,
            "xargs": self.xargs, "printf": self.printf, **leaves, **tests, **lists, **nothing,
        }  # fmt: skip

    def source_(self, words: list[str]) -> bool | None:
        text = self.file(words[0]) if words else None
        if text is None:
            path = self.result.marks.shown(words[0]) if words else ""
            self.note(f"{path} is sourced, and isn't beside the script: what it sets isn't known")
            return None if self.asking else True
        before = self.state.arguments
        self.state.arguments = words[1:] or before
        try:
            return self.text(text, words[0])
        except Left as left:
            if left.kind != "return":
                raise
            return left.levels == 0
        finally:
            self.state.arguments = before if len(words) > 1 else self.state.arguments

    def test(self, words: list[str]) -> bool | None:
        return holds(words, self.words)

    def cd(self, words: list[str]) -> bool | None:
        path = self.state.path(words[-1]) if words else "~"
        there = not known(path) or path in ("~", ".", "..", "-") or has_folder(path, self.state, self.folder)
        self.state.directory = path
        if not there and not self.asking and (self.excused or "errexit" in self.state.options):
            self.note(f"`cd {path}` is taken as if that folder were there")
        return there or (None if self.asking else True)

    def unset(self, words: list[str]) -> bool | None:
        for word in words:
            name, _, subscript = word.rstrip("]").partition("[")
            if subscript:
                items = self.state.items(name)
                items.pop(int(subscript) if subscript.isdecimal() else subscript, None)
                self.state.variables[self.state.target(name)] = items
            elif not word.startswith("-"):
                self.state.remove(self.state.target(word))
        return True

    def set_(self, words: list[str]) -> bool | None:
        options = 0
        while options < len(words) and words[options][:1] in ("-", "+") and words[options] != "--":
            options += 2 if words[options][1:].endswith("o") else 1
        self.state.options = options_of(words[:options], self.state.options)
        if words[options:]:
            self.state.arguments = words[options + (words[options] == "--") :]
        return True

    def shift(self, words: list[str]) -> bool | None:
        count = int(words[0]) if words and words[0].isdecimal() else 1
        if self.state.arguments is None or (words and not known(*words)):
            return True
        if count > len(self.state.arguments):
            return False
        self.state.arguments = self.state.arguments[count:]
        return True

    def trap(self, words: list[str]) -> bool | None:
        if {"EXIT", "0"} & set(words[1:]):
            self.at_exit = words[0].lstrip("-")
        return True

    def shopt(self, words: list[str]) -> bool | None:
        for name in CHANGES & set(words) if "-s" in words else ():
            self.note(f"`shopt -s {name}` isn't followed")
        return None if "-q" in words else True

    def xargs(self, words: list[str]) -> bool | None:
        """Its input as more words, or each line in place of `-I {}`."""
        options, words = _options(words, "EIadLnPs")
        plain = not options.keys() - {"I", "n", "P", "t", "r"} and options.get("n", ["1"]) == ["1"]
        mark, each = self.result.marks.make("$(xargs)", "its input", 0), options.get("I", [""])[0]
        more = (self.input or "").split("\n" if each else None) if plain and known(self.input or "") else [mark]
        if "I" not in options and "n" not in options:
            return self.start([*(words or ["echo"]), *more], {}, 0, functions=False)
        for text in filter(None, more):
            self.start([word.replace(each, text) for word in words] if each else [*words, text], {}, 0, functions=False)
        return True

    def printf(self, words: list[str]) -> bool | None:
        if words[:1] != ["-v"] or len(words) < 3:
            self._print(["printf", *words])
            return True
        self.words.assign(words[1], output(["printf", *words[2:]], "") if known(*words[2:]) else None)
        return True

    # -- input and options --------------------------------------------------------------------------------

    def getopts(self, words: list[str]) -> bool | None:
        """The next option; the arguments that a script is started with are taken as none."""
        arguments, place = self.state.arguments or [], self.words.evaluated(self.state.scalar("OPTIND") or "1") or 1
        within = int(self.state.attributes.get("OPTIND") or "1")  # a letter of `-vx`
        word = arguments[place - 1] if 0 < place <= len(arguments) else ""
        letter, rest = word[within : within + 1], word[within + 1 :]
        if len(words) < 2 or not re.fullmatch(r"-[^-].*", word, re.DOTALL):
            self.words.assign("OPTIND", str(place + (word == "--")))
            return False
        takes = f"{letter}:" in words[0]
        self.words.assign("OPTARG", (rest or "".join(arguments[place : place + 1])) if takes else "")
        self.words.assign("OPTIND", str(place + (takes or not rest) + (takes and not rest)))
        self.state.attributes["OPTIND"] = "1" if takes or not rest else str(within + 1)
        self.words.assign(words[1], letter if letter in words[0] and letter != ":" else "?")
        return True

    def read(self, words: list[str]) -> bool | None:
        """A line of the input, where it is known."""
        options, names = _options(words, "adinNptu")
        names = options["a"] + names if "a" in options else names or ["REPLY"]
        if self.input is None or not known(self.input) or "u" in options or not known(*words):
            for name in names:
                self.state.put(name, self.result.marks.make(f"${name}", "it is read from a file or a program", 0))
            return None
        end = (options["d"][0][:1] or "\0") if "d" in options else "\n"
        line, ended, self.input = self.input.partition(end)
        if "n" in options or "N" in options:
            count = self.words.evaluated((options.get("n") or options["N"])[0]) or 0
            line, ended, self.input = line[:count], "n", line[count:] + ended + self.input
        if "r" not in options:
            line = re.sub(r"\\(.?)", r"\1", line, flags=re.DOTALL)
        spaces = "".join(char for char in self.words.separators if char in SPACES)
        words_ = line if names == ["REPLY"] and words[-1:] != names else line.strip(spaces)
        if "a" in options:
            self.state.put(names[0], dict(enumerate(cut(words_, self.words.separators)[::2] if words_ else [])))
            return bool(ended)
        parts = cut(words_, self.words.separators, len(names) - 1)[::2] if len(names) > 1 else [words_]
        for name, part in zip(names, [*parts, *[""] * len(names)], strict=False):
            self.state.put(name, part)
        return bool(ended)

    def mapfile(self, words: list[str]) -> bool | None:
        options, names = _options(words, "dnOsuCc")
        name = (names or ["MAPFILE"])[0]
        if self.input is None or not known(self.input) or options.keys() - {"t", "n"}:
            self.state.put(name, {0: self.result.marks.make(f"${{{name}[@]}}", "it is read from a program", 0)})
            return True
        lines = self.input.split("\n") if "t" in options else re.findall(r"[^\n]*\n|[^\n]+", self.input)
        lines = lines[:-1] if lines and not lines[-1] else lines
        count = self.words.evaluated(options["n"][0]) if "n" in options else 0
        self.state.put(name, dict(enumerate(lines[: count or None])))
        return True

    def leave(self, kind: str, words: list[str]) -> bool | None:
        number = int(words[0]) % 256 if words and words[0].isdecimal() and len(words[0]) < 9 else None
        if kind == "exit":
            raise Ended("", (self.state.status if number is None else str(number)) == "0")
        if kind == "return" and number is None:
            number = int(self.state.status) if self.state.status.isdecimal() else 0
        raise Left(kind, 1 if number is None else number)


def _options(words: list[str], valued: str) -> tuple[dict[str, list[str]], list[str]]:
    """Options by their letters, `valued` with their values; the other words."""
    options: dict[str, list[str]] = {}
    words = list(words)
    while words and words[0].startswith("-") and len(words[0]) > 1:
        letters = words.pop(0)[1:]
        for place, letter in enumerate(letters):
            options[letter] = []
            if letter in valued:
                options[letter] = [letters[place + 1 :] or (words.pop(0) if words else "")]
                break
    return options, words
