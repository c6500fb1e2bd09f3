"""The form of state.json's keys that readers rely on. A checksum finds what a disk did, this what an edit."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from scalewright.spec.base import Spec

Count = Annotated[int, Field(ge=0, le=1 << 62)]
Keys = Annotated[dict[str, Any], Field(default_factory=dict)]
Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]
Number = Annotated[float, Field(allow_inf_nan=True)] | dict[str, Any]  # of an optimizer (plain_values.py)


class _Data(Spec, strict=True, extra="allow"):
    segments: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    paths: dict[str, str] = Field(default_factory=dict)


class _Run(Spec, strict=True, extra="allow"):
    layout: Keys
    train: Keys
    data: Keys


class State(Spec, strict=True, extra="allow"):
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
