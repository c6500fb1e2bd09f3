"""A failed allocation is one line: rank, step, phase, how much, what would help."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runs import run_data

from scalewright.api import train
from scalewright.spec.errors import RunError
from scalewright.train.memory.out_of_memory import is_out_of_memory, memory_explained, wanted
from scalewright.train.memory.usage import write_history
from scalewright.train.resolve import read_run

CUDA = "CUDA out of memory. Tried to allocate 20.50 GiB. GPU 0 has a total capacity of 79.11 GiB"
CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 40000000000 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError(CUDA), True),
        (RuntimeError(CPU), True),
        (RuntimeError("std::bad_alloc"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts(error: BaseException, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


def test_how_much_was_asked_for() -> None:
    assert wanted(CUDA) == 20.5 * 2**30
    assert wanted(CPU) == 4e10
    assert wanted("std::bad_alloc") is None


@pytest.mark.parametrize(
    ("place", "phase"),
    [
        ("torch.optim.SGD.step", "in the optimizer's step of step 2"),
        ("scalewright.parallel.execute.Plain.train", "in the forward of step 2"),
        ("scalewright.train.engine.build_network", "while building the model"),
    ],
)
def test_a_run_says_where(place: str, phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, _, name = place.rpartition(".")
    before = getattr(pkgutil.resolve_name(owner), name)
    calls: list[None] = []

    def short_of_memory(*given: Any, **named: Any) -> Any:
        calls.append(None)
        if phase.endswith("step 2") and len(calls) < 2:
            return before(*given, **named)
        raise RuntimeError(CPU)

    monkeypatch.setattr(place, short_of_memory)
    with pytest.raises(RunError) as caught:
        train(run_data(tmp_path, train={"steps": 3}, layout={"micro_batch": 2}), quiet=True)
    message = str(caught.value)
    assert message.startswith(f"rank 0 ran out of cpu memory {phase}, asking for 37.25 GiB more: try ")
    assert "layout.micro_batch=1, layout.recompute=full, a smaller data.seq_len" in message


def test_other_errors_pass_unchanged(tmp_path: Path) -> None:
    run = read_run(run_data(tmp_path), [])
    with pytest.raises(RuntimeError, match="shapes") as caught, memory_explained(run, 16, 0, torch.device("cpu")):
        raise RuntimeError("shapes differ")
    assert not isinstance(caught.value, RunError)


def test_the_history_that_was_asked_for_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda path: Path(path).write_bytes(b"history"))
    wanted_path = write_history(True, tmp_path, 3, torch.device("cuda"))
    assert wanted_path == tmp_path / "traces" / "memory-rank00003.pickle"
    assert wanted_path.read_bytes() == b"history"
    assert write_history(False, tmp_path, 3, torch.device("cuda")) is None
    assert write_history(True, tmp_path, 3, torch.device("cpu")) is None
    (tmp_path / "file").write_text("")
    assert write_history(True, tmp_path / "file", 3, torch.device("cuda")) is None, "an error more helps nobody"
