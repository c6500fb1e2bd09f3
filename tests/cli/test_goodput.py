"""`scalewright goodput`: its promised keys, its lines, and its mistakes."""

from __future__ import annotations

import json

import pytest
from tests.report.run_folders import make_run

import scalewright as sw

KEYS = {"goodput", "best_interval_s", "young_daly_interval_s", "failures", "lost", "days", "cost", "spares", "assumed"}


def asked(call_cli, *flags):
    answer = call_cli("goodput", *flags, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_the_promised_keys(call_cli):
    found = asked(call_cli, "--devices", "1k", "--params", "70B", "--cluster", "dgx-h100", "--trials", "20")
    assert set(found) >= KEYS
    assert set(found["lost"]) == {"save", "work", "detect", "restart", "other"}
    for name in ("goodput", "days", "cost"):
        band = found[name]
        assert band["p10"] <= band["p50"] <= band["p90"]
    assert 0.9 < found["goodput"]["p50"] < 1
    assert found["cost"]["p50"] == pytest.approx(found["device_hours"]["p50"] * 3.99, rel=1e-3)
    again = sw.goodput(devices=1000, params=70e9, cluster="dgx-h100", trials=20)
    assert again["goodput"] == found["goodput"]
    assert "of the time trains" in str(again)


def test_numbers_of_your_own_give_the_closed_form(call_cli):
    flags = ["--devices", "16384", "--save-s", "30", "--restart-s", "600", "--failures-per-device-hour", "1.97e-5"]
    found = asked(call_cli, *flags, "--price", "2", "--currency", "eur", "--days", "300")
    assert found["goodput"]["p50"] == pytest.approx(found["closed_form"], rel=5e-3)
    assert found["closed_form"] == pytest.approx(0.8798, abs=1e-4)
    assert found["young_daly_interval_s"] == pytest.approx(817, rel=1e-2)
    assert found["best_interval_s"] == pytest.approx(798, rel=1e-2)
    assert found["cost"]["p50"] == pytest.approx(2 * found["days"]["p50"] * 24 * 16384)
    assert found["currency"] == "EUR"
    often = asked(call_cli, *flags, "--interval-s", "60")
    assert often["interval_s"] == 60
    assert often["lost"]["save"] > found["lost"]["save"] * 5


def test_a_run_s_folder_has_its_own_ledger(call_cli, tmp_path):
    folder = make_run(tmp_path / "run", resumed_at=30)
    found = asked(call_cli, folder, "--trials", "20")
    ledger = found["ledger"]
    assert "without its run.yaml" in " ".join(found["assumed"])  # it names a model that there isn't
    assert ledger["failures"] == 1
    assert 0 < ledger["goodput"] < 1
    assert ledger["goodput"] + sum(ledger["lost"].values()) == pytest.approx(1)
    assert found["save_s"] == 0.3  # as it was measured
    text = call_cli("goodput", folder, "--trials", "20").out
    assert "this run so far" in text
    assert "1 failure" in text
    (folder / "run.yaml").write_text("{broken")
    assert "1 device: neither" in " ".join(asked(call_cli, folder, "--trials", "20")["assumed"])


def test_the_terminal_says_what_to_do(call_cli):
    text = call_cli("goodput", "--devices", "16384", "--interval-s", "7200", "--trials", "20").out
    for words in ("of the time trains", "in place of", "failures, one in", "spare nodes", "what takes the time"):
        assert words in text
    lost = call_cli("goodput", "--devices", "100k", "--failures-per-device-hour", "0.1", "--trials", "5")
    assert lost.code == 0
    assert "never ends" in lost.out


def test_words_of_runs_without_stops_of_few_trials_and_of_given_restarts(call_cli):
    flags = ["--devices", "64", "--days", "0.01", "--restart-s", "60", "--trials", "5"]
    text = call_cli("goodput", *flags, "--failures-per-device-hour", "0").out
    for words in ("one at the end is best", "none: the rate", "too few for a band", "no node is awaited", "median run"):
        assert words in text
    for words in ("8 of 10", "pay best", "one in"):
        assert words not in text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "how many devices isn't known"),
        (["--devices", "0"], "devices is 0 (--devices): give a number from 1"),
        (["--devices", "8", "--failures-per-device-hour", "-1"], "such as 2e-5"),
        (["--devices", "8", "--save-s", "nan"], "save_s is nan (--save-s)"),
        (["--devices", "8", "--region", "fr"], "add --cluster dgx-h100"),
        (["--devices", "8", "--params", "0"], "params is 0"),
        (["--devices", "8", "--trials", "0"], "trials is 0"),
        (["--devices", "8", "--price", "-1"], "price is -1"),
        (["--devices", "8", "--price", "2", "--currency", "euros"], "currency is 'euros'"),
        (
            ["--devices", "8", "--price", "2", "--cluster", "dgx-h100", "--cloud", "aws"],
            "--price and --cloud are both given",
        ),
        (["--devices", "8", "--failures-per-device-hour", "1e9"], "such as 2e-5"),
        (["--devices", "8", "--days", "1e9"], "up to 36,525"),
        (["--devices", "8", "--spares", "1000"], "give up to 11"),
        (["nowhere.yaml"], "no such run file or folder"),
        (["."], "events.jsonl has no start of a run"),
    ],
)
def test_mistakes_name_the_way_out(call_cli, tmp_path, monkeypatch, flags, words):
    monkeypatch.chdir(tmp_path)
    answer = call_cli("goodput", *flags)
    assert answer.code == 2
    assert words in answer.err


def test_electricity_has_its_band_on_the_terminal(call_cli):
    asked = ("goodput", "--devices", "512", "--params", "8B", "--cluster", "dgx-h100")
    shown, answer = call_cli(*asked, "--all").out, json.loads(call_cli(*asked, "--json").out)
    low, high = (answer["energy_kwh"][key] / 1e3 for key in ("p10", "p90"))
    assert f"({low:.3g} to {high:.3g}) MWh" in shown
