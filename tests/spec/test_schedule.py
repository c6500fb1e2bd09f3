"""Schedules as data: complete, in order, paired, within the papers' memory, and refused in one clear line."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from functools import cache
from typing import Any, get_args

import pytest

from scalewright.spec import schedule as schedule_module
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout, ScheduleName
from scalewright.spec.schedule import (
    COMPUTE,
    KINDS,
    RECEIVES,
    SENDS,
    Schedule,
    check_schedule,
    draw,
    find_kind,
    layout_schedule,
    peak_activations,
    schedule,
    stage_ranks,
)
from scalewright.spec.schedules import fold, one_f_one_b
from scalewright.spec.schedules.bubble import idle_columns
from scalewright.spec.schedules.build import find_problem

WHOLE = {"gpipe", "1f1b", "interleaved", "pipedream"}
SIZES = [
    (kind, ranks, virtual, micros)
    for kind in KINDS
    for ranks in (1, 2, 3, 4, 6)
    for virtual in (1, 2, 3)
    for micros in (1, 2, 3, 5, 8, 11, 12, 14)
    if find_problem(kind, ranks, virtual, micros) is None
]


@cache
def every() -> list[Schedule]:
    return [schedule(*sizes) for sizes in SIZES]


def micros_of(plan: Schedule, stage: int) -> range:
    """The micro-batches that pass through a stage: half of them where a rank holds both ends."""
    if not find_kind(plan.kind).both_ways:
        return range(plan.micro_batches)
    half = plan.micro_batches // 2
    return range(half) if stage < plan.ranks else range(half, plan.micro_batches)


def test_every_stage_does_every_micro_batch_once() -> None:
    for plan in every():
        for stage, rank in enumerate(plan.rank_of):
            count = Counter((a.kind, a.micro) for a in plan.compute(rank) if a.stage == stage)
            assert {micro for _, micro in count} == set(micros_of(plan, stage))
            for micro in micros_of(plan, stage):
                done = {kind: count[kind, micro] for kind in COMPUTE}
                parts = (done["backward"], done["backward_input"], done["backward_weight"])
                assert done["forward"] == 1
                assert parts in ({(1, 0, 0)} if plan.kind in WHOLE else {(1, 0, 0), (0, 1, 1)})
    split = {plan.kind for plan in every() if any(a.kind == "backward_weight" for a in plan.compute(0))}
    assert split == set(KINDS) - WHOLE


def test_a_rank_computes_only_its_stages_and_in_order() -> None:
    for plan in every():
        for rank in range(plan.ranks):
            index_of = {(a.kind, a.stage, a.micro): i for i, a in enumerate(plan.compute(rank))}
            for (kind, stage, micro), index in index_of.items():
                assert plan.rank_of[stage] == rank
                if kind in ("backward", "backward_input"):
                    assert index_of["forward", stage, micro] < index
                if kind == "backward_weight":
                    assert index_of["backward_input", stage, micro] < index


def test_sends_pair_with_receives_in_the_same_order() -> None:
    for plan in every():
        sent, received = defaultdict(list), defaultdict(list)
        for rank, actions in enumerate(plan.actions):
            for kind, stage, micro, peer, _ in actions:
                if kind in SENDS:
                    activation = kind == "send_activation"
                    to = plan.after(stage) if activation else plan.before(stage)
                    assert to is not None
                    assert plan.rank_of[to] == peer != rank
                    sent[rank, peer].append((kind.removeprefix("send_"), to, micro))
                elif kind in RECEIVES:
                    received[peer, rank].append((kind.removeprefix("receive_"), stage, micro))
        assert sent == received
        crossings = sum(
            plan.rank_of[stage] != plan.rank_of[after] and len(micros_of(plan, stage))
            for stage in range(len(plan.rank_of))
            if (after := plan.after(stage)) is not None
        )
        assert sum(map(len, sent.values())) == 2 * crossings  # once as an activation, once as a gradient


def test_a_message_sits_beside_its_computation() -> None:
    """A send directly follows its computation; a receive precedes the one that needs it."""
    for plan in every():
        for actions in plan.actions:
            index_of = {(a.kind, a.stage, a.micro): i for i, a in enumerate(actions)}
            for (kind, stage, micro), i in index_of.items():
                if kind in SENDS:
                    before = actions[i - 1]
                    assert (before.stage, before.micro) == (stage, micro)
                    assert before.kind in COMPUTE - {"backward_weight"}
                elif kind == "receive_activation":
                    assert i < index_of["forward", stage, micro]
                elif kind == "receive_gradient":
                    assert i < index_of.get(
                        ("backward", stage, micro), index_of.get(("backward_input", stage, micro), -1)
                    )


def test_weight_parts_do_not_wait_for_ever() -> None:
    """At most as many input parts as ranks are without their weight part (V: on each of two stages)."""
    for plan in every():
        for rank in range(plan.ranks):
            pending = worst = 0
            for action in plan.compute(rank):
                pending += {"backward_input": 1, "backward_weight": -1}.get(action.kind, 0)
                worst = max(worst, pending)
            assert pending == 0
            assert worst <= plan.ranks * (1 if plan.kind.startswith("zb-") else 2)


def test_stages_go_round_or_fold() -> None:
    assert stage_ranks("interleaved", 3, 2) == (0, 1, 2, 0, 1, 2)
    assert stage_ranks("zbv", 3, 2) == stage_ranks("dualpipe", 3, 2) == (0, 1, 2, 2, 1, 0)
    both = schedule("dualpipe", 4, 2, 8)
    assert (both.model_stages, both.before(4), both.after(3), both.stages_of(3)) == (4, None, None, (3, 4))
    assert [both.model_stage(stage) for stage in both.stages_of(0)] == [0, 3]
    assert (both.trainable, schedule("zbv", 4, 2, 8).trainable) == (False, True)
    vee = schedule("zbv", 4, 2, 8)
    assert not any(a.peer == rank for rank in range(4) for a in vee.actions[rank])


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_peak_activations_are_the_papers(ranks: int) -> None:
    p, m = ranks, 4 * ranks
    assert peak_activations(schedule("gpipe", p, 1, m)) == (m,) * p  # Huang et al. 2019: all of them
    assert peak_activations(schedule("1f1b", p, 1, m)) == tuple(p - r for r in range(p))
    assert peak_activations(schedule("pipedream", p, 1, m)) == tuple(p - r for r in range(p))
    assert peak_activations(schedule("zb-h1", p, 1, m)) == (p,) * p  # Qi et al. 2023 table 1: p on each
    for v in (2, 3):
        # Korthikanti et al. 2022 §4.2: the first stage holds 1 + (p-1)/(p v) times 1F1B's p (of 1/v size).
        peaks = peak_activations(schedule("interleaved", p, v, m))
        assert peaks[0] == pytest.approx(p * v * (1 + (p - 1) / (p * v)))
        assert peaks == tuple((v - 1) * p + 2 * (p - 1 - r) + 1 for r in range(p))
        assert max(peak_activations(schedule("zb-interleaved", p, v, m))) == v * p
    # V: two stages of half the size, so 2p is what 1F1B's worst rank holds (Qi et al. 2024: "1x").
    assert max(peak_activations(schedule("zbv", p, 2, m))) == 2 * p
    # DualPipe's README: PP + 1, on both; its PP counts stages, of which a V has two on each rank.
    assert set(peak_activations(schedule("dualpipev", p, 2, m))) == {2 * p + 1}
    if p > 1:
        assert set(peak_activations(schedule("dualpipe", p, 2, m))) == {p + 1}


def test_peak_activations_in_bytes_and_with_the_input_part_freeing() -> None:
    plan = schedule("zb-h1", 4, 1, 12)
    assert peak_activations(plan, size=(10, 20, 30, 40)) == (40, 80, 120, 160)
    freed = peak_activations(plan, kept=0.5)
    # Rank r holds p - r whole ones and r halves; the one that goes on is whole.
    assert freed == (4, 3.5, 3, 2.5)


def test_uneven_groups_of_micro_batches() -> None:
    assert one_f_one_b._groups(4, 8) == [4, 4]
    assert one_f_one_b._groups(4, 11) == [6, 5]
    assert one_f_one_b._groups(4, 3) == [3]
    assert all(
        sum(one_f_one_b._groups(p, m)) == m and min(one_f_one_b._groups(p, m)) >= min(p, m)
        for p in range(1, 9)
        for m in range(1, 40)
    )


@pytest.mark.parametrize(
    ("kind", "virtual", "micros", "generator"),
    [
        ("gpipe", 1, 4, one_f_one_b.gpipe),
        ("1f1b", 1, 8, one_f_one_b.one_forward_one_backward),
        ("interleaved", 2, 4, one_f_one_b.interleaved),
        ("zb-h1", 1, 8, one_f_one_b.zero_bubble),
        ("zbv", 2, 6, fold.zbv),
        ("dualpipev", 2, 6, fold.dualpipev),
        ("dualpipe", 2, 8, fold.dualpipe),
    ],
)
def test_the_pictures_in_the_docstrings_are_true(kind: str, virtual: int, micros: int, generator: Any) -> None:
    shown = re.findall(r"^ *(rank \d+ \| .*)$", generator.__doc__, re.MULTILINE)
    drawn = draw(schedule(kind, len(shown), virtual, micros)).splitlines()
    assert len(drawn) == len(shown) > 1
    for row, true in zip(shown, drawn, strict=True):
        start = row.removesuffix("...").rstrip()
        assert true.startswith(start)
        assert row.endswith("...") or true == start


def test_draw_any_size() -> None:
    small = textwrap.indent(draw(schedule("1f1b", 2, 1, 3)), "    ")
    assert small in str(schedule_module.__doc__)
    assert draw(schedule("1f1b", 2, 1, 3)) == (
        "rank 0 | F0 F1 .  .  B0--- F2 B1--- .  B2---\nrank 1 | .  F0 B0--- F1 B1--- F2 B2--- .  ."
    )
    rows = draw(schedule("interleaved", 12, 30, 24)).splitlines()
    assert len(rows) == 12
    assert rows[0].startswith("rank 0  | F0a ")
    assert "F0.29" in rows[0]


# (kind, pp, virtual stages, micro-batches, both values in conflict, sizes that work)
REFUSED = [
    ("1f1b", 4, 2, 8, ("virtual_stages 1", "is 2"), ("1f1b", 4, 1, 8)),
    ("gpipe", 4, 3, 8, ("virtual_stages 1", "is 3"), ("gpipe", 4, 1, 8)),
    ("interleaved", 4, 1, 8, ("2 or more", "is 1"), ("interleaved", 4, 2, 8)),
    ("zb-interleaved", 4, 1, 8, ("2 or more", "is 1"), ("zb-h1", 4, 1, 8)),
    ("zbv", 4, 3, 8, ("virtual_stages 2", "is 3"), ("zbv", 4, 2, 8)),
    ("dualpipev", 4, 2, 7, ("7 micro-batches", "2 x pp 4 = 8"), ("dualpipev", 4, 2, 8)),
    ("dualpipe", 4, 2, 9, ("9 is odd",), ("dualpipe", 4, 2, 10)),
    ("dualpipe", 3, 2, 8, ("pp 3 is odd",), ("dualpipev", 3, 2, 8)),
]


@pytest.mark.parametrize(("kind", "ranks", "virtual", "micros", "named", "works"), REFUSED)
def test_sizes_that_cannot_be_are_refused(
    kind: str, ranks: int, virtual: int, micros: int, named: tuple[str, ...], works: tuple[Any, ...]
) -> None:
    with pytest.raises(UserError) as refused:
        schedule(kind, ranks, virtual, micros)
    assert all(value in refused.value.what for value in named)
    assert kind in refused.value.what
    sizes = {"pp": ranks, "virtual_stages": virtual, "micro_batches": micros, "schedule": kind}
    working = dict(zip(("schedule", "pp", "virtual_stages", "micro_batches"), works, strict=True))
    changed = [key for key in sizes if sizes[key] != working[key]]
    assert any(f"{key} {working[key]}" in refused.value.how for key in changed)
    schedule(*works)


def test_unknown_names_and_bad_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'interleaved'"):
        schedule("interleave", 2, 2, 4)
    with pytest.raises(UserError, match="micro_batches is 0"):
        schedule("1f1b", 2, 1, 0)


def layout(**keys: Any) -> Layout:
    return Layout.parse(keys)


def test_a_layout_is_checked_by_its_own_keys() -> None:
    check_schedule(layout())
    check_schedule(layout(devices=4, pp=4, schedule="zbv", global_batch=2))
    wrong = layout(devices=8, pp=4, schedule="dualpipev", micro_batch=2, global_batch=24)
    with pytest.raises(UserError, match=r"6 micro-batches are fewer than 2 x pp 4 = 8.*global_batch 32"):
        check_schedule(wrong)
    plan = layout_schedule(wrong.replace(global_batch=32))
    assert (plan.kind, plan.ranks, plan.micro_batches) == ("dualpipev", 4, 8)
    with pytest.raises(UserError, match="or schedule interleaved"):
        check_schedule(layout(devices=4, pp=4, virtual_stages=2, global_batch=8))
    with pytest.raises(UserError, match=r"use schedule 1f1b$"):  # two chunks would be refused on one rank
        check_schedule(layout(schedule="interleaved", virtual_stages=1))


class TestKinds:
    def test_the_layouts_names_are_the_records(self) -> None:
        assert get_args(ScheduleName) == tuple(KINDS)

    def test_an_unknown_kind_raises_everywhere(self) -> None:
        for call in (
            lambda: find_kind("zb-v2"),
            lambda: schedule("zb-v2", 2, 1, 4),
            lambda: stage_ranks("zb-v2", 2, 1),
            lambda: idle_columns("zb-v2", 4.0, 1.0, 8.0, 1.0, 1.0, 1.0),
        ):
            with pytest.raises(UserError, match="zb-v2"):
                call()

    @pytest.mark.parametrize("name", KINDS)
    def test_alive_micro_batches_are_those_of_the_actions(self, name: str) -> None:
        """The formula is the most of any rank, and for 1F1B and GPipe that of each."""
        kind, ranks, micros = KINDS[name], 4, 16
        chunks = 2 if kind.chunked else 1
        counted = peak_activations(schedule(name, ranks, chunks, micros))
        formula = [float(kind.alive(ranks, chunks, micros, rank)) * chunks for rank in range(ranks)]
        if kind.both_ways:  # a rank's two stages are a whole rank's worth of half the micro-batches
            assert max(counted) == max(formula) / chunks
        elif kind.splits:
            assert max(counted) == max(formula)
        else:
            assert list(counted) == formula

    @pytest.mark.parametrize("name", KINDS)
    def test_traits_are_those_of_the_order(self, name: str) -> None:
        kind, ranks = KINDS[name], 4
        plan = schedule(name, ranks, 2 if kind.chunked else 1, 16)
        sorts = {action.kind for rank in range(ranks) for action in plan.compute(rank)}
        if not kind.both_ways:  # dualpipe is only planned, and its split parts are few
            assert ("backward_input" in sorts) == kind.splits
            assert ("backward" not in sorts) == kind.split_all
        assert (plan.rank_of[-1] == 0) == kind.folded
        assert kind.parts(ranks, 2 if kind.chunked else 1) == plan.model_stages
