"""The simulation agrees with the published bubbles, keeps every dependency, and detects deadlocks."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from scalewright.spec.schedule import (
    COMPUTE,
    KINDS,
    RECEIVES,
    SENDS,
    Action,
    Deadlock,
    Schedule,
    StageCost,
    Timing,
    bubble_fraction,
    busy_time,
    closed_form,
    idle_time,
    schedule,
    simulate,
)
from scalewright.spec.schedules.bubble import idle_columns
from scalewright.spec.schedules.build import find_problem

COSTS = [
    StageCost(1, 1, 1),
    StageCost(1, 1.25, 0.75),
    StageCost(2, 2, 1),
    StageCost(1, 1.5, 0.5),
    StageCost(1, 0.75, 1.25),
    StageCost(0.7, 1.1, 0.9),
]
SIZES = [
    (kind, ranks, virtual, micros)
    for kind in KINDS
    for ranks in (1, 2, 3, 4, 8)
    for virtual in (1, 2, 3)
    for micros in (1, 3, 4, 7, 8, 16)
    if find_problem(kind, ranks, virtual, micros) is None
]


def idle(timing: Timing) -> float:
    return timing.makespan - min(timing.busy)


def test_the_clock_agrees_with_the_closed_forms() -> None:
    agreed = dict.fromkeys(KINDS, 0)
    for sizes in SIZES:
        if sizes[0] == "pipedream":
            continue
        for cost in COSTS:
            formula = closed_form(*sizes, cost)
            if formula is None:
                continue
            timing = simulate(schedule(*sizes), cost)
            # Times are sums of at most some hundred terms around 1: rounding stays below 1e-12 of them.
            assert idle(timing) == pytest.approx(formula, abs=1e-10), (sizes, cost)
            assert bubble_fraction(*sizes, cost) == pytest.approx(timing.bubble_fraction, abs=1e-12)
            assert busy_time(*sizes, cost) == pytest.approx(max(timing.busy), rel=1e-12)
            agreed[sizes[0]] += 1
    del agreed["pipedream"]
    assert min(agreed.values()) >= 10, agreed


def test_pairs_computed_together_agree_with_deepseek() -> None:
    """(PP/2-1)(F&B + B - 3W), of the rank that idles most; PP counts stages, a V has two on each rank."""
    sizes_tried = [("dualpipev", 1, 4), ("dualpipev", 4, 9), ("dualpipev", 8, 20), ("dualpipe", 2, 6)]
    for kind, ranks, micros in [*sizes_tried, ("dualpipe", 8, 20)]:
        plan = schedule(kind, ranks, 2, micros, pairs=True)
        for together in (3.0, 2.5, 2.0):
            timing = simulate(plan, StageCost(1, 1, 1), overlapped=together)
            depth = ranks if kind == "dualpipev" else ranks / 2
            assert idle(timing) == pytest.approx((depth - 1) * (together + 2 - 3))
            sizes = (kind, ranks, 2, micros, StageCost(1, 1, 1), together)
            assert idle_time(*sizes) == pytest.approx(idle(timing))
            assert busy_time(*sizes) == pytest.approx(min(timing.busy))


def test_pairs_keep_the_order_and_cost_time_only_when_they_save_none() -> None:
    alone, paired = (schedule("dualpipev", 4, 2, 12, pairs) for pairs in (False, True))
    for rank in range(4):
        assert [a._replace(overlap=False) for a in paired.compute(rank)] == list(alone.compute(rank))
        for index, action in enumerate(paired.compute(rank)):
            if action.overlap:
                assert (action.kind, paired.compute(rank)[index + 1].kind) == ("forward", "backward")
    assert any(a.overlap for a in paired.compute(0))
    assert not any(a.overlap for a in alone.compute(0))
    cost = StageCost(1, 1, 1)
    assert simulate(alone, cost).makespan < simulate(paired, cost, overlapped=3).makespan


def test_zero_bubble_v_has_none_within_a_rank() -> None:
    """Qi et al. 2023: F = I = W, enough micro-batches, and no common end of the step."""
    for ranks in (2, 4, 8):
        for micros in (2 * ranks - 1, 2 * ranks, 3 * ranks + 1):
            timing = simulate(schedule("zbv", ranks, 2, micros), StageCost(1, 1, 1))
            assert max(timing.active) == max(timing.busy) == 6 * micros
            assert idle_time("zbv", ranks, 2, micros, common_end=False) == 0
            assert idle_time("zbv", ranks, 2, micros) == ranks - 1
    assert simulate(schedule("zbv", 4, 2, 5), StageCost(1, 1, 1)).active[0] > 30  # too few to fill it


@pytest.mark.parametrize("costs", [(1, 1, 1.3), (1, 1.1, 1.4), (1, 1.2, 1.6), (1.2, 1, 1.3), (1.2, 1, 1.5)])
def test_zero_bubble_v_waits_for_long_weight_parts(costs: tuple[float, float, float]) -> None:
    for ranks in (2, 4, 8):
        for micros in (2 * ranks, 4 * ranks):
            idle = idle_time("zbv", ranks, 2, micros, StageCost(*costs))  # by the clock
            assert idle_columns("zbv", ranks, 2, micros, *costs) == pytest.approx(idle)


def test_published_examples() -> None:
    # Ultra-Scale Playbook's figure: bubble over ideal, p = 8; and the same as a share of the total.
    for micros, virtual, ratio in [(32, 1, 7 / 32), (32, 2, 7 / 64), (16, 8, 7 / 128), (1, 1, 7.0)]:
        kind = "1f1b" if virtual == 1 else "interleaved"
        sizes = (kind, 8, virtual, micros)
        assert idle_time(*sizes) / busy_time(*sizes) == pytest.approx(ratio)
    assert bubble_fraction("1f1b", 8, 1, 32) == bubble_fraction("gpipe", 8, 1, 32) == pytest.approx(7 / 39)
    # DeepSeek's README with PP = 8, F = 1, B = 2, W = 1, F&B = 3: 21, 7 and 6 (in F).
    assert idle_time("1f1b", 8, 1, 20) == 21
    assert idle_time("zb-h1", 8, 1, 20) == 7
    assert idle_time("dualpipe", 8, 2, 20, overlapped=3) == 6
    assert idle_time("dualpipev", 4, 2, 20, overlapped=3) == 6


def test_without_a_closed_form_the_clock_answers() -> None:
    for sizes in [("zbv", 4, 2, 3), ("zb-interleaved", 8, 2, 3)]:
        assert closed_form(*sizes) is None
        timing = simulate(schedule(*sizes), StageCost(1, 1, 1))
        assert idle_time(*sizes) == pytest.approx(idle(timing))
    uneven = StageCost(1, 2, 0.5)
    assert closed_form("dualpipev", 4, 2, 8, uneven, overlapped=3.0) is None
    assert idle_time("dualpipev", 4, 2, 8, uneven, overlapped=3.0) > 0


def test_pipedream_has_no_bubble_once_it_is_full() -> None:
    cost = StageCost(1, 1.5, 0.5)
    spans = [simulate(schedule("pipedream", 4, 1, m), cost).makespan for m in (8, 9, 10, 30)]
    assert spans[1] - spans[0] == spans[2] - spans[1] == (spans[3] - spans[2]) / 20 == 3
    assert bubble_fraction("pipedream", 4, 1, 8, cost) == 0


def test_every_dependency_is_kept_whatever_the_costs() -> None:
    """Random costs for each action and slow links: no deadlock, and inputs come before what needs them."""
    dice = random.Random(0)
    for sizes in SIZES[::3]:
        for pairs in (False, True):
            plan = schedule(*sizes, pairs)
            table = {a: dice.uniform(0.1, 2) for actions in plan.actions for a in actions}
            timing = simulate(
                plan,
                lambda action, table=table: table[action],
                send=lambda action, table=table: table[action],
                overlapped=1.5 if pairs else None,
            )
            _check_times(plan, timing)


def _check_times(plan: Schedule, timing: Timing) -> None:
    spans: dict[tuple[str, int, int], tuple[float, float]] = {}
    for rank in range(plan.ranks):
        last = 0.0
        for action, (start, end) in zip(plan.actions[rank], timing.spans[rank], strict=True):
            spans[action[:3]] = (start, end)
            if action.kind in COMPUTE and not action.overlap:
                assert end >= last
                last = end
    gradient = {"backward", "backward_input"}
    for (kind, stage, micro), (start, _) in spans.items():
        if kind == "forward" and (before := plan.before(stage)) is not None:
            assert spans["forward", before, micro][1] <= start
        if kind in gradient and (after := plan.after(stage)) is not None:
            ends = [spans[name, after, micro][1] for name in gradient if (name, after, micro) in spans]
            assert ends[0] <= start


def test_links_take_time_and_carry_one_message_at_a_time() -> None:
    plan = schedule("1f1b", 2, 1, 1)
    assert simulate(plan, StageCost(1, 1, 1), send=0.25).makespan == 6.5
    gpipe = schedule("gpipe", 2, 1, 3)
    timing = simulate(gpipe, StageCost(1, 0, 0), send=4)
    sends = [s for a, s in zip(gpipe.actions[0], timing.spans[0], strict=True) if a.kind == "send_activation"]
    assert sends == [(1, 5), (2, 9), (3, 13)]


def test_a_message_travels_when_its_receiver_has_taken_the_one_before() -> None:
    """Forwards of 1 s on rank 0 and 5 s on rank 1, messages of 2 s: the third waits for a receive."""
    plan = schedule("gpipe", 2, 1, 3)
    timing = simulate(plan, [StageCost(1, 1, 0), StageCost(5, 1, 0)], send=2)
    sends = [
        span for action, span in zip(plan.actions[0], timing.spans[0], strict=True) if action.kind == "send_activation"
    ]
    # Rank 1 takes the first at 3 s, the second at 8 s, after its first forward.
    assert sends == [(1, 3), (2, 5), (3, 10)]
    receives = [
        span
        for action, span in zip(plan.actions[1], timing.spans[1], strict=True)
        if action.kind == "receive_activation"
    ]
    assert receives == [(0, 3), (8, 8), (13, 13)]


def test_uneven_stages_and_slow_stage() -> None:
    costs = [StageCost(1, 1, 1), StageCost(2, 2, 2)]
    timing = simulate(schedule("1f1b", 2, 1, 10), costs)
    assert timing.busy == (30, 60)
    assert timing.makespan == 60 + 3  # the slow last stage never waits after the first forward; B0 ends it
    assert timing.bubble == (pytest.approx(1 - 30 / 63), pytest.approx(1 - 60 / 63))
    assert StageCost(1, 1, 1, whole_backward=1.5).backward == 1.5
    assert simulate(schedule("gpipe", 1, 1, 2), StageCost(1, 1, 1, 1.5)).makespan == 5


def edit(plan: Schedule, rank: int, actions: list[Action]) -> Schedule:
    rows = list(plan.actions)
    rows[rank] = tuple(actions)
    return replace(plan, actions=tuple(rows))


def test_a_deadlock_is_detected() -> None:
    plan = schedule("1f1b", 2, 1, 2)
    first = list(plan.actions[0])
    cost = StageCost(1, 1, 1)
    lost = [a for a in first if (a.kind, a.micro) != ("send_activation", 1)]
    with pytest.raises(Deadlock, match="rank 0 waits for ever in receive_gradient of stage 0, micro-batch 1"):
        simulate(edit(plan, 0, lost), cost)
    sends = [i for i, a in enumerate(first) if a.kind in SENDS]
    swapped = list(first)
    swapped[sends[0]], swapped[sends[1]] = first[sends[1]], first[sends[0]]
    with pytest.raises(Deadlock, match=r"expects receive_activation .* micro-batch 0 but"):
        simulate(edit(plan, 0, swapped), cost)
    deaf = [a for a in plan.actions[1] if a.kind not in RECEIVES]
    with pytest.raises(Deadlock, match="without its activation"):
        simulate(edit(plan, 1, deaf), cost)
    # Each rank waits for the other: rank 0 for a gradient before it sends the activation that it needs.
    circle = sorted(first, key=lambda a: a.kind != "receive_gradient")
    with pytest.raises(Deadlock, match="waits for ever"):
        simulate(edit(plan, 0, circle), cost)
