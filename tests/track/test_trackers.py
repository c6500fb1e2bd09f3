"""The copies in other tools are real: read back by those tools, continued by a resume."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from scalewright.spec.base import to_yaml
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec
from scalewright.track import tracker as tracker_module
from scalewright.track.attach import attach
from scalewright.track.events import EventsFile
from scalewright.track.fanout import Fanout, open_trackers
from scalewright.track.tracker import Target, flatten, scalars

ENVIRONMENT = {"versions": {"torch": "2.13.0"}, "git": {"commit": "abc123", "branch": "main", "dirty": True}}


def run_spec(folder: Path, lr: float = 3e-4, **track: Any) -> RunSpec:
    data = {"name": "tiny", "out_dir": str(folder), "model": "llama-tiny", "data": {"train": "shards"}}
    return RunSpec.parse({**data, "optimizer": {"lr": lr}, "track": track})


def a_life(spec: RunSpec, folder: Path, first: int, last: int, status: str = "finished") -> None:
    """Steps `first`..`last` of a run; first > 1 is a resume."""
    events = EventsFile(folder / "events.jsonl")
    trackers = open_trackers(spec, folder, environment=ENVIRONMENT, resume_step=first - 1)
    fanout = Fanout(trackers, events, every_s=0.1)
    for step in range(first, last + 1):
        fanout.log({"kind": "train", "step": step, "loss": 10.0 / step, "lr": 1e-3, "mfu": None})
    fanout.log({"kind": "valid", "step": last, "loss": 2.0, "bits_per_byte": 1.5})
    fanout.event({"time": 1.0, "kind": "save", "step": last})
    (folder / "run.yaml").write_text("name: tiny\n")
    assert fanout.close(status, [folder / "run.yaml"], timeout_s=60)  # type: ignore[arg-type]
    assert read_jsonl(events.path) == []  # nothing was switched off


def test_mlflow_has_the_metrics_and_a_resume_continues_the_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    store = tmp_path
    tmp_path = tmp_path / "first"
    a_life(run_spec(tmp_path, mlflow=True), tmp_path, 1, 5, "stopped")
    a_life(run_spec(tmp_path, lr=1e-4, mlflow=True), tmp_path, 6, 8)

    with sqlite3.connect(store / "mlflow.db") as database:  # the file itself, not MLflow's word for it
        runs = database.execute("SELECT run_uuid, status, name FROM runs").fetchall()
        losses = database.execute("SELECT step, value FROM metrics WHERE key = 'train/loss' ORDER BY step").fetchall()
        params = dict(database.execute("SELECT key, value FROM params").fetchall())
        tags = dict(database.execute("SELECT key, value FROM tags").fetchall())
        keys = {key for (key,) in database.execute("SELECT DISTINCT key FROM metrics")}
    assert len(runs) == 1
    assert runs[0][1:] == ("FINISHED", "tiny")
    assert losses == [(step, 10.0 / step) for step in range(1, 9)]
    assert keys == {"train/loss", "train/lr", "valid/loss", "valid/bits_per_byte"}
    assert params["optimizer.lr"] == "0.0003"
    assert params["layout.zero_stage"] == "0"
    assert tags["resumed.optimizer.lr"] == "0.0001"
    assert tags["versions.torch"] == "2.13.0"
    assert tags["mlflow.source.git.commit"] == "abc123"
    assert tags["event.save"] == "step 8"
    artifacts = store / "mlartifacts" / "scalewright" / runs[0][0] / "artifacts"
    assert (artifacts / "run.yaml").is_file()
    assert json.loads((tmp_path / "trackers.json").read_text())["mlflow"]["run_id"] == runs[0][0]
    assert not (Path.cwd() / "mlruns").exists()

    report = tmp_path / "report.html"
    report.write_text("<!doctype html>")
    assert attach(tmp_path, [report])  # made when the run had ended
    assert (artifacts / "report.html").is_file()
    assert not attach(tmp_path, [tmp_path / "absent.html"])
    (event,) = read_jsonl(tmp_path / "events.jsonl")
    assert "could not attach" in event["error"]

    # A second run beside the first is in the same store and experiment, unless it names another.
    other = store / "second"
    a_life(run_spec(other, mlflow={"experiment": "ablation"}), other, 1, 2)
    with sqlite3.connect(store / "mlflow.db") as database:
        names = database.execute(
            "SELECT e.name FROM runs r JOIN experiments e ON r.experiment_id = e.experiment_id"
        ).fetchall()
    assert sorted(names) == [("ablation",), ("scalewright",)]


def test_mlflow_takes_a_store_of_plain_files(tmp_path: Path) -> None:
    """MLflow 3 refuses such a store unless a variable allows it; a run file that names one has said so."""
    pytest.importorskip("mlflow")
    before, uri = dict(os.environ), (tmp_path / "mlruns").as_uri()
    a_life(run_spec(tmp_path / "run", mlflow={"uri": uri}), tmp_path / "run", 1, 3)
    (losses,) = (tmp_path / "mlruns").glob("*/*/metrics/train/loss")
    assert len(losses.read_text().splitlines()) == 3
    assert dict(os.environ) == before


def test_ids_that_trackers_leave_at_the_same_time_are_all_kept(tmp_path: Path, monkeypatch: Any) -> None:
    """Two threads read the file before either has written it: a lost id would be a second run on a resume."""
    target = Target("tiny", tmp_path, {}, resume_step=1)
    read = tracker_module._ids

    def slowly(folder: Path) -> dict[str, Any]:
        ids = read(folder)
        time.sleep(0.2)
        return ids

    monkeypatch.setattr(tracker_module, "_ids", slowly)
    threads = [threading.Thread(target=target.remember, args=(name,), kwargs={"run_id": name}) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [target.remembered(name) for name in "ab"] == [{"run_id": "a"}, {"run_id": "b"}]


def test_ids_are_read_while_another_tracker_leaves_its_own(tmp_path: Path) -> None:
    """A file that is emptied before it is written would be read as one without ids: a second MLflow run."""
    target = Target("tiny", tmp_path, {}, resume_step=1)
    target.remember("mlflow", run_id="first")
    missing: list[dict[str, Any]] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            if target.remembered("mlflow") != {"run_id": "first"}:
                missing.append(target.remembered("mlflow"))

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(200):
        target.remember("wandb", run_id=f"{turn}")
    done.set()
    reader.join()
    assert missing == []


def test_mlflow_has_one_run_where_the_answer_to_its_start_was_lost(tmp_path: Path, monkeypatch: Any) -> None:
    """A slow server makes the run and answers too late: the next attempt goes on with that one."""
    mlflow = pytest.importorskip("mlflow")
    create = mlflow.MlflowClient.create_run
    calls: list[int] = []

    def answers_too_late(client: Any, *arguments: Any, **keywords: Any) -> Any:
        calls.append(1)
        create(client, *arguments, **keywords)
        raise TimeoutError("no answer within 10 s")

    monkeypatch.setattr(mlflow.MlflowClient, "create_run", answers_too_late)
    (tracker,) = open_trackers(run_spec(tmp_path, mlflow=True), tmp_path)
    with pytest.raises(TimeoutError):
        tracker.start()
    tracker.start()
    tracker.finish("finished", [])
    assert calls == [1]
    with sqlite3.connect(tmp_path.parent / "mlflow.db") as database:
        assert database.execute("select count(*) from runs").fetchone() == (1,)


def test_a_broken_mlflow_store_is_an_event_not_an_end(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    (tmp_path / "mlflow.db").write_bytes(b"this is no database" * 100)
    folder = tmp_path / "run"
    events = EventsFile(folder / "events.jsonl")
    trackers = open_trackers(run_spec(folder, mlflow=True), folder)
    fanout = Fanout(trackers, events, every_s=0.1)
    fanout.log({"kind": "train", "step": 1, "loss": 1.0})
    assert fanout.close(timeout_s=120)
    found = read_jsonl(events.path)
    assert {(event["kind"], event["name"]) for event in found} == {("tracker", "mlflow")}
    assert "switched off" in found[-1]["error"]


def test_a_dead_server_leaves_no_password_and_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "7")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "false")
    before = dict(os.environ)
    spec = run_spec(tmp_path, mlflow={"uri": "http://me:secret@127.0.0.1:9"})
    (tmp_path / "run.yaml").write_text(to_yaml(spec.dump()))
    events, told = EventsFile(tmp_path / "events.jsonl"), []
    fanout = Fanout(open_trackers(spec, tmp_path), events, every_s=0.1, tell=told.append)
    fanout.close(timeout_s=120)
    (tmp_path / "events.jsonl").unlink()  # so that the server is asked once more
    (tmp_path / "trackers.json").write_text(json.dumps({"mlflow": {"run_id": "x"}}))
    assert not attach(tmp_path, [tmp_path / "run.yaml"])
    found = [event["error"] for event in read_jsonl(events.path)]
    assert "127.0.0.1" in told[-1]
    assert "127.0.0.1" in found[-1]
    assert "secret" not in json.dumps([*told, *found])
    assert dict(os.environ) == before


def test_tensorboard_has_the_metrics_of_both_lives(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("torch")
    spec = run_spec(tmp_path, tensorboard=True)
    a_life(spec, tmp_path, 1, 5)
    a_life(spec, tmp_path, 4, 8)  # steps 4 and 5 were lost with the first life's last checkpoint
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    losses = [(point.step, point.value) for point in found.Scalars("train/loss")]
    assert losses == [(step, pytest.approx(10.0 / step)) for step in range(1, 9)]
    assert [point.step for point in found.Scalars("valid/bits_per_byte")][-1] == 8


def test_wandb_records_offline_without_a_key(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    a_life(run_spec(tmp_path, wandb=True), tmp_path, 1, 3)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    run_id = json.loads((tmp_path / "trackers.json").read_text())["wandb"]["run_id"]
    assert folder.name.endswith(run_id)
    (record,) = folder.glob("*.wandb")
    deadline = time.monotonic() + 20  # W&B's own process writes the file, a moment after the run's end
    while b"valid/bits_per_byte" not in record.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert b"valid/bits_per_byte" in record.read_bytes()
    assert (folder / "files" / "run.yaml").read_text() == "name: tiny\n"


def test_a_missing_library_is_said_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("mlflow", "tensorboard", "wandb"):
        with pytest.raises(UserError, match=r"\[track\]"):
            open_trackers(run_spec(tmp_path, **{name: True}), tmp_path)
    assert open_trackers(run_spec(tmp_path), tmp_path) == []
    assert not attach(tmp_path, [])  # no tracker, nothing to attach to


def test_scalars_leave_out_what_is_no_number() -> None:
    row = {"kind": "train", "step": 3, "loss": 1.5, "mfu": None, "grad_norm": float("inf"), "sample_ids_hash": "9f"}
    assert scalars(row) == {"train/loss": 1.5}


def test_flatten_gives_text_under_dotted_keys() -> None:
    assert flatten({"a": {"b": {"c": True}}, "d": [1, {"e": 2}], "f": "text", "g": 1e-8}) == {
        "a.b.c": "true", "d": '[1, {"e": 2}]', "f": "text", "g": "1e-08",
    }  # fmt: skip
