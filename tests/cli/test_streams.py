"""Streams that are closed, full or left by their reader: no traceback, and the exit code of the work."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Unix's shell and /dev/full")

VERBS = {
    "presets models --json": 0,
    "train missing.yaml": 2,
    "--help": 0,
    "predict gpt2 --cluster dgx-h100 --devices 8 --seq-len 128": 0,
    "diagnose example": 0,
    "report run": 0,
    "checkpoint ls run": 2,
    "doctor --json": 0,
    "launch slurm good.yaml --print": 0,
    "prepare words.txt --vocab-size 260 --out o": 0,
}
# redirection -> the exit code of a verb that ends with 0, and with an error
STREAMS = {
    ">&-": (0, 2),
    "2>&-": (0, 2),
    "<&-": (0, 2),
    "2>/dev/full": (0, 2),
    ">/dev/full": (1, 2),
    ">/dev/full 2>/dev/full": (1, 2),
    ">&- 2>&- <&-": (0, 2),
    "| true": (141, 2),
}
SAMPLE = {
    ("presets models --json", ">&-"), ("presets models --json", "2>/dev/full"),
    ("presets models --json", ">/dev/full 2>/dev/full"), ("--help", ">/dev/full"),
    ("train missing.yaml", ">&- 2>&- <&-"), ("train missing.yaml", ">&-"),
    ("train missing.yaml", "2>/dev/full"), ("diagnose example", ">/dev/full"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "streams"),
    [
        pytest.param(verb, streams, marks=[] if (verb, streams) in SAMPLE else pytest.mark.slow)
        for verb in VERBS
        for streams in STREAMS
    ],
)
def test_streams(tmp_path: Path, verb: str, streams: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 2.0}\n')
    (tmp_path / "good.yaml").write_text("model: gpt2\ndata: nowhere\n")
    (tmp_path / "words.txt").write_text("one two three four five\n" * 50)
    command = f"{shlex.quote(sys.executable)} -m scalewright {verb} {streams}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=240, env=dict(os.environ),
    )  # fmt: skip
    expected = STREAMS[streams][bool(VERBS[verb])]
    silent = streams in (">/dev/full", ">/dev/full 2>/dev/full", "| true")
    wrote = {0, expected} if silent else {expected}  # what prints little may be done before its reader leaves
    assert done.returncode in wrote, done.stderr
    assert not any(word in done.stderr for word in ("unexpected", "Traceback", "Exception"))
    if expected == 1 and "2>" not in streams:
        assert "disk is full" in done.stderr


def test_a_file_does_not_get_a_closed_streams_number(tmp_path: Path) -> None:
    """With stdout closed the next file opened would be file 1, and what is printed would land in it."""
    command = f"{shlex.quote(sys.executable)} -m scalewright presets new --params 2e7 --out m.yaml >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], cwd=tmp_path, timeout=120, check=False).returncode == 0
    lines = (tmp_path / "m.yaml").read_text().splitlines()
    assert lines
    assert not [line for line in lines if "m.yaml" in line]
