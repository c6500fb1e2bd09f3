"""A job: one run, its processes over nodes, and the site's settings; every target writes from it.

run.yaml + --nodes + --profile ──► Job ──► launch/targets/slurm.py, kubernetes/, ...  ──► Written
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalewright.spec.base import read_yaml
from scalewright.spec.common.formatting import counted
from scalewright.spec.common.shell import operand
from scalewright.spec.elastic import layouts_on
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.launch import LaunchSpec
from scalewright.spec.run import RunSpec

MOST_PER_NODE = 8  # ranks, where neither the site nor --nodes nor the cluster says
OF_RANKS = ("time_limit", "save_before_s", "preflight")  # keys of the site that ranks read, too


@dataclass(frozen=True)
class LaunchJob:
    """What is started: `nodes` x `per_node` ranks, each of which runs `command`."""

    name: str  # of the run; targets make it fit their own rules
    nodes: int
    per_node: int
    site: LaunchSpec
    run_file: str  # as the ranks find it: relative to the working directory, or absolute
    overrides: tuple[str, ...] = ()
    device: str = "cuda"  # cuda | cpu
    out_dir: str = ""  # the run's folder, as the ranks find it; "": runs/<name>
    least_nodes: int | None = None  # of an elastic run; null: it takes all of them, or none
    home: str = "."  # where what is written goes, from the working directory

    @property
    def world(self) -> int:
        """All ranks."""
        return self.nodes * self.per_node

    @property
    def folder(self) -> str:
        """The run's folder, as the ranks find it."""
        return self.out_dir or f"runs/{self.name}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """What follows `python`."""
        return ("-m", "scalewright", "train", self.run_file, *self.overrides)


@dataclass(frozen=True)
class Written:
    """What a target made of a job."""

    files: Mapping[str, str]  # name -> text, deterministic: the same job gives the same bytes
    submit: tuple[str, ...]  # the command that starts it, where the files are; empty: not from here
    unused: Mapping[str, str] = field(default_factory=dict)  # site keys that it has no word for -> why
    notes: tuple[str, ...] = ()  # what was assumed
    check: tuple[str, ...] = ()  # the command by which the scheduler checks it and starts nothing


def make_job(
    run: RunSpec, run_file: str, overrides: Sequence[str], profile: Path | None, nodes: int | None, target: str = ""
) -> LaunchJob:
    """The job of a run; `overrides` are those that `run` was read with. Raises UserError.

    `profile`: a file of the site's keys; the run's own win. `nodes`: --nodes, which wins over both;
    without them, `target` local or dvc is one machine.
    """
    given = read_profile(profile)
    of_run = run.launch.model_fields_set
    if target in ("local", "dvc") and not run.launch.nodes:
        nodes = nodes or 1
    keys = {**given, **{key: value for key, value in run.launch.dump().items() if key in of_run and value}}
    site = LaunchSpec.parse({**keys, **({"nodes": nodes} if nodes else {})}, where="launch")
    if run.device == "mps":
        raise UserError("MPS is one device", "device", "run it here: scalewright train")
    for text in (run_file, *overrides, run.folder.as_posix()):
        if re.search(r"[\0\ud800-\udfff]", text):
            raise UserError(f"{text[:80]!r} has bytes that aren't UTF-8, or a NUL", "launch", "rename it")
    cluster = load_cluster(run.cluster) if run.cluster != "local" and run.device != "cpu" else None
    have = cluster.devices_per_node if cluster else None
    count, per_node = _split(run.layout.devices, site, have)
    if cluster and have and per_node > have and not site.per_node:
        need = -(-run.layout.devices // have)
        what = f"{counted(per_node, 'ranks')} a node: a node of cluster '{cluster.name}' has {counted(have, 'devices')}"
        raise UserError(what, "launch.nodes, launch.hosts", f"name {need}, or set launch.per_node where yours differ")
    told = [f"launch.{key}={getattr(site, key)}" for key in OF_RANKS if key in given and key not in of_run]
    device = "cpu" if run.device == "cpu" else "cuda"
    overrides, folder = (*overrides, *told), run.folder.as_posix()
    least = least_nodes(run, count, per_node)
    return LaunchJob(run.name, count, per_node, site, operand(run_file), overrides, device, folder, least)


def least_nodes(run: RunSpec, nodes: int, per_node: int) -> int | None:
    """The fewest nodes of an elastic run that its layout fits; None where it fits no fewer than all."""
    if run.elastic is None:
        return None
    worlds = ((count, count * per_node) for count in range(1, nodes))
    fits = (n for n, world in worlds if world >= (run.elastic.min or 1) and any(layouts_on(run.layout, world)))
    return next(fits, None)


def read_profile(path: Path | None) -> dict[str, object]:
    """The keys of a site's file, or of its `launch:` block; raises UserError."""
    if path is None:
        return {}
    data = read_yaml(path)
    keys = data.get("launch", data) if isinstance(data, dict) else data
    LaunchSpec.parse(keys, where=str(path))
    return dict(keys)


def _split(devices: int, site: LaunchSpec, most: int | None) -> tuple[int, int]:
    """Nodes, and ranks of each: by `most` where nothing else says; raises UserError where they don't make `devices`."""
    nodes = site.nodes or (len(site.hosts) or None)
    per_node = site.per_node
    if nodes is None:
        per_node = per_node or min(devices, most or MOST_PER_NODE)
        nodes = -(-devices // per_node)
    per_node = per_node or -(-devices // nodes)
    if nodes * per_node == devices:
        return nodes, per_node
    sizes = counted(nodes, f"nodes of {counted(per_node, 'ranks')} aren't")
    what = f"{sizes} the {devices} of layout.devices"
    how = f"set layout.devices={nodes * per_node}, or launch.nodes and launch.per_node to what makes {devices}"
    raise UserError(what, "launch", how)
