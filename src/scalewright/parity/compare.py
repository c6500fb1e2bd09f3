"""Does a layout compute what one device computes? Both train the same steps; their numbers are compared.

    loss, gradient norm   step by step, with the run's own optimizer     |mine - control| / |control|
    weights               after the last step, with SGD; of the          max |mine - control|
                          worst tensor                                   / max(max |control|, FLOOR)

    one world of processes:   join, train with AdamW, leave   ->   join, train with SGD, leave

A run with `diloco` is no one-device run: its control are its islands, trained in turn in one process. fp32 sums in
another order differ by about 1e-7; ten steps carry that on. A wrong layout (a gradient summed once too often, a norm
that isn't reduced) is off by 1e-3 or more within two steps, so the tolerance need not be fine-tuned. A mixture jumps
where a router's scores nearly tie. Beyond the tolerance its layout trains again with the control's choices; where it
would have chosen otherwise by rounding alone, that run is the one that counts.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from scalewright.checkpoint.read import CheckpointReader, find_checkpoint
from scalewright.launch.begin import prepare_workers
from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.parity.diloco_control import run_controls
from scalewright.parity.result import Deviation, Flip, Parity, step_deviations
from scalewright.parity.setup import Setup, set_up
from scalewright.spec.common.files import scratch_folder
from scalewright.spec.common.formatting import counted
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import OptimizerSpec, RunSpec
from scalewright.train.resolve import resolve
from scalewright.train.routes import Routes
from scalewright.train.run import PRELOAD, enter
from scalewright.train.start import Start

# precision -> (tolerance, the reason for it)
TOLERANCES: dict[str, tuple[float, str]] = {
    "fp32": (1e-5, "sums in another order differ by 1e-7 a step in fp32; ten steps and a factor of ten"),
    "tf32": (5e-3, "TF32 keeps 11 bits of a product's factors (5e-4); other shapes round otherwise"),
    "fp16": (4e-3, "fp16 keeps 11 bits (5e-4), and another layout rounds other partial sums"),
    "bf16": (2e-2, "bf16 keeps 8 bits (4e-3), and another layout rounds other partial sums"),
}

# Below this size weights are compared absolutely: a key's bias without rotary positions has a true gradient
# of 0, so it holds nothing but rounding.
FLOOR = 1e-2

GIVEN = "the layout's routers take the control's choices: rounding would send tokens elsewhere"
Tell = Callable[[str], None]
# Precisions that keep so few bits that another layout's rounding decides which experts a token goes to.
ROUNDED = ("tf32", "fp16", "bf16")
Target = Callable[[RankContext, Sequence[Start]], None]


def parity(
    run: RunSpec,
    *,
    steps: int = 10,
    device: str = "cpu",
    tolerance: float | None = None,
    micro_batch: int | None = None,
    runs: Runs | None = None,
    tell: Tell = lambda text: None,
) -> Parity:
    """Compares a run's layout with one device, on CPU processes or on this machine's GPUs.

    `micro_batch` is the control's (default: the layout's); `runs` shares controls between calls; `tell` is
    called with what begins. Raises UserError for a layout that can't be trained, RunError when a run failed.
    """
    setup = set_up(run, device=device, steps=steps, micro_batch=micro_batch)
    with Runs() if runs is None else nullcontext(runs) as trained:
        return _compare(setup, steps, tolerance, trained, tell)


def _compare(setup: Setup, steps: int, tolerance: float | None, runs: Runs, tell: Tell) -> Parity:
    layout = setup.layout.layout
    allowed, reason = TOLERANCES.get(layout.precision, TOLERANCES["fp32"])
    if tolerance is not None:
        allowed, reason = tolerance, "as asked"
    given = replays_routes(setup.control)
    mine, control = _train_both(setup, steps, runs, tell, given=given)
    result = Parity(
        control=setup.control.layout.dump(),
        layout=layout.dump(),
        deviation=deviation(mine, control),
        tolerance=allowed,
        reason=reason,
        shrunk=setup.shrunk,
        notes=(*setup.notes, GIVEN) if given else setup.notes,
    )
    if not (result.ok or given) and routes_tokens(setup.control) and math.isfinite(result.worst):
        result = _replayed(result, setup.layout, control, runs, tell)
        given = result.replayed
    other = cut_otherwise(setup.control.layout)
    if result.ok or tolerance is not None or other is None or not math.isfinite(result.worst):
        return result
    tell("beyond the tolerance: training the control again, its micro-batches cut otherwise")
    changed = setup.control.replace(layout=other.dump())
    again = runs.train(changed, control) if given else runs(changed)
    return replace(result, noise=deviation(again, control))


def _replayed(result: Parity, layout: RunSpec, control: Left, runs: Runs, tell: Tell) -> Parity:
    """The result with the control's choices of experts, if the layout's differ by rounding alone."""
    tell("beyond the tolerance: training the layout again, with the control's choices of experts")
    again = runs.train(layout, control)
    files = sorted(path for folder in {again.own, again.sgd} for path in folder.glob("flips-*.jsonl"))
    rows = {tuple(json.loads(line)) for path in files for line in path.read_text().splitlines()}
    flips = tuple(sorted((Flip(*row) for row in rows), key=lambda flip: (flip.near, flip.step, flip.layer)))
    if not flips:
        return result
    first, replayed = flips[0], all(flip.near for flip in flips)
    note = (
        f"step {first.step}, layer {first.layer}, token {first.token} of sample {first.sample}: the layout's "
        f"router chooses other experts than the control's, whose scores are {first.margin:.1e} apart"
        + (f" (and {len(flips) - 1} more)" if len(flips) > 1 else "")
        + (": rounding, so the control's choices were replayed" if replayed else ": more than rounding")
    )
    result = replace(result, flips=flips, replayed=replayed, notes=(*result.notes, note))
    return replace(result, deviation=deviation(again, control)) if replayed else result


def _train_both(setup: Setup, steps: int, runs: Runs, tell: Tell, *, given: bool) -> tuple[Left, Left]:
    """What the layout left, and the control, which comes first where its choices of experts are given."""

    def control() -> Left:
        where = "on one device" if setup.control.diloco is None else "of islands in turn, in one process"
        tell(f"training the control: {counted(steps, 'steps')} {where}, twice")
        return runs(setup.control)

    first = control() if given else None
    ranks = setup.layout.layout.devices
    tell(f"training the layout: {counted(steps, 'steps')} on {counted(ranks, 'ranks')}, twice")
    return runs.train(setup.layout, first), first or control()


def deviation(mine: Left, control: Left) -> Deviation:
    """How far one run's numbers are from another's."""
    steps = step_deviations(training_rows(mine.own), training_rows(control.own))
    return Deviation(steps, *weights_deviation(mine.sgd, control.sgd))


def weights_deviation(mine: str | Path, other: str | Path) -> tuple[float, str]:
    """The worst deviation of two newest checkpoints, and its tensor; infinite where tensors or shapes differ."""
    ours, theirs = CheckpointReader(find_checkpoint(mine)), CheckpointReader(find_checkpoint(other))
    if set(ours.names()) != set(theirs.names()):
        return float("inf"), sorted(set(ours.names()) ^ set(theirs.names()))[0]
    worst = (0.0, "")
    for name in theirs.names():  # one tensor of each is in memory at a time
        a, b = ours.read(name), theirs.read(name)
        if a.shape != b.shape or not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
            return float("inf"), name
        if a.numel() == 0:
            continue
        value = float((a - b).abs().max() / b.abs().max().clamp(min=FLOOR))
        worst = max(worst, (value, name))
    return worst


def training_rows(folder: Path) -> list[dict[str, object]]:
    """The training lines of a run's metrics.jsonl, by step."""
    return [row for row in read_jsonl(folder / "metrics.jsonl") if row["kind"] == "train"]


