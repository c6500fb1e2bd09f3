"""A prediction for people: a line for the layout, then time, memory and why, with small bars.

step time   20.8 s   (8 of 10 fall between 17.5 s and 24.8 s)
memory      50.7 GiB of 76.0
  activations   27.1 GiB  ███████████▌
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalewright.cli.output import plain_markup, short

Answer = Mapping[str, Any]
WIDTH = 32  # of the longest bar
RISK_STYLES = {"fits": "green", "likely": "yellow", "unlikely": "red", "no": "red"}


def show_prediction(found: Answer) -> None:
    """One layout's answer, whole."""
    found = plain_markup(found)
    emit(f"[bold]{headline(found)}[/]")
    emit(layout_line(found["layout"], found["seq_len"]))
    _lacks(found)
    emit()
    show_details(found)
    if found["assumed"]:
        emit("\n[bold]assumed[/]  " + ", ".join(found["assumed"]))


def _lacks(found: Answer) -> None:
    """That the layout is priced, but its trainer can't run it."""
    parts = ", ".join(found.get("lacks") or ())
    if parts and found["framework"] == "scalewright":
        emit(f"[yellow]`train` can't run it[/]: {parts}")
    elif parts:
        emit(f"[yellow]{found['framework']} can't run it[/]: it has no {parts}")


def show_details(found: Answer) -> None:
    """Time, memory, where both go, and what would help."""
    _summary(found)
    _bars("memory of the worst rank", _memory(found), gib)
    _bars("time of a step", _times(found), seconds)
    emit(f"[bold]bottleneck[/]  {found['bottleneck']}")
    _buys(found.get("buys") or ())
    _what_if(found.get("what_if") or (), found["fits"])
    _evidence(found.get("evidence"))


def emit(text: str = "") -> None:
    """A line on stdout, styled on a terminal; long ones are wrapped there and left whole elsewhere."""
    from rich.console import Console

    console = Console(highlight=False)
    console.print(text, soft_wrap=not console.is_terminal)


def headline(found: Answer) -> str:
    """`llama-3.1-70b, 70.6B parameters, on 512 x h100-sxm, as scalewright trains it`."""
    model, device = found["model"], found["device"]
    size = f"{short(model['params'])} parameters"
    if model["active_params"] != model["params"]:
        size += f" ({short(model['active_params'])} active)"
    return (
        f"{model['name']}, {size}, on {found['layout']['devices']:,} x {device['name']},"
        f" as {found['framework']} trains it"
    )


def layout_line(layout: Answer, seq_len: int) -> str:
    """What a layout is, in a line: the axes in use, batch and techniques."""
    parts = axes(layout)
    batch = layout["global_batch"]
    micros = batch / (layout["micro_batch"] * layout["dp"])
    parts.append(f"micro-batch {layout['micro_batch']} x {micros:g}")
    parts.append(f"global batch {batch:g} x {seq_len:,} = {short(batch * seq_len)} tokens")
    return " · ".join([*parts, *techniques(layout), str(layout["precision"])])


def techniques(layout: Answer) -> list[str]:
    """What trades time for memory, where it is on."""
    recompute = layout["recompute"]
    if isinstance(recompute, Mapping):
        recompute = " ".join(f"{key} {value}" for key, value in recompute.items())
    found = [f"recompute {recompute}"] if recompute != "none" else []
    return [*found, f"offload {layout['offload']}"] if layout["offload"] != "none" else found


def axes(layout: Answer) -> list[str]:
    """The axes in use: `tp 8`, `pp 4 1f1b`, `dp 16`, `zero 1`."""
    found = []
    if layout["tp"] > 1:
        found.append(f"tp {layout['tp']}" + ("" if layout["sp"] else " without sp"))
    if layout["pp"] > 1:
        chunks = f" x {layout['virtual_stages']}" if layout["virtual_stages"] > 1 else ""
        found.append(f"pp {layout['pp']}{chunks} {layout['schedule']}")
    if layout["cp"] > 1:
        found.append(f"cp {layout['cp']} {layout['cp_kind']}")
    if layout["ep"] > 1 or layout["etp"] > 1:
        found.append(f"ep {layout['ep']}" + (f" etp {layout['etp']}" if layout["etp"] > 1 else ""))
    replicate = f" ({layout['dp_replicate']} replicas)" if layout["dp_replicate"] > 1 else ""
    return [*found, f"dp {layout['dp']}{replicate}", f"zero {layout['zero_stage']}"]


def _summary(found: Answer) -> None:
    step, memory, device = found["step_time_s"], found["memory_gib"], found["device"]
    band = f"8 of 10 fall between {seconds(step['p10'])} and {seconds(step['p90'])}" + _never(found)
    row("step time", seconds(step["p50"]), band)
    row("tokens/s", short(found["tokens_per_s"]), f"{found['tokens_per_s_per_device']:,.0f} a device")
    again = f", {100 * found['hfu']:.1f}% with recomputation" if found["hfu"] > found["mfu"] * 1.001 else ""
    row("MFU", f"{100 * found['mfu']:.1f}%", f"{found['tflops_per_device']:.4g} TFLOP/s a device{again}")
    row(
        "memory",
        gib(memory["peak"]),
        f"of {gib(device['usable_gib'])} that a device gives it: {risk(found)}",
    )
    row(
        "",
        "",
        f"8 of 10 fall between {' and '.join(map(gib, found['memory_p10_p90_gib']))}" + _unplanned(found),
    )
    if found["fits"] and found["memory_smi_gib"] > memory["peak"]:
        kinds = f"allocator holds {gib(found['memory_reserved_gib'])}, nvidia-smi shows"
        row("", "", f"allocated; the {kinds} {gib(found['memory_smi_gib'])}")
    fix = found.get("smallest_fix")
    if not found["fits"]:
        row("", "", _fix(fix))
    if (total := found.get("total")) is not None:
        cost = "" if total["cost"] is None else f", which cost {total['cost']:,.0f} {total['currency']}"
        hours = f"{total['device_hours']:,.0f} device-hours{cost}, at a goodput of {total['goodput']:.4g}"
        row("whole run", f"{total['days']:,.4g} days", hours)
    emit()


