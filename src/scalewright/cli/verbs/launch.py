"""`scalewright launch TARGET RUN.yaml`: the script or manifest that starts a run on several machines."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.options import Force, Json, Overrides, RunFile, argument, flag, option
from scalewright.cli.output import only_answer, print, print_exact, print_json
from scalewright.cli.verbs.train import missing_run
from scalewright.spec.common.shell import line, operand
from scalewright.spec.errors import UserError

if TYPE_CHECKING:
    from scalewright.launch.job import LaunchJob, Written
    from scalewright.spec.errors import Finding
    from scalewright.spec.run import RunSpec


def target_names() -> list[str]:
    """The words that TARGET may be."""
    from scalewright.launch.targets import TARGETS

    return list(TARGETS)


def launch(
    target: Annotated[
        str,
        argument(
            "TARGET",
            "local, slurm, torchrun, mpi, ssh, kubernetes, ray, skypilot, dstack, runpod or dvc.",
            words=target_names,
        ),
    ],
    run: RunFile,
    overrides: Overrides = None,
    show: Annotated[bool, flag("Show the files, and write and start nothing.", "--print")] = False,
    submit: Annotated[bool, flag("Start it, too.", "--submit")] = False,
    dry_run: Annotated[bool, flag("Have the scheduler check it, and start nothing.", "--dry-run")] = False,
    nodes: Annotated[int | None, flag("Machines; default: launch.nodes, or as the layout needs.", min=1)] = None,
    profile: Annotated[Path | None, option("FILE", "The site's `launch` keys; the run file's own win.")] = None,
    out: Annotated[Path | None, option("DIR", "Where the files go; default: beside RUN.yaml.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write what starts a run on a cluster: a script or a manifest, from the run file's `launch` keys.

    Run it where the job is to run: paths are those of this folder. What would fail or be slow is said
    (docs/preflight.md); a job with a problem isn't submitted.

    \b
    scalewright launch slurm run.yaml --print
    scalewright launch slurm run.yaml --profile site.yaml --nodes 4 --submit
    scalewright launch ssh run.yaml 'launch.hosts=[node-a,node-b]' layout.devices=16
    """
    if not run.is_file():
        raise missing_run(run)
    from scalewright.emit.write import save
    from scalewright.launch.job import make_job
    from scalewright.launch.targets import find_target
    from scalewright.spec.run import load_run

    if sum((show, submit, dry_run)) > 1:
        raise UserError("--print, --submit and --dry-run are three things", "scalewright launch", "give one of them")
    write = find_target(target)
    spec = load_run(run, overrides or [])
    folder = out or run.parent
    job = make_job(spec, run.as_posix(), overrides or [], profile, nodes, target)
    job = replace(job, home=folder.as_posix())
    written = write(job)
    findings = _look(job, target, spec, stops=submit)
    paths: dict[str, str] = {}
    if not show:
        save(written.files, folder, force)  # or none of them, where one is another's
        paths = {name: operand((folder / name).as_posix()) for name in written.files}
    command = [paths.get(word, word) for word in (written.check if dry_run else written.submit)]
    code = None
    with only_answer(json):
        if submit or dry_run:
            code = _run(command, target, dry_run)
    if json:
        document = {
            "target": target, "name": job.name, "nodes": job.nodes, "per_node": job.per_node,
            "files": dict(written.files), "paths": paths, "command": command, "unused": dict(written.unused),
            "notes": list(written.notes), "exit_code": code, "preflight": findings,
        }  # fmt: skip
        print_json(document)
    else:
        _show(written, paths, command, findings, ran=code is not None)
    if code:
        raise typer.Exit(code)


def _look(job: LaunchJob, target: str, run: RunSpec, *, stops: bool) -> list[Finding]:
    """What the rules say of the job; `stops`: raises UserError for a problem (launch.preflight: stop)."""
    from scalewright.launch.preflight.ask import job_facts
    from scalewright.launch.preflight.rules import check, stop_for

    mode = job.site.preflight
    if mode == "off":
        return []
    findings = check(job_facts(job, target, run), "submit")
    return list(stop_for(findings, mode if stops else "warn"))


def _run(command: list[str], target: str, dry_run: bool) -> int:
    """Runs a scheduler's command; its exit code. Raises UserError where there is none, or no such program."""
    if not command:
        what = f"{target} has no check of its own" if dry_run else f"{target} isn't started from here"
        raise UserError(what, "scalewright launch", "use --print, and see the first lines of what it writes")
    from scalewright.launch.stop import run_with_signals

    try:
        return run_with_signals(command)  # as mpirun is run: its ranks save and leave
    except FileNotFoundError:
        how = "run it where it is, or use --print"
        raise UserError(f"{command[0]} is not installed here", "scalewright launch", how) from None


def _show(written: Written, paths: dict[str, str], command: list[str], findings: list[Finding], *, ran: bool) -> None:
    if not paths:
        several = len(written.files) > 1
        for name, text in written.files.items():
            print_exact(f"# ---- {name}\n{text}" if several else text)
    lines = [f"wrote {path}" for path in paths.values()]
    lines += [f"note: {note}" for note in written.notes]
    lines += [f"not used: launch.{key} ({why})" for key, why in written.unused.items()]
    lines += [f"{finding.severity}: {finding.line}" for finding in findings]
    for text in lines:
        print(text, file=sys.stderr)
    if command and paths and not ran:
        print(f"start it with: {line(command)}", file=sys.stderr)
