"""A whole run: its days with failures, its money by a price or a list, its electricity; bands of all."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.api import plan, predict, read
from scalewright.spec.errors import UserError
from scalewright.spec.prices import footprint, price_of


@pytest.mark.parametrize("price", [None, 2.5])
def test_totals_have_the_band_of_the_step(price: float | None) -> None:
    """What is asked for p90 of a step is p90 of the whole run's days and hours; so of its cost by a price."""
    given = {"tokens": 1e12, "price": price} if price else {"tokens": 1e12}
    answer = predict("llama-3.1-8b", "dgx-h100", {"devices": 64}, 8192, **given)
    total, step = answer["total"], answer["step_time_s"]
    assert set(total["band"]) == {"days", "device_hours", "cost"}
    for key in ("days", "device_hours", *(["cost"] if price else [])):
        for name in ("p10", "p90"):
            assert total["band"][key][name] / total[key] == pytest.approx(step[name] / step["p50"])


def test_without_a_price_the_list_s_range_widens_the_band() -> None:
    answer = predict("llama-3.1-8b", "dgx-h100", {"devices": 64}, 8192, tokens=1e12)
    total, listed = answer["total"], price_of("h100")
    assert total["cost"] == pytest.approx(total["device_hours"] * listed.median)
    assert total["currency"] == "USD"
    hours, cost = total["band"]["device_hours"], total["band"]["cost"]
    assert cost["p90"] / total["cost"] > hours["p90"] / total["device_hours"]
    assert cost["p90"] / total["cost"] < hours["p90"] / total["device_hours"] * listed.high / listed.median
    assert any(listed.words in line for line in answer["assumed"])


def test_the_cloud_of_a_cluster_and_the_terms_that_are_asked_for_have_their_price() -> None:
    asked = ("llama-3.1-8b", "aws-p5", {"devices": 8}, 4096)
    total = predict(*asked, tokens=1e12, explain=False)["total"]
    assert total["cost"] == pytest.approx(6.88 * total["device_hours"])
    year = predict(*asked, tokens=1e12, commitment="reserved_1y", cloud="neoclouds", explain=False)["total"]
    assert year["cost"] == pytest.approx(2.35 * year["device_hours"])
    with pytest.raises(UserError, match="no price of h100-sxm, spot by aws"):
        predict(*asked, tokens=1e12, commitment="spot", cloud="aws", explain=False)
    with pytest.raises(UserError, match="region is given without tokens"):
        predict(*asked, region="fr")


def test_energy_is_that_of_its_hours_in_its_region() -> None:
    total = predict("llama-3.1-8b", "dgx-h100", {"devices": 64}, 8192, tokens=1e12, region="fr", explain=False)["total"]
    alone = footprint(total["device_hours"], "h100", "fr")
    assert total["energy_kwh"]["p50"] == pytest.approx(alone.energy_kwh.median)
    assert total["co2_kg"]["p50"] == pytest.approx(total["energy_kwh"]["p50"] * 0.044)
    assert total["energy_kwh"]["p90"] > alone.energy_kwh.high  # the step's band is in it


def test_a_device_without_a_price_has_none_and_a_cpu_no_power() -> None:
    answer = predict("llama-3.1-8b", "hgx-h800", {"devices": 8}, 4096, tokens=1e12, explain=False)
    total = answer["total"]
    assert (total["cost"], total["currency"]) == (None, None)
    assert total["energy_kwh"]["p50"] > 0
    assert "no cost: no price of h800-sxm is known (--price)" in answer["assumed"]


def test_a_plan_for_money_takes_the_list_s_price_of_that_cloud() -> None:
    asked = {"devices": 8, "seq_len": 4096, "global_batch": 64, "objective": "cost", "top": 1, "explain": False}
    best = plan("llama-3.2-1b", "dgx-h100", cloud="lambda", **asked)["best"][0]
    assert best["objective_value"] == pytest.approx(3.99 * 8 * best["step_time_s"]["p50"] / 3600)
    best = plan("llama-3.2-1b", "aws-p5", **asked)["best"][0]
    assert best["objective_value"] == pytest.approx(6.88 * 8 * best["step_time_s"]["p50"] / 3600)
    with pytest.raises(UserError, match=r"no price of h800-sxm is known \(price\): .*--price 2\.50"):
        plan("llama-3.2-1b", "hgx-h800", **asked)


@pytest.mark.parametrize("length", ["tokens: 1e11", "steps: 381470"])  # of 64 x 4,096 tokens
def test_a_run_file_s_tokens_are_those_of_the_whole_run(tmp_path: Path, length: str) -> None:
    (tmp_path / "run.yaml").write_text(
        f"model: llama-3.2-1b\ntrain: {{{length}}}\ndata: {{train: D, seq_len: 4096}}\n"
        "layout: {devices: 8, global_batch: 64}\n"
    )
    answer = predict(read(tmp_path / "run.yaml"), "dgx-h100", devices=8, explain=False)
    assert answer["total"]["energy_kwh"]["p50"] > 0
    assert "tokens 100B (of the run file)" in answer["assumed"]


@pytest.mark.parametrize("key", ["prices", "commitment", "cloud"])
def test_a_stated_price_is_not_looked_up(key: str) -> None:
    for verb, keys in ((predict, {"layout": {"devices": 8}}), (plan, {"devices": 8, "global_batch": 64})):
        with pytest.raises(UserError, match=f"--price and --{key} are both given"):
            verb("llama-3.2-1b", "dgx-h100", seq_len=4096, tokens=1e9, price=2.0, **{key: "aws"}, **keys)


def test_spare_nodes_are_paid_for_as_goodput_pays_them() -> None:
    asked = ("llama-3.1-8b", "dgx-h100", {"devices": 1024, "tp": 8}, 8192)
    answer = predict(*asked, tokens=1e12, explain=False)
    total = answer["total"]
    assert total["device_hours"] == pytest.approx(total["days"] * 24 * (1024 + 24))
    assert any("24 spare devices paid for" in line for line in answer["assumed"])
    stated = predict(*asked, tokens=1e12, goodput=0.9, explain=False)["total"]
    assert stated["device_hours"] == pytest.approx(stated["days"] * 24 * 1024)
