"""Everything that the page shows of one state: numbers, the report's own drawings, the run file and the command.

picture(state)   at once: price, band, time, memory, pipeline, roofline       (one request is priced)
reasons(state)   a moment later: what would change it, measured runs nearby    (about forty are)
searched(state)  the layouts that no other beats, and the best ones            (thousands are)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalewright.explore.axes import controls
from scalewright.explore.roofline import roofline
from scalewright.explore.state import State
from scalewright.plan.answer import PredictionAnswer, answer
from scalewright.plan.answer import reasons as explain
from scalewright.plan.ask import ask, ask_layout
from scalewright.plan.predict import Prediction, layout_keys
from scalewright.plan.search.choices import Choice
from scalewright.plan.search.objective import Goal
from scalewright.plan.search.run_file import layout_file
from scalewright.plan.search.search import search
from scalewright.plan.stages import stages
from scalewright.plan.whole_run import WholeRun
from scalewright.report.document import Estimate, PlanDocument, Reader, read_document
from scalewright.report.layouts import with_precision
from scalewright.report.page import Section, block_section, render_section
from scalewright.report.present.bands import footprint
from scalewright.report.present.blocks import Block
from scalewright.report.present.prediction import (
    assumed_notes,
    between,
    evidence,
    headline,
    risk,
    step_line,
    sure_line,
    what_if,
)
from scalewright.report.sections import plan_memory, plan_pipeline
from scalewright.spec.common.formatting import count, decimal, short_time
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.question import Question

MOST_ACTIONS = 2_000  # of the timeline: it is drawn anew at every move of a slider
SHOWN, MARGIN = 5, 0.02  # of a search: best layouts, and what a simpler one may cost; as `plan` has them


@dataclass(frozen=True)
class Priced:
    """A state with its price, and the state with every key of its layout stated."""

    question: Question
    layout: Layout
    answer: PredictionAnswer
    full: State

    @property
    def prediction(self) -> Prediction:
        """What the layout costs."""
        return self.answer.prediction


def price_state(state: State) -> Priced:
    """What the state costs; raises UserError for a layout that can't be, with one that can."""
    place = load_cluster(state.cluster)
    question, notes = ask(state.model, place, state.seq_len, framework=state.framework)
    prediction, assumed = ask_layout(question, notes, dict(state.layout))
    run = WholeRun(state.tokens, state.price).of(question).on(place)
    keys = {key: value for key, value in layout_keys(prediction.request).items() if key != "dp"}
    full = replace(state, seq_len=question.seq_len, layout=keys)
    layout = Layout.parse(keys, "layout")
    return Priced(question, layout, answer(prediction, run=run, explain=False, assumed=assumed), full)


def picture(state: State) -> dict[str, Any]:
    """The page's data of one layout. Raises UserError."""
    priced = price_state(state)
    prediction, layout = priced.prediction, priced.layout
    keys: dict[str, Any] = priced.answer.dump() | {"stages": stages(prediction)}
    document = read_document(keys)
    best = document.best[0]
    timeline = plan_pipeline.section(document, MOST_ACTIONS)
    words, tone = risk(document, best)
    return {
        "state": priced.full.query(),
        "title": headline(document, best),
        "said": f"{step_line(document, best).text}; {sure_line(document, best).text}",
        "tiles": tiles(document, best),
        "fits": {"words": words, "tone": tone},
        "numbers": {key: keys[key] for key in ("step_time_s", "memory_gib", "mfu", "tokens_per_s", "fits", "risk")},
        "usable_gib": prediction.usable_gib,
        "controls": controls(priced.full, priced.question.model),
        "time": render_section(plan_memory.time_section(document)),
        "memory": render_section(plan_memory.memory_section(document)),
        "pipeline": render_section(timeline),
        "drawing": next(iter(timeline.drawings), None) if timeline is not None else None,
        "roofline": roofline(prediction, priced.question.model, layout, keys["tflops_per_device"] * 1e12),
        "command": priced.full.command(),
    }  # fmt: skip


