"""The closed forms against the machinery that they simplify: operators, schedules, and priced collectives."""

from __future__ import annotations

import pytest
from tests.rank_states import state_bytes

from scalewright.learn import communication, laws, memory, roofline, training
from scalewright.learn.communication import ring_volume, zero_volume
from scalewright.spec.flops import flops_per_token, recompute_flops
from scalewright.spec.hardware.devices import load_device
from scalewright.spec.layout import Layout
from scalewright.spec.operators import activation_bytes, operators
from scalewright.spec.presets import load_model_spec
from scalewright.spec.schedule import bubble_fraction, idle_time
from scalewright.spec.tensors import count

EXACT = 1e-12  # the same formula, summed in another order


# -- FLOPs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-7b", "gpt2-124m"])
def test_palm_s_rule_is_the_operators_sum_but_for_what_does_not_multiply(name: str) -> None:
    model = load_model_spec(name)
    width = model.num_attention_heads * model.dim_per_head
    n = count(model).active_without_input
    rule = laws.palm_flops(n, 1, model.num_hidden_layers, width, 2048)
    # norms, biases and learned positions are parameters without FLOPs: under 1% of these models
    assert flops_per_token(model, 2048, causal=False) == pytest.approx(rule, rel=0.01)
    assert flops_per_token(model, 2048, causal=False) < rule


def test_recomputing_attention_s_forward_is_a_third_of_the_paper_s_price() -> None:
    """Korthikanti's 2.7% for GPT-3 counts attention's backward too; what is done again is 0.9%."""
    model = load_model_spec("gpt3-175b")
    again = recompute_flops(model, Layout(), 2048, causal=False, recompute="selective")
    share = again / (2048 * flops_per_token(model, 2048, causal=False))
    assert training.attention_share(model, 2048) == pytest.approx(3 * share, rel=EXACT)
    assert share == pytest.approx(0.009, abs=0.0005)  # to the digit printed


def test_full_recomputation_is_a_third_more() -> None:
    model = load_model_spec("mt-nlg-530b")
    plain, again = (training.step_flops(model, 2048, 1, kind) for kind in ("none", "full"))  # type: ignore[arg-type]
    # all but the head is done again: a little less than 4/3
    assert 1.32 < again / plain < 4 / 3
    assert laws.hfu(1.0, 1e9, 1e15) == pytest.approx(laws.mfu(1.0, 1e9, 1e15) * 4 / 3)


def test_tinyllama_s_own_figure_leaves_the_input_embedding_out() -> None:
    """Its README says 56%: 6 N of all parameters gives 50.8% or 59.3%, the operators with attention 56%."""
    mfu = training.model_mfu(load_model_spec("tinyllama-1.1b"), 2048, 24000, 312e12)
    assert mfu == pytest.approx(0.56, abs=0.005)  # printed without decimals


def test_half_of_attention_s_square_is_what_the_mask_leaves() -> None:
    model = load_model_spec("llama-3.1-405b")
    n = count(model).active_without_input
    rule = laws.palm_flops(n, 1, 126, 16384, 4096, causal=True)
    # the diagonal, and norms without FLOPs: a thousandth
    assert flops_per_token(model, 4096) == pytest.approx(rule, rel=1e-3)


def test_the_share_of_a_peak_depends_on_whose_peak_it_is() -> None:
    """DeepSeek-V3's run: the scaling book takes the PCIe card's FP8 peak, not that of the SXM it ran on."""
    for name, share in (("h100-pcie", 0.216), ("h800-sxm", 0.165)):
        peak = load_device(name).peak("fp8")
        assert peak is not None
        assert laws.run_mfu(37e9, 14.8e12, 2.79e6, peak) == pytest.approx(share, abs=0.0005)  # to the digit


def test_attention_s_intensity_is_the_operator_s() -> None:
    model = load_model_spec("llama-3.1-8b")  # 4 query heads a KV head
    core = next(o for o in operators(model, Layout(), 4096) if o.kind == "attention")
    assert roofline.attention_intensity(4096, 4096, 4) == pytest.approx(
        core.flops / (core.read + core.written), rel=EXACT
    )


