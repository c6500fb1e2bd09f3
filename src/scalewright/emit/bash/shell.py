"""A shell: simple commands, functions, shells within it, what it prints; and the commands that it would start.

launch() { torchrun "$@"; }; launch train.py        a command ["torchrun", "train.py"]
srun bash -c "torchrun $ARGS"                       a command ["srun", "torchrun", ...]

Nothing is started and no file is written. A program's status is success. A loop without an end, a function that
calls itself and a text that doubles itself end at the limits below.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from scalewright.emit.bash import arithmetic
from scalewright.emit.bash.conditions import negated
from scalewright.emit.bash.outputs import PROGRAMS, output
from scalewright.emit.bash.state import Array, State
from scalewright.emit.bash.tree import Node, line_of, parse
from scalewright.emit.bash.unknown import MARK, Marks, known
from scalewright.emit.bash.words import ASSIGNED, Words
from scalewright.spec.common.untrusted import read_bytes
from scalewright.spec.errors import UserError

STEPS, DEPTH, LONGEST = 20_000, 40, 200_000  # statements, scripts within scripts, characters of a command
SHELLS = re.compile(r"(?:.*/)?(?:ba|da|z)?sh")
SCRIPT_BYTES = 1 << 20


@dataclass(frozen=True)
class Command:
    """A command that the script starts, with marks (unknown.py) where a text isn't known."""

    words: list[str]
    environ: dict[str, str]  # exported to it, or set for it alone
    line: int
    when: tuple[str, ...] = ()  # conditions that can't be known, under which alone it starts


class Ended(Exception):
    """`exit`, `exec` and the limits: nothing more of a shell is run."""


class Left(Exception):
    """`return`, `break` and `continue`: `levels` of loops."""

    def __init__(self, kind: str, levels: int = 1) -> None:
        super().__init__(kind)
        self.kind, self.levels = kind, levels


@dataclass
class Result:
    """What is known of a script after it was followed; one for it and all shells within it."""

    commands: list[Command] = field(default_factory=list)
    marks: Marks = field(default_factory=Marks)
    assumed: list[str] = field(default_factory=list)  # variables that were taken as not set
    notes: list[str] = field(default_factory=list)
    steps: int = 0


