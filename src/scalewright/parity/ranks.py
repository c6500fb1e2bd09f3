"""Runs a run on its ranks, with one optimizer after another, and keeps what it left.

one world of processes:   join, train with AdamW, leave   ->   join, train with SGD, leave
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from scalewright.launch.local import prepare_workers, run_local
from scalewright.launch.rank import RankContext
from scalewright.parity.diloco_control import run_controls
from scalewright.spec.common.scratch import scratch_folder
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import OptimizerSpec, RunSpec
from scalewright.train.resolve import resolve
from scalewright.train.routes import Routes
from scalewright.train.run import PRELOAD, enter
from scalewright.train.start import Start

# Precisions that keep so few bits that another layout's rounding decides which experts a token goes to.
ROUNDED = ("tf32", "fp16", "bf16")
Target = Callable[[RankContext, Sequence[Start]], None]


@dataclass(frozen=True)
class Left:
    """The folders that a run left: with the run's own optimizer, and with SGD (which saved its weights)."""

    own: Path
    sgd: Path
    routes: Path | None = None  # folder of its routers' choices, by the name of the run's folder


class Runs:
    """Trains runs in temporary folders; a run that was trained already is not trained again.

    `target` is what every rank does with its starts.
    """

    def __init__(self, target: Target | None = None) -> None:
        self._target = target or train_in_turn
        self._resources = ExitStack()
        self._folder = self._resources.enter_context(scratch_folder("parity"))
        self._made: dict[str, Left] = {}

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def __call__(self, run: RunSpec) -> Left:
        """The folders that a control left, trained unless it was trained already; islands are simulated."""
        key = json.dumps({**run.dump(), "out_dir": None}, sort_keys=True)
        if key not in self._made:
            self._made[key] = self.train(run, simulated=run.diloco is not None, writes=routes_tokens(run))
        return self._made[key]

    def train(
        self, run: RunSpec, replays: Left | None = None, *, simulated: bool = False, writes: bool = False
    ) -> Left:
        """Trains a run on its ranks with its own optimizer and with SGD.

        `simulated`: its islands in turn, in one process. `writes`: the choices of its routers, which a run
        that `replays` it takes over.
        """
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        variants = [("own", run)]
        if not (isinstance(run.optimizer, OptimizerSpec) and run.optimizer.name == "sgd"):
            variants.append(("sgd", run.replace(optimizer=plain_sgd(run).dump())))
        name, last = variants[-1]
        variants[-1] = (name, last.replace(checkpoint={"at_end": True}))
        routes = folder / "routes" if writes else None
        source = routes if replays is None else replays.routes
        starts = [
            _start(
                variant.replace(out_dir=str(folder / name)),
                None if source is None else Routes(str(source / name), replay=replays is not None),
            )
            for name, variant in variants
        ]
        if simulated:
            _in_one_world(starts, 1, run_controls)
        else:
            apart = [[start] for start in starts] if run.engine == "deepspeed" else [starts]
            for together in apart:  # DeepSpeed lives once in a process
                _in_one_world(together, run.layout.devices, self._target)
        return Left(folder / "own", folder / name, routes)


def plain_sgd(run: RunSpec) -> OptimizerSpec:
    """SGD, under which weights can be compared: AdamW magnifies the sign of near-zero gradients.

    The rate moves weights far beyond rounding in ten steps, clipping keeps them from running away.
    """
    clip = run.optimizer.clip_norm if isinstance(run.optimizer, OptimizerSpec) else 1.0
    return OptimizerSpec(name="sgd", lr=0.1, weight_decay=0.0, clip_norm=clip or 1.0)


def replays_routes(run: RunSpec) -> bool:
    """Whether a run is compared with its routers' choices given: rounding would decide them."""
    return routes_tokens(run) and run.layout.precision in ROUNDED


def routes_tokens(run: RunSpec) -> bool:
    """Whether a run's routers have choices that can be given to another one."""
    return isinstance(run.model, ModelSpec) and run.model.moe is not None and run.diloco is None


def _in_one_world(starts: Sequence[Start], world: int, target: Target) -> None:
    """Trains runs of one layout, one after another in one world of processes."""
    prepare_workers(PRELOAD)
    run_local(target, (starts,), world, preload=PRELOAD)


def _start(run: RunSpec, prepare: Routes | None) -> Start:
    device = "cpu" if run.device == "auto" else run.device
    return Start(resolve(run), device, quiet=True, prepare=prepare)


def train_in_turn(context: RankContext, starts: Sequence[Start]) -> None:
    """One rank's life: it joins a world of its own for each run."""
    for number, start in enumerate(starts):
        enter(replace(context, attempt=number), start)
