"""A prediction as blocks: what one layout costs, how sure that is, where the time and the memory go.

llama-3.1-70b on 512 x h100-sxm: tp 8 · dp 64 · zero 1 · micro-batch 1 x 16
step      20.5 s, 36.3% MFU, 410k tokens/s; 76.9 of 72.0 GiB: unlikely to fit
how sure  8 of 10 take 15.8-26.5 s, 71.2-83.1 GiB; never measured: scalewright
next      the smallest change that makes it fit: pp 2 (52.9 GiB in 20.5 s)
assumed   sp true, micro_batch 1, ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalewright.report.document import KINDS, Estimate, PlanDocument, Reader
from scalewright.report.layouts import is_ours, one_line, with_precision
from scalewright.report.present.bands import footprint
from scalewright.report.present.blocks import Bar, Bars, Block, Line, Note, Shown, Table, Tone
from scalewright.spec.common.formatting import count, decimal, gib, share, short_time
from scalewright.spec.step_parts import PART_TERMS, RISK_TERMS, TOO_LARGE

LEAST_GAIN = 0.5  # percent of speed that is worth a line
TIGHT = 0.1  # of the usable memory: with less to spare and no band, what a plan leaves out may not fit
TONES: dict[str, Tone] = {"fits": "good", "likely": "warn", "unlikely": "bad", "no": "bad"}
CHANGES = {"setting": "what if", "hardware": "other hardware", "": "what was tried"}  # older plans have no kinds
FIRST = ("compute", "recompute", "tp_exposed", "cp_exposed", "ep_exposed", "dp_exposed")
PARTS = (*FIRST, *(key for key in PART_TERMS if key not in FIRST))  # in the order of a page's colours

TERMS = {  # of a bottleneck's parts -> the words of `explain` behind them
    "compute:": "compute-bound", "exposed": "exposed", "pipeline bubble": "pipeline bubble",
    "recomputation": "activation recomputation", "optimizer": "optimizer",
}  # fmt: skip


def show_prediction(document: PlanDocument, command: str = "") -> Shown:
    """The answer of `predict`; `command`: the search over all layouts. Raises UserError."""
    best = document.best[0]
    command = command or "`plan` searches all layouts for a better one"
    first, *others = [*_next(best), ""]
    head = [step_line(document, best), *whole_run(best), sure_line(document, best), Line("next", first or command)]
    head.append(assumed_line(best.read.lines("assumed")))
    rest = [Line("and", step) for step in others if step] + ([Line("or", command)] if first else [])
    blocks = [*rest, *setting(best), *details(document, best)]
    return Shown(headline(document, best), head, blocks)


def headline(document: PlanDocument, best: Estimate) -> str:
    """The run and its layout, with a precision that isn't the usual one."""
    unusual = best.layout.get("precision") not in (None, "auto", "bf16")
    return f"{title(document)}: " + (" · ".join(with_precision(best.layout)) if unusual else one_line(best.layout))


def title(document: PlanDocument) -> str:
    """`llama-3.1-70b on 512 x h100-sxm`."""
    devices = document.read.number("devices") or (document.first and document.first.size("devices"))
    device = document.device.text("name") or document.cluster or "devices"
    model = document.model or "A model"
    return f"{model} on {devices:,.0f} x {device}" if devices else f"{model} on {device}"


def risk(document: PlanDocument, estimate: Estimate) -> tuple[str, Tone]:
    """Whether it fits, in words that admit what isn't certain, and their colour."""
    key = estimate.read.data.get("risk")
    if isinstance(key, str) and key in RISK_TERMS:
        return RISK_TERMS[key], TONES[key]
    if estimate.fits is False:
        return RISK_TERMS["no"], "bad"
    usable, peak = document.device.number("usable_gib"), estimate.peak_gib
    if not usable or peak is None:
        return ("planned", "") if estimate.fits is None else (RISK_TERMS["fits"], "good")
    spare = (usable - peak) / usable
    if spare < 0:
        return RISK_TERMS["no"], "bad"
    return (f"tight: {share(spare)} of memory to spare", "warn") if spare < TIGHT else (RISK_TERMS["fits"], "good")