def test_below_the_ridge_memory_binds() -> None:
    ridge = roofline.ridge_point(1e15, 1e12)
    for rows, bound in ((ridge / 2, "memory"), (ridge * 2, "compute")):
        floor = roofline.matmul_floor(int(rows), 10**6, 10**6, 1e15, 1e12)
        assert floor.bound == bound
        assert floor.seconds == max(floor.compute, floor.memory)


# -- memory -----------------------------------------------------------------------------------------


def test_states_of_this_package_s_trainer_are_the_fp32_recipe() -> None:
    model, layout = load_model_spec("llama-56m"), Layout(devices=4, zero_stage=3)
    own = state_bytes(model, layout)
    rule = memory.model_states(count(model).total, 4, 4, 8, zero_stage=3, ranks=4)
    # AdamW's step counts, 4 bytes a tensor, are all that differs
    assert own.parameters + own.gradients + own.optimizer == pytest.approx(rule.total, rel=1e-4)


def test_each_zero_stage_holds_less() -> None:
    held = [memory.model_states(1e9, zero_stage=stage, ranks=64).total for stage in range(4)]
    assert held == sorted(held, reverse=True)
    assert held[0] == 16e9
    assert held[3] == 16e9 / 64


def test_gpt_activations_are_the_operators_own_without_dropout() -> None:
    model = memory.gpt(1024, 16, 4)
    layout = Layout(precision="bf16")
    plain = activation_bytes(model, layout, 512, layers=range(1, 3), attention="unfused")
    masks = 2 * 512 * 1024 * 2 + 3 * 16 * 512**2 * 2  # 2 s b h + 3 a s² b, two layers
    assert memory.gpt_activation_bytes(1024, 16, 512, 2) == plain + masks


# -- pipelines --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "micros", "chunks"), [(4, 8, 1), (8, 32, 2), (8, 8, 8), (2, 6, 3)])
def test_megatron_s_bubble_is_the_schedule_s(ranks: int, micros: int, chunks: int) -> None:
    printed = training.megatron_bubble(ranks, micros, chunks)
    assert printed == pytest.approx((ranks - 1) / (chunks * micros), rel=EXACT)
    kind = "interleaved" if chunks > 1 else "1f1b"
    assert training.bubble_over_ideal(kind, ranks, micros, chunks) == pytest.approx(printed, rel=EXACT)


def test_megatron_s_bubble_is_too_small_with_fewer_micro_batches_than_ranks() -> None:
    assert training.megatron_bubble(8, 2, 2) == pytest.approx(1.75, rel=EXACT)
    assert training.bubble_over_ideal("interleaved", 8, 2, 2) == pytest.approx(3.25, rel=EXACT)


def test_the_zero_bubble_table_is_the_schedule_s_wait_over_1f1b_s_step() -> None:
    one = idle_time("1f1b", 4, 1, 12) / bubble_fraction("1f1b", 4, 1, 12)
    assert training.zero_bubble_rate("zb1p", 4, 12) == pytest.approx(idle_time("zb-h1", 4, 1, 12) / one, rel=EXACT)
    # of its own, shorter step the share is larger: the table is a rule of thumb
    assert training.zero_bubble_rate("zb1p", 4, 12) == pytest.approx(1 / 15, rel=EXACT)
    assert bubble_fraction("zb-h1", 4, 1, 12) == pytest.approx(1 / 13, rel=EXACT)


# -- links ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 8, 64])
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_what_the_planner_pays_for_a_ring_is_alpha_and_beta(kind: str, ranks: int) -> None:
    size, rate, hop = 1e9, 50e9, 2e-6
    hops = (ranks - 1) * (2 if kind == "all_reduce" else 1)
    expected = hops * hop + ring_volume(kind, size, ranks) / rate
    assert communication.ring_seconds(kind, size, ranks, rate, hop) == pytest.approx(expected, rel=EXACT)


