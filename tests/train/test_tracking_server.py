"""A real MLflow server that hangs, and that is killed, in the middle of a run: neither slows nor stops it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runs import bits, events, rows, run, run_data, wait_for
from scalewright.data.batch import Batch

STEPS, GATE = 12, 5  # the data of the steps after GATE come when the test lets them


@dataclass
class Gated:
    """Random sequences; those of the steps after GATE wait for a file."""

    gate: str
    batch_size: int = 8
    seq_len: int = 16

    def __len__(self) -> int:
        return 10_000

    def batch(self, indices: Any) -> Batch:
        """Samples by their numbers."""
        if max(indices) >= GATE * self.batch_size:
            wait_for(Path(self.gate).exists, 120, "the gate")
        tokens = np.stack([np.random.default_rng(int(i)).integers(1, 67, self.seq_len + 1) for i in indices])
        return Batch(
            tokens[:, :-1],
            tokens[:, 1:],
            np.zeros((len(tokens), self.seq_len), np.int64),
            np.tile(np.arange(self.seq_len), (len(tokens), 1)),
            np.asarray(indices),
        )


@dataclass
class Server:
    """An MLflow server of this test's own, and its database."""

    process: subprocess.Popen[bytes]
    uri: str
    database: Path

    def runs(self) -> list[tuple[str, str]]:
        """(experiment, status) of every run that it has."""
        with sqlite3.connect(self.database) as store:
            return store.execute(
                "SELECT e.name, r.status FROM runs r JOIN experiments e ON r.experiment_id = e.experiment_id"
            ).fetchall()

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("mlflow")
    if not hasattr(os, "killpg"):
        pytest.skip("no process groups here")
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    options += ["--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder)]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *options],
            cwd=folder, start_new_session=True, stdout=log, stderr=log,
        )  # fmt: skip
    found = Server(process, f"http://127.0.0.1:{port}", folder / "server.db")

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            return bool(urllib.request.urlopen(f"{found.uri}/health", timeout=1).status == 200)
        except OSError:
            return False

    try:
        wait_for(answers, 240, "MLflow's server")
        yield found
    finally:
        if process.poll() is None:
            found.signal(signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def train_while(folder: Path, server: Server, act: Callable[[], None]) -> tuple[Path, float]:
    """A run of STEPS steps, in the middle of which `act` is done; its folder, and seconds after the gate."""
    gate = folder / "gate"
    folder.mkdir()
    data = run_data(folder, track={"mlflow": True}, train={"steps": STEPS})
    data["data"] = {"python": f"{__name__}:Gated", "gate": str(gate), "seq_len": 16}
    before = len(server.runs())
    opened: list[float] = []

    def watch() -> None:
        wait_for(lambda: len(server.runs()) > before, 110, "the run to be in MLflow")
        act()
        opened.append(time.monotonic())
        gate.touch()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    result = run(data)
    thread.join()
    assert result.step == STEPS
    return Path(result.out_dir), time.monotonic() - opened[0]


def test_a_server_that_never_answers_holds_no_run_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections and says nothing; the run's key wins over the variable."""
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/not-this.db")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")  # 10 s, where nobody says so
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        data = run_data(tmp_path, track={"mlflow": {"uri": uri}}, train={"steps": STEPS})
        result = run(data)
    assert len(rows(result.out_dir)) == STEPS
    assert events(result.out_dir, "finish")
    last = events(result.out_dir, "tracker")[-1]
    assert f"{STEPS} rows are in metrics.jsonl alone" in last["error"]
    assert not (tmp_path / "not-this.db").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_outlives_its_server(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME, which the first run goes to whole."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "sweeps")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    quiet, usual = train_while(tmp_path / "healthy", server, lambda: None)
    assert events(quiet, "tracker") == []
    assert server.runs() == [("sweeps", "FINISHED")]
    assert not (tmp_path / "mlflow.db").exists()

    hung, with_hang = train_while(tmp_path / "hung", server, lambda: server.signal(signal.SIGSTOP))
    server.signal(signal.SIGCONT)
    killed, with_kill = train_while(tmp_path / "killed", server, lambda: server.signal(signal.SIGKILL))
    for folder in (hung, killed):
        assert bits(folder) == bits(quiet)  # every row, once, and the same numbers
        assert len(rows(folder)) == STEPS
        last = events(folder, "tracker")[-1]
        assert last["name"] == "mlflow"
        assert "rows are in metrics.jsonl alone" in last["error"]
        assert events(folder, "finish")
    # MLflow's own patience, 7 tries of 2 minutes, would have held the end up for 30 s: the limit of `close`.
    assert with_hang < usual + 28
    assert with_kill < usual + 28
