"""A cluster profile: it comes back from its file, and holds what was measured and how."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fake_machine import machine

from scalewright.bench.profile import joining_level, make_profile, provenance
from scalewright.spec.base import write_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster

MESSAGES = {"ranks": 2, "fits": [{"kind": "all_reduce", "bytes_per_s": 3e9, "hop_s": 4e-5}]}
SEEN = {
    "host": "a", "system": "b", "command": "c", "versions": {"torch": "2"},
    "source": {"commit": "abc", "dirty": True},
}  # fmt: skip


def test_a_profile_comes_back_from_its_file(tmp_path: Path) -> None:
    profile = make_profile(
        machine(), messages=MESSAGES, products=[], memory=[], when="now", software=provenance(SEEN, 1.5)
    )
    write_yaml(tmp_path / "here.yaml", profile.dump())
    read = load_cluster(str(tmp_path / "here.yaml"))
    assert read == profile
    assert read.measured is not None
    assert read.measured.timings == machine().measured.timings  # type: ignore[union-attr]
    assert read.measured.levels["node"].bytes_per_s == 3e9
    assert read.measured.levels["node"].latency_s == 4e-5
    assert read.measured.software == {
        "host": "a", "system": "b", "command": "c", "torch": "2", "commit": "abc with changes",
        "load": "1.50",
    }  # fmt: skip


def test_a_device_takes_its_rates_from_the_largest_array() -> None:
    rows = [
        {"bytes": 10, "best_bytes_per_s": 9e12},
        {"bytes": 99, "best_bytes_per_s": 2e12},
        {"bytes": 99, "best_bytes_per_s": 3e12},
    ]
    products = [{"precision": "bf16", "best_flops_per_s": 7e14}]
    profile = make_profile(machine(1), messages=None, products=products, memory=rows, when="now", software={})
    assert profile.measured is not None
    assert profile.measured.memory_bytes_per_s == 3e12
    assert profile.measured.matmul_flops == {"bf16": 7e14}


def test_the_level_of_the_processes_that_were_timed() -> None:
    assert joining_level(machine(4), 4) == "node"
    with pytest.raises(UserError, match="joins 5"):
        joining_level(machine(4), 5)
