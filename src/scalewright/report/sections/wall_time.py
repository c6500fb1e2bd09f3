"""Every second of a run's life, over all attempts: a strip of it in time, and how much each part took in all.

attempt 1                      ╎ attempt 2
▒▒▓████████▎████████▎███▚▚▚▚░░░▒▒▓█████████▎███████▎██████       █ training ▎ save ▚ done again ░ found ▒ start
"""

from __future__ import annotations

from typing import Any

from scalewright.goodput.ledger import PARTS, Attempt, Ledger, read_ledger
from scalewright.report.folder import RunFolder
from scalewright.report.page import Section
from scalewright.report.present.goodput import WALL
from scalewright.spec.common.formatting import counted, duration, share, short_time
from scalewright.spec.errors import UserError

# Colours of report.css by part: green trains, vermilion is work done again.
COLOURS = dict(zip(PARTS, (8, 1, 5, 6, 7, 0, 2, 4, 3, 9), strict=True))
ENDED = {"finish": "finished", "stop": "asked to stop", "fault": "failed", "unknown": "ended without a word",
         "running": "goes on, or was killed"}  # fmt: skip
MOST = 2000  # stretches of the strip; narrower ones are joined
ROWS = 20  # attempts that are listed, the newest


def section(run: RunFolder) -> Section | None:
    """None for a folder without a start, or without steps."""
    try:
        ledger = read_ledger(run.path, bool((run.config.get("checkpoint") or {}).get("async")))
    except (UserError, AttributeError):
        return None
    data = {
        "stretches": stretches(ledger), "parts": _parts(ledger), "length": duration(ledger.wall_s),
        "attempts": [_row(number, attempt) for number, attempt in enumerate(ledger.attempts, 1)][-ROWS:],
        "left_out": max(len(ledger.attempts) - ROWS, 0), "notes": ledger.notes,
        "facts": [f"{share(ledger.work_s / ledger.wall_s)} of {duration(ledger.wall_s)} trained",
                  counted(len(ledger.attempts), "attempts"), counted(ledger.stops, "failures")],
    }  # fmt: skip
    return Section("wall-time", "Every second of the run", "wall_time.html", data)


def stretches(ledger: Ledger) -> list[dict[str, Any]]:
    """The strip's pieces in order of time: left and width as shares of the whole, colour and words."""
    placed = [segment for attempt in ledger.attempts for segment in attempt.segments]
    least = ledger.wall_s / MOST
    joined: list[list[Any]] = []
    for part, begin, end in placed:
        if joined and (joined[-1][0] == part or end - begin < least) and len(placed) > MOST:
            joined[-1][2] = end
        else:
            joined.append([part, begin, end])
    return [
        {"colour": COLOURS[part], "left": begin / ledger.wall_s, "width": (end - begin) / ledger.wall_s,
         "words": f"{WALL[part]}, {short_time(end - begin)}, from {duration(begin)}"}
        for part, begin, end in joined
    ]  # fmt: skip


def _parts(ledger: Ledger) -> list[dict[str, Any]]:
    rows = [(name, ledger.seconds[name]) for name in PARTS]
    return [
        {"colour": COLOURS[name], "name": WALL[name], "seconds": _time(seconds), "width": seconds / ledger.wall_s,
         "share": share(seconds / ledger.wall_s)}
        for name, seconds in rows
        if seconds > 5e-5 * ledger.wall_s
    ]  # fmt: skip


def _row(number: int, attempt: Attempt) -> dict[str, str]:
    return {
        "number": str(number), "after": duration(attempt.begin), "took": _time(attempt.end - attempt.begin),
        "steps": f"{attempt.first:,} – {attempt.last:,}", "ended": ENDED.get(attempt.ended, attempt.ended),
    }  # fmt: skip


def _time(seconds: float) -> str:
    return short_time(seconds) if seconds < 999.5 else duration(seconds)