def step_line(document: PlanDocument, best: Estimate, beaten: str = "") -> Line:
    """How fast, and whether it fits; `beaten`: what that is beside a layout to beat."""
    rate, mfu = best.read.number("tokens_per_s"), best.read.number("mfu")
    words, tone = risk(document, best)
    usable = document.device.number("usable_gib")
    parts = [short_time(best.seconds), beaten, f"{share(mfu)} MFU" if mfu else "",
             f"{count(rate)} tokens/s" if rate else ""]  # fmt: skip
    speed = ", ".join(part for part in parts if part)
    if best.peak_gib is None:
        return Line("step", speed, tone)
    of = f"{decimal(best.peak_gib, 3)} of {gib(usable)}" if usable else gib(best.peak_gib)
    host = best.read.part("host_memory_gib")
    if (needed := host.number("needed")) is not None:
        of += f", and {decimal(needed, 3)} of {gib(host.number('usable'))} of the host for each device"
    return Line("step", f"{speed}; {of}: {words}", tone)


def whole_run(best: Estimate) -> Iterator[Line]:
    """Where tokens are given: the days and what they cost."""
    total = best.read.part("total")
    if (days := total.number("days")) is not None:
        cost = total.number("cost")
        money = "" if cost is None else f", which cost {cost:,.0f} {total.text('currency')}"
        at = f", at a goodput of {total.number('goodput') or 1:.4g}"
        hours = total.number("device_hours") or 0
        yield Line("whole run", f"{days:,.4g} days: {hours:,.0f} device-hours{money}{at}")


def sure_line(document: PlanDocument, best: Estimate) -> Line:
    """The bands of time and, where it may not fit, of memory, and the evidence in half a line."""
    evidence, band = best.read.part("evidence"), best.memory_band
    parts = ["stopped before the end: the best so far"] if document.read.data.get("complete") is False else []
    if best.low is not None and best.high is not None:
        memory = band if best.read.text("risk") != "fits" else None
        gibs = f", {decimal(memory[0], 3)}-{gib(memory[1])}" if memory else ""
        parts.append(f"8 of 10 take {between(short_time(best.low), short_time(best.high))}{gibs}")
    never = evidence.lines("never_measured")
    nearest = next(evidence.parts("nearest"), None)
    if never:
        parts.append(f"never measured: {', '.join(never)}")
    elif evidence.text("probe"):
        parts.append("from timings of these devices")
    elif nearest is not None and _off(nearest):
        parts.append(f"{_off(nearest)} beside a measured run of {_run(nearest)}")
    return Line("how sure", "; ".join(parts) or "no band and no measured run is known")


def between(low: str, high: str) -> str:
    """`6.80-10.1 s`: a unit that both ends have once, and three digits of each."""
    (number, _, unit), (other, _, of_other) = low.partition(" "), high.partition(" ")
    if unit != of_other:
        return f"{low} to {high}"
    if "." in number + other:
        number, other = (end if "," in end else f"{float(end):#.3g}".rstrip(".") for end in (number, other))
    return f"{number}-{other} {unit}".rstrip()


def assumed_line(assumed: Sequence[str]) -> Line:
    return Line.of_items("assumed", list(dict.fromkeys(assumed)), "nothing: all of it was given")


def lacking(best: Estimate) -> str:
    """That the layout is priced, but its trainer can't run it; empty where it can."""
    parts = ", ".join(best.read.lines("lacks"))
    if not parts or is_ours(best):
        return f"`train` can't run it: {parts}" if parts else ""
    return f"{best.read.text('framework')} can't run it: it has no {parts}"


def fix(best: Estimate) -> str:
    """The change that would make it fit, in a sentence; empty where it fits."""
    if best.fits is not False:
        return ""
    host = best.read.part("host_memory_gib")
    needed, have = host.number("needed") or 0.0, host.number("usable") or 0.0
    if needed > have:
        more = gib(needed - have)
        return f"what it keeps there needs {more} more of the host for each device: more devices, or a larger host"
    smallest = best.read.part("smallest_fix")
    if not (change := smallest.text("change")):
        return "no single change makes it fit" if "smallest_fix" in best.read.data else ""
    how = f"{gib(smallest.number('peak_gib'))} in {short_time(smallest.number('step_time_s'))}"
    if not smallest.data.get("fits"):
        return f"no single change makes it fit; nearest: {change}, {how}"
    return f"the smallest change that makes it fit: {change} ({how})"


