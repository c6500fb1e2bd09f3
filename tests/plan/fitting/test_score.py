"""The planner's errors on the bundled runs, with the shipped constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scalewright.plan.fitting.fit import left_out
from scalewright.plan.fitting.runs import MEASURED, read_table, runs_of
from scalewright.plan.fitting.score import kendall_tau, regret, score
from scalewright.plan.predict import predict_table

OVER_EFA = "aws-h100-dispatch"  # over a network of which one source tells; scored, and not fitted


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    return score()


def test_kendall_and_regret() -> None:
    order = np.arange(4.0)
    assert kendall_tau(order, order) == 1
    assert kendall_tau(order, -order) == -1
    assert kendall_tau(np.array([1.0, 2, 3]), np.array([1.0, 3, 2])) == pytest.approx(1 / 3)
    assert regret(np.array([2.0, 1, 3]), np.array([1.0, 1.5, 2])) == pytest.approx(0.5)
    tied = np.array([1.0, 1, 3])  # counts by its mean
    assert regret(tied, np.array([1.0, 2, 2])) == pytest.approx(0.5)


def test_time_is_right_and_beats_half_of_peak(figures: dict[str, Any]) -> None:
    overall = figures["overall"]
    assert figures["expressed_pct"] >= 95
    assert (
        np.mean([f["median_error_pct"] for s, f in figures["sources"].items() if s != OVER_EFA and f["rows"] >= 5]) <= 7
    )
    assert abs(overall["bias_pct"]) <= 5
    assert overall["median_error_pct"] < 0.5 * overall[f"baseline_{overall['best_baseline']}_pct"]
    assert overall["sources_better_than_it_pct"] >= 80
    assert figures["sources"]["vtrain-multi"]["median_error_pct"] <= 8


@pytest.mark.slow
def test_sources_that_were_left_out() -> None:
    """Cross-validated: each source is priced by constants fitted without it; a minute of one core."""
    rows = read_table(MEASURED)
    runs = runs_of(rows)
    figures = score(rows, seconds=left_out(runs, "source"))
    overall = figures["overall"]
    assert (
        np.mean([f["median_error_pct"] for s, f in figures["sources"].items() if s != OVER_EFA and f["rows"] >= 5])
        <= 10
    )
    assert abs(overall["bias_pct"]) <= 5
    assert 75 <= overall["coverage_pct"] <= 90
    assert overall["sources_better_than_it_pct"] >= 80
    assert figures["sources"]["vtrain-multi"]["median_error_pct"] <= 8
    errors = {s: f["median_error_pct"] for s, f in figures["sources"].items() if f["rows"] >= 10 and s != OVER_EFA}
    assert max(errors.values()) <= 25, errors


def test_no_large_source_is_far_off(figures: dict[str, Any]) -> None:
    errors = {s: f["median_error_pct"] for s, f in figures["sources"].items() if f["rows"] >= 10 and s != OVER_EFA}
    assert max(errors.values()) <= 25, errors


@pytest.mark.xfail(strict=True, reason="44% off: hosts that take 17 ms a layer whatever they send")
def test_the_source_over_efa_is_near(figures: dict[str, Any]) -> None:
    assert figures["sources"][OVER_EFA]["median_error_pct"] <= 25


def test_memory_is_within_eight_percent(figures: dict[str, Any]) -> None:
    assert figures["memory"]["median_error_pct"] <= 8


def test_memory_and_what_fits(figures: dict[str, Any]) -> None:
    memory = figures["memory"]
    assert memory["sources"]["simumax-b200"]["median_error_pct"] <= 2
    assert figures["fits"]["balanced_pct"] >= 97


def test_runs_that_ran_fit() -> None:
    runs = runs_of(read_table(MEASURED))
    memory = predict_table(runs.requests).outcome.memory
    ran = ~runs.apart
    assert (~memory.fits[ran]).mean() <= 0.01
    assert (memory.low[ran] <= memory.usable[ran]).all(), "the risk of one is called no"


def test_ranking(figures: dict[str, Any]) -> None:
    groups = {(r["group"][0], int(r["group"][4]), r["group"][1]): r for r in figures["ranking"]}
    vtrain = [ranking for key, ranking in groups.items() if key[0] == "vtrain-multi"]
    assert np.mean([ranking["tau"] for ranking in vtrain]) >= 0.65
    assert max(ranking["regret"] for ranking in vtrain) <= 0.05
    sweep = [r for key, r in groups.items() if key[0] == "ultrascale-playbook" and key[1] <= 128]
    assert np.mean([ranking["tau"] for ranking in sweep]) >= 0.8
    assert max(ranking["regret"] for ranking in sweep) <= 0.10


def test_bands_contain_most_measurements(figures: dict[str, Any]) -> None:
    assert 75 <= figures["overall"]["coverage_pct"] <= 96


def test_a_users_own_table() -> None:
    rows = [row for row in read_table(MEASURED) if row["source"] == "vtrain-multi"]
    figures = score(rows, fit=8)
    assert figures["overall"]["sources"] == 1
    assert figures["profile"]["rows"] == figures["sources"]["vtrain-multi"]["rows"] - 8
    assert figures["profile"]["median_error_pct"] <= 5
    assert "fits" not in figures


def test_rows_without_cells() -> None:
    figures = score([{"id": "a"}])
    assert figures["expressed_pct"] == 0
    assert figures["refused"][0]["id"] == "a"
