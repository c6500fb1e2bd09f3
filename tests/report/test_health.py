"""A run's page leads with what went wrong, and never shows an old value as the last one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from report.page_checks import Seen, read_page
from report.run_folders import make_run, train_row, write_lines
from scalewright.report.run import write_report
from scalewright.train.state.changes import Changes

TIME = 1.76e9
START = {"time": TIME, "kind": "start", "step": 0}
FINISH = {"time": TIME + 99, "kind": "finish", "step": 20}


def _page(folder: Path, rows: list[dict[str, Any]], events: list[dict[str, Any]]) -> Seen:
    make_run(folder, steps=20)
    write_lines(folder / "metrics.jsonl", rows)
    write_lines(folder / "events.jsonl", [{"time": TIME + at, **event} for at, event in enumerate(events)])
    return read_page(write_report(folder))


def _rows(bad: range = range(0), **more: Any) -> list[dict[str, Any]]:
    nothing = {"loss": None, "grad_norm": None, **more}
    return [{**train_row(step), **(nothing if step in bad else {})} for step in range(1, 21)]


def test_a_run_that_became_nan_is_never_finished_and_healthy(tmp_path: Path) -> None:
    rows = _rows(range(3, 21))
    rows.append({"kind": "valid", "step": 20, "loss": None, "bits_per_byte": None})
    page = _page(tmp_path / "run", rows, [START, {"kind": "nonfinite", "step": 3}, FINISH])
    assert page.having("section")[0]["id"] == "health"
    (status,) = page.having("span", class_="status bad")
    assert status
    assert "shakespeare diverged" in page.body
    assert " finished " not in page.body.split("What happened")[0]
    assert "isn't finite from step 3 on. The last finite loss is 8.739, at step 2." in page.body
    assert "Training loss, last finite 8.739 nats per token at step 2; not finite since" in page.body
    assert "at step 20" not in page.body.split("How it went")[0]


def test_a_guards_stop_names_the_place(tmp_path: Path) -> None:
    stop = {"kind": "nonfinite", "step": 18, "action": "stopped", "where": "layers.3.mlp", "rank": 1}
    fault = {"kind": "fault", "message": "three steps in a row were not finite"}
    page = _page(tmp_path / "run", _rows(range(16, 19), skipped=True)[:18], [START, stop, fault])
    assert "The run was stopped at step 18 in layers.3.mlp (rank 1)." in page.body
    assert "Failed Three steps in a row were not finite." in page.body
    assert "shakespeare diverged, and stopped" in page.body
    assert "not to be used" not in page.body  # the guard left those updates out
    assert page.having("span", class_="status bad")


def test_skipped_steps_are_counted_in_the_status(tmp_path: Path) -> None:
    skip = {"kind": "nonfinite", "step": 7, "action": "skipped", "where": "layers.0.attention", "rank": 0}
    page = _page(tmp_path / "run", _rows(range(7, 9), skipped=True), [START, skip, FINISH])
    assert "finished, 2 steps skipped" in page.body
    assert "The update of steps 7, 8 was skipped on all ranks; first in layers.0.attention" in page.body
    assert page.having("span", class_="status warn")


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"kind": "spike", "step": 9, "value": 7.1, "usual": 2.3, "z": 9.0, "of": "loss",
          "action": "rewound"},
         "1 spike The largest is at step 9: loss 7.100, usually 2.300 (rewound)."),
        ({"kind": "stalled", "step": 9, "seconds": 93, "usual_s": 0.2},
         "Stalled 1 time The longest: step 9 took over 93 s, usually 200 ms."),
        ({"kind": "hang", "rank": 3, "axis": "dp_shard", "collective": "all_reduce", "number": 12,
          "where": "step.py:40"},
         "Rank 3 did not reach all_reduce 12 of dp_shard, at step.py:40."),
        ({"kind": "changed", "step": 10, "changes": {"optimizer.lr": [3e-4, 1e-4], "layout.tp": [1, 2]}},
         "Resumed with changes At step 10: optimizer.lr 0.0003 → 0.0001, layout.tp 1 → 2."),
        ({"kind": "fault", "message": "worker 1 was killed"}, "1 failure, resumed Worker 1 was killed."),
    ],
)  # fmt: skip
def test_what_a_healthy_end_must_not_hide(tmp_path: Path, event: dict[str, Any], said: str) -> None:
    page = _page(tmp_path / "run", _rows(), [START, event, {"kind": "resume", "step": 10}, FINISH])
    assert said in page.body
    assert "Nothing to report" not in page.body


def test_a_rewind_names_its_samples_and_is_drawn(tmp_path: Path) -> None:
    spike = {"kind": "spike", "step": 11, "action": "rewound", "of": "loss", "value": 7.1, "usual": 2.3, "z": 9.0}
    rewinds = [{**spike, "to": 10, "left_out": [first, first + 4]} for first in (40, 44, 60)]
    page = _page(tmp_path / "run", _rows(), [START, *rewinds, FINISH])
    assert "rewound 3 times; it was trained without samples 40 to 47, 60 to 63." in page.body
    assert "rewound to here" in page.body


def test_a_hang_without_an_end_is_the_status(tmp_path: Path) -> None:
    hang = {"kind": "hang", "rank": 3, "axis": "tp", "collective": "all_gather", "number": 5}
    assert "shakespeare hung" in _page(tmp_path / "run", _rows(), [START, hang]).body


def test_a_healthy_run_says_so(tmp_path: Path) -> None:
    page = _page(tmp_path / "run", _rows(), [START, FINISH])
    assert "Nothing to report All 20 steps have a finite loss and gradient norm" in page.body
    assert page.having("span", class_="status good")


def test_a_loss_that_rises_again_is_a_finding(tmp_path: Path) -> None:
    rows = [train_row(step, loss=2.0 if step < 150 else 3.5) for step in range(1, 201)]
    page = _page(tmp_path / "run", rows, [START, FINISH])
    assert "The loss rose again From about 2.000" in page.body


def test_the_time_is_shown_beside_its_prediction(tmp_path: Path) -> None:
    parts = {"data": 0.004, "compute": 0.13, "comm_dp_shard": 0.03, "comm_dp_replicate": 0.01, "comm_pp": 0.03}
    rows = [{**row, "step_time_s": 0.204, "breakdown_s": parts} for row in _rows()]
    predicted = {
        "kind": "predicted", "p10": 0.15, "p50": 0.17, "p90": 0.19, "note": "priced from its own timings",
        "breakdown_s": {"compute": 0.12, "recompute": 0.01, "dp_exposed": 0.02, "pp_bubble": 0.02},
        "memory_gib": {"parameters": 2.0, "activations": 1.0}, "comm_bytes": {"dp": 2e6, "tp": 0.0},
    }  # fmt: skip
    measured = {"kind": "measured", "memory_gib": {"parameters": 2.2}, "comm_bytes": {"dp": 2e6}}
    page = _page(tmp_path / "run", rows, [START, predicted, measured, FINISH])
    for said in (
        "compute 130 ms 63.7% 130 ms", "data parallel, exposed 40 ms 19.6% 20 ms",
        "pipeline bubble and messages 30 ms 14.7% 20 ms", "data loading 4 ms 2.0% –", "step, median 204 ms 170 ms",
        "Step time measured +20% against predicted",
        "p10–p90: 150 ms – 190 ms. The measured step is slower than that.",
        "priced from its own timings", "parameters 2.20 GiB 2.00 GiB +10%", "activations – 1.00 GiB",
        "sent by dp 2 MB 2 MB +0%",
    ):  # fmt: skip
        assert said in page.body, said


def test_only_what_differs_from_the_defaults_is_open(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    page = read_page(write_report(folder))
    open_part = page.text.split('id="configuration"')[1].split("All settings")[0]
    assert "<dt>lr</dt>" not in open_part  # 3e-4 is the default
    assert "<dt>valid_every</dt><dd>10</dd>" in open_part
    assert "<dt>precision</dt><dd>fp32</dd>" in open_part
    assert "<dt>lr</dt>" in page.text


@pytest.mark.parametrize("step", [None, "ten", [1], {}, 1.5, True, 1234])
def test_an_event_without_a_step_is_a_gap(tmp_path: Path, step: Any) -> None:
    events = [
        {"kind": kind, "step": step, "action": action, "seconds": 9, "z": 5, "value": 3.0, "changes": {"a": [1, 2]}}
        for kind in ("spike", "stalled", "changed", "nonfinite")
        for action in ("skipped", "stopped")
    ]
    text = _page(tmp_path, _rows(range(19, 21)), [START, *events]).text
    shown = "1,234" if step == 1234 else "?"
    assert f"stopped at step {shown}." in text
    assert f"The largest is at step {shown}:" in text
    assert f"The longest: step {shown} took" in text
    assert f"t step {shown}: a 1" in text


def test_what_a_gpu_measures_together_is_predicted_together(tmp_path: Path) -> None:
    predicted = {
        "kind": "predicted",
        "p50": 0.17,
        "memory_gib": {"parameters": 2.0, "activations": 1.0, "buffers": 0.5, "peak": 3.5},
    }
    measured = {"kind": "measured", "memory_gib": {"parameters": 2.0, "rest": 1.8, "peak": 3.8}, "comm_bytes": None}
    page = _page(tmp_path / "run", _rows(), [START, predicted, measured, FINISH])
    assert "activations, buffers, other 1.80 GiB 1.50 GiB +20%" in page.body


@pytest.mark.parametrize(("p50", "slow"), [(0.01, True), (10.0, False)])
def test_a_run_far_beyond_its_prediction_has_something_to_report(tmp_path: Path, p50: float, slow: bool) -> None:
    predicted = {"kind": "predicted", "step": 0, "p10": 0.9 * p50, "p50": p50, "p90": 1.1 * p50}
    load = {"kind": "load", "step": 0, "message": "2 workers of 3 threads on 2 cores: steps will be slow"}
    body = _page(tmp_path / "run", _rows(), [START, predicted, *[load] * slow, FINISH]).body
    assert ("Slower than predicted The median step takes" in body) == slow
    assert ("Nothing to report" in body) != slow
    assert ("Cores were short at the start 2 workers of 3 threads" in body) == slow


@pytest.mark.parametrize("count", [1, 2, 6, 7, 12])
def test_changes_are_listed_once_and_all_of_them(tmp_path: Path, count: int) -> None:
    """The console's line names the first six and counts the rest; the page has room for all."""
    changes = Changes({f"train.key_{number}": [number, number + 1] for number in range(count)})
    event = {"kind": "changed", "step": 10, "message": changes.line(10), "changes": changes.values}
    happened = _page(tmp_path / "run", _rows(), [START, event, FINISH]).body.split("What happened")[-1]
    assert "changed since step 10: train.key_0 0 → 1" in happened
    for number in range(count):
        assert happened.count(f"train.key_{number} ") == 1
    assert "more (events.jsonl)" not in happened