def _next(best: Estimate) -> Iterator[str]:
    """What is in the way: memory, or what the trainer lacks."""
    if fix(best):
        yield fix(best)
    if lacking(best):
        yield lacking(best)
    elif not fix(best) and is_ours(best) and best.read.text("risk") in ("likely", "unlikely"):
        yield "`train --dry-run` counts its memory"


def helping(best: Estimate) -> list[Reader]:
    """Changes that help, best first; for a layout that fits, only those that still fit."""
    rows = [row for row in best.read.parts("what_if") if (row.number("gain_pct") or 0.0) > LEAST_GAIN]
    return [row for row in rows if best.fits is False or not row.text("change").endswith(TOO_LARGE)]


def setting(best: Estimate) -> Iterator[Block]:
    """The model's size and trainer, the batch: what the title leaves out."""
    read, layout = best.read, best.read.part("layout")
    params, active = (read.part("model").number(key) for key in ("params", "active_params"))
    trainer, length, batch = read.text("framework"), read.number("seq_len"), layout.number("global_batch")
    parts = [str(layout.data.get("precision", ""))]
    if params:
        more = f" ({count(active)} active)" if active != params else ""
        parts.insert(0, f"{count(params)} parameters{more}" + (f", as {trainer} trains it" if trainer else ""))
    if batch and length:
        parts.insert(1, f"global batch {batch:g} x {length:,.0f} = {count(batch * length)} tokens")
    yield Line("run", ", ".join(part for part in parts if part), detail=True)


def details(document: PlanDocument, best: Estimate, detail: bool = False) -> Iterator[Block]:
    """Where time and memory go, what would help, and the evidence; `detail`: time alone is shown unasked."""
    yield from _figures(best)
    yield time_bars(best)
    usable, peak = document.device.number("usable_gib"), best.peak_gib
    kinds = [(number, kind, best.memory[kind]) for number, kind in enumerate(KINDS) if kind in best.memory]
    kinds += [(-1, "free", usable - peak)] if usable and peak else []
    bars = [Bar(kind, value, gib(value), number) for number, kind, value in kinds]
    yield Bars("memory of the worst rank", bars, detail)
    yield from what_if(best, detail)
    buys = [part.text("why") for part in best.read.parts("buys")]
    if buys:
        yield Note("what each part buys", buys, detail=True)
    yield from evidence(best)


def _figures(best: Estimate) -> Iterator[Line]:
    read = best.read
    rate, flops = read.number("tokens_per_s_per_device"), read.number("tflops_per_device")
    mfu, hfu = read.number("mfu"), read.number("hfu")
    again = f", {share(hfu)} with recomputation" if hfu and mfu and hfu > mfu * 1.001 else ""
    if rate and flops:
        yield Line("a device", f"{rate:,.0f} tokens/s, {flops:.4g} TFLOP/s{again}", detail=True)
    if best.memory_band:
        low, high = best.memory_band
        held, shown = read.number("memory_reserved_gib"), read.number("memory_smi_gib")
        kinds = f"; the allocator holds {gib(held)}, nvidia-smi shows {gib(shown)}" if held and best.fits else ""
        yield Line("memory", f"8 of 10 take {decimal(low, 3)}-{gib(high)}, allocated{kinds}", detail=True)
    if read.text("bottleneck"):
        yield Line("bottleneck", read.text("bottleneck"), detail=True)
        terms = [term for part, term in TERMS.items() if part in read.text("bottleneck")]
        yield Line("words", ", ".join(f"scalewright explain {term}" for term in terms or ["bottleneck"]), detail=True)
    total = read.part("total")
    if total.number("days") is not None:
        words = {"days": "{:,.4g}-{:,.4g} days", "device_hours": "{:,.0f}-{:,.0f} device-hours",
                 "cost": f"{{:,.0f}}-{{:,.0f}} {total.text('currency')}"}  # fmt: skip
        ends = {name: list(total.part("band").part(name).numbers().values()) for name in words}
        bands = [words[name].format(*band) for name, band in ends.items() if len(band) == 2]
        if bands:
            yield Line("whole run", "8 of 10 take " + ", ".join(bands))
        energy, co2 = total.part("energy_kwh").numbers(), total.part("co2_kg").numbers()
        if len(energy) == len(co2) == 3:
            yield Line("energy", footprint(energy, co2))
        if left_out := total.text("left_out"):
            lost = total.number("failures_device_hours") or 0.0
            yield Line("in it", f"saves, stops and restarts, {lost:,.0f} device-hours; not in it: {left_out}")


