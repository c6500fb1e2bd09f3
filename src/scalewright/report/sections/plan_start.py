"""The texts to copy from a plan's page: the run file, and the line that starts it on every node.

run_yaml of the plan     -> run.yaml   (plan/search/run_file.py writes it)
devices, devices a node  -> scalewright train run.yaml          on one machine
                            torchrun --nnodes 8 ... run.yaml    on each of several
no run_yaml              -> the layout's keys: of another trainer, of one layout alone, of an older plan
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath

from scalewright.plan.search.run_file import PLACEHOLDER
from scalewright.report.document import Estimate, PlanDocument
from scalewright.report.layouts import is_ours
from scalewright.spec.base import to_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout

FILE = "run.yaml"


@dataclass(frozen=True)
class Copied:
    """A text with a button that copies it."""

    id: str
    title: str
    note: str
    text: str


def start(document: PlanDocument, best: Estimate) -> list[Copied]:
    """The plan's run file and its launch line; the layout's keys alone where it has no run file."""
    text, chosen = document.read.text("run_yaml"), trainable(document, best)
    if not is_ours(best) or not text or chosen is None:
        return [_layout(best)]
    file = PurePath(document.read.text("run_file") or FILE).name
    devices_per_node = per_node(document, chosen)
    nodes = -(-chosen.size("devices") // devices_per_node)
    note = "fill in the data folder" if PLACEHOLDER in text else ""
    where = f"on each of {nodes:,} nodes; HOST is the first" if nodes > 1 else "on the machine"
    rest = chosen.size("devices") % devices_per_node
    if nodes > 1 and rest:  # torchrun starts as many processes as its own node is asked for
        where += f"; with --nproc-per-node {rest} on the last, which isn't filled"
    return [
        Copied("run-file", file, note, text),
        Copied("launch-line", "Start it", where, launch(file, nodes, devices_per_node)),
    ]


def trainable(document: PlanDocument, best: Estimate) -> Estimate | None:
    """The layout of the run file: the best that `train` runs."""
    if not best.read.text("untrainable"):
        return best
    if document.read.data.get("best_trainable"):
        return Estimate.of(document.read.part("best_trainable"))
    return next((estimate for estimate in document.best if not estimate.read.text("untrainable")), None)


def _layout(estimate: Estimate) -> Copied:
    trainer = estimate.read.text("framework")
    note = "the `layout` section of a run.yaml"
    if not is_ours(estimate):
        note = f"in Scalewright's keys; {trainer} has other names for some of them"
    keys = {name: estimate.layout[name] for name in Layout.model_fields if estimate.layout.get(name) is not None}
    with suppress(UserError):  # a layout that only the other trainer can have
        keys = Layout.parse(keys).written()
    return Copied("layout-yaml", "The layout's keys", note, to_yaml({"layout": keys}))


def per_node(document: PlanDocument, estimate: Estimate) -> int:
    """Devices of a node; all of them where the plan has no such number."""
    return int(document.device.number("per_node") or 0) or estimate.size("devices")


def launch(file: str, nodes: int, each: int) -> str:
    """The command on one machine, or the line to run on each of several."""
    if nodes == 1:
        return f"scalewright train {file}"
    meet = "--rdzv-backend c10d --rdzv-endpoint HOST:29500"
    return f"torchrun --nnodes {nodes} --nproc-per-node {each} {meet} \\\n  -m scalewright train {file}"
