"""The answer of `diagnose` for logs of NCCL: what was chosen, what slows or stops the run.

One rule for a cause, one function, silent where its cause isn't shown:

    errors           what the table of problems knows, and warnings that it doesn't
    slow_links.py    between nodes: sockets instead of InfiniBand · GPUDirect RDMA off · few adapters
                     within one: the network or shared memory instead of P2P · PCIe instead of NVLink
    summary.py       hosts and ranks that do otherwise than the rest

NCCL chooses on its own, and says why only in passing: a rule looks for the reason among the variables and messages, and
its confidence falls where there is none. Errors that only follow from others are left out:

ncclSystemError on 31 ranks, "Connect to 10.0.0.7 failed : Connection refused" on one  ──► the one
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from scalewright.diagnose.nccl.communicators import Communicator
from scalewright.diagnose.nccl.log import Log, Message, names, read_logs
from scalewright.diagnose.nccl.patterns import Via
from scalewright.diagnose.nccl.problems import CAUSE, SYMPTOM
from scalewright.diagnose.nccl.slow_links import BETWEEN, WITHIN
from scalewright.diagnose.nccl.summary import DIFFERENCES, Summary, summary
from scalewright.diagnose.verdict import Verdict


def nccl_answer(files: Sequence[Path]) -> dict[str, object]:
    """What the logs of one run show; raises OSError where a file can't be read."""
    run = summary(read_logs(files))
    return {
        "kind": "nccl",
        "nccl": nccl_part(run),
        "verdicts": [verdict.dump() for verdict in verdicts(run)],
        "warnings": run.log.notes + _missing(run),
    }


def nccl_part(run: Summary) -> dict[str, object]:
    """The figures of a run's lines, also for a log of training that has NCCL's lines in it."""
    log = run.log
    return {
        "library": log.library,
        "version": next(iter(sorted(log.versions, key=len, reverse=True)), None),
        "versions": {version: sorted(hosts) for version, hosts in log.versions.items()},
        "ranks": run.ranks, "nodes": run.nodes, "hosts": run.hosts,
        "transports": {
            "net": run.net, "intra": run.intra, "within": _links(run.within), "between": _links(run.between),
        },
        "gdr": run.gdr, "channels": run.channels, "plugin": log.plugin or None, "provider": log.provider or None,
        "interfaces": log.bootstrap,
        "adapters": {
            host: [f"{name} ({link})" for _, (name, link) in sorted(listed.items())]
            for host, listed in log.adapters.items()
        },
        "communicators": [_communicator(communicator) for communicator in log.communicators.all],
        "tuning": [
            {"collective": collective, "algorithm": algorithm, "protocol": protocol, "count": count}
            for (collective, algorithm, protocol), count in log.tuning.most_common()
        ],
        "environment": {name: " | ".join(values) for name, values in log.environment.items()},
        "problems": [*log.messages],
        "messages": [
            {"problem": name, "gravity": message.problem.gravity, "count": message.count, "file": message.file,
             "line": message.line, "text": message.text, "hosts": sorted(message.hosts),
             "peers": sorted(message.peers)}
            for name, message in log.messages.items()
        ],
    }  # fmt: skip


def _links(counts: Counter[Via]) -> dict[str, int]:
    """Links by what they go over: `NET/IB/GDRDMA`, with the adapters together."""
    merged: Counter[str] = Counter()
    for way, count in counts.items():
        name = f"{way.kind}/{way.name}" if way.kind in ("NET", "COLLNET") else way.name
        merged[name + ("/GDRDMA" if way.gdr else "")] += count
    return dict(merged.most_common())


def _communicator(some: Communicator) -> dict[str, object]:
    return {
        "id": some.name,
        "ranks": some.ranks, "ranks_seen": len(some.members), "ranks_ready": len(some.complete),
        "nodes": some.nodes, "hosts": some.hosts, "channels": some.most_channels(),
        "rings": len(some.rings) or None, "trees": some.trees or None, "nvls": some.nvls, "gdr": some.gdr,
        "links": dict(some.links.most_common()),
        "members": [
            {"rank": member.rank, "host": member.host, "cuda_device": member.cuda_device,
             "nvml_device": member.nvml_device, "bus_id": member.bus_id or None}
            for _, member in sorted(some.members.items())
        ],
    }  # fmt: skip


def _missing(run: Summary) -> list[str]:
    """What a reader should know about ranks that aren't in the log."""
    world, notes = run.world, []
    if world is None:
        notes.append("no line tells a communicator's ranks: the log is cut, or from before they met")
    elif len(world.members) < world.ranks:
        notes.append(f"{len(world.members):,} of {world.ranks:,} ranks print their place in this log")
    for communicator in run.log.communicators.all:
        waiting = len(communicator.members) - len(communicator.complete)
        if run.log.communicators.started and waiting:
            who = "a rank" if waiting == 1 else f"{waiting:,} ranks"
            notes.append(f"{who} of communicator {communicator.name} began and didn't get ready in this log")
    return notes


MOST_UNKNOWN = 5  # warnings that the table doesn't know: the first tell most, the rest is among the messages


def errors(log: Log) -> list[Verdict]:
    """Warnings of the table; those that only say that something failed where nothing tells what."""
    causes = [message for message in log.messages.values() if message.problem.gravity == CAUSE]
    known = [message for message in causes if message.problem.any_of]
    unknown = [message for message in causes if not message.problem.any_of][:MOST_UNKNOWN]
    symptoms = [message for message in log.messages.values() if message.problem.gravity == SYMPTOM and not known]
    return [_error(message) for message in [*known, *unknown, *symptoms]]


def _error(message: Message) -> Verdict:
    evidence = [f"{message.file}, line {message.line}: {message.text}"]
    if message.count > 1 or message.hosts:
        times = "once" if message.count == 1 else f"{message.count:,} times"
        evidence.append(f"printed {times}" + (f", by {names(sorted(message.hosts))}" if message.hosts else ""))
    if message.peers:
        evidence.append(f"the other end: {names(sorted(message.peers))}")
    problem = message.problem
    fix = problem.fix or "NCCL's own words: its documentation's chapter on troubleshooting has most of them"
    return Verdict(problem.name, evidence, fix, 0.9 if problem.gravity == CAUSE and problem.any_of else 0.5)


RULES: Sequence[Callable[[Summary], Verdict | None]] = (*BETWEEN, *WITHIN, *DIFFERENCES)


def verdicts(run: Summary) -> list[Verdict]:
    """All causes: errors first, then what slows, the surest first."""
    slow = [verdict for rule in RULES if (verdict := rule(run)) is not None]
    return [*errors(run.log), *sorted(slow, key=lambda verdict: -(verdict.confidence or 0.0))]
