"""Scripts and manifests of elastic runs: so many nodes at least, and who meets whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from tests.launch.targets.sites import hosts_job, job, slurm_job

from runs import run_data
from scalewright.launch.job import LaunchJob, make_job
from scalewright.launch.targets import find_target
from scalewright.launch.targets.script import RESTARTS
from scalewright.spec.run import RunSpec


def text(target: str, made: LaunchJob) -> str:
    return next(iter(find_target(target)(replace(made, least_nodes=2)).files.values())).replace(" \\\n  ", " ")


def test_slurm_gives_a_range_of_nodes_and_keeps_the_job() -> None:
    lines = text("slurm", slurm_job())
    assert "#SBATCH --nodes=2-4\n" in lines
    assert "#SBATCH --no-kill\n" in lines
    assert "srun --kill-on-bad-exit=0 --no-kill" in lines or "--no-kill" in lines.split("srun", 1)[1]
    assert '--nnodes "2:$SLURM_JOB_NUM_NODES"' in lines
    assert '--rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT"' in lines
    assert "--node-rank" not in lines
    assert "--nodes=4\n" in text("slurm", slurm_job(agent="rank"))  # srun's ranks are all or none


@pytest.mark.parametrize(("allowed", "restarts"), [(0, RESTARTS), (7, 7)])
def test_torchrun_meets_without_numbers(allowed: int, restarts: int) -> None:
    made = hosts_job(max_restarts=allowed)
    assert f"--nnodes 2:{made.nodes} --nproc-per-node {made.per_node} --rdzv-backend c10d" in text("torchrun", made)
    assert f"--max-restarts {restarts} " in text("torchrun", made)


def documents(kind: str) -> dict[str, Any]:
    return {body["kind"]: body for body in yaml.safe_load_all(text("kubernetes", job(kubernetes=kind)))}


def test_a_pod_that_was_taken_comes_again_alone() -> None:
    node = documents("jobset")["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    taken, saved = node["podFailurePolicy"]["rules"]
    assert (taken["action"], saved["action"]) == ("Ignore", "FailJob")
    assert node["backoffLimit"] == RESTARTS
    command = " ".join(node["template"]["spec"]["containers"][0]["command"])
    assert "--nnodes 2:2" in command
    assert "--rdzv-endpoint my-run-node-0-0.my-run:29500" in command
    master = documents("pytorchjob")["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]["Master"]
    command = " ".join(master["template"]["spec"]["containers"][0]["command"])
    assert "--rdzv-endpoint $(MASTER_ADDR):$(MASTER_PORT)" in command  # as the kubelet expands it
    assert "rdzv" not in text("kubernetes", job(kubernetes="trainjob"))  # its torchrun has a fixed number


@pytest.mark.parametrize(("elastic", "least"), [(None, None), (True, 1), ({"min": 3}, 2), ({"min": 8}, None)])
def test_the_fewest_nodes_that_a_layout_fits(tmp_path: Any, elastic: Any, least: int | None) -> None:
    layout = {"devices": 8, "tp": 2, "zero_stage": 3, "global_batch": 8, "micro_batch": 1}
    run = RunSpec.parse(run_data(tmp_path, layout=layout, elastic=elastic, launch={"nodes": 4}))
    assert make_job(run, "run.yaml", (), None, None, "slurm").least_nodes == least
