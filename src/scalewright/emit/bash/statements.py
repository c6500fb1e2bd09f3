"""Conditions, loops and lists: decided where their values are known, each branch followed where they aren't.

if [ $SIZE = 70b ]; then TP=8; else TP=1; fi        TP is 8 or 1 by SIZE; else it "depends on `[ $SIZE = 70b ]`"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

from scalewright.emit.bash.builtins import WithBuiltins
from scalewright.emit.bash.conditions import both, either, holds_in_brackets, negated
from scalewright.emit.bash.patterns import matches
from scalewright.emit.bash.shell import Left
from scalewright.emit.bash.state import merged
from scalewright.emit.bash.tree import Node, line_of, source
from scalewright.emit.bash.unknown import Ended, known

TESTS = ("[", "test", "true", "false", ":")


class Interpreter(WithBuiltins):
    """A whole shell."""

    def compound(self, command: Node) -> bool | None:
        return KINDS[command["Type"]](self, command)

    def condition(self, follow: Callable[[], bool | None], test: bool = True) -> tuple[bool | None, int]:
        """The status of a condition, and how many variables had been taken as not set before it.

        `test`: not of the left of a list alone, which may fail under `set -e`, too.
        """
        before, assumed = (self.asking, self.excused), len(self.result.assumed)
        self.asking, self.excused = self.asking or test, True
        try:
            with self.words.nothing_outside() if test else nullcontext():
                return follow(), assumed
        finally:
            self.asking, self.excused = before

    def either(self, branches: Sequence[Callable[[], object]], condition: str, line: int) -> None:
        """Follows each branch from here; what differs after them can't be known."""
        start, states, when = self.state, [], self.when
        ended: Exception | None = None
        self.when = (*when, condition)
        for branch in branches:
            self.count(len(start.variables) // 50)
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
        self.result.ended = ""

    def if_(self, node: Node) -> bool | None:
        if not node.get("Cond"):
            return self.run(node["Then"])
        status, assumed = self.condition(lambda: self.run(node["Cond"]))
        text = "; ".join(source(self.words.source, each) for each in node["Cond"])
        otherwise = node.get("Else") or {}
        branches = [lambda: self.run(node["Then"]), lambda: self.if_(otherwise) if otherwise else True]
        if status is None:
            self.either(branches, text, line_of(node["Cond"][0]))
            return None
        if self.result.assumed[assumed:] and self._exits(node["Then"] if status else otherwise.get("Then") or []):
            self.note(f"`{text}` (line {line_of(node['Cond'][0])}) is taken as if the script went on")
            del self.result.assumed[assumed:]
            status = not status
        return branches[0 if status else 1]()

    def _exits(self, statements: Sequence[Node]) -> bool:
        """Whether a branch ends the script: usage that is printed, a check of arguments."""
        last = (statements or [{}])[-1].get("Cmd") or {}
        return _first(last.get("Args") or []) in ("exit", "usage", "die", "return")

    def case(self, node: Node) -> bool | None:
        with self.words.nothing_outside(arguments=False):
            subject = self.words.text(node["Word"])
        items = node.get("Items") or []
        patterns = [[self.words.pattern(pattern) for pattern in item["Patterns"]] for item in items]
        if not known(subject) or not all(known(*each) for each in patterns):
            branches: list[Callable[[], object]] = [partial(self.run, item.get("Stmts") or []) for item in items]
            branches += [] if any("*" in each for each in patterns) else [lambda: None]
            self.either(branches, f"case {self.result.marks.shown(subject)}", line_of(node))
            return None
        status: bool | None = True
        through = False
        for item, each in zip(items, patterns, strict=True):
            if through or any(matches(subject, pattern) for pattern in each):
                status = self.run(item.get("Stmts") or [])
                if item["Op"] == ";;":
                    break
                through = item["Op"] == ";&"
        return status

    def binary(self, node: Node) -> bool | None:
        sign, left, right = node["Op"], node["X"], node["Y"]
        if sign in ("|", "|&"):
            text = self.captured([left], recording=True)
            failed = "pipefail" in self.state.options and known(self.substituted) and self.substituted != "0"
            inner = self.inner(self.state.copy())
            inner.input = self.unknown_input if text is None else text
            status = inner.follow(lambda: inner.statement(right))
            return False if failed else status
        first, assumed = self.condition(lambda: self.statement(left), _is_test(left))
        if first is not None and first is (sign == "||"):
            return first
        if first is None:
            if self.asking:
                second = self.statement(right)
                return both(first, second) if sign == "&&" else either(first, second)
            self.either([lambda: self.statement(right), lambda: None], source(self.words.source, left), line_of(left))
            return None
        if self.result.assumed[assumed:] and self._exits([right]):
            del self.result.assumed[assumed:]
            return True
        return self.statement(right)

    def loop(self, node: Node) -> bool | None:
        inside = node["Loop"]
        if inside["Type"] == "CStyleLoop":
            if inside.get("Init"):
                self.words.calculated(inside["Init"])
            while (number := self.words.calculated(inside["Cond"]) if inside.get("Cond") else 1) != 0:
                self.count(1)
                if number is None:
                    self._once(node)
                    break
                if not self._body(node["Do"]):
                    break
                if inside.get("Post"):
                    self.words.calculated(inside["Post"])
            return True
        name, items = inside["Name"]["Value"], inside.get("Items")
        values = self.state.arguments or []
        if items is not None:
            values = self.words.fields(items)
        if node.get("Select"):
            self.state.put(name, self.result.marks.make(f"${name}", "it is selected by hand", line_of(node)))
            self._once(node)
            return None
        for value in values:
            self.state.put(name, value)
            if not self._body(node["Do"]):
                break
        return True

    def while_(self, node: Node) -> bool | None:
        while True:
            status, _ = self.condition(lambda: self.run(node["Cond"]))
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
        inner = self.inner(self.state.copy())
        status = inner.follow(lambda: inner.run(node.get("Stmts") or []))
        return None if status is None and self.asking else status

    def declare(self, node: Node) -> bool | None:
        """`export`, `local`, `declare`, `readonly`, `declare -n`."""
        variant, options = node["Variant"]["Value"], ""
        for argument in node.get("Args") or []:
            if argument.get("Name") is None:
                for text in self.words.fields([argument["Value"]]):
                    options += text if text.startswith(("-", "+")) else ""
                    if not text.startswith(("-", "+")):
                        self._declared(variant, options, {"Name": {"Value": text.partition("=")[0]}}, text)
                continue
            self._declared(variant, options, argument, "")
        return True

    def _declared(self, variant: str, options: str, argument: Node, text: str) -> None:
        name = argument["Name"]["Value"]
        function = self.state.local is not None and "g" not in options
        local = function and variant in ("local", "declare", "typeset")
        if local and self.state.local is not None:
            value = self.state.variables.get(name)
            self.state.local.setdefault(name, dict(value) if isinstance(value, dict) else value)
        reference = self.words.text(argument["Value"]) if "n" in options and argument.get("Value") else None
        if "n" in options and variant != "export":
            self.state.variables[name] = reference or ""
        letters = "".join(letter for letter in options if letter in "Ailnu")
        if letters and variant != "export":
            self.state.attributes[name] = letters
        if reference is not None:
            return
        if local and name in (self.state.local or {}) and not argument.get("Append"):
            self.state.variables.pop(name, None)
        if text.partition("=")[1]:
            self.words.assign(name, text.partition("=")[2])
        elif argument.get("Value") or argument.get("Array"):
            self.assign(argument)
        elif {"A", "a"} & set(options):
            self.state.variables.setdefault(name, {})
        elif local:
            self.state.put(name, "")
        if "n" in options and variant == "export":
            self.state.exported.discard(name)
        elif variant == "export" or "x" in options:
            self.state.exported.add(name)

    def define(self, node: Node) -> bool | None:
        self.state.functions[node["Name"]["Value"]] = (node["Body"], self.words.source)
        return True

    def arithmetic(self, node: Node) -> bool | None:
        """`((...))`, and `let`."""
        number = [self.words.calculated(each) for each in node.get("Exprs") or [node["X"]]][-1]
        return None if number is None else number != 0


def _is_test(node: Node) -> bool:
    """Whether a statement is a condition alone."""
    command = node.get("Cmd") or {}
    if command.get("Type") in ("TestClause", "ArithmCmd"):
        return True
    if command.get("Type") == "BinaryCmd" and command["Op"] in ("&&", "||"):
        return _is_test(command["X"]) and _is_test(command["Y"])
    return _first(command.get("Args") or []) in TESTS


def _first(words: Sequence[Node]) -> str | None:
    """A command's name, where it is plain."""
    parts = words[0].get("Parts") if words else None
    return parts[0].get("Value") if parts else None


KINDS: dict[str, Callable[[Interpreter, Node], bool | None]] = {
    "CallExpr": Interpreter.call, "IfClause": Interpreter.if_, "CaseClause": Interpreter.case,
    "ForClause": Interpreter.loop, "WhileClause": Interpreter.while_, "BinaryCmd": Interpreter.binary,
    "Subshell": Interpreter.subshell, "DeclClause": Interpreter.declare, "FuncDecl": Interpreter.define,
    "Block": lambda shell, node: shell.run(node.get("Stmts") or []), "ArithmCmd": Interpreter.arithmetic,
    "LetClause": Interpreter.arithmetic, "TestClause": lambda shell, node: holds_in_brackets(node["X"], shell.words),
    "TimeClause": lambda shell, node: shell.statement(node["Stmt"]) if node.get("Stmt") else True,
    "CoprocClause": lambda shell, node: shell.statement(node["Stmt"]), "TestDecl": lambda shell, node: True,
}  # fmt: skip
