"""metrics.jsonl: every step once, whatever killed the run before."""

from __future__ import annotations

import json
import math
import os
import random
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.errors import RunError
from scalewright.track.events import EventsFile
from scalewright.track.lines import LineWriter
from scalewright.track.metrics import MetricsFile
from scalewright.track.saved import Saved


def train_row(step: int, loss: float = 2.5) -> dict[str, object]:
    return {
        "kind": "train", "step": step, "samples": 8 * step, "tokens": 8192 * step, "loss_tokens": 8192,
        "loss": loss, "aux_loss": 0.0, "grad_norm": 0.73123456789, "lr": 3e-4, "step_time_s": 0.123456789,
        "tokens_per_s": 66353.1234, "mfu": 0.3123, "memory_gib": 1.25, "sample_ids_hash": "9f1c2d3e4f5a6b7c",
    }  # fmt: skip


def steps(path: Path, kind: str = "train") -> list[int]:
    return [row["step"] for row in read_jsonl(path) if row["kind"] == kind]


def fill(path: Path, count: int) -> None:
    metrics = MetricsFile(path)
    for step in range(1, count + 1):
        metrics.write(train_row(step))
        if step % 2 == 0:
            metrics.write({"kind": "valid", "step": step, "loss": 2.0, "bits_per_byte": 1.1})
    metrics.close()


def test_resume_drops_later_steps_and_repeats_none(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    fill(path, 7)
    metrics = MetricsFile(path, resume_step=4)
    assert steps(path) == [1, 2, 3, 4]
    for step in (4, 5, 6):  # a trainer that writes step 4 again does no harm
        metrics.write(train_row(step, loss=9.0))
    assert steps(path) == [1, 2, 3, 4, 5, 6]
    assert steps(path, "valid") == [2, 4]
    assert read_jsonl(path)[-3]["step"] == 4
    assert [row["loss"] for row in read_jsonl(path) if row["kind"] == "train"] == [2.5] * 4 + [9.0] * 2


def test_a_new_run_in_an_old_folder_starts_empty_and_none_appends(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    fill(path, 3)
    appended = MetricsFile(path, resume_step=None)
    appended.write(train_row(4))
    appended.close()
    assert steps(path) == [1, 2, 3, 4]
    MetricsFile(path).close()
    assert read_jsonl(path) == []


@pytest.mark.parametrize("cut", [1, 5, 40, 200])
def test_a_half_written_last_line_is_survived(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "metrics.jsonl"
    fill(path, 5)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    last = 5 if cut == 1 else 4  # cutting only the newline leaves a whole object
    assert steps(path) == list(range(1, last + 1))
    metrics = MetricsFile(path, resume_step=10)
    for step in range(last + 1, 8):
        metrics.write(train_row(step))
    assert path.read_bytes().startswith(whole[: len(whole) - len(whole.splitlines()[-1]) - 1])
    assert steps(path) == [1, 2, 3, 4, 5, 6, 7]
    for line in path.read_text().splitlines():
        json.loads(line)


def test_garbage_and_repeated_lines_from_elsewhere_go_when_the_file_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    fill(path, 3)
    good = path.read_bytes()
    path.write_bytes(good + b"\x00\xff\x00\n[1, 2]\n" + good)
    MetricsFile(path, resume_step=3).close()
    assert path.read_bytes() == good


def test_trimming_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    fill(path, 6)
    before = path.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(RunError, match="No space left"):
        MetricsFile(path, resume_step=2)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_floats_round_trip_bit_by_bit(tmp_path: Path) -> None:
    generator = random.Random(0)
    values = [struct.unpack("<d", generator.randbytes(8))[0] for _ in range(300)]
    values = [v for v in values if math.isfinite(v)] + [0.1, -0.0, 5e-324, 1e22, 1 / 3]
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    for step, value in enumerate(values):
        metrics.write({"kind": "train", "step": step, "loss": value})
    back = [row["loss"] for row in read_jsonl(metrics.path)]
    assert [struct.pack("<d", v) for v in back] == [struct.pack("<d", v) for v in values]


@pytest.mark.parametrize(
    ("value", "said"),
    [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"), (np.float32("nan"), "nan"), (np.float64("inf"), "inf")],
)
def test_nonfinite_becomes_null_and_an_event(tmp_path: Path, value: float, said: str) -> None:
    events = EventsFile(tmp_path / "events.jsonl")
    metrics = MetricsFile(tmp_path / "metrics.jsonl", events=events)
    assert metrics.write(train_row(1)) == {}
    assert metrics.write(train_row(2, loss=value)) == {"loss": said}
    text = metrics.path.read_text()
    assert '"loss": null' in text
    assert "NaN" not in text
    assert "Infinity" not in text
    (event,) = read_jsonl(events.path)
    assert (event["kind"], event["step"], event["values"]) == ("nonfinite", 2, {"loss": said})


def test_numpy_scalars_are_numbers(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.write({"kind": "train", "step": np.int64(3), "loss": np.float32(0.5), "lr": np.float64(0.1)})
    assert read_jsonl(metrics.path) == [{"kind": "train", "step": 3, "loss": 0.5, "lr": 0.1}]


def test_every_line_is_on_disk_at_once(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.write(train_row(1))
    assert steps(metrics.path) == [1]  # read back with the writer still open


def test_a_line_is_cheap(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    times = []
    for step in range(1, 1001):
        row = train_row(step)
        begin = time.perf_counter()
        metrics.write(row)
        times.append(time.perf_counter() - begin)
    assert sorted(times)[len(times) // 2] < 50e-6  # the budget; the median, since other work shares these cores


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    link = tmp_path / "metrics.jsonl"
    link.symlink_to(full)
    with pytest.raises(RunError, match=r"cannot write .*No space left"):
        LineWriter(link).append({"kind": "train", "step": 1})


@pytest.mark.parametrize("resume_step", [0, 4, None])
@pytest.mark.parametrize("saved", [None, Saved("metrics.jsonl", 4, 0, 0, [])])
def test_a_pipe_is_one_clear_error(tmp_path: Path, resume_step: int | None, saved: Saved | None) -> None:
    """Opening one waits for its other end, and a device would swallow the rows."""
    path = tmp_path / "metrics.jsonl"
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)  # so that a mistake here doesn't wait
    try:
        with pytest.raises(RunError, match=r"cannot write .*metrics.jsonl: it is not a regular file"):
            MetricsFile(path, resume_step, saved=saved, first=1)
    finally:
        os.close(end)
    path.unlink()
    path.symlink_to(os.devnull)
    with pytest.raises(RunError, match=r"cannot write .*not a regular file"):
        MetricsFile(path, resume_step, saved=saved, first=1)
