"""All rules, and how they are run, before a rank starts or meets the others: problems first, in the files' order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from scalewright.launch.preflight import fabric, jobs, limits, network, nodes, storage, timing, variables
from scalewright.launch.preflight.ask import start_facts
from scalewright.launch.preflight.facts import Facts
from scalewright.launch.preflight.rule import Moment, Rule, Subject
from scalewright.launch.rank import RankContext
from scalewright.launch.settings import present_environment
from scalewright.spec.errors import Finding, Mistakes, UserError
from scalewright.spec.launch import Preflight
from scalewright.spec.run import RunSpec

SUBJECTS: tuple[Subject, ...] = (variables.SUBJECT, network.SUBJECT, fabric.SUBJECT, limits.SUBJECT, storage.SUBJECT,
                                 timing.SUBJECT, jobs.SUBJECT, nodes.SUBJECT)  # fmt: skip
RULES: tuple[Rule, ...] = tuple(rule for subject in SUBJECTS for rule in subject.rules)


def rules_at(*moments: Moment) -> tuple[Rule, ...]:
    """The rules of these moments."""
    return tuple(rule for rule in RULES if set(rule.at) & set(moments))


def check(facts: Facts, *moments: Moment) -> tuple[Finding, ...]:
    """What the rules of these moments find, problems first."""
    looked = (rule.look(facts) for rule in rules_at(*moments))
    return in_order(finding for finding in looked if finding is not None)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Problems first, else as they come."""
    return tuple(sorted(findings, key=lambda finding: finding.severity != "problem"))


def merge(by_host: Sequence[tuple[str, Sequence[Finding]]]) -> tuple[Finding, ...]:
    """The findings of several nodes: one that several nodes have stands once, with their names."""
    hosts: dict[str, list[str]] = {}
    first: dict[str, Finding] = {}
    for host, findings in by_host:
        for finding in findings:
            first.setdefault(finding.rule, finding)
            hosts.setdefault(finding.rule, []).append(host)
    return in_order(replace(finding, hosts=tuple(hosts[rule])) for rule, finding in first.items())


def stop_for(findings: Sequence[Finding], mode: Preflight) -> tuple[Finding, ...]:
    """The findings that are left to be said; raises UserError for a problem where problems stop the start."""
    problems = [finding for finding in findings if finding.severity == "problem" and mode == "stop"]
    mistakes = Mistakes()
    for problem in problems:
        last = "; launch.preflight=warn starts it all the same" if problem is problems[-1] else ""
        mistakes.noted.append(UserError(problem.what, problem.place, f"{problem.how}{last}"))
    mistakes.stop()
    return tuple(findings)


def look_here(run: RunSpec, context: RankContext, kind: str, file: Path | None = None) -> tuple[Finding, ...]:
    """What is to be said of a start on this machine; raises UserError for what would make it fail.

    Of one rank among several only what would keep it from meeting the others: the rest is looked at when they
    have met, so that all of them leave (train/compare_nodes.py). `kind`: of the device; `file`: of the run.
    """
    mode = run.launch.preflight
    if mode == "off":
        return ()
    environ, gpus = present_environment(), kind == "cuda"
    if context.alone:
        return stop_for(check(start_facts(environ, run, gpus=gpus, file=file), "meeting", "node"), mode)
    facts = start_facts(environ, run, gpus=gpus, meeting=True)
    return stop_for(check(facts, "meeting"), mode)
