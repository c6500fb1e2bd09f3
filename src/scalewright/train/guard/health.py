"""The host's reaction to bad numbers, when a step's report has arrived: events, lines, and the end.

    report finite                    nothing
    spike                            `spike` event: by how much, and what was done about it; perhaps Rewind
    not finite                       `nonfinite` event (action skipped): whose loss or gradients, which rank
    an update that was left out      the step is run again: bad numbers that don't come again are no fault of the data
    not finite `stop_after` times    `nonfinite` event (action stopped), first bad tensor or module, exit 1

Reports arrive in the same order on every rank and hold the same decisions, so that all ranks ask one another about a
bad step together, and stop together. `train.guard.spike: rewind` goes back to a checkpoint, and on without a spike's
samples:

    step        10 saved    11       12       13 spike
    samples     ..79        80..87   88..95   96..103
    once more               80..87   88..95   104..111        96..103 are left out

All that a resume brings back comes back, so the run is bit for bit one that had `train.guard.leave_out: [[96, 104]]`
from its beginning; and one that is killed on the way meets the same spike and goes back again. PaLM's spikes were got
over so: from a checkpoint before them, without the batches around them (Chowdhery et al. 2022, section 5.1).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from scalewright.checkpoint.format import read_manifest
from scalewright.checkpoint.read import newest_verified
from scalewright.data.mixture import Range
from scalewright.parallel.collectives import gather_json
from scalewright.parallel.execute import Loss
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import Parallel
from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import RunError
from scalewright.train.batches import DataPosition
from scalewright.train.columns import AUX, FACTOR, LOCAL, LOSS, NORM, SCALE, SPIKE, STREAK, USUAL, Z
from scalewright.train.guard.suspect import find_suspect
from scalewright.train.metrics.record import Record

ACTIONS = {"log": "logged", "skip": "skipped", "zclip": "clipped", "rewind": "skipped"}
ALIKE = 1e-3  # relative, of numbers that came again: sums of another order differ by 1e-6, a spike by 3e-2
PARTS = ((LOSS, "loss"), (AUX, "aux_loss"), (NORM, "grad_norm"))


class Diverged(RunError):
    """A run whose numbers stopped being finite; its weights are those before the first bad step."""


@dataclass
class Health:
    """Follows the reports of a run on one rank."""

    parallel: Parallel
    loss: Loss
    mesh: Mesh
    record: Record | None  # rank 0's
    spike: str  # what is done about spikes: `train.guard.spike`
    patience: int  # non-finite steps in a row that end the run; 0: none do
    seed: Callable[[int], None]  # seeds a step's random numbers, for a replay
    save: Callable[[int], None]  # called before a run that has diverged is looked into
    rewinder: Rewinder | None = None  # null: spikes are got over without
    replays: bool = True  # whether a bad step is run again, to find where it began
    again: Callable[[Sequence[Micro], Tensor], tuple[float, float]] | None = None  # loss and norm of a step, once more
    bad: str = ""  # what was wrong with the newest step, in words; empty: nothing
    _recent: deque[tuple[int, Sequence[Micro], Tensor]] = field(default_factory=lambda: deque(maxlen=2))

    def given(self, step: int, micros: Sequence[Micro], counted: Tensor) -> None:
        """Keeps what a step is about to be given, until its report has been seen (one step late on a GPU)."""
        self._recent.append((step, micros, counted))

    def take(self, step: int, report: list[float]) -> None:
        """Looks at a step's report; raises on every rank: Diverged when it is the one bad step too many,
        Rewind when the run is to go back."""
        if report[SPIKE]:
            self._spike(step, report)
        overflow = not math.isfinite(report[NORM]) and not report[STREAK]
        if overflow and self.record is not None:  # of fp16, on the way to its scale
            self.record.event("overflow", step=step, loss_scale=report[SCALE])
        if not (streak := int(report[STREAK])):
            self.bad = ""
            return
        values = {name: repr(report[index]) for index, name in PARTS if not math.isfinite(report[index])}
        where, rank = self._blame(report)
        self.bad = " and ".join(f"{name} {value}" for name, value in values.items())
        if self.patience and streak >= self.patience:
            self._stop(step, report, streak, values, rank)
        said, keys = self._run_again(step, report, f"rank {rank}'s")
        if self.record is not None:
            message = f"step {step}: {self.bad} (first on rank {rank}); its update was left out{said}"
            place = {"where": where, "rank": rank, **keys}
            self.record.event("nonfinite", message, step=step, action="skipped", **place, values=values)

    def _run_again(self, step: int, report: list[float], whose: str) -> tuple[str, dict[str, object]]:
        """Whether the bad numbers of a step without update come again: words for a message, keys for its event. On a
        GPU, whose reports are a step late, the weights may be those of one step later."""
        micros, counted = next(((m, c) for s, m, c in self._recent if s == step), ((), None))
        if self.again is None or counted is None:
            return "", {}
        self.seed(step)
        values = self.again(micros, counted)
        first = report[LOSS], report[NORM]
        alike = all(
            abs(now - then) <= ALIKE * abs(then) if math.isfinite(then) else not math.isfinite(now)
            for now, then in zip(values, first, strict=True)
        )
        if alike:
            return "; run again, it gave the same", {"again": True}
        lost = f"; run again, it did not (loss {values[0]:.6g}): {whose} device or memory is to be suspected"
        return lost, {"again": False}

    def _spike(self, step: int, report: list[float]) -> None:
        target = self.rewinder.find(step) if self.rewinder is not None else ""
        said, keys = self._run_again(step, report, "a") if ACTIONS[self.spike] == "skipped" else ("", {})
        if self.record is not None:
            index, of = ((LOSS, "loss"), (NORM, "grad_norm"))[int(report[SPIKE]) - 1]
            action = ACTIONS[self.spike]
            value, usual, z = report[index], report[USUAL], report[Z]
            message = f"step {step}: {of} {value:.4g} is {z:.1f} standard deviations above its usual {usual:.4g}"
            fields: dict[str, object] = {}
            if isinstance(target, Target):
                action, (first, end) = "rewound", target.samples
                message += f"; going back to step {target.step}, and on without its samples {first} to {end - 1}"
                fields = {"to": target.step, "left_out": [first, end]}
            elif action == "skipped":
                message += "; its update was left out" + (target and f", since {target}")
            message += said
            if action == "clipped":
                message, fields = "", {"factor": report[FACTOR]}
            fields = {"of": of, "value": value, "usual": usual, "z": z, **keys, **fields}
            self.record.event("spike", message, step=step, action=action, **fields)
        if isinstance(target, Target):
            raise Rewind(target)

    def go_back(self, place: DataPosition) -> None:
        """The run is at an earlier place again: what was bad lies ahead."""
        self.bad = ""
        self._recent.clear()
        if self.rewinder is not None:
            self.rewinder.place = place

    def check_end(self, step: int) -> None:
        """Raises Diverged when the run's last step was not finite: such a run hasn't finished."""
        if self.bad:
            left = "the last update was left out, and checkpoints from then on are marked as not finite"
            raise Diverged(f"the run ended at step {step} with {self.bad}: {left}")

    def _blame(self, report: list[float]) -> tuple[str, int]:
        """(what wasn't finite, the first rank on which it wasn't). All ranks call it together."""
        parts = [int(local) for local in gather_json(report[LOCAL], self.mesh)]
        for part, name in ((1, "loss"), (2, "grad_norm")):
            if part in parts:
                return name, parts.index(part)
        return "grad_norm", 0  # finite on every rank, and too large when squared and summed

    def _stop(self, step: int, report: list[float], streak: int, values: dict[str, str], rank: int) -> None:
        micros, counted = next(((m, c) for s, m, c in self._recent if s == step), ((), None))
        suspect = None
        self.save(step)
        if counted is not None and self.replays:
            self.seed(step)
            suspect = find_suspect(self.parallel, self.loss, self.mesh, micros, counted, report[SCALE])
        where = f"the first number that isn't finite is in {suspect}" if suspect else f"first on rank {rank}"
        if self.record is not None:
            name, first = (suspect.name, suspect.rank) if suspect else ("unknown", rank)
            self.record.event("nonfinite", step=step, action="stopped", where=name, rank=first, values=values)
        times = "" if streak == 1 else f", {streak} steps in a row"
        how = "go on from an older checkpoint with a lower optimizer.lr or other data, or allow more of them with "
        since = f"No update was taken since step {step - streak}; {how}train.guard.stop_after"
        raise Diverged(f"stopped at step {step}: {self.bad}{times}; {where}. {since}")


MOST = 3  # batches that are left out after one checkpoint: when more of them spike, the data aren't the cause


@dataclass(frozen=True)
class Target:
    """Where a run goes back to, and the samples that it then leaves out."""

    folder: Path
    step: int
    samples: Range


class Rewind(Exception):
    """Raised on all ranks when the run is to go back."""

    def __init__(self, target: Target) -> None:
        super().__init__(f"to step {target.step}")
        self.target = target


@dataclass
class Rewinder:
    """Finds where a run goes back to. All ranks ask it together."""

    root: Path  # its checkpoints
    mesh: Mesh
    batch: int
    place: DataPosition  # where the run went on from last: its start, a resume, or a rewind
    settle: Callable[[], object]  # a save that is under way may be the newest

    def find(self, step: int) -> Target | str:
        """The place to go back to from a step that spiked; else why there is none, in words."""
        self.settle()
        folder, _ = newest_verified(self.root, self.mesh)
        if folder is None:
            return "there is no checkpoint to go back to"
        saved = read_manifest(folder)
        ahead = self.place.left_out.count(saved.samples)
        if ahead >= MOST * self.batch:
            return f"{counted(ahead, f'samples after step {saved.step} are')} left out already"
        samples = self.place.taken(step, self.batch)
        return Target(folder, saved.step, (int(samples[0]), int(samples[-1]) + 1))
