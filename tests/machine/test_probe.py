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
    assert not probe.bf16_is_fast()
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
    assert min(found.forward, found.input_gradient, found.weight_gradient) <= found.overall
    assert found.overall <= max(found.forward, found.input_gradient, found.weight_gradient)
    assert "tokens" in found.how
    assert found.dump()["fast"] is bool(found)


@pytest.mark.parametrize(
    ("forward", "inputs", "weights", "overall", "fast"),
    [
        (5.0, 5.0, 3.0, 4.0, True),  # AMX
        (0.3, 0.3, 0.3, 0.3, False),  # emulated
        (1.1, 1.1, 1.1, 1.1, False),  # not worth the copies
        (2.0, 2.0, 0.5, 1.3, False),  # a backward product that is slower than fp32
    ],
)
def test_what_counts_as_fast(
    forward: float, inputs: float, weights: float, overall: float, fast: bool
) -> None:
    assert probe.Bf16Speed("cpu", forward, inputs, weights, overall, "").fast is fast
