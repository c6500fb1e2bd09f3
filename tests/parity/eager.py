"""What a rank of the matrix's layouts runs: the trainer, with what would be too slow or too large made small.

The compiler's tracing runs without its code generation: generating C++ would take half a minute a layout, and
what a layout can break is in the tracing. A head in chunks has a few logits at once (`CHUNKED_WORDS`); real
sizes of which it has several chunks take gigabytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from few_logits import few_logits
from parity.matrix import CHUNKED_WORDS
from scalewright.launch.rank import RankContext
from scalewright.parity.compare import train_in_turn
from scalewright.train.start import Start


def train_eagerly(context: RankContext, starts: Sequence[Start]) -> None:
    """As `train_in_turn`, with the backend aot_eager; the control of a head in chunks has whole logits."""
    from scalewright.train import network

    network.parallelize = partial(network.parallelize, backend="aot_eager")
    resolved = starts[0].resolved
    if resolved.model.vocab_size == CHUNKED_WORDS and resolved.run.layout.devices > 1:
        few_logits(500)
    train_in_turn(context, starts)
