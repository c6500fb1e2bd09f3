"""The steps of a log, each once: ranks that print the same are one, a number that goes back is a restart.

    1: step 20  loss 3.1      ┐ one step                       step 20
    3: step 20  loss 3.1      ┘                                step 30
    1: step 30  loss 3.0                                       ── restart ──
    3: step 20  loss 3.1      a late rank: same loss           step 11
    1: step 11  loss 3.2      a restart                        ...

Steps that were done twice, before a restart and after it, are there twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

RECENT = 4  # steps behind the newest that a late rank may still print
LATE = 10.0  # seconds that it may be late
OLD = 7200.0  # seconds: clocks of nodes differ by less, and summer time ends by one hour
MOST = 1_000_000  # steps that are kept: 200 MB of memory


@dataclass(slots=True)
class Step:
    """A step as the log has it: seconds, tokens/s, TFLOP/s a device, GiB; None for what its line lacks."""

    step: int | None = None
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_device: float | None = None
    tflops: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    memory_gib: float | None = None
    skipped: float | None = None  # steps since the last line whose update was skipped
    nan: float | None = None
    clock: float | None = None  # seconds since 1970, as the line has it
    life: int = 0  # how many restarts came before
    traced: bool = False  # a profiler recorded it, or wrote its file in its time

    def fill(self, values: Mapping[str, float]) -> None:
        """Adds what this step lacks."""
        for key, value in values.items():
            if key in STEP_KEYS and getattr(self, key) is None:
                setattr(self, key, value)


STEP_KEYS = frozenset(step_field.name for step_field in fields(Step)) - {"life", "step", "traced"}
SHOWN = (
    "step", "step_time_s", "tokens_per_s", "tokens_per_s_per_device", "tflops", "loss", "grad_norm", "lr", "memory_gib",
)  # fmt: skip


@dataclass
class Steps:
    """The steps of one kind of line."""

    joins: bool = False
    all: list[Step] = field(default_factory=list)
    restarts: int = 0
    left_out: int = 0  # beyond MOST
    left_older: int = 0  # lines whose dates go back: an older run's, in another rank's output
    older: tuple[float, float] | None = None  # the first one's clock, and how long it is before those around it
    # Number, loss and clock.
    _recent: deque[tuple[float, float | None, float | None]] = field(default_factory=lambda: deque(maxlen=RECENT))
    _before: str = ""  # the values of the line before, where they have no number; NaN is like NaN
    _latest: float | None = None  # clock
    _gathered: dict[str, float] = field(default_factory=dict)  # of a step whose values have a line each
    _fresh: bool = False  # a line since the last step said that the run begins

    def begin(self) -> None:
        """Marks that the log says here that a run begins."""
        self._fresh = bool(self.all)

    def gather(self, values: Mapping[str, float]) -> None:
        """Takes in a line that has one value: the next step begins where one comes again, with none the last ends."""
        if not values or values.keys() & self._gathered.keys():
            if {"step", "loss"} <= self._gathered.keys():
                self.add(self._gathered)
            self._gathered = {}
        self._gathered |= values

    def add(self, values: Mapping[str, float], clock: float | None = None) -> None:
        """Takes in a line's values."""
        order = values.get("step", values.get("epoch"))
        newest = self._recent[-1][0] if self._recent else None
        if self.joins and self.all and order in (None, newest) and not self._fresh:
            self.all[-1].fill(values)
            return
        if clock is not None and self._latest is not None and clock < self._latest - OLD and not self._fresh:
            self.older = self.older or (clock, self._latest - clock)
            self.left_older += 1
            return
        self._latest = self._latest if clock is None else clock
        back = order is not None and newest is not None and order < newest
        again = order == newest or (back and self._late(order, values.get("loss"), clock))
        if again and "step" not in values:  # a rounded epoch is that of many steps
            again = str(values) == self._before
        self._before = str(values) if "step" not in values else ""
        if order is not None and again and not self._fresh:  # another rank's: the largest memory counts
            for step in self.all[-RECENT:]:
                if step.step == values.get("step") and (step.memory_gib or 0) < values.get("memory_gib", 0):
                    step.memory_gib = values["memory_gib"]
            return
        if self.all and (self._fresh or back):
            self.restarts += 1
            self._recent.clear()
        self._fresh = False
        if order is not None:
            self._recent.append((order, values.get("loss"), clock))
        if len(self.all) >= MOST:
            self.left_out += 1
            return
        number = values.get("step")
        step = Step(int(number) if number is not None else None, clock=clock, life=self.restarts)
        step.fill(values)
        self.all.append(step)

    def _late(self, order: float | None, loss: float | None, clock: float | None) -> bool:
        """Whether a rank prints a recent step once more: with the same loss, and not long after it."""
        return any(
            (order, loss) == (number, before) and (clock is None or printed is None or abs(clock - printed) <= LATE)
            for number, before, printed in self._recent
        )
