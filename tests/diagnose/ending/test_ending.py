"""How a job ended, of texts as trainers, launchers, schedulers and kernels write them: the cause, not what follows."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from scalewright.diagnose.ending.ending import Ending, ending
from scalewright.diagnose.ending.events import SEARCHED, events
from scalewright.diagnose.ending.signs import marks

FOLLOWS = (
    "[rank0]: Traceback (most recent call last):\n"
    "[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317, remote process exited or there was "
    "a network error, NCCL version 2.21.5\n"
    "W0816 01:45:41.000000 99 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 100 closing signal "
    "SIGTERM\n"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
)
CASES: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("endings.yaml").read_text(encoding="utf-8"))


def whole(case: dict[str, str]) -> str:
    follows = case.get("follows")
    return FOLLOWS * (follows == "before") + case["text"] + FOLLOWS * (follows == "after")


def end_of(text: str, folder: Path, **more: int) -> Ending | None:
    path = folder / "job.out"
    path.write_text(text)
    return ending(events([path]), **more)


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    end = end_of(whole(case), tmp_path)
    assert end is not None
    assert (end.kind, case["what"] in end.what, case["fix"] in end.fix) == (case["kind"], True, True), end


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name]["kind"] != "finished"])
def test_the_cause_comes_before_what_follows_wherever_that_stands(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    end = end_of(FOLLOWS + case["text"] + FOLLOWS, tmp_path)
    assert end is not None
    assert (end.kind, case["what"] in end.what) == (case["kind"], True), end


def test_a_line_of_memory_is_taken_apart(tmp_path: Path) -> None:
    end = end_of(CASES["fragmented"]["text"], tmp_path)
    assert end is not None
    assert end.facts == {
        "tried": 2.0,
        "capacity": 79.11,
        "free": 1.2,
        "in_use": 77.9,
        "allocated": 70.01,
        "unused": 5.2,
    }
    assert end.evidence[0] == "2.00 GiB were asked for with 1.20 GiB free of 79.11 GiB on GPU 3"
    assert end.evidence[-1] == "raised in /work/train.py:12, in step"


def test_what_steps_follow_is_no_end(tmp_path: Path) -> None:
    assert end_of(CASES["first exception"]["text"], tmp_path, steps=100) is None


@pytest.mark.parametrize(
    "text",
    ["", "step 1 loss 2.0\n", "WARNING: Error bars are off\n", "KeyError handling is on\n",
     "UserWarning: CUDA is old\n",
     "Killed time by waiting\n", "INFO oom_score_adj is 0\n", "exits with return code = 0\n"],
)  # fmt: skip
def test_other_lines_tell_of_no_end(text: str, tmp_path: Path) -> None:
    end = end_of(text, tmp_path)
    assert end is None or end.kind == "finished"


def test_every_mark_of_the_table_is_searched_for() -> None:
    unseen = [mark for mark in marks() if not any(word in mark for word in SEARCHED)]
    assert not unseen
