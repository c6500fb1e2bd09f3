"""Command lines as keys and values, and the nodes and ranks that a launch line starts.

--num-layers 32 --swiglu --data-path a b      {"num-layers": "32", "swiglu": True, "data-path": ["a", "b"]}
torchrun --nnodes 4 --nproc-per-node 8 ...    32 ranks

Of a bash script they are read without running it:

    TP=8                                               a variable
    ARGS=(--tensor-model-parallel-size ${TP:-1} ...)   an array; ARGS+=(...) and ARGS="..." too
    torchrun --nproc_per_node 8 pretrain_gpt.py "${ARGS[@]}"     the launch line, its variables put in

Conditions and loops aren't followed: their bodies are read as if each ran once, in order. What a variable is
that the script takes from outside stays as it is written, `$DATA_PATH`.
"""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

USUAL = 8  # GPUs of a node
DOTTED = re.compile(r"(\w{1,80}) \.{3,200} ?([^\n]*)")  # as Megatron-LM prints an argument
ASSIGNED = re.compile(r"^(?:export |declare -\w+ |local |readonly )?([A-Za-z_]\w*)(\+?)=(.*)$", re.DOTALL)
VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?[-=]([^{}]*))?\}|([A-Za-z_]\w*))")
ARRAY = re.compile(r'"(\$\{\w+\[[@*]\]\})"')  # in quotes it is still several words
ARITHMETIC = re.compile(r"\$\(\(([\w\s*+/$()-]{1,200})\)\)")
SEPARATOR = re.compile(r"\s*;\s*(?=[A-Za-z_]\w*=|$)")
LAUNCHERS = ("torchrun", "python", "python3", "srun", "mpirun", "deepspeed", "accelerate", "bash")
SIGNS: Mapping[str, Callable[[int, int], int]] = {
    "*": operator.mul, "+": operator.add, "-": operator.sub, "/": operator.floordiv,
}  # fmt: skip
DEEPEST = 20  # variables within variables


def flags(words: Iterable[str]) -> dict[str, object]:
    """Flags by their names without dashes, `_` as `-`; a flag alone is True, several values are a list."""
    values: dict[str, object] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", "-")
            values[name] = value if equals else True
        elif name:
            before = values[name]
            values[name] = word if before is True else [*(before if isinstance(before, list) else [before]), word]
    return values


def split_launch(words: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """A command's words before its Python program, the program, and those after it."""
    for index, word in enumerate(words):
        if word.endswith(".py"):
            return list(words[:index]), word, list(words[index + 1 :])
        if word == "-m" and index + 1 < len(words) and words[index + 1] != "torch.distributed.run":
            return list(words[:index]), words[index + 1], list(words[index + 2 :])
    return [], "", list(words)


def ranks(launch: Sequence[str], variables: dict[str, str]) -> int | None:
    """Ranks that a launch line starts: torchrun's, srun's or mpirun's numbers, else WORLD_SIZE."""
    given = flags(launch)
    short = {word: launch[i + 1] for i, word in enumerate(launch[:-1]) if word in ("-n", "-np", "-N")}
    nodes = _whole(given.get("nnodes", given.get("nodes", given.get("num-machines", 1))))
    each = _whole(given.get("nproc-per-node", given.get("ntasks-per-node")))
    if each is not None and nodes is not None:
        return each * nodes
    stated = (given.get("ntasks"), given.get("num-processes"), short.get("-np"), short.get("-n"))
    counts = (_whole(value) for value in (*stated, variables.get("WORLD_SIZE")))
    return next((count for count in counts if count is not None), None)


def _whole(value: Any) -> int | None:
    text = str(value).partition(":")[2] or str(value)  # --nnodes 2:4: as many as there may be
    return int(text) if text.isdecimal() and 0 < int(text) < 10**7 else None


def spelled(name: str, value: Any) -> list[str]:
    """A flag and its values, as words of a command line."""
    if value is True:
        return [f"--{name}"]
    values = value if isinstance(value, list) else [value]
    return [f"--{name}", *(str(int(v)) if isinstance(v, float) and v == int(v) else str(v) for v in values)]


def nodes_of(devices: int) -> tuple[int, int]:
    """How many nodes, and how many devices of each: 8, or all of them on one node."""
    if devices <= USUAL or devices % USUAL:
        return 1, devices
    return devices // USUAL, USUAL


def torchrun_by_variables(devices: int, program: str) -> str:
    """Every node's launch line, by NODE_RANK, MASTER_ADDR and MASTER_PORT; their defaults do for one node."""
    nodes, each = nodes_of(devices)
    return (
        f"torchrun --nnodes {nodes} --nproc-per-node {each} --node-rank ${{NODE_RANK:-0}} "
        f"--master-addr ${{MASTER_ADDR:-localhost}} --master-port ${{MASTER_PORT:-29500}} {program}"
    )


def torchrun(devices: int, program: str) -> str:
    """The launch line of every node."""
    nodes, each = nodes_of(devices)
    if nodes == 1:
        return f"torchrun --nproc-per-node {each} {program}"
    several = f"--nnodes {nodes} --nproc-per-node {each} --node-rank $NODE_RANK"
    return f"torchrun {several} --master-addr $MASTER_ADDR --master-port 29500 {program}"


@dataclass
class Script:
    """A script's variables, and the commands that name a Python program."""

    variables: dict[str, str] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)