def cut_otherwise(layout: Layout) -> Layout | None:
    """The control with other micro-batches of the same batch; None when a batch is one sample."""
    share = layout.global_batch // layout.dp  # of an island; without islands all
    sizes = [size for size in range(1, share + 1) if share % size == 0]
    others = [size for size in sizes if size != layout.micro_batch]
    if not others:
        return None
    return layout.replace(micro_batch=min(others, key=lambda size: abs(size - layout.micro_batch)))


@dataclass(frozen=True)
class Left:
    """The folders that a run left: with the run's own optimizer, and with SGD (which saved its weights)."""

    own: Path
    sgd: Path
    routes: Path | None = None  # folder of its routers' choices, by the name of the run's folder


class Runs(AbstractContextManager["Runs"]):
    """Trains runs in temporary folders, each once; `target` is what every rank does with its starts."""

    def __init__(self, target: Target | None = None) -> None:
        self._target = target or train_in_turn
        self._resources = ExitStack()
        self._folder = self._resources.enter_context(scratch_folder("parity"))
        self._made: dict[str, Left] = {}

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
        starts = []
        for name, variant in variants:
            prepare = None if source is None else Routes(str(source / name), replay=replays is not None)
            resolved = resolve(variant.replace(out_dir=str(folder / name)))
            device = "cpu" if variant.device == "auto" else variant.device
            starts.append(Start(resolved, device, quiet=True, prepare=prepare))
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


def train_in_turn(context: RankContext, starts: Sequence[Start]) -> None:
    """One rank's life: it joins a world of its own for each run."""
    for number, start in enumerate(starts):
        enter(replace(context, attempt=number), start)
