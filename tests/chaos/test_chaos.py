"""Faults that are done to real runs, and what `chaos` says of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from forked import fork_cli
from runs import merge, run, run_data, write_run
from scalewright.chaos import faults
from scalewright.chaos.chaos import chaos, differences
from scalewright.chaos.faults import KINDS, choose, draw
from scalewright.report.answer import write_answer
from scalewright.report.present import show_answer
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.run import load_run

SLOWLY = {"python": "parts:fragile", "pause": 0.05}  # steps of a known length, so that faults meet all moments
TWO = {"devices": 2, "zero_stage": 0, "micro_batch": 4}


def test_a_seed_draws_the_same_faults_and_all_kinds_alike():
    first = draw(3, 30, ["kill", "disk", "slow"], 10)
    assert first == draw(3, 30, ["kill", "disk", "slow"], 10)
    assert first != draw(4, 30, ["kill", "disk", "slow"], 10)
    assert {kind: sum(fault.kind == kind for fault in first) for kind in ("kill", "disk", "slow")} == {
        "kill": 10, "disk": 10, "slow": 10,
    }  # fmt: skip
    assert all(1 <= fault.after_steps <= 10 and 0 <= fault.delay_s < 0.3 for fault in first)
    assert first[0].random(3).random() == first[0].random(3).random() != first[1].random(3).random()


def test_kinds_that_cannot_be_had_are_left_out_by_name(monkeypatch):
    kinds, missing = choose(["kill", "stop"], 1)
    assert kinds == ["kill"]
    assert "layout.devices=2" in missing["stop"]
    with pytest.raises(UserError, match="none of these faults can be had here: stop"):
        choose(["stop"], 1)
    with pytest.raises(UserError, match=r"unknown fault 'kil'.*did you mean 'kill'"):
        choose(["kil"], 2)
    monkeypatch.setattr(faults, "namespace", lambda: ())
    kinds, missing = choose([], 2)
    assert [*missing] == ["network"]
    assert "namespace" in missing["network"]
    assert set(kinds) == set(KINDS) - {"network"}


def test_a_run_by_tokens_and_no_faults_are_refused(tmp_path):
    data = run_data(tmp_path, checkpoint={"every": 2})
    tokens = {**data, "train": {"tokens": 1e6}}
    with pytest.raises(UserError, match=r"train\.steps"):
        chaos(load_run(write_run(tmp_path, tokens)))
    with pytest.raises(UserError, match="0 faults"):
        chaos(load_run(write_run(tmp_path, data)), faults=0)


def test_a_run_that_no_fault_can_meet_ends(tmp_path, monkeypatch):
    """Two steps are over before a fault; so may be each run of a kind that needs two saves."""
    run = load_run(write_run(tmp_path, run_data(tmp_path, checkpoint={"every": 2})))
    with pytest.raises(UserError, match="a run of 2 steps ends before a fault comes"):
        chaos(run.replace(train={"steps": 2}))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "control").touch()
    with pytest.raises(UserError, match="there is something in that folder already"):
        chaos(run, keep=tmp_path / "kept")
    drawn = []
    monkeypatch.setattr("scalewright.chaos.chaos._control", lambda run, work: drawn.append(run) or tmp_path)
    monkeypatch.setattr("scalewright.chaos.chaos._disturb", lambda *_: None)
    monkeypatch.setattr("scalewright.chaos.chaos.differences", lambda *_: [])
    stored = run.replace(checkpoint={"every": 2, "store": "file:///elsewhere/saves"})
    with pytest.raises(RunError, match=r"5 runs of 10 steps ended before a fault came.*--steps"):
        chaos(stored, kinds=["kill"])
    assert drawn[0].checkpoint.store is None  # the run's own saves lie there


def test_runs_that_differ_are_told_apart(tmp_path):
    """A tensor and a step; the same run twice is the same."""
    data = run_data(tmp_path, train={"steps": 3}, checkpoint={"at_end": True}, layout={"micro_batch": 8})
    one, same, other = (
        Path(run(merge(data, {"out_dir": str(tmp_path / name), "seed": seed})).out_dir)
        for name, seed in (("one", 3), ("same", 3), ("other", 4))
    )
    assert differences(one, same) == []
    words = differences(one, other)
    assert "step 1" in words
    assert "tensor embed.weight" in words or any(word.startswith("tensor ") for word in words)
    assert differences(one, tmp_path / "nowhere")


ANSWER: dict[str, Any] = {
    "faults": [
        {"kind": "kill", "at": 3.0, "recovered": True, "seconds": 5.0, "run": 1, "step": 8, "ended": [1],
         "lost_steps": 3, "lost_s": 0.4, "orphans": 0},
        {"kind": "disk", "at": 12.0, "recovered": False, "seconds": 240.0, "run": 2, "step": 9, "ended": [1, 1, 1, 1],
         "lost_steps": 0, "lost_s": 0.0, "orphans": 2},
    ],
    "equal": False, "lost": {"steps": 3, "seconds": 0.4}, "recovered": 1, "orphans": 2,
    "runs": [{"number": 1, "equal": True, "differs": [], "faults": 1},
             {"number": 2, "equal": None, "differs": [], "faults": 1}],
    "kinds": ["kill", "disk"], "left_out": [{"kind": "network", "why": "it needs a namespace"}], "seed": 0,
    "layout": {"devices": 2}, "steps": 60, "assumed": ["train.steps=60"], "control_s": 4.0, "seconds": 260.0,
}  # fmt: skip


def test_the_page_shows_what_came_back_and_what_did_not(tmp_path):
    shown = show_answer(ANSWER)
    lines = {line.label: line.text for line in shown.head}
    assert lines["recovered"].startswith("1 of 2 faults; training again after 5 s")
    assert lines["orphans"] == "2 processes were left behind, and killed"
    page = write_answer(ANSWER, tmp_path / "chaos.html").read_text()
    assert "Faults in time" in page
    assert "disk at step 9, did not come back" in page


@pytest.fixture
def parts_found(monkeypatch):
    """The loss of `parts.py` can be imported by the commands that are started, too."""
    here = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, here)))


@pytest.mark.slow
def test_a_run_comes_back_from_every_kind_of_fault(tmp_path, parts_found):
    """Two replicas, twelve kinds, nobody's hand: the same bits, and no process left."""
    adamw = {"name": "adamw", "lr": 1e-2}
    data = run_data(tmp_path, layout=TWO, loss=SLOWLY, optimizer=adamw, train={"steps": 60}, checkpoint={"every": 10})
    flags = ("--faults", "12", "--seed", "1", "--json", "--out", "page.html")
    process = fork_cli(tmp_path, "chaos", str(write_run(tmp_path, data)), *flags)
    out, err = process.communicate(timeout=600)
    answer = json.loads(out)
    assert process.returncode == 0, (err, answer)
    assert answer["equal"] is True
    assert [fault for fault in answer["faults"] if not fault["recovered"]] == []
    assert answer["orphans"] == 0
    assert {fault["kind"] for fault in answer["faults"]} == {*KINDS} - {entry["kind"] for entry in answer["left_out"]}
    assert not (tmp_path / "out").exists()  # the run's own folder
    assert (tmp_path / "page.html").exists()


@pytest.mark.slow
def test_a_run_alone_comes_back_too(tmp_path, parts_found):
    data = run_data(tmp_path, loss=SLOWLY, train={"steps": 40}, checkpoint={"every": 5}, layout={"micro_batch": 8})
    answer = chaos(load_run(write_run(tmp_path, data)), faults=6, seed=2, kinds=["kill", "memory", "damage"])
    assert (answer["equal"], answer["recovered"], answer["orphans"]) == (True, 6, 0)
