"""`doctor`: an examination in one JSON document, or as a page."""

from __future__ import annotations

import pytest


def test_json(call_cli, tmp_path):
    answer = call_cli("doctor", "--json", "--no-measure", "--folder", tmp_path)
    assert answer.code == 0, answer.err
    found = answer.json()
    assert found["worst"] in {"ok", "note", "warn", "problem"}
    assert {"python", "cores"} <= {finding["name"] for finding in found["findings"]}


def test_the_environment_is_looked_at(run_cli):
    few = run_cli("doctor", "--json", "--no-measure", fresh=True, OMP_NUM_THREADS="1").json()
    many = run_cli("doctor", "--json", "--no-measure", fresh=True, OMP_NUM_THREADS="4096").json()
    assert threads(few) != threads(many)


def threads(found):
    return next(finding for finding in found["findings"] if finding["name"] == "threads")


def test_page(call_cli):
    out = call_cli("doctor", "--no-measure").out
    assert "python" in out
    assert "checks in" in out


RUN = "{model: gpt2, data: x, device: cpu, layout: {devices: 2}, checkpoint: {every: 9}}"


def test_a_start_is_looked_at(run_cli, tmp_path):
    (tmp_path / "run.yaml").write_text(RUN)
    clean = run_cli("doctor", "--launch", "run.yaml")
    assert (clean.code, clean.err) == (0, "")
    assert "ready: nothing to fix" in clean.out
    found = run_cli("doctor", "--launch", "run.yaml", "--json", GLOO_SOCKET_IFNAME="nosuch0", NCCL_TIMEOUT="9")
    assert found.code == 1  # a problem
    problem, warning, unasked = found.json()["findings"]
    assert (problem["name"], problem["severity"]) == ("gloo-interface", "problem")
    assert (warning["name"], warning["severity"]) == ("no-such-variable", "warn")
    assert warning["data"] == {"where": "environment", "source": warning["data"]["source"]}
    assert (unasked["name"], unasked["severity"]) == ("not asked", "note")


def test_a_machine_without_gpus_names_the_rules_that_it_did_not_ask(run_cli):
    """A login node: what NCCL's variables do can't be judged there, and that isn't `ready` without a word."""
    answer = run_cli("doctor", "--launch", "--json", NCCL_P2P_DISABLE="1", CUDA_LAUNCH_BLOCKING="1")
    (note,) = [finding for finding in answer.json()["findings"] if finding["name"] == "not asked"]
    assert "need GPUs" in note["what"]
    assert "need several nodes" in note["what"]
    assert len(note["data"]["rules"]) == int(note["what"].split()[0])
    text = run_cli("doctor", "--launch").out
    asked, unasked = int(text.rsplit("(", 1)[1].split()[0]), len(note["data"]["rules"])
    assert asked < unasked
    assert "ready" not in text
    assert f"nothing to fix among the {asked} rules that could be asked here; 34 need GPUs" in " ".join(text.split())
    assert (answer.json()["ready"], "compute node" in answer.json()["unasked"]) == (False, True)


@pytest.mark.parametrize(
    ("words", "unasked"),
    [
        (["--launch"], ("need GPUs", "need a run: name RUN.yaml", "need several ranks or nodes")),
        (["--launch", "run.yaml", "device=auto"], ("need GPUs",)),
        (["--launch", "run.yaml", "device=auto", "layout.devices=1"], ("need GPUs",)),
        (["--launch", "run.yaml"], ()),  # a CPU's
        (["--launch", "run.yaml", "--target", "slurm", "--nodes", "2"], ()),
        (["--no-measure"], ()),
    ],
)
def test_ready_is_said_where_all_that_matters_was_asked(run_cli, tmp_path, words, unasked):
    (tmp_path / "run.yaml").write_text(RUN)
    found = run_cli("doctor", *words, "--json").json()
    assert all(part in found["unasked"] for part in unasked), found["unasked"]
    assert found["unasked"].count("need") == len(unasked)
    if not unasked:
        assert found["ready"] == (found["worst"] != "problem")


def test_a_job_is_looked_at(run_cli, tmp_path):
    (tmp_path / "run.yaml").write_text(RUN)
    job = ("doctor", "--launch", "run.yaml", "--target", "slurm", "--nodes", "2")
    assert run_cli(*job, NCCL_DEBUG="INFO").code == 0  # of this machine, not of the job
    found = run_cli(*job, "launch.options=[--ntasks-per-node=8]")
    assert found.code == 1
    assert "tasks-in-options" in found.out
    assert "unknown target 'slrum'" in run_cli("doctor", "--launch", "run.yaml", "--target", "slrum").error
    assert "a job is made from a run file" in run_cli("doctor", "--launch", "--target", "slurm").error
    assert "add --launch" in run_cli("doctor", "run.yaml").error