class Shell(ABC):
    """One shell: it follows statements in its state. `prefix`: the launcher that started it, srun's words."""

    builtins: Mapping[str, Callable[[list[str]], bool | None]]

    def __init__(
        self, state: State, result: Result, text: bytes, folder: Path | None, depth: int = 0,
        prefix: Sequence[str] = (), when: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.state, self.result, self.folder, self.depth = state, result, folder, depth
        self.prefix, self.when = list(prefix), when
        self.words = Words(state, result.marks, text, self.captured)
        self.printed: list[str] | None = None  # texts, where the output is asked for; a null in it can't be known
        self.hidden = False  # a program whose output isn't known has printed
        self.input: str | None = None
        self.deaf = False  # there is input, and it isn't known
        self.recording = True  # not in $(...)
        self.asking = False  # in a condition, where a program's status isn't taken as success

    @abstractmethod
    def compound(self, command: Node) -> bool | None:
        """Follows a command by its kind: a call, `if`, a loop."""

    # -- statements ---------------------------------------------------------------------------------------

    def run(self, statements: Sequence[Node]) -> bool | None:
        """Follows the statements; the status of the last one."""
        status: bool | None = True
        for statement in statements:
            status = self.statement(statement)
        return status

    def statement(self, node: Node) -> bool | None:
        self.result.steps += 1
        if self.result.steps > STEPS:
            self.note("the script doesn't come to an end here: its loops were followed for a while")
            raise Ended
        command = node.get("Cmd")
        redirections = node.get("Redirs") or []
        with self._redirected(redirections):
            status = True if command is None else self.compound(command)
        return negated(status) if node.get("Negated") else status

    def note(self, text: str) -> None:
        if text not in self.result.notes:
            self.result.notes.append(text)

    @contextmanager
    def _redirected(self, redirections: list[Node]) -> Iterator[None]:
        """Input from a here-document or a file of the script's own; output into such a file."""
        before = self.input, self.printed, self.hidden
        target = ""
        for redirection in redirections:
            sign = redirection["Op"]
            if sign in ("<<", "<<-"):
                text = self.words.text(redirection["Hdoc"]) if redirection.get("Hdoc") else ""
                self.input = re.sub(r"(?m)^\t+", "", text) if sign == "<<-" else text
            elif sign == "<<<":
                self.input = self.words.text(redirection["Word"]) + "\n"
            elif sign == "<":
                self.input = self._read(redirection["Word"])
            elif sign in (">", ">>", ">|", "&>") and (redirection.get("N") or {}).get("Value", "1") != "2":
                target = self.words.text(redirection["Word"])
                target = target if target == "/dev/null" else self.state.path(target)
                old = self.state.files.get(target, "") if sign == ">>" else ""
                self.printed, self.hidden = [old], False
        try:
            yield
        finally:
            if target and self.printed is not None and not self.hidden and target != "/dev/null":
                self.state.files[target] = "".join(self.printed)
            self.input = before[0]
            if target:
                self.printed, self.hidden = before[1:]

    def _read(self, word: Node) -> str | None:
        """What is behind `<`: a file of the script's own, or the output of `<(...)`."""
        part = word["Parts"][0]
        return (
            self.captured(part["Stmts"])
            if part["Type"] == "ProcSubst"
            else self.state.files.get(self.state.path(self.words.text(word)))
        )

    # -- outputs and inner shells -------------------------------------------------------------------------

    def captured(self, statements: Sequence[Node], recording: bool = False) -> str | None:
        """What statements print in a shell of their own; None where that isn't known."""
        inner = self._inner(self.state.copy())
        inner.printed, inner.recording = [], recording and self.recording
        inner.words.empty_outside = self.words.empty_outside
        inner.follow(lambda: inner.run(statements))
        self.words.assumed += inner.words.assumed
        return None if inner.hidden else "".join(inner.printed)

    def _inner(self, state: State, text: bytes | None = None, prefix: Sequence[str] = ()) -> Shell:
        text = self.words.source if text is None else text
        inner = type(self)(state, self.result, text, self.folder, self.depth + 1, prefix or self.prefix, self.when)
        inner.recording = self.recording
        inner.words.assigned |= self.words.assigned
        if inner.depth > DEPTH:
            self.note("scripts and functions within each other are followed to a depth of 40")
            raise Ended
        return inner

    def follow(self, action: Callable[[], object]) -> None:
        """Runs until the end of this shell."""
        with suppress(Ended, Left):
            action()

    def text(self, text: str, where: str) -> bool | None:
        """Follows a text in this very shell: `eval`, `source`."""
        try:
            statements = parse(text, where)
        except UserError as error:
            self.note(error.what)
            return None
        self.words.assigned |= set(ASSIGNED.findall(text))
        with self._in(text.encode()):
            return self.run(statements)

    @contextmanager
    def _in(self, text: bytes) -> Iterator[None]:
        before, self.words.source = self.words.source, text
        self.depth += 1
        try:
            if self.depth > DEPTH:
                self.note("scripts and functions within each other are followed to a depth of 40")
                raise Ended
            yield
        finally:
            self.words.source = before
            self.depth -= 1

    # -- simple commands ----------------------------------------------------------------------------------

    def call(self, node: Node) -> bool | None:
        assigns = node.get("Assigns") or []
        words = [field for word in node.get("Args") or [] for field in self.words.fields(word)]
        if not words:
            for assign in assigns:
                self.assign(assign)
            return True
        if sum(map(len, words)) > LONGEST:
            raise Ended
        environ = {
            assign["Name"]["Value"]: self.words.text(assign["Value"]) if assign.get("Value") else ""
            for assign in assigns
        }
        return self.start(words, environ, line_of(node))

    def assign(self, node: Node, local: bool = False) -> None:
        """`X=1`, `X+=(a b)`, `X[2]=c`."""
        name, value, array = node["Name"]["Value"], node.get("Value"), node.get("Array")
        if local:
            self.state.local.setdefault(name, self.state.variables.get(name))
        if array is not None:
            self.state.variables[name] = self._array(name, array, bool(node.get("Append")))
            self.state.unset.discard(name)
            return
        text = self.words.text(value) if value else ""
        subscript = node.get("Index")
        if subscript is not None:
            items = self.state.items(name)
            strings = any(isinstance(key, str) for key in items) or name in self.maps
            key: int | str | None = self.words.text(subscript) if strings else arithmetic.value(subscript, self.words)
            if key is not None:
                self.state.variables[name] = items | {key: items.get(key, "") + text if node.get("Append") else text}
            return
        if node.get("Append"):
            text = (self.state.scalar(name) or "") + text
        if len(text) > LONGEST:
            self.note(f"${name} grows beyond {LONGEST:,} characters")
            raise Ended
        self.state.put(name, text)

    @property
    def maps(self) -> set[str]:
        """Variables of `declare -A`."""
        return {name for name, value in self.state.variables.items() if isinstance(value, dict) and not value}

    def _array(self, name: str, array: Node, append: bool) -> Array:
        items: Array = self.state.items(name) if append else {}
        place = max((key for key in items if isinstance(key, int)), default=-1) + 1
        for element in array.get("Elems") or []:
            if element.get("Index"):
                number = arithmetic.value(element["Index"], self.words) if name not in self.maps else None
                key: int | str = self.words.text(element["Index"]) if number is None else number
                items[key] = self.words.text(element["Value"]) if element.get("Value") else ""
                place = key + 1 if isinstance(key, int) else place
                continue
            for text in self.words.fields(element["Value"]):
                items[place] = text
                place += 1
        return items

    def start(self, words: list[str], environ: dict[str, str], line: int) -> bool | None:
        """A builtin, a function of the script's, a shell within it, or a program."""
        name, rest = words[0], words[1:]
        if name in self.state.functions:
            return self.function(name, rest, environ)
        if name == "printf" and rest[:1] == ["-v"] and len(rest) > 2:
            text = output(["printf", *rest[2:]], "") if known(*rest) else None
            self.words.assign(rest[1], text)
            return True
        if name in self.builtins:
            return self.builtins[name](rest)
        if name in ("command", "builtin", "exec", "time", "nohup") and rest and not rest[0].startswith("-"):
            status = self.start(rest, environ, line)
            if name == "exec":
                raise Ended
            return status
        if name == "env" and (rest := self._environ(rest, environ)):
            return self.start(rest, environ, line)
        for index, word in enumerate(words):
            if SHELLS.fullmatch(word) and self._shell(words[:index], words[index + 1 :], environ):
                return None if self.asking else True
        self._print(words)
        if self.recording:
            exported = {key: self.state.scalar(key) or "" for key in sorted(self.state.exported)} | environ
            self.result.commands.append(Command([*self.prefix, *words], exported, line, self.when))
        return None if self.asking and name not in PROGRAMS else True

    def _print(self, words: list[str]) -> None:
        if self.printed is None:
            return
        text, paths = self.input or "", [self.state.path(word) for word in words[1:]]
        if words[0] == "cat" and len(words) > 1 and all(path in self.state.files for path in paths):
            words, text = ["cat"], "".join(self.state.files[path] for path in paths)
        own = words[0] in ("echo", "printf")  # it prints its words, whatever comes in
        readable = own or (known(*words, text) and not (self.deaf and self.input is None))
        printed = output(words, text) if readable else None
        if printed is None:
            self.hidden = True
        else:
            self.printed.append(printed)

    def _environ(self, words: list[str], environ: dict[str, str]) -> list[str]:
        """`env A=1 -u B program`: the words of the program."""
        words = list(words)
        while words and (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[0], re.DOTALL)):
            environ[match[1]] = match[2]
            words.pop(0)
        return [] if words and words[0].startswith("-") else words

    def _shell(self, prefix: list[str], words: list[str], environ: dict[str, str]) -> bool:
        """`bash -c TEXT`, `bash FILE`, `bash <<EOF`: whether it was followed."""
        options = []
        while words and words[0][:1] in "-+" and words[0] not in ("-", "--"):
            options.append(words.pop(0))
            if options[-1] in ("-o", "+o", "-O", "--rcfile") and words:
                words.pop(0)
        if any(re.fullmatch(r"-\w*c\w*", option) for option in options):
            if not words:
                return False
            text, name, arguments = words[0], words[1] if len(words) > 1 else "bash", words[2:]
        elif words:
            read = self._file(words[0])
            if read is None:
                return False
            text, name, arguments = read, words[0], words[1:]
        elif self.input is not None:
            text, name, arguments = self.input, "bash", []
        else:
            return False
        state = self.state.child(name, arguments, environ)
        inner = self._inner(state, text.encode(), [*self.prefix, *prefix])
        try:
            statements = parse(text, name)
        except UserError as error:
            self.note(error.what)
            return False
        inner.follow(lambda: inner.run(statements))
        self.words.assumed += inner.words.assumed
        return True

    def _file(self, path: str) -> str | None:
        """A script that lies beside this one, or that it wrote."""
        if self.state.path(path) in self.state.files:
            return self.state.files[self.state.path(path)]
        if self.folder is None:
            return None
        rest = MARK.split(path)[-1].lstrip("/") if not known(path) else self.state.path(path)
        beside = (self.folder / rest).resolve()
        if not rest or not beside.is_relative_to(self.folder.resolve()):
            return None
        try:
            return read_bytes(beside, SCRIPT_BYTES).decode(errors="replace")
        except (OSError, ValueError, UserError):
            return None

    def function(self, name: str, arguments: list[str], environ: dict[str, str]) -> bool | None:
        body, text = self.state.functions[name]
        before, local = self.state.arguments, self.state.local
        self.state.arguments, self.state.local = arguments, {}
        for key, value in environ.items():
            self.state.local[key] = self.state.variables.get(key)
            self.state.variables[key] = value
        try:
            with self._in(text):
                return self.statement(body)
        except Left as left:
            if left.kind != "return":
                raise
            return left.levels == 0
        finally:
            for key, value_before in self.state.local.items():
                if value_before is None:
                    self.state.variables.pop(key, None)
                else:
                    self.state.variables[key] = value_before
            self.state.arguments, self.state.local = before, local
