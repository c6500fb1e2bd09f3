"""Scripts of bash for Slurm, torchrun, mpirun and ssh: as expected, sound, and run with stand-ins."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.launch.targets.sites import hosts_job, local_job, slurm_job

from runs import wait_for
from scalewright.launch.job import LaunchJob
from scalewright.launch.targets import find_target
from scalewright.spec.errors import UserError

GOLDEN = Path(__file__).parent / "golden"
JOBS: dict[str, tuple[str, LaunchJob]] = {
    "local": ("local", local_job()),
    "slurm": ("slurm", slurm_job()),
    "slurm_rank": ("slurm", slurm_job(agent="rank", container="train.sif")),
    **{target: (target, hosts_job()) for target in ("torchrun", "mpi", "ssh")},
}
BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None or os.name == "nt", reason="bash isn't here")


def script(target: str, job: LaunchJob) -> str:
    """The text of the script itself."""
    return next(iter(find_target(target)(job).files.values()))


def joined(text: str) -> str:
    """The text with long commands on one line."""
    return text.replace(" \\\n  ", " ")


@pytest.mark.parametrize("name", JOBS)
def test_the_script_is_the_expected_one(name: str) -> None:
    target, job = JOBS[name]
    assert script(target, job) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


AWKWARD: list[dict[str, Any]] = [
    {},
    {"env": {"A": 'it\'s $HOME and "more"'}, "python": "/opt/my env/bin/python", "max_restarts": 2},
    {"workdir": "/a b/c", "options": ("--foo=1 2",), "cpus_per_rank": 4},
]


@needs_bash
@pytest.mark.parametrize("keys", AWKWARD)
@pytest.mark.parametrize("name", JOBS)
def test_bash_takes_it(name: str, keys: dict[str, Any]) -> None:
    target, _ = JOBS[name]
    make = {"slurm": slurm_job, "local": local_job}.get(target, hosts_job)
    job = make(**keys)
    checked = subprocess.run([str(BASH), "-n"], input=script(target, job), text=True, capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("target", ["slurm", "torchrun", "mpi", "ssh"])
def test_keys_without_a_word_are_named(target: str) -> None:
    job = slurm_job(queue="q", hosts=("a", "b", "c", "d"), rdma="rdma/ib", agent="rank", max_restarts=3)
    unused = find_target(target)(job).unused
    assert {"queue", "rdma"} <= set(unused)
    assert ("partition" in unused) == (target != "slurm")
    assert ("max_restarts" in unused) == (target in ("slurm", "mpi"))


def test_what_a_target_needs() -> None:
    with pytest.raises(UserError, match="2 machines aren't this one"):
        find_target("local")(hosts_job())
    with pytest.raises(UserError, match=r"the first of 2 machines has no name \(launch.hosts\)"):
        find_target("torchrun")(hosts_job(hosts=()))
    with pytest.raises(UserError, match="1 host for 2 nodes"):
        find_target("ssh")(hosts_job(hosts=("a",)))


# -- Slurm, with stand-ins for its commands -------------------------------------------------------------


def stand_in(folder: Path, name: str, body: str) -> None:
    """A command that writes what it was called with."""
    path = folder / name
    path.write_text(f'#!{BASH}\necho "{name} $*" >> "{folder}/calls"\n{body}\n')
    path.chmod(0o755)


def run_script(folder: Path, text: str, **environ: str) -> tuple[int, list[str]]:
    """Runs it with the stand-ins alone in front; exit code, and the calls."""
    done = subprocess.run(
        [str(BASH)], input=text, text=True, cwd=folder, timeout=60, capture_output=True,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "12345", **environ},
    )  # fmt: skip
    return done.returncode, (folder / "calls").read_text().splitlines()


@needs_bash
@pytest.mark.parametrize("agent", ["torchrun", "rank"])
@pytest.mark.parametrize(("code", "requeued"), [(75, True), (0, False), (1, False), (137, False)])
def test_a_job_that_saved_is_requeued(tmp_path: Path, agent: str, code: int, requeued: bool) -> None:
    job = slurm_job(agent=agent, workdir=None, modules=(), setup=())
    text = script("slurm", job).replace("SLURM_JOB_NODELIST", "HOME")
    stand_in(tmp_path, "srun", f"exit {code}")
    stand_in(tmp_path, "scontrol", "echo n1")
    got, calls = run_script(tmp_path, text)
    assert got == code
    assert ("scontrol requeue 12345" in calls) == requeued
    (srun,) = [call for call in calls if call.startswith("srun")]
    assert "--kill-on-bad-exit=0" in srun


@needs_bash
def test_a_node_starts_torchrun_with_its_number(tmp_path: Path) -> None:
    """What srun's tasks would run, run here as the third one."""
    text = script("slurm", slurm_job(workdir=None, modules=(), setup=(), python="my-python"))
    stand_in(tmp_path, "scontrol", "printf 'n3\\nn4\\n'")
    stand_in(tmp_path, "my-python", "exit 0")
    stand_in(tmp_path, "srun", 'SLURM_PROCID=2 "${@:3}"')
    _, calls = run_script(tmp_path, text, SLURM_JOB_NODELIST="n[3-4]")
    (agent,) = [call for call in calls if call.startswith("my-python")]
    assert agent.startswith("my-python -m scalewright.launch.agent --nnodes 4 --node-rank 2 ")
    assert "--master-addr n3 --master-port 22345" in agent
    assert agent.endswith("-m scalewright train run.yaml layout.tp=8")


