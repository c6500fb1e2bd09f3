"""`launch slurm` on a real Slurm of pretend nodes: stopped, preempted, a node lost; the same run after all.

4 nodes x 2 ranks, Gloo ──► USR1 | TERM | power cut ──► requeued ──► the bits of an undisturbed run
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.launch.slurm_cluster import Cluster, missing

from runs import TESTS, assert_same_bits, bits, events, merge, run, run_data, steps_done, weights, write_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing()), reason=f"Slurm is not installed: {', '.join(missing())}"),
]

SITE = {
    "python": sys.executable,
    "interface": "lo",
    "per_node": 2,
    "env": {"MASTER_ADDR": "127.0.0.1"},  # pretend nodes have names that nobody can resolve
    "preflight": "warn",  # and are one machine, which looks wrong
}


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with Cluster(5) as cluster:
        cluster.environ |= {"PYTHONPATH": f"{TESTS}:{Path(TESTS).parent / 'src'}", "OMP_NUM_THREADS": "1"}
        yield cluster


def data_of(folder: Path, nodes: int, **changes: Any) -> dict[str, Any]:
    """A tiny run of two ranks a node, slow enough to be disturbed."""
    base = {
        "layout": {"devices": 2 * nodes, "zero_stage": 3, "global_batch": 2 * nodes},
        "loss": {"python": "parts:fragile", "pause": 0.1},
        "train": {"steps": 60},
        "checkpoint": {"every": 5, "at_end": True},
    }
    return merge(run_data(folder, **base), changes)


def control_of(folder: Path, data: dict[str, Any]) -> str:
    """The same run, undisturbed, by local workers."""
    quick = {"out_dir": str(folder / "control"), "loss": {"pause": 0.0}, "checkpoint": {"every": 0}}
    return run(merge(data, quick)).out_dir


def submit(slurm: Cluster, folder: Path, data: dict[str, Any], *options: str, **site: Any) -> int:
    """What a user does; the number of the job."""
    write_run(folder, merge(data, {"launch": {**SITE, **site}}))
    command = [sys.executable, "-m", "scalewright", "launch", "slurm", "run.yaml", "--submit", *options]
    said = slurm.run(*command, cwd=folder)
    return int(said.split()[-1])


def jobs(slurm: Cluster) -> set[str]:
    """The jobs that wait or run."""
    return set(slurm.run("squeue", "--noheader", "--format=%i").split())


def log_of(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.glob("*.log")))


def goes_on(slurm: Cluster, folder: Path, number: int, step: int) -> None:
    """Waits until the run is beyond a step."""
    out = folder / "out"
    slurm.wait(lambda: steps_done(out) > step, 120, f"step {step + 1}: {log_of(folder)[-3000:]}")


def test_a_node_is_lost_and_then_the_time_is_over(slurm: Cluster, tmp_path: Path) -> None:
    """Two disturbances of one run: Slurm requeues it, then it asks to be requeued."""
    data = data_of(tmp_path, 4, train={"steps": 30})
    control = control_of(tmp_path, data)
    number = submit(slurm, tmp_path, data)
    goes_on(slurm, tmp_path, number, 7)
    slurm.kill_node("n2")
    slurm.wait(lambda: slurm.job(number)["Restarts"] == "1", 90, f"a requeue: {log_of(tmp_path)[-3000:]}")
    slurm.skip_hold(number)
    before = steps_done(tmp_path / "out")
    goes_on(slurm, tmp_path, number, before)
    slurm.run("scancel", "--signal=USR1", str(number))
    slurm.wait(lambda: slurm.job(number)["Restarts"] == "2", 90, f"a requeue: {log_of(tmp_path)[-3000:]}")
    slurm.skip_hold(number)
    job = slurm.wait_for_state(number, "COMPLETED", "FAILED", "CANCELLED")
    slurm.start_node("n2")
    assert job["JobState"] == "COMPLETED", log_of(tmp_path)
    assert bits(tmp_path / "out") == bits(control)
    assert_same_bits(weights(tmp_path / "out", optimizer=True), weights(control, optimizer=True))
    lives = [event for event in events(tmp_path / "out") if event["kind"] in ("start", "resume")]
    assert [(life["scheduler"], life["job"], life["restarts"]) for life in lives] == [
        ("Slurm", str(number), count) for count in range(3)
    ]
    (stop,) = events(tmp_path / "out", "stop")
    assert stop["cause"] in ("SIGUSR1", "SIGTERM", "another rank was asked")


@pytest.mark.parametrize("agent", ["torchrun", "rank"])
@pytest.mark.parametrize("way", ["USR1", "preempted"])
def test_a_stopped_job_is_requeued_and_goes_on(slurm: Cluster, tmp_path: Path, way: str, agent: str) -> None:
    data = data_of(tmp_path, 2, train={"steps": 40})
    control = control_of(tmp_path, data)
    number = submit(slurm, tmp_path, data, agent=agent, partition="spot", max_restarts=int(agent == "torchrun"))
    goes_on(slurm, tmp_path, number, 3)
    if way == "USR1":
        slurm.run("scancel", "--signal=USR1", str(number))
    else:
        urgent = ["--partition=urgent", "--nodes=5", "--exclusive", "--wrap=sleep 3", "--output=/dev/null"]
        slurm.run("sbatch", *urgent, cwd=tmp_path)
    slurm.wait(lambda: slurm.job(number)["Restarts"] == "1", 90, f"a requeue: {log_of(tmp_path)[-3000:]}")
    slurm.skip_hold(number)
    job = slurm.wait_for_state(number, "COMPLETED", "FAILED", "CANCELLED")
    assert job["JobState"] == "COMPLETED", log_of(tmp_path)
    assert bits(tmp_path / "out") == bits(control)
    (stop,) = events(tmp_path / "out", "stop")
    assert 3 < stop["step"] < 40
    assert [event["restarts"] for event in events(tmp_path / "out", "resume")] == [1]


def test_the_time_limit_itself(slurm: Cluster, tmp_path: Path) -> None:
    """USR1 comes 35 s before the end of a minute; nobody sends it but Slurm."""
    data = data_of(tmp_path, 2, train={"steps": 800})
    number = submit(slurm, tmp_path, data, agent="rank", time_limit="1", save_before_s=35)
    slurm.wait(lambda: slurm.job(number)["Restarts"] == "1", 90, f"a requeue: {log_of(tmp_path)[-3000:]}")
    slurm.run("scancel", str(number))
    (stop,) = events(tmp_path / "out", "stop")
    assert stop["cause"] in ("SIGUSR1", "time limit")
    assert (tmp_path / "out" / "checkpoints" / f"step-{stop['step']:08d}" / "COMMIT").exists()


def test_an_array_is_a_chain(slurm: Cluster, tmp_path: Path) -> None:
    data = data_of(tmp_path, 2, train={"steps": 40})
    control = control_of(tmp_path, data)
    number = submit(slurm, tmp_path, data, agent="rank", options=["--array=1-2%1"])
    goes_on(slurm, tmp_path, number, 3)
    slurm.run("scancel", "--signal=USR1", f"{number}_1")
    slurm.wait(lambda: bool(events(tmp_path / "out", "finish")), 120, log_of(tmp_path)[-3000:])
    assert bits(tmp_path / "out") == bits(control)


def test_slurm_checks_a_script_and_starts_nothing(slurm: Cluster, tmp_path: Path) -> None:
    write_run(tmp_path, merge(data_of(tmp_path, 4), {"launch": SITE}))
    command = [sys.executable, "-m", "scalewright", "launch", "slurm", "run.yaml", "--dry-run"]
    before = jobs(slurm)
    slurm.run(*command, cwd=tmp_path)
    with pytest.raises(RuntimeError, match="Requested node configuration is not available"):
        slurm.run(*command, "layout.devices=16", "layout.global_batch=16", cwd=tmp_path)
    assert jobs(slurm) <= before


def test_plain_srun_needs_no_exports(slurm: Cluster, tmp_path: Path) -> None:
    """`srun python -m scalewright train run.yaml`: a task a rank, and a task a node."""
    data = data_of(tmp_path, 1, train={"steps": 8}, loss={"pause": 0.0})
    write_run(tmp_path, data)
    train = [sys.executable, "-m", "scalewright", "train", "run.yaml"]
    lo = {"GLOO_SOCKET_IFNAME": "lo"}
    slurm.run("srun", "-N1", "-n2", *train, cwd=tmp_path, environ=lo)
    assert bits(tmp_path / "out") == bits(control_of(tmp_path, data))
    two = tmp_path / "two"
    data = data_of(two, 2, train={"steps": 8}, loss={"pause": 0.0}, launch={"preflight": "warn"})
    write_run(two, data)
    spread = ["srun", "-N2", "-n2", "--ntasks-per-node=1"]
    with pytest.raises(RuntimeError, match=r"n1, where the ranks are to meet, has no address here"):
        slurm.run(*spread, *train, cwd=two, environ=lo)
    slurm.run(*spread, *train, cwd=two, environ={**lo, "MASTER_ADDR": "127.0.0.1"})
    assert bits(two / "out") == bits(control_of(two, data))


def test_torchrun_in_each_task_is_refused(slurm: Cluster, tmp_path: Path) -> None:
    write_run(tmp_path, data_of(tmp_path, 1))
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["srun", "-N1", "-n2", *agent, "-m", "scalewright", "train", "run.yaml"]
    with pytest.raises(RuntimeError, match=r"torchrun says rank . of 2.*Slurm says rank . of 2.*a task per GPU"):
        slurm.run(*command, cwd=tmp_path)
