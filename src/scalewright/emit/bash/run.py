"""What a script does, statement by statement, and the commands that it would start.

if [ $SIZE = 70b ]; then TP=8; else TP=1; fi        decided where SIZE is known; else TP "depends on `[ $SIZE = 70b ]`"
launch() { torchrun "$@"; }; launch train.py        a command ["torchrun", "train.py"]
srun bash -c "torchrun $ARGS"                       a command ["srun", "torchrun", ...]

Nothing is started and no file is written. A program's status is success. A loop without an end, a function that
calls itself and a text that doubles itself end at the limits below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from scalewright.emit.bash import arithmetic
from scalewright.emit.bash.conditions import holds, holds_in_brackets, negated
from scalewright.emit.bash.merge import merged
from scalewright.emit.bash.outputs import PROGRAMS, output
from scalewright.emit.bash.patterns import matches
from scalewright.emit.bash.state import Array, State
from scalewright.emit.bash.tree import Node, line_of, parse, source
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


class Shell:
    """One shell: it follows statements in its state. `prefix`: the launcher that started it, srun's words."""

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
        self.recording = True  # not in $(...)
        self.asking = False  # in a condition, where a program's status isn't taken as success

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
            status = True if command is None else KINDS[command["Type"]](self, command)
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
                (part, *_) = redirection["Word"]["Parts"]
                program = part.get("Type") == "ProcSubst"
                self.input = (
                    self.captured(part["Stmts"])
                    if program
                    else self.state.files.get(self.words.text(redirection["Word"]))
                )
            elif sign in (">", ">>", ">|", "&>") and (redirection.get("N") or {}).get("Value", "1") != "2":
                target = self.words.text(redirection["Word"])
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
        inner = Shell(state, self.result, text, self.folder, self.depth + 1, prefix or self.prefix, self.when)
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
        if name in BUILTINS:
            return BUILTINS[name](self, rest)
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
        text = self.input or ""
        if words[0] == "cat" and len(words) > 1 and all(word in self.state.files for word in words[1:]):
            words, text = ["cat"], "".join(self.state.files[word] for word in words[1:])
        simple = known(*words) or words[0] in ("echo", "printf")
        text = output(words, text) if simple and known(text) else None
        if text is None:
            self.hidden = True
        else:
            self.printed.append(text)

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
        if path in self.state.files:
            return self.state.files[path]
        if self.folder is None:
            return None
        rest = MARK.split(path)[-1].lstrip("/") if not known(path) else path
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

    # -- what branches --------------------------------------------------------------------------------------

    def condition(self, statements: Sequence[Node]) -> tuple[bool | None, list[str]]:
        """The status of a condition, and the variables that it took as not set."""
        before, self.asking = self.asking, True
        try:
            with self.words.nothing_outside() as assumed:
                status = self.run(statements)
            return status, assumed
        finally:
            self.asking = before

    def either(self, branches: Sequence[Callable[[], object]], condition: str, line: int) -> None:
        """Follows each branch from here; what differs after them can't be known."""
        start, states, when = self.state, [], self.when
        ended: Exception | None = None
        self.when = (*when, condition)
        for branch in branches:
            self.state = self.words.state = start.copy()
            try:
                branch()
                states.append(self.state)
            except (Ended, Left) as end:
                ended = end
        self.when = when
        self.state = self.words.state = merged(states, self.result.marks, condition, line) if states else start
        if not states and ended is not None:
            raise ended

    def if_(self, node: Node) -> bool | None:
        if "Cond" not in node or not node["Cond"]:
            return self.run(node["Then"])
        status, assumed = self.condition(node["Cond"])
        text = "; ".join(source(self.words.source, each) for each in node["Cond"])
        otherwise: Callable[[], object] = (lambda: self.if_(node["Else"])) if node.get("Else") else (lambda: None)
        branches: list[Callable[[], object]] = [lambda: self.run(node["Then"]), otherwise]
        if status is None:
            self.either(branches, text, line_of(node["Cond"][0]))
            return True
        chosen = branches[0] if status else branches[1]
        if assumed and self._exits(node["Then"] if status else (node.get("Else") or {}).get("Then", [])):
            self.note(f"`{text}` (line {line_of(node['Cond'][0])}) is taken as if the script went on")
            chosen = branches[1] if status else branches[0]
        self.result.assumed += assumed
        chosen()
        return True

    def _exits(self, statements: Sequence[Node]) -> bool:
        """Whether a branch ends the script: usage that is printed, a check of arguments."""
        last = (statements or [{}])[-1].get("Cmd") or {}
        return _first(last.get("Args") or []) in ("exit", "usage", "die", "return")

    def case(self, node: Node) -> bool | None:
        with self.words.nothing_outside() as assumed:
            subject = self.words.text(node["Word"])
        items = node.get("Items") or []
        if not known(subject):
            branches = [self._item(item) for item in items]
            whole = any(self.words.pattern(pattern) == "*" for item in items for pattern in item["Patterns"])
            self.either(
                [*branches, *([] if whole else [lambda: None])],
                f"case {self.result.marks.shown(subject)}",
                line_of(node),
            )
            return True
        self.result.assumed += assumed
        for item in items:
            if any(matches(subject, self.words.pattern(pattern)) for pattern in item["Patterns"]):
                return self.run(item.get("Stmts") or [])
        return True

    def _item(self, item: Node) -> Callable[[], object]:
        return lambda: self.run(item.get("Stmts") or [])

    def binary(self, node: Node) -> bool | None:
        sign, left, right = node["Op"], node["X"], node["Y"]
        if sign in ("|", "|&"):
            text = self.captured([left], recording=True)
            before, self.input = self.input, text
            try:
                inner = self._inner(self.state.copy())
                inner.input, inner.printed, inner.asking = text, [] if self.printed is not None else None, self.asking
                status: bool | None = None
                with inner.words.nothing_outside() if self.words.empty_outside else _nothing():
                    status = inner.statement(right)
                if inner.printed is not None and self.printed is not None:
                    self.printed += inner.printed
                    self.hidden |= inner.hidden
                return status
            except (Ended, Left):
                return True
            finally:
                self.input = before
        first, assumed = self.condition([left]) if _is_test(left) else (self.statement(left), [])
        if first is (sign == "||"):
            self.result.assumed += assumed
            return first
        if first is None:
            if self.asking:
                second = self.statement(right)
                return {"&&": False, "||": True}[sign] if second is (sign == "||") else None
            self.either([lambda: self.statement(right), lambda: None], source(self.words.source, left), line_of(left))
            return None
        self.result.assumed += assumed
        if assumed and self._exits([right]):
            return True
        return self.statement(right)

    def loop(self, node: Node) -> bool | None:
        inside = node["Loop"]
        if inside["Type"] == "CStyleLoop":
            if inside.get("Init"):
                arithmetic.value(inside["Init"], self.words)
            while (number := arithmetic.value(inside["Cond"], self.words) if inside.get("Cond") else 1) != 0:
                if number is None:
                    self._once(node)
                    break
                if not self._body(node["Do"]):
                    break
                if inside.get("Post"):
                    arithmetic.value(inside["Post"], self.words)
            return True
        name, items = inside["Name"]["Value"], inside.get("Items")
        values = (
            self.state.arguments or []
            if items is None
            else [field for word in items for field in self.words.fields(word)]
        )
        for value in values:
            self.state.put(name, value)
            if not self._body(node["Do"]):
                break
        return True

    def while_(self, node: Node) -> bool | None:
        while True:
            status, assumed = self.condition(node["Cond"])
            self.result.assumed += assumed
            status = negated(status) if node.get("Until") else status
            if status is None:
                self._once(node)
                return True
            if not status or not self._body(node["Do"]):
                return True

    def _once(self, node: Node) -> None:
        """A loop of which it isn't known how often it runs: no time, or once."""
        text = source(self.words.source, node).partition("\n")[0]
        self.either([lambda: self._body(node["Do"]), lambda: None], text, line_of(node))

    def _body(self, statements: Sequence[Node]) -> bool:
        """One round of a loop: whether there may be another."""
        try:
            self.run(statements)
        except Left as left:
            if left.kind == "return":
                raise
            if left.levels > 1:
                raise Left(left.kind, left.levels - 1) from None
            return left.kind == "continue"
        return True

    def subshell(self, node: Node) -> bool | None:
        inner = self._inner(self.state.copy())
        inner.printed, inner.input, inner.asking = self.printed, self.input, self.asking
        inner.follow(lambda: inner.run(node.get("Stmts") or []))
        self.hidden |= inner.hidden
        return True

    def declare(self, node: Node) -> bool | None:
        """`export`, `local`, `declare`, `readonly`."""
        variant, options = node["Variant"]["Value"], ""
        for argument in node.get("Args") or []:
            if argument.get("Name") is None:
                options += self.words.text(argument["Value"])
                continue
            name = argument["Name"]["Value"]
            local = variant == "local" or (variant in ("declare", "typeset") and self.depth > 0 and "g" not in options)
            if not argument.get("Naked"):
                if "A" in options:
                    self.state.variables.setdefault(name, {})
                self.assign(argument, local=variant == "local")
            elif local and variant == "local":
                self.state.local.setdefault(name, self.state.variables.get(name))
                self.state.put(name, "")
            elif "A" in options or "a" in options:
                self.state.variables.setdefault(name, {})
            if variant == "export" or "x" in options:
                self.state.exported.add(name)
        return True

    def define(self, node: Node) -> bool | None:
        self.state.functions[node["Name"]["Value"]] = (node["Body"], self.words.source)
        return True

    # -- builtins -------------------------------------------------------------------------------------------

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
        return holds(words, self.state.files)

    def bracket(self, words: list[str]) -> bool | None:
        return holds(words[:-1] if words[-1:] == ["]"] else words, self.state.files)

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


