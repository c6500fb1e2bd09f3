"""`sw.train` in a script or a notebook: callbacks, and no `__main__` guard."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import scalewright as sw
from runs import TESTS, events, rows, run, run_data

SCRIPT = """
import json, sys
sys.path.insert(0, {tests!r})
import scalewright as sw
from runs import run_data
{before}
from pathlib import Path
data = run_data(Path({folder!r}), {keys})
steps = []
def on_step(row):
    steps.append(row["step"])
    return "stop" if row["step"] == 3 else None
kinds = []
def on_event(event):
    kinds.append(event["kind"])
result = sw.train(data, {{"layout.micro_batch": 2}}, quiet=True, on_step=on_step, on_event=on_event)
print(json.dumps([result.dump(), steps, kinds]))
"""
BUILD = "from parts import build\n"


def script(folder: Path, keys: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """A script of that name and folder, run as a user would."""
    file = folder / "my_script.py"
    file.write_text(SCRIPT.format(tests=str(TESTS), folder=str(folder), keys=keys, before=before))
    return subprocess.run(
        [sys.executable, str(file)], cwd=folder, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL
    )


def test_a_script_without_a_guard_starts_workers_and_hears_of_their_steps(tmp_path):
    keys = "layout={'devices': 2, 'zero_stage': 1}, train={'steps': 400}"
    done = script(tmp_path, keys)
    assert done.returncode == 0, done.stderr
    result, steps, kinds = json.loads(done.stdout)
    assert steps == [row["step"] for row in rows(tmp_path / "out")]
    assert 3 <= result["step"] < 400  # the workers heard of the stop some steps later
    assert result["step"] == steps[-1]
    assert result["loss"] == rows(tmp_path / "out")[-1]["loss"]
    assert kinds == [event["kind"] for event in events(tmp_path / "out")]
    assert {"start", "save", "stop"} <= set(kinds)
    assert (tmp_path / "out" / "checkpoints" / f"step-{result['step']:08d}" / "COMMIT").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("my_script:build", "a worker has imported the script that started it.*put the call under `if __name__"),
        pytest.param(
            "__main__:build",
            r"lies in the script or notebook .* 2 workers don't import that.*parts.py",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_parts_that_lie_in_the_script_itself(tmp_path, part, says):
    """One device takes them from the script that runs; workers would have to run it again."""
    keys = f"model={{'python': '{part}'}}, train={{'steps': 3}}"
    if part.startswith("__main__"):
        done = script(tmp_path, keys, BUILD)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)[1] == [1, 2, 3]
    done = script(tmp_path, f"layout={{'devices': 2}}, {keys}", BUILD)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert re.search(says, last), done.stderr


def test_callbacks_of_one_process(tmp_path):
    seen: dict[str, list[Any]] = {"train": [], "valid": [], "event": []}

    def note(kind: str) -> Any:
        return lambda row: seen[kind].append(row)

    base = run_data(tmp_path, train={"steps": 6, "valid_every": 2}, checkpoint={"at_end": True})
    out = run(base, on_step=note("train"), on_valid=note("valid"), on_event=note("event"), steps=4).out_dir
    assert seen["train"] == rows(out)
    assert seen["valid"] == rows(out, "valid")
    assert seen["event"] == events(out)
    result = run(base, on_step=lambda row: "stop")
    assert (result.step, result.resumed_from) == (6, 4)
    assert result.loss == rows(out)[-1]["loss"]


def test_a_callback_that_fails_ends_the_run_with_its_error(tmp_path):
    def fail(row: dict[str, Any]) -> None:
        raise ZeroDivisionError(f"at step {row['step']}")

    with pytest.raises(ZeroDivisionError, match="at step 1"):
        run(run_data(tmp_path), on_step=fail)
    with pytest.raises(sw.UserError, match="callback for train rows is str"):
        run(run_data(tmp_path), on_step="print")


def test_overrides_in_any_shape(tmp_path):
    base = run_data(tmp_path, train={"steps": 1})
    for number, given in enumerate([{"optimizer.lr": 1e-5}, "optimizer.lr=1e-5", ["optimizer.lr=1e-5"]]):
        out = run({**base, "out_dir": str(tmp_path / str(number))}, given).out_dir
        assert rows(out)[0]["lr"] == 1e-5
