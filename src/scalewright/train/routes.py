"""Choices of routers, written down by one run, taken over by another: how parity compares mixtures in bf16.

    control   writes   (step, layer) -> experts of every sample and token      int16 [samples, T, k]
    layout    reads    those of a rank's samples and tokens; weights are by its own scores

bf16 keeps 8 bits: another layout's rounding sends a token elsewhere, since a top-k jumps. From there on no number is
comparable, though nothing is wrong. With the choices given only rounding is left to differ, as in a dense model. In
fp32 that takes a near tie: a run that reads writes down where it would have chosen otherwise, and by how little
(flips-RANK.jsonl in its own folder). Hooks around routers from outside; no run but one of parity has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalewright.model.moe import MoE
from scalewright.model.router import Choice, Router
from scalewright.model.torch_private import in_backward, not_compiled
from scalewright.parallel.execute import Recorder
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.stages import stages_of
from scalewright.spec.layout import Layout
from scalewright.spec.schedule import Action, Schedule
from scalewright.spec.zigzag import SequenceCut

if TYPE_CHECKING:  # which imports the whole of training
    from scalewright.train.session import Session

Choose = Callable[[Tensor], Choice]


@dataclass(frozen=True)
class Routes:
    """Called with a rank's session before it trains: writes its choices (as one rank) or reads those in `folder`."""

    folder: str
    replay: bool

    def __call__(self, session: Session) -> None:
        """Wraps every router of the rank's stages."""
        parallel, mesh, layout = session.parallel, session.mesh, session.run.layout
        clock = parallel.executor.recorder = _Clock(parallel.executor.recorder)
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        flips = session.run.folder / f"flips-{mesh.rank}.jsonl"
        for number, stage in stages_of(parallel.model).items():
            cut = getattr(stage, "sequence_cut", None)
            for name, module in stage.named_modules():
                if not isinstance(module, MoE):
                    continue
                router, at = module.router, _At(folder, clock, number, int(name.split(".")[1]))
                reads = partial(_Reader(at, layout, mesh, cut, flips).read, router, router.forward)
                writes = partial(_Writer(at, layout).write, router.forward)
                router.forward = reads if self.replay else writes  # type: ignore[method-assign]


class _Clock(Recorder):
    """Which step of a stage and which micro-batch an action is of; passes all on."""

    def __init__(self, inner: Recorder) -> None:
        self.inner = inner
        self.steps: dict[int, int] = {}  # forwards of a first micro-batch so far, by stage
        self.micro = 0

    def start(self, plan: Schedule) -> None:
        self.inner.start(plan)

    def before(self, action: Action) -> None:
        """A forward, or a backward, in which a forward may run again."""
        self.micro = action.micro
        if action.kind == "forward" and action.micro == 0:
            self.steps[action.stage] = self.steps.get(action.stage, 0) + 1
        self.inner.before(action)

    def after(self, action: Action) -> None:
        self.inner.after(action)

    def arrived(self) -> None:
        self.inner.arrived()


@dataclass(frozen=True)
class _At:
    """A layer's place."""

    folder: Path
    clock: _Clock
    stage: int
    layer: int

    @property
    def file(self) -> Path:
        """Of the current step's choices."""
        return self.folder / f"{self.clock.steps[self.stage]}-{self.layer}.npy"


@dataclass(frozen=True)
class _Writer:
    """Keeps a step's choices until its last micro-batch."""

    at: _At
    layout: Layout
    kept: list[NDArray[np.int16]] = field(default_factory=list)

    @not_compiled()  # it copies to the host
    def write(self, choose: Choose, rows: Tensor) -> Choice:
        choice = choose(rows)
        if torch.is_grad_enabled() and not in_backward():  # which runs the forward a second time
            experts = choice.experts.view(self.layout.micro_batch, -1, choice.experts.shape[1])
            self.kept.append(experts.cpu().numpy().astype(np.int16))
            if len(self.kept) == self.layout.accumulation:
                np.save(self.at.file, np.concatenate(self.kept))
                self.kept.clear()
        return choice


@dataclass(frozen=True)
class _Reader:
    """Gives the choices of a rank's samples and tokens."""

    at: _At
    layout: Layout
    mesh: Mesh
    cut: SequenceCut | None
    flips: Path

    @not_compiled()  # it reads a file
    def read(self, router: Router, choose: Choose, rows: Tensor) -> Choice:
        choice = choose(rows)
        if not torch.is_grad_enabled():
            return choice
        given, samples, tokens = self._given()
        experts = torch.from_numpy(given.astype(np.int64)).to(rows.device).reshape(choice.experts.shape)
        differ = (choice.experts.sort().values != experts.sort().values).any(dim=-1)
        if bool(differ.any()):
            step, wide = self.at.clock.steps[self.at.stage], len(tokens)
            with open(self.flips, "a", encoding="utf-8") as file:
                for n in differ.nonzero().flatten().tolist():
                    place = [step, self.at.layer, int(samples[n // wide]), int(tokens[n % wide])]
                    apart = margin(router, choice.scores[n].detach(), (experts[n], choice.experts[n]))
                    file.write(json.dumps([*place, apart]) + "\n")
        return router.choice(experts, choice.logits, choice.scores)

    def _given(self) -> tuple[NDArray[np.int16], NDArray[np.int64], NDArray[np.int64]]:
        """[B, T/cp/tp, k] of the current micro-batch, and which samples and tokens these are."""
        layout, whole = self.layout, np.load(self.at.file)
        samples = np.arange(len(whole)).reshape(layout.accumulation, layout.dp, layout.micro_batch)
        tokens = np.arange(whole.shape[1]) if self.cut is None else self.cut.tokens(whole.shape[1])
        mine = tokens.reshape(self.mesh.size("tp"), -1)[self.mesh.index("tp")]
        rows = samples[self.at.clock.micro, self.mesh.index("batch")]
        return whole[rows][:, mine], rows, mine


def margin(router: Router, scores: Tensor, choices: tuple[Tensor, Tensor]) -> float:
    """How far apart scores [E] have two choices of experts [k], as a share of the scores, a power of two. The least
    with which either is chosen, when its scores are raised and the others lowered."""
    for power in range(-24, 1):  # from half a unit in fp32's last place
        for experts in choices:
            signs = torch.full_like(scores, -1.0, dtype=torch.float64).scatter_(0, experts, 1.0)
            chosen = router.pick((scores * (1 + signs * 2.0**power))[None])[0]
            if not torch.equal(chosen.sort().values, experts.sort().values):
                break
        else:
            return float(2.0 ** (power + 1))
    return 2.0
