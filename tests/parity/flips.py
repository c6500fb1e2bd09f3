"""Ranks of a layout whose routers choose other experts than one device's, as rounding may make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scalewright.launch.rank import RankContext
from scalewright.parity.ranks import train_in_turn


def train_with_flips(context: RankContext, jobs: Sequence[dict[str, Any]]) -> None:
    """As `train_in_turn`; where there are several ranks, every fifth token goes to the next experts."""
    from scalewright.model.router import Router

    plain = Router.forward

    def flipped(router: Router, rows: Any) -> Any:
        choice = plain(router, rows)
        experts = choice.experts.clone()
        experts[::5] = (experts[::5] + 1) % router.moe.num_experts
        return router.choice(experts, choice.logits, choice.scores)

    if context.world > 1:
        Router.forward = flipped  # type: ignore[method-assign]  # in this worker, which ends with the run
    train_in_turn(context, jobs)
