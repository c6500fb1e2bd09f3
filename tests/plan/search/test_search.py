"""The search returns the same best layouts as pricing every layout."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from plan.searches import search
from scalewright.plan.predict import predict, predict_table
from scalewright.plan.request import Request, from_layout
from scalewright.plan.search.axes import make_space
from scalewright.plan.search.choices import Plan
from scalewright.plan.search.objective import make_objective
from scalewright.plan.search.pricer import make_pricer
from scalewright.plan.search.run_file import planned
from scalewright.plan.search.search import capabilities_of
from scalewright.plan.search.space import Rows, Space
from scalewright.spec.compress import check_compress
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import RunSpec

LLAMA, H100 = load_model_spec("llama-3.1-8b"), load_cluster("dgx-h100")
MIXTRAL, GPT3 = load_model_spec("mixtral-8x7b"), load_model_spec("gpt3-175b")


def template(model: Any = LLAMA, devices: int = 16, seq_len: int = 4096, framework: str = "scalewright") -> Request:
    return from_layout(model, H100, Layout(devices=devices), seq_len, framework)


def every_row(space: Space) -> Rows:
    rows = space.spread_shards(space.spread_pipes(space.bare(np.arange(space.cores))))
    return space.spread_offloads(space.spread_recomputes(rows))


@pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("model", "devices", "framework"), [(LLAMA, 64, "scalewright"), (GPT3, 512, "megatron"), (MIXTRAL, 64, "nemo")]
)
def test_a_row_of_the_space_is_priced_as_predict_prices_its_layout(
    model: Any, devices: int, framework: str, count: int
) -> None:
    request = template(model, devices, framework=framework)
    space = make_space(request, 256, {})
    pricer = make_pricer(space, make_objective("time", request.chip, devices, None), 0.0)
    rows = every_row(space)
    rows = rows.take(np.sort(np.random.default_rng(1).choice(len(rows), count, replace=False)))
    priced = pricer.price(rows)
    for i in range(len(rows)):
        layout = Layout.parse(space.keys(rows, i))
        check_layout(layout, model, 4096)
        prediction = predict(model, H100, layout, 4096, framework=framework)
        assert prediction.step_time_s == pytest.approx(priced.seconds[i], rel=1e-9), layout
        assert prediction.peak_gib * 2**30 == pytest.approx(priced.peak[i], rel=1e-9), layout
        assert prediction.fits == priced.fits[i]


@pytest.mark.parametrize(
    ("model", "devices", "objective", "fixed"),
    [
        (LLAMA, 8, "time", {}),
        pytest.param(LLAMA, 8, "energy", {}, marks=pytest.mark.slow),
        pytest.param(MIXTRAL, 8, "energy", {}, marks=pytest.mark.slow),
        (LLAMA, 16, "time", {"recompute": ("full", "selective")}),
        (LLAMA, 16, "time", {"offload": ("optimizer", "all"), "recompute": ({"every": 5}, "full")}),
    ],
)
def test_the_best_is_the_same_as_by_pricing_everything(
    model: Any, devices: int, objective: str, fixed: dict[str, Any]
) -> None:
    arguments: dict[str, Any] = {"devices": devices, "seq_len": 4096, "global_batch": 16, "fixed": fixed}
    plan = search(model, H100, objective=objective, top=3, **arguments)
    request = template(model, devices)
    space = make_space(request, 16, fixed, capabilities_of(request))
    score = make_objective(objective, plan.template.chip, devices, None)
    priced = make_pricer(space, score, plan.goal.headroom).price(every_row(space))
    assert len(priced) == space.size == plan.evaluated
    assert plan.best[0].score == pytest.approx(priced.score[priced.fits].min(), rel=1e-9)
    assert plan.priced <= len(priced)
    check_layout(plan.best[0].layout, model, 4096)


@pytest.mark.parametrize(("framework", "devices"), [("deepspeed", 1), ("torchtitan", 2), ("accelerate", 2)])
def test_the_best_of_a_trainer_without_every_offload_is_not_pruned(framework: str, devices: int) -> None:
    plan = search(LLAMA, H100, devices=devices, seq_len=4096, global_batch=16, framework=framework)
    request = template(LLAMA, devices, framework=framework)
    space = make_space(request, 16, {}, capabilities_of(request))
    pricer = make_pricer(space, make_objective("time", plan.template.chip, devices, None), plan.goal.headroom)
    priced = pricer.price(every_row(space))
    assert plan.best[0].score == pytest.approx(priced.score[priced.fits].min(), rel=1e-9)


def test_recomputation_with_activations_on_the_host_is_not_pruned() -> None:
    """It leaves fewer of them to move, so that no layout without it bounds it."""
    model, cluster = load_model_spec("qwen3-8b"), load_cluster("mi300x")
    layout = Layout(devices=1, zero_stage=0, micro_batch=2, global_batch=2, recompute="full", offload="activations")
    zero = {"zero_stage": (0, 1)}
    plan = search(model, cluster, devices=1, global_batch=2, seq_len=32768, headroom=0.1, fixed=zero)
    assert plan.best[0].prediction.step_time_s <= predict(model, cluster, layout, 32768).step_time_s


def test_trainable_layouts_pass_the_checks_of_the_spec() -> None:
    plan = search(LLAMA, H100, devices=64, seq_len=8192, global_batch=128, top=20)
    for choice in [*plan.best, *plan.pareto]:
        assert choice.prediction.fits
        assert choice.layout.global_batch == 128
        if choice.trainable:
            check_layout(choice.layout, LLAMA, 8192, train=True)
        else:
            assert choice.untrainable
    assert any(choice.trainable for choice in plan.best)


def test_the_best_differ_in_tp_pp_or_sharding() -> None:
    plan = search(LLAMA, H100, devices=64, seq_len=8192, global_batch=128, top=8)
    shards = {0: "nothing", 1: "states", 2: "states", 3: "all"}
    kinds = {(x.layout.tp, x.layout.pp, shards[x.layout.zero_stage]) for x in plan.best}
    assert len(kinds) == len(plan.best) == 8
    scores = [choice.score for choice in plan.best]
    assert scores == sorted(scores)
    times = [(x.prediction.step_time_s, -x.prediction.peak_gib) for x in plan.pareto]
    assert times == sorted(times), "the front rises in time as it falls in memory"


def test_every_layout_is_evaluated_and_few_are_priced() -> None:
    """Bounds prune most layouts; comparisons/planner_speed.py measures the time."""
    cluster = load_cluster("dgx-a100-80g")
    plan = search(GPT3, cluster, devices=4096, seq_len=2048, global_batch=1536)
    assert plan.space == plan.evaluated > 100_000
    assert plan.priced < plan.space / 20


def test_a_stopped_search_returns_the_best_so_far() -> None:
    calls: list[tuple[int, int]] = []
    plan = search(
        LLAMA,
        H100,
        devices=64,
        seq_len=4096,
        global_batch=256,
        tell=lambda done, total: calls.append((done, total)),
        stop=lambda: len(calls) >= 2,
    )
    assert not plan.complete
    assert plan.evaluated < plan.space
    assert plan.best
    assert calls == sorted(calls)
    assert len(calls) == 2


def test_headroom_leaves_memory_free() -> None:
    plan = search(LLAMA, H100, devices=8, seq_len=4096, global_batch=32, headroom=0.5)
    usable = plan.template.chip.capacity * plan.template.framework.usable / 2**30
    assert all(choice.prediction.peak_gib <= 0.5 * usable for choice in plan.best)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fixed": {"tpp": 2}}, "unknown axis 'tpp' (fixed): did you mean 'tp'"),
        ({"fixed": {"tp": 3}}, "tp 3 does not divide devices 64"),
        ({"fixed": {"schedule": "1fb1"}}, "unknown schedule '1fb1' (fixed): did you mean '1f1b'?"),
        ({"fixed": {"tp": 8, "pp": 16}}, "no legal layout has tp 8, pp 16"),
        ({"fixed": {"zero_stage": 4}}, "zero_stage is 4"),
        ({"fixed": {"ep": 2}}, "this model has no experts"),
        ({"fixed": {"devices": 8}}, "devices is not an axis"),
        ({"global_batch": 0}, "global_batch is 0"),
        ({"headroom": 1.5}, "headroom is 1.5"),
        ({"headroom": float("nan")}, "headroom is nan"),
        ({"devices": 10**12}, "devices is 1000000000000"),
        ({"objective": "speed"}, "unknown objective 'speed'"),
        ({"objective": "cost"}, "objective cost needs a price"),
        ({"global_batch": 1, "devices": 8192}, "global_batch 1 can't be dealt to 8192 devices"),
        ({"devices": 4093}, "global_batch 128 can't be dealt to 4093 devices"),
    ],
)
def test_mistakes_are_one_clear_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        search(LLAMA, H100, **{"devices": 64, "seq_len": 8192, "global_batch": 128, **changes})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.how


def test_the_error_for_a_model_that_fits_nowhere_has_the_missing_memory_and_enough_devices() -> None:
    with pytest.raises(UserError) as caught:
        search(GPT3, H100, devices=8, seq_len=2048, global_batch=64, fixed={"offload": "none"})
    message = str(caught.value)
    assert "lacks" in message
    enough = int(message.split(": use ")[1].split(" devices")[0])
    assert search(GPT3, H100, devices=enough, seq_len=2048, global_batch=64, fixed={"offload": "none"}).best


def test_time_cost_and_tokens_per_dollar_have_the_same_best_layout() -> None:
    arguments: dict[str, Any] = {"devices": 64, "seq_len": 8192, "global_batch": 128, "price": 2.0}
    by_time = search(LLAMA, H100, **arguments).best[0]
    by_cost = search(LLAMA, H100, objective="cost", **arguments).best[0]
    by_tokens = search(LLAMA, H100, objective="tokens-per-dollar", **arguments).best[0]
    assert by_time.layout == by_cost.layout == by_tokens.layout
    assert by_cost.value == pytest.approx(by_time.value * 64 * 2.0 / 3600)
    assert by_tokens.value == pytest.approx(128 * 8192 / by_cost.value)


def test_requests_of_choices_are_those_of_their_layouts() -> None:
    plan = search(LLAMA, H100, devices=16, seq_len=4096, global_batch=32)
    predictions = predict_table([choice.prediction.request for choice in plan.best])
    for choice, prediction in zip(plan.best, predictions, strict=True):
        assert prediction.step_time_s == pytest.approx(choice.score, rel=1e-9)


RUNS: dict[str, dict[str, Any]] = {
    "bf16": {"train": {"compress": "bf16"}},
    "powersgd": {"train": {"compress": {"powersgd": {"rank": 8}}}},
    "diloco": {"diloco": {"inner_steps": 50}},
    "diloco, bf16": {"diloco": {"inner_steps": 50}, "train": {"compress": "bf16"}},
    "lion": {"optimizer": {"name": "lion"}},
}


@functools.cache
def of_one_billion(framework: str, zero: int, replicas: int, kind: str = "") -> Plan:
    fixed = {"zero_stage": zero, "dp_replicate": replicas}
    model, keys = load_model_spec("llama-3.2-1b"), {"devices": 16, "seq_len": 4096, "global_batch": 32}
    return search(model, H100, framework=framework, run=RUNS.get(kind), fixed=fixed, **keys)


@pytest.mark.parametrize("framework", ["scalewright", "megatron"])
@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("kind", list(RUNS))
def test_a_run_is_priced_with_the_same_facts_by_search_and_prediction(kind: str, zero: int, framework: str) -> None:
    """Its compression where all layouts have a use for it, its islands and optimizer; of ours alone."""
    replicas = 2 if "diloco" in kind else 1
    plan = of_one_billion(framework, zero, replicas, kind)
    plain = of_one_billion(framework, zero, replicas)
    for choice in plan.best:
        assert choice.prediction.step_time_s == pytest.approx(choice.score, rel=1e-9)
    ours, half = framework == "scalewright", "bf16" in kind or kind == "powersgd"
    priced = ours and not (half and zero and "diloco" not in kind)
    assert (plan.best[0].score != plain.best[0].score) == priced
    assert any("no compressed gradients" in line for line in plan.assumed) == (half and not (ours and zero == 0))
    assert any("no diloco" in line for line in plan.assumed) == ("diloco" in kind and not ours)


@pytest.mark.parametrize("zero", [0, 1])
def test_a_run_file_compresses_as_it_was_priced(zero: int) -> None:
    """With nothing to compress, or shards, it doesn't; the file is one that `train` accepts."""
    model, run = load_model_spec("llama-3.2-1b"), {"train": {"compress": "bf16", "steps": 77}}
    for tp in (1, 8):
        fixed = {"zero_stage": zero, "tp": tp}
        plan = search(model, H100, devices=8, seq_len=4096, global_batch=32, fixed=fixed, run=run)
        best = plan.best[0]
        written = RunSpec.parse(planned(plan.question, best.layout, best.prediction.request.compress, "shards"))
        check_compress(written.train.compress, written.layout)
        assert (written.train.compress == "bf16") == (zero == 0 and tp == 1)
        assert written.train.steps == 77


def test_layouts_that_only_fit_at_p50_are_used_where_none_fits_at_p90() -> None:
    """A layout that is likely to fit is better than none; its risk is marked."""
    arguments = {"devices": 8, "seq_len": 4096, "global_batch": 8, "fixed": {"offload": "none"}}
    plan = search(LLAMA, H100, **arguments)
    assert plan.goal.headroom is None
    assert all(choice.prediction.risk == "fits" for choice in [*plan.best, *plan.pareto])
    fixed = {"tp": 2, "pp": 1, "cp": 1, "zero_stage": 1, "recompute": "none", "offload": "none"}
    arguments |= {"seq_len": 13568, "fixed": fixed}
    tight = search(LLAMA, H100, **arguments)
    assert tight.goal.headroom == 0.0
    assert tight.best[0].prediction.risk == "likely"
    with pytest.raises(UserError, match="fits on no layout"):
        search(LLAMA, H100, **arguments, headroom=0.9)
