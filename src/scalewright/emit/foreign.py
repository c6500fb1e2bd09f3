"""Another trainer's configuration as keys: a reader takes those that it understands, the rest is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from scalewright.emit.emitted import Reading
from scalewright.emit.run_keys import RunKeys
from scalewright.spec.common.dotted import flat
from scalewright.spec.errors import UserError
from scalewright.spec.question import Unread

UNKNOWN = "not a setting that a run of ours has"
FEWEST = ", the fewest for these sizes: set layout.devices"
ALIKE = 0.9  # of difflib's ratio: a letter of ten, so that a key which exists isn't called a typo


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

    def assume(self, text: str) -> None:
        """Records a value that was filled in."""
        self.assumed.append(text)

    def guess(self, key: str, value: int, why: str = "") -> None:
        """Records a size of the layout that follows from how many devices there are, which isn't known."""
        self.guessed[key] = f"{key} {value}{why}"
        self.assume(self.guessed[key])

    def follow(self, *keys: str) -> None:
        """Records sizes of the layout that the file states for each rank: they grow with the devices."""
        self.guessed |= {key: "" for key in keys if key not in self.guessed}

    def reading(self, trainer: str, run: Mapping[str, Any]) -> Reading:
        """The run, with what was assumed and what wasn't taken."""
        return Reading(trainer, run, self.unread(), tuple(self.assumed), self.guessed)

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


def put_sources(paths: Any, weights: Iterable[Any] | None = None) -> list[dict[str, object]]:
    """Sources of a run from their paths: one, several, or with weights."""
    if isinstance(paths, Mapping):
        return [{"path": str(path), "weight": float(weight)} for path, weight in paths.items()]
    listed = [str(path) for path in (paths if isinstance(paths, list) else [paths])]
    shares = list(weights or ())
    if len(shares) != len(listed) or len(listed) == 1:
        return [{"path": path} for path in listed]
    return [{"path": path, "weight": float(share)} for path, share in zip(listed, shares, strict=True)]


def shortest(pattern: list[Any]) -> list[Any]:
    """The part that a pattern of all layers repeats."""
    size = len(pattern)
    return next((pattern[:n] for n in range(1, size) if pattern == (pattern[:n] * size)[:size]), pattern)
