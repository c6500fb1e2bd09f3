"""References within a YAML file, as OmegaConf writes them; what can't be followed stays as it is written.

${model.hidden_size}  ${.hidden_size}  ${..seq_length}        from the root, beside this key, one above
${multiply:4, ${.hidden_size}}  ${sum:${.num_layers},-1}      products and sums of whole numbers
${training.model.x}                                           the file is `training` in a larger tree
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

INNERMOST = re.compile(r"\$\{([^${}]{1,300})\}")
FUNCTIONS: dict[str, Callable[[Iterable[int]], int]] = {"multiply": prod, "sum": sum, "add": sum}
MOST = 50  # references followed for one value


def resolve(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its references replaced."""
    return {key: _resolved(value, (str(key),), document) for key, value in document.items()}


def _resolved(value: Any, path: tuple[str, ...], root: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _resolved(item, (*path, str(key)), root) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, path, root) for item in value]
    return _text(value, path, root) if isinstance(value, str) and "${" in value else value


def _text(text: str, path: Sequence[str], root: Mapping[str, Any]) -> Any:
    kept: list[str] = []  # references without a value, in their places as \0
    for _ in range(MOST):
        match = INNERMOST.search(text)
        if match is None:
            break
        value = _referred(match[1].strip(), path, root)
        if value is None:
            kept.append(match[0])
            value = f"\0{len(kept) - 1}\0"
        if match[0] == text and not isinstance(value, str):
            return value
        text = f"{text[: match.start()]}{value}{text[match.end() :]}"[:10_000]
    for index in reversed(range(len(kept))):
        text = text.replace(f"\0{index}\0", kept[index])
    return text


def _referred(inside: str, path: Sequence[str], root: Mapping[str, Any]) -> Any:
    """What `${inside}` is; None where it isn't a plain value of this file."""
    name, colon, arguments = inside.partition(":")
    if colon:
        numbers = [item.strip() for item in arguments.split(",")]
        if name not in FUNCTIONS or not all(re.fullmatch(r"-?\d{1,12}", item) for item in numbers):
            return None
        return FUNCTIONS[name](int(item) for item in numbers)
    dots = len(inside) - len(inside.lstrip("."))
    parts = inside.lstrip(".").split(".")
    starts = [(*path[:-dots], *parts)] if dots else [tuple(parts), tuple(parts[1:])]
    for start in starts:
        node: Any = root
        for part in start:
            node = node.get(part) if isinstance(node, Mapping) else None
        if isinstance(node, (str, int, float)):
            return node
    return None
