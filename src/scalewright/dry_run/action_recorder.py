"""Cuts a watched step of a pipeline into pieces, one an action.

begin()   what comes first | F0 | F1 | B0 | ... | arrived()   what comes last   end()
"""

from __future__ import annotations

from scalewright.dry_run.live_bytes import KINDS
from scalewright.dry_run.replay import Key, Piece, Script, sorts
from scalewright.dry_run.watch import Watch
from scalewright.parallel.execute import Recorder
from scalewright.spec.schedule import Action, Schedule


class ActionRecorder(Recorder):
    """A pipeline's recorder: makes a piece of what was counted between an action's begin and its end."""

    def __init__(self, watch: Watch, plan: Schedule, rank: int) -> None:
        self.watch = watch
        self._sorts = sorts(plan, rank)
        self._pieces: dict[Key, Piece] = {}
        self._before: Piece | None = None
        self._alive = watch.live.snapshot()

    def begin(self) -> None:
        """A piece begins here."""
        self._start = dict(self.watch.live.now)
        self._tally = self.watch.tally()
        self._window = self.watch.live.open()

    def arrived(self) -> None:
        """All messages have: what comes last begins."""
        self.begin()

    def before(self, action: Action) -> None:
        """An action begins; what came before the first is a piece, too."""
        if self._before is None:
            self._before = self._close()
        self.begin()

    def after(self, action: Action) -> None:
        """An action has ended."""
        self._pieces[next(self._sorts)] = self._close()

    def end(self) -> Script:
        """The step has ended."""
        assert self._before is not None
        return Script(self._alive, self._before, self._pieces, self._close())

    def _close(self) -> Piece:
        window = self.watch.live.close(self._window)
        flops, traffic = self.watch.tally()
        flops_before, before = self._tally
        sent = {}
        for key, (count, size) in traffic.items():
            count_before, size_before = before.get(key, (0, 0))
            if count > count_before:
                sent[key] = (count - count_before, size - size_before)
        start, now = self._start, self.watch.live.now
        return Piece(
            flops - flops_before,
            sent,
            {kind: now[kind] - start[kind] for kind in KINDS},
            {kind: window.most[kind] - start[kind] for kind in KINDS},
            {kind: window.at_peak[kind] - start[kind] for kind in KINDS},
        )
