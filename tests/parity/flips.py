"""Ranks of a layout whose routers choose other experts than one device's, by much or by little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scalewright.launch.rank import RankContext
from scalewright.parity.compare import train_in_turn
from scalewright.train.start import Start


def train_with_flips(context: RankContext, starts: Sequence[Start]) -> None:
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
    train_in_turn(context, starts)


def train_with_ties(context: RankContext, starts: Sequence[Start]) -> None:
    """As `train_in_turn`, but two experts always tie; where there are several ranks, the other one is nearer.

    Their logits are the same, and a layout's scores of one are a unit in the last place higher, as sums in
    another order may make them. The weights stay as they are: a change in place is lost where a rank has
    them for one forward only, and is refused where another forward comes before the backward.
    """
    from scalewright.model.router import Router

    plain = Router.forward

    def tied(router: Router, rows: Any) -> Any:
        choice = plain(router, rows)
        same = [0, 0, *range(2, router.moe.num_experts)]
        logits = choice.logits[:, same]
        scores = logits.softmax(dim=-1) if router.moe.score == "softmax" else logits.sigmoid()
        nudged = scores.detach().clone()
        nudged[:, 0 if context.world == 1 else 1] *= 1 + 2.0**-22
        experts = nudged.topk(router.moe.top_k, dim=-1).indices
        return router.choice(experts, logits, scores)

    Router.forward = tied  # type: ignore[method-assign]  # in this worker, which ends with the run
    train_in_turn(context, starts)
