"""Runs on two ranks that are killed at a put of theirs to an S3 server, and lose their disk: all end as the undisturbed
run does, bit by bit; and the server's troubles while they save."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from object_store import BUCKET, S3, proxied, s3, server  # noqa: F401 - fixtures
from runs import TIMING, end, run_data, start_cli, write_run
from scalewright.checkpoint.store.look import look_into

URL = f"s3://{BUCKET}/run"
KILLS = 12


CHANGES = {"PUT", "POST", "DELETE"}


class EndAt:
    """Nothing is changed from the number-th change on; tells when that is."""

    def __init__(self, number: int) -> None:
        self.left, self.committed, self.reached = number, False, threading.Event()

    def __call__(self, method: str, path: str, _: int) -> str | None:
        self.left -= method in CHANGES
        if self.left <= 0:
            self.reached.set()
            return "reset"
        self.committed |= path.endswith("COMMIT") and method == "PUT"
        return None


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in row.items() if key not in TIMING} for row in lines]


def train(folder: Path, watch: Any = None) -> int:
    """One call of the command, its exit code; `watch(process)` while it runs."""
    process = start_cli(folder, "train", "run.yaml")
    try:
        if watch is not None:
            watch(process)
        process.communicate(timeout=120)
    finally:
        end(process)
    return int(process.returncode)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_kill_at_a_put_and_a_lost_disk(s3, tmp_path):  # noqa: F811
    write_run(tmp_path, run_data(tmp_path, layout={"devices": 2}, checkpoint={"every": 2, "store": URL}))
    with proxied(s3) as proxy:
        assert train(tmp_path) == 0
        total = sum(method in CHANGES for method, _ in proxy.seen)
    whole = rows(tmp_path / "out")
    for number in sorted(random.Random(0).sample(range(1, total), KILLS)):
        s3.empty()
        shutil.rmtree(tmp_path / "out")
        fault = EndAt(number)

        def kill(process: Any, fault: EndAt = fault) -> None:
            fault.reached.wait(60)
            os.killpg(process.pid, signal.SIGKILL)

        with proxied(s3, fault):
            train(tmp_path, kill)
        if fault.committed:
            there = [seen for seen in look_into(URL, every_byte=True) if (seen.folder / "COMMIT").exists()]
            assert there, number
            assert all(seen.problems == [] for seen in there), number
        shutil.rmtree(tmp_path / "out")
        assert train(tmp_path) == 0, number
        assert rows(tmp_path / "out") == whole, number


@pytest.mark.slow
def test_a_store_that_throttles_all_the_time(s3, tmp_path):  # noqa: F811
    """A third of all requests fail in some way; the run ends as ever, and what it saved is there."""
    write_run(tmp_path, run_data(tmp_path, layout={"devices": 2}, checkpoint={"every": 2, "store": URL}))
    kinds = random.Random(1)
    with proxied(s3, lambda *_: kinds.choice([503, 429, 500, "reset", "lost", "cut", 0.2] + [None] * 14)):
        assert train(tmp_path) == 0
    there = look_into(URL, every_byte=True)
    assert [seen.problems for seen in there] == [[], []]
    assert there[0].folder.name == "step-00000010"  # of those before it some may have been left out
