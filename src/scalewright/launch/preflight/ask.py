"""Facts of a start and of a job to be written, from the run, the environment and what the site asks for.

start_facts(environ, run, ...)   where ranks run: this process's place, this machine
job_facts(job, target, run)      where a job is written: its variables and its place; no machine
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from math import prod
from pathlib import Path

from scalewright.launch.detect import find_address, find_source
from scalewright.launch.job import LaunchJob
from scalewright.launch.preflight.facts import Facts, ProcessPlace, Run
from scalewright.launch.preflight.look import look
from scalewright.launch.targets.script import PORT
from scalewright.spec.errors import UserError
from scalewright.spec.launch import LaunchSpec
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import OptimizerSpec, RunSpec
from scalewright.spec.tensors import tensors

FP32 = 4
MADE_BY_THE_JOB = ("slurm",)  # a port from the job's number
TAIL_BYTES = 1 << 16  # of events.jsonl, in which the last save is looked for


def start_facts(
    environ: Mapping[str, str], run: RunSpec | None, *, gpus: bool, file: Path | None = None, meeting: bool = False
) -> Facts:
    """Facts of a start here, by this process; raises UserError for starters that contradict each other.

    `gpus`: its ranks have some; `file`: the run file. `meeting`: what is needed before ranks meet, which all
    of them ask: no folder is looked at.
    """
    place = place_of(environ, run)
    folder = run.folder if run is not None else Path()
    return Facts(
        environ=environ, place=place, site=run.launch if run is not None else LaunchSpec(),
        run=None if run is None or meeting else run_facts(run, file),
        machine=look(environ, place, None if meeting else folder), gpus=gpus,
    )  # fmt: skip


def place_of(environ: Mapping[str, str], run: RunSpec | None) -> ProcessPlace:
    """This process's place. One that stands for a node, and one that is alone, start the ranks of their node.

    Ranks by hand that don't tell their node's count are taken as one node's.
    """
    devices = run.layout.devices if run is not None else 1
    source = find_source(environ)
    if source is None or source.world == 1:
        return ProcessPlace(world=devices, per_node=devices)
    host, port = find_address(source, environ)
    per_node = source.local_world or source.world
    nodes = -(-source.world // per_node)
    whole_node = per_node == 1 and nodes > 1 and devices > source.world and devices % nodes == 0
    return ProcessPlace(
        starter=source.starter.name, rank=source.rank * (devices // nodes if whole_node else 1),
        world=devices if whole_node else source.world, nodes=nodes,
        per_node=devices // nodes if whole_node else per_node, address=host or "", port=port,
        store_is_up=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )  # fmt: skip


def job_facts(job: LaunchJob, target: str, run: RunSpec) -> Facts:
    """Facts of a job that `launch TARGET` writes."""
    env = dict(job.site.env)
    if job.site.interface:
        env.setdefault("GLOO_SOCKET_IFNAME", job.site.interface)
        env.setdefault("NCCL_SOCKET_IFNAME", job.site.interface)
    hosts = job.site.hosts
    port = job.site.port or (None if target in MADE_BY_THE_JOB else PORT)
    place = ProcessPlace(
        target=target, world=job.world, nodes=job.nodes, per_node=job.per_node,
        address=env.get("MASTER_ADDR") or (hosts[0] if hosts else ""),
        port=int(env["MASTER_PORT"]) if env.get("MASTER_PORT", "").isdigit() else port,
    )  # fmt: skip
    return Facts(env, place, job.site, run_facts(run, None), gpus=job.device == "cuda")


def run_facts(run: RunSpec, file: Path | None) -> Run:
    """What rules need of a run."""
    modified = None
    if file is not None:
        with suppress(OSError):
            modified = file.stat().st_mtime
    return Run(run, save_bytes(run), last_save_s(run.folder), modified)


def save_bytes(run: RunSpec) -> int | None:
    """Bytes of a checkpoint: fp32 weights and the optimizer's states; None for a user's own parts.

    A model that would have to be fetched isn't looked up.
    """
    model = run.model
    if not isinstance(run.optimizer, OptimizerSpec):
        return None
    if isinstance(model, str):
        if model.startswith("hf:"):
            return None
        try:
            model = load_model_spec(model)
        except UserError:
            return None
    if not isinstance(model, ModelSpec):
        return None
    record = run.optimizer.record
    specs = tensors(model, mtp=bool(model.mtp_layers))
    return sum(FP32 * prod(spec.shape) + record.state_bytes(spec, prod(spec.shape)) for spec in specs)


def last_save_s(folder: Path) -> float | None:
    """Seconds of the last save that an earlier call of the run wrote into events.jsonl, if it did one."""
    try:
        with (folder / "events.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if b'"save"' not in line:
            continue
        with suppress(ValueError):
            event = json.loads(line)
            if event.get("kind") == "save" and isinstance(event.get("seconds"), (int, float)):
                return float(event["seconds"])
    return None
