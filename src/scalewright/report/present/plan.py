"""A plan as blocks: the best layout and what to do with it, the others, and why they lose.

llama-3.1-8b on 64 x h100-sxm: dp 64 · zero 2 · micro-batch 1 x 8
step      7.99 s, 42.7% MFU, 525k tokens/s; 62.9 of 72.0 GiB: fits
how sure  8 of 10 take 6.59-9.68 s; never measured: scalewright
next      add `--out run.yaml --data DIR`, then scalewright train run.yaml
assumed   framework scalewright, optimizer adamw, precision bf16 (auto)
"""

from __future__ import annotations

from collections.abc import Iterator

from scalewright.report.document import Estimate, PlanDocument, Reader
from scalewright.report.layouts import is_ours, one_line, untrainable
from scalewright.report.present.blocks import Block, Line, Note, Shown, Table, Text
from scalewright.report.present.prediction import (
    assumed_line,
    between,
    details,
    gain,
    headline,
    lacking,
    setting,
    step_line,
    sure_line,
    whole_run,
)
from scalewright.spec.common.formatting import count, counted, decimal, gib, share, short_time
from scalewright.spec.step_parts import RISK_TERMS

FEW = 3  # reasons that are shown unasked
MANY = 8  # layouts of the Pareto set in a table
EMITTED_BY = ("megatron", "torchtitan", "deepspeed", "nanotron", "maxtext", "colossalai", "levanter")


def show_plan(document: PlanDocument) -> Shown:
    """The answer of `plan`. Raises UserError for a document that is none."""
    best = document.best[0]
    yours = yours_of(document)
    head = [step_line(document, best, _beaten(document)), *whole_run(best), sure_line(document, best)]
    head += [Line("next", "; ".join(next_steps(document))), assumed_line(document.read.lines("assumed"))]
    blocks: list[Block] = [*advice(document, best), *(yours_blocks(document, yours) if yours else ()),
                           *emitted_blocks(document), *setting(best), _layouts(document), *reasons(document),
                           *details(document, best, detail=True), *_pareto(document)]  # fmt: skip
    return Shown(headline(document, best), head, blocks)


def yours_of(document: PlanDocument) -> Estimate | None:
    """The layout to beat, where there is one."""
    return Estimate.of(document.read.part("yours")) if document.read.data.get("yours") else None


def _beaten(document: PlanDocument) -> str:
    yours = document.read.part("yours")
    gain = yours.number("gain_pct")
    if gain is None or gain > 100:
        return "" if gain is None else f"{faster(yours)} as yours"
    why = {"likely": "only likely", "unlikely": "unlikely"}.get(yours.text("risk"))
    doubt = f", which is {why} to fit" if why else ""
    return f"{gain:.1f}% faster than yours" if gain >= 0 else f"{-gain:.1f}% slower than yours{doubt}"


def searched(document: PlanDocument) -> str:
    """How many layouts were looked at."""
    number = document.read.number
    judged, priced, feasible, seconds = (number(key) for key in ("evaluated", "priced", "feasible", "seconds"))
    if not judged:
        return ""
    parts = [f"{count(judged)} layout{'' if judged == 1 else 's'} judged" + (f" in {seconds:.2f} s" if seconds else "")]
    parts += [f"{count(priced)} priced in full, {count(feasible)} of these fit"] if priced else []
    return ", ".join(parts)


