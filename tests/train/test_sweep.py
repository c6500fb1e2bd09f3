"""A sweep runs what isn't finished, in folders of its own; what fails is a row."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from runs import run_data, write_run
from scalewright.cli.verbs.sweep import _show
from scalewright.spec.errors import UserError
from scalewright.train import sweep as module
from scalewright.train.sweep import Row, rank, sweep

HEADS = "model.num_attention_heads=4,5"  # a hidden size of 24 has no 5 heads


def test_a_sweep_and_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_run(tmp_path, run_data(tmp_path, train={"steps": 3, "valid_every": 3, "valid_batches": 1}))
    seen: list[tuple[int, int, str]] = []
    found = sweep(file, [HEADS, "optimizer.lr=0.25"], tell=lambda *all: seen.append((*all[:2], all[2].run)))
    good, bad = found.rows
    assert (good.run, good.status, good.step) == ("num_attention_heads-4", "finished", 3)
    assert good.valid_loss
    assert good.tokens_per_s
    assert Path(good.out_dir) == tmp_path / "tiny-sweep" / "num_attention_heads-4"
    assert (bad.status, bad.loss) == ("failed", None)
    assert "not divisible by num_attention_heads 5" in bad.error
    assert (found.by, found.best) == ("valid_loss", good.run)
    assert [done for done, _, _ in seen] == [1, 2]
    assert {name for _, _, name in seen} == {good.run, bad.run}

    def never(*_: Any) -> None:
        raise AssertionError("a finished run was started again")

    monkeypatch.setattr(module, "start_child", never)
    again = sweep(file, [HEADS, "optimizer.lr=0.25"])
    assert not again.rows[0].again
    assert again.rows[0].valid_loss == good.valid_loss
    _show(again)
    shown = capsys.readouterr().out
    assert "best by validation loss: num_attention_heads-4" in shown
    assert "not divisible" in shown
    with pytest.raises(AssertionError, match="started again"):  # but it is, when asked something else
        sweep(file, [HEADS, "optimizer.lr=0.125"])


def test_a_signal_stops_all_and_what_is_left_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_run(tmp_path, run_data(tmp_path))
    children: list[subprocess.Popen[str]] = []

    def start(*_: Any) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], **pipes))
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return children[-1]

    monkeypatch.setattr(module, "start_child", start)
    found = sweep(file, ["optimizer.lr=0.1,0.2,0.3"], jobs=1)
    assert [row.status for row in found.rows] == ["stopped"] * 3
    assert len(children) == 1  # no other was started
    assert found.best is None


def row(name: str, valid: float | None, loss: float | None, status: str = "finished") -> Row:
    return Row(name, {}, status, "", valid_loss=valid, loss=loss)


def test_best_by_validation_else_by_training_loss() -> None:
    rows = [row("a", 2.0, 1.0), row("b", 1.0, 2.0), row("c", 0.1, 0.1, "failed")]
    ordered, by, best = rank(rows)
    assert ([r.run for r in ordered], by, best) == (["b", "a", "c"], "valid_loss", "b")
    assert rank([row("a", None, 1.0), row("b", 1.0, 2.0)])[1:] == ("loss", "a")
    assert rank([row("c", 0.1, 0.1, "failed")])[1:] == ("loss", None)


def test_mistakes_end_before_a_run_starts(tmp_path: Path) -> None:
    file = write_run(tmp_path, run_data(tmp_path))
    with pytest.raises(UserError, match="did you mean"):
        sweep(file, ["optimizer.learn=1,2"])
    with pytest.raises(UserError, match="no key has more than one value"):
        sweep(file, ["optimizer.lr=1"])
