"""Compares nodes when their ranks have met: what each found on its machine, and what differs between them.

    node 0 ─ Node, findings ─┐ gather   all ranks hold all reports and come to the same answer:
    node 1 ─ Node, findings ─┼───────►  go on (rank 0 says the warnings), or leave with one error
    node 2 ─ Node, findings ─┘
    then, at one moment: this node's clock, and whether it sees the file that rank 0 wrote into out_dir

The rules are those of launch/preflight, whose `look_here` was called before the ranks met.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import scalewright
from scalewright.launch.preflight.ask import start_facts
from scalewright.launch.preflight.facts import Facts, Node, ProcessPlace, Run
from scalewright.launch.preflight.network import GLOO, names_in
from scalewright.launch.preflight.rules import check, in_order, merge, stop_for
from scalewright.launch.rank import RankContext
from scalewright.launch.settings import present_environment
from scalewright.parallel.collectives import gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.spec.errors import Finding
from scalewright.spec.run import RunSpec

OURS = ("none", "local")  # all ranks are on this machine, which was looked at before they started
OF_LIBRARIES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "FI_")
OF_A_NODE = ("_IFNAME", "_HCA", "_FILE", "ID")  # ends of names whose values may differ
SEEN_S = 3.0  # until a file that another node wrote is given up: file servers are slow to tell
MARK = ".preflight-"


def look_together(
    run: RunSpec, context: RankContext, mesh: Mesh, here: tuple[Finding, ...] = ()
) -> tuple[Finding, ...]:
    """What is to be said of all nodes, on rank 0; all ranks must call it, when they have met. `here`: by `look_here`,
    on this node. Raises the same UserError on every rank for what would make the run fail."""
    mode = run.launch.preflight
    if mode == "off" or context.starter in OURS:
        return here
    first = context.local_rank == 0
    with _mark(run.folder, writes=context.rank == 0) as mark:
        report = _report(run, context, mesh.device.type, here) if first else None
        gathered = gather_json(report and asdict(report) | {"mark": mark}, mesh)
        reports = [Report(**data) for data in gathered if data is not None]
        nodes: tuple[Node, ...] = ()
        several = len(reports) > 1
        if several:
            moment = [time.time(), _sees(run.folder, reports[0].mark)] if first else None  # all have just met
            moments = zip(reports, (seen for seen in gather_json(moment, mesh) if seen is not None), strict=True)
            nodes = tuple(replace(r.as_node, clock=clock, sees_folder=sees) for r, (clock, sees) in moments)
    place = ProcessPlace(context.starter, world=context.world, nodes=len(reports))
    facts = Facts(place=place, site=run.launch, run=Run(run), nodes=nodes, gpus=mesh.device.type == "cuda")
    by_host = [(report.node["host"] if several else "", report.as_findings) for report in reports]
    findings = stop_for(in_order([*merge(by_host), *check(facts, "nodes")]), mode)
    return findings if context.rank == 0 else ()


@dataclass(frozen=True)
class Report:
    """What the first rank of a node tells the others; plain data, to be sent."""

    node: dict[str, Any]
    findings: list[dict[str, Any]]
    mark: str = ""  # rank 0's: the name of the file that it wrote

    @property
    def as_node(self) -> Node:
        return Node(**self.node)

    @property
    def as_findings(self) -> list[Finding]:
        return [Finding(**{**row, "hosts": ()}) for row in self.findings]


def _report(run: RunSpec, context: RankContext, kind: str, here: tuple[Finding, ...]) -> Report:
    """This node's; a look that fails is a finding, since the other nodes wait for an answer."""
    try:
        facts = start_facts(present_environment(), run, gpus=kind == "cuda")
        findings = (*here, *check(facts, "node"))
        node = describe(run, facts, context.rank, kind)
    except Exception as error:
        what = f"this node can't be looked at ({type(error).__name__}: {error})"
        findings = (Finding("machine", "look", "warn", what, "launch.preflight=off leaves it out", where="machine"),)
        node = Node(platform.node(), context.rank)
    return Report(asdict(node), [asdict(finding) for finding in findings])


def describe(run: RunSpec, facts: Facts, rank: int, kind: str) -> Node:
    """What the other nodes compare with theirs."""
    import torch

    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    versions["scalewright"] = f"{scalewright.__version__} {code_digest()}"
    gpus: dict[str, int] = {}
    if kind == "cuda":
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        gpus = {name: names.count(name) for name in names}
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        if driver := _driver():
            versions["driver"] = driver
    named = [name for name in facts.environ if name.startswith(OF_LIBRARIES) and not name.endswith(OF_A_NODE)]
    variables = {name: facts.environ[name] for name in named}
    cards = sum(card.active for card in facts.machine.cards.values())
    return Node(facts.machine.host, rank, versions, gpus, cards, variables, _mtu(facts), run_digest(run))


def code_digest(folder: Path | None = None) -> str:
    """Of this package's code: names and sizes of its files, which other versions hardly share."""
    folder = folder or Path(scalewright.__file__).parent
    files = sorted((path.relative_to(folder).as_posix(), path.stat().st_size) for path in folder.rglob("*.py"))
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()[:8]


def run_digest(run: RunSpec) -> str:
    """Of all that decides a run's numbers, and where it is written."""
    keys = {key: value for key, value in run.dump().items() if key not in ("launch", "environment")}
    return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:8]


def _driver() -> str:
    """NVIDIA's driver (Linux); empty where it isn't known."""
    with suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
        if match := re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text):
            return match[0]
    return ""


def _mtu(facts: Facts) -> int | None:
    """Of the interface that Gloo takes: the named one, or that of the host's own name."""
    interfaces, addresses = facts.machine.interfaces or {}, facts.machine.host_addresses or ()
    for name in names_in(facts.environ.get(GLOO, "")):
        if name in interfaces:
            return interfaces[name].mtu
    carrying = (card for card in interfaces.values() if set(card.addresses) & set(addresses))
    return next((card.mtu for card in carrying), None)


@contextmanager
def _mark(folder: Path, *, writes: bool) -> Iterator[str]:
    """Writes a file into the run's folder, and removes it; its name, empty where there is none."""
    name = f"{MARK}{uuid.uuid4().hex}" if writes else ""
    try:
        if name:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
    except OSError:  # another rule says that
        name = ""
    try:
        yield name
    finally:
        if name:
            with suppress(OSError):
                (folder / name).unlink()


def _sees(folder: Path, mark: str) -> bool:
    """Whether this node sees rank 0's file; true where there is none to see."""
    end = time.monotonic() + SEEN_S
    while mark and not (folder / mark).exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
