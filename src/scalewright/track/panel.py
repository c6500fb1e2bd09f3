"""The live panel, drawn with rich; three columns of numbers, two on a narrow terminal."""

from __future__ import annotations

import time

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scalewright.spec.common.formatting import MISSING, count, decimal, duration, printable, share, short_time
from scalewright.track.progress import DisplayState, sparkline

Cell = tuple[str, str]


def panel(progress: DisplayState) -> RenderableType:
    """The whole display; its numbers never change places, so that an eye can rest on one."""
    parts: list[RenderableType] = []
    if progress.description:
        parts.append(Text(printable(" · ".join(progress.description)), style="dim", overflow="ellipsis", no_wrap=True))
    parts += [_bar(progress), Text(""), _loss(progress)]
    if progress.valid:
        parts.append(_valid(progress))
    parts.append(_numbers(progress))
    return Panel(
        Group(*parts),
        title=Text(printable(progress.name), style="bold"),
        title_align="left",
        border_style="blue",
        width=None,
    )


def _bar(progress: DisplayState) -> RenderableType:
    total = max(progress.total_steps, 1)
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    position = Text(f"{progress.done:,}", style="bold")
    position.append(f"/{progress.goal} steps  {100 * progress.done / total:.0f}%", style="")
    position.append(f"   {duration(progress.elapsed)}", style="dim")
    position.append(f"  eta {duration(progress.eta)}", style="cyan")
    bar = ProgressBar(total=total, completed=progress.done, complete_style="blue", finished_style="green")
    grid.add_row(bar, position)
    return grid


def _loss(progress: DisplayState) -> RenderableType:
    line = Text(no_wrap=True, overflow="ellipsis")
    loss = progress.row.get("loss")
    missing = bool(progress.row) and loss is None
    line.append("loss        ", style="dim")
    line.append("not finite" if missing else decimal(loss, 5), style="bold red" if missing else "bold green")
    line.append(f"  {sparkline(progress.trend.values(), 40)}", style="green")
    change = progress.trend.change()
    if change is not None:
        line.append(f"  {'▾' if change < 0 else '▴'} {decimal(abs(change), 3)}", style="dim")
    return line


def _valid(progress: DisplayState) -> RenderableType:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append("validation  ", style="dim")
    line.append(decimal(progress.valid.get("loss"), 5), style="bold")
    bits = progress.valid.get("bits_per_byte")
    if bits is not None:
        line.append(f"  {decimal(bits, 4)} bits per byte")
    line.append(f"  at step {progress.valid.get('step', 0):,}", style="dim")
    return line


def _numbers(progress: DisplayState) -> RenderableType:
    row = progress.row
    memory = row.get("memory_gib")
    cells: list[Cell] = [
        ("tokens/s", count(row.get("tokens_per_s"))),
        ("grad norm", decimal(row.get("grad_norm"), 3)),
        ("memory", MISSING if memory is None else f"{memory:.2f} GiB"),
        ("step time", short_time(row.get("step_time_s"))),
        ("lr", decimal(row.get("lr"), 3)),
        ("tokens", count(row.get("tokens"))),
        ("MFU", share(row.get("mfu"))),
        ("saved", _saved(progress)),
    ]
    grid = Table.grid(padding=(0, 1), expand=True)
    for _ in range(3):
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(ratio=1, no_wrap=True)
    for start in range(0, len(cells), 3):
        grid.add_row(*(text for cell in cells[start : start + 3] for text in cell))
    return grid


def _saved(progress: DisplayState) -> str:
    if progress.saved is None:
        return MISSING
    step, moment = progress.saved
    return f"step {step:,}, {duration(time.monotonic() - moment)} ago"
