"""The quick probe: bounded in time, says what it measured, and leaves a run's random numbers alone."""

from __future__ import annotations

import time

import pytest

from scalewright.machine import probe


def test_numpy_alone_measures_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "load_torch", lambda: None)
    rate = probe.matmul_rate("fp32", seconds=0.05)
    assert rate is not None
    assert "numpy" in rate.how
    assert 1e8 < rate.median_per_s <= rate.per_s < 1e15  # any computer that runs Python, and none yet built
    assert probe.matmul_rate("bf16") is None
    assert probe.compare_bf16() is None
    assert "numpy" in probe.copy_rate(seconds=0.02, size=1 << 22).how


def test_torch_measures_what_the_device_has() -> None:
    torch = pytest.importorskip("torch")
    state = torch.get_rng_state()
    start = time.perf_counter()
    rate = probe.matmul_rate("bf16", seconds=0.05)
    assert rate is not None
    assert rate.threads == torch.get_num_threads()
    assert "best of" in rate.how
    assert probe.matmul_rate("tf32") is None, "no TF32 on a CPU"
    assert probe.matmul_rate("fp8") is None
    assert time.perf_counter() - start < 10  # 0.05 s each here; room for a busy machine
    assert torch.equal(torch.get_rng_state(), state)


def test_bf16_comparison_says_what_it_compared() -> None:
    pytest.importorskip("torch")
    found = probe.compare_bf16("cpu", seconds=0.1)
    assert found is not None
    assert all(0 < ratio < 1e6 for ratio in (found.forward, found.input_gradient, found.weight_gradient))
    assert "tokens" in found.how
    assert found.rounds >= 3
    assert found.dump()["fast"] is bool(found)
    assert f"medians of {found.rounds} rounds" in found.describe()


def race(seconds: dict[str, list[float]]) -> probe.Bf16Speed:
    """The comparison on a machine where product after product takes these times, the last ones for ever."""
    now = [0.0]

    def run(kind: str) -> None:
        times = seconds[kind]
        now[0] += times.pop(0) if len(times) > 1 else times[0]

    pairs = [(lambda: run("fp32"), lambda: run("bf16"))] * 3
    return probe._speed("cpu", probe._rounds(pairs, 0.4, lambda: None, lambda: now[0]), "")


def test_a_busy_moment_does_not_decide() -> None:
    """Slow bf16 from the first round on gave fp32 no time at all: "inf times as fast", and bf16 was taken."""
    slow = race({"fp32": [0.14], "bf16": [0.42]})
    assert slow.overall == pytest.approx(1 / 3)
    assert not slow.fast
    # A burst of other work under every product of one round, and under fp32 alone in the next.
    busy = race({"fp32": [0.02] * 6 + [0.5] * 6 + [0.02], "bf16": [0.02] * 6 + [0.5] * 3 + [0.02]})
    assert busy.overall == pytest.approx(1, rel=0.01)
    assert not busy.fast
    assert "inf" not in busy.describe()
    quick = race({"fp32": [0.022], "bf16": [0.02]})
    assert quick.fast, "10% faster in every round"
    assert "1.10 times as fast" in quick.describe()


def test_most_rounds_must_agree() -> None:
    """A median above the margin isn't enough when the rounds contradict each other."""
    ratios = [1.3] * 5 + [0.5] * 4
    rounds = [[(ratio, 1.0)] * 3 for ratio in ratios]
    assert probe._speed("cpu", rounds, "").overall == 1.3
    assert not probe._speed("cpu", rounds, "").fast


@pytest.mark.parametrize(
    ("forward", "inputs", "weights", "overall", "fast"),
    [
        (5.0, 5.0, 3.0, 4.0, True),  # AMX
        (0.3, 0.3, 0.3, 0.3, False),  # emulated
        (1.09, 1.09, 1.09, 1.09, False),  # not worth the copies
        (1.1, 1.1, 1.1, 1.1, True),
        (2.0, 2.0, 0.5, 1.3, False),  # a backward product that is slower than fp32
    ],
)
def test_what_counts_as_fast(forward: float, inputs: float, weights: float, overall: float, fast: bool) -> None:
    assert probe.Bf16Speed("cpu", forward, inputs, weights, overall, "").fast is fast
