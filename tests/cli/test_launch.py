"""`scalewright launch`: prints, writes or starts what a target made of a run file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from scalewright.launch.targets import TARGETS, find_target

RUN = """\
name: tiny
model: llama-3.2-1b
data: data/text
layout: {devices: 16, tp: 8}
launch: {hosts: [node-a, node-b], container: registry.example/img:1, claims: {data: /data}, workdir: /data}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(RUN)
    return Path("run.yaml")


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_prints_the_same_twice(call_cli, run: Path, target: str) -> None:
    gpu = "launch.gpu=NVIDIA H100 80GB HBM3" if target == "runpod" else "launch.gpu=H100"
    more = [gpu] if target in ("skypilot", "dstack", "runpod") else []
    first = call_cli("launch", target, run, *more, "--print")
    assert first.code == 0, first.err
    assert "tiny" in first.out
    assert call_cli("launch", target, run, *more, "--print").out == first.out
    assert sorted(path.name for path in Path().iterdir()) == ["run.yaml"]


def test_the_table_of_targets_is_that_of_the_folder() -> None:
    for name in TARGETS:
        assert callable(find_target(name))


def test_it_writes_beside_the_run_file_and_says_how_to_start(call_cli, run: Path) -> None:
    answer = call_cli("launch", "slurm", run, "layout.pp=2")
    assert answer.code == 0
    assert "start it with: sbatch tiny.slurm" in answer.err
    assert "not used: launch.claims" in answer.err
    assert "run.yaml layout.pp=2" in Path("tiny.slurm").read_text()
    assert call_cli("launch", "slurm", run).code == 0  # replaced, as it wrote it
    Path("tiny.slurm").write_text("mine\n")
    assert call_cli("launch", "slurm", run).code == 2
    assert call_cli("launch", "slurm", run, "--out", "jobs").code == 0
    assert Path("jobs/tiny.slurm").exists()


def test_it_says_what_looks_wrong(call_cli, run: Path) -> None:
    clean = ("launch.cpus_per_rank=8", "checkpoint.every=500")
    assert "warn: no cores are asked for" in call_cli("launch", "slurm", run, "--print").err
    err = call_cli("launch", "slurm", run, *clean, "--print").err
    assert not [line for line in err.splitlines() if line.startswith(("warn:", "problem:"))]
    tasks = "launch.options=[--ntasks-per-node=8]"
    answer = call_cli("launch", "slurm", run, *clean, tasks)
    assert answer.code == 0
    assert "problem: --ntasks-per-node=8 replaces what the script asks for" in answer.err
    job = ("launch", "slurm", run, *clean, tasks)
    (found,) = call_cli(*job, "--json").json()["preflight"]
    assert (found["rule"], found["severity"]) == ("tasks-in-options", "problem")
    assert call_cli(*job, "launch.preflight=off", "--json").json()["preflight"] == []
    refused = call_cli(*job, "--submit")
    assert refused.code == 2
    assert "launch.preflight=warn starts it all the same" in refused.error


def test_one_document_for_programs(call_cli, run: Path) -> None:
    document = call_cli("launch", "mpi", run, "--print", "--json").json()
    assert set(document["files"]) == {"tiny.mpi.sh", "tiny.openmpi.hosts", "tiny.mpich.hosts"}
    assert (document["nodes"], document["per_node"], document["paths"]) == (2, 8, {})
    assert document["command"] == ["bash", "tiny.mpi.sh"]
    assert document["exit_code"] is None


@pytest.mark.skipif(sys.platform == "win32", reason="a stand-in of shell")
@pytest.mark.parametrize(
    ("flag", "words"), [("--submit", "jobs/tiny.slurm"), ("--dry-run", "--test-only jobs/tiny.slurm")]
)
def test_it_is_handed_to_the_scheduler(
    call_cli, run: Path, monkeypatch: pytest.MonkeyPatch, flag: str, words: str
) -> None:
    stand_in = Path("bin/sbatch")
    stand_in.parent.mkdir()
    stand_in.write_text('#!/bin/sh\necho "Submitted: $*"\nexit 3\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{Path('bin').absolute()}{os.pathsep}{os.environ['PATH']}")
    answer = call_cli("launch", "slurm", run, flag, "--out", "jobs")
    assert (answer.code, answer.out) == (3, f"Submitted: {words}\n")
    document = call_cli("launch", "slurm", run, flag, "--out", "jobs", "--json").json()
    assert document["exit_code"] == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["slurmm"], "unknown target 'slurmm' (scalewright launch): did you mean 'slurm'?"),
        (["torchrun", "--submit"], "torchrun isn't started from here"),
        (["ssh", "--dry-run"], "ssh has no check of its own"),
        (["slurm", "--print", "--submit"], "give one of them"),
        (["slurm", "--nodes", "3"], "3 nodes of 6 ranks aren't the 16 of layout.devices"),
        (["slurm", "--profile", "none.yaml"], "none.yaml"),
    ],
)
def test_mistakes_are_one_line(call_cli, run: Path, arguments: list[str], words: str) -> None:
    target, *flags = arguments
    answer = call_cli("launch", target, run, *flags)
    assert answer.code == 2
    assert words in answer.err.strip().splitlines()[-1]
