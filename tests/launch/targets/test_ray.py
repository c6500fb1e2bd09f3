"""Ray's driver: readable Python; and, where Ray is, a run on two nodes in which a worker is killed."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.launch.ray_cluster import missing, two_nodes
from tests.launch.targets.sites import full_job, job
from tests.runs import assert_same_run, events, merge, run, run_data, steps_done, wait_for, write_run

from scalewright.launch.job import LaunchJob
from scalewright.launch.targets.ray import write
from scalewright.spec.errors import UserError
from scalewright.spec.launch import LaunchSpec

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).resolve().parents[3]


def test_the_driver_is_the_expected_one():
    (text,) = write(full_job()).files.values()
    assert text == (GOLDEN / "ray_driver.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ['a "quoted" name', "back\\slash", "'''", "{brace}"])
def test_the_driver_is_python_for_any_name(name):
    a_job = LaunchJob(name, 2, 8, LaunchSpec(workdir="/data/it's {here}"), "run.yaml", ('a="b"',))
    (text,) = write(a_job).files.values()
    ast.parse(text)
    assert "{here}" in text


def test_the_folder_is_one_that_all_nodes_share():
    for workdir in (None, "runs"):
        with pytest.raises(UserError, match=r"launch\.workdir"):
            write(job(workdir=workdir))


def test_keys_of_machines_are_ray_s_own_business():
    assert {"partition", "memory", "container"} <= write(full_job(partition="gpu")).unused.keys()


# -- with Ray ------------------------------------------------------------------------------------------


def ranks_of(folder: Path) -> list[Any]:
    """The processes that train this folder's run."""
    import psutil

    def command(process: Any) -> list[str]:
        try:
            return process.cmdline() if process.cwd() == str(folder) else []
        except psutil.Error:
            return []

    return [p for p in psutil.process_iter() if "scalewright.launch.exits_with_parent" in command(p)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("killed", ["the rank", "its worker"])
def test_a_killed_rank_is_started_again_and_resumes(tmp_path, killed):
    """Two ranks on two nodes; one is killed after a checkpoint; the run ends as an undisturbed one."""
    if reason := missing():
        pytest.skip(reason)
    base = {
        "layout": {"devices": 2, "zero_stage": 3, "micro_batch": 2},
        "checkpoint": {"every": 4, "at_end": True},
        "train": {"steps": 16},
    }
    control = run(run_data(tmp_path, **base, out_dir=str(tmp_path / "control"))).out_dir
    slow = merge(base, {"loss": {"python": "parts:fragile", "pause": 0.25}})
    file = write_run(tmp_path, run_data(tmp_path, **slow))
    site = LaunchSpec(workdir=str(tmp_path), max_restarts=2, env={"OMP_NUM_THREADS": "1"}, interface="lo")
    written = write(LaunchJob("tiny", 2, 1, site, str(file), device="cpu"))
    for name, text in written.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    driver = tmp_path / next(iter(written.files))
    paths = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    with two_nodes(environ) as address:
        process = subprocess.Popen(
            [sys.executable, str(driver)], cwd=tmp_path, env={**environ, "RAY_ADDRESS": address},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            wait_for(lambda: steps_done(tmp_path / "out") >= 6 or process.poll() is not None, 240, "steps")
            victims = ranks_of(tmp_path)
            assert len(victims) == 2, process.poll()
            victim = victims[1] if killed == "the rank" else victims[1].parent()
            os.kill(victim.pid, signal.SIGKILL)
            output, _ = process.communicate(timeout=300)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, output[-4000:]
    assert_same_run(tmp_path / "out", control)
    assert [event["step"] for event in events(tmp_path / "out", "resume")], "it began anew"
    time.sleep(1)
    assert ranks_of(tmp_path) == []
