"""The formulas of attention, numerics, speed-up, GPUs, serving and systems against what papers and standards print."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.learn import attention, gpu, inference, memory, numerics, scaling, speedup, systems
from scalewright.learn.communication import outer_volume
from scalewright.spec.presets import load_model_spec

EXACT = 1e-12  # the same arithmetic in another order


def test_formats_are_numpy_s_and_the_paper_s() -> None:
    for name, kind in (("fp32", np.float32), ("fp16", np.float16)):
        form, info = numerics.number_format(name), np.finfo(kind)
        assert (form.bits, form.largest, form.epsilon) == (info.bits, info.max, info.eps)
        assert (form.smallest_normal, form.smallest) == (info.tiny, info.smallest_subnormal)
    # Micikevicius et al. 2022, table 1
    assert [numerics.number_format(name).largest for name in ("e4m3", "e5m2")] == [448, 57344]
    assert [numerics.number_format(name).smallest for name in ("e4m3", "e5m2")] == [2**-9, 2**-16]
    assert numerics.number_format("bf16").bits == 16


def test_an_update_below_half_of_epsilon_rounds_away() -> None:
    lost = numerics.lost_update("fp16")
    assert np.float16(1) + np.float16(lost) == 1
    assert np.float16(1) + np.float16(1.01 * lost) > 1


def test_the_largest_scale_keeps_a_gradient_finite() -> None:
    scale = numerics.loss_scale(3.0)
    assert np.isfinite(np.float16(3.0 * scale))
    with np.errstate(over="ignore"):
        assert not np.isfinite(np.float16(3.0 * 2 * scale))


def test_sums_keep_to_their_bounds() -> None:
    terms = np.full(4096, 0.1, dtype=np.float32)
    total = np.float32(0)
    for term in terms:
        total += term
    exact = float(terms.astype(np.float64).sum())
    error = abs(float(total) - exact) / exact
    assert 0 < error <= numerics.sum_error(4096)
    assert abs(float(terms.sum()) - exact) / exact <= numerics.tree_sum_error(4096) < numerics.sum_error(4096)


def test_bytes_and_bits() -> None:
    assert numerics.quantized_bytes(8e9, 4, group=128) == pytest.approx(8e9 * 4.125 / 8, rel=EXACT)
    assert numerics.integer_step(8) == 1 / 127
    assert numerics.perplexity_bits(numerics.uniform_loss(256), 1.0) == pytest.approx(8, rel=EXACT)


def test_speed_up() -> None:
    assert speedup.amdahl(0.1, 10) == pytest.approx(5.263, abs=5e-4)  # textbooks' example
    assert speedup.amdahl_limit(0.1) == 10
    assert speedup.gustafson(0.1, 10) == pytest.approx(9.1, rel=EXACT)
    assert speedup.serial_share(speedup.amdahl(0.07, 12), 12) == pytest.approx(0.07, rel=1e-9)
    assert speedup.amdahl_efficiency(0.0, 64) == 1
    assert speedup.imbalance([1.0, 1.0, 2.0]) == pytest.approx(1 / 3, rel=EXACT)
    assert speedup.exposed_share({"compute": 9.0, "dp_exposed": 1.0}) == 0.1


def test_caches_are_those_of_the_papers() -> None:
    for name, kv_heads, layers in (("llama-3.1-8b", 8, 32), ("llama-3.1-70b", 8, 80)):
        by_hand = attention.kv_bytes_of_heads(layers, kv_heads, 128)
        assert attention.kv_bytes(load_model_spec(name)) == by_hand
    # DeepSeek-V3's technical report: 512 + 64 numbers in each of 61 layers
    assert attention.kv_bytes(load_model_spec("deepseek-v3")) == 61 * 576 * 2


def test_attention_s_bytes_are_the_algorithms_counted() -> None:
    """Dao et al. 2022, algorithms 0 and 1, tile by tile."""
    tokens, dim, chip = 1024, 64, 64 * 1024
    columns = chip // 2 // (4 * dim)  # keys of a tile, numbers of 2 bytes
    moved = 0
    for _ in range(0, tokens, columns):
        moved += 2 * columns * dim  # k, v
        moved += 3 * tokens * dim  # q read, o read and written
    assert attention.tiled_bytes(tokens, dim, chip) == 2 * moved
    assert attention.materialised_bytes(tokens, dim) == 2 * (4 * tokens * dim + 4 * tokens**2)
    assert attention.score_bytes(32, 8192) == 2 * 32 * 8192**2


def test_positions() -> None:
    assert attention.rope_wavelength(0, 128) == pytest.approx(6.2832, abs=1e-4)
    pairs = attention.rope_pairs_within(8192, 128, 500_000)
    assert attention.rope_wavelength(pairs - 1, 128, 500_000) <= 8192 < attention.rope_wavelength(pairs, 128, 500_000)
    slow = attention.rope_wavelength(63, 128, attention.ntk_theta(10_000, 4, 128))
    assert slow == pytest.approx(4 * attention.rope_wavelength(63, 128), rel=1e-9)  # what the rule is made for
    assert [attention.alibi_slope(head, 8) for head in (0, 7)] == [0.5, 1 / 256]  # Press et al. 2022 §3


def test_an_sm_holds_what_the_guide_s_tables_allow() -> None:
    assert gpu.warps(33) == 2
    assert gpu.occupancy(256, 32) == 1  # 8 blocks of 8 warps, 65,536 registers
    assert gpu.occupancy(256, 64) == 0.5
    assert gpu.blocks_per_sm(1024, 32, 100 * 1024) == 2  # by threads and by shared memory
    assert gpu.blocks_per_sm(128, 168, 0) == 3  # by registers
    assert gpu.wave_efficiency(133, 132) == pytest.approx(133 / 264, rel=EXACT)
    assert gpu.matmul_tiles(129, 128) == 2


def test_serving_by_hand() -> None:
    assert inference.batch_gain(100.0, 0.0, 16) == 16
    assert inference.batch_gain(0.0, 1.0, 16) == 1
    assert inference.tokens_per_check(4, 0.0) == 1
    assert inference.tokens_per_check(4, 1.0) == 5
    drawn = np.random.default_rng(0).random((200_000, 4)) < 0.8
    accepted = np.cumprod(drawn, axis=1).sum(axis=1) + 1
    assert inference.tokens_per_check(4, 0.8) == pytest.approx(accepted.mean(), rel=0.005)  # 200,000 draws: 0.1%
    assert inference.most_requests(80.0, 16.0, 1.0) == 64
    assert inference.sum_share(1e9, 1e12, 0, 1e-6, 8) == 0


def test_systems() -> None:
    assert systems.transfer_seconds(1e9, 8e9, 0.5) == 1.5
    assert systems.leaf_switches(64, 64) == 2
    assert systems.connections(8) == 28
    assert systems.token_bytes(10, 65_536) == 20
    assert systems.token_bytes(10, 65_537) == 40
    assert systems.steps(1001, 100) == 11
    assert systems.checkpoint_bytes(1e9) == 12e9
    assert systems.pass_at_k(20, 4, 1) == pytest.approx(0.2, rel=EXACT)
    assert systems.pass_at_k(5, 4, 2) == 1
    assert oct(systems.mode_after(0o666, 0o022)) == "0o644"
    assert systems.low_rank_share(100, 100, 50) == 1


def test_rules_of_training() -> None:
    assert outer_volume(100.0, 2, 50) == 2.0
    assert memory.nested_inputs(64) == 16
    assert memory.nested_inputs(64) == min(memory.nested_inputs(64, group) for group in range(1, 65))
    assert scaling.steps_over_least(2e6, 2e6) == 2
    # 1.69 + 406.4 / N^0.34 + 410.7 / D^0.28 of Chinchilla itself (Hoffmann et al. 2022, eq. 10)
    assert scaling.chinchilla_loss(7e10, 1.4e12, "hoffmann-printed") == pytest.approx(1.937, abs=0.001)  # by hand
    assert 1 < scaling.optimum_spread(1e22) < 20
