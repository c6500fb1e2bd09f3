"""Planted faults are named, and a quiet run has none."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.logs.write import megatron_2021, megatron_2026, nemo, titan

from scalewright.diagnose.diagnose import diagnose
from scalewright.diagnose.logs.causes import spikes
from scalewright.diagnose.logs.steps import Step


def run(folder: Path, times: dict[int, float] | None = None, losses: dict[int, float] | None = None) -> dict[str, Any]:
    """200 steps of about 1 s and a loss that falls from 5 to 3, but for the given ones."""
    source = random.Random(3)
    path = folder / "run.log"
    lines = []
    for step in range(1, 201):
        seconds = (times or {}).get(step, source.gauss(1.0, 0.005))
        loss = (losses or {}).get(step, 5 - step / 100 + source.gauss(0, 0.02))
        lines.append(megatron_2021(step, seconds, loss))
    path.write_text("\n".join(lines) + "\n")
    return diagnose([path])


def causes(answer: dict[str, Any]) -> list[str]:
    return [verdict["cause"] for verdict in answer["verdicts"]]


def test_a_quiet_run_has_none(tmp_path: Path) -> None:
    assert causes(run(tmp_path)) == []


def test_periodic_slow_steps(tmp_path: Path) -> None:
    answer = run(tmp_path, dict.fromkeys(range(20, 201, 20), 6.0))
    [verdict] = answer["verdicts"]
    assert verdict["cause"] == "periodic slow steps"
    assert "every 20 lines" in " ".join(verdict["evidence"])
    assert verdict["gain_pct"]["p90"] == pytest.approx(100 * 50 / 250, rel=0.03)


def test_stalls(tmp_path: Path) -> None:
    [verdict] = run(tmp_path, {33: 12.0, 41: 8.0, 170: 9.0})["verdicts"]
    assert verdict["cause"] == "stalls"
    assert "33, 41, 170" in verdict["evidence"][0]


def test_a_pause_between_steps_is_seen_by_the_clock(tmp_path: Path) -> None:
    lines = []
    for step in range(1, 51):
        line = megatron_2026(step + 30 * (step > 25), 1.0, 3.0)
        lines.append(line.replace(f"{step + 30 * (step > 25):8d}/", f"{step:8d}/"))
    (tmp_path / "run.log").write_text("\n".join(lines))
    [verdict] = diagnose([tmp_path / "run.log"])["verdicts"]
    assert (verdict["cause"], "step 26" in verdict["evidence"][0]) == ("stalls", True)


def test_spikes_of_the_loss(tmp_path: Path) -> None:
    [verdict] = run(tmp_path, losses={90: 7.5, 91: 7.1, 150: 6.0})["verdicts"]
    assert verdict["cause"] == "loss spikes"
    assert "2 spikes" in verdict["evidence"][0]
    assert verdict["gain_pct"] == {"p10": 0.0, "p50": 0.0, "p90": 0.0}


def test_a_fast_fall_at_the_start_and_noise_are_no_spikes() -> None:
    source = random.Random(5)
    falling = [Step(n, loss=3 + 8 * 0.9**n + source.gauss(0, 0.05)) for n in range(500)]
    assert spikes(falling) == []
    assert spikes([Step(n, loss=3.0) for n in range(100)]) == []


def test_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    answer = run(tmp_path, losses={n: float("nan") for n in range(120, 201)})
    assert causes(answer)[0] == "loss not finite"
    evidence = " ".join(answer["verdicts"][0]["evidence"])
    assert "81 steps" in evidence
    assert "steps 120, 121" in evidence
    assert "time since then is lost" in evidence


def test_engines_that_skip_more_than_the_steps_of_a_log_have_no_share(tmp_path: Path) -> None:
    path = tmp_path / "rlhf.log"
    path.write_text(megatron_2021(1, 1.0, 3.0) + "\n" + "[deepspeed] OVERFLOW! Rank 0 Skipping step.\n" * 8)
    [verdict] = diagnose([path])["verdicts"]
    assert verdict["evidence"] == [
        "fp16 gradients overflowed at their loss scale 8 times; of how many steps isn't in the log"
    ]
    assert verdict["gain_pct"] == {"p10": 0.0, "p50": 0.0, "p90": 0.0}


@pytest.mark.parametrize(
    ("losses", "norm", "words"),
    [
        ([0.0] * 20, "nan", "20 steps from step 1 on have a loss of exactly 0.0"),
        ([0.0] * 20, "0.5", ""),  # as GRPO's
        ([3.0, 2.9, 0.0, 2.8], "1.4", "1 step from step 3 on has a loss of exactly 0.0"),
        ([3.0, 2.9, -1.0, -1.0], "1.4", "2 steps from step 3 on have a loss of exactly -1.0"),
        ([2.302585] * 12, "0.5", "12 steps in a row from step 1 on have the loss 2.303"),
        ([2.3] * 20, "0.5", ""),  # rounded
        ([3 - n / 10 for n in range(12)], "0.5", ""),
    ],
)
def test_losses_that_cannot_be(tmp_path: Path, losses: list[float], norm: str, words: str) -> None:
    path = tmp_path / "run.log"
    lines = (megatron_2021(n, 1.0, loss).replace("norm: 0.500", f"norm: {norm}") for n, loss in enumerate(losses, 1))
    path.write_text("\n".join(lines) + "\n")
    evidence = [line for verdict in diagnose([path])["verdicts"] for line in verdict["evidence"]]
    assert (words in evidence) if words else not any("loss" in line for line in evidence)


def test_skipped_updates_of_fp16(tmp_path: Path) -> None:
    lines = [megatron_2021(step, 1.0, 3.0) for step in range(1, 41)]
    some = [line.replace("skipped iterations:   0", "skipped iterations:   1") for line in lines[:8]]
    (tmp_path / "run.log").write_text("\n".join(some + lines[8:]))
    [verdict] = diagnose([tmp_path / "run.log"])["verdicts"]
    assert verdict["cause"] == "skipped updates"
    assert "8 steps of 40" in verdict["evidence"][0]
    assert verdict["gain_pct"]["p90"] == 20


def test_warm_up_is_left_out_also_after_a_restart(tmp_path: Path) -> None:
    numbers = [*range(1, 21), *range(11, 31)]
    lines = [nemo(n, 30.0 if place in (0, 20) else 1.0, 3.0) for place, n in enumerate(numbers)]
    (tmp_path / "run.log").write_text("\n".join(lines))
    answer = diagnose([tmp_path / "run.log"])
    assert answer["log"]["measured"]["left_out"] == 4
    assert (answer["log"]["restarts"], causes(answer)) == (1, [])


def test_step_times_by_the_clock_of_the_lines(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("\n".join(titan(step, 1.0, 3.0) for step in range(10, 60, 10)))
    measured = diagnose([tmp_path / "run.log"])["log"]["measured"]
    assert (measured["step_time_s"], measured["source"]) == (1.0, "clock")


def test_a_log_with_lines_of_nccl_gets_both(tmp_path: Path) -> None:
    nccl = (
        "node1:11:22 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n"
        "node1:11:22 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 "
        "commId 0x2 - Init START\n"
    )
    text = nccl + "\n".join(megatron_2021(step, 1.0, 3.0) for step in range(1, 9))
    (tmp_path / "run.log").write_text(text)
    answer = diagnose([tmp_path / "run.log"])
    assert (answer["kind"], len(answer["log"]["steps"])) == ("log", 8)
    assert answer["nccl"]["version"] == "2.21.5+cuda12.4"


def test_a_trainer_state(tmp_path: Path) -> None:
    history = [
        {"epoch": n / 10, "loss": 3 - n / 100, "grad_norm": 1.0, "learning_rate": 1e-4, "step": n} for n in (5, 10)
    ]
    state = {"best_metric": None, "global_step": 10, "log_history": [*history, {"eval_loss": 9, "step": 10},
             {"train_loss": 1, "step": 10}], "train_batch_size": 4}  # fmt: skip
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(state, indent=2))
    log = diagnose([path])["log"]
    assert [(step["step"], step["loss"]) for step in log["steps"]] == [(5, 2.95), (10, 2.9)]
    assert (log["framework"], log["layout"]) == ("hf-trainer", {"micro_batch": 4})
    path.write_text(path.read_text().replace('"step": 5', f'"step": 1{"0" * 400}').replace("2.9,", "NaN,"))
    assert [step["step"] for step in diagnose([path])["log"]["steps"]] == [None, 10]
    path.write_bytes(path.read_bytes()[:-30])
    assert "cut off" in diagnose([path])["warnings"][0]


@pytest.mark.parametrize("words", ["Dumping profiler traces at step {}", "Dumping traces at step {}"])
def test_the_step_in_which_torchtitan_writes_its_traces_is_no_stall(tmp_path: Path, words: str) -> None:
    lines = []
    for step in range(1, 61):
        later = step + 40 * (step > 20) + 40 * (step > 40)
        lines.append(titan(later, 1.0, 4 - step / 60).replace(f"step: {later:2d}", f"step: {step:2d}"))
        if step in (20, 40):
            lines.append(titan(later, 1.0, 3.0).partition("step:")[0] + words.format(step))
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n")
    answer = diagnose([path])
    assert (len(answer["log"]["steps"]), causes(answer)) == (60, [])
    assert answer["log"]["measured"]["traced"] == 2
    path.write_text("\n".join(line for line in lines if "traces" not in line) + "\n")
    assert causes(diagnose([path])) == ["stalls"]
