"""What a plan leaves out because its trainer can't run it, and what that would gain.

fastest of the trainer's layouts --ceiling--> a search of all layouts --> those that are faster, and why not
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scalewright.plan.capabilities import Capabilities
from scalewright.plan.search.axes import Fixed, make_space
from scalewright.plan.search.choices import Choice, Maker
from scalewright.plan.search.finder import Finder
from scalewright.plan.search.pricer import Priced, make_pricer
from scalewright.plan.search.simplest import choose

LEAST = 0.001  # of a gain that is worth a line


@dataclass(frozen=True)
class Beyond:
    """A layout that the trainer can't run, faster than its own fastest."""

    choice: Choice
    needs: list[str]  # what of the layout it lacks
    gain_pct: float  # of speed, over the trainer's fastest

    def dump(self) -> dict[str, Any]:
        """Plain data: `predict`'s keys, what it needs, and what it would gain."""
        return {**self.choice.dump(), "needs": self.needs, "gain_pct": self.gain_pct}


def beyond(
    maker: Maker,
    finder: Finder,
    fixed: Fixed,
    trainer: Capabilities,
    fastest: float,
    margin: float,
    stop: Callable[[], bool] | None = None,
    top: int = 3,
) -> list[Beyond]:
    """The layouts that the trainer can't run and that are faster than `fastest`, the score of its own."""
    space = make_space(maker.template, finder.space.global_batch, fixed)
    pricer = make_pricer(space, finder.pricer.objective, finder.pricer.headroom, maker.asked["c"])
    wide = Finder(pricer, top, window=1.0, ceiling=fastest * (1 - LEAST))
    wide.run(None, stop)
    priced = Priced.join(wide.found) if wide.found else None
    fitting = priced.take(priced.fits) if priced is not None else None
    if fitting is None or not len(fitting):
        return []
    rows, _ = choose(wide, fitting, top, margin)
    choices = [(choice, trainer.missing(choice.keys)) for choice in maker.of(space).choices(rows)]
    layouts = [
        Beyond(choice, needs, 100 * (fastest / choice.score - 1)) for choice, needs in choices if needs
    ]
    return sorted(layouts, key=lambda layout: -layout.gain_pct)
