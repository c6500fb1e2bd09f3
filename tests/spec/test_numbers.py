"""Numbers as people write them, in keys and in flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scalewright.spec.common.numbers import number_of
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.run import RunSpec


@pytest.mark.parametrize(
    ("text", "name", "number"),
    [
        ("8k", "seq_len", 8192), ("128K", "context", 131072), ("8k", "tokens", 8000), ("15T", "tokens", 15e12),
        ("7B", "params", 7e9), ("7b", "params", 7e9), ("1.5M", "tokens", 1.5e6), ("4e6", "tokens", 4e6),
        ("1_000", "steps", 1000), ("80GB", "memory_bytes", 80e9), ("80 GiB", "memory_bytes", 80 * 2**30),
            ("80gb", "memory_bytes", 80e9),
           
        ("25 Gbit/s", "bytes_per_s", 25e9 / 8), ("100gbps", "bytes_per_s", 12.5e9), ("200Gb/s", "bytes_per_s", 25e9),
        ("900 GB/s", "bytes_per_s", 900e9), ("3.35TB/s", "memory_bytes_per_s", 3.35e12), ("1e9", "bytes_per_s", 1e9),
        ("8192", "seq_len", None), ("7m", "params", None), ("8x", "seq_len", None), ("k", "tokens", None),
        ("8k8", "tokens", None), ("80 GiB", "tokens", None), ("fast", "bytes_per_s", None), ("25", "bytes_per_s", None),
    ],
)  # fmt: skip
def test_a_number_with_its_unit(text: str, name: str, number: float | None) -> None:
    assert number_of(text, name) == (None if number is None else pytest.approx(number, rel=1e-12))


def test_keys_take_them() -> None:
    run = RunSpec.parse(
        {"model": "llama-3.2-1b", "data": {"train": "corpus", "seq_len": "4k"}, "train": {"steps": "2k"}}
    )
    assert (run.data.seq_len, run.train.steps) == (4096, 2000)  # type: ignore[union-attr]
    cluster = load_cluster({"like": "dgx-h100", "fabric": {"bytes_per_s": "25 Gbit/s"}, "host_memory_bytes": "744 GB"})
    assert (cluster.levels[-1].bytes_per_s, cluster.host_memory_bytes) == (25e9 / 8, 744e9)
    for wrong in ("4x", "3", True):
        with pytest.raises(UserError, match="a whole number"):
            RunSpec.parse({"model": "llama-3.2-1b", "data": "corpus", "train": {"steps": wrong}})


def test_a_link_that_is_too_slow_to_be_one_is_named() -> None:
    lines = load_cluster({"like": "dgx-h100", "fabric": {"bytes_per_s": 100}}).assumed
    assert any("fabric 100 B/s a device, which is slow: write its unit" in line for line in lines)
    assert not any("slow" in line for line in load_cluster("dgx-h100").assumed)


def test_flags_take_them_and_errors_show_the_value(call_cli: Callable[..., Any]) -> None:
    words = ["presets", "new", "--params=7B", "--vocab", "32k"]
    assert "vocab_size: 32000" in call_cli(*words).out
    answer = call_cli("predict", "x", "--seq-len", "8x")
    assert "'8x' is not a whole number (--seq-len): write it as 8192, 8k" in answer.err
    assert "'1.0001k' is not a whole number" in call_cli("predict", "x", "--micro-batch=1.0001k").err
    assert "'lots' is not a number (--tokens)" in call_cli("predict", "x", "--tokens", "lots").err
