"""A shell: simple commands, functions, shells within it, what it prints; and the commands that it would start.

launch() { torchrun "$@"; }; launch train.py        a command ["torchrun", "train.py"]
srun bash -c "torchrun $ARGS"                       a command ["srun", "torchrun", ...]

Nothing is started or written; a program's status is success. What doesn't come to an end stops at the limits below.
"""

from __future__ import annotations

import re
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from scalewright.emit.bash import beside
from scalewright.emit.bash.conditions import negated
from scalewright.emit.bash.header import environ_of, header
from scalewright.emit.bash.outputs import PROGRAMS, output
from scalewright.emit.bash.remote import remote
from scalewright.emit.bash.result import Command, Result
from scalewright.emit.bash.state import Array, State, Value, options_of
from scalewright.emit.bash.tree import Node, line_of, parse
from scalewright.emit.bash.unknown import Ended, known
from scalewright.emit.bash.words import ASSIGNED, HOME_OF_ELEMENT, HOME_OF_VALUE, LONGEST, Words
from scalewright.spec.errors import UserError

STEPS, DEPTH, SECONDS = 20_000, 40, 10  # statements, a parsed text counts as 50; scripts within scripts; of CPU time
SHELLS = re.compile(r"(?:.*/)?(?:ba|da|z)?sh")
ENDING = ("CallExpr", "TestClause", "ArithmCmd", "LetClause", "Subshell")  # where they fail under `set -e`
WRAPPERS = ("command", "builtin", "exec", "time", "nohup")
STARTERS = ("srun", "mpirun", "mpiexec", "jsrun", "singularity", "apptainer", "docker", "numactl", "timeout", "nsys")
# Programs that start none of those which they name: `echo torchrun ...`, `pip install deepspeed x`.
SILENT = PROGRAMS.keys() | {"pip", "pip3", "which", "type", "pkill", "killall", "pgrep", "module", "ls", "rm", "tee"}


class Left(Exception):
    """`return`, `break` and `continue`: `levels` of loops, or a status."""

    def __init__(self, kind: str, levels: int = 1) -> None:
        super().__init__(kind)
        self.kind, self.levels = kind, levels


