"""A launch line taken apart: who starts what, with which words, on how many devices.

srun -N 4 torchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py --num-layers 32
└ outer ┘ └──────────── launcher ──────────────┘ └ program ┘    └──── words ──┘      32 devices

Devices are counted by the innermost launcher that states them, then by the outer ones, then by the job's header.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalewright.emit.bash.script import Script
from scalewright.emit.bash.shell import Command
from scalewright.emit.bash.unknown import Mark, known

PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*")
AGENTS = ("torch.distributed.run", "torch.distributed.launch", "torchrun")
# Options of launchers that take no value: all others take one.
ALONE = {
    "torchrun": {"--standalone", "--no-python", "-m", "--module", "--run-path", "--use-env"},
    "accelerate": {
        "--multi-gpu", "--cpu", "--use-deepspeed", "--use-fsdp", "--use-megatron-lm", "--use-parallelism-config", "-m",
        "--module", "--no-python", "--same-network", "--debug", "-q", "--quiet", "--tpu", "--use-xpu",
        "--enable-cpu-affinity",
    },
    "deepspeed": {
        "--module", "--no-python", "--no-local-rank", "--no-ssh", "--no-ssh-check", "--force-multi", "--save-pid",
        "--elastic-training", "--bind-cores-to-rank", "-m",
    },
    "python": {"-u", "-O", "-OO", "-B", "-s", "-S", "-E", "-I", "-v", "-q", "-d", "-i", "-b", "-bb"},
}  # fmt: skip
# Programs of a trainer's own, and the words that belong to their names.
TRAINERS = {"megatron": 1, "llamafactory-cli": 1, "axolotl": 1, "swift": 1, "litgpt": 1, "tune": 2, "nemo": 2}


@dataclass(frozen=True)
class Launched:
    """A program that is started; `program` is a file or a module, or a trainer's own: `llamafactory-cli train`."""

    program: str
    words: list[str]
    devices: int | None
    config_file: str | None  # of accelerate launch
    command: Command
    unknown: list[Mark]  # parts of the words that the script doesn't tell


def launched(script: Script) -> list[Launched]:
    """All programs that a script starts, in order."""
    return [start for command in script.commands if (start := _taken_apart(command, script)) is not None]


def _taken_apart(command: Command, script: Script) -> Launched | None:
    words, stated = list(command.words), list[Mapping[str, str]]()
    config_file = None
    for index, word in enumerate(words):
        name = word.rsplit("/", 1)[-1]
        if name in TRAINERS:
            program = " ".join(words[index : index + 1 + TRAINERS[name]])
            return _launched(program, words[index + 1 + TRAINERS[name] :], stated, None, command, script)
        if not (PYTHON.fullmatch(word) or name in ("torchrun", "accelerate", "deepspeed")):
            continue
        stated.append(_outer(words[:index]))
        rest = words[index + 1 :]
        if PYTHON.fullmatch(word):
            _, rest, module = options(rest, ALONE["python"], values=("-X", "-W"))
            if not rest:
                return None
            name = rest[0] if module else "python"
            if name in ("accelerate.commands.launch", "deepspeed.launcher.runner", *AGENTS):
                name, rest = name.split(".")[0], rest[1:]
                name = "torchrun" if name == "torch" else name
        if name == "accelerate":
            rest = rest[1:] if rest[:1] == ["launch"] else rest
        if name in ("torchrun", "accelerate", "deepspeed"):
            found, rest, _ = options(rest, ALONE[name])
            stated.append(found)
            config_file = found.get("config-file")
        if not rest:
            return None
        return _launched(rest[0], rest[1:], stated, config_file, command, script)
    return None


def _launched(
    program: str, words: list[str], stated: Sequence[Mapping[str, str]], config: str | None, command: Command,
    script: Script,
) -> Launched:  # fmt: skip
    devices = _devices(stated, command, script)
    return Launched(program, words, devices, config, command, script.unknown([program, *words]))


def options(
    words: Sequence[str], alone: set[str], values: Sequence[str] = ()
) -> tuple[dict[str, str], list[str], bool]:
    """Options before the first other word, by names without dashes; the rest; whether that is a module.

    `values`: for Python, whose other options all stand alone.
    """
    named: dict[str, str] = {}
    rest, module = list(words), False
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        name = name if len(name) == 2 else f"--{name.lstrip('-').replace('_', '-')}"
        if name in ("-m", "--module"):
            module = True
            if name == "-m":
                break
        elif equals:
            named[name.lstrip("-")] = value
        elif name in alone or (values and word not in values):
            named[name.lstrip("-")] = ""
        elif rest:
            named[name.lstrip("-")] = rest.pop(0)
    return named, rest, module


def _outer(words: Sequence[str]) -> dict[str, str]:
    """What srun, mpirun and their kin state, wherever it stands."""
    short = {"-N": "nodes", "-n": "ntasks", "-np": "ntasks", "-c": "cpus-per-task", "-ppn": "ntasks-per-node"}
    named: dict[str, str] = {}
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        if word in short:
            named[short[word]] = following
        elif match := re.fullmatch(r"-([Nn])(\d+)", word):
            named[short[f"-{match[1]}"]] = match[2]
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            named[name.replace("_", "-")] = value if equals else following
    return named


def _devices(stated: Sequence[Mapping[str, str]], command: Command, script: Script) -> int | None:
    header = script.header
    nodes = _first(stated, ("nnodes", "num-machines", "num-nodes"), last=True)
    each = _first(stated, ("nproc-per-node", "num-gpus"), last=True)
    total = _first(stated, ("num-processes",), last=True)
    if total is not None:
        return total
    if each is None and any(option.get("nproc-per-node") in ("gpu", "auto") for option in stated):
        each = _number(header.get("gpus-per-node"))
    if each is None and (visible := command.environ.get("CUDA_VISIBLE_DEVICES", "")) and known(visible):
        each = (
            len(visible.split(","))
            if any("torchrun" in word or "deepspeed" in word for word in command.words)
            else None
        )
    if each is None:
        each = _number(command.environ.get("NPROC_PER_NODE"))
    outer = [_first(stated, ("nodes",)), _number(header.get("nodes"))]
    outer_nodes = next((count for count in outer if count is not None), None)
    if each is not None:
        return each * (nodes or outer_nodes or 1)
    tasks = _first(stated, ("ntasks",)) or _number(header.get("ntasks"))
    if tasks is not None and tasks > 1:
        return tasks
    per_node = _first(stated, ("ntasks-per-node",)) or _number(header.get("ntasks-per-node"))
    if per_node is not None and (outer_nodes or per_node > 1):
        gpus = _number(header.get("gpus-per-node"))
        return (gpus if per_node == 1 and gpus else per_node) * (outer_nodes or 1)
    gpus = _number(header.get("gpus-per-node"))
    return gpus * (outer_nodes or 1) if gpus is not None else None


def _first(stated: Sequence[Mapping[str, str]], names: Sequence[str], last: bool = False) -> int | None:
    for options_ in reversed(stated) if last else stated:
        for name in names:
            if (count := _number(options_.get(name))) is not None:
                return count
    return None


def _number(value: str | None) -> int | None:
    """A count; of a range `2:4`, as many as there may be."""
    text = (value or "").rpartition(":")[2]
    return int(text) if text.isdecimal() and 0 < int(text) < 10**7 else None
