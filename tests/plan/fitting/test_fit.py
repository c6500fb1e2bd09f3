"""A fit recovers known constants and stays in their ranges; every constant has unit, range and source."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scalewright.plan.constants import Constants, constants, facts
from scalewright.plan.cost.evaluate import prepare
from scalewright.plan.fitting.calibrate import profile
from scalewright.plan.fitting.fit import evaluate_seconds, left_out, of_unknown_trainers, problem, solve, unconfirmed
from scalewright.plan.fitting.runs import MEASURED, Runs, read_table, runs_of
from scalewright.plan.predict import predict_rows
from scalewright.spec.errors import UserError


@pytest.fixture(scope="module")
def runs() -> Runs:
    return runs_of([row for row in read_table(MEASURED) if row["source"] in ("vtrain-multi", "megatron-2020")])


def test_constants_have_unit_range_and_source() -> None:
    assert sum(fact.fitted for fact in facts()) <= 40
    for fact in facts():
        assert fact.low <= fact.value <= fact.high, fact.name
        assert fact.low <= fact.prior <= fact.high, fact.name
        assert fact.unit
        assert fact.source
    with pytest.raises(UserError, match="matmul"):
        constants()["matmul.hoper"]


def test_known_constants_are_recovered(runs: Runs) -> None:
    wide = {"low": 0.3, "high": 1.2}  # a wide range makes the prior weak
    free = [replace(fact, **wide) for fact in facts() if fact.name in ("matmul.ampere", "link.fast")]
    truth = constants().with_values({"matmul.ampere": 0.85, "link.fast": 0.7})
    synthetic = replace(runs, seconds=evaluate_seconds(prepare(runs.requests), truth))
    fitted = solve(problem(synthetic, free=free))
    # the priors (0.79 and 0.82) pull; links more, as they are a small part of these runs' time
    assert fitted["matmul.ampere"] == pytest.approx(0.85, rel=0.02)
    assert fitted["link.fast"] == pytest.approx(0.7, rel=0.08)


def test_a_fit_stays_in_the_range(runs: Runs) -> None:
    free = [fact for fact in facts() if fact.name == "matmul.ampere"]
    slow = replace(runs, seconds=runs.seconds * 3)
    assert solve(problem(slow, free=free))["matmul.ampere"] == pytest.approx(free[0].low)


def test_constants_are_looked_up_as_arrays() -> None:
    values = Constants({"a.x": 1.0, "a.y": 2.0})
    assert np.array_equal(values.row("a", ("y", "x")), [2.0, 1.0])
    assert values.with_values({"a.x": 3.0})["a.x"] == 3.0


def test_noise_changes_no_constants(runs: Runs) -> None:
    """A profile is kept only where it predicts held-out runs better than the shipped constants do."""
    generator = np.random.default_rng(0)
    runs = runs.take(np.arange(12))
    shipped = evaluate_seconds(prepare(runs.requests), constants())
    noise = np.exp(generator.normal(0, 0.3, 12))
    random = replace(runs, seconds=shipped * noise)
    assert profile(random).values == constants().values
    slower = replace(runs, seconds=shipped * 1.15)
    fitted = evaluate_seconds(prepare(runs.requests), profile(slower))
    assert np.median(np.abs(fitted / slower.seconds - 1)) < 0.06


def test_a_table_of_one_trainer_is_priced_by_the_priors(runs: Runs) -> None:
    """Without its lineage no rows are left to fit on: the priors price them, as an unknown trainer's."""
    alone = runs.take(runs.source == "vtrain-multi")
    assert np.isfinite(left_out(alone, "lineage")).all()
    assert {request.framework.name for request in of_unknown_trainers(alone).requests} == {"unknown"}
    offloaded = replace(alone, rows=[{**row, "framework": "deepspeed (ZeRO offload)"} for row in alone.rows])
    assert {request.offload for request in of_unknown_trainers(offloaded).requests} == {"all"}


def test_experts_over_a_network_that_one_source_tells_of_are_not_fitted_on() -> None:
    """Its rate was read off that source by eye; the other constants would bend to it."""
    experts = next(row for row in read_table(MEASURED) if "fabric=efa" in row["options"] and int(row["ep"]) > 1)
    elsewhere = {**experts, "id": "1", "options": experts["options"].replace("fabric=efa", "fabric=infiniband")}
    alone = {**experts, "id": "2", "ep": "1", "options": "fabric=efa"}
    runs = runs_of([experts, elsewhere, alone])
    assert unconfirmed(runs).tolist() == [True, False, False]
    assert len(problem(runs).log_seconds) == 2
    bands = [answer["step_time_s"]["p90"] / answer["step_time_s"]["p10"] for answer in predict_rows(runs.rows)]
    assert bands[0] > bands[1]
