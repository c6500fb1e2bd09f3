"""Budgets to sizes and back: amounts, the fixed point with a plan, run files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import scalewright as sw
from scalewright.budget.laws import find_law
from scalewright.spec.errors import UserError
from scalewright.spec.run import load_run

CLUSTER = {"cluster": "dgx-h100", "goodput": 0.95, "price": 2.0}


@pytest.fixture(scope="module")
def month() -> dict:
    """Eight GPUs for ten days."""
    return sw.budget(days=10, devices=8, **CLUSTER)


def test_flops_alone_need_no_cluster() -> None:
    answer = sw.budget(flops=1e21)
    assert answer["params"]["p50"] == pytest.approx(2.778e9, rel=1e-3)
    assert answer["params"]["p10"] <= answer["params"]["p50"] <= answer["params"]["p90"]
    model = answer["model"]
    assert 6 * model["params"] * model["tokens"] == pytest.approx(1e21, rel=1e-9)  # by the real shape's exact count
    assert answer["loss"]["p10"] < answer["loss"]["p50"] < answer["loss"]["p90"]
    assert answer["budget"]["device_hours"] is None
    assert len(answer["laws"]) == 5
    low, high = answer["flat"]["params"]
    assert low < answer["params"]["p50"] / 1.4
    assert high > answer["params"]["p50"] * 1.4


def test_size_rate_and_days_agree(month: dict) -> None:
    """The plan is of the model of the answer, and takes the days at its own rate, failures included."""
    model, plan, budget = month["model"], month["plan"], month["budget"]
    days = model["tokens"] / plan["tokens_per_s"] / 86400 / 0.95
    assert days == pytest.approx(10, rel=1e-6) == budget["days"]
    assert budget["cost"] == pytest.approx(10 * 24 * 8 * 2.0)
    params, _ = find_law("besiroglu").optimum(budget["flops"])
    assert model["params"] == pytest.approx(params, rel=0.08)  # a size is kept within 5% of the last rate's
    assert 0.2 < month["mfu"] < 0.6
    busy = model["flops_per_token"] * plan["tokens_per_s"] / 8 / 989e12
    assert busy == pytest.approx(month["mfu"], rel=0.01)
    total = month["total"]
    assert all(total[key]["p10"] < total[key]["p50"] < total[key]["p90"] for key in ("days", "energy_kwh", "co2_kg"))


@pytest.mark.parametrize("amount", ["device_hours", "money", "energy"])
def test_other_amounts_are_the_same_hours(month: dict, amount: str) -> None:
    keys = {"device_hours": "device_hours", "money": "cost", "energy": "energy_kwh"}
    answer = sw.budget(**{amount: month["budget"][keys[amount]]}, devices=8, **CLUSTER)
    assert answer["budget"]["device_hours"] == pytest.approx(1920, rel=1e-3)
    assert answer["model"] == pytest.approx(month["model"])


def test_the_other_way_takes_what_it_gave(month: dict) -> None:
    model = month["model"]
    answer = sw.budget(params=model["params"], tokens=model["tokens"], devices=8, **CLUSTER)
    assert answer["model"]["params"] == pytest.approx(model["params"], rel=0.02)  # shapes are made to within 2%
    assert answer["budget"]["days"] == pytest.approx(10, rel=0.04)
    assert answer["params"]["p10"] == answer["params"]["p90"] == model["params"]


def test_a_deadline_decides_on_the_devices() -> None:
    answer = sw.budget(params=8e9, tokens=2e11, days=12, **CLUSTER)
    plan = answer["plan"]
    assert plan["devices"] % 8 == 0
    assert 6 < answer["budget"]["days"] <= 12 * 1.005


def test_a_deadline_that_is_missed_is_in_the_first_lines(call_cli) -> None:
    flags = "--params 1B --tokens 1B --days 1e-3 --devices 8 --cluster dgx-h100"
    shown = call_cli("budget", *flags.split())
    assert shown.code == 0, shown.err
    assert "(too late)" in shown.out.splitlines()[0]
    assert "not met" in shown.out
    met = sw.budget(params=1e9, tokens=1e9, days=30, devices=8, **CLUSTER)
    assert met["meets_deadline"] is True
    assert met["plan"]["devices"] == 8
    assert "deadline  within" in str(met)


def test_a_mixture_s_words_are_of_its_active_parameters() -> None:
    answer = sw.budget(model="mixtral-8x7b", tokens=1e12)
    assert "tokens an active parameter" in str(answer)
    assert "parameters (active) x tokens" in " ".join(answer["assumed"])


def test_tokens_held_leave_a_size_for_the_budget() -> None:
    answer = sw.budget(tokens=1e11, days=10, devices=8, **CLUSTER)
    assert answer["tokens"]["p10"] == answer["tokens"]["p90"] == 1e11
    assert answer["budget"]["days"] == pytest.approx(10, rel=0.05)  # a real shape's


def test_what_does_not_fit_gives_way_to_a_smaller_model() -> None:
    answer = sw.budget(days=3000, devices=1, cluster="rtx-4090")
    assert answer["plan"]["fits"]
    assert any("the largest tried that fits" in line for line in answer["assumed"])
    assert answer["tokens_per_param"] > 40


def test_repeats_call_for_a_smaller_token_count_and_are_priced() -> None:
    answer = sw.budget(flops=1e22, unique=25e9, law="muennighoff")
    assert answer["tokens"]["p50"] / 25e9 == pytest.approx(
        9.49, rel=0.01
    )  # huggingface/datablations, README: 9.493 epochs
    assert answer["params"]["p50"] == pytest.approx(7.022e9, rel=0.01)
    assert answer["epochs"]["worth_tokens"] < answer["model"]["tokens"]
    assert answer["loss"]["p50"] > sw.budget(flops=1e22, law="muennighoff")["loss"]["p50"]


def test_all_laws_stand_beside_each_other_with_their_reasons() -> None:
    rows = {row["name"]: row for row in sw.budget(flops=5.76e23, law="all")["laws"]}
    assert rows["besiroglu"]["followed"]
    assert rows["besiroglu"]["params"] == pytest.approx(72.2e9, rel=0.001)
    assert rows["hoffmann"]["params"] == pytest.approx(40.3e9, rel=0.001)
    assert rows["kaplan"]["params"] > 3 * rows["besiroglu"]["params"]
    assert "too large" in rows["kaplan"]["why"]


def test_clusters_stand_side_by_side_and_the_cheapest_is_answered(call_cli) -> None:
    flags = "--params 1B --tokens 10B --devices 8 --clusters dgx-a100-80g,dgx-h100 --json"
    answer = json.loads(call_cli("budget", *flags.split()).out)
    first, second = sorted(answer["clusters"], key=lambda row: row["order"])
    assert first["cost"] < second["cost"]
    assert answer["plan"]["cluster"] == first["cluster"]
    assert first["cost_per_million_tokens"] == pytest.approx(first["cost"] / 1e4)
    assert first["rents"]["spot"] < first["rents"]["on_demand"] == pytest.approx(first["cost"])
    # what it may cost: four years at 80% of the hours, less electricity and a fifth of upkeep
    hours = 4 * 8766 * 0.8
    power = first["price"] - 1.2 * first["buy_below"] / hours
    assert power == pytest.approx(0.08 * first["energy_kwh"] / first["device_hours"], rel=0.02)  # medians of the bands


def test_the_run_file_is_one_that_train_takes(tmp_path: Path, call_cli) -> None:
    path = tmp_path / "run.yaml"
    flags = "--days 1 --cluster dgx-h100 --devices 8 --data tokens --json"
    answer = json.loads(call_cli("budget", *flags.split(), "--out", path).out)
    run = load_run(path)
    assert run.train.tokens == pytest.approx(answer["model"]["tokens"], rel=1e-4)
    assert run.layout.devices == 8
    assert run.optimizer.lr == pytest.approx(answer["recipe"]["lr"], rel=0.01)
    assert answer["run_file"] == str(path)


def test_what_is_shown_has_the_answers(call_cli) -> None:
    shown = call_cli("budget", "--params", "1B", "--serve", "1T", "--unique", "5B", "--flops", "6e20", "--all")
    assert shown.code == 0, shown.err
    for words in (
        "model",
        "training, and serving 1T tokens",
        "epochs",
        "MassiveText",
        "published runs nearby",
        "what each law",
    ):
        assert words in shown.out
    assert "2 epochs" not in shown.out


REFUSED = [
    ({}, "no budget is given"),
    ({"flops": 0}, "flops is 0"),
    ({"flops": -1e20}, "flops is -1e"),
    ({"flops": 1e40}, "flops is 1e"),
    ({"flops": float("nan")}, "flops is nan"),
    ({"flops": 10}, "no size of a language model"),
    ({"days": 30}, "--days needs a cluster"),
    ({"money": 1e6}, "--money needs a cluster"),
    ({"days": 30, "cluster": "dgx-h100"}, "--days is given without devices"),
    ({"flops": 1e22, "money": 1e5}, "are both given"),
    ({"flops": 1e22, "params": 1e9, "tokens": 1e10}, "size, tokens and --flops are all given"),
    ({"params": 1e9, "model": "llama-3.1-8b"}, "--params and --model are both given"),
    ({"days": 3, "devices": 8, "flops": 1e22, "cluster": "dgx-h100"}, "--days, --devices and --flops are all given"),
    ({"flops": 1e22, "price": 3.0}, "--price needs a cluster"),
    ({"flops": 1e22, "price": 3.0, "cloud": "aws", "cluster": "dgx-h100"}, "--price and --cloud are both given"),
    ({"flops": 1e22, "region": "nowhere"}, "--region needs a cluster"),
    ({"flops": 1e22, "pue": -1.0}, "--pue needs a cluster"),
    ({"flops": 1e22, "model": "llama-3.1-8b", "like": "llama"}, "--model and --like are both given"),
    ({"flops": 1e22, "law": "krajewski"}, "is a law of mixtures of experts"),
    ({"flops": 1e22, "goodput": 2.0}, "goodput is 2"),
    ({"flops": 1e22, "currency": "euros", "price": 2.0}, "currency is 'euros'"),
    ({"flops": 1e22, "like": "lama"}, "unknown family 'lama'"),
    ({"loss": 1.2}, "no budget reaches a loss of 1.2"),
    ({"loss": 2.0, "law": "llama-3"}, "has no loss that can be solved for"),
    ({"loss": 1.9, "params": 1e8}, "no number of tokens brings"),
    ({"params": 7e10, "days": 3, "devices": 1, "cluster": "t4"}, "fits on no layout"),
    ({"flops": 1e22, "out": "run.yaml"}, "a run file needs its machine"),
    ({"days": 1, "devices": 8, "cluster": "dgx-h100", "seq_len": 1}, "seq_len is 1"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "words"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_a_mistake_is_one_clear_sentence(
    keys: dict, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        sw.budget(**keys)
    assert words in str(caught.value)
    assert caught.value.how, "no way out"


@pytest.mark.parametrize(("flags", "words"), [("--out x.pdf", "end it in .yaml"), ("--data tokens", "add --out")])
def test_a_file_that_would_not_be_one(flags: str, words: str, call_cli) -> None:
    answer = call_cli("budget", "--flops", "1e20", *flags.split())
    assert answer.code == 2
    assert words in answer.err


def test_flags_before_a_subcommand_are_not_lost_silently(call_cli) -> None:
    answer = call_cli("budget", "--flops", "1e20", "ladder", "--out", "x")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "budget ladder --flag" in answer.err
