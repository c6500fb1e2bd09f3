"""Configurations that are Python: functions that return nested calls, written, and read without running them.

    def llama():                           Call("Trainer.Config", {
        config = base()                        ...what base() returns, where it is in this file,
        config.training.steps = 10             "training": Call("TrainingConfig", {"steps": 10}),
        return config                      })

Statements are followed in order, assignments to names and attributes among them. Conditions and loops aren't:
they are reported, as is every value that is neither a literal nor a call.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scalewright.spec.errors import UserError

DEEPEST = 30  # functions that start from another's result
MOST = 100_000  # expressions followed for one function
LARGEST = 1 << 20  # characters of a file
SILENT = (ast.Import, ast.ImportFrom, ast.Pass, ast.Assert, ast.FunctionDef)  # statements that set nothing
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip


class Name(NamedTuple):
    """A name that the file imports: `torch.nn.functional.silu`, `F.silu`."""

    dotted: str


class Unknown(NamedTuple):
    """An expression that isn't followed, as it is written."""

    text: str


@dataclass
class Call:
    """A call with its keywords; positional arguments are under their numbers: "0", "1"."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)

    def flat(self, prefix: str = "") -> dict[str, Any]:
        """Dotted keys of this call and those below it; a call without arguments is a value."""
        keys: dict[str, object] = {}
        for key, value in self.values.items():
            if isinstance(value, Call) and value.values:
                keys |= value.flat(f"{prefix}{key}.")
            else:
                keys[f"{prefix}{key}"] = value
        return keys

    def at(self, key: str) -> Any:
        """What a dotted key holds; None where it isn't set."""
        value: Any = self
        for part in key.split("."):
            value = value.values.get(part) if isinstance(value, Call) else None
        return value


def spelled(value: Any, indent: int = 0) -> str:
    """A value as source: calls with one keyword a line, everything else in one line."""
    if isinstance(value, Name):
        return value.dotted
    if isinstance(value, Call):
        if not value.values:
            return f"{value.name}()"
        inside = " " * (indent + 4)
        rows = [f"{inside}{key}={spelled(item, indent + 4)},\n" for key, item in value.values.items()]
        return f"{value.name}(\n{''.join(rows)}{' ' * indent})"
    if isinstance(value, (list, tuple)):
        items = ", ".join(spelled(item, indent) for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)}: {spelled(item, indent)}' for key, item in value.items())}}}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _imports(body: list[ast.stmt]) -> dict[str, str]:
    """Imported names, and their full ones: {"llama3_8b": "torchtitan...config_registry.llama3_8b"}."""
    names: dict[str, str] = {}
    for node in body:
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
    return names


class Returned(NamedTuple):
    """What a function returns, and the statements of it that weren't followed."""

    call: Call
    skipped: tuple[str, ...]


