"""How long kernels and messages took on one machine: curves of seconds over size, as a probe writes them.

    seconds │            ╱ proportional beyond the largest size
            │        ·╱       (what doesn't fit a cache costs more a byte: a curve holds that by itself)
            │   ·──·
            │ ──┘ the smallest measured: a call costs this much, however little it does
            └──────────────── size: FLOPs, bytes or elements

A machine that nobody publishes figures of is priced from these; they are data, and travel in a cluster file.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from scalewright.spec.base import Spec

What = Literal[
    "linear", "attention", "attention_narrow", "norm", "layer_norm", "gated", "activation", "rope",
    "residual", "embedding", "loss", "add", "optimizer", "watched",
    "all_reduce", "all_gather", "reduce_scatter", "send",
]  # fmt: skip
Phase = Literal["forward", "backward"]


class Timing(Spec):
    """One kernel or message.

    Sizes are FLOPs of the forward (linear; attention over the full square, with heads of 64 or, narrow, of
    32), elements (add, optimizer), bytes that the forward reads and writes (of an embedding's backward: those
    of its table), bytes of the whole tensor (messages), or operators (watched: what selective
    recomputation's bookkeeping adds to each).
    """

    what: What
    phase: Phase = "forward"
    precision: str | None = None  # null: the same in all
    sizes: tuple[float, ...] = Field(min_length=1)
    seconds: tuple[float, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Timing:
        if len(self.sizes) != len(self.seconds) or list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError("give as many seconds as sizes, sizes ascending")
        if min(self.seconds) <= 0 or min(self.sizes) <= 0:
            raise ValueError("sizes and seconds are above zero")
        return self


class Timings(Spec):
    """What `processes` processes of `threads` threads each took when they worked at the same time."""

    version: Literal[1] = 1
    processes: int = Field(ge=1)
    threads: int = Field(ge=1)
    curves: tuple[Timing, ...] = Field(min_length=1)
    how: str = ""
    when: str = ""
    load: float | None = None  # processes ready to run beside the probe, when it began

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions whose kernels were timed."""
        return tuple(dict.fromkeys(curve.precision for curve in self.curves if curve.precision))
