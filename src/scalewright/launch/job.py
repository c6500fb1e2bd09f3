"""A job: one run, its processes over nodes, and the site's settings; every target writes from it.

    run.yaml + --nodes + --profile ──► Job ──► launch/targets/slurm.py, kubernetes.py, ...  ──► Written
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scalewright.spec.launch import LaunchSpec


@dataclass(frozen=True)
class Job:
    """What is started: `nodes` x `per_node` ranks, each of which runs `command`."""

    name: str  # of the run; targets make it fit their own rules
    nodes: int
    per_node: int
    site: LaunchSpec
    run_file: str  # as the ranks find it: relative to the working directory, or absolute
    overrides: tuple[str, ...] = ()
    device: str = "cuda"  # cuda | cpu

    @property
    def world(self) -> int:
        """All ranks."""
        return self.nodes * self.per_node

    @property
    def arguments(self) -> tuple[str, ...]:
        """What follows `python`."""
        return ("-m", "scalewright", "train", self.run_file, *self.overrides)


@dataclass(frozen=True)
class Written:
    """What a target made of a job."""

    files: Mapping[str, str]  # name -> text, deterministic: the same job gives the same bytes
    submit: tuple[str, ...]  # the command that starts it, run where the files are; empty: never sent from here
    unused: Mapping[str, str] = field(default_factory=dict)  # site keys that this target has no word for -> why
    notes: tuple[str, ...] = ()  # what was assumed
