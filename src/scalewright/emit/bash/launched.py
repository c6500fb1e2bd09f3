"""A launch line taken apart: who starts what, with which words, on how many devices.

srun -N 4 torchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py --num-layers 32
└ outer ┘ └──────────── launcher ──────────────┘ └ program ┘    └──── words ──┘      32 devices

Devices are counted by the innermost launcher that states them, then by the outer ones, then by the job's header.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from scalewright.emit.bash.result import Command
from scalewright.emit.bash.script import Script
from scalewright.emit.bash.unknown import Mark, known
from scalewright.emit.command_lines import count_of
from scalewright.emit.tables import keys_for

PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*")
AGENTS = ("torch.distributed.run", "torch.distributed.launch", "torchrun")
# Options of launchers that take no value: all others take one.
ALONE = {
    name: keys_for(f"{name}, options alone")
    for name in ("torchrun", "accelerate", "deepspeed", "composer", "colossalai", "python")
}
LAUNCHERS, SECOND = ALONE.keys() - {"python"}, {"accelerate": "launch", "colossalai": "run"}
# Programs of a trainer's own, and the words that belong to their names.
TRAINERS = {"megatron": 1, "llamafactory-cli": 1, "axolotl": 1, "swift": 1, "litgpt": 1, "tune": 2, "nemo": 2}


# Options of srun, mpirun and their kin, by Slurm's long names.
OUTER = {
    "-N": "nodes", "-n": "ntasks", "-np": "ntasks", "-c": "cpus-per-task", "-ppn": "ntasks-per-node",
    "-a": "tasks-per-rs", "-hostfile": "hostfile", "-machinefile": "hostfile", "--machinefile": "hostfile",
    "-f": "hostfile", "--ppn": "ntasks-per-node", "--tasks-per-node": "ntasks-per-node",
}  # fmt: skip
NODES, EACH = ("nnodes", "num-machines", "num-nodes"), ("nproc-per-node", "num-gpus", "nproc", "n")
HOST = re.compile(r"(?m)^[ \t]*([^\s#:]+)(?:[ \t]+(?:\S+[ \t]+)*?slots[ \t]*=[ \t]*(\d{1,6})|:(\d{1,6}))?.*$")


@dataclass(frozen=True)
class Launched:
    """A program that is started; `program` is a file or a module, or a trainer's own: `llamafactory-cli train`."""

    program: str
    words: list[str]
    devices: int | None
    config_file: str | None  # of accelerate launch
    command: Command
    unknown: list[Mark]  # parts of the words that the script doesn't tell
    one_node: str = ""  # the text of a number of nodes that it doesn't tell, where one is counted


def launched(script: Script) -> list[Launched]:
    """All programs that a script starts, in order."""
    return [start for command in script.commands if (start := _taken_apart(command, script)) is not None]


def _taken_apart(command: Command, script: Script) -> Launched | None:
    words, stated = list(command.words), list[Mapping[str, str]]()
    for index, word in enumerate(words):
        name = word.rsplit("/", 1)[-1]
        rest = words[index + 1 :]
        if name in TRAINERS:
            program, rest = " ".join(words[index : index + 1 + TRAINERS[name]]), rest[TRAINERS[name] :]
            if "--" in rest:  # axolotl's, for torchrun or accelerate
                stated.append(options(rest[rest.index("--") + 1 :], ALONE["torchrun"])[0])
                rest = rest[: rest.index("--")]
        elif PYTHON.fullmatch(word) or name in LAUNCHERS:
            stated.append(_outer(words[:index]))
            if PYTHON.fullmatch(word):
                _, rest, module = options(rest, ALONE["python"], values=("-X", "-W"))
                name = rest[0] if rest and module else "python"
                if name in ("accelerate.commands.launch", "deepspeed.launcher.runner", *AGENTS):
                    name, rest = "torchrun" if name in AGENTS else name.split(".")[0], rest[1:]
            if name in SECOND:
                rest = rest[1:] if rest[:1] == [SECOND[name]] else rest
            if name in LAUNCHERS:
                named, rest, _ = options(rest, ALONE[name])
                stated.append(named)
            if not rest:
                return None
            program, rest = rest[0], rest[1:]
        else:
            continue
        config, unknown = (stated or [{}])[-1].get("config-file"), script.unknown([program, *rest])
        nodes = [option[name] for option in stated for name in NODES if not known(option.get(name, ""))]
        outer = _first([*stated, script.header], ("nodes",))
        one_node = script.shown(nodes[:1])[0] if nodes and outer is None else ""
        return Launched(program, rest, _devices(stated, command, script), config, command, unknown, one_node)
    return None