def risk(found: Answer) -> str:
    """Whether it fits, in colour."""
    from scalewright.plan.terms import RISK_TERMS

    return f"[{RISK_STYLES[found['risk']]}]{RISK_TERMS[found['risk']]}[/]"


def _never(found: Answer) -> str:
    """That no run speaks for the band, where none does."""
    never = (found.get("evidence") or {}).get("never_measured")
    return f"; never measured: {', '.join(never)}" if never else ""


def _unplanned(found: Answer) -> str:
    """Where a closer count of the memory is to be had, while it isn't certain."""
    ours = found["framework"] == "scalewright" and found["risk"] in ("likely", "unlikely")
    return "; `train --dry-run` counts it" if ours else ""


def _fix(fix: Answer | None) -> str:
    if fix is None:
        return "no single change makes it fit"
    how = f"{gib(fix['peak_gib'])} in {seconds(fix['step_time_s'])}"
    if not fix["fits"]:
        return f"no single change makes it fit; nearest: {fix['change']}, {how}"
    return f"the smallest change that makes it fit: {fix['change']} ({how})"


def row(name: str, value: str, more: str) -> None:
    """`name   value   more` in the columns of the summary."""
    emit(f"{name:<11} [bold]{value:>10}[/]   {more}".rstrip())


def _memory(found: Answer) -> list[tuple[str, float]]:
    kinds = [(name, size) for name, size in found["memory_gib"].items() if name != "peak"]
    free = found["device"]["usable_gib"] - found["memory_gib"]["peak"]
    return [*kinds, ("free", free)] if free > 0 else kinds


def _times(found: Answer) -> list[tuple[str, float]]:
    from scalewright.plan.terms import PART_TERMS

    return [(PART_TERMS[part], value) for part, value in found["time_breakdown_s"].items()]


def _bars(title: str, parts: Sequence[tuple[str, float]], words: Any) -> None:
    """Each part with its share of the sum; parts that are nothing are left out."""
    total = sum(value for _, value in parts) or 1.0
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


def _buys(rows: Sequence[Answer]) -> None:
    """What each axis and technique of the layout is for."""
    if rows:
        emit("\n[bold]what each part buys[/]")
    for one in rows:
        emit(f"  {one['why']}")


def _what_if(rows: Sequence[Answer], fits: bool, many: int = 6) -> None:
    """What would help, settings before hardware; of a layout that fits, only what still does."""
    useful = [one for one in rows if not (fits and "does not fit" in one["change"])]
    helping = [one for one in useful if one["gain_pct"] > 0.5]
    settings = [one for one in helping if one["kind"] == "setting"][:many]
    hardware = [one for one in helping if one["kind"] == "hardware"]
    if not helping:
        return
    width = max(30, *(len(one["change"]) for one in helping))
    emit(f"\n[bold]what if[/]{'':<{width - 5}} {'step':>9}  {'speed':>8}")
    for at, one in enumerate([*settings, *hardware]):
        if at == len(settings):
            emit("  other hardware")
        emit(f"  {one['change']:<{width}} {seconds(one['step_time_s']):>9}  {one['gain_pct']:+7.1f}%")


def _evidence(found: Answer | None) -> None:
    if not found:
        return
    if probe := found.get("probe"):
        emit(f"\n[bold]priced from[/]  {probe}")
    if found["nearest"]:
        emit("\n[bold]nearest measured runs[/]")
    for one in found["nearest"]:
        off = 100 * (one["predicted"] / one["measured"] - 1)
        times = f"{seconds(one['measured'])}, predicted {seconds(one['predicted'])} ({off:+.0f}%)"
        layout = one["layout"]
        split = " · ".join([*axes(layout), *techniques(layout), str(layout["precision"])])
        batch = f"batch {layout['global_batch']:,.6g} x {one['seq_len']:,}"
        emit(f"  {one['model']} on {one['n_devices']:,} x {one['device']}: {times}")
        emit(f"    {one['trainer']}, {one['date']}, {one['source']}: {split}, {batch}")
    if found["extrapolates"]:
        emit("  beyond what was measured: " + "; ".join(found["extrapolates"]))


def seconds(value: float) -> str:
    """A time in three digits: 20.8 s, 312 ms, 45 µs."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= 0.9995 * size:
            return f"{three(value / size)} {unit}"
    return f"{three(value * 1e6)} µs"


def gib(value: float) -> str:
    """`50.7 GiB`."""
    return f"{three(value)} GiB"


def three(value: float) -> str:
    """Three digits, thousands whole."""
    if value >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
