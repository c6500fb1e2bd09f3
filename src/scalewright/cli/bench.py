"""The benchmarks' work behind their verbs, and their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scalewright.cli.output import print_table, progress
from scalewright.spec.text.words import metric, short_time

if TYPE_CHECKING:
    from scalewright.bench.collectives import Job


def run_collectives(job: Job, processes: int) -> dict[str, Any] | None:
    """The answer of a started world's rank 0 or of local processes; None on the other ranks."""
    from scalewright.bench.collectives import PRELOAD, measure
    from scalewright.cli.options import check_device
    from scalewright.launch.local import run_local
    from scalewright.launch.rank import find_context

    context = find_context()
    world = processes if context.alone else context.world
    job.check(world)
    check_device(job.device)
    if not context.alone:
        answer = measure(context, job)
        return answer if context.rank == 0 else None
    total = len(job.kinds) * len(job.sizes(job.group or world))
    done = 0
    with progress("messages") as tell:

        def advance(kind: str, row: dict[str, Any]) -> bool:
            nonlocal done
            done += 1
            tell(done, total)
            return False

        local: dict[str, Any] = run_local(
            measure, (job,), world, preload=PRELOAD, on_row=advance, import_main=False
        )
    return local


def show_collectives(answer: dict[str, Any]) -> None:
    groups = "" if answer["group"] == answer["ranks"] else f", groups of {answer['group']}"
    apart = f", {answer['stride']} apart" if answer["stride"] > 1 else ""
    print(f"{answer['ranks']} processes on {answer['device']} over {answer['backend']}{groups}{apart}\n")
    rows = [
        (
            row["kind"],
            row["bytes"],
            short_time(row["time_s"]),
            metric(row["algbw_bytes_per_s"], "B/s"),
            metric(row["busbw_bytes_per_s"], "B/s"),
            row["wrong"],
        )
        for row in answer["rows"]
    ]
    print_table(("collective", "bytes", "time", "algorithm", "bus", "wrong"), rows)
    if not answer["fits"]:
        return
    print("\ntime = start + bus bytes / rate, each with its 90% interval")
    lines = [
        (
            fit["kind"],
            short_time(fit["start_s"]),
            " to ".join(short_time(value) for value in fit["start_interval_s"]),
            _rate(fit["bytes_per_s"]),
            " to ".join(_rate(value) for value in fit["interval_bytes_per_s"]),
            f"{fit['error']:.0%}",
        )
        for fit in answer["fits"]
    ]
    print_table(("collective", "start", "interval", "rate", "interval", "median error"), lines)


def _rate(value: float | None) -> str:
    return "–" if value is None else metric(value, "B/s")
