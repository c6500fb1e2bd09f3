"""TensorBoard, MLflow and W&B through real short runs with no network; a resume goes on there."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from runs import bits, events, rows, run, run_data

ALL = {"tensorboard": True, "mlflow": True, "wandb": True}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """Six steps, and after a stop four more, to all three trackers."""
    for package in ("tensorboard", "mlflow", "wandb"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("tracked")
    data = run_data(
        folder,
        track=ALL,
        layout={"micro_batch": 8},
        train={"steps": 10, "valid_every": 5, "valid_batches": 1},
        checkpoint={"at_end": True},
    )
    run(data, steps=6)
    run(data)
    assert events(folder / "out", "tracker") == []  # none was switched off
    return folder / "out"


def test_metrics_are_those_of_an_untracked_run(tracked, tmp_path):
    data = run_data(tmp_path, layout={"micro_batch": 8}, train={"steps": 10, "valid_every": 5, "valid_batches": 1})
    assert bits(run(data).out_dir) == bits(tracked)


def test_tensorboard(tracked):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tracked / "tensorboard"))
    found.Reload()
    losses = {event.step: event.value for event in found.Scalars("train/loss")}
    assert losses == pytest.approx({row["step"]: row["loss"] for row in rows(tracked)}, rel=1e-6)
    assert {event.step for event in found.Scalars("valid/loss")} == {5, 10}


def test_mlflow(tracked):
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{tracked.parent / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if client.search_runs([e.experiment_id])]
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert {m.step: m.value for m in history} == {row["step"]: row["loss"] for row in rows(tracked)}
    assert found.info.status == "FINISHED"
    assert found.data.params["layout.micro_batch"] == "8"


def test_wandb(tracked):
    """Offline: what lies there is what `wandb sync` sends, under one id for both calls."""
    folders = sorted((tracked / "wandb").glob("offline-run-*"))
    assert len(folders) == 2
    assert all(list(folder.glob("run-*.wandb")) for folder in folders)
    ids = json.loads((tracked / "trackers.json").read_text())
    # in the name of both; the second of one second gets a number after it
    assert all(f"-{ids['wandb']['run_id']}" in folder.name for folder in folders)


def test_a_broken_tracker_stops_nothing(tmp_path):
    """MLflow can't open its database: an event says so, and the run is as without it."""
    pytest.importorskip("mlflow")
    (tmp_path / "mlflow.db").write_text("this is no database")
    began = time.monotonic()
    result = run(run_data(tmp_path, track={"mlflow": True}, train={"steps": 3}))
    assert result.step == 3
    assert len(rows(result.out_dir)) == 3
    last = events(result.out_dir, "tracker")[-1]
    assert last["name"] == "mlflow"
    assert "switched off" in last["error"]
    assert time.monotonic() - began < 60


def test_a_tracker_that_is_not_installed(tmp_path, monkeypatch):
    import importlib.util

    from scalewright.spec.errors import UserError

    usual = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "wandb" else usual(n, *a))
    with pytest.raises(
        UserError, match=r"wandb is not installed .*pip install -e '\.\[track\]'` in scalewright's checkout"
    ):
        run(run_data(Path(tmp_path), track={"wandb": True}))
