"""A plan for people: the best layouts, the first in full, what costs the others, and what to type next."""

from __future__ import annotations

from collections.abc import Sequence

from scalewright.cli.output import plain_markup, print_table
from scalewright.cli.plan_tables import Answer, axes, emit, headline, show_details, techniques
from scalewright.spec.common.formatting import count, decimal, gib, short_time

MANY = 8  # lines of why_not and of the Pareto set
MANY_CHANGES = 5  # single changes to the layout to beat


def show_plan(answer: Answer) -> None:
    answer = plain_markup(answer)
    best = answer["best"][0]
    emit(f"[bold]{headline(best)}[/]")
    batch = answer["global_batch"]
    emit(f"{batch:,} sequences of {answer['seq_len']:,} tokens a step ({count(batch * answer['seq_len'])})")
    if not answer["complete"]:
        emit("[red]stopped before the end[/]: the best so far")
    judged, priced, feasible = (count(answer[key]) for key in ("evaluated", "priced", "feasible"))
    emit(
        f"{judged} layouts judged in {answer['seconds']:.2f} s: {priced} priced in full,"
        f" {feasible} of these fit; the others are certain to be worse"
    )
    emit()
    if yours := answer.get("yours"):
        _yours(yours)
    _best(answer)
    _preferred(best.get("simpler_than"), answer["margin"])
    _beyond(answer.get("beyond") or (), best["framework"])
    for other in answer.get("nearby") or ():
        _nearby(other, answer)
    emit("\n[bold]the first of them[/]")
    show_details(best)
    _why_not(answer.get("why_not") or ())
    if asked := answer.get("asked"):
        emit(f"\n[bold]asked about[/]  {asked['why']}")
    _pareto(answer.get("pareto") or ())
    _scaling(answer.get("scaling"))
    if answer["assumed"]:
        emit("\n[bold]assumed[/]  " + ", ".join(answer["assumed"]))
    _next(answer)


def _yours(yours: Answer) -> None:
    """The layout to beat, and what single changes would gain."""
    peak, step = gib(yours["memory_gib"]["peak"]), short_time(yours["step_time_s"]["p50"])
    fits = "" if yours["fits"] else ", [red]does not fit[/]"
    emit(f"[bold]yours[/]  {one_line(yours['layout'])}")
    gain = yours["gain_pct"]
    best = f"the best is {gain:.1f}% faster" if gain >= 0 else f"the best that fits is {-gain:.1f}% slower"
    emit(f"       {step} a step, {peak}{fits}; {best}")
    for row in yours["changes"][:MANY_CHANGES]:
        emit(
            f"       {row['change']} alone: {row['gain_pct']:+.1f}%, {short_time(row['step_time_s'])} a step"
        )
    if yours["smallest_fix"]:
        emit(f"       to make it fit: {yours['smallest_fix']['change']}")
    emit()


def _best(answer: Answer) -> None:
    """A row a layout, best first."""
    from scalewright.plan.terms import RISK_TERMS

    aim = answer["objective"]
    columns = ["", "layout", "step", "p10-p90", "tokens/s", "MFU", "memory", "risk"]
    columns += [] if aim == "time" else [answer.get("objective_unit") or aim]
    rows = []
    for number, choice in enumerate(answer["best"], 1):
        step = choice["step_time_s"]
        band = f"{decimal(step['p10'], 3)}-{decimal(step['p90'], 3)}" if step["p10"] > 0.1 else ""
        risk = RISK_TERMS[choice["risk"]]
        cells = [str(number), words(choice), short_time(step["p50"]), band, count(choice["tokens_per_s"]),
                 f"{100 * choice['mfu']:.1f}%", gib(choice["memory_gib"]["peak"]), risk]  # fmt: skip
        rows.append(cells + ([] if aim == "time" else [f"{choice['objective_value']:.4g}"]))
    ours = answer["best"][0]["framework"] == "scalewright"
    reasons: dict[str, list[str]] = {}
    if ours and not all(choice["trainable"] for choice in answer["best"]):
        columns.append("train")
        for cells, choice in zip(rows, answer["best"], strict=True):
            cells.append("yes" if choice["trainable"] else "not yet")
            if choice["untrainable"]:
                reasons.setdefault(choice["untrainable"], []).append(cells[0])
    print_table(columns, rows)
    for reason, numbers in reasons.items():
        emit(f"`train` can't run {', '.join(numbers)} yet: {reason}")


def _preferred(faster: Answer | None, margin: float) -> None:
    if faster and faster["cost_pct"] >= 0.05:
        step = f"{short_time(faster['step_time_s'])}, {faster['cost_pct']:.1f}% less"
        emit(
            f"the first is the simplest within {100 * margin:g}% of the fastest ({step}): "
            f"{one_line(faster['layout'])}"
        )


def _beyond(rows: Sequence[Answer], framework: str) -> None:
    if rows:
        best = rows[0]
        who = "`train`" if framework == "scalewright" else framework
        gain = best["gain_pct"]
        pace = f"{1 + gain / 100:.1f}x as fast" if gain > 100 else f"{gain:.1f}% faster"
        emit(f"beyond {who}: {pace} with {', '.join(best['needs'])} ({words(best)})")


