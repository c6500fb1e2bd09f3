"""Several runs side by side: what differs, who is best, losses at the same tokens, and one page of all."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scalewright.report.runs import compare, find_runs, page, write_overlay
from scalewright.spec.errors import UserError


def a_run(folder: Path, lr: float, last: float | None, *, valid: bool = True, scale: int = 1) -> Path:
    """A run of 40 steps whose loss falls from 5 in a straight line to `last`; null: it diverged."""
    folder.mkdir(parents=True)
    config = {"name": folder.name, "out_dir": str(folder), "optimizer": {"lr": lr, "betas": [0.9, 0.95]}}
    (folder / "run.yaml").write_text(json.dumps(config))
    end = 1.0 if last is None else last
    rows: list[dict[str, Any]] = []
    for step in range(1, 41):
        loss = 5 + (end - 5) * step / 40
        row = {"kind": "train", "step": step, "tokens": 100 * step * scale, "loss": loss, "step_time_s": 60.0}
        rows.append({**row, "tokens_per_s": 50.0 * scale, "memory_gib": 0.5})
    if last is None:
        rows[-1]["loss"] = None
    if valid:
        rows.append({"kind": "valid", "step": 40, "loss": None if last is None else end + 0.1})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_what_differs_who_is_best_and_the_same_tokens(tmp_path: Path) -> None:
    a_run(tmp_path / "a", 1e-3, 2.0)
    a_run(tmp_path / "b", 3e-3, 1.0, scale=2)
    found = compare(find_runs([tmp_path]))
    assert found.differences == {"optimizer.lr": [0.001, 0.003]}
    assert (found.by, found.best) == ("valid_loss", "b")
    assert [run.valid_loss for run in found.runs] == [2.1, 1.1]
    assert found.runs[1].tokens == 8000
    assert found.aligned_tokens == [1000, 2000, 3000, 4000]  # as many as the shorter run has
    a, b = found.aligned_loss
    assert a[-1] == pytest.approx(2.0, abs=0.3)  # smoothed: it lags a little
    assert b[-1] == pytest.approx(3.0, abs=0.3)  # at half of its tokens


def test_a_run_that_diverged_is_not_the_best(tmp_path: Path) -> None:
    a_run(tmp_path / "a", 1e-3, 2.0)
    a_run(tmp_path / "b", 1e6, None)
    found = compare(find_runs([tmp_path / "a", tmp_path / "b"]))
    assert (found.by, found.best) == ("loss", "a")
    assert found.runs[1].loss is None


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run is here"):
        find_runs([tmp_path])
    a_run(tmp_path / "a", 1e-3, 2.0)
    with pytest.raises(UserError, match="one run is nothing to compare"):
        compare(find_runs([tmp_path, tmp_path / "a"]))  # the same one, twice


def test_the_page(tmp_path: Path) -> None:
    for number in range(10):
        a_run(tmp_path / f"run-{number}", 1e-3 * (number + 1), 1.0 + number, valid=number > 0)
    (tmp_path / "run-0" / "run.yaml").write_text(json.dumps({"name": "<b>bold</b>", "optimizer": {"lr": 1}}))
    runs = find_runs([tmp_path])
    text = write_overlay(runs, tmp_path / "all.html").read_text()
    assert "<b>bold</b>" not in text
    assert "&lt;b&gt;bold&lt;/b&gt; · best" in text  # by training loss: it doesn't validate
    assert "compared by their last training loss" in text
    losses = page(runs).sections[0].data["charts"]
    assert [chart["id"] for chart in losses] == ["train", "valid"]
    assert [view["key"] for view in losses[0]["views"]] == ["steps", "tokens", "time"]
    assert all(len(view["paths"]) == 10 for view in losses[0]["views"])
    assert sum(path["dashed"] for path in losses[0]["views"][0]["paths"]) == 2  # two more than colours
    assert losses[0]["views"][2]["x"][-1]["text"] == "40:00"  # 40 steps of a minute
    assert not re.search(r"(src|href)=\"(https?:)?//", text)


def test_compare_and_report_on_the_command_line(tmp_path: Path, call_cli: Any) -> None:
    a_run(tmp_path / "runs" / "a", 1e-3, 2.0)
    a_run(tmp_path / "runs" / "b", 3e-3, 1.0)
    shown = call_cli("compare", tmp_path / "runs" / "a", tmp_path / "runs" / "b")
    assert shown.code == 0
    assert "b (best)" in shown.out
    assert re.search(r"optimizer\.lr\s+0\.001\s+0\.003", shown.out)
    assert call_cli("compare", tmp_path / "runs", "--json").json()["best"] == "b"
    assert call_cli("compare", tmp_path / "runs" / "a").code == 2
    one = call_cli("report", tmp_path / "runs" / "a", "--json")
    assert one.json() == {"report": str(tmp_path / "runs" / "a" / "report.html")}
    many = call_cli("report", tmp_path / "runs" / "a", tmp_path / "runs" / "b", "--json")
    assert many.json() == {"report": str(tmp_path / "runs" / "report.html")}
    assert "2 runs" in (tmp_path / "runs" / "report.html").read_text()
    assert call_cli("report", tmp_path / "runs").code == 0
    assert call_cli("report", tmp_path / "nothing").code == 2


def test_a_run_that_stopped_is_marked_and_data_are_named_by_their_paths(tmp_path: Path, call_cli: Any) -> None:
    a, b = a_run(tmp_path / "a", 1e-3, 2.0), a_run(tmp_path / "b", 1e6, 1.0)
    for folder in (a, b):
        source = {"path": f"data/{folder.name}", "weight": 1.0, "format": "auto", "eod": None}
        config = {"name": folder.name, "data": {"train": [source]}}
        (folder / "run.yaml").write_text(json.dumps(config))
    stop = {"kind": "nonfinite", "step": 40, "action": "stopped", "where": "loss", "time": 2.0}
    fault = {"kind": "fault", "step": 40, "message": "stopped", "time": 3.0}
    (a / "events.jsonl").write_text('{"kind": "finish", "step": 40, "time": 1.0}\n')
    (b / "events.jsonl").write_text(f"{json.dumps(stop)}\n{json.dumps(fault)}\n")
    shown = call_cli("compare", a, b).out
    assert "b: diverged, and stopped, at step 40" in shown
    assert "a: " not in shown
    assert re.search(r"data\.train\s+data/a\s+data/b\s*\n", shown)
    text = write_overlay(find_runs([tmp_path]), tmp_path / "all.html").read_text()
    assert text.count('class="status-note">diverged, and stopped<') == 1


def test_files_among_several_runs(tmp_path: Path, call_cli: Any) -> None:
    """A plan isn't left out in silence; a database that `runs/*` brings is left out aloud."""
    a, b = a_run(tmp_path / "a", 1e-3, 2.0), a_run(tmp_path / "b", 3e-3, 1.0)
    for name in ("p.json", "planned.yaml", "mlflow.db", "report.html"):
        (tmp_path / name).write_text("{}")
    plan, database = tmp_path / "p.json", tmp_path / "mlflow.db"
    for subjects in ([a, b, tmp_path / "planned.yaml"], [a, plan], [plan, plan], [a, tmp_path / "no.json"]):
        answer = call_cli("report", *subjects)
        assert answer.code == 2
        assert "a plan's page is about one plan" in answer.error
        assert "give it alone" in answer.error
    answer = call_cli("report", a, b, database, "--out", tmp_path / "page.html")
    assert answer.code == 0
    assert str(database) in answer.error
    assert "2 runs" in (tmp_path / "page.html").read_text()
    assert call_cli("report", database, tmp_path / "report.html").code == 2
    assert "it is a file, not a run's folder" in call_cli("compare", a, plan).error
