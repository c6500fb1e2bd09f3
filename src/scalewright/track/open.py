"""The trackers that a run names: each is imported only when it is switched on, and installed.

track: {mlflow: true, wandb: false} --> [MlflowTracker]
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewright.spec.errors import UserError, install
from scalewright.spec.run import RunSpec
from scalewright.track.store import find_store
from scalewright.track.tracker import Target, Tracker


def open_trackers(
    run: RunSpec,
    folder: Path,
    *,
    environment: Mapping[str, Any] | None = None,
    resume_step: int = 0,
    variables: Mapping[str, str] | None = None,
) -> list[Tracker]:
    """The trackers that `run.track` names, not yet started; UserError when one isn't installed.

    `variables` are those of the environment that `track/store.py` names.
    """
    store = find_store(run.track, variables)
    target = Target(run.name, folder, run.dump(), environment or {}, resume_step, store)
    wanted = {"mlflow": run.track.mlflow, "tensorboard": run.track.tensorboard, "wandb": run.track.wandb}
    for name, enabled in wanted.items():
        if enabled and importlib.util.find_spec(name) is None:
            advice = f"{install('track')}, or set it to false"
            raise UserError(f"{name} is not installed", f"track.{name}", advice)
    trackers: list[Tracker] = []
    if run.track.mlflow:
        from scalewright.track.mlflow import MlflowTracker

        trackers.append(MlflowTracker(target))
    if run.track.tensorboard:
        from scalewright.track.tensorboard import TensorBoardTracker

        trackers.append(TensorBoardTracker(target))
    if run.track.wandb:
        from scalewright.track.wandb import WandbTracker

        trackers.append(WandbTracker(target))
    return trackers
