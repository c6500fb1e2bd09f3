"""Command lines as keys and values, and the nodes and ranks that a launch line starts.

--num-layers 32 --swiglu --data-path a b      {"num-layers": "32", "swiglu": True, "data-path": ["a", "b"]}
torchrun --nnodes 4 --nproc-per-node 8 ...    32 ranks
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

USUAL = 8  # GPUs of a node
DOTTED = re.compile(r"(\w{1,80}) \.{3,200} ?([^\n]*)")  # as Megatron-LM prints an argument


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


def ranks_beside(text: str, start: str) -> int | None:
    """Ranks of the first line of a text, a comment perhaps, that has such a start of torchrun's words."""
    line = next((line for line in text.splitlines() if start in line and "--n" in line), "")
    return ranks(read_words(line.partition("torchrun ")[2]))


def ranks(launch: Sequence[str]) -> int | None:
    """Ranks that a launch line starts: torchrun's, srun's or mpirun's numbers."""
    given = flags(launch)
    short = {word: launch[i + 1] for i, word in enumerate(launch[:-1]) if word in ("-n", "-np", "-N")}
    nodes = count_of(given.get("nnodes", given.get("nodes", given.get("num-machines", 1))))
    each = count_of(given.get("nproc-per-node", given.get("ntasks-per-node")))
    if each is not None and nodes is not None:
        return each * nodes
    stated = (given.get("ntasks"), given.get("num-processes"), short.get("-np"), short.get("-n"))
    return next((count for value in stated if (count := count_of(value)) is not None), None)


def count_of(value: Any) -> int | None:
    """A count; of a range `2:4`, as many as there may be."""
    text = str(value).rpartition(":")[2]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 and int(text) else None


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


def read_words(text: str) -> list[str]:
    """A pasted command line as words."""
    return _words(text.replace("\\\n", " "))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that isn't closed: as good as it gets
        return text.replace('"', " ").replace("'", " ").split()
