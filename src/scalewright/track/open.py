"""The trackers that a run names: each is imported only when it is switched on, and installed.

track: {mlflow: true, wandb: false} --> [MlflowTracker]
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
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
    makers: dict[str, tuple[bool, Callable[[], Tracker]]] = {
        "mlflow": (bool(run.track.mlflow), lambda: _mlflow(target)),
        "tensorboard": (run.track.tensorboard, lambda: _tensorboard(target)),
        "wandb": (bool(run.track.wandb), lambda: _wandb(target)),
    }
    for name, (enabled, _) in makers.items():
        if enabled and importlib.util.find_spec(name) is None:
            advice = f"{install('track')}, or set it to false"
            raise UserError(f"{name} is not installed", f"track.{name}", advice)
    return [make() for enabled, make in makers.values() if enabled]


def _mlflow(target: Target) -> Tracker:
    from scalewright.track.mlflow import MlflowTracker

    return MlflowTracker(target)


def _tensorboard(target: Target) -> Tracker:
    from scalewright.track.tensorboard import TensorBoardTracker

    return TensorBoardTracker(target)


def _wandb(target: Target) -> Tracker:
    from scalewright.track.wandb import WandbTracker

    return WandbTracker(target)
