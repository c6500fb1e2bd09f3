"""Where a run's copies go: keys of `track` win over the trackers' own variables, those over the defaults.

    track.mlflow.uri          MLFLOW_TRACKING_URI      runs/mlflow.db, beside the folders of the runs
    track.mlflow.experiment   MLFLOW_EXPERIMENT_NAME   scalewright
    track.wandb.project       WANDB_PROJECT            scalewright
    track.wandb.entity        WANDB_ENTITY             the account's own
    track.wandb.mode          WANDB_MODE               offline: what leaves a machine is its owner's choice

One store and one experiment for all runs, since runs are looked at side by side. The variables come as a value:
`launch/settings.py` reads the environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from scalewright.spec.errors import UserError
from scalewright.spec.tracking import MlflowSpec, TrackSpec, WandbSpec

NAME = "scalewright"  # of the experiment and of the project
LONGEST_ERROR = 300  # characters
_PASSWORD = re.compile(r"(?<=://)[^/\s]*@")  # up to the last @ of the host: a password may hold one
Mode = Literal["online", "offline", "disabled"]
MODES = {  # with W&B's older names
    "online": "online", "run": "online", "offline": "offline", "dryrun": "offline", "disabled": "disabled",
}  # fmt: skip


@dataclass(frozen=True)
class Store:
    """Where MLflow and W&B take one run's copies."""

    uri: str | None = None  # null: the database beside the run's folder
    experiment: str = NAME
    project: str = NAME
    entity: str | None = None
    mode: Mode = "offline"

    def mlflow_uri(self, folder: Path) -> str:
        """The tracking uri of a run in `folder`."""
        return self.uri or f"sqlite:///{(folder.resolve().parent / 'mlflow.db').as_posix()}"


def find_store(track: TrackSpec, variables: Mapping[str, str] | None = None) -> Store:
    """The store of a run; raises UserError for a W&B mode that there isn't."""
    variables = variables or {}
    mlflow = track.mlflow if isinstance(track.mlflow, MlflowSpec) else MlflowSpec()
    wandb = track.wandb if isinstance(track.wandb, WandbSpec) else WandbSpec()
    mode = wandb.mode or variables.get("WANDB_MODE", "offline")
    if track.wandb and mode not in MODES:
        raise UserError(f"WANDB_MODE is {mode!r}", "environment", "use online, offline or disabled")
    return Store(
        uri=mlflow.uri or variables.get("MLFLOW_TRACKING_URI"),
        experiment=mlflow.experiment or variables.get("MLFLOW_EXPERIMENT_NAME") or NAME,
        project=wandb.project or variables.get("WANDB_PROJECT") or NAME,
        entity=wandb.entity or variables.get("WANDB_ENTITY"),
        mode=cast(Mode, MODES.get(mode, "offline")),
    )


def without_password(uri: str | None) -> str | None:
    """A uri as it may be shown and kept: `https://user:secret@host` without the part before the @.

    >>> without_password("https://me:secret@mlflow.example.org/x")
    'https://mlflow.example.org/x'
    """
    return uri if uri is None else _PASSWORD.sub("", uri)


def describe_error(error: BaseException) -> str:
    """An error of a tracker's library as it may be shown and kept: no password of a uri, 300 characters.

    >>> describe_error(OSError("PUT https://me:secret@mlflow.example.org/x failed"))
    'OSError: PUT https://mlflow.example.org/x failed'
    """
    text = _PASSWORD.sub("", f"{type(error).__name__}: {error}")  # first: a cut could hide the @
    return text if len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]}…"