def _nearby(other: Answer, answer: Answer) -> None:
    gain = f"{1 + other['gain_pct'] / 100:.2g}x" if other["gain_pct"] > 50 else f"{other['gain_pct']:.0f}%"
    rates = f"{count(other['tokens_per_s'])} against {count(answer['best'][0]['tokens_per_s'])} tokens/s"
    if other["devices"] != answer["devices"]:
        what = f"{other['devices']:,} of your {answer['devices']:,} devices are"
    else:
        what = f"a global batch of {other['global_batch']:,} instead of {answer['global_batch']:,} is"
    emit(f"[bold]{what} {gain} faster[/] ({rates}): {words(other)}")


def words(choice: Answer) -> str:
    return one_line(choice["layout"])


def one_line(layout: Answer) -> str:
    micros = layout["global_batch"] / (layout["micro_batch"] * layout["dp"])
    return " · ".join(
        [*axes(layout), f"micro-batch {layout['micro_batch']} x {micros:g}", *techniques(layout)]
    )


def _why_not(rows: Sequence[Answer]) -> None:
    if not rows:
        return
    emit("\n[bold]why not[/]")
    for row in rows[:MANY]:
        emit(f"  {row['why']}")


def _pareto(rows: Sequence[Answer]) -> None:
    if len(rows) < 2:
        return
    emit("\n[bold]time against memory[/]: no layout beats these in both")
    step = max(1, -(-len(rows) // MANY))
    for choice in [*rows[:-1:step], rows[-1]]:
        step_time, memory = short_time(choice["step_time_s"]["p50"]), gib(choice["memory_gib"]["peak"])
        emit(f"  {step_time:>9}  {memory:>9}  {words(choice)}")
    if step > 1:
        emit(f"  ({len(rows)} in all; --json has them)")


def _scaling(scaling: Answer | None) -> None:
    """The same run on other counts, and the part that doesn't shrink."""
    if not scaling:
        return
    emit("\n[bold]the same run on other device counts[/]")
    rows = []
    for row in scaling["rows"]:
        if row["problem"]:
            rows.append((f"{row['devices']:,}", "", "", "", "", row["problem"]))
            continue
        step, rate, efficiency = (row[key] for key in ("step_time_s", "tokens_per_s", "efficiency"))
        cells = (short_time(step), count(rate), f"{row['speedup']:.3g}x", f"{100 * efficiency:.0f}%")
        rows.append((f"{row['devices']:,}", *cells, words(row["prediction"])))
    print_table(("devices", "step", "tokens/s", "speed-up", "efficiency", "layout"), rows)
    if scaling["serial_share"] is None:
        return
    emit(
        f"serial share (Amdahl) {100 * scaling['serial_share']:.2g}% of one device's work,"
        f" within {100 * scaling['fit_error']:.0f}% of every count"
    )
    parts = ", ".join(f"{100 * part['share']:.0f}% {part['words']}" for part in scaling["serial_part"][:4])
    if parts:
        emit(f"  what doesn't shrink: {parts}")


def _emitted(emitted: Answer) -> None:
    """What changes in the user's own file, or that it had to be written anew."""
    if "refused" in emitted:
        emit(f"\n[bold]not emitted[/]  {emitted['refused']}")
        return
    title = (
        "your file in this layout" if emitted["in_place"] else "the file anew: it can't be edited in place"
    )
    emit(f"\n[bold]{title}[/]")
    for line in emitted["diff"].splitlines() or ["(nothing changes)"]:
        emit(f"  {line}")
    for item in emitted.get("dropped", ()):
        emit(f"dropped   {item['key']} {item['value']}: {item['why']}")
    for item in emitted.get("changed", ()):
        emit(f"changed   {item['key']} {item['value']} -> {item['written']}: {item['why']}")
    for path in emitted["written"]:
        emit(f"[bold]written[/]  {path}")
    if not emitted["written"]:
        emit("[bold]next[/]  add `--out FILE` to have it written")


def _next(answer: Answer) -> None:
    """The run file, whether `train` takes it, and what to type."""
    best = answer["best"][0]
    if "emitted" in answer:
        _emitted(answer["emitted"])
        return
    if "run_file" not in answer:
        emit("\n[bold]next[/]  add `--out run.yaml --data DIR` to have the run file written")
        return
    path = answer["run_file"]
    if path is None:
        emit(f"\n[bold]no run file[/]: `train` can't run this yet: {answer['run_file_untrainable']}")
        return
    emit(f"\n[bold]written[/]  {path}")
    name = best["framework"]
    if name != "scalewright":
        emit(f"         a layout in Scalewright's keys, to be set in {name}, which doesn't read this file;")
        emit(f"         time and memory are {name}'s: for `scalewright train`, plan without --framework")
    if not best["trainable"]:
        step = short_time(answer["best_trainable"]["step_time_s"]["p50"])
        emit(f"         the best layout can't be trained yet ({best['untrainable']});")
        emit(f"         this one can, at {step} a step: {words(answer['best_trainable'])}")
    if name != "scalewright":
        return
    if answer["run_file_to_fill"]:
        emit("         fill its `data` line first (marked FILL-IN)")
    nodes = -(-answer["devices"] // best["device"]["per_node"])
    emit(f"[bold]next[/]     scalewright train {path}")
    if nodes > 1:
        emit(f"         under srun, torchrun or mpirun on {nodes:,} nodes; with --dry-run it is tried here")
