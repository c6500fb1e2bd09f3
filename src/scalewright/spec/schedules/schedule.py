"""A schedule: the actions of every rank, and the ranks of the stages.

    round (all kinds but the next two)  V (zbv, dualpipev)           two ways (dualpipe)
    rank 0: stages 0  4  8              rank 0: stages 0  7          rank 0: stage 0 of ->, stage 3 of <-
    rank 1:        1  5  9              rank 1:        1  6          rank 1: stage 1 of ->, stage 2 of <-
    rank 2:        2  6  10             rank 2:        2  5          rank 2: stage 2 of ->, stage 1 of <-
    rank 3:        3  7  11             rank 3:        3  4          rank 3: stage 3 of ->, stage 0 of <-

In dualpipe every model stage exists twice, once for each way: stage s of the way down is number s, stage s
of the way up is number ranks + s, and each way carries half of the micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.spec.schedules.action import COMPUTE, Action
from scalewright.spec.schedules.kinds import find_kind


@dataclass(frozen=True)
class Schedule:
    """Every rank's ordered list of actions for one optimizer step.

    Between two ranks, messages of both sorts leave and arrive in the same order, so one first-in first-out channel for
    each direction is enough: a send need never wait, a receive may block.
    """

    kind: str
    ranks: int
    virtual_stages: int
    micro_batches: int
    rank_of: tuple[int, ...]  # stage -> rank
    actions: tuple[tuple[Action, ...], ...]  # by rank

    @property
    def trainable(self) -> bool:
        """Whether the trainer runs it, or only the planner costs it."""
        return find_kind(self.kind).trained

    @property
    def flush(self) -> bool:
        """Whether a step ends with an empty pipeline; only pipedream goes on without."""
        return find_kind(self.kind).flushes

    @property
    def model_stages(self) -> int:
        """Parts that the model is cut into: the stages, or half as many where each exists twice."""
        return find_kind(self.kind).parts(self.ranks, self.virtual_stages)

    def model_stage(self, stage: int) -> int:
        """The part of the model that a stage computes, 0 for the one with the embedding."""
        return stage % self.model_stages

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that a rank holds, in model order (dualpipe: down, then up)."""
        return tuple(stage for stage, owner in enumerate(self.rank_of) if owner == rank)

    def before(self, stage: int) -> int | None:
        """The stage that feeds this one; None for one that reads tokens."""
        return None if self.model_stage(stage) == 0 else stage - 1

    def after(self, stage: int) -> int | None:
        """The stage that this one feeds; None for one that ends in the loss."""
        return None if self.model_stage(stage) == self.model_stages - 1 else stage + 1

    def compute(self, rank: int) -> tuple[Action, ...]:
        """A rank's actions without its messages."""
        return tuple(action for action in self.actions[rank] if action.kind in COMPUTE)
