"""A plan's layout as one takes it along: the run file, and the line that starts it on every node.

layout + what was asked  -> run.yaml   (for `scalewright train`; of another trainer's plan, the layout alone)
devices, devices a node  -> scalewright train run.yaml          on one machine
                            torchrun --nnodes 8 ... run.yaml    on each of several
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from scalewright.report.document import Estimate, PlanDocument
from scalewright.spec.base import to_yaml
from scalewright.spec.layout import Layout

OURS = ("", "scalewright")
FILE = "run.yaml"


@dataclass(frozen=True)
class Copied:
    """A text with a button that copies it."""

    id: str
    title: str
    note: str
    text: str


def start(document: PlanDocument, best: Estimate) -> list[Copied]:
    """The run file and the launch line of the best layout that `train` runs; one text for other trainers."""
    trainer = best.read.text("framework")
    chosen = trainable(document, best)
    if trainer not in OURS:
        note = f"in Scalewright's keys: {trainer} names some of them otherwise"
        return [Copied("layout-yaml", "The layout", note, to_yaml({"layout": keys(best)}))]
    if chosen is None:
        return []
    file = PurePath(document.read.text("run_file") or FILE).name
    text = run_file(document, chosen)
    if not text:
        return []
    nodes = -(-chosen.size("devices") // per_node(document, chosen))
    note = "fill in the data folder" if "DATA_FOLDER" in text else ""
    where = f"on each of {nodes:,} nodes; HOST is the first" if nodes > 1 else "on the machine"
    return [
        Copied("run-file", file, note, text),
        Copied("launch-line", "Start it", where, launch(file, nodes, per_node(document, chosen))),
    ]


def trainable(document: PlanDocument, best: Estimate) -> Estimate | None:
    """The layout that the run file is of: the best that `train` runs."""
    if not best.read.text("untrainable"):
        return best
    if document.read.data.get("best_trainable"):
        return Estimate.of(document.read.part("best_trainable"))
    return next((one for one in document.best if not one.read.text("untrainable")), None)


def run_file(document: PlanDocument, one: Estimate) -> str:
    """The YAML that `train` takes; empty where the plan doesn't say of which model and length."""
    sequence = document.number("seq_len")
    if not document.model or sequence is None:
        return ""
    devices = one.size("devices")
    run = {
        "version": 1,
        "name": f"{document.model}-{devices}".replace("/", "-").replace(" ", "-"),
        "model": document.model,
        **({"cluster": document.cluster} if document.cluster else {}),
        "layout": keys(one),
        "data": {"train": "DATA_FOLDER", "seq_len": int(sequence)},
    }
    return to_yaml(run)


def keys(one: Estimate) -> dict[str, object]:
    """The layout's keys that differ from their defaults, and always its sizes in sequences."""
    usual = {name: field.default for name, field in Layout.model_fields.items()}
    always = ("devices", "zero_stage", "micro_batch", "global_batch", "precision")
    return {
        name: one.layout[name]
        for name in usual
        if name in one.layout and one.layout[name] is not None and _told(name, one, usual, always)
    }


def _told(name: str, one: Estimate, usual: dict[str, object], always: tuple[str, ...]) -> bool:
    derived = {"sp": one.size("tp") > 1, "virtual_stages": 1}  # what a null would come to
    if name == "virtual_stages" and one.layout.get("schedule") not in ("gpipe", "1f1b", "zb-h1"):
        return one.size("pp") > 1
    return name in always or one.layout[name] != derived.get(name, usual[name])


def per_node(document: PlanDocument, one: Estimate) -> int:
    """Devices of a node; all of them where the plan doesn't say."""
    return int(document.device.number("per_node") or 0) or one.size("devices")


def launch(file: str, nodes: int, each: int) -> str:
    """What to type: on one machine the command, on several the same line on each."""
    if nodes == 1:
        return f"scalewright train {file}"
    meet = "--rdzv-backend c10d --rdzv-endpoint HOST:29500"
    return f"torchrun --nnodes {nodes} --nproc-per-node {each} {meet} \\\n  -m scalewright train {file}"
