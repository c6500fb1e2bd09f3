"""Another trainer's configuration as keys: a reader takes those that it understands, the rest is reported.

RunKeys, LayoutKeys    a run as its file's keys, while a reader fills it in

Numbers of other trainers' files may be texts:

whole, real, number    of a value that must be one: a ValueError or TypeError is the file's fault
whole_of, real_of      of a value that may be anything: None where it is no such number
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from math import isfinite
from typing import Any, Literal, Protocol, TypedDict, TypeVar

from scalewright.emit.emitted import Reading
from scalewright.emit.other_training import other_training
from scalewright.emit.tables import table
from scalewright.spec.common.formatting import flat
from scalewright.spec.errors import UserError
from scalewright.spec.question import Unread

T = TypeVar("T")


def number(value: Any) -> float | int:
    """A number of a command line; `1e-5` is one."""
    real = float(value)
    return int(real) if real.is_integer() and "." not in str(value) and "e" not in str(value).lower() else real


def whole(value: Any) -> int:
    """A whole number of a command line, where `1_000` and 1000.0 are ones."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value  # a seed may be longer than a float's digits
    return int(float(str(value).replace("_", "")))


def real(value: Any) -> float:
    """A number with a fraction."""
    return float(value)


def real_of(value: Any) -> float | None:
    """A finite number, of a text such as `3e-4` too; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def whole_of(value: Any) -> int | None:
    """A whole number from 1 on; None for anything else."""
    number = real_of(value)
    return int(number) if number is not None and 1 <= number < 1e15 and number == int(number) else None


def true(value: Any) -> bool:
    """Whether a value is true, as YAML, JSON or a command line have it."""
    return str(value).lower() in ("true", "1", "yes", "on")


LayoutKey = Literal[  # whose value is a whole number
    "dp_replicate", "tp", "pp", "cp", "micro_batch", "global_batch", "accumulation", "zero_stage"
]


class LayoutKeys(TypedDict, total=False):
    """Keys of `layout`; `accumulation` until the global batch is known."""

    devices: int
    dp_replicate: int
    tp: int
    sp: bool
    pp: int
    cp: int
    cp_kind: str
    ep: int
    etp: int
    schedule: str
    virtual_stages: int
    stage_layers: list[int]
    micro_batch: int
    global_batch: int
    accumulation: int
    zero_stage: int
    precision: str
    recompute: str | dict[str, object]
    offload: str


class RunKeys(TypedDict, total=False):
    """Keys of a run file."""

    model: Any
    layout: LayoutKeys
    data: dict[str, Any]
    optimizer: dict[str, Any]
    lr_schedule: dict[str, object]
    train: dict[str, Any]
    checkpoint: dict[str, int]
    seed: int
    deterministic: bool
    device: str


UNKNOWN = "not a setting that a run of ours has"
ALIKE = 0.9  # of difflib's ratio: a letter of ten, so that a key which exists isn't called a typo


class Readable(Protocol):
    """A rule, as rules.py has them."""

    def read(self, t: ForeignKeys, run: RunKeys) -> None:
        """Puts our key into the run."""


class ForeignKeys:
    """Their keys and values; `log_level` and its like, which say nothing about the run, are set aside."""

    def __init__(self, values: Mapping[str, Any], aside: frozenset[str] = frozenset()) -> None:
        self.values = dict(values)
        self.assumed: list[str] = []
        self.guessed: dict[str, str] = {}  # as Question.guessed
        self._taken: set[str] = set(aside)
        self._why: dict[str, str] = {}

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def take(self, key: str, default: Any = None) -> Any:
        """A key's value, which the reader understands; the default where it isn't set."""
        self._taken.add(key)
        return self.values.get(key, default)

    def take_first(self, *keys: str) -> Any:
        """The value of the first of these names that is set: a key that was renamed."""
        values = [self.take(key) for key in keys]
        return next((value for value in values if value is not None), None)

    def refuse(self, key: str, why: str) -> None:
        """Records why a key's value can't be ours."""
        if key in self.values:
            self._taken.discard(key)
            self._why[key] = why

    def choose(self, key: str, names: Mapping[str, T], absent: str, unknown: T, why: str) -> T:
        """What a name is here; `unknown`, with the reason, for one that isn't among them."""
        name = str(self.take(key, absent))
        if name not in names:
            self.refuse(key, why)
        return names.get(name, unknown)

    def shape(self, key: str, names: Mapping[str, str], absent: str) -> str:
        """The kind of a learning rate's schedule."""
        return self.choose(key, names, absent, "cosine", "taken as cosine: this shape isn't here")

    def refuse_weights(self, *keys: str) -> None:
        """Records keys that name weights to start from."""
        for key in keys:
            self.refuse(key, "weights to start from aren't read: give `init`")

    def read(self, rules: Iterable[Readable], run: RunKeys) -> None:
        """Puts our keys of all rules into a run."""
        for rule in rules:
            rule.read(self, run)

    def assume(self, text: str) -> None:
        """Records a value that was filled in."""
        self.assumed.append(text)

    def guess(self, key: str, value: int, why: str = "") -> None:
        """Records a size of the layout that follows from how many devices there are, which isn't known."""
        self.guessed[key] = f"{key} {value}{why}"
        self.assume(self.guessed[key])

    def guess_devices(self, fewest: int) -> None:
        """Records devices that aren't in the file, as the fewest that its sizes make."""
        self.guess("devices", fewest, ", the fewest for these sizes: set layout.devices")

    def follow(self, *keys: str) -> None:
        """Records sizes of the layout that the file states for each rank: they grow with the devices."""
        self.guessed |= {key: "" for key in keys if key not in self.guessed}

    def reading(self, trainer: str, run: Mapping[str, Any]) -> Reading:
        """The run, with what was assumed and what wasn't taken."""
        named = table("switches.yaml").get(trainer, {})
        given = {option: "1" for key, option in named.items() if true(self.take(key))}
        return Reading(
            trainer, run, self.unread(), tuple(self.assumed), self.guessed, other_training(self.values), options=given
        )

    def unread(self) -> tuple[Unread, ...]:
        """What wasn't taken, in their order."""
        return tuple(
            Unread(key, value, self._why.get(key) or self._unknown(key))
            for key, value in self.values.items()
            if key not in self._taken
        )

    def _unknown(self, key: str) -> str:
        """Why a key isn't read; a key that is nearly one that readers ask for may be mistyped."""
        near = get_close_matches(key, self._taken - self.values.keys(), 1, ALIKE)
        return f"{UNKNOWN}; did you mean '{near[0]}'?" if near else UNKNOWN


def given(document: Mapping[str, Any]) -> dict[str, object]:
    """Dotted keys that are set: null is as if the key weren't there."""
    return {key: value for key, value in flat(document).items() if value is not None}


def read_keys(
    trainer: str, document: Mapping[str, Any], aside: frozenset[str], where: str,
    *readers: Callable[[ForeignKeys, RunKeys], None],
) -> Reading:  # fmt: skip
    """A document's keys as a run, by these readers in turn; raises UserError for a value of another kind."""
    foreign = ForeignKeys(given(document), aside)
    run: RunKeys = {}
    try:
        for reader in readers:
            reader(foreign, run)
    except UserError:
        raise
    except (TypeError, ValueError, ArithmeticError) as error:
        how = "give the file as the trainer takes it"
        raise UserError(f"a value isn't of the kind that {trainer} has there: {error}", where, how) from None
    return foreign.reading(trainer, run)


def shortest(pattern: list[Any]) -> list[Any]:
    """The part that a pattern of all layers repeats."""
    size = len(pattern)
    return next((pattern[:n] for n in range(1, size) if pattern == (pattern[:n] * size)[:size]), pattern)
