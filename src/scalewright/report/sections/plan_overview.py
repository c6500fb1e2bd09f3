"""A plan's page begins with the answer in lines, what to copy, and its numbers with how sure they are.

step time   ├──────────▒▒▒▒▒▒▒|▒▒▒▒▒▒▒▒──┤      6.90 s – 9.06 s, middle 7.91 s
memory      ├─────────────────▒▒▒|▒▒▒▒───┃──┤   66.1 GiB of 72.0 usable

Copied are the run file and the line that starts it on every node:

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
from scalewright.report.layouts import is_ours, with_precision
from scalewright.report.page import Section, grouped
from scalewright.report.present.blocks import Line, Shown
from scalewright.report.present.prediction import risk
from scalewright.report.sections.overview import Tile, tile
from scalewright.spec.base import to_yaml
from scalewright.spec.common.formatting import count, decimal, gib, share, short_time
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout


def section(document: PlanDocument, shown: Shown) -> Section | None:
    """The lines, the layout, the tiles; None where no layout was found."""
    if (best := document.first) is None:
        return None
    data = {
        "blocks": grouped([*shown.head, *(block for block in shown.brief if isinstance(block, Line))]),
        "tiles": [tile for tile in tiles(document, best) if tile is not None],
        "gauges": gauges(document, best),
        "copied": start(document, best),
        "layout": with_precision(best.layout),
        "lead": "The best layout" if document.searched else "The layout",
    }
    return Section("overview", "Layout", "plan_overview.html", data)


def status(document: PlanDocument) -> tuple[str, str]:
    best = document.first
    words, tone = ("no layout fits", "bad") if best is None else risk(document, best)
    return words, tone or "plain"


def facts(document: PlanDocument) -> list[str]:
    best = document.first
    size = best.read.part("model") if best else document.read.part("none")
    params, active = size.number("params"), size.number("active_params")
    sequence = document.number("seq_len")
    batch = document.read.number("global_batch")
    if batch is None and best is not None:
        batch = best.read.part("layout").number("global_batch")
    trainer = best.read.data.get("framework") if best else None
    if best and not isinstance(trainer, str):
        trainer = best.read.part("evidence").text("framework")
    evaluated, seconds = document.read.number("evaluated"), document.read.number("seconds")
    parts = [
        f"{count(params)} parameters" if params else "",
        f"{count(active)} active" if active and params and active != params else "",
        f"cluster {document.cluster}" if document.cluster else "",
        f"sequences of {sequence:,.0f}" if sequence else "",
        f"batch {batch:,.0f}" if batch else "",
        f"trained by {trainer}" if trainer else "",
        f"{evaluated:,.0f} layouts in {short_time(seconds)}" if evaluated and seconds else "",
    ]
    return [part for part in parts if part]


def notes(document: PlanDocument) -> list[str]:
    lines = []
    if document.read.data.get("complete") is False:
        lines.append("The search was stopped before its end: a better layout may exist.")
    if document.searched and not document.best:
        lines.append("No layout fits; what comes nearest is below.")
    return lines


def tiles(document: PlanDocument, best: Estimate) -> list[Tile | None]:
    """The main numbers; those that are not known are left out."""
    number = best.read.number
    rate, per_device = number("tokens_per_s"), number("tokens_per_s_per_device")
    usable = document.device.number("usable_gib")
    banded = best.low is not None and best.high is not None  # then the gauges above show it
    flops, hardware = number("tflops_per_device"), number("hfu")
    rates = [f"{decimal(flops, 3)} TFLOP/s per device"] if flops else []
    rates += [f"HFU {share(hardware)}"] if hardware else []
    total = best.read.part("total")
    days, hours, cost = total.number("days"), total.number("device_hours"), total.number("cost")
    return [
        None if banded else tile("Step time", best.seconds, short_time(best.seconds), ""),
        tile("Tokens", rate, f"{count(rate)}/s", f"{count(per_device)}/s per device" if per_device else ""),
        tile("MFU", number("mfu"), share(number("mfu")), ", ".join(rates)),
        None if usable else tile("Memory", best.peak_gib, gib(best.peak_gib), "the fullest rank"),
        tile("Days", days, decimal(days, 3), "for all tokens"),
        tile("Device-hours", hours, count(hours), "for all tokens, with restarts; without evaluation and other stages"),
        tile("Cost", cost, count(cost), total.text("currency") or "in the currency of the price"),
    ]


def gauges(document: PlanDocument, estimate: Estimate) -> list[dict[str, object]]:
    """The step's bar and the memory's; a bar without a band is left out."""
    return [bar for bar in (_time(estimate), _memory(document, estimate)) if bar is not None]


def _time(estimate: Estimate) -> dict[str, object] | None:
    low, high = estimate.low, estimate.high
    if low is None or high is None:
        return None
    end = 1.12 * high
    return {
        "label": "Step time", "value": short_time(estimate.seconds), "fill": 0.0,
        "band": (low / end, (high - low) / end), "middle": estimate.seconds / end,
        "marks": [(edge / end, short_time(edge)) for edge in (low, high)], "limit": None,
        "note": "8 of 10 such runs are expected between p10 and p90", "kind": "",
    }  # fmt: skip


def _memory(document: PlanDocument, estimate: Estimate) -> dict[str, object] | None:
    usable, nominal = document.device.number("usable_gib"), document.device.number("memory_gib")
    if estimate.peak_gib is None or not usable:
        return None
    band = estimate.memory_band
    end = 1.04 * max(nominal or usable, estimate.peak_gib, band[1] if band else 0.0)
    note = f"of {decimal(usable, 3)} GiB that a device gives"
    note += f" ({decimal(nominal, 3)} in all)" if nominal else ""
    note += f"; p10–p90 {decimal(band[0], 3)} – {decimal(band[1], 3)} GiB" if band else ""
    return {
        "label": "Memory of the fullest rank", "value": gib(estimate.peak_gib), "fill": estimate.peak_gib / end,
        "band": (band[0] / end, (band[1] - band[0]) / end) if band else None, "middle": None, "marks": [],
        "limit": (usable / end, gib(usable)), "note": note, "kind": risk(document, estimate)[1],
    }  # fmt: skip


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
