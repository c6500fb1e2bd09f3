"""A prediction for people: a line for the layout, then time, memory and why, with small bars.

step time   20.8 s   (8 of 10 fall between 17.5 s and 24.8 s)
memory      50.7 GiB of 76.0
  activations   27.1 GiB  ███████████▌
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalewright.cli.output import plain_markup
from scalewright.spec.common.formatting import count, gib, short_time

Answer = Mapping[str, Any]
WIDTH = 32  # of the longest bar
RISK_STYLES = {"fits": "green", "likely": "yellow", "unlikely": "red", "no": "red"}


def show_prediction(answer: Answer) -> None:
    answer = plain_markup(answer)
    emit(f"[bold]{headline(answer)}[/]")
    emit(layout_line(answer["layout"], answer["seq_len"]))
    _lacks(answer)
    emit()
    show_details(answer)
    if answer["assumed"]:
        emit("\n[bold]assumed[/]  " + ", ".join(answer["assumed"]))


def _lacks(answer: Answer) -> None:
    """That the layout is priced, but its trainer can't run it."""
    parts = ", ".join(answer.get("lacks") or ())
    if parts and answer["framework"] == "scalewright":
        emit(f"[yellow]`train` can't run it[/]: {parts}")
    elif parts:
        emit(f"[yellow]{answer['framework']} can't run it[/]: it has no {parts}")


def show_details(answer: Answer) -> None:
    """Time, memory, where both go, and what would help."""
    from scalewright.plan.terms import PART_TERMS

    _summary(answer)
    memory, parts = answer["memory_gib"], answer["time_breakdown_s"]
    kinds = [(name, size) for name, size in memory.items() if name != "peak"]
    free = answer["device"]["usable_gib"] - memory["peak"]
    _bars("memory of the worst rank", [*kinds, ("free", free)], gib)
    _bars("time of a step", [(PART_TERMS[part], value) for part, value in parts.items()], short_time)
    emit(f"[bold]bottleneck[/]  {answer['bottleneck']}")
    _buys(answer.get("buys") or ())
    _what_if(answer.get("what_if") or (), answer["fits"])
    _evidence(answer.get("evidence"))


def emit(text: str = "") -> None:
    """A line on stdout, styled on a terminal; long ones are wrapped there and left whole elsewhere."""
    from rich.console import Console

    console = Console(highlight=False)
    console.print(text, soft_wrap=not console.is_terminal)


def headline(answer: Answer) -> str:
    """`llama-3.1-70b, 70.6B parameters, on 512 x h100-sxm, as scalewright trains it`."""
    model, device = answer["model"], answer["device"]
    size = f"{count(model['params'])} parameters"
    if model["active_params"] != model["params"]:
        size += f" ({count(model['active_params'])} active)"
    return (
        f"{model['name']}, {size}, on {answer['layout']['devices']:,} x {device['name']},"
        f" as {answer['framework']} trains it"
    )


def layout_line(layout: Answer, seq_len: int) -> str:
    """A layout in a line: the axes in use, batch and techniques."""
    parts = axes(layout)
    batch = layout["global_batch"]
    micros = batch / (layout["micro_batch"] * layout["dp"])
    parts.append(f"micro-batch {layout['micro_batch']} x {micros:g}")
    parts.append(f"global batch {batch:g} x {seq_len:,} = {count(batch * seq_len)} tokens")
    return " · ".join([*parts, *techniques(layout), str(layout["precision"])])


def techniques(layout: Answer) -> list[str]:
    """The techniques that trade time for memory, where they are on."""
    recompute = layout["recompute"]
    if isinstance(recompute, Mapping):
        recompute = " ".join(f"{key} {value}" for key, value in recompute.items())
    parts = [f"recompute {recompute}"] if recompute != "none" else []
    return [*parts, f"offload {layout['offload']}"] if layout["offload"] != "none" else parts


def axes(layout: Answer) -> list[str]:
    """The axes in use: `tp 8`, `pp 4 1f1b`, `dp 16`, `zero 1`."""
    parts = []
    if layout["tp"] > 1:
        parts.append(f"tp {layout['tp']}" + ("" if layout["sp"] else " without sp"))
    if layout["pp"] > 1:
        chunks = f" x {layout['virtual_stages']}" if layout["virtual_stages"] > 1 else ""
        parts.append(f"pp {layout['pp']}{chunks} {layout['schedule']}")
    if layout["cp"] > 1:
        parts.append(f"cp {layout['cp']} {layout['cp_kind']}")
    if layout["ep"] > 1 or layout["etp"] > 1:
        parts.append(f"ep {layout['ep']}" + (f" etp {layout['etp']}" if layout["etp"] > 1 else ""))
    replicate = f" ({layout['dp_replicate']} replicas)" if layout["dp_replicate"] > 1 else ""
    return [*parts, f"dp {layout['dp']}{replicate}", f"zero {layout['zero_stage']}"]


