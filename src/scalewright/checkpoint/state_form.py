"""The form of state.json's keys that readers rely on. A checksum finds what a disk did, this what an edit."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, GetCoreSchemaHandler

from scalewright.spec.base import Spec

Count = Annotated[int, Field(ge=0, le=1 << 62)]
Keys = Annotated[dict[str, Any], Field(default_factory=dict)]
Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]
Number = float | dict[str, Any]  # of an optimizer (plain_values.py)


class _Form(Spec):
    """Any number and any text, as a state has them: a product that underflows, the inf of a schedule."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Without the rules of `spec/scalars.py`, which are for what a person writes."""
        return handler(source)


class _Data(_Form):
    segments: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    paths: dict[str, str] = Field(default_factory=dict)


class _Run(_Form):
    layout: Keys
    train: Keys
    data: Keys


class State(_Form):
    """All of it. A key may be missing, and others, as those of a newer release, may be anything."""

    step: Count = 0
    samples: Count = 0
    tokens: Count = 0
    optimizer: dict[str, dict[str, Number]] = Field(default_factory=dict)
    run: _Run | None = None
    data: _Data = _Data()
    guard: Keys
    left_out: list[Pair] = Field(default_factory=list)
    schedule_unit: Annotated[float, Field(gt=0)] | None = None
