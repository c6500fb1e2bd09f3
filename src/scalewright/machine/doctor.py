"""`doctor`: what this machine can do, and what about it is set up badly. It looks, and changes nothing.

examine(folder, environ) -> Report        at most a few seconds; a check that can't look reports that
render(report) -> str                     the page for a terminal;  report.dump() the data for --json
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scalewright.machine.checks import accelerator, memory, network, processor, software, speed, storage
from scalewright.machine.findings import Report, guarded
from scalewright.machine.load import mark, others_busy
from scalewright.machine.probe import load_torch
from scalewright.machine.processor import read_processor
from scalewright.spec.common.formatting import counted, printable
from scalewright.spec.errors import Finding, Severity

Gpus = list[dict[str, str]] | None
Check = tuple[str, str, Callable[[], Finding | Iterable[Finding] | None]]
MARKS: dict[Severity, tuple[str, str]] = {
    "ok": ("✓", "green"), "note": ("·", "cyan"), "warn": ("!", "yellow"), "problem": ("✗", "bold red")
}  # fmt: skip
TERMS = {  # a check -> the word of `explain` behind it
    "threads": "OpenMP", "numa": "NUMA", "cores": "CPU", "memory": "RAM", "devices": "GPU", "port": "port",
    "gloo interface": "IP address", "file system": "file system", "write speed": "file system",
}  # fmt: skip


def examine(folder: Path = Path("."), environ: Mapping[str, str] | None = None, measure: bool = True) -> Report:
    """Looks at this machine, for a run in `folder` and `environ`; `measure`: its rates too (a second). Never raises."""
    start, quiet = time.perf_counter(), mark()
    versions = software.versions(torch := load_torch())
    gpus: Gpus = None
    findings: list[Finding] = []
    try:
        gpus = accelerator.query_nvidia()
    except Exception as error:  # a hanging or broken driver is itself a finding
        what = f"nvidia-smi doesn't answer: {(str(error) or type(error).__name__).splitlines()[0][:120]}"
        fix = "restart the machine or reload the driver"
        findings.append(Finding(accelerator.GROUP, "driver", "problem", what, fix))
    checks = _checks(torch, versions, gpus, _existing(folder), environ or {}, lambda: others_busy(quiet))
    if measure:
        device = speed.main_device(torch)
        checks.append((speed.GROUP, "rates", lambda: speed.rates(torch, device, read_processor())))
    for check in checks:
        findings += guarded(*check)
    return Report(tuple(findings), versions, time.perf_counter() - start)


def _checks(
    torch: Any | None,
    versions: dict[str, str | None],
    gpus: Gpus,
    folder: Path,
    environ: Mapping[str, str],
    busy: Callable[[], float | None],
) -> list[Check]:
    cpu = read_processor()
    threads = torch.get_num_threads() if torch is not None else None
    return [
        (software.GROUP, "python", software.python),
        (software.GROUP, "torch", lambda: software.broken_torch(torch, versions)),
        (software.GROUP, "training", lambda: software.training(versions)),
        (software.GROUP, "distributed", lambda: software.backends(torch)),
        (processor.GROUP, "cores", lambda: processor.cores(cpu)),
        (processor.GROUP, "threads", lambda: processor.threads(cpu, environ, threads, busy())),
        (processor.GROUP, "numa", lambda: processor.numa(cpu)),
        (processor.GROUP, "clocks", processor.clocks),
        (processor.GROUP, "load", lambda: processor.load(cpu, busy())),
        (processor.GROUP, "steal", processor.steal),
        (memory.GROUP, "memory", lambda: memory.memory(cpu)),
        (memory.GROUP, "swap", memory.swap),
        (memory.GROUP, "shared memory", memory.shared_memory),
        (memory.GROUP, "open files", memory.open_files),
        (accelerator.GROUP, "driver", lambda: accelerator.driver(gpus)),
        (accelerator.GROUP, "devices", lambda: accelerator.torch_devices(torch, gpus, environ)),
        (network.GROUP, "gloo interface", lambda: network.hostname(environ)),
        (network.GROUP, "interfaces", lambda: network.named_interfaces(environ)),
        (network.GROUP, "loopback", network.loopback),
        (network.GROUP, "port", lambda: network.main_port(environ)),
        (network.GROUP, "infiniband", network.infiniband),
        (storage.GROUP, "space", lambda: storage.space(folder)),
        (storage.GROUP, "file system", lambda: storage.file_system(folder)),
        (storage.GROUP, "write speed", lambda: storage.write_speed(folder)),
        (storage.GROUP, "clock", storage.clock),
    ]


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists: a run would make the rest."""
    place = folder.resolve()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    return place


def render(report: Report, width: int = 100, colour: bool = False) -> str:
    """The report as a page of text: with `colour` for a terminal, without it in plain words and ASCII."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, force_terminal=colour, no_color=not colour, highlight=False)
    table = Table(box=None, show_header=False, padding=(0, 1), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for group in report.groups:
        table.add_row("", Text(group, style="bold"), "")
        for finding in report.of(group):
            mark, style = MARKS[finding.severity]
            text = Text(printable(finding.what))
            if finding.how and finding.severity != "ok":
                arrow = "→" if colour else "->"
                text.append(printable(f"\n{arrow} {finding.how}"), style="dim" if finding.severity == "note" else style)
            if finding.severity != "ok" and finding.rule in TERMS:
                text.append(f"\nwhat it is: scalewright explain {TERMS[finding.rule]}", style="dim")
            word = Text(mark if colour else finding.severity, style=style)
            table.add_row(word, Text(f"  {finding.rule}", style="dim"), text)
    console.print(table)
    console.print()
    console.print(_verdict(report))
    return buffer.getvalue()


def _verdict(report: Report) -> Text:
    problems, warnings = report.counts["problem"], report.counts["warn"]
    took = f" ({report.checks} checks in {report.seconds:.1f} s)"
    if problems:
        lines = f"{counted(problems, 'problems')} to fix before a run"
    elif warnings:
        lines = f"{'' if report.unasked else 'ready; '}{counted(warnings, 'things')} could be better"
    else:
        lines = "nothing to fix" if report.unasked else "ready: nothing to fix"
    if report.unasked:
        lines += f" among the {counted(report.checks, 'rules')} that could be asked here; {report.unasked}"
    return Text(lines, style=MARKS[report.worst][1]).append(took, style="dim")