def test_a_torus_axis_that_closes_is_twice_as_fast() -> None:
    open_axis, closed = (communication.torus_gather_seconds(1e9, 1024, 45e9, wraps) for wraps in (False, True))
    assert open_axis == pytest.approx(2 * closed, rel=1 / 512)  # (n-1)/n, which the closed form leaves out


def test_a_closed_axis_of_four_is_a_quarter_faster_than_the_book_s_rule() -> None:
    both_ways = communication.ring_seconds("all_gather", 1e9, 4, 2 * 45e9)
    assert both_ways == pytest.approx(0.75 * communication.torus_gather_seconds(1e9, 4, 45e9), rel=EXACT)


def test_an_all_reduce_is_a_scatter_and_a_gather() -> None:
    assert ring_volume("all_reduce", 1.0, 16) == 2 * ring_volume("reduce_scatter", 1.0, 16)
    assert ring_volume("all_to_all", 1.0, 16) == ring_volume("all_gather", 1.0, 16)
    assert ring_volume("broadcast", 3.0, 16) == 3.0
    assert ring_volume("all_reduce", 1.0, 10**9) == pytest.approx(zero_volume(1.0, 0), rel=1e-8)


def test_doubling_has_fewer_delays_than_a_ring() -> None:
    assert communication.doubling_delay_seconds(2, 1e-6) == communication.ring_delay_seconds(2, 1e-6)
    assert communication.doubling_delay_seconds(64, 1e-6) < communication.ring_delay_seconds(64, 1e-6)


# -- sharding ---------------------------------------------------------------------------------------


def test_gpt_2_s_count_is_not_a_llama_s() -> None:
    gpt = memory.gpt(4096, 32, 32, vocab=128256, positions=1024)
    assert count(gpt).total == pytest.approx(6.97e9, abs=0.005e9)
    assert count(load_model_spec("llama-3-8b")).total == pytest.approx(8.03e9, abs=0.005e9)


def test_at_the_floor_fsdp_s_gather_takes_as_long_as_its_math() -> None:
    peak, rate, devices = 459e12, 180e9, 64
    tokens = communication.data_parallel_batch(roofline.ridge_point(peak, rate), devices, axes=2)
    times = communication.fsdp_layer_times(tokens, 8192, 28672, devices, peak, rate, axes=2)
    assert times.compute == pytest.approx(times.gather, rel=EXACT)


def test_the_best_split_is_where_both_kinds_of_traffic_are_equal() -> None:
    tokens, devices, width = 4e6, 4096, 28672
    ways = communication.best_fsdp_ways(tokens, devices, width)  # two axes to one
    fsdp, tensor = width / (devices / ways) / 2, tokens / ways / 1  # bytes a rank over its axes, both over D
    assert fsdp == pytest.approx(tensor, rel=EXACT)


def test_limits_are_inverse_to_each_other() -> None:
    width = communication.tensor_parallel_width(8, 2550)
    assert communication.tensor_parallel_limit(width, 2550) == pytest.approx(8)
    floor = communication.mixed_batch(28672, 2550, 100)
    assert communication.mixed_is_compute_bound(floor * 1.01, 28672, 2550, 100)
    assert not communication.mixed_is_compute_bound(floor * 0.99, 28672, 2550, 100)


def test_sixteen_bits_double_the_playbook_s_ratios() -> None:
    """Its appendix divides numbers by bytes a second; the functions' own default counts bytes."""
    printed = communication.zero3_gather_over_compute(4096, 1, 64, 989e12, 50e9, element=1)
    assert communication.zero3_gather_over_compute(4096, 1, 64, 989e12, 50e9) == pytest.approx(2 * printed)
    printed = communication.pipeline_send_over_compute(8192, 4, 989e12, 50e9, element=1)
    assert communication.pipeline_send_over_compute(8192, 4, 989e12, 50e9) == pytest.approx(2 * printed)
