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
from scalewright.launch.preflight.rule import RuleFailure, Subject
from scalewright.spec.errors import Severity

SUBJECT = Subject("nodes", at=("nodes",), needs=("several nodes",))
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


def alike(
    name: str, severity: Severity, title: str, source: str, value: Callable[[Node], str | None], what: str,
    where: str = "nodes", how: str = ONE_ENVIRONMENT, needs: tuple[str, ...] | None = None,
) -> None:  # fmt: skip
    """Makes a rule of a value that all nodes must share; `what` stands before the values that differ."""

    def check(facts: Facts) -> RuleFailure | None:
        text = differing(facts.nodes, value)
        return None if text is None else RuleFailure(f"{what} {text}", where, how)

    SUBJECT.rule(name, severity, title, source, needs=needs)(check)


def _version(package: str) -> Callable[[Node], str | None]:
    return lambda node: node.versions.get(package)


def _kinds(node: Node) -> str:
    return " + ".join(f"{count} x {name}" for name, count in node.gpus.items()) or "no GPU"


alike("torch-differs", "problem", "nodes have different versions of torch",
      "PyTorch issue 174917: nothing compares versions when ranks meet", _version("torch"), "torch is")  # fmt: skip
alike("scalewright-differs", "problem", "nodes have different code of this package", TRAINERS,
      _version("scalewright"), "scalewright is")  # fmt: skip
alike("nccl-differs", "problem", "nodes have different versions of NCCL",
      "NCCL, init.cc: ranks of different versions are an error", _version("nccl"), "nccl is")  # fmt: skip
alike("python-differs", "warn", "nodes have different versions of Python", TRAINERS, _version("python"), "python is")
alike("driver-differs", "warn", "nodes have different drivers", "NVIDIA docs, CUDA compatibility",
      _version("driver"), "driver is", how="update those, or leave them out (launch.exclude)")  # fmt: skip
alike("gpus-differ", "warn", "nodes have different GPUs",
      "docs/layouts.md: every rank has the same share, so the slowest sets the step", _kinds, "GPUs differ:",
      how="choose alike nodes (launch.constraint, launch.gpu)")  # fmt: skip
alike("cards-differ", "warn", "nodes have different numbers of active cards of InfiniBand or EFA",
      "NCCL user guide, Troubleshooting: InfiniBand", lambda node: f"{node.cards} active", "cards differ:", "network",
      "look at ibstat there, or leave those out (launch.exclude)", ("GPUs", "several nodes"))  # fmt: skip
alike("run-differs", "problem", "nodes read different runs", TRAINERS, lambda node: node.run or None,
      "the run's digest is", "run file",
      "give every node the same run file and the same key=value: a shared folder, or a copy of it")  # fmt: skip


@SUBJECT.rule("variables-differ", "warn", "nodes have different variables of NCCL or Gloo",
              "NCCL issue 626: the same variables on all ranks")  # fmt: skip
def variables_differ(facts: Facts) -> RuleFailure | None:
    for name in sorted({name for node in facts.nodes for name in node.variables}):
        if name.endswith(("_IFNAME", "_HCA", "_FILE")):
            continue  # may well be of a node
        text = differing(facts.nodes, partial(_variable, name))
        if text is not None:
            return RuleFailure(f"{name} is {text}", "environment", "set it for all nodes (launch.env), or for none")
    return None


def _variable(name: str, node: Node) -> str:
    return node.variables.get(name, "unset")


alike("mtu-differs", "warn", "packets between nodes have different sizes",
      "RFC 4821: packets larger than a hop takes are lost in silence",
      lambda node: str(node.mtu) if node.mtu else None, "the interface's MTU is", "network",
      "ip link set INTERFACE mtu N, the same on all")  # fmt: skip


@SUBJECT.rule("clocks-differ", "warn", "clocks of nodes differ",
              "RFC 5905 (NTP); docs/diagnose.md: events and traces of ranks are compared")  # fmt: skip
def clocks_differ(facts: Facts) -> RuleFailure | None:
    clocks = sorted((node.clock, node.host) for node in facts.nodes if node.clock)
    if len(clocks) < 2 or clocks[-1][0] - clocks[0][0] <= SKEW_S:
        return None
    middle = clocks[len(clocks) // 2][0]
    offset, host = max(((clock - middle, host) for clock, host in clocks), key=lambda pair: abs(pair[0]))
    what = f"the clock of {host} is {offset:+.0f} s off: times in events, logs and traces won't fit"
    return RuleFailure(what, "clock", "start NTP there: chronyc makestep")


@SUBJECT.rule("folder-not-shared", "problem", "nodes don't see one folder of the run",
              "docs/checkpoints.md: every rank writes its part into out_dir",
              needs=("several nodes", "a run that saves"))  # fmt: skip
def folder_not_shared(facts: Facts) -> RuleFailure | None:
    blind = [node.host for node in facts.nodes if not node.sees_folder]
    if not blind or facts.run is None:
        return None
    verb = "doesn't" if len(blind) == 1 else "don't"
    what = f"{_names(blind)} {verb} see what {facts.nodes[0].host} writes there"
    how = "set it to a shared file system: every rank writes its part of a save"
    return RuleFailure(what, f"out_dir: {facts.run.spec.folder}", how)
