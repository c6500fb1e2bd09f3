"""Damaged lines of a run: what a resume brings back from the checkpoint, and what it names as lost."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs import bits, events, run, run_data
from scalewright.checkpoint.verify import commit_text
from scalewright.report.folder import read_folder
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.track import lines, saved
from scalewright.track.lines import LineWriter

Change = Callable[[list[bytes]], list[bytes]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    """A run of 12 steps that is at its save of step 8, and the lines of one that was never stopped."""
    folder = tmp_path_factory.mktemp("runs")
    data = run_data(
        folder,
        checkpoint={"every": 4},
        train={"steps": 12, "valid_every": 3, "valid_batches": 1},
        layout={"micro_batch": 8},
        optimizer={"name": "adamw", "lr": 1e-2},
    )
    run(data, steps=8)
    straight = run({**data, "out_dir": str(folder / "straight")})
    return folder, data, bits(straight.out_dir)


@pytest.fixture
def copied(runs, tmp_path):
    """(its data, its folder, lines of the undisturbed run)"""
    folder, data, control = runs
    shutil.copytree(folder / "out", tmp_path / "out")
    return {**data, "out_dir": str(tmp_path / "out")}, tmp_path / "out", control


def other(line: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(line), **changes}).encode()


DAMAGE: dict[str, Change] = {
    "a row in the middle is gone": lambda rows: rows[:3] + rows[4:],
    "the tail is gone": lambda rows: rows[:5],
    "half a row at the save": lambda rows: [*rows[:-1], rows[-1][:40]],
    "empty": lambda rows: [],
    "NUL bytes in place of the tail": lambda rows: [*rows[:6], b"\0" * 900],
    "not UTF-8": lambda rows: [*rows[:2], b"\xff\xfe" + rows[2][2:], *rows[3:]],
    "rows twice": lambda rows: rows[:4] + rows,
    "out of order": lambda rows: rows[::-1],
    "a row of another run": lambda rows: [*rows[:4], other(rows[4], loss=9.5, samples=1), *rows[5:]],
    "a flipped digit": lambda rows: [rows[0].replace(b'"loss": 4', b'"loss": 5'), *rows[1:]],
    "no objects": lambda rows: [b"[1]", b"7", b"null", *rows[2:]],
    "a step that is no number": lambda rows: [other(rows[0], step="1"), other(rows[1], step=True), *rows[2:]],
    "nested too deeply": lambda rows: [b"[" * 5000, *rows[1:]],
}


QUICK = ("a row in the middle is gone", "NUL bytes in place of the tail")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.slow) for kind in DAMAGE]
)
def test_rows_come_back_from_the_checkpoint(copied, kind):
    data, out, control = copied
    path = out / "metrics.jsonl"
    before = path.read_bytes().splitlines()
    after = DAMAGE[kind](before)
    assert after != before
    path.write_bytes(b"\n".join(after))
    assert run(data).resumed_from == 8
    assert bits(out) == control
    assert path.read_bytes().splitlines()[: len(before)] == before  # the timings, too
    (note,) = events(out, "fault")
    assert note["message"].startswith("metrics.jsonl isn't as it was at the save of step 8: ")
    assert note["lost"] == []
    run({**data, "train": {**data["train"], "steps": 13}})
    assert len(events(out, "fault")) == 1  # the next resume finds nothing


def test_a_missing_file_comes_back(copied):
    data, out, control = copied
    (out / "metrics.jsonl").unlink()
    run(data)
    assert bits(out) == control
    assert "10 rows came back" in events(out, "fault")[0]["message"]


def test_what_the_copy_has_not_is_named(runs, tmp_path, monkeypatch, capfd):
    """Long runs: the copy has the newest lines alone."""
    _, data, control = runs
    data = {**data, "out_dir": str(tmp_path / "out")}
    monkeypatch.setattr(lines, "COPIED_BYTES", 1500)
    run(data, steps=8)
    path = tmp_path / "out" / "metrics.jsonl"
    rows = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([rows[0], *rows[4:6]]) + b"\n")  # 1, 4 and 5
    run(data)
    (note,) = events(tmp_path / "out", "fault")
    assert note["lost"] == [[2, 3]]
    assert "the training rows of steps 2 to 3 are lost" in note["message"]
    kept = [line for line in control if json.loads(line)["step"] not in (2, 3)]
    assert bits(tmp_path / "out") == kept
    assert "metrics.jsonl: the training rows of steps 2 to 3 are lost" in read_folder(path.parent).problems


def test_a_checkpoint_of_an_older_release(copied):
    """It has no copy: what is missing is named."""
    data, out, _ = copied
    for copy in out.glob("checkpoints/*/newest-*"):
        name, folder = copy.name, copy.parent
        manifest = json.loads((folder / "manifest.json").read_text())
        del manifest["files"][name]
        (folder / "manifest.json").write_text(json.dumps(manifest))
        copy.unlink()
        (folder / "COMMIT").write_text(commit_text(folder, manifest["step"]))
    path = out / "metrics.jsonl"
    path.write_bytes(b"\n".join(path.read_bytes().splitlines()[2:-1]))
    assert run(data).resumed_from == 8
    (note,) = events(out, "fault")
    assert note["lost"] == [[1, 2], [8, 8]]


@pytest.mark.parametrize("kind", ["empty", "not UTF-8", "no objects"])
def test_events_come_back(copied, kind):
    data, out, _ = copied
    path = out / "events.jsonl"
    rows = path.read_bytes().splitlines()
    path.write_bytes(b"".join(row + b"\n" for row in DAMAGE[kind](rows)))
    run(data)
    assert set(rows[:3]) <= set(path.read_bytes().splitlines())
    faults = [event["message"] for event in read_jsonl(path) if event["kind"] == "fault"]
    assert faults[0].startswith("events.jsonl isn't as it was at the save of step 8: ")


def test_a_whole_run_is_resumed_without_a_word(copied):
    """Later rows go; nothing else is written anew, and nothing is named."""
    data, out, control = copied
    path = out / "metrics.jsonl"
    with path.open("ab") as file:
        file.write(b'{"kind": "train", "step": 9, "loss": 1.0}\n{"kind": "tra')
    inode = path.stat().st_ino
    run(data)
    assert bits(out) == control
    assert path.stat().st_ino == inode
    assert events(out, "fault") == []


def test_a_run_from_a_checkpoint_elsewhere_lacks_nothing(runs, tmp_path):
    folder, data, _ = runs
    data = {**data, "out_dir": str(tmp_path / "out")}
    source = str(folder / "out" / "checkpoints" / "step-00000004")
    run(data, [f"resume={source}"], steps=8)
    path = tmp_path / "out" / "metrics.jsonl"
    path.write_bytes(b"\n".join(path.read_bytes().splitlines()[:-1]))
    run(data)
    assert [note["lost"] for note in events(path.parent, "fault")] == [[]]
    assert read_folder(path.parent).problems == []


def test_lines_are_on_the_disk_before_the_checkpoint(copied, monkeypatch):
    data = copied[0]
    order = []
    sync = os.fsync

    def note(handle: int) -> None:
        order.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        sync(handle)

    monkeypatch.setattr(os, "fsync", note)
    run(data)
    commit = next(i for i, name in enumerate(order) if "COMMIT" in name)
    assert {"metrics.jsonl", "events.jsonl"} <= set(order[:commit])


def test_a_save_reads_only_what_is_new(tmp_path, monkeypatch):
    writer, read = LineWriter(tmp_path / "metrics.jsonl"), []
    whole = saved.crc32
    monkeypatch.setattr(lines, "crc32", lambda file, a, b, value: read.append(b - a) or whole(file, a, b, value))
    for _ in range(3):
        writer.append({"step": 1})
        assert writer.copy().count(b"\n") == len(read) + 1
    assert read == [12, 12, 12]


@pytest.mark.parametrize("size", ["0", "Infinity", "NaN", "-5", '"x"', "60"])
def test_a_copy_with_less_than_its_rows_is_none(tmp_path, size):
    """Its file would be cut to that size."""
    row = json.dumps({"kind": "train", "step": 1, "loss": 2.5})
    (tmp_path / "newest-metrics.jsonl").write_text(f'{{"bytes": {size}, "crc32": 0}}\n{row}\n{row}\n')
    assert saved.read_saved(tmp_path, "metrics.jsonl", 4) is None
