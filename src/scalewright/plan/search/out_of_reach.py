"""Layouts that a plan leaves out because its trainer can't run them, and the speed they would gain.

fastest layout of the trainer --ceiling--> search of all layouts --> faster ones, and what the trainer lacks
"""

from __future__ import annotations

from dataclasses import replace

from scalewright.plan.search.axes import Fixed, make_space
from scalewright.plan.search.choices import Beyond, ChoiceMaker
from scalewright.plan.search.finder import Finder, Stop
from scalewright.plan.search.pricer import Priced, make_pricer
from scalewright.plan.search.simplest import choose
from scalewright.spec.capabilities import Capabilities

TOP = 3
MIN_GAIN = 0.001  # of speed: smaller gains aren't reported


def out_of_reach(
    maker: ChoiceMaker, finder: Finder, fixed: Fixed, trainer: Capabilities, fastest: float, stop: Stop | None
) -> list[Beyond]:
    """The layouts faster than `fastest` (the score of the trainer's best) that the trainer can't run."""
    space = make_space(maker.template, finder.space.global_batch, fixed)
    pricer = make_pricer(space, finder.pricer.objective, finder.pricer.headroom, maker.goal.c)
    wide = Finder(pricer, TOP, window=1.0, ceiling=fastest * (1 - MIN_GAIN))
    wide.run(None, stop)
    candidates = Priced.join(wide.candidates)
    fitting = candidates.take(candidates.fits)
    if not len(fitting):
        return []
    rows, _ = choose(wide, fitting, TOP, maker.goal.margin)
    choices = [(choice, trainer.missing(choice.keys)) for choice in replace(maker, space=space).choices(rows)]
    faster = [Beyond(choice, needs, 100 * (fastest / choice.score - 1)) for choice, needs in choices if needs]
    return sorted(faster, key=lambda layout: -layout.gain_pct)
