"""What one starter says of this process, and its variables as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scalewright.launch.starters import Names, Starter
from scalewright.spec.errors import UserError


@dataclass(frozen=True)
class Source:
    """What one starter says of this process."""

    starter: Starter
    rank: int
    world: int
    local_rank: int
    local_world: int | None  # null: it doesn't say
    agents: int | None = None

    @property
    def words(self) -> str:
        """For an error."""
        here = f", {self.local_world} of them on this node" if (self.local_world or 1) > 1 else ""
        return f"{self.starter.name} says rank {self.rank} of {self.world}{here}"


def first_set(environ: Mapping[str, str], names: Names) -> str | None:
    """The value of the first of these variables that is set and not empty."""
    return next((environ[name] for name in names if environ.get(name)), None)


def number_of(environ: Mapping[str, str], names: Names) -> int | None:
    """The same as a number; raises UserError for one that isn't."""
    for name in names:
        if not environ.get(name):
            continue
        try:
            return int(environ[name])
        except ValueError:
            what = f"{name} is {environ[name]!r}, not a number"
            raise UserError(what, "environment", "unset it, or start with torchrun") from None
    return None