def next_steps(document: PlanDocument) -> Iterator[str]:
    """What to type now, and what to know before."""
    read, best = document.read, document.best[0]
    trainer = best.read.text("framework")
    if "emitted" in read.data:
        emitted = read.part("emitted")
        written = emitted.lines("written")
        if "refused" in emitted.data:
            yield f"not emitted: {emitted.text('refused')}"
        elif written:
            yield f"written {', '.join(written)}, in this layout: its changes are below"
        else:
            yield "add `--out FILE` to have the file below written"
    elif "run_file" not in read.data:
        start = "scalewright train run.yaml" if is_ours(best) else f"scalewright emit {trainer} run.yaml"
        ready = is_ours(best) or trainer in EMITTED_BY
        own = read.part("from").text("trainer") in (trainer, *(() if ready else ("transformers", "accelerate")))
        out = "add `--out run.yaml --data DIR`" + (f", then {start}" if ready else "")
        yield "add `--emit` to see your own file in this layout" if own else out
    elif not (path := read.text("run_file")):
        yield f"no run file: `train` can't run this yet: {read.text('run_file_untrainable')}"
    elif is_ours(best):
        fill = "fill its `data` line (marked FILL-IN), then " if read.data.get("run_file_to_fill") else ""
        nodes = -(-best.size("devices") // int(document.device.number("per_node") or best.size("devices")))
        where = f" under srun, torchrun or mpirun on {nodes:,} nodes" if nodes > 1 else ""
        yield f"{fill}scalewright train {path}{where}"
        if nodes > 1:
            yield "with --dry-run it is tried here"
    else:
        if trainer in EMITTED_BY:
            yield f"scalewright emit {trainer} {path}"
        yield f"{path} has Scalewright's keys, to be set in {trainer}, which doesn't read this file"


def advice(document: PlanDocument, best: Estimate) -> Iterator[Line]:
    """What to know of the best layout: what can't be run, was preferred, or would go faster."""
    if untrainable(best):
        yield Line("not yet", f"`train` can't run it: {untrainable(best)}", "warn")
    elif lacking(best):
        yield Line("not yet", lacking(best), "warn")
    if untrainable(best) and document.read.data.get("best_trainable"):
        other = Estimate.of(document.read.part("best_trainable"))
        slower = f"{100 * (other.seconds / best.seconds - 1):+.1f}%".replace("-", "−")
        yield Line("trainable", f"the best that `train` runs: {one_line(other.layout)}, "
                   f"{short_time(other.seconds)} a step, {slower}")  # fmt: skip
    yield from _preferred(document, best)
    for option in document.read.parts("nearby"):
        yield Line("faster", nearby(document, best, option), "warn")
    for option in list(document.read.parts("beyond"))[:1]:
        who = "`train`" if is_ours(best) else best.read.text("framework")
        needs = ", ".join(option.lines("needs"))
        yield Line("beyond", f"{who} lacks {needs}, which would be {faster(option)}: "
                   f"{one_line(option.part('layout').data)}")  # fmt: skip


def _preferred(document: PlanDocument, best: Estimate) -> Iterator[Line]:
    other = best.read.part("simpler_than")
    cost, layout = other.number("cost_pct"), other.part("layout").data
    if cost is not None and cost >= 0.05 and layout:
        within = document.read.number("margin")
        margin = f" within {100 * within:g}%" if within else ""
        seconds = other.number("step_time_s")
        time = f"{short_time(seconds)}, " if seconds else ""
        fastest = f"({time}{cost:.1f}% less): {one_line(layout)}"
        if strange := other.lines("unusual"):  # which needs a margin of its own (plan/search/unusual.py)
            words = f"the first is more usual than the fastest {fastest}, unusual by {', '.join(strange)}"
            yield Line("usual", words)
            return
        yield Line("simplest", f"the first is the simplest{margin} of the fastest {fastest}")


def faster(option: Reader) -> str:
    """`12% faster`, `2.4x as fast`."""
    gain = option.number("gain_pct") or 0.0
    return f"{1 + gain / 100:.1f}x as fast" if gain > 100 else f"{gain:.1f}% faster"


def nearby(document: PlanDocument, best: Estimate, option: Reader) -> str:
    """Another count of devices, or another batch, on which the same run goes faster."""
    devices, asked = option.number("devices"), document.read.number("devices")
    batch, wanted = option.number("global_batch"), document.read.number("global_batch")
    rate, now = option.number("tokens_per_s"), best.read.number("tokens_per_s")
    change = f"{devices or 0:,.0f} of your {asked or 0:,.0f} devices are"
    if devices == asked:
        change = f"a global batch of {batch or 0:,.0f} instead of {wanted or 0:,.0f} is"
    rates = f" ({count(rate)} against {count(now)} tokens/s)" if rate and now else ""
    layout = option.part("layout").data
    return f"{change} {faster(option)}{rates}: {one_line(layout)}"


def aim(document: PlanDocument) -> str:
    """The unit of the objective, the name of its column; empty for the step time."""
    objective = document.read.text("objective")
    return "" if objective in ("", "time") else document.read.text("objective_unit") or objective


def _layouts(document: PlanDocument) -> Table:
    heads = ["", "layout", "step", "p10-p90", "tokens/s", "MFU", "memory", "risk"]
    heads += [aim(document)] if aim(document) else []
    marked = is_ours(document.best[0]) and any(map(untrainable, document.best))
    rows: list[list[str]] = []
    reasons: dict[str, list[str]] = {}
    for number, layout in enumerate(document.best, 1):
        read = layout.read
        if untrainable(layout):
            reasons.setdefault(untrainable(layout), []).append(str(number))
        band = between(short_time(layout.low), short_time(layout.high)) if layout.low and layout.high else ""
        cells = [str(number), one_line(layout.layout), short_time(layout.seconds), band,
                 count(read.number("tokens_per_s")), share(read.number("mfu")), gib(layout.peak_gib),
                 RISK_TERMS.get(read.text("risk"), "")]  # fmt: skip
        cells += [decimal(read.number("objective_value"), 4)] if len(heads) > 8 else []
        rows.append(cells + ([("not yet" if untrainable(layout) else "yes")] if marked else []))
    note = "; ".join(f"`train` can't run {', '.join(numbers)} yet: {why}" for why, numbers in reasons.items())
    heads += ["train"] if marked else []
    return Table(heads, rows, searched(document), note, few=FEW, spare=("p10-p90", "tokens/s"))


def yours_blocks(document: PlanDocument, yours: Estimate) -> Iterator[Block]:
    """The layout to beat, and what single changes would gain."""
    fix, source = yours.read.part("smallest_fix").text("change"), document.read.part("from").text("source")
    cost = f"{short_time(yours.seconds)} a step, {gib(yours.peak_gib)}"
    mend = f"to make it fit: {fix}" if fix else ""
    doubt = (
        RISK_TERMS["no"] if yours.fits is False else RISK_TERMS.get(yours.read.text("risk"), "").removeprefix("fits")
    )
    parts = [one_line(yours.layout), cost, doubt, mend, source]
    yield Line("yours", "; ".join(part for part in parts if part))
    changes = [
        f"{row.text('change')} alone: {gain(row)}, {short_time(row.number('step_time_s'))} a step"
        for row in yours.read.parts("changes")
    ]
    if changes:
        yield Note("single changes to yours", changes, few=FEW)


def reasons(document: PlanDocument) -> Iterator[Block]:
    """What costs the others, the layout that was asked about, and other counts of devices."""
    ours = document.first is None or is_ours(document.first)
    if document.read.data.get("asked"):
        yield Line("asked", reason(document.read.part("asked"), ours))
    lines = [reason(option, ours) for option in document.why_not]
    if lines:
        yield Note("why not", lines, few=1)
    fewer = [
        f"{option.text('precision')} would be {faster(option)} ({short_time(option.number('step_time_s'))}); "
        f"it risks: {option.text('risk')} ({option.text('source')})"
        for option in document.read.parts("precisions")
    ]
    if fewer:
        yield Note("fewer bits", fewer, few=1)
    beyond = [
        f"{one_line(option.part('layout').data)}: {faster(option)}, needs {', '.join(option.lines('needs'))}"
        for option in document.read.parts("beyond")
    ]
    if beyond:
        yield Note("faster, but not in this trainer", beyond, detail=True)
    yield from scaling(document)


def reason(option: Reader, ours: bool) -> str:
    """What costs a loser; `ours`: of a plan for `train`."""
    layout = one_line(option.part("layout").data) if option.data.get("layout") else ""
    why, cannot = option.text("why"), option.text("untrainable") if ours else ""
    words = why if why.startswith(option.text("change") or "?") or not layout else f"{layout}: {why}"
    return words + (f" (not trainable yet: {cannot})" if cannot else "")


def _pareto(document: PlanDocument) -> Iterator[Table]:
    """The layouts that no other beats in both, thinned."""
    front = document.pareto
    if len(front) < 2:
        return
    step = max(1, -(-len(front) // MANY))
    some = [*front[:-1:step], front[-1]]
    rows = [(short_time(layout.seconds), gib(layout.peak_gib), one_line(layout.layout)) for layout in some]
    note = f"{len(front)} in all; --json has them" if step > 1 else ""
    name = "time against memory: no layout beats these in both"
    yield Table(("step", "memory", "layout"), rows, name, note, detail=True)


def scaling(document: PlanDocument) -> Iterator[Block]:
    """The same run on other counts of devices, and the part that doesn't shrink."""
    read = document.read.part("scaling")
    rows = []
    for row in read.parts("rows"):
        seconds, speedup = row.number("step_time_s"), row.number("speedup")
        layout = row.part("prediction").part("layout").data
        cells = ["", "", "", "", row.text("problem") or "no layout fits"]
        if seconds:
            cells = [short_time(seconds), count(row.number("tokens_per_s")), f"{speedup or 1:.3g}x",
                     f"{100 * (row.number('efficiency') or 0):.0f}%", one_line(layout)]  # fmt: skip
        rows.append([f"{row.number('devices') or 0:,.0f}", *cells])
    if rows:
        heads = ("devices", "step", "tokens/s", "speed-up", "efficiency", "layout")
        yield Table(heads, rows, "the same run on other device counts", " ".join(_serial(read)))


def _serial(read: Reader) -> Iterator[str]:
    serial, limit, error = (read.number(key) for key in ("serial_share", "limit", "fit_error"))
    if serial is None:
        return
    sentence = f"serial share of one device's work (Amdahl's law, fitted): {100 * serial:.3g}%"
    sentence += f", so no count is more than {counted(round(limit), 'times')} as fast as one device" if limit else ""
    yield sentence + (f"; the fit is off by {share(error)} at most." if error is not None else ".")
    parts = [
        (part.text("words") or part.text("part"), share(part.number("share"))) for part in read.parts("serial_part")
    ]
    if parts:
        yield "What doesn't shrink: " + ", ".join(map(" ".join, parts[:4])) + "."


def emitted_blocks(document: PlanDocument) -> Iterator[Block]:
    """What changes in the user's own file, or that it had to be written anew."""
    emitted = document.read.part("emitted")
    if not emitted.data or "refused" in emitted.data:
        return
    why = emitted.text("why")
    title = f"the file anew: {why}" if why else "your file in this layout"
    yield Text(title, emitted.text("diff").rstrip("\n") or "(nothing changes)")
    lines = []
    for kind in ("dropped", "changed"):
        for item in emitted.parts(kind):
            to = f" -> {item.data.get('written')}" if kind == "changed" else ""
            lines.append(f"{kind} {item.text('key')} {item.data.get('value')}{to}: {item.text('why')}")
    if lines:
        yield Note("what the trainer lacks", lines)
    if assumed := emitted.lines("assumed"):
        yield Note("of this file", assumed)
