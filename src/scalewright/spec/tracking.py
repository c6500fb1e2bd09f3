"""Keys of `track`: which stores of metrics a run writes to besides its own files.

track: {mlflow: true, tensorboard: false, wandb: {project: mine}}    keys in place of true: that store's own
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from scalewright.spec.base import Spec, from_keys
from scalewright.spec.errors import UserError


class MlflowSpec(Spec):
    """The MLflow store and experiment; null: the environment's, else the default (track/store.py)."""

    uri: str | None = Field(None, min_length=1)
    experiment: str | None = Field(None, min_length=1)


class WandbSpec(Spec):
    """The W&B project and entity, and whether data are uploaded; null: the environment's, or offline."""

    project: str | None = Field(None, min_length=1)
    entity: str | None = Field(None, min_length=1)
    mode: Literal["online", "offline", "disabled"] | None = None


class TrackSpec(Spec):
    """Trackers of metrics besides metrics.jsonl. Keys in place of `true` enable a tracker too."""

    mlflow: bool | MlflowSpec = False
    tensorboard: bool = False
    wandb: bool | WandbSpec = False

    @from_keys
    def _pick_branches(cls, data: Any) -> Any:
        """Parses each union as one branch, so that an error is about that branch."""
        branches: dict[str, type[Spec]] = {"mlflow": MlflowSpec, "wandb": WandbSpec}
        for key, spec in branches.items():
            value = data.get(key)
            if isinstance(value, dict):
                data[key] = spec.parse(value, where=f"track.{key}")
            elif value is not None and not isinstance(value, (bool, Spec)):
                keys = ", ".join(spec.model_fields)
                raise UserError(f"it is {value!r}", f"track.{key}", f"use true, false, or keys: {keys}")
        return data
