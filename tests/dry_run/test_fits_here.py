"""A run that can't fit is refused before any process starts, and none that fits is."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.runs import MODEL

import scalewright
from scalewright.api import train
from scalewright.dry_run import fits_here
from scalewright.dry_run.dry_run import dry_run
from scalewright.dry_run.fits_here import check_memory
from scalewright.launch.rank import RankContext
from scalewright.spec.errors import UserError
from scalewright.spec.shapes import new_preset
from scalewright.train.memory.out_of_memory import estimate, helps
from scalewright.train.resolve import Resolved, read_run, resolve

GIB = float(2**30)
SMALL = new_preset(2e6, "llama", 2048).dump()


def run_of(model: Any, layout: dict[str, Any], seq_len: int = 128, **changes: Any) -> Resolved:
    data = {"train": "nowhere", "seq_len": seq_len}
    run = {"model": model, "device": "cpu", "layout": {"precision": "fp32", **layout}, "data": data}
    return resolve(read_run({**run, **changes}, []), read_data=False)


def refusal(resolved: Resolved, monkeypatch: pytest.MonkeyPatch, free_gib: float) -> str | None:
    monkeypatch.setattr(fits_here, "free_memory", lambda *_: free_gib * GIB)
    try:
        check_memory(resolved, "cpu", RankContext())
    except UserError as error:
        return str(error)
    return None


def test_what_cannot_fit_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for 64 devices on a laptop's CPU; no rank and no dry run is started for it."""
    monkeypatch.setattr(fits_here, "_counted", lambda *_, **__: pytest.fail("counted what is certain"))
    layout = {"devices": 64, "tp": 2, "zero_stage": 1, "global_batch": 512}
    message = refusal(run_of("llama-3.1-8b", layout, 8192), monkeypatch, 24)
    assert message is not None
    assert "64 processes need at least" in message
    assert "24.0 GiB are free on this machine" in message
    assert "--dry-run" in message
    assert "--no-memory-check" in message


def test_a_sequence_that_is_too_long_names_one_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits_here, "_counted", lambda *_, **__: pytest.fail("counted what is certain"))
    layout = {"micro_batch": 1, "global_batch": 1, "recompute": "full"}
    message = refusal(run_of(SMALL, layout, 1_600_000), monkeypatch, 20)
    assert message is not None
    assert "this run needs at least" in message
    assert "data.seq_len=" in message
    length = int(message.split("data.seq_len=")[1].split()[0].rstrip(";"))
    assert 1000 < length < 1_600_000


def test_the_smallest_change_is_named() -> None:
    resolved = run_of(SMALL, {"micro_batch": 64, "global_batch": 64}, 512)
    need = estimate(resolved.run, 512)
    assert need is not None
    assert helps(resolved.run, 512, 0.5 * need.high, 1) == "layout.micro_batch=1"
    full = run_of(SMALL, {"recompute": "full"}, 128)
    assert helps(full.run, 128, 1.0, 1) is None


