"""A plan for people: the best layouts, the first in full, what costs the others, and what to type next."""

from __future__ import annotations

from collections.abc import Sequence

from scalewright.cli.output import plain_markup, print_table, short
from scalewright.cli.plan_tables import (
    Answer,
    axes,
    emit,
    gib,
    headline,
    seconds,
    show_details,
    techniques,
    three,
)

MANY = 8  # lines of why_not and of the Pareto set


def show_plan(found: Answer) -> None:
    """The whole answer of a search."""
    found = plain_markup(found)
    best = found["best"][0]
    emit(f"[bold]{headline(best)}[/]")
    batch = found["global_batch"]
    emit(f"{batch:,} sequences of {found['seq_len']:,} tokens a step ({short(batch * found['seq_len'])})")
    if not found["complete"]:
        emit("[red]stopped before the end[/]: the best so far")
    _counts(found)
    emit()
    _best(found)
    _preferred(best.get("simpler_than"), found["margin"])
    _beyond(found.get("beyond") or (), best["framework"])
    for one in found.get("nearby") or ():
        _nearby(one, found)
    emit("\n[bold]the first of them[/]")
    show_details(best)
    _why_not(found.get("why_not") or ())
    _asked(found.get("asked"))
    _pareto(found.get("pareto") or ())
    _scaling(found.get("scaling"))
    if found["assumed"]:
        emit("\n[bold]assumed[/]  " + ", ".join(found["assumed"]))
    _next(found)


def _counts(found: Answer) -> None:
    emit(
        f"{short(found['evaluated'])} layouts judged in {found['seconds']:.2f} s: {short(found['priced'])}"
        f" priced in full, {short(found['feasible'])} of these fit; the others are certain to be worse"
    )


def _best(found: Answer) -> None:
    """A row a layout, best first."""
    from scalewright.plan.terms import RISK_TERMS

    aim = found["objective"]
    columns = ["", "layout", "step", "p10-p90", "tokens/s", "MFU", "memory", "risk"]
    columns += [] if aim == "time" else [found.get("objective_unit") or aim]
    rows = []
    for number, one in enumerate(found["best"], 1):
        step = one["step_time_s"]
        band = f"{three(step['p10'])}-{three(step['p90'])}" if step["p10"] > 0.1 else ""
        risk = RISK_TERMS[one["risk"]]
        cells = [str(number), words(one), seconds(step["p50"]), band, short(one["tokens_per_s"]),
                 f"{100 * one['mfu']:.1f}%", gib(one["memory_gib"]["peak"]), risk]  # fmt: skip
        rows.append(cells + ([] if aim == "time" else [f"{one['objective_value']:.4g}"]))
    ours = found["best"][0]["framework"] == "scalewright"
    marked = ours and any(not one["trainable"] for one in found["best"])
    if marked:
        columns.append("train")
        for cells, one in zip(rows, found["best"], strict=True):
            cells.append("yes" if one["trainable"] else "not yet")
    print_table(columns, rows)
    if not marked:
        return
    reasons: dict[str, list[str]] = {}
    for number, one in enumerate(found["best"], 1):
        if one["untrainable"]:
            reasons.setdefault(one["untrainable"], []).append(str(number))
    for reason, numbers in reasons.items():
        emit(f"`train` can't run {', '.join(numbers)} yet: {reason}")


def _preferred(faster: Answer | None, margin: float) -> None:
    """Which layout the first one was preferred to."""
    if faster and faster["cost_pct"] >= 0.05:
        step = f"{seconds(faster['step_time_s'])}, {faster['cost_pct']:.1f}% less"
        emit(
            f"the first is the simplest within {100 * margin:g}% of the fastest ({step}): "
            f"{_layout(faster['layout'])}"
        )


def _beyond(rows: Sequence[Answer], framework: str) -> None:
    """What the trainer can't run, and would gain by."""
    if rows:
        one = rows[0]
        who = "`train`" if framework == "scalewright" else framework
        gain = one["gain_pct"]
        pace = f"{1 + gain / 100:.1f}x as fast" if gain > 100 else f"{gain:.1f}% faster"
        emit(f"beyond {who}: {pace} with {', '.join(one['needs'])} ({words(one)})")