class Module:
    """A Python file: its functions, and what they return. Raises UserError for a text that isn't Python."""

    def __init__(self, text: str, where: str) -> None:
        how = "give the file as the trainer takes it"
        if len(text) > LARGEST:
            raise UserError(f"it has more than {LARGEST} characters", where, how)
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"it is no Python: {line}", where, how) from None
        self.imports = _imports(body)
        self.functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        self._where, self._left = where, MOST
        self._skipped: list[str] = []
        self._globals: dict[str, object] = {}
        for node in body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                self._assign(node, self._globals, 0)

    def returning(self, accepts: Callable[[Call], bool]) -> dict[str, Returned]:
        """Functions that return such a call, in the order of the file."""
        results: dict[str, Returned] = {}
        for name in self.functions:
            self._skipped, self._left = [], MOST
            try:
                value = self._returned(name, 0)
            except RecursionError:
                how = "give a file with plainer expressions"
                raise UserError(f"{name} is nested too deeply", self._where, how) from None
            if isinstance(value, Call) and accepts(value):
                results[name] = Returned(value, tuple(self._skipped))
        return results

    def _returned(self, name: str, depth: int) -> Any:
        """What a function returns, for its parameters' defaults."""
        function, names = self.functions[name], deepcopy(self._globals)
        arguments = function.args
        ordered = [*arguments.posonlyargs, *arguments.args]
        for argument, default in zip(ordered[::-1], arguments.defaults[::-1], strict=False):
            names[argument.arg] = self._value(default, names, depth)
        for argument, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if given is not None:
                names[argument.arg] = self._value(given, names, depth)
        for node in function.body:
            if isinstance(node, ast.Return):
                return self._value(node.value, names, depth) if node.value is not None else None
            self._follow(node, names, depth)
        return None

    def _follow(self, node: ast.stmt, names: dict[str, object], depth: int) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            self._assign(node, names, depth)
        elif not isinstance(node, SILENT) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            self._skipped.append(f"line {node.lineno}: {ast.unparse(node).splitlines()[0][:100]}")

    def _assign(self, node: ast.Assign | ast.AnnAssign, names: dict[str, object], depth: int) -> None:
        if node.value is None:
            return
        value = self._value(node.value, names, depth)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                names[target.id] = value
            elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (tuple, list)):
                for item, part in zip(target.elts, value, strict=False):
                    self._put(item, part, names)
            else:
                self._put(target, value, names)

    def _put(self, target: ast.expr, value: Any, names: dict[str, object]) -> None:
        """Sets `config.training.steps`; sections that aren't there yet are made."""
        if isinstance(target, ast.Name):
            names[target.id] = value
            return
        *parents, last = ast.unparse(target).split(".")
        holder = names.get(parents[0]) if parents else None
        for part in parents[1:]:
            if isinstance(holder, Call):
                section = holder.values.setdefault(part, Call(""))
                if not isinstance(section, Call):
                    section = holder.values[part] = Call("")
                holder = section
        if isinstance(holder, Call) and last.isidentifier():
            holder.values[last] = value
        else:
            self._skipped.append(f"line {target.lineno}: {ast.unparse(target)[:100]} = ...")

    def _value(self, node: ast.expr, names: dict[str, object], depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            return Unknown("...")
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return names.get(node.id, Name(node.id))
        if isinstance(node, ast.Attribute):
            return self._attribute(node, names, depth)
        if isinstance(node, (ast.List, ast.Tuple)):
            items = [self._value(item, names, depth) for item in node.elts]
            return items if isinstance(node, ast.List) else tuple(items)
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            values = [self._value(item, names, depth) for item in node.values]
            return dict(zip(map(str, keys), values, strict=True))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
            value = self._value(node.operand, names, depth)
            if isinstance(node.op, ast.USub) and isinstance(value, (int, float)):
                return -value
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node, names, depth)
        if isinstance(node, ast.Call):
            return self._call(node, names, depth)
        return Unknown(ast.unparse(node)[:200])

    def _attribute(self, node: ast.Attribute, names: dict[str, object], depth: int) -> Any:
        holder = self._value(node.value, names, depth)
        if isinstance(holder, Call) and node.attr in holder.values:
            return holder.values[node.attr]
        return Name(f"{holder.dotted}.{node.attr}") if isinstance(holder, Name) else Unknown(ast.unparse(node)[:200])

    def _arithmetic(self, node: ast.BinOp, names: dict[str, object], depth: int) -> Any:
        left, right = self._value(node.left, names, depth), self._value(node.right, names, depth)
        apply = ARITHMETIC.get(type(node.op))
        numbers = all(isinstance(value, (int, float)) and abs(value) < 1e18 for value in (left, right))
        if apply is None or not numbers or (isinstance(node.op, (ast.Div, ast.FloorDiv)) and right == 0):
            return Unknown(ast.unparse(node)[:200])
        return apply(left, right)

    def _call(self, node: ast.Call, names: dict[str, object], depth: int) -> Any:
        name = ast.unparse(node.func)
        if name in self.functions and not node.args and not node.keywords and depth < DEEPEST:
            return self._returned(name, depth + 1)
        values = {str(index): self._value(item, names, depth) for index, item in enumerate(node.args)}
        for keyword in node.keywords:
            values[keyword.arg or "**"] = self._value(keyword.value, names, depth)
        if name == "dict" and not node.args:
            return values
        return Call(name, values)