def read_script(text: str) -> Script:
    """The variables and launch lines of a bash script."""
    script = Script()
    for line in _lines(text):
        match = ASSIGNED.match(line)
        if match and not _runs_something(line):
            name, adds, value = match.groups()
            value = VARIABLE.sub(partial(_before, name, script.variables), _unwrapped(value))
            before = script.variables.get(name, "") if adds else ""
            script.variables[name] = f"{before} {value}".strip() if adds else value
        elif re.search(r"\.py\b|\s-m\s", line):
            command = _words(expand(ARRAY.sub(r"\1", line), script.variables))
            if any(word.endswith(".py") or word == "-m" for word in command):
                script.commands.append(command)
    return script


def read_words(text: str) -> list[str]:
    """A pasted command line as words."""
    return _words(text.replace("\\\n", " "))


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Puts variables and their defaults in; one that isn't set stays as written."""
    for _ in range(DEEPEST):
        changed = ARITHMETIC.sub(_calculated, VARIABLE.sub(lambda match: _value(match, variables), text))
        if changed == text or len(changed) > 1_000_000:
            break
        text = changed
    return text


def _before(name: str, variables: Mapping[str, str], match: re.Match[str]) -> str:
    """A variable in its own assignment, `NODES=${NODES:-2}`: what it was, or the default."""
    if (match[1] or match[3]) != name:
        return match[0]
    return variables.get(name) or (match[2] or "").strip("'\"") or match[0]


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    name, default = match[1] or match[3], match[2]
    if name in variables and (variables[name] or default is None):
        value = variables[name]
        return match[0] if f"${{{name}" in value or f"${name}" in value else value  # itself: stays
    return default.strip("'\"") if default is not None else match[0]


def _calculated(match: re.Match[str]) -> str:
    """A product, quotient or sum of whole numbers; anything else stays as written."""
    terms = re.fullmatch(r"\s*(\d{1,12})((?:\s*[*+/-]\s*\d{1,12})*)\s*", match[1])
    if terms is None:
        return match[0]
    total = int(terms[1])
    for sign, digits in re.findall(r"([*+/-])\s*(\d+)", terms[2]):
        if sign == "/" and int(digits) == 0:
            return match[0]
        total = SIGNS[sign](total, int(digits))
    return str(total)


def _lines(text: str) -> Iterator[str]:
    """Logical lines: continued ones joined, arrays and quoted texts as one; no comments."""
    pending = ""
    for raw in text.splitlines():
        line = _without_comment(raw).rstrip()
        pending = f"{pending} {line[:-1] if line.endswith(chr(92)) else line}".strip() if pending else line.strip()
        if line.endswith("\\"):
            pending = pending.rstrip("\\")
            continue
        if _open(pending) and len(pending) < 200_000:
            continue
        yield from _assignments(pending)
        pending = ""
    yield from _assignments(pending)


def _assignments(line: str) -> list[str]:
    """`TP=8; PP=2` as two lines."""
    plain = ASSIGNED.match(line) and not set(line) & set("\"'(`")
    return [part for part in (SEPARATOR.split(line) if plain else [line]) if part]


def _without_comment(line: str) -> str:
    quote = ""
    for index, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (index == 0 or line[index - 1] in " \t"):
            return line[:index]
    return line


def _open(text: str) -> bool:
    """Whether an assignment's parenthesis or quote isn't closed yet."""
    match = ASSIGNED.match(text)
    if match is None:
        return False
    value = match[3].strip()
    if value.startswith("("):
        return not value.endswith(")")
    return value[:1] in ("'", '"') and (len(value) == 1 or value.count(value[0]) % 2 == 1)


def _unwrapped(value: str) -> str:
    value = value.strip()
    if value.startswith("(") and value.endswith(")"):
        return value[1:-1].strip()
    if len(value) > 1 and value[0] in "'\"" and value[-1] == value[0]:
        return value[1:-1].strip()
    return value


def _runs_something(line: str) -> bool:
    """Whether a line begins with assignments for one command: `WORLD_SIZE=8 python train.py`."""
    return bool(re.match(r"^\w+=\S*\s+(?:\w+=\S*\s+)*(?:" + "|".join(LAUNCHERS) + r")\s", line))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that isn't closed: as good as it gets
        return text.replace('"', " ").replace("'", " ").split()