def _is_test(node: Node) -> bool:
    """Whether a statement is a condition alone."""
    command = node.get("Cmd") or {}
    if command.get("Type") in ("TestClause", "ArithmCmd"):
        return True
    if command.get("Type") == "BinaryCmd" and command["Op"] in ("&&", "||"):
        return _is_test(command["X"]) and _is_test(command["Y"])
    arguments = command.get("Args") or []
    return _first(arguments) in ("[", "test")


def _first(words: Sequence[Node]) -> str | None:
    """A command's name, where it is plain."""
    parts = words[0].get("Parts") if words else None
    return parts[0].get("Value") if parts else None


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _arithmetic(shell: Shell, node: Node) -> bool | None:
    number = arithmetic.value(node["X"], shell.words)
    return None if number is None else number != 0


def _let(shell: Shell, node: Node) -> bool | None:
    numbers = [arithmetic.value(each, shell.words) for each in node["Exprs"]]
    return None if numbers[-1] is None else numbers[-1] != 0


KINDS: dict[str, Callable[[Shell, Node], bool | None]] = {
    "CallExpr": Shell.call, "IfClause": Shell.if_, "CaseClause": Shell.case, "ForClause": Shell.loop,
    "WhileClause": Shell.while_, "BinaryCmd": Shell.binary, "Subshell": Shell.subshell, "DeclClause": Shell.declare,
    "FuncDecl": Shell.define, "Block": lambda shell, node: shell.run(node.get("Stmts") or []), "ArithmCmd": _arithmetic,
    "LetClause": _let, "TestClause": lambda shell, node: holds_in_brackets(node["X"], shell.words, shell.state.files),
    "TimeClause": lambda shell, node: shell.statement(node["Stmt"]) if node.get("Stmt") else True,
    "CoprocClause": lambda shell, node: shell.statement(node["Stmt"]), "TestDecl": lambda shell, node: True,
}  # fmt: skip
BUILTINS: dict[str, Callable[[Shell, list[str]], bool | None]] = {
    "eval": Shell.evaluate, "source": Shell.source_, ".": Shell.source_, "test": Shell.test, "[": Shell.bracket,
    "unset": Shell.unset, "set": Shell.set_, "shift": Shell.shift, "read": Shell.read, "mapfile": Shell.mapfile,
    "readarray": Shell.mapfile, "exit": lambda shell, words: shell.leave("exit", words),
    "return": lambda shell, words: shell.leave("return", words), "break": lambda shell, words: shell.leave("break", words),
    "continue": lambda shell, words: shell.leave("continue", words), "true": lambda shell, words: True,
    ":": lambda shell, words: True, "false": lambda shell, words: False, "getopts": lambda shell, words: False,
}  # fmt: skip
