"""A job's whole output: its steps, what ended it, when it changed, in one file or several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalewright.diagnose.diagnose import diagnose
from scalewright.diagnose.logs.answer import log_answer
from scalewright.diagnose.logs.expected import Given

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


TITAN = (
    "[titan] Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1, etp=1\n"
    "[titan] Building llama3 8B with TransformerModelArgs(dim=4096)\n"
    "[titan] CUDA capacity: NVIDIA H100 80GB HBM3 with 79.11GiB memory\n"
    "[titan] Trainer is initialized with local batch size 8, global batch size 64, gradient accumulation steps 1, "
    "sequence length 8192, total steps 1000 (warmup 200)\n"
)
OTHERS = "Process 99 has 30.00 GiB memory in use. Process 98 has 48.00 GiB memory in use.\n"
SHAPE = {"layout": {"devices": 8, "global_batch": 64, "micro_batch": 8}, "cluster": "dgx-h100", "seq_len": 8192}


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        (TITAN + MEMORY, Given(), ("the plan counts", "what fits first is")),
        (MEMORY, Given("llama-3-8b", **SHAPE), ("the plan counts", "what fits first is micro_batch 1")),
        (MEMORY, Given("llama-3-405b", **SHAPE), ("no single change fits, the nearest is",)),
        (MEMORY, Given("llama-3-8b", cluster="dgx-h100"), ("scalewright plan", "not in the log: number of devices")),
        (MEMORY, Given(), ("scalewright plan", "add --model MODEL --cluster CLUSTER")),
        (TITAN + MEMORY.strip() + OTHERS, Given(), ("end the other processes", "what fits first is")),
    ],
)  # fmt: skip
def test_memory_is_answered_from_the_plan(tmp_path: Path, text: str, given: Given, words: tuple[str, ...]) -> None:
    (tmp_path / "job.out").write_text(text)
    fix = log_answer([tmp_path / "job.out"], given)["verdicts"][0]["fix"]
    assert all(word in fix for word in words), fix


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


def test_an_end_in_a_file_beside_the_steps_is_one(tmp_path: Path) -> None:
    assert causes(tmp_path, a_dmesg=MEMORY, b_job=lines())[0][0] == "rank 3: device out of memory"
    (tmp_path / "b_job.err").write_text(MEMORY)
    files = [tmp_path / "b_job.err", tmp_path / "b_job.out"]
    assert diagnose(files)["verdicts"][0]["cause"] == "rank 3: device out of memory"


def test_an_end_beside_the_first_part_of_two_is_a_restart(tmp_path: Path) -> None:
    (tmp_path / "a.out").write_text(lines(60))
    (tmp_path / "a.err").write_text(MEMORY)
    (tmp_path / "b.out").write_text("\n".join(lines(120).splitlines()[60:]))
    answer = diagnose([tmp_path / name for name in ("a.err", "a.out", "b.out")])
    assert answer["ended"] is None