class Shell(ABC):
    """One shell: it follows statements in its state. `prefix`: the launcher that started it, srun's words."""

    builtins: Mapping[str, Callable[[list[str]], bool | None]]

    def __init__(
        self, state: State, result: Result, text: bytes, folder: Path | None, depth: int = 0,
        prefix: Sequence[str] = (), when: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.state, self.result, self.folder, self.depth = state, result, folder, depth
        self.prefix, self.when = list(prefix), when
        self.words = Words(state, result.marks, text, self.captured, result.assumed, self.count, self.matched)
        self.printed: list[str | None] | None = None  # texts, where the output is asked for; null: not known
        self.input: str | None = None
        self.recording = True  # not in $(...)
        self.asking = False  # in a condition, where a program's status isn't taken as success
        self.excused = False  # in what may fail under `set -e`: a condition, the left of a list
        self.at_exit, self.substituted = "", "0"  # `trap ... EXIT`; the status of the last $(...)

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
        self.count(1)
        redirections, command = node.get("Redirs") or [], node.get("Cmd")
        simple = (command or {}).get("Type") in ENDING or (command or {}).get("Op") in ("|", "|&")
        excused, self.excused = self.excused, self.excused or bool(node.get("Negated"))
        code = self.state.status = self.state.status if known(self.state.status) else "0"
        try:
            with self._redirected(redirections):
                status = True if command is None else self.compound(command)
        finally:
            self.excused = excused
        status = negated(status) if node.get("Negated") else status
        if self.state.status == code or node.get("Negated") or (self.state.status == "0") != (status is True):
            self.state.status = (
                "0" if status else "1" if status is False
                else self.result.marks.make("$?", "a program's status", line_of(node))
            )  # fmt: skip
        if status is False and simple and "errexit" in self.state.options and not (excused or node.get("Negated")):
            raise Ended("", status)
        return status

    def count(self, steps: int) -> None:
        self.result.steps += steps
        if self.result.steps > STEPS or time.process_time() - self.result.started > SECONDS:
            raise Ended("the script doesn't come to an end here: its loops were followed for a while")
        if self.depth > DEPTH:
            raise Ended(f"scripts and functions within each other are followed to a depth of {DEPTH}")

    def note(self, text: str) -> None:
        if text not in self.result.notes:
            self.result.notes.append(text)

    @contextmanager
    def _redirected(self, redirections: list[Node]) -> Iterator[None]:
        """Input from a here-document or a file of the script's own; output into such a file."""
        before, target, has_input = (self.input, self.printed), "", False
        for redirection in redirections:
            sign = redirection["Op"]
            if sign in ("<<", "<<-", "<<<", "<", "<&"):
                has_input, self.input = True, self._input(sign, redirection)
            elif sign in (">", ">>", ">|", "&>", "&>>") and (redirection.get("N") or {}).get("Value", "1") == "1":
                target = self.words.text(redirection["Word"])
                target = target if target.startswith("/dev/") else self.state.path(target)
                self.printed = [self.state.files.get(target, "") if ">>" in sign else ""]
            elif sign == ">&" and (redirection.get("N") or {}).get("Value", "1") == "1":
                self.printed = None
        try:
            yield
        finally:
            if target and self.printed is not None and not target.startswith("/dev/"):
                self.state.files.pop(target, None)
                if None not in self.printed:
                    self.state.files[target] = self.bounded("".join(text or "" for text in self.printed))
            self.input = before[0] if has_input else self.input
            self.printed = before[1]

    def _input(self, sign: str, redirection: Node) -> str:
        """What is behind `<`: a text, a file of the script's own, or the output of `<(...)`."""
        if sign in ("<<", "<<-"):
            text = self.words.text(redirection["Hdoc"]) if redirection.get("Hdoc") else ""
            return re.sub(r"(?m)^\t+", "", text) if sign == "<<-" else text
        part = redirection["Word"]["Parts"][0]
        if part["Type"] == "ProcSubst":
            printed = self.captured(part["Stmts"])
        else:
            word = self.words.text(redirection["Word"])
            printed = f"{word}\n" if sign == "<<<" else self.state.files.get(self.state.path(word))
        return self.unknown_input if printed is None else printed

    @property
    def unknown_input(self) -> str:
        return self.result.marks.make("the input", "it is read from a file or a program", 0)

    def bounded(self, text: str) -> str:
        if len(text) > LONGEST:
            raise Ended(f"a text grows beyond {LONGEST:,} characters")
        return text

    def captured(self, statements: Sequence[Node], recording: bool = False) -> str | None:
        """What statements print in a shell of their own; None where that isn't known."""
        first = statements[0] if len(statements) == 1 else {}
        if first.get("Redirs") and not first.get("Cmd"):  # $(<file)
            return self.known_input(self._input("<", first["Redirs"][0]))
        left_out = set() if recording else {"errexit"}  # bash has it in pipes, and not in $(...)
        inner = self.inner(replace(self.state.copy(), options=self.state.options - left_out))
        inner.printed, inner.recording = [], recording and self.recording
        inner.follow(lambda: inner.run(statements))
        self.substituted = inner.state.status
        return None if None in inner.printed else self.bounded("".join(text or "" for text in inner.printed))

    def known_input(self, text: str | None) -> str | None:
        return None if text == self.unknown_input else text

    def inner(self, state: State, text: bytes | None = None, prefix: Sequence[str] = ()) -> Shell:
        self.count(len(state.variables) // 50)
        text = text or self.words.source
        inner = type(self)(state, self.result, text, self.folder, self.depth + 1, prefix or self.prefix, self.when)
        inner.recording, inner.input, inner.printed = self.recording, self.input, self.printed
        inner.asking, inner.excused = self.asking, self.excused
        inner.words.assigned = inner.words.assigned | self.words.assigned
        inner.words.empty_outside, inner.words.empty_arguments = self.words.empty_outside, self.words.empty_arguments
        return inner

    def follow(self, action: Callable[[], bool | None]) -> bool | None:
        """Runs until the end of this shell: its status."""
        status: bool | None = None
        try:
            status = action()
        except Ended as end:
            status = end.status
            if end.text:
                self.note(end.text)
                if self.printed is not None:
                    self.printed.append(None)
        except Left as left:
            status = left.levels == 0
        if self.at_exit:
            text, self.at_exit = self.at_exit, ""
            self.follow(lambda: self.text(text, "trap"))
        return status

    def parsed(self, text: str | None, where: str) -> list[Node] | None:
        """The statements of a text, or a note why there are none."""
        self.count(50)
        try:
            return None if text is None else parse(self.bounded(text), where)
        except UserError as error:
            self.note(error.what)
            return None

    def text(self, text: str, where: str) -> bool | None:
        """Follows a text in this very shell: `eval`, `source`."""
        statements = self.parsed(text, where)
        self.words.assigned |= set(ASSIGNED.findall(text))
        with self._in(text.encode()):
            return None if statements is None else self.run(statements)

    @contextmanager
    def _in(self, text: bytes) -> Iterator[None]:
        before, self.words.source, self.depth = self.words.source, text, self.depth + 1
        try:
            self.count(0)
            yield
        finally:
            self.words.source = before
            self.depth -= 1

    # -- simple commands ----------------------------------------------------------------------------------

    def call(self, node: Node) -> bool | None:
        assigns = node.get("Assigns") or []
        if not (words := self.words.fields(node.get("Args") or [])):
            self.substituted = "0"
            for assign in assigns:
                self.assign(assign)
            self.state.status = self.substituted
            return {"0": True}.get(self.state.status, False if known(self.state.status) else None)
        environ = {
            assign["Name"]["Value"]: self.words.text(assign["Value"], HOME_OF_VALUE) if assign.get("Value") else ""
            for assign in assigns
        }
        return self.start(words, environ, line_of(node))

    def assign(self, node: Node) -> None:
        """`X=1`, `X+=(a b)`, `X[2]=c`."""
        name, value, array, append = node["Name"]["Value"], node.get("Value"), node.get("Array"), node.get("Append")
        if array is not None:
            self.state.put(name, self._array(name, array, bool(append)))
            return
        text: str | None = self.words.text(value, HOME_OF_VALUE) if value else ""
        key = self.words.key(name, node["Index"]) if node.get("Index") else None
        if append:
            before = self.state.scalar(name) if key is None else self.state.items(name).get(key)
            text = f"{before or ''}{'+' if 'i' in self.state.attributes.get(name, '') and before else ''}{text}"
        if "i" in self.state.attributes.get(name, ""):
            number = self.words.evaluated(text or "")
            text = None if number is None else str(number)
        self.words.assign(name, None if text is None else self.bounded(text), key)

    def _array(self, name: str, array: Node, append: bool) -> Array:
        items: Array = dict(self.state.items(name)) if append else {}
        place = max((key for key in items if isinstance(key, int)), default=-1) + 1
        for element in array.get("Elems") or []:
            if element.get("Index"):
                key = self.words.key(name, element["Index"])
                items[place if key is None else key] = self.words.text(element["Value"]) if element.get("Value") else ""
                place = key + 1 if isinstance(key, int) else place
                continue
            for text in self.words.fields([element["Value"]], HOME_OF_ELEMENT):
                items[place] = text
                place += 1
        return items

    def start(self, words: list[str], environ: dict[str, str], line: int, functions: bool = True) -> bool | None:
        """A builtin, a function of the script's, a shell within it, or a program."""
        name, rest = words[0], words[1:]
        if functions and name in self.state.functions:
            return self.function(name, rest, environ)
        if name in self.builtins:
            self.result.ended = f"`{' '.join(words)}` of line {line}" if name == "exit" else self.result.ended
            with self._set_for(environ):
                return self.builtins[name](rest)
        if name in WRAPPERS and rest and (name == "time" or not rest[0].startswith("-")):
            rest = rest[1:] if rest[0] == "-p" else rest
            status = self.start(rest, environ, line, functions=name == "time")
            if name == "exec":
                raise Ended("", status)
            return status
        if name == "env" and (rest := self._environ(rest, environ)):
            return self.start(rest, environ, line, functions=False)
        for index, word in enumerate(words := remote(words)):
            script = word.endswith((".sh", ".bash")) and (not index or name in STARTERS)  # ./launch.sh torchrun ...
            after = words[index + (not script) :] if script or SHELLS.fullmatch(word) else None
            if after is not None and self._shell(words[:index], after, environ):
                return None if self.asking else True
        if name.startswith("-"):
            self.note(f"line {line}: `{self.result.marks.shown(name)} ...` is a command of its own, as a comment or "
                      "a line without `\\` ends the one before it")  # fmt: skip
        self.state.folders |= {self.state.path(word) for word in rest if name == "mkdir"}
        self._print(words)
        if self.recording and name not in SILENT:
            self.count(len(self.state.exported) // 50)
            exported = {key: self.state.scalar(key) or "" for key in sorted(self.state.exported)} | environ
            self.result.commands.append(Command([*self.prefix, *words], exported, line, self.when))
        return None if self.asking and name not in PROGRAMS else True

    def _print(self, words: list[str]) -> None:
        if self.printed is None:
            return
        text, paths = self.input or "", [self.state.path(word) for word in words[1:]]
        if words[0] == "cat" and len(words) > 1 and all(path in self.state.files for path in paths):
            words, text = ["cat"], "".join(self.state.files[path] for path in paths)
        readable = words[0] in ("echo", "printf") or known(*words, text)  # which print their words, whatever comes in
        self.printed.append(output(words, text) if readable else None)
        self.bounded("".join(each or "" for each in self.printed[-2:]))

    def _environ(self, words: list[str], environ: dict[str, str]) -> list[str]:
        """`env -u B A=1 program`: the words of the program."""
        while words and (words[0].startswith("-") or "=" in words[0]):
            word = words.pop(0)
            if word in ("-u", "--unset", "-C", "--chdir"):
                words = words[1:]
            elif not word.startswith("-"):
                environ[word.partition("=")[0]] = word.partition("=")[2]
        return words

    def _shell(self, prefix: list[str], words: list[str], environ: dict[str, str]) -> bool:
        """`bash -c TEXT`, `bash FILE`, `bash <<EOF`: whether it was followed."""
        options = []
        while words and words[0][:1] in "-+" and words[0] not in ("-", "--"):
            options.append(words.pop(0))
            if options[-1] in ("-o", "+o", "-O", "--rcfile") and words:
                options.append(words.pop(0))
        read: str | None
        if any(re.fullmatch(r"-\w*c\w*", option) for option in options):
            read, name, arguments = (words[0] if words else None), "".join(words[1:2]) or "bash", words[2:]
        elif words and words[0] != "-":
            read, name, arguments = self.file(words[0]), words[0], words[1:]
        else:
            read, name, arguments = self.known_input(self.input), "bash", words[1:]
        statements = self.parsed(read, name)
        if read is None or statements is None:
            return False
        if prefix and re.fullmatch(r"(?:.*/)?(sbatch|qsub)", prefix[0]):
            if name.rpartition("/")[2] == self.state.name:  # `sbatch "$0"`, where it isn't in a job yet
                return True
            stated = header(read) | header(f"#SBATCH {shlex.join(prefix[1:])}")
            environ = environ | environ_of(stated)
            prefix = [prefix[0], *(f"--{key}={value}" for key, value in stated.items())]
        inner = self.inner(self.state.child(name, arguments, environ), read.encode(), [*self.prefix, *prefix])
        inner.asking = inner.excused = False
        inner.state.options = options_of(options, inner.state.options)
        inner.follow(lambda: inner.run(statements))
        return True

    def file(self, path: str) -> str | None:
        """A script that lies beside this one, or that it wrote."""
        return beside.text_of(path, self.state, self.folder)

    def matched(self, pattern: str) -> list[str]:
        """The files that a pattern matches, which is noted: others may lie there when it runs."""
        paths = beside.matched(pattern, self.state, self.folder)
        if paths:
            self.note(f"`{pattern}` is taken as the files beside the script: {', '.join(paths)[:200]}")
        return paths

    @contextmanager
    def _set_for(self, environ: Mapping[str, str]) -> Iterator[dict[str, Value | None]]:
        """`A=1 command`, where that is followed in this shell; what variables were, to be put back at the end."""
        before: dict[str, Value | None] = {key: self.state.variables.get(key) for key in environ}
        self.state.variables |= environ
        try:
            yield before
        finally:
            self.state.variables |= {key: value for key, value in before.items() if value is not None}
            for key in [key for key, value in before.items() if value is None]:
                self.state.variables.pop(key, None)

    def function(self, name: str, arguments: list[str], environ: dict[str, str]) -> bool | None:
        body, text = self.state.functions[name]
        before = self.state.arguments, self.state.local, self.state.attributes
        self.state.arguments, self.state.attributes = arguments, dict(before[2])
        try:
            with self._set_for(environ) as self.state.local, self._in(text):
                return self.statement(body)
        except Left as left:
            if left.kind != "return":
                raise
            self.state.status = str(left.levels)
            return left.levels == 0
        finally:
            self.state.arguments, self.state.local, self.state.attributes = before
