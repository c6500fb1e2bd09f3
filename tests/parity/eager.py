"""What a rank of a compiled layout runs in tests: the compiler's tracing without its code generation.

Generating C++ would take half a minute a layout; what a layout can break is in the tracing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from scalewright.launch.rank import RankContext
from scalewright.parity.ranks import train_in_turn


def train_eagerly(context: RankContext, jobs: Sequence[dict[str, Any]]) -> None:
    """As `train_in_turn`, with the backend aot_eager."""
    from scalewright.train import network

    network.parallelize = partial(network.parallelize, backend="aot_eager")
    train_in_turn(context, jobs)