def options(
    words: Sequence[str], alone: Collection[str], values: Sequence[str] = ()
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
    named: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""], strict=False):
        match = re.fullmatch(r"(-[Nn])(\d+)|(-[^=]*)(?:=(.*))?", word, re.DOTALL)
        if match and match[1]:
            named[OUTER[match[1]]] = match[2]
        elif match and (match[3] in OUTER or word.startswith("--")):
            name = OUTER.get(match[3], match[3].lstrip("-").replace("_", "-"))
            named[name] = following if match[4] is None else match[4]
    if "jsrun" in words and (each := _first([named], ("tasks-per-rs",))):  # -n counts sets of resources
        named["ntasks"] = str(each * (_first([named], ("ntasks", "nrs")) or 1))
    return named


def _hosts(stated: Sequence[Mapping[str, str]], script: Script) -> dict[str, int]:
    """Devices by host, of a host file (its `slots`) and of DeepSpeed's `--include a:0,1@b` and `--exclude`."""
    stated_ = {name: value for options_ in stated for name, value in options_.items()}
    hosts: dict[str, int] = {}
    if name := stated_.get("hostfile") or stated_.get("H"):
        text = script.file(name)
        if text is None:
            shown = script.shown([name])[0]
            script.result.notes.append(f"{shown} isn't beside the script: how many devices it lists isn't known")
        hosts = {host: int(slots or more or 1) for host, slots, more in HOST.findall(text or "")}
    for option, sign in (("include", 1), ("exclude", -1)):
        chosen = {}
        for part in (stated_.get(option) or "").split("@") if known(stated_.get(option) or "") else ():
            host, _, places = part.partition(":")
            if host:
                chosen[host] = len(set(places.split(","))) if places else hosts.get(host, 0)
        if chosen:
            hosts = chosen if sign > 0 else {host: count - chosen.get(host, 0) for host, count in hosts.items()}
    return {host: count for host, count in hosts.items() if count > 0}


def _devices(stated: Sequence[Mapping[str, str]], command: Command, script: Script) -> int | None:
    header = script.header
    total = _first(stated[::-1], ("num-processes",))
    nodes, each = _first(stated[::-1], NODES), _first(stated[::-1], EACH)
    unknown = [option[name] for option in stated for name in (*EACH, "num-processes") if name in option]
    if total is None and each is None and not known(*unknown):
        script.result.notes.append(f"how many GPUs it runs on: {script.shown(unknown)[0]} isn't known (give --devices)")
        return None
    if not stated:  # a trainer's own program, which starts torchrun by these
        nodes = nodes or count_of(command.environ.get("NNODES"))
    gpus, header_nodes = _first([*stated, header], ("gpus-per-node",)), count_of(header.get("nodes"))
    if total is not None:
        return total
    tasks = _first(stated, ("ntasks",))
    if (hosts := _hosts(stated, script)) and tasks is None:
        return sum(each or count for count in list(hosts.values())[:nodes])
    if each is None and any(option.get("nproc-per-node") in ("gpu", "auto") for option in stated):
        each = gpus
    visible = command.environ.get("CUDA_VISIBLE_DEVICES", "")
    if each is None and visible and known(visible) and re.search("torchrun|deepspeed", " ".join(command.words)):
        each = len(visible.split(","))
    each = count_of(command.environ.get("NPROC_PER_NODE")) if each is None else each
    outer_nodes = _first(stated, ("nodes",)) or header_nodes
    if each is not None:
        return each * (nodes or outer_nodes or 1)
    tasks = tasks or count_of(header.get("ntasks"))
    if tasks is not None and tasks > 1:
        return tasks
    per_node = _first(stated, ("ntasks-per-node",)) or count_of(header.get("ntasks-per-node"))
    if per_node is not None and (outer_nodes or per_node > 1):
        return (gpus if per_node == 1 and gpus else per_node) * (outer_nodes or 1)
    if gpus is None and nodes and nodes > 1:
        script.result.notes.append(f"how many GPUs each of its {nodes} nodes has (give --devices)")
    return gpus * (outer_nodes or 1) if gpus is not None else None


def _first(stated: Sequence[Mapping[str, str]], names: Sequence[str]) -> int | None:
    numbers = (count_of(options_.get(name)) for options_ in stated for name in names)
    return next((number for number in numbers if number is not None), None)