@needs_bash
def test_in_an_array_the_next_task_goes_on(tmp_path: Path) -> None:
    text = script("slurm", slurm_job(agent="rank", options=("--array=1-10%1",), modules=(), setup=(), workdir=None))
    assert "#SBATCH --array=1-10%1\n" in text
    stand_in(tmp_path, "srun", "exit 75")
    stand_in(tmp_path, "scontrol", "")
    code, calls = run_script(tmp_path, text)
    assert code == 0
    assert not [call for call in calls if "requeue" in call]


def test_containers_of_slurm() -> None:
    text = joined(script("slurm", slurm_job(container="a.sqsh", mounts=("/data:/data", "/home:/home"))))
    assert "--container-image=a.sqsh --container-mounts=/data:/data,/home:/home" in text
    text = joined(script("slurm", slurm_job(container="a.sif", mounts=("/data:/data",))))
    assert "apptainer exec --nv --bind=/data:/data a.sif bash -c" in text


# -- mpirun, with stand-ins ----------------------------------------------------------------------------

MPIRUN = """
case $1 in --version) echo "{version}"; exit 0;; esac
trap '' INT TERM
while [ ! -e out/STOP ]; do sleep 0.05; done
rm out/STOP
exit 75
"""


def hear_interrupts() -> None:
    """A shell in the background, as under nohup, is started with SIGINT ignored, and can't trap it then."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


VERSIONS = [("mpirun (Open MPI) 4.1.4", "--hostfile"), ("mpirun.openmpi (OpenRTE) 4.1.4", "--hostfile"),
            ("HYDRA", "-f ")]  # fmt: skip


@needs_bash
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
@pytest.mark.parametrize(("version", "word"), VERSIONS)
def test_a_signal_becomes_a_file_that_rank_zero_sees(tmp_path: Path, version: str, word: str, name: str) -> None:
    job = hosts_job(setup=())
    files = find_target("mpi")(LaunchJob(job.name, 2, 8, job.site, "run.yaml", (), "cpu", "out")).files
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    stand_in(tmp_path, "mpirun", MPIRUN.format(version=version))
    if name == "SIGUSR1":  # a shell on a busy machine, which mpirun leaves before it waits again
        stand_in(tmp_path, "touch", '/usr/bin/env -i touch "$@"; sleep 0.5')
    process = subprocess.Popen(
        [str(BASH), "My-Run.mpi.sh"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        start_new_session=True,
        preexec_fn=hear_interrupts,
    )
    try:
        (tmp_path / "calls").touch()
        wait_for(lambda: "mpirun -np" in (tmp_path / "calls").read_text(), 20, "mpirun")
        process.send_signal(signal.Signals[name])
        assert process.wait(20) == 75
    finally:
        process.kill()
    (call,) = [line for line in (tmp_path / "calls").read_text().splitlines() if "-np" in line]
    assert word in call
    assert not (tmp_path / "out" / "STOP").exists()


def test_hosts_in_the_form_of_each_mpirun() -> None:
    files = find_target("mpi")(hosts_job()).files
    texts = {name.partition(".")[2]: text for name, text in files.items()}
    assert texts["openmpi.hosts"] == "node-a slots=8\nnode-b slots=8\n"
    assert texts["mpich.hosts"] == "node-a:8\nnode-b:8\n"
