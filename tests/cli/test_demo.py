"""What the demo says of its plan, on a machine that is given as data; the demo itself takes minutes."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import NoReturn

import pytest

from fake_machine import machine
from scalewright.cli.verbs.demo import Summary, beside, make_plan, outline
from scalewright.machine import local, timings
from scalewright.spec.layout import Layout

demo = import_module("scalewright.cli.verbs.demo")  # the package has the function by this name


def test_the_plan_is_a_layout_that_train_runs(monkeypatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(local, "timed_cluster", machine)
    summary = Summary()
    layout = demo._plan(summary, lambda step, text: said.append(text))
    assert layout == summary.layout
    assert (layout["devices"], layout["global_batch"], layout["precision"]) == (2, demo.BATCH, "fp32")
    assert summary.predicted_p10_s < summary.predicted_step_time_s < summary.predicted_p90_s
    best = make_plan(machine(2)).best[0]
    assert outline(best) in said[1]
    assert f"{summary.predicted_step_time_s * 1e3:.0f} ms" in said[2]
    assert any(line.startswith("not ") for line in said[3:])


def test_the_run_file_holds_the_planned_layout(tmp_path) -> None:
    from scalewright.train.resolve import read_run

    layout = make_plan(machine(2)).best[0].layout
    run = read_run(demo._run(tmp_path, layout.dump()), ())
    assert run.layout == layout


def test_a_machine_too_busy_to_time_is_trained_on_without_a_prediction(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from scalewright.train.resolve import read_run

    def given_up(processes: int) -> NoReturn:
        timings.probe(processes, 1, patience=0.01)
        pytest.fail("the probe was to be given up")

    monkeypatch.setattr(local, "timed_cluster", given_up)
    said: list[str] = []
    summary = Summary()
    layout = demo._plan(summary, lambda step, text: said.append(text))
    assert "try again when less other work runs" in said[1]
    assert "without a prediction" in said[2]
    assert summary.predicted_step_time_s is None
    assert read_run(demo._run(tmp_path, layout), ()).layout.dp == demo.DEVICES


def test_predicted_beside_measured() -> None:
    said = beside(
        Summary(predicted_step_time_s=0.1, predicted_p10_s=0.08, predicted_p90_s=0.12, measured_step_time_s=0.11)
    )
    assert said == "a step took 110 ms, predicted 100 ms (+10%): as expected"
    slow = beside(
        Summary(predicted_step_time_s=0.1, predicted_p10_s=0.08, predicted_p90_s=0.12, measured_step_time_s=0.4)
    )
    assert "slower than expected" in slow
    assert "no prediction" in beside(Summary())


def test_the_two_losses_say_on_what_each_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The end's is of all held-out text, the run's own of its beginning: they may differ."""
    evaluate = import_module("scalewright.cli.verbs.evaluate")  # its package has a function of that name
    monkeypatch.setattr(evaluate, "measure", lambda *_: {"bits_per_byte": 2.41149, "tokens": 123456})
    value, lines = demo.evaluation(tmp_path)
    assert value == 2.4115
    run = demo._run(tmp_path, dict(demo.UNPLANNED))
    taken = run["train"]["valid_batches"] * Layout.parse(run["layout"]).global_batch * run["data"]["seq_len"]
    assert lines == [
        "2.411 bits per byte of all 123,456 tokens of it",
        f"(validations on the way took the first {taken:,} of them)",
    ]
