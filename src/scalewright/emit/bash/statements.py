"""Conditions, loops and lists: decided where their values are known, each branch followed where they aren't.

if [ $SIZE = 70b ]; then TP=8; else TP=1; fi        TP is 8 or 1 by SIZE; else it "depends on `[ $SIZE = 70b ]`"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from scalewright.emit.bash import arithmetic
from scalewright.emit.bash.builtins import WithBuiltins
from scalewright.emit.bash.conditions import holds_in_brackets, negated
from scalewright.emit.bash.merge import merged
from scalewright.emit.bash.patterns import matches
from scalewright.emit.bash.shell import Ended, Left
from scalewright.emit.bash.tree import Node, line_of, source
from scalewright.emit.bash.unknown import known


class Interpreter(WithBuiltins):
    """A whole shell."""

    def compound(self, command: Node) -> bool | None:
        return KINDS[command["Type"]](self, command)

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
        with self.words.nothing_outside(arguments=False) as assumed:
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
                inner.deaf = text is None
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
            return bool(first)
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


def _arithmetic(shell: Interpreter, node: Node) -> bool | None:
    number = arithmetic.value(node["X"], shell.words)
    return None if number is None else number != 0


def _let(shell: Interpreter, node: Node) -> bool | None:
    numbers = [arithmetic.value(each, shell.words) for each in node["Exprs"]]
    return None if numbers[-1] is None else numbers[-1] != 0


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


KINDS: dict[str, Callable[[Interpreter, Node], bool | None]] = {
    "CallExpr": Interpreter.call, "IfClause": Interpreter.if_, "CaseClause": Interpreter.case,
    "ForClause": Interpreter.loop, "WhileClause": Interpreter.while_, "BinaryCmd": Interpreter.binary,
    "Subshell": Interpreter.subshell, "DeclClause": Interpreter.declare, "FuncDecl": Interpreter.define,
    "Block": lambda shell, node: shell.run(node.get("Stmts") or []), "ArithmCmd": _arithmetic, "LetClause": _let,
    "TestClause": lambda shell, node: holds_in_brackets(node["X"], shell.words, shell.state),
    "TimeClause": lambda shell, node: shell.statement(node["Stmt"]) if node.get("Stmt") else True,
    "CoprocClause": lambda shell, node: shell.statement(node["Stmt"]), "TestDecl": lambda shell, node: True,
}  # fmt: skip