def time_bars(best: Estimate) -> Bars:
    """The parts of a step in their order; those of another version last."""
    order = [*PARTS, *(key for key in best.parts if key not in PARTS)]
    rows = [
        Bar(PART_TERMS.get(key, key.replace("_", " ")), best.parts[key], short_time(best.parts[key]),
            min(number, len(PARTS) - 1))
        for number, key in enumerate(order) if key in best.parts
    ]  # fmt: skip
    return Bars("time of a step", rows)


def gain(row: Reader) -> str:
    """`+8.1%`, of speed."""
    return f"{row.number('gain_pct') or 0:+.1f}%".replace("-", "−")


def what_if(best: Estimate, detail: bool = False) -> Iterator[Table]:
    """Changes that help, settings apart from other hardware; then those that don't, or don't fit."""
    rows = [row for row in best.read.parts("what_if") if row.text("change")]
    useful = helping(best)
    groups = [(name, [row for row in useful if row.text("kind") == kind]) for kind, name in CHANGES.items()]
    groups.append(("no help, or too large", [row for row in rows if row not in useful]))
    for name, changes in groups:
        cells = [(row.text("change"), short_time(row.number("step_time_s")), gain(row)) for row in changes]
        if cells:
            hidden = detail or name != CHANGES["setting"] or best.fits is False
            yield Table((name, "step", "speed"), cells, detail=hidden, few=3)


def evidence(best: Estimate) -> Iterator[Block]:
    """The measured runs that are nearest, with their predictions, and what lies outside all of them."""
    read = best.read.part("evidence")
    if read.text("probe"):
        yield Line("priced from", read.text("probe"), detail=True)
    runs = [nearest for run in read.parts("nearest") if (nearest := nearest_run(run))]
    if runs:
        yield Note("nearest measured runs", runs, detail=True)
    if lines := outside(read):
        yield Note("beyond what was measured", lines, detail=True)


def nearest_run(run: Reader) -> str:
    """A measured run beside its prediction; empty where one of the two is missing."""
    measured, predicted = run.number("measured"), run.number("predicted")
    if not measured or not predicted:
        return ""
    layout = run.part("layout")
    batch, length = layout.number("global_batch"), run.number("seq_len")
    how = [*(run.text(key) for key in ("trainer", "date", "source")),
           " · ".join(with_precision(layout.data)) if layout.data else "",
           f"batch {batch:,.6g} x {length:,.0f}" if batch and length else ""]  # fmt: skip
    times = f"{short_time(measured)}, predicted {short_time(predicted)} ({_off(run)})"
    return f"{_run(run)}: {times}; {', '.join(part for part in how if part)}"


def _run(run: Reader) -> str:
    devices = run.number("n_devices")
    where = f"{devices:,.0f} x {run.text('device')}" if devices else run.text("device")
    return " on ".join(part for part in (run.text("model"), where) if part)


def assumed_notes(document: PlanDocument, best: Estimate) -> Iterator[Note]:
    """What was assumed, of the search and of the layout, and what an MFU counts."""
    if assumed := list(dict.fromkeys([*document.read.lines("assumed"), *best.read.lines("assumed")])):
        yield Note("assumed", assumed)
    if best.read.text("flops_convention"):
        yield Note("what MFU counts", [best.read.text("flops_convention")])


def _off(run: Reader) -> str:
    measured, predicted = run.number("measured"), run.number("predicted")
    return f"{100 * (predicted / measured - 1):+.0f}%".replace("-", "−") if measured and predicted else ""


def outside(evidence: Reader) -> list[str]:
    """The parts that no measured run covers, a name alone only where no line has it; and how much that widens."""
    lines, wider = evidence.lines("extrapolates"), evidence.number("band_wider")
    names = [name for name in evidence.lines("never_measured") if not any(name in line for line in lines)]
    band = [f"so the band is {wider:.1f} times as wide"] if wider is not None and wider >= 1.05 else []
    return [*(f"no run of {name}" for name in names), *lines, *band]
