"""`scalewright accept RUN.yaml`: ten minutes on a new cluster, before a run is given to it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.options import Json, Overrides, RunFile, flag, option
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.cli.verbs.train import missing_run
from scalewright.spec.common.formatting import counted

if TYPE_CHECKING:
    from scalewright.accept.hardware import Acceptance

SIGNS = {"ok": "✓", "warn": "!", "problem": "✗", "note": "–"}


def accept(
    run: RunFile,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, option("DIR", "A new folder that every host sees; default runs/NAME-accept/TIME.")
    ] = None,
    keep: Annotated[bool, flag("Keep the checkpoints that it made.", "--keep")] = False,
    json: Json = False,
) -> None:
    """Check a new cluster with a run of yours: speed, right sums, loss, a kill and a resume.

    Devices and pairs of them against each other and their spec; the loss against one device; a kill and a
    resume. Writes one page; exit code 1 when a check failed. Alone, or in every process of torchrun or srun.

    \b
    scalewright accept run.yaml
    torchrun --nproc-per-node 8 -m scalewright accept run.yaml cluster=dgx-h100
    """
    if not run.is_file():
        raise missing_run(run)
    from scalewright.accept.accept import accept as check
    from scalewright.accept.accept import check_folder
    from scalewright.accept.training import remove_checkpoints
    from scalewright.launch.rank import find_context
    from scalewright.launch.rendezvous import with_address
    from scalewright.launch.settings import present_environment
    from scalewright.machine.local import find_cluster
    from scalewright.report.acceptance import write_acceptance
    from scalewright.spec.run import load_run
    from scalewright.train.resolve import device_kind

    spec = load_run(run, overrides or [])
    context = with_address(find_context())
    folder = out or spec.folder.with_name(f"{spec.folder.name}-accept") / f"{datetime.now():%Y-%m-%dT%H%M%S}"
    check_folder(context, folder)  # before this machine is timed, too
    with only_answer(json), working("looking at this machine and its rates", context.rank == 0) as tell:
        kind, _ = device_kind(spec)
        cluster = find_cluster(spec.cluster, spec.layout.devices)
        result = check(spec, cluster, context, device=kind, folder=folder, environ=present_environment(), tell=tell)
    if context.rank == 0:
        if not keep:
            remove_checkpoints(folder)
        page = write_acceptance(result.dump(), folder / "acceptance.html")
        print_json(result) if json else show(result, page)
    if not result.ok:
        raise typer.Exit(1)


def show(result: Acceptance, page: Path) -> None:
    """A line for each check, what to do about it, and the verdict."""
    hosts = ", ".join(result.about["hosts"][:4])
    print(f"{result.run} · {counted(result.about['world'], 'ranks')} on {hosts}\n")
    for check in result.checks:
        print(f"{SIGNS[check.severity]} {check.rule:<9} {check.what}")
        if check.how and check.severity in ("warn", "problem"):
            print(f"            → {check.how}")
    bad = [check.rule for check in result.checks if check.severity == "problem"]
    print(f"\n{'NOT ACCEPTED: ' + ', '.join(bad) + ' failed' if bad else 'accepted'} in {result.seconds:.0f} s")
    print(f"the page is {page}")
