"""The verdict of a dry run: whether it fits the cluster that its file names, and what would make it fit."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.dry_run import dry_run
from scalewright.dry_run.dry_run import judge
from scalewright.spec.run import RunSpec
from scalewright.spec.step_parts import RISK_TERMS
from scalewright.train.resolve import read_run, resolve

GIB = 2**30
USABLE = 0.9 * 81559 / 1024  # GiB of an H100: nine tenths of what its driver reports


def run_of(cluster: Any, **layout: Any) -> RunSpec:
    keys = {"devices": 64, "zero_stage": 2, "global_batch": 512, "precision": "bf16", **layout}
    data = {"train": "nowhere", "seq_len": 8192}
    run = {"model": "llama-3.1-8b", "cluster": cluster, "layout": keys, "data": data, "device": "cpu"}
    return resolve(read_run(run, []), read_data=False).run


@pytest.mark.parametrize(("peak", "risk", "fits"), [(60, "fits", True), (75, "unlikely", False), (88, "no", False)])
def test_the_peak_beside_a_device_of_the_cluster(peak: int, risk: str, fits: bool) -> None:
    result = judge(run_of("dgx-h100"), 8192, [(32, peak * GIB // 2), (32, peak * GIB)])
    assert (result.risk, result.fits, result.peak_gib) == (risk, fits, peak)
    assert result.over_gib == pytest.approx(peak - USABLE)
    assert result.words.startswith(f"{RISK_TERMS[risk]} dgx-h100: ")
    assert f"of the {USABLE:.1f} GiB that h100-sxm gives a run" in result.words
    if fits:
        assert result.smallest_fix is None
    else:
        assert result.smallest_fix is not None
        assert result.smallest_fix["fits"]
        assert result.smallest_fix["peak_gib"] <= USABLE
        assert result.smallest_fix["change"] in result.words


def test_cpu_processes_share_this_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Machine:
        usable_memory_bytes = 24 * GIB

    monkeypatch.setattr(dry_run, "read_processor", Machine)
    few = judge(run_of("local"), 8192, [(64, GIB // 4)])
    assert few.fits
    assert few.peak_gib == 16
    many = judge(run_of("local"), 8192, [(64, GIB)])
    assert not many.fits
    assert "its ranks together need 64" in many.words
    assert "cluster: NAME" in many.words
