"""`train` on the command line: signals, torchrun, one JSON document from any number of ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from scalewright.spec.errors import Stopped

MODEL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A tiny run on random tokens."""
    np.save(tmp_path / "tokens.npy", np.random.default_rng(0).integers(0, 64, 5000).astype(np.uint16))
    run = {
        "name": "tiny",
        "out_dir": "out",
        "device": "cpu",
        "model": MODEL,
        "layout": {"global_batch": 4, "precision": "fp32"},
        "data": {"train": str(tmp_path / "tokens.npy"), "seq_len": 16},
        "train": {"steps": 3},
    }
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(run))
    return path


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts commands, each with a session of its own; what is left of one when the test ends is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(folder: Path, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def wait_for_steps(metrics: Path, count: int, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if metrics.exists() and metrics.read_text().count("\n") >= count:
            return
        time.sleep(0.05)
    pytest.fail(f"no {count} steps within {seconds} s")


@pytest.mark.slow  # launch/test_stops.py has one of each by default
@pytest.mark.parametrize(("number", "devices"), [(signal.SIGTERM, 1), (signal.SIGTERM, 2), (signal.SIGINT, 2)])
def test_a_signal_saves_and_gives_75(tmp_path, run_file, run_cli, number, devices, start):
    process = start(tmp_path, "-m", "scalewright", "train", run_file, "train.steps=100000", f"layout.devices={devices}")
    wait_for_steps(tmp_path / "out" / "metrics.jsonl", 3)
    os.killpg(process.pid, number)  # as Slurm, systemd and a terminal do: every process of the job gets it
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert "Traceback" not in err
    saved = run_cli("checkpoint", "ls", tmp_path / "out", "--json").json()[0]
    assert saved["state"] == "complete"
    more = run_cli("train", run_file, f"train.steps={saved['step'] + 2}", "--json")
    assert more.code == 0, more.err
    assert more.json()["resumed_from"] == saved["step"]


def test_one_json_document_from_local_workers(run_cli, run_file):
    answer = run_cli("train", run_file, "layout.devices=2", "--json")
    assert answer.code == 0, answer.err
    assert answer.json()["step"] == 3


@pytest.mark.slow
def test_one_json_document_under_torchrun(tmp_path, run_file, start):
    process = start(
        tmp_path,
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        "-m", "scalewright", "train", run_file, "layout.devices=2", "--json",
    )  # fmt: skip
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out)["step"] == 3


def test_steps_stops_early_and_the_next_call_goes_on(run_cli, run_file):
    assert run_cli("train", run_file, "--steps", 2, "--json").json()["step"] == 2
    more = run_cli("train", run_file, "--json").json()
    assert (more["resumed_from"], more["step"]) == (2, 3)


def test_a_run_that_cannot_fit_is_refused_unless_the_check_is_off(call_cli, run_file, tmp_path, monkeypatch):
    """`sw.train` and the demo start runs as the command does, by way of `scalewright.api.train`."""
    monkeypatch.setattr("scalewright.dry_run.fits_here.free_memory", lambda *_: 1.0)
    place = f"out_dir={tmp_path / 'out'}"
    answer = call_cli("train", run_file, place)
    assert answer.code == 2
    assert "are free on this machine" in answer.error
    assert "--no-memory-check starts it all the same" in answer.error
    assert not (tmp_path / "out").exists()
    assert call_cli("train", run_file, place, "--no-memory-check", "--json").json()["step"] == 3


def test_more_devices_than_there_are_names_the_launch_command(run_cli, run_file):
    answer = run_cli("train", run_file, "layout.devices=4096", "layout.global_batch=4096", "device=auto")
    assert answer.code == 2
    assert "torchrun" in answer.error
    assert "--simulate" in answer.error


@pytest.mark.parametrize(("rank", "lines"), [(0, ["stopped at step 5 of 20 and saved"]), (1, [])])
def test_ranks_of_torchrun_that_stop_print_it_once(call_cli, tmp_path, monkeypatch, rank, lines):
    """All ranks leave with the same exit code."""

    def stopped(*arguments, **keywords):
        raise Stopped("stopped at step 5 of 20 and saved")

    monkeypatch.setattr("scalewright.train.run.train", stopped)
    place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}
    for key, value in place.items():
        monkeypatch.setenv(key, str(value))
    (tmp_path / "run.yaml").write_text("")
    answer = call_cli("train", tmp_path / "run.yaml")
    assert answer.code == 75
    assert answer.err.splitlines() == lines
