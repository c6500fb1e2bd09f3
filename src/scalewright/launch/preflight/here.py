"""The look at this machine before a rank starts, or meets the others."""

from __future__ import annotations

from pathlib import Path

from scalewright.launch.preflight.ask import start_facts
from scalewright.launch.preflight.rules import check, stop_for
from scalewright.launch.rank import RankContext
from scalewright.launch.settings import present_environment
from scalewright.spec.finding import Finding
from scalewright.spec.run import RunSpec


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
        facts = start_facts(environ, run, gpus=gpus, file=file)
        return stop_for(check(facts, "meeting", "node"), mode)
    facts = start_facts(environ, run, gpus=gpus, meeting=True)
    return stop_for(check(facts, "meeting"), mode)
