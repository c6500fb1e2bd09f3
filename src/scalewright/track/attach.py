"""Files that are made when a run has ended, such as its report, for the trackers that still take them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from scalewright.spec.base import read_yaml
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.tracking import TrackSpec
from scalewright.track.events import EventsFile
from scalewright.track.store import describe_error, find_store
from scalewright.track.tracker import remembered

PATIENCE_S = 15.0


def attach(folder: Path, files: Sequence[Path], variables: Mapping[str, str] | None = None) -> bool:
    """Adds files to the MLflow run that a run's folder remembers; True when there was one and it has them.

    `variables` as for `open_trackers`. Like every tracker it never fails a run, and doesn't hold one up: a failure is
    an event, and a server that didn't answer the run isn't tried again.
    """
    run_id = remembered(folder, "mlflow").get("run_id")
    if not run_id or _failed(folder):
        return False
    problems: list[str] = ["MLflow did not answer in time"]

    def send() -> None:
        try:
            from scalewright.track.mlflow import close, connect, settings

            with settings():
                client = connect(find_store(_track(folder), variables).mlflow_uri(folder))
                for file in files:
                    client.log_artifact(str(run_id), str(file))
                close(client)
            problems.clear()
        except Exception as error:  # of any library
            problems[:] = [describe_error(error)]

    thread = threading.Thread(target=send, name="attach", daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if problems:
        with contextlib.suppress(RunError):
            events = EventsFile(folder / "events.jsonl")
            events.write("tracker", name="mlflow", error=f"could not attach files: {problems[0]}")
    return not problems


def _track(folder: Path) -> TrackSpec:
    """The `track` keys of the run in a folder; the defaults where it has no run file."""
    try:
        keys = read_yaml(folder / "run.yaml").get("track")
        return TrackSpec.parse(keys if isinstance(keys, dict) else {}, "track")
    except (UserError, AttributeError):
        return TrackSpec()


def _failed(folder: Path) -> bool:
    """Whether MLflow failed in the newest life of this run, and has not answered since."""
    for event in reversed(read_jsonl(folder / "events.jsonl")):
        if event.get("kind") in ("start", "resume"):
            return False
        if event.get("kind") == "tracker" and event.get("name") == "mlflow":
            return "error" in event
    return False
