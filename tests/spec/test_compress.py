"""`train.compress`: what it may be, where it is refused, and what it counts."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.spec.compress import LowRank, check_compress, factors, half_part, read_compress
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.run import RunSpec


def parse(compress: Any) -> Any:
    run = RunSpec.parse({"model": "tiny", "data": {"train": "nowhere"}, "train": {"compress": compress}})
    return run.train.compress


def test_a_run_file_says_it_strictly() -> None:
    assert [parse(word) for word in ("none", "bf16", "fp16")] == ["none", "bf16", "fp16"]
    power = parse({"powersgd": {"rank": 2}})
    assert isinstance(power, LowRank)
    assert (power.powersgd.rank, power.powersgd.start_after) == (2, 0)
    assert parse({"powersgd": {}}) == LowRank()
    run = RunSpec.parse({"model": "tiny", "data": {"train": "x"}, "train": {"compress": {"powersgd": {}}}})
    assert RunSpec.parse(run.dump()) == run
    with pytest.raises(UserError, match=r"use one of none, bf16, fp16, or \{powersgd: \{rank: 4\}\}"):
        parse("int8")
    with pytest.raises(UserError, match=r"ranks.*rank"):
        parse({"powersgd": {"ranks": 2}})
    with pytest.raises(UserError, match="rank"):
        parse({"powersgd": {"rank": 0}})


@pytest.mark.parametrize(
    ("compress", "layout", "problem"),
    [
        ("bf16", {"devices": 2, "zero_stage": 1}, r"zero_stage 1 shards them .*zero_stage=0"),
        ({"powersgd": {}}, {"devices": 2, "zero_stage": 3}, "powersgd compresses .*; zero_stage 3 shards"),
        ("fp16", {"devices": 1}, "nothing to compress"),
        ("bf16", {"devices": 2, "tp": 2, "zero_stage": 0}, "nothing to compress"),
        ({"powersgd": {}}, {"devices": 2, "zero_stage": 0, "precision": "fp16"}, "loss scale changes"),
    ],
)
def test_what_it_can_not_do_is_refused_by_name(compress: Any, layout: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        check_compress(read_compress(compress), Layout.parse(layout))


def test_where_it_can_it_is_taken() -> None:
    check_compress("none", Layout.parse({"devices": 2, "zero_stage": 3}))
    check_compress("bf16", Layout.parse({"devices": 2, "cp": 2, "zero_stage": 0}))
    check_compress("fp16", Layout.parse({"devices": 2, "zero_stage": 0, "precision": "fp16"}))


def test_factors_of_what_shrinks() -> None:
    assert factors((64, 48), 4, stacked=False, partial=False) == (64 * 4, 48 * 4)
    assert factors((3, 64, 48), 4, stacked=True, partial=False) == (3 * 64 * 4, 3 * 48 * 4)
    assert factors((16, 3, 2, 2), 1, stacked=False, partial=False) == (16, 12)  # a convolution: 16 x 12
    whole = [((64,), 4, False), ((8, 8), 4, False), ((64, 48), 4, True), ((64, 48), 0, False), ((0, 48), 4, False)]
    for shape, rank, partial in whole:
        assert factors(shape, rank, stacked=False, partial=partial) == (0, 0)
    assert [half_part(size, 4) for size in (1, 8, 9, 16, 17)] == [2, 2, 4, 4, 6]
