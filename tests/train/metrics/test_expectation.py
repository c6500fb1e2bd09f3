"""What a step should take beside what it took: in the events, in the result, and in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fake_machine import fake
from runs import events, run_data
from scalewright.machine import timings
from scalewright.machine.processor import read_processor
from scalewright.spec.run import RunSpec
from scalewright.train.metrics import expectation
from scalewright.train.metrics.expectation import Expectation, compare, expect
from scalewright.train.resolve import resolve


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without timings of this machine."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    return tmp_path / "home"


def test_a_run_says_what_it_expected_and_what_came(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = read_processor()
    place = timings._file(timings._cache(), processor, 1, timings._threads(processor, 1))
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(fake(1).dump()))
    monkeypatch.setattr(timings, "probe", lambda *_: pytest.fail("a start must not time the machine"))
    from scalewright.api import train

    result = train(run_data(tmp_path, train={"steps": 8}))
    (event,) = events(result.out_dir, "predicted")
    assert event["p10"] < event["p50"] < event["p90"]
    assert sum(event["breakdown_s"].values()) == pytest.approx(event["p50"])
    assert event["note"] == ""
    kinds = {kind: gib for kind, gib in event["memory_gib"].items() if kind != "peak"}
    assert sum(kinds.values()) == pytest.approx(event["memory_gib"]["peak"])
    assert set(event["comm_bytes"]) >= {"dp", "tp", "pp"}
    assert result.predicted_step_time_s == event["p50"]
    assert (result.measured_step_time_s or 0) > 0
    shown = capfd.readouterr().err
    assert "a step should take" in shown
    assert re.search(r"a step took .*, predicted .*%\): ", shown)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "has not been timed lately .once: `scalewright predict tiny --cluster local --devices 1`"),
        ({"model": {"python": "parts:build"}}, "the user's own"),
        ({"device": "mps"}, "nobody publishes figures of mps"),
        ({"device": "cuda", "cluster": "no-such-cluster"}, "no-such-cluster"),
    ],
)
def test_a_note_where_nobody_can_say(home: Path, tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    resolved = resolve(RunSpec.parse(run_data(tmp_path, **changes)), read_data=False)
    found = expect(resolved)
    assert found.p50 is None
    assert re.search(why, found.note)
    assert found.promise().startswith("no prediction of a step's time: ")
    assert found.words() == ""


def test_a_planner_that_fails_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(expectation, "price", fail)
    resolved = resolve(RunSpec.parse(run_data(tmp_path, device="cuda", cluster="dgx-h100")), read_data=False)
    assert expect(resolved).note == "ZeroDivisionError: a bug"
    monkeypatch.undo()
    assert expect(resolved).p50 is not None  # the cluster that the run names


def test_what_a_slower_step_lost_its_time_to() -> None:
    found = Expectation(0.08, 0.1, 0.12, {"compute": 0.09, "dp_exposed": 0.01})
    for _ in range(expectation.COLD):
        found.measured(9.0, {"compute": 9.0})  # a start's first steps count for nothing
    assert found.words() == ""
    for _ in range(5):
        found.measured(0.4, {"compute": 0.1, "comm_dp_shard": 0.3})
    assert found.words().startswith(
        "a step took 400 ms, predicted 100 ms (+300%): slower than expected, "
        "most of it in data parallel, exposed (300 ms, 10 ms predicted)"
    )
    assert found.outcome() == {"predicted_step_time_s": 0.1, "measured_step_time_s": 0.4}


def test_no_part_takes_more_than_the_step_beside_it() -> None:
    found = Expectation(0.08, 0.1, 0.12, {"compute": 0.1})
    for seconds in [0.2] * (expectation.COLD + 6) + [3.0, 3.0]:  # two slow steps
        found.measured(seconds, {"compute": seconds})
    assert "took 200 ms" in found.words()
    assert "most of it in compute (200 ms, 100 ms predicted)" in found.words()


def test_words() -> None:
    assert compare(0.1, 0.08, 0.12, 0.11) == "a step took 110 ms, predicted 100 ms (+10%): as expected"
    assert "faster than expected" in compare(0.1, 0.08, 0.12, 0.05)
    assert "other work" not in compare(0.1, 0.08, 0.12, 0.05)
