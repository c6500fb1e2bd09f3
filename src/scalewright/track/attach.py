"""Files that are made when a run has ended, such as its report, for the trackers that still take them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scalewright.spec.errors import RunError
from scalewright.track.events import EventsFile
from scalewright.track.tracker import remembered


def attach(folder: Path, files: Sequence[Path]) -> bool:
    """Adds files to the MLflow run that a run's folder remembers; True when there was one and it took them.

    Like every tracker it never fails a run: what goes wrong is an event.
    """
    known = remembered(folder, "mlflow")
    if not known.get("run_id"):
        return False
    try:
        from scalewright.track.mlflow import close, connect, database

        client = connect(known.get("server") or database(folder))
        for file in files:
            client.log_artifact(known["run_id"], str(file))
        close(client)
    except Exception as error:  # whatever a library throws
        _note(folder, f"could not attach files: {type(error).__name__}: {error}")
        return False
    return True


def _note(folder: Path, error: str) -> None:
    try:
        EventsFile(folder / "events.jsonl").write("tracker", name="mlflow", error=error)
    except RunError:
        return
