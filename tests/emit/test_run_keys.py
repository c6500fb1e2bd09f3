"""The keys that readers fill in are those of a run file."""

from __future__ import annotations

from typing import get_args

from scalewright.emit.foreign import LayoutKey, LayoutKeys, RunKeys
from scalewright.spec.layout import Layout
from scalewright.spec.run import RunSpec


def test_keys_are_those_of_a_run_file() -> None:
    assert LayoutKeys.__annotations__.keys() - {"accumulation"} == Layout.model_fields.keys()
    assert RunKeys.__annotations__.keys() <= RunSpec.model_fields.keys()
    assert set(get_args(LayoutKey)) <= LayoutKeys.__annotations__.keys()
