"""`scalewright doctor`: what this machine can do, and what about it, or about a start, is misconfigured."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.options import Json, argument, flag, option
from scalewright.cli.output import only_answer, print_json, working
from scalewright.cli.verbs.launch import target_names
from scalewright.cli.verbs.train import missing_run
from scalewright.spec.errors import Finding, UserError

if TYPE_CHECKING:
    from scalewright.launch.preflight.facts import Facts
    from scalewright.machine.findings import Report
    from scalewright.spec.run import RunSpec


def doctor(
    run: Annotated[Path | None, argument("RUN.yaml", "With --launch: the run to be started.")] = None,
    overrides: Annotated[list[str] | None, argument("KEY=VALUE", "Keys to set, such as layout.tp=2.")] = None,
    launch: Annotated[bool, flag("Look at a start instead: what would fail, hang or be slow.", "--launch")] = False,
    target: Annotated[
        str | None,
        option(
            "TARGET",
            "With --launch: the job that `launch TARGET` would write, and not a start here.",
            words=target_names,
        ),
    ] = None,
    nodes: Annotated[int | None, flag("With --target: machines.", min=1)] = None,
    profile: Annotated[Path | None, option("FILE", "With --target: the site's `launch` keys.")] = None,
    folder: Annotated[Path, option("DIR", "Where runs would be written.")] = Path(),
    measure: Annotated[bool, flag("Measure rates too; takes a second.")] = True,
    json: Json = False,
) -> None:
    """What this machine can do, and what is misconfigured.

    It looks and changes nothing. With --launch it exits with 1 where a start would fail.

    \b
    scalewright doctor
    scalewright doctor --launch run.yaml
    scalewright doctor --launch run.yaml --target slurm --profile site.yaml --nodes 4
    """
    from scalewright.launch.settings import present_environment
    from scalewright.machine.doctor import examine, render

    if not launch and (run or target):
        raise UserError("a run and a target are for --launch", "scalewright doctor", "add --launch")
    with only_answer(json), working("looking at this machine"):
        if launch:
            report = _look_at_start(run, overrides or [], target, nodes, profile)
        else:
            report = examine(folder, present_environment(), measure)
    if json:
        print_json(report.dump())
    else:
        width = min(120, shutil.get_terminal_size((100, 24)).columns)
        sys.stdout.write(render(report, width, colour=sys.stdout.isatty()))
    if launch and report.worst == "problem":
        raise typer.Exit(1)


def _look_at_start(
    run: Path | None, overrides: list[str], target: str | None, nodes: int | None, profile: Path | None
) -> Report:
    from dataclasses import replace

    from scalewright.launch.job import make_job
    from scalewright.launch.preflight.ask import job_facts, start_facts
    from scalewright.launch.preflight.facts import NEEDS
    from scalewright.launch.preflight.look import has_gpus
    from scalewright.launch.preflight.rule import Moments
    from scalewright.launch.preflight.rules import check, rules_at
    from scalewright.launch.settings import present_environment
    from scalewright.launch.targets import find_target
    from scalewright.machine.findings import Report
    from scalewright.spec.run import load_run

    if run is not None and not run.is_file():
        raise missing_run(run)
    if target is not None and run is None:
        raise UserError("a job is made from a run file", "--target", "name it: doctor --launch RUN.yaml")
    began = time.perf_counter()
    spec = load_run(run, overrides) if run is not None else None
    moments: Moments = ("meeting", "node")
    if target is not None and run is not None and spec is not None:
        job = make_job(spec, run.as_posix(), overrides, profile, nodes, target)
        find_target(target)(job)  # raises UserError for what can't be written
        moments = ("submit",)
        facts = job_facts(job, target, spec)
    else:
        environ = present_environment()
        gpus = has_gpus(spec.device if spec is not None else "auto", environ)
        facts = start_facts(environ, spec, gpus=gpus, file=run)
    rules = rules_at(*moments)
    sources = {rule.name: rule.source for rule in rules}
    findings = tuple(
        replace(
            finding, what=f"{finding.what} ({finding.place})",
            data={"where": finding.place, "source": sources[finding.rule]},
        )
        for finding in check(facts, *moments)
    )  # fmt: skip
    lacking = [[need for need in rule.needs if not NEEDS[need](facts)] for rule in rules]
    unasked = Counter(need for needs in lacking for need in needs[:1])
    if unasked:
        reasons = ", ".join(f"{number} need{'s' * (number == 1)} {need}" for need, number in unasked.most_common())
        what = f"{sum(unasked.values())} rules weren't asked here: {reasons}"
        names = [rule.name for rule, needs in zip(rules, lacking, strict=True) if needs]
        findings += (Finding("start", "not asked", "note", what, data={"rules": names}),)
    looks = len(rules) - sum(unasked.values())
    return Report(findings, {}, time.perf_counter() - began, looks=looks, unasked=_missed(unasked, spec, facts))


def _missed(unasked: Counter[str], run: RunSpec | None, facts: Facts) -> str:
    """The rules that this run's start needs and that couldn't be asked, with where they can; a CPU's needs no GPUs."""
    elsewhere = run is None or run.layout.devices > facts.place.world
    ways = {"GPUs": "run it on a compute node"} if run is None or run.device not in ("cpu", "mps") else {}
    ways |= {"a run": "name RUN.yaml"} if run is None else {}
    ways |= {"several ranks": "run it under the job's launcher, or with --target"} if elsewhere else {}
    number: Counter[str] = Counter()
    for need, rules in unasked.items():
        number[next((kind for kind in ways if need.startswith(kind.removesuffix(" ranks"))), "")] += rules
    kinds = {"several ranks": "several ranks or nodes"}
    return "; ".join(
        f"{number[kind]} need {kinds.get(kind, kind)}: {way}" for kind, way in ways.items() if number[kind]
    )
