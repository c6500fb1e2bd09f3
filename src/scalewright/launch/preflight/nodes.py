"""What differs between nodes, by what the first rank of each reported when all had met.

node 0 ─ Node ─┐                          the same on all?
node 1 ─ Node ─┼─► all ranks: Facts.nodes ──────────────► nothing to say
node 2 ─ Node ─┘                          no ──► `torch is 2.11.0 on n2, and 2.12.0 on n0, n1`
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial

from scalewright.launch.preflight.facts import Facts, Node
from scalewright.launch.preflight.rule import Moments, RuleFailure, Subject

SUBJECT = Subject("nodes")
TOGETHER: Moments = ("nodes",)
SEVERAL = ("several nodes",)
SKEW_S = 2.0
ONE_ENVIRONMENT = "start all nodes from one environment: an image, or a shared folder"
TRAINERS = "docs/launch/torchrun.md"


def differing(nodes: Iterable[Node], value: Callable[[Node], str | None]) -> str | None:
    """The values and the nodes that have them, most common last; None where all are alike.

    Nodes that don't know the value aren't counted.
    """
    hosts: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        if (text := value(node)) is not None:
            hosts[text].append(node.host)
    if len(hosts) < 2:
        return None
    groups = sorted(hosts.items(), key=lambda item: len(item[1]))
    return ", and ".join(f"{text} on {_names(names)}" for text, names in groups[:3])


def _names(hosts: list[str]) -> str:
    return ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if hosts[3:] else "")


def _version(facts: Facts, package: str, how: str = ONE_ENVIRONMENT) -> RuleFailure | None:
    text = differing(facts.nodes, lambda node: node.versions.get(package))
    return None if text is None else RuleFailure(f"{package} is {text}", "nodes", how)


@SUBJECT.rule(
    "torch-differs", "problem", "nodes have different versions of torch",
    "PyTorch issue 174917: nothing compares versions when ranks meet", at=TOGETHER, needs=SEVERAL,
)  # fmt: skip
def torch_differs(facts: Facts) -> RuleFailure | None:
    return _version(facts, "torch")


@SUBJECT.rule(
    "scalewright-differs", "problem", "nodes have different code of this package", TRAINERS, at=TOGETHER, needs=SEVERAL
)
def scalewright_differs(facts: Facts) -> RuleFailure | None:
    return _version(facts, "scalewright")


@SUBJECT.rule(
    "nccl-differs", "problem", "nodes have different versions of NCCL",
    "NCCL, init.cc: ranks of different versions are an error", at=TOGETHER, needs=SEVERAL,
)  # fmt: skip
def nccl_differs(facts: Facts) -> RuleFailure | None:
    return _version(facts, "nccl")


@SUBJECT.rule("python-differs", "warn", "nodes have different versions of Python", TRAINERS, at=TOGETHER, needs=SEVERAL)
def python_differs(facts: Facts) -> RuleFailure | None:
    return _version(facts, "python")


@SUBJECT.rule(
    "driver-differs", "warn", "nodes have different drivers", "NVIDIA docs, CUDA compatibility", at=TOGETHER,
    needs=SEVERAL,
)  # fmt: skip
def driver_differs(facts: Facts) -> RuleFailure | None:
    return _version(facts, "driver", "update those, or leave them out (launch.exclude)")


@SUBJECT.rule(
    "gpus-differ", "warn", "nodes have different GPUs",
    "docs/layouts.md: every rank has the same share, so the slowest sets the step", at=TOGETHER,
    needs=SEVERAL,
)  # fmt: skip
def gpus_differ(facts: Facts) -> RuleFailure | None:
    text = differing(facts.nodes, _kinds)
    if text is None:
        return None
    return RuleFailure(f"GPUs differ: {text}", "nodes", "choose alike nodes (launch.constraint, launch.gpu)")


def _kinds(node: Node) -> str:
    return " + ".join(f"{count} x {name}" for name, count in node.gpus.items()) or "no GPU"


@SUBJECT.rule(
    "cards-differ", "warn", "nodes have different numbers of active cards of InfiniBand or EFA",
    "NCCL user guide, Troubleshooting: InfiniBand", at=TOGETHER, needs=("GPUs", "several nodes"),
)  # fmt: skip
def cards_differ(facts: Facts) -> RuleFailure | None:
    text = differing(facts.nodes, lambda node: f"{node.cards} active")
    if text is None:
        return None
    return RuleFailure(f"cards differ: {text}", "network", "look at ibstat there, or leave those out (launch.exclude)")


@SUBJECT.rule("run-differs", "problem", "nodes read different runs", TRAINERS, at=TOGETHER, needs=SEVERAL)
def run_differs(facts: Facts) -> RuleFailure | None:
    text = differing(facts.nodes, lambda node: node.run or None)
    if text is None:
        return None
    how = "give every node the same run file and the same key=value: a shared folder, or a copy of it"
    return RuleFailure(f"the run's digest is {text}", "run file", how)


@SUBJECT.rule(
    "variables-differ", "warn", "nodes have different variables of NCCL or Gloo",
    "NCCL issue 626: the same variables on all ranks", at=TOGETHER, needs=SEVERAL,
)  # fmt: skip
def variables_differ(facts: Facts) -> RuleFailure | None:
    names = sorted({name for node in facts.nodes for name in node.variables})
    for name in names:
        if name.endswith(("_IFNAME", "_HCA", "_FILE")):
            continue  # may well be of a node
        text = differing(facts.nodes, partial(_variable, name))
        if text is not None:
            return RuleFailure(f"{name} is {text}", "environment", "set it for all nodes (launch.env), or for none")
    return None


def _variable(name: str, node: Node) -> str:
    return node.variables.get(name, "unset")


@SUBJECT.rule(
    "mtu-differs", "warn", "packets between nodes have different sizes",
    "RFC 4821: packets larger than a hop takes are lost in silence", at=TOGETHER, needs=SEVERAL,
)  # fmt: skip
def mtu_differs(facts: Facts) -> RuleFailure | None:
    text = differing(facts.nodes, lambda node: str(node.mtu) if node.mtu else None)
    if text is None:
        return None
    return RuleFailure(f"the interface's MTU is {text}", "network", "ip link set INTERFACE mtu N, the same on all")


@SUBJECT.rule(
    "clocks-differ", "warn", "clocks of nodes differ",
    "RFC 5905 (NTP); docs/diagnose.md: events and traces of ranks are compared", at=TOGETHER, needs=SEVERAL,
)  # fmt: skip
def clocks_differ(facts: Facts) -> RuleFailure | None:
    clocks = sorted((node.clock, node.host) for node in facts.nodes if node.clock)
    if len(clocks) < 2 or clocks[-1][0] - clocks[0][0] <= SKEW_S:
        return None
    middle = clocks[len(clocks) // 2][0]
    offset, host = max(((clock - middle, host) for clock, host in clocks), key=lambda pair: abs(pair[0]))
    what = f"the clock of {host} is {offset:+.0f} s off: times in events, logs and traces won't fit"
    return RuleFailure(what, "clock", "start NTP there: chronyc makestep")


@SUBJECT.rule(
    "folder-not-shared", "problem", "nodes don't see one folder of the run",
    "docs/checkpoints.md: every rank writes its part into out_dir", at=TOGETHER,
    needs=("several nodes", "a run that saves"),
)  # fmt: skip
def folder_not_shared(facts: Facts) -> RuleFailure | None:
    blind = [node.host for node in facts.nodes if not node.sees_folder]
    if not blind or facts.run is None:
        return None
    verb = "doesn't" if len(blind) == 1 else "don't"
    what = f"{_names(blind)} {verb} see what {facts.nodes[0].host} writes there"
    how = "set it to a shared file system: every rank writes its part of a save"
    return RuleFailure(what, f"out_dir: {facts.run.spec.folder}", how)