def tiles(document: PlanDocument, best: Estimate) -> list[dict[str, str]]:
    """The figures above the drawings: (name, value, note)."""
    low, high = best.low or best.seconds, best.high or best.seconds
    mfu, rate = best.read.number("mfu") or 0.0, best.read.number("tokens_per_s") or 0.0
    usable, band = document.device.number("usable_gib"), best.memory_band
    words, tone = risk(document, best)
    memory = f"{decimal(band[0], 3)}–{decimal(band[1], 3)} GiB in 8 of 10; " if band else ""
    rows = [
        ("Step", short_time(best.seconds), f"8 of 10 take {between(short_time(low), short_time(high))}", ""),
        ("MFU", f"{100 * mfu:.1f}%", "of the device's peak", ""),
        ("Tokens", f"{rate:,.0f}/s", "of all devices", ""),
        ("Memory", f"{decimal(best.peak_gib, 3)} GiB", f"{memory}{words}, {decimal(usable, 3)} usable", tone),
    ]
    rows += _whole_run(best.read.part("total"))
    return [dict(zip(("name", "value", "note", "tone"), row, strict=True)) for row in rows]


def _whole_run(total: Reader) -> list[tuple[str, str, str, str]]:
    """Days, money and electricity of all tokens, failures included; those that are known."""
    days, band = total.number("days") or 0.0, total.part("band")
    rows = [("Whole run", f"{count(days)} days", f"{_ends(band.part('days'))} in 8 of 10, failures included", "")]
    if (cost := total.number("cost")) is not None:
        rows.append(("Cost", f"{count(cost)} {total.text('currency')}", f"{_ends(band.part('cost'))} in 8 of 10", ""))
    if energy := total.part("energy_kwh").numbers():
        co2 = footprint(energy, total.part("co2_kg").numbers())
        rows.append(("Energy", f"{count(energy['p50'] / 1e3)} MWh", co2, ""))
    return rows


def _ends(band: Reader) -> str:
    return " to ".join(count(band.number(end) or 0.0) for end in ("p10", "p90"))


def reasons(states: Sequence[State]) -> list[dict[str, str]]:
    """What would change each layout, and on what evidence it stands, as HTML; its run file. Raises UserError."""
    layouts = [price_state(state) for state in states]
    shown = []
    for priced, why in zip(layouts, explain([each.prediction for each in layouts]), strict=True):
        document = read_document(replace(priced.answer, reasons=why).dump())
        best = document.best[0]
        sure = [*evidence(best), *assumed_notes(document, best)]
        shown.append({
            "what_if": _shown("What would change it", what_if(best)), "evidence": _shown("How sure", sure),
            "run_file": _run_file(priced, why.lacks),
        })  # fmt: skip
    return shown


def _run_file(priced: Priced, lacks: Sequence[str]) -> str:
    """The run file of the layout, or a comment with what `train` lacks for it."""
    if lacks:
        return f"# `train` can't run it: {', '.join(lacks)}"
    return layout_file(priced.question, priced.prediction, priced.layout)


def _shown(title: str, blocks: Iterable[Block]) -> str:
    section: Section | None = block_section("section", title, [*blocks])
    return render_section(section)


def searched(state: State, stop: Callable[[], bool] | None = None, top: int = SHOWN) -> dict[str, Any]:
    """The best layouts and the Pareto set of the state's devices and batch, each with its state. Raises UserError."""
    priced = price_state(state)
    goal = Goal(priced.layout.devices, priced.layout.global_batch, top=top, margin=MARGIN)
    plan = search(priced.question, goal, stop=stop)
    best = [_point(choice, priced.full) for choice in plan.best]
    return {
        "best": best,
        "pareto": [_point(choice, priced.full) for choice in plan.pareto],
        "usable_gib": priced.prediction.usable_gib,
        "evaluated": plan.evaluated,
        "complete": plan.complete,
    }


def _point(choice: Choice, asked: State) -> dict[str, Any]:
    prediction = choice.prediction
    keys = {key: value for key, value in choice.keys.items() if key != "dp"}
    return {
        "state": replace(asked, layout=keys).query(),
        "name": " · ".join(with_precision(choice.keys)),
        "seconds": prediction.step_time_s, "gib": prediction.peak_gib,
        "said": f"{short_time(prediction.step_time_s)}, {decimal(prediction.peak_gib, 3)} GiB",
    }  # fmt: skip
