"""Losses that can't be, and those that can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.diagnose.logs.write import lm_loss, megatron_2026, nanogpt, ours, titan

from scalewright.diagnose.logs.causes import causes
from scalewright.diagnose.logs.changed import changed
from scalewright.diagnose.logs.log import read_log


def test_a_loss_of_zero_can_be_where_rewards_are_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "grpo.log"
    path.write_text("".join(
        f"{{'loss': 0.0, 'grad_norm': 0.0, 'learning_rate': 1e-06, 'reward': 0.{n}, 'kl': 0.0, 'epoch': {n / 100}}}\n"
        for n in range(10, 60)
    ))  # fmt: skip
    assert not [verdict for verdict in changed(read_log(path)) if "can't be" in verdict.cause]
    path.write_text(path.read_text().replace("'reward'", "'score'"))
    assert [verdict for verdict in changed(read_log(path)) if "can't be" in verdict.cause]


RL_LINES: dict[str, str] = {
    "TRL": "{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 1e-06, 'reward': 0.5, 'kl': 0.0, 'epoch': 0.{n}}}",
    "verl": (
        "(TaskRunner pid=9) step:{n} - actor/pg_loss:{loss} - actor/grad_norm:{norm} - val/test_score/gsm8k:0.1 - "
        "critic/rewards/mean:0.9 - timing_s/step:96.5"
    ),
    "OpenRLHF": (
        "Train epoch [1/1]:  {n}%|##  | {n}/99 [00:07<01:40,  1.02s/it, policy_loss={loss}, grad_norm={norm}, kl=0.001]"
    ),
    "ms-swift": "{{'loss': {loss}, 'grad_norm': {norm}, 'completions/max': 1.5, 'global_step/max_steps': '{n}/90'}}",
    "no word of rewards": "{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 1e-06, 'epoch': 0.{n}}}",
}


def small(n: int) -> float:
    """About 0, on both sides of it."""
    return round(float(np.sin(n)) / 100, 4)


@pytest.mark.parametrize("name", RL_LINES)
@pytest.mark.parametrize(
    ("loss", "norm", "words"),
    [
        (lambda n: 0.0 if n < 14 else small(n), lambda n: 0.3 + n / 1000, ""),  # the first steps are on-policy
        (lambda n: 0.0 if n % 4 == 0 else small(n), lambda n: 0.0 if n % 4 == 0 else 0.2, ""),  # all answers right
        (lambda n: -0.02 if n < 30 else 0.2 * n / 90, lambda n: 0.2, ""),  # its size means nothing
        (lambda n: -0.0 if n > 30 else small(n), lambda n: 0.0, "is 0 in 80 of 80 steps, the last 80 among them"),
        (lambda n: small(n), lambda n: 0.0 if n >= 50 else 0.2, "is 0 in 40 of 80 steps, the last 40 among them"),
    ],
)
def test_policy_losses(
    tmp_path: Path, name: str, loss: Callable[[int], float], norm: Callable[[int], float], words: str
) -> None:
    lines = (RL_LINES[name].format(n=n, loss=loss(n), norm=norm(n)) for n in range(10, 90))
    (tmp_path / "rl.log").write_text("\n".join(lines) + "\n")
    log = read_log(tmp_path / "rl.log")
    assert len(log.steps) == 80
    found = [f"{verdict.cause}: {verdict.evidence[0]}" for verdict in causes(log, None)]
    assert [text.startswith("no gradient: ") and words in text for text in found] == [True] * bool(words), found


def test_a_norm_of_zero_beside_a_loss_that_falls_is_not_the_whole_model_s(tmp_path: Path) -> None:
    text = write(tmp_path / "run.log", 4 + losses(0, 80)).read_text()
    (tmp_path / "run.log").write_text(text.replace("grad norm: 0.500", "grad norm: 0.000"))
    assert not causes(read_log(tmp_path / "run.log"), None)


def losses(seed: int, length: int, scatter: float = 0.05) -> np.ndarray:
    """Of a run where all is well."""
    chance = np.random.default_rng(seed)
    return 2.3 + 8 * np.arange(1, length + 1) ** -0.5 + chance.standard_t(4, length) / 1.4 * scatter


def write(path: Path, values: np.ndarray, line: Callable[[int, float, float], str] = megatron_2026) -> Path:
    path.write_text("\n".join(line(step, 1.0, float(value)) for step, value in enumerate(values, 1)) + "\n")
    return path


CLEAN = losses(0, 200)
LAST = float(CLEAN[-1])
DIVERGED = {  # the losses after a clean beginning, and the form of the log
    "a climb of 15 steps that stays": (np.r_[np.linspace(12, 42, 15), np.full(20, 42.1)], lm_loss),
    "a jump that stays": (7.4 + losses(1, 60) * 0.01, megatron_2026),
    "a climb to the end": (np.linspace(LAST, 9, 40), titan),
    "a slow climb": (np.linspace(LAST, LAST + 3, 300), nanogpt),
    "a spike that came back, then a jump": (np.r_[9, 8.5, CLEAN[-60:], np.full(12, 6.2)], ours),
    "up and down far above": (5 + 2 * np.random.default_rng(2).random(80), megatron_2026),
    "a climb into NaN": (np.r_[np.linspace(LAST, 30, 20), np.full(9, np.nan)], megatron_2026),
}


@pytest.mark.parametrize("name", DIVERGED)
def test_a_divergence_is_named_first_and_is_no_spike(tmp_path: Path, name: str) -> None:
    values, line = DIVERGED[name]
    verdicts = causes(read_log(write(tmp_path / "run.log", np.r_[CLEAN, values], line)), None)
    assert verdicts[0].cause == "loss diverged"
    words = verdicts[0].evidence[0]
    start = int(words.split()[2])
    assert start == pytest.approx(263 if name.startswith("a spike") else 201, abs=20 if "slow" in name else 3), words
    assert "never recovers" in words
    others = {verdict.cause for verdict in verdicts[1:]}
    assert others <= ({"loss spikes"} if name.startswith("a spike") else {"loss not finite"})


RECOVERED = {
    "at once": np.r_[12.0, 42.0, CLEAN[-60:]],
    "as fast as it rose": np.r_[np.linspace(LAST, 42, 10), np.linspace(42, LAST, 10), CLEAN[-40:]],
    "slowly": np.r_[LAST + 9 * np.exp(-np.arange(120) / 20), CLEAN[-40:]],
    "below": np.r_[20.0, 30.0, 25.0, CLEAN[-60:] - 0.2],
    "after a restart": np.r_[np.linspace(LAST, 20, 12), CLEAN[-60:]],
}


@pytest.mark.parametrize("name", RECOVERED)
def test_a_loss_that_recovers_has_a_spike(tmp_path: Path, name: str) -> None:
    found = {v.cause for v in causes(read_log(write(tmp_path / "run.log", np.r_[CLEAN, RECOVERED[name]])), None)}
    assert "loss diverged" not in found
    assert "loss spikes" in found


def test_a_hundred_clean_logs_diverge_in_none(tmp_path: Path) -> None:
    lengths, scatters = (16, 24, 50, 200, 700), (0.01, 0.05, 0.2, 0.5)
    cases = [(length, scatter) for length in lengths for scatter in scatters] * 5
    paths = [write(tmp_path / f"{n}.log", losses(n, *case)) for n, case in enumerate(cases)]
    assert not [path for path in paths if any(v.cause == "loss diverged" for v in causes(read_log(path), None))]


@pytest.mark.parametrize(("length", "since"), [(120, 82), (200, 181), (300, 271), (1000, 901)])
def test_a_slower_step_at_the_end_counts_as_what_the_rest_pays(tmp_path: Path, length: int, since: int) -> None:
    chance = np.random.default_rng(length)
    times = (1 + (np.arange(1, length + 1) >= since) * 0.25) * np.exp(chance.normal(0, 0.01, length))
    (tmp_path / "run.log").write_text("\n".join(megatron_2026(n, t, 3.0 + n % 7 / 50) for n, t in enumerate(times, 1)))
    [verdict] = causes(read_log(tmp_path / "run.log"), None)
    assert verdict.cause == "step time shifted"
    assert f"from step {since}" in verdict.evidence[0]
    assert verdict.usual_gain == pytest.approx(20, abs=1)
    assert verdict.gain is not None
    assert verdict.gain.p10 < 8  # of the log
    assert "20% of each step from here on" in verdict.evidence[-1]
