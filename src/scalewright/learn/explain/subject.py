"""A run as quantities by name, which functions of the field take.

    asked_run.py ──► of_model.py ──► of_layout.py ──► of_cluster.py ──► Subject: seconds, failures, steps

of_plan.py has the functions that need the planner's whole answer; find.py finds the run.
"""

from __future__ import annotations

from functools import cached_property

from scalewright.learn.explain.of_cluster import ClusterQuantities
from scalewright.spec.errors import UserError


class Subject(ClusterQuantities):
    """A run with all its quantities. Times are seconds."""

    @property
    def breakdown(self) -> dict[str, float]:
        """A step's seconds by part, by the planner."""
        return self.prediction.breakdown

    @cached_property
    def exposed_share(self) -> float:
        """Of a step: communication that nothing hides."""
        from scalewright.learn.speedup import exposed_share

        return exposed_share(self.breakdown)

    @property
    def predicted_step_s(self) -> float:
        """By the planner."""
        return self.prediction.step_time_s

    @cached_property
    def step_s(self) -> float:
        """A step's seconds: a run's own median, else the planner's."""
        from scalewright.goodput.ledger import read_ledger

        measured = None
        if self.folder is not None:
            try:
                measured = read_ledger(self.folder).step_s
            except UserError:  # it has no step yet
                measured = None
        return measured or self.predicted_step_s

    @property
    def failure_rate(self) -> float:
        """Failures an hour of a device, as published runs had them."""
        from scalewright.plan.reliability import usual

        return usual().rate

    @property
    def mtbf_s(self) -> float:
        from scalewright.plan.reliability import mtbf_s

        return mtbf_s(self.devices, self.failure_rate)

    @property
    def save_s(self) -> float:
        """Of a checkpoint, by usual storage."""
        from scalewright.plan.reliability import usual

        return usual().save_s(self.checkpoint_bytes, self.devices)

    @property
    def tokens_per_s(self) -> float:
        return self.step_tokens / self.step_s

    @property
    def block_forward_s(self) -> float | None:
        """One block's forward of a micro-batch at half of the peak."""
        if self.peak is None:
            return None
        return self.block_forward_flops / (0.5 * self.peak)
