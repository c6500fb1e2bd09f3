"""A run's progress on stderr: a live panel on a terminal, else a line now and then.

    ╭─ shakespeare ──────────────────────────────────────────────────────────────╮
    │ llama 3.5M · 2 × cpu · fp32 · zero 3                                       │
    │ ━━━━━━━━━━━━━━━━━━━━━━━━━━╸──────────────  412/1,000  41%   eta 3:34       │
    │ loss  2.3142 ▇▆▅▄▄▃▃▂▂▂▁▁  tokens/s 12.3k   grad norm 0.842 …              │
    ╰────────────────────────────────────────────────────────────────────────────╯

The training loop only sets attributes: `step` stores a row and takes a microsecond. A thread of rich's draws the newest
row twice a second, whatever the speed of the loop. Where no panel can be drawn, a heartbeat prints the newest row, or
what the run is at, before 10 s are silent.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scalewright.spec.common.formatting import MISSING, count, decimal, duration, printable, share, short_time
from scalewright.spec.common.heartbeat import SILENT_S, Heartbeat
from scalewright.track.lines import Row
from scalewright.track.progress import DisplayState, plain_line, sparkline


class Console:
    """A run's display on a terminal. With `enabled=False` (other ranks, `--json`, `--quiet`) it does nothing.

    `total_steps` is the last step of the run, `start_step` the one it continues from.
    """

    def __init__(
        self,
        total_steps: int,
        name: str,
        description: Sequence[str] = (),
        enabled: bool = True,
        start_step: int = 0,
        stream: TextIO | None = None,
        redraw_s: float = 0.5,
        line_every_s: float = SILENT_S,
    ) -> None:
        self._stream = stream or sys.stderr
        self._enabled = enabled
        self._progress = DisplayState(name, total_steps, start_step, tuple(description))
        self._redraw_s, self._line_every_s = redraw_s, line_every_s
        self._next_line = 0.0
        self._shown: Row | None = None  # the newest row that has been printed
        self._heart = Heartbeat(
            every_s=SILENT_S + 1, line=self._under_way, write=self._print
        )  # after a row that is due
        self._live: Any = None

    def start(self) -> None:
        """Opens the panel, or prints the run's name and description."""
        if not self._enabled:
            return
        self._progress.begin()
        self._live = self._open_panel() if self._stream.isatty() else None
        if self._live is None:
            self._print(" · ".join([self._progress.name, *self._progress.description]))
            self._heart.__enter__()

    def ends_at(self, step: int) -> None:
        """This call's last step, which may come before the run's."""
        self._progress.last_step = step if step < self._progress.total_steps else None

    def step(self, row: Row) -> None:
        if not self._enabled:
            return
        self._progress.step(row)
        self._heart.now("")
        if self._live is None and time.monotonic() >= self._next_line:
            self._print(self._newest())

    def at(self, doing: str) -> None:
        """What the run is at beside its steps, such as a validation; "": at its next step."""
        self._heart.now(doing)

    def _newest(self) -> str:
        self._next_line, self._shown = time.monotonic() + self._line_every_s, self._progress.row
        return plain_line(self._progress)

    def _under_way(self, seconds: float) -> str:
        """What a heartbeat prints: a row that nobody has seen yet, else what the run has been at for so long."""
        progress = self._progress
        if progress.row is not self._shown and progress.row:
            return self._newest()
        ends = progress.done == (progress.total_steps if progress.last_step is None else progress.last_step)
        if doing := self._heart.what or ("closing the run" if ends else ""):
            return f"{doing} after step {progress.done:,}/{progress.goal}: {seconds:,.0f} s so far"
        first = ", the first, which sets up kernels" if progress.done == progress.start_step else ""
        return f"step {progress.done + 1:,}/{progress.goal}{first}: {seconds:,.0f} s so far"

    def valid(self, row: Row) -> None:
        if not self._enabled:
            return
        self._progress.valid = row
        if self._live is None:
            bits, loss = row.get("bits_per_byte"), row.get("loss")
            more = f", {bits:.4f} bits per byte" if bits is not None else ""
            self._print(f"step {row.get('step')}: validation loss {'–' if loss is None else f'{loss:.4f}'}{more}")

    def saved(self, step: int) -> None:
        self._progress.saved = (step, time.monotonic())

    def message(self, text: str) -> None:
        """One line that stays: above the panel, or by itself."""
        if not self._enabled:
            return
        if self._live is not None:
            with suppress(OSError):  # its terminal was closed
                self._live.console.print(printable(text), markup=False, highlight=False)
        else:
            self._print(text)

    def close(self, summary: Mapping[str, Any] | None = None) -> None:
        """Draws the last state, ends the panel and prints the summary; closing twice is fine."""
        if not self._enabled:
            return
        self._heart.__exit__()
        if self._live is not None:
            with suppress(OSError):
                self._live.stop()
            self._live = None
        elif self._progress.row:
            self._print(plain_line(self._progress))
        if summary:
            width = max(map(len, summary))
            lines = [f"{key.replace('_', ' '):<{width}}  {_text(key, value)}" for key, value in summary.items()]
            self._print("\n".join(lines))
        self._enabled = False

    def _print(self, text: str) -> None:
        try:
            self._heart.heard()
            print(printable(text), file=self._stream, flush=True)
        except (OSError, ValueError):  # the reader of the pipe has gone: a run doesn't end for that
            self._enabled = False
            self._heart.__exit__()

    def _open_panel(self) -> Any:
        from rich.console import Console as Terminal
        from rich.live import Live

        terminal = Terminal(file=self._stream)
        if terminal.is_dumb_terminal:  # which can't go back to a line
            return None
        live = Live(
            get_renderable=lambda: panel(self._progress),
            console=terminal,
            refresh_per_second=1 / self._redraw_s,
            redirect_stdout=sys.stdout.isatty(),  # a piped stdout gets its text directly
            redirect_stderr=self._stream is sys.stderr,
        )
        live.start()
        return live


def _text(key: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return duration(value) if key in {"seconds", "elapsed"} else f"{value:.5g}"


def panel(progress: DisplayState) -> RenderableType:
    """The whole display; its numbers never change places, so that an eye can rest on one."""
    parts: list[RenderableType] = []
    if progress.description:
        parts.append(Text(printable(" · ".join(progress.description)), style="dim", overflow="ellipsis", no_wrap=True))
    parts += [_bar(progress), Text(""), _loss(progress)]
    if progress.valid:
        parts.append(_valid(progress))
    parts.append(_numbers(progress))
    title = Text(printable(progress.name), style="bold")
    return Panel(Group(*parts), title=title, title_align="left", border_style="blue")


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
    row, saved = progress.row, MISSING
    memory = row.get("memory_gib")
    if progress.saved is not None:
        step, moment = progress.saved
        saved = f"step {step:,}, {duration(time.monotonic() - moment)} ago"
    cells = [
        ("tokens/s", count(row.get("tokens_per_s"))),
        ("grad norm", decimal(row.get("grad_norm"), 3)),
        ("memory", MISSING if memory is None else f"{memory:.2f} GiB"),
        ("step time", short_time(row.get("step_time_s"))),
        ("lr", decimal(row.get("lr"), 3)),
        ("tokens", count(row.get("tokens"))),
        ("MFU", share(row.get("mfu"))),
        ("saved", saved),
    ]
    grid = Table.grid(padding=(0, 1), expand=True)
    for _ in range(3):
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(ratio=1, no_wrap=True)
    for start in range(0, len(cells), 3):
        grid.add_row(*(text for cell in cells[start : start + 3] for text in cell))
    return grid
