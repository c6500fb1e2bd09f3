"""MLflow: one sqlite database beside the folders of the runs (or a server), written in batches.

    mlflow ui --backend-store-uri sqlite:///runs/mlflow.db

A resumed run goes on in the same MLflow run. Its parameters can't change there, so a key that was changed for the
resume becomes a tag, `resumed.<key>`.

A server gets 10 s to answer, and one try: the caller tries again later (track/fanout.py). MLflow's own 7 tries of 2
minutes would hold up the end of a run. MLflow takes these settings from the environment alone; they are there during
our calls and not in between, so that other users of MLflow in the process keep theirs.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scalewright.track.lines import Row
from scalewright.track.store import without_password
from scalewright.track.tracker import Entry, Status, Target, flatten, scalars

METRICS_A_CALL, PARAMS_A_CALL = 1000, 100  # the limits of MLflow's log_batch
LONGEST_VALUE = 500  # characters; every store of MLflow can hold as many
LIMITS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": 10, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": 0}
NO_REPORTS = "MLFLOW_DISABLE_TELEMETRY"
FOLDERS = "MLFLOW_ALLOW_FILE_STORE"  # newer versions refuse a store of plain files unless it is set
START = "scalewright.start"
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


@contextlib.contextmanager
def settings() -> Iterator[None]:
    """MLflow's time limits, its usage reports off, and stores of plain files allowed, while this is open.

    A limit that is set stays, and so does a refusal of such stores.
    """
    changed: list[tuple[Any, str | None]] = []
    with contextlib.suppress(ImportError):  # versions without such settings
        variables: Any = importlib.import_module("mlflow.environment_variables")
        for name, value in {**LIMITS, NO_REPORTS: True, FOLDERS: True}.items():
            variable = getattr(variables, name, None)
            if variable is None:  # versions without it
                continue
            before = variable.get_raw()
            if before is None or (name == NO_REPORTS and before != str(value)):
                variable.set(value)
                changed.append((variable, before))
    try:
        yield
    finally:
        for variable, before in changed:
            variable.unset() if before is None else variable.set(before)


class MlflowTracker:
    """Copies a run to its target's store (`track/store.py`)."""

    name = "mlflow"

    def __init__(self, target: Target) -> None:
        self._target = target
        self._server = without_password(target.store.uri)  # None: the database beside the run's folder
        self._client: Any = None
        self._run_id = ""
        self._start = uuid.uuid4().hex  # tags the run, so that a start whose answer was lost finds it again

    @settings()
    def start(self) -> None:
        """Opens the store and the run; about 3 s of processor time, once."""
        client = self._client = connect(self._target.store.mlflow_uri(self._target.folder))
        ids = self._target.remembered(self.name)
        if ids.get("store") == self._server:
            self._run_id = self._run_id or str(ids.get("run_id") or "")
        if self._run_id:
            client.update_run(self._run_id, status="RUNNING")
        else:
            self._run_id = self._create()
            self._target.remember(self.name, run_id=self._run_id, store=self._server)
        self._describe()

    @settings()
    def log(self, entries: Sequence[Entry]) -> None:
        """Writes every number of the rows, at most a thousand a call."""
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, int(moment * 1000), int(row["step"]))
            for moment, row in entries
            for name, value in scalars(row).items()
        ]
        for batch in _chunks(metrics, METRICS_A_CALL):
            self._client.log_batch(self._run_id, metrics=batch)

    @settings()
    def event(self, event: Row) -> None:
        """MLflow has no events: the newest of each kind is a tag."""
        step = event.get("step")
        self._client.set_tag(self._run_id, f"event.{event['kind']}", "" if step is None else f"step {step}")

    @settings()
    def finish(self, status: Status, files: Sequence[Path]) -> None:
        for file in files:
            self._client.log_artifact(self._run_id, str(file))
        self._client.set_terminated(self._run_id, STATUS[status])
        close(self._client)

    def _create(self) -> str:
        """The id of a new run, or of the one that an earlier attempt made without getting the answer."""
        experiment = self._experiment()
        runs = self._client.search_runs([experiment], f"tags.`{START}` = '{self._start}'", max_results=1)
        if runs:
            return str(runs[0].info.run_id)
        tags = {START: self._start}
        return str(self._client.create_run(experiment, tags=tags, run_name=self._target.name).info.run_id)

    def _experiment(self) -> str:
        """The experiment's id; files of one in an sqlite database go to `mlartifacts/` beside that."""
        name = self._target.store.experiment
        existing = self._client.get_experiment_by_name(name)
        if existing is not None:
            return str(existing.experiment_id)
        uri, artifacts = self._target.store.mlflow_uri(self._target.folder), None
        if uri.startswith("sqlite:///"):
            folder = Path(uri.removeprefix("sqlite:///")).resolve().parent
            artifacts = (folder / "mlartifacts" / name).as_uri()
        return str(self._client.create_experiment(name, artifact_location=artifacts))

    def _describe(self) -> None:
        """Parameters from the configuration, tags from the environment; only those that are missing."""
        from mlflow.entities import Param, RunTag

        present = self._client.get_run(self._run_id).data.params
        parameters = {key: value[:LONGEST_VALUE] for key, value in flatten(self._target.config).items()}
        new = [Param(key, value) for key, value in parameters.items() if key not in present]
        changed = {f"resumed.{key}": value for key, value in parameters.items() if present.get(key, value) != value}
        tags = changed | _tags(self._target.environment)
        for batch in _chunks(new, PARAMS_A_CALL):
            self._client.log_batch(self._run_id, params=batch)
        for batch in _chunks([RunTag(key, value) for key, value in tags.items()], PARAMS_A_CALL):
            self._client.log_batch(self._run_id, tags=batch)


