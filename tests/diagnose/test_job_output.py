"""A job's whole output: its steps, what ended it, when it changed, in one file or several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.diagnose.diagnose import diagnose

MEMORY = (
    "[rank3]: Traceback (most recent call last):\n[rank3]: torch.OutOfMemoryError: CUDA out of memory. "
    "Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.11 GiB of which 1.20 GiB is free.\n"
)
NCCL = "node1:77:99 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1\n"


def lines(count: int = 120, slower_from: int = 10**6, loss_zero_from: int = 10**6) -> str:
    chance = np.random.default_rng(0)
    text = ""
    for step in range(1, count + 1):
        took = 1000 * (1.22 if step >= slower_from else 1) * float(np.exp(chance.normal(0, 0.01)))
        loss = 0.0 if step >= loss_zero_from else 2 + 8 / step**0.5
        text += (
            f" iteration {step:8d}/     500 | consumed samples: {step * 64:12d} | elapsed time per iteration (ms): "
            f"{took:.1f} | learning rate: 1.0E-04 | global batch size:    64 | lm loss: {loss:.6E} | "
            "grad norm: 0.512 |\n"
        )
    return text


def causes(folder: Path, **texts: str) -> tuple[list[str], dict[str, Any]]:
    for name, text in texts.items():
        (folder / f"{name}.out").write_text(text)
    answer = diagnose([folder / f"{name}.out" for name in texts])
    return [verdict["cause"] for verdict in answer["verdicts"]], answer


def test_the_end_comes_before_what_slowed_it(tmp_path: Path) -> None:
    names, answer = causes(tmp_path, job=lines(slower_from=81) + MEMORY)
    assert names[0] == "rank 3: device out of memory"
    assert "step time shifted" in names
    assert answer["ended"]["how"] == "device memory"
    assert answer["ended"]["facts"] == {"tried": 2.0, "capacity": 79.11, "free": 1.2}


def test_a_shift_is_named_with_its_step(tmp_path: Path) -> None:
    names, answer = causes(tmp_path, job=lines(slower_from=81))
    assert names == ["step time shifted"]
    assert answer["verdicts"][0]["evidence"][0].startswith("from step 81 on a step takes 1.22 s, before 1 s")
    assert answer["ended"] is None


def test_a_clean_log_has_no_cause(tmp_path: Path) -> None:
    assert causes(tmp_path, job=lines() + "[after training is done] datetime: 2026-01-02\n")[0] == []


def test_an_exception_that_training_went_on_after_is_no_end(tmp_path: Path) -> None:
    text = lines(60) + MEMORY + lines(120).split("\n", 60)[-1]
    assert causes(tmp_path, job=text)[1]["ended"] is None


def test_losses_that_cannot_be_are_named(tmp_path: Path) -> None:
    names, answer = causes(tmp_path, job=lines(loss_zero_from=100))
    assert names == ["loss that can't be"]
    assert answer["verdicts"][0]["evidence"] == ["21 steps from step 100 on have a loss of exactly 0.0"]


def test_a_trainers_file_and_nccls_are_one_job(tmp_path: Path) -> None:
    _, answer = causes(tmp_path, job=lines() + MEMORY, nccl=NCCL * 3)
    assert answer["kind"] == "log"
    assert answer["ended"]["what"] == "rank 3: device out of memory"
    assert "nccl" in answer


def test_a_text_of_which_nothing_is_understood_is_exit_code_1(tmp_path: Path, call_cli: Any) -> None:
    (tmp_path / "x.txt").write_text("root:x:0:0:root\n" * 5)
    result = call_cli("diagnose", str(tmp_path / "x.txt"), "--json")
    assert result.code == 1
    assert json.loads(result.out)["ended"] is None
    (tmp_path / "y.txt").write_text(MEMORY)
    assert call_cli("diagnose", str(tmp_path / "y.txt"), "--json").code == 0
