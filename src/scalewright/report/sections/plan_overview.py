"""The planner's answer in a handful of numbers: the layout, whether it fits, how fast, how sure."""

from __future__ import annotations

from typing import Any

from scalewright.report.document import Estimate, PlanDocument, Reader
from scalewright.report.layout_text import layout_text
from scalewright.report.page import Section
from scalewright.report.sections.overview import Tile, tile
from scalewright.report.sections.plan_gauges import gauges, risk
from scalewright.report.sections.plan_start import start
from scalewright.report.trainers import is_ours, untrainable
from scalewright.spec.common.formatting import count, decimal, gib, share, short_time


def section(document: PlanDocument) -> Section | None:
    """The tiles and the layout; None where no layout was found."""
    best = document.first
    if best is None:
        return None
    data = {
        "tiles": [tile for tile in tiles(document, best) if tile is not None],
        "gauges": gauges(document, best),
        "copied": start(document, best),
        "simpler": simpler(best),
        "nearby": [near(option, document, best) for option in document.read.parts("nearby")],
        "layout": layout_text(best.layout),
        "lead": "The best layout" if document.searched else "The layout",
        "bottleneck": best.read.text("bottleneck"),
        "lacks": lacks(best),
        "fix": fix(best),
        "untrainable": untrainable(best),
        **trainable(document, best),
    }
    return Section("overview", "Layout", "plan_overview.html", data)


def trainable(document: PlanDocument, best: Estimate) -> dict[str, Any]:
    """The best layout that `train` runs, where that isn't the best of all."""
    if not untrainable(best) or not document.read.data.get("best_trainable"):
        return {"trainable": [], "trainable_note": ""}
    other = Estimate.of(document.read.part("best_trainable"))
    slower = f"{100 * (other.seconds / best.seconds - 1):+.1f}%".replace("-", "−")
    note = f"{short_time(other.seconds)} a step, {slower}"
    return {"trainable": layout_text(other.layout), "trainable_note": note}


def simpler(best: Estimate) -> str:
    """The cost of the simplest layout within the margin beside the fastest; empty where it is the fastest."""
    other = best.read.part("simpler_than")
    cost, layout = other.number("cost_pct"), other.part("layout").data
    if cost is None or not layout:
        return ""
    return f"Simpler than the fastest, and {cost:.1f}% slower: {' · '.join(layout_text(layout))}"


def lacks(best: Estimate) -> str:
    parts = ", ".join(best.read.lines("lacks"))
    if not parts or untrainable(best):  # which is shown
        return ""
    if is_ours(best):
        return f"`train` can't run it: {parts}"
    return f"{best.read.text('framework')} can't run it: it has no {parts}"


def near(option: Reader, document: PlanDocument, best: Estimate) -> dict[str, str]:
    """Another count of devices, or another batch, on which the same run goes faster."""
    devices, asked = option.number("devices"), document.read.number("devices")
    batch, wanted = option.number("global_batch"), document.read.number("global_batch")
    gain, rate = option.number("gain_pct"), option.number("tokens_per_s")
    now = best.read.number("tokens_per_s")
    change = f"{devices or 0:,.0f} of the {asked or 0:,.0f} devices"
    if devices == asked:
        change = f"a global batch of {batch or 0:,.0f} instead of {wanted or 0:,.0f}"
    return {
        "change": change,
        "gain": "" if gain is None else f"+{gain:.0f}%",
        "rates": f"{count(rate)} instead of {count(now)} tokens/s" if rate and now else "",
        "layout": " · ".join(layout_text(option.part("layout").data)),
    }


def status(document: PlanDocument) -> tuple[str, str]:
    best = document.first
    return ("no layout fits", "bad") if best is None else risk(document, best)


def title(document: PlanDocument) -> str:
    """`llama-3.1-70b on 512 × h100-sxm`."""
    devices = document.read.number("devices") or (document.first and document.first.size("devices"))
    device = document.device.text("name") or document.cluster or "devices"
    model = document.model or "A model"
    return f"{model} on {devices:,.0f} × {device}" if devices else f"{model} on {device}"


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
    flops = number("tflops_per_device")
    hardware = number("hfu")
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
        tile("Device-hours", hours, count(hours), "for all tokens"),
        tile("Cost", cost, count(cost), total.text("currency") or "in the currency of the price"),
    ]


def fix(best: Estimate) -> str:
    """The change that would make it fit, in a sentence."""
    smallest = best.read.part("smallest_fix")
    change = smallest.text("change")
    if not change:
        return ""
    peak, seconds = smallest.number("peak_gib"), smallest.number("step_time_s")
    verdict = "The smallest change that fits" if smallest.data.get("fits") else "Leanest, but still too large"
    costs = [gib(peak) if peak else "", f"{short_time(seconds)} a step" if seconds else ""]
    note = ", ".join(part for part in costs if part)
    return f"{verdict}: {change}" + (f" ({note})." if note else ".")