def _tags(environment: Mapping[str, Any]) -> dict[str, str]:
    """Versions, git state, host and command as tags; the commit also under MLflow's own name for it."""
    parts = {key: environment.get(key) for key in ("versions", "git", "source", "host", "command")}
    tags = {key: value[:LONGEST_VALUE] for key, value in flatten(parts).items() if value}
    if "git.commit" in tags:
        tags["mlflow.source.git.commit"] = tags["git.commit"]
    return tags


def connect(uri: str) -> Any:
    """A client of the store, with MLflow's usage reports off: what leaves a machine is its owner's choice.

    Call it, and the client, within `settings()`.
    """
    from mlflow.tracking import MlflowClient

    for name in ("mlflow", "alembic"):  # after the import, which sets them lower
        logging.getLogger(name).setLevel(logging.WARNING)
    with contextlib.suppress(ImportError, AttributeError):  # versions without such settings
        telemetry: Any = importlib.import_module("mlflow.telemetry")
        telemetry.set_telemetry_client()
    path = uri.removeprefix("sqlite:///")
    if path == uri:
        return MlflowClient(tracking_uri=uri)
    from filelock import FileLock

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock", timeout=60):  # runs that start at once would all make its tables
        if not Path(path).exists():
            _make_database(path)
    return MlflowClient(tracking_uri=uri)


def _make_database(path: str) -> None:
    """Makes the tables beside their place and moves them there: a killed process leaves no half of them."""
    from mlflow.tracking import MlflowClient

    partial = Path(f"{path}.part")
    partial.unlink(missing_ok=True)
    client = MlflowClient(tracking_uri=f"sqlite:///{partial.as_posix()}")
    client.search_experiments(max_results=1)  # the store is opened by the first question
    close(client)
    partial.replace(path)


def close(client: Any) -> None:
    """Lets go of the database file, so that the folder can be moved or deleted at once (Windows needs it)."""
    with contextlib.suppress(AttributeError):
        client._tracking_client.store.engine.dispose()


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
