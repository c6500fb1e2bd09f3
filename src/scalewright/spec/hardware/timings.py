"""Times of kernels and messages on one machine: curves of seconds over size, as a probe writes them.

    seconds │            ╱ proportional beyond the largest size
            │        ·╱       (beyond a cache a byte costs more: the curve includes that)
            │   ·──·
            │ ──┘ the smallest measured: the cost of a call, however small
            └──────────────── size: FLOPs, bytes or elements

A machine without published figures is priced from these; they are part of a cluster file.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from scalewright.spec.base import Spec

Timed = Literal[
    "linear", "attention", "attention_narrow", "norm", "layer_norm", "gated", "activation", "rope",
    "residual", "embedding", "loss", "add", "optimizer", "watched",
    "all_reduce", "all_gather", "reduce_scatter", "send",
]  # fmt: skip
Phase = Literal["forward", "backward"]
MESSAGES = ("all_reduce", "all_gather", "reduce_scatter", "send")  # timed by the clock on the wall

BF16_MARGIN = 1.1  # that bf16 products must gain: copies of fp32 weights and element-wise code cost more


class TimingCurve(Spec):
    """The times of one kernel or message.

    Sizes are FLOPs of the forward (linear; attention over the full square, with heads of 64 or, narrow, of 32),
    elements (add, optimizer), bytes that the forward reads and writes (of an embedding's backward: those of its table),
    bytes of the whole tensor (messages), or operators (watched: the overhead of selective recomputation on each).
    """

    what: Timed
    phase: Phase = "forward"
    precision: str | None = None  # null: the same in all
    sizes: tuple[float, ...] = Field(min_length=1)
    seconds: tuple[float, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> TimingCurve:
        if len(self.sizes) != len(self.seconds) or list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError("give as many seconds as sizes, sizes ascending")
        if min(self.seconds) <= 0 or min(self.sizes) <= 0:
            raise ValueError("sizes and seconds are above zero")
        return self


class Timings(Spec):
    """Times of `processes` concurrent processes of `threads` threads each.

    Kernels are timed by what a thread ran, so that more processes than `cores` (null: enough) aren't in them;
    nor is a `share` of a core below 1 that each process has at all times, whatever the others do.
    """

    version: Literal[1] = 1
    processes: int = Field(ge=1)
    threads: int = Field(ge=1)
    cores: int | None = Field(None, ge=1)
    share: float = Field(1.0, gt=0, le=1)
    curves: tuple[TimingCurve, ...] = Field(min_length=1)
    how: str = ""
    when: str = ""
    load: float | None = None  # processes ready to run beside the probe, when it began

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions whose kernels were timed."""
        return tuple(dict.fromkeys(curve.precision for curve in self.curves if curve.precision))
