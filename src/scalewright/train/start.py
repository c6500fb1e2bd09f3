"""What one rank is started with: plain data, made once by train/run.py, and handed to every worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scalewright.machine.load import CpuMark
from scalewright.spec.common.heartbeat import Heartbeat
from scalewright.spec.errors import Finding
from scalewright.spec.layout import Layout
from scalewright.train.resolve import Resolved

if TYPE_CHECKING:  # which import torch
    from scalewright.train.hangs.board import Patience
    from scalewright.train.session import Session


@dataclass(frozen=True)
class Start:
    """A run to train here, and how."""

    resolved: Resolved
    device: str  # its kind: cpu, cuda or mps
    until: int | None = None  # the step that this call ends with; null: the run's last
    quiet: bool = False
    busy: CpuMark | float | None = None  # cores that others keep busy, or the mark since which to count them
    findings: tuple[Finding, ...] = ()  # of the preflight rules on this node
    restarts: bool = False  # whether local ranks are started again after a failure
    asked: Layout | None = None  # of the run file, where this world is another
    patience: Patience | None = None  # the watchdog's
    prepare: Callable[[Session], None] | None = None  # called before it trains: parity attaches to it
    began: float | None = None  # when its command did, in seconds since 1970
    heart: Heartbeat | None = None  # in the process of the rank that writes, until its display is there

    def at(self, what: str) -> None:
        """What the rank is at before its first step."""
        if self.heart is not None:
            self.heart.now(what)