def _nearby(one: Answer, found: Answer) -> None:
    """Another count of devices, or another batch, that goes faster."""
    gain = f"{1 + one['gain_pct'] / 100:.2g}x" if one["gain_pct"] > 50 else f"{one['gain_pct']:.0f}%"
    rates = f"{short(one['tokens_per_s'])} against {short(found['best'][0]['tokens_per_s'])} tokens/s"
    if one["devices"] != found["devices"]:
        what = f"{one['devices']:,} of your {found['devices']:,} devices are {gain} faster"
    else:
        what = (
            f"a global batch of {one['global_batch']:,} instead of {found['global_batch']:,} is {gain} faster"
        )
    emit(f"[bold]{what}[/] ({rates}): {_layout(one['layout'])}")


def words(one: Answer) -> str:
    """A layout without what all of a plan share."""
    return _layout(one["layout"])


def _layout(layout: Answer) -> str:
    """Its axes, micro-batches and techniques."""
    micros = layout["global_batch"] / (layout["micro_batch"] * layout["dp"])
    return " · ".join(
        [*axes(layout), f"micro-batch {layout['micro_batch']} x {micros:g}", *techniques(layout)]
    )


def _why_not(rows: Sequence[Answer]) -> None:
    if not rows:
        return
    emit("\n[bold]why not[/]")
    for one in rows[:MANY]:
        emit(f"  {one['why']}")


def _asked(one: Answer | None) -> None:
    if one:
        emit(f"\n[bold]asked about[/]  {one['why']}")


def _pareto(rows: Sequence[Answer]) -> None:
    """Layouts that trade time for memory."""
    if len(rows) < 2:
        return
    emit("\n[bold]time against memory[/]: no layout beats these in both")
    step = max(1, -(-len(rows) // MANY))
    for one in [*rows[:-1:step], rows[-1]]:
        emit(f"  {seconds(one['step_time_s']['p50']):>9}  {gib(one['memory_gib']['peak']):>9}  {words(one)}")
    if step > 1:
        emit(f"  ({len(rows)} in all; --json has them)")


def _scaling(found: Answer | None) -> None:
    """The same run on other counts, and the part that doesn't shrink."""
    if not found:
        return
    emit("\n[bold]the same run on other device counts[/]")
    rows = []
    for one in found["rows"]:
        if one["problem"]:
            rows.append((f"{one['devices']:,}", "", "", "", "", one["problem"]))
            continue
        cells = (seconds(one["step_time_s"]), short(one["tokens_per_s"]), f"{one['speedup']:.3g}x")
        rows.append(
            (f"{one['devices']:,}", *cells, f"{100 * one['efficiency']:.0f}%", words(one["prediction"]))
        )
    print_table(("devices", "step", "tokens/s", "speed-up", "efficiency", "layout"), rows)
    if found["serial_share"] is None:
        return
    emit(
        f"serial share (Amdahl) {100 * found['serial_share']:.2g}% of one device's work,"
        f" within {100 * found['fit_error']:.0f}% of every count"
    )
    parts = ", ".join(f"{100 * part['share']:.0f}% {part['words']}" for part in found["serial_part"][:4])
    if parts:
        emit(f"  what doesn't shrink: {parts}")


def _next(found: Answer) -> None:
    """The run file, whether `train` takes it, and what to type."""
    best = found["best"][0]
    if "run_file" not in found:
        emit("\n[bold]next[/]  add `--out run.yaml --data DIR` to have the run file written")
        return
    path = found["run_file"]
    if path is None:
        emit(f"\n[bold]no run file[/]: `train` can't run this yet: {found['run_file_untrainable']}")
        return
    emit(f"\n[bold]written[/]  {path}")
    name = best["framework"]
    if name != "scalewright":
        emit(f"         a layout in Scalewright's keys, to be set in {name}, which doesn't read this file;")
        emit(f"         time and memory are {name}'s: for `scalewright train`, plan without --framework")
    if not best["trainable"]:
        step = seconds(found["best_trainable"]["step_time_s"]["p50"])
        emit(f"         the best layout can't be trained yet ({best['untrainable']});")
        emit(f"         this one can, at {step} a step: {words(found['best_trainable'])}")
    if name != "scalewright":
        return
    if found["run_file_to_fill"]:
        emit("         fill its `data` line first (marked FILL-IN)")
    nodes = -(-found["devices"] // best["device"]["per_node"])
    emit(f"[bold]next[/]     scalewright train {path}")
    if nodes > 1:
        emit(f"         under srun, torchrun or mpirun on {nodes:,} nodes; with --dry-run it is tried here")