@pytest.mark.parametrize(
    ("model", "layout", "seq_len"),
    [
        (SMALL, {}, 128),
        pytest.param(SMALL, {"micro_batch": 4, "recompute": "full"}, 512, marks=pytest.mark.slow),
        (MODEL, {"devices": 2}, 16),
    ],
)
def test_the_estimate_holds_what_a_dry_run_counts(
    model: Any, layout: dict[str, Any], seq_len: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = run_of(model, layout, seq_len)
    need = estimate(resolved.run, seq_len)
    counted = max(group.step.peak for group in dry_run(resolved.run).groups)
    assert need is not None
    assert need.low < counted < need.high
    ranks = resolved.run.layout.devices
    assert refusal(resolved, monkeypatch, 1.02 * ranks * counted / GIB) is None, "what fits is never refused"
    assert refusal(resolved, monkeypatch, 0.9 * ranks * counted / GIB) is not None


def test_it_can_be_overridden_and_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called once the data are there, and before workers: the folder of a run isn't even made."""
    started: list[str] = []
    monkeypatch.setattr("scalewright.train.run.run_local", lambda *_, **__: started.append("workers"))
    monkeypatch.setattr("scalewright.train.run.enter", lambda *_, **__: started.append("here"))
    monkeypatch.setattr("scalewright.train.run.with_data", lambda resolved: resolved)
    monkeypatch.setattr(fits_here, "free_memory", lambda *_: 1.0)
    run = {"model": SMALL, "device": "cpu", "data": {"train": "nowhere", "seq_len": 64}, "out_dir": str(tmp_path / "r")}
    with pytest.raises(UserError, match="are free on this machine"):
        train(run)
    assert started == []
    assert not (tmp_path / "r").exists()
    with pytest.raises(TypeError):  # the stand-in gives no answer: it was reached
        train(run, memory_check=False)
    assert started == ["here"]


def test_every_start_of_a_run_has_the_check() -> None:
    """The trainer has none of its own: only the API may call it, which passes the check."""
    source = Path(scalewright.__file__).parent
    calls = re.compile(r"from scalewright\.train\.run import .*\btrain\b|from scalewright\.train import .*\brun\b")
    callers = {path.name for path in source.rglob("*.py") if calls.search(path.read_text(encoding="utf-8"))}
    assert callers == {"api.py"}


def test_ranks_of_a_launcher_count_their_own_node(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = run_of("llama-3.1-8b", {"devices": 64, "zero_stage": 3, "global_batch": 64}, 2048)
    monkeypatch.setattr(fits_here, "free_memory", lambda *_: 60 * GIB)
    here = RankContext(rank=9, world=64, local_rank=1, local_world=8)
    check_memory(resolved, "cpu", RankContext(rank=9, world=64, local_world=1))
    monkeypatch.setattr(fits_here, "free_memory", lambda *_: 10 * GIB)
    with pytest.raises(UserError, match="8 processes need"):
        check_memory(resolved, "cpu", here)


class FakeGpus:
    """Four GPUs of 80 GiB in torch.cuda: another job fills the last, this process's cache the first."""

    used = (71, 1, 2, 79)  # NVML's: of all processes, caches included
    reserved = (70, 0, 0, 0)
    allocated = (5, 0, 0, 0)

    def __init__(self, monkeypatch: pytest.MonkeyPatch, visible: int = 4, initialized: bool = True) -> None:
        def gib(numbers: tuple[int, ...]) -> Any:
            return lambda number: int(numbers[number] * GIB)

        total = SimpleNamespace(total_memory=int(80 * GIB))
        for name, function in {
            "device_count": lambda: visible,
            "is_initialized": lambda: initialized,
            "get_device_properties": lambda number: total,
            "device_memory_used": gib(self.used),
            "memory_reserved": gib(self.reserved),
            "memory_allocated": gib(self.allocated),
        }.items():
            monkeypatch.setattr(torch.cuda, name, function)


@pytest.mark.parametrize(
    ("ranks", "trains", "free_gib"),
    [
        (1, True, 80 - 71 + 65),  # a second run in a notebook: the first one's cache is its own
        (1, False, 80 - 71),  # a worker can't have its parent's cache
        (3, True, 80 - 71 + 65),
        (4, True, 80 - 79),
        (8, True, 80 - 79),  # more ranks than GPUs: refused elsewhere
    ],
)
def test_free_gpu_memory_is_that_of_the_ranks_devices(
    ranks: int, trains: bool, free_gib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeGpus(monkeypatch)
    assert fits_here.free_memory("cuda", ranks, trains) == free_gib * GIB


def test_a_process_without_a_cuda_context_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpus(monkeypatch, visible=1, initialized=False)
    assert fits_here.free_memory("cuda", 2, True) == 9 * GIB


def test_other_jobs_gpus_do_not_stop_a_run_of_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 GiB of weights, gradients and AdamW state fit the first GPU beside a full one, and not the last."""
    FakeGpus(monkeypatch)
    model = new_preset(1.5e9, "llama", 2048).dump()
    alone = run_of(model, {"recompute": "full"}, 256)
    check_memory(alone, "cuda", RankContext())
    four = run_of(model, {"devices": 4, "zero_stage": 0, "recompute": "full", "global_batch": 4}, 256)
    with pytest.raises(UserError, match=r"1\.00 GiB are free on a GPU here"):
        check_memory(four, "cuda", RankContext())


@pytest.mark.parametrize(("devices", "free_gib", "most"), [(1000, 1e4, 128), (60, 4, 40), (120, 1e4, None)])
def test_more_cpu_processes_than_the_machine_bears(
    monkeypatch: pytest.MonkeyPatch, devices: int, free_gib: float, most: int | None
) -> None:
    """By its cores (two here), by its memory; a tiny model's tensors would fit in any number."""
    monkeypatch.setattr(fits_here, "cores", lambda: 2)
    layout = {"devices": devices, "dp_replicate": devices, "zero_stage": 0, "global_batch": devices}
    message = refusal(run_of(MODEL, layout, 16), monkeypatch, free_gib)
    assert (message is None) == (most is None), message
    if most is not None:
        assert f"{devices:,} CPU processes" in str(message)
        assert f"at most {most} devices" in str(message)
        assert "--no-memory-check" in str(message)
