"""Weights & Biases: offline in the run's folder unless set to online; the same id after a resume.

    wandb sync runs/run/wandb/offline-run-*      sends an offline record

Online without a reachable server falls back to offline after 20 s, and the end of a run waits 20 s at most
for unsent rows: a run doesn't wait for a network, and `wandb sync` sends the rest.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalewright.track.lines import Row
from scalewright.track.store import Mode
from scalewright.track.tracker import Entry, Status, Target, scalars


class WandbTracker:
    """Copies a run to W&B. Steps are a metric of their own, so that a resumed run may repeat some."""

    name = "wandb"

    def __init__(self, target: Target) -> None:
        self._target = target
        self._run: Any = None

    def start(self) -> None:
        """Opens the run, or goes on with the one whose id is in the folder."""
        run_id = str(self._target.remembered(self.name).get("run_id") or uuid.uuid4().hex[:12])
        self._target.remember(self.name, run_id=run_id)
        mode = self._target.store.mode
        try:
            self._run = self._open(run_id, mode)
        except Exception:
            if mode != "online":
                raise
            self._run = self._open(run_id, "offline")
        for kind in ("train", "valid"):
            self._run.define_metric(f"{kind}/*", step_metric="step")

    def log(self, entries: Sequence[Entry]) -> None:
        """Hands every row to W&B's own process."""
        for moment, row in entries:
            self._run.log({**scalars(row), "step": int(row["step"]), "_timestamp": moment})

    def event(self, event: Row) -> None:
        """The newest event of each kind is in the run's summary."""
        self._run.summary[f"event/{event['kind']}"] = event.get("step", event.get("time"))

    def finish(self, status: Status, files: Sequence[Path]) -> None:
        """Keeps the files with the run and closes it."""
        for file in files:
            shutil.copy(file, self._run.dir)  # files there are sent with the run
        self._run.finish(exit_code=1 if status == "failed" else 0)

    def _open(self, run_id: str, mode: Mode) -> Any:
        import wandb

        settings = wandb.Settings(
            console="off",  # W&B would otherwise wrap stdout and stderr
            disable_git=True,  # the environment has it, taken once
            silent=True,
            init_timeout=20,
            finish_timeout=20,
            x_disable_stats=True,  # a sampling thread that the run would pay for
        )
        return wandb.init(
            project=self._target.store.project,
            entity=self._target.store.entity,
            name=self._target.name,
            id=run_id,
            resume="allow" if mode == "online" else None,
            dir=str(self._target.folder),
            mode=mode,
            config={**self._target.config, "environment": dict(self._target.environment)},
            settings=settings,
        )