def _summary(answer: Answer) -> None:
    step, memory, device = answer["step_time_s"], answer["memory_gib"], answer["device"]
    band = f"8 of 10 fall between {short_time(step['p10'])} and {short_time(step['p90'])}" + _never(answer)
    row("step time", short_time(step["p50"]), band)
    row("tokens/s", count(answer["tokens_per_s"]), f"{answer['tokens_per_s_per_device']:,.0f} a device")
    again = (
        f", {100 * answer['hfu']:.1f}% with recomputation" if answer["hfu"] > answer["mfu"] * 1.001 else ""
    )
    row("MFU", f"{100 * answer['mfu']:.1f}%", f"{answer['tflops_per_device']:.4g} TFLOP/s a device{again}")
    usable = gib(device["usable_gib"])
    row("memory", gib(memory["peak"]), f"of {usable} that a device gives it: {risk(answer)}")
    band = " and ".join(map(gib, answer["memory_p10_p90_gib"]))
    row("", "", f"8 of 10 fall between {band}{_unplanned(answer)}")
    if answer["fits"] and answer["memory_smi_gib"] > memory["peak"]:
        kinds = f"allocator holds {gib(answer['memory_reserved_gib'])}, nvidia-smi shows"
        row("", "", f"allocated; the {kinds} {gib(answer['memory_smi_gib'])}")
    if not answer["fits"]:
        row("", "", _fix(answer.get("smallest_fix")))
    if (total := answer.get("total")) is not None:
        cost = "" if total["cost"] is None else f", which cost {total['cost']:,.0f} {total['currency']}"
        hours = f"{total['device_hours']:,.0f} device-hours{cost}, at a goodput of {total['goodput']:.4g}"
        row("whole run", f"{total['days']:,.4g} days", hours)
    emit()


def risk(answer: Answer) -> str:
    from scalewright.plan.terms import RISK_TERMS

    return f"[{RISK_STYLES[answer['risk']]}]{RISK_TERMS[answer['risk']]}[/]"


def _never(answer: Answer) -> str:
    """The parts of the layout that no measured run covers, where there are any."""
    never = (answer.get("evidence") or {}).get("never_measured")
    return f"; never measured: {', '.join(never)}" if never else ""


def _unplanned(answer: Answer) -> str:
    """A pointer to `--dry-run`'s closer count of the memory, while the risk isn't certain."""
    ours = answer["framework"] == "scalewright" and answer["risk"] in ("likely", "unlikely")
    return "; `train --dry-run` counts it" if ours else ""


def _fix(fix: Answer | None) -> str:
    if fix is None:
        return "no single change makes it fit"
    how = f"{gib(fix['peak_gib'])} in {short_time(fix['step_time_s'])}"
    if not fix["fits"]:
        return f"no single change makes it fit; nearest: {fix['change']}, {how}"
    return f"the smallest change that makes it fit: {fix['change']} ({how})"


def row(name: str, value: str, more: str) -> None:
    """`name   value   more` in the columns of the summary."""
    emit(f"{name:<11} [bold]{value:>10}[/]   {more}".rstrip())


def _bars(title: str, parts: Sequence[tuple[str, float]], words: Any) -> None:
    """Each part with its share of the sum; parts that are nothing are left out."""
    total = sum(max(value, 0.0) for _, value in parts) or 1.0
    emit(f"[bold]{title}[/]")
    for name, value in parts:
        if value > 0.0005 * total:
            style = "dim" if name == "free" else "cyan"
            share = 100 * value / total
            emit(f"  {name:<26} {words(value):>9}  {share:>3.0f}%  [{style}]{bar(value / total)}[/]")
    emit()


def bar(share: float, width: int = WIDTH) -> str:
    """A bar of eighths of a character; never empty."""
    eighths = max(1, round(share * width * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _buys(parts: Sequence[Answer]) -> None:
    """The purpose of each axis and technique of the layout."""
    if parts:
        emit("\n[bold]what each part buys[/]")
    for part in parts:
        emit(f"  {part['why']}")


def _what_if(changes: Sequence[Answer], fits: bool, many: int = 6) -> None:
    """Changes that help, settings before hardware; for a layout that fits, only those that still fit."""
    useful = [change for change in changes if not (fits and "does not fit" in change["change"])]
    helping = [change for change in useful if change["gain_pct"] > 0.5]
    settings = [change for change in helping if change["kind"] == "setting"][:many]
    hardware = [change for change in helping if change["kind"] == "hardware"]
    if not helping:
        return
    width = max(30, *(len(change["change"]) for change in helping))
    emit(f"\n[bold]what if[/]{'':<{width - 5}} {'step':>9}  {'speed':>8}")
    for index, change in enumerate([*settings, *hardware]):
        if index == len(settings):
            emit("  other hardware")
        step = short_time(change["step_time_s"])
        emit(f"  {change['change']:<{width}} {step:>9}  {change['gain_pct']:+7.1f}%")


def _evidence(evidence: Answer | None) -> None:
    if not evidence:
        return
    if probe := evidence.get("probe"):
        emit(f"\n[bold]priced from[/]  {probe}")
    if evidence["nearest"]:
        emit("\n[bold]nearest measured runs[/]")
    for run in evidence["nearest"]:
        off = 100 * (run["predicted"] / run["measured"] - 1)
        times = f"{short_time(run['measured'])}, predicted {short_time(run['predicted'])} ({off:+.0f}%)"
        layout = run["layout"]
        split = " · ".join([*axes(layout), *techniques(layout), str(layout["precision"])])
        batch = f"batch {layout['global_batch']:,.6g} x {run['seq_len']:,}"
        emit(f"  {run['model']} on {run['n_devices']:,} x {run['device']}: {times}")
        emit(f"    {run['trainer']}, {run['date']}, {run['source']}: {split}, {batch}")
    if evidence["extrapolates"]:
        emit("  beyond what was measured: " + "; ".join(evidence["extrapolates"]))
