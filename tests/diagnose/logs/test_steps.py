"""Ranks that print the same step are one; a number that goes back, or a new block of arguments, is a "
"restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.logs.write import megatron_2021, titan, trainer

from scalewright.diagnose.logs.log import Log, read_logs
from scalewright.diagnose.logs.steps import Steps

BLOCK = "------------------------ arguments ------------------------\n"


def log_of(path: Path, *texts: str) -> Log:
    path.write_text("".join(text if text.endswith("\n") else text + "\n" for text in texts))
    return read_logs([path])


def test_ranks_that_print_the_same_step(tmp_path: Path) -> None:
    lines = [f"{rank}: {titan(step, 1.0, 3.0 - step / 100)}" for step in (10, 20, 30) for rank in range(4)]
    log = log_of(tmp_path / "log", *lines)
    assert [step.step for step in log.steps] == [10, 20, 30]
    assert log.restarts == 0


def test_a_late_rank_is_no_restart(tmp_path: Path) -> None:
    order = (10, 20, 10, 30, 20, 40)
    log = log_of(tmp_path / "log", *(titan(step, 1.0, 3.0 - step / 100) for step in order))
    assert [step.step for step in log.steps] == [10, 20, 30, 40]
    assert log.restarts == 0


def test_the_same_losses_minutes_later_are_a_restart(tmp_path: Path) -> None:
    """A resumed run may repeat its last steps bit for bit."""
    first = [titan(step, 1.0, 3.0 - step / 100) for step in range(1, 21)]
    second = [titan(step, 1.0, 3.0 - step / 100).replace(" 11:00:", " 11:05:") for step in range(19, 31)]
    log = log_of(tmp_path / "log", *first, *second)
    assert (len(log.steps), log.restarts) == (32, 1)


@pytest.mark.parametrize("block", ["", BLOCK])
def test_a_number_that_goes_back_is_a_restart_counted_once(tmp_path: Path, block: str) -> None:
    first = [megatron_2021(step, 1.0, 3.0 - step / 100) for step in range(1, 21)]
    second = [megatron_2021(step, 1.0, 2.9 - step / 100) for step in range(11, 31)]
    log = log_of(tmp_path / "log", block, *first, block, *second)
    assert (len(log.steps), log.restarts) == (40, 1)
    assert [step.life for step in log.steps] == [0] * 20 + [1] * 20


def test_a_new_block_of_arguments_is_a_restart_also_where_no_number_goes_back(tmp_path: Path) -> None:
    lives = [[megatron_2021(step, 1.0, 3.0) for step in range(n, n + 5)] for n in (1, 6, 11)]
    log = log_of(tmp_path / "log", *(text for life in lives for text in (BLOCK, BLOCK, *life)))
    assert (len(log.steps), log.restarts) == (15, 2)


def test_steps_without_numbers_go_by_their_epochs(tmp_path: Path) -> None:
    log = log_of(
        tmp_path / "log",
        *(trainer(step, 1.0, loss) for step, loss in zip((5, 10, 15, 5, 10), (3, 2, 1, 2.9, 2.1), strict=True)),
    )
    assert (len(log.steps), log.restarts) == (5, 1)
    assert {step.step for step in log.steps} == {None}


def test_parts_of_a_run_in_several_files_are_one(tmp_path: Path) -> None:
    for part in (0, 1):
        lines = (megatron_2021(step, 1.0, 3.0) for step in range(1 + 5 * part, 6 + 5 * part))
        (tmp_path / f"part{part}.log").write_text("\n".join(lines) + "\n")
    log = read_logs(sorted(tmp_path.iterdir()))
    assert [step.step for step in log.steps] == list(range(1, 11))
    assert log.restarts == 0


def test_files_of_ranks_are_one_run(tmp_path: Path) -> None:
    for rank in range(3):
        lines = [f"[rank{rank}]: {titan(step, 1.0, 3.0 - step / 100)}" for step in range(1, 21 - rank)]
        (tmp_path / f"rank{rank}.log").write_text("\n".join(lines) + "\n")
    log = read_logs(sorted(tmp_path.iterdir()))
    assert ([step.step for step in log.steps], log.restarts) == (list(range(1, 21)), 0)


def test_the_next_job_s_file_is_a_restart(tmp_path: Path) -> None:
    for job, first in ((1, 1), (2, 16)):
        lines = [megatron_2021(step, 1.0, 3.0 - step / 100 - job / 7) for step in range(first, first + 20)]
        (tmp_path / f"job-{job}.log").write_text(BLOCK + "\n".join(lines) + "\n")
    log = read_logs(sorted(tmp_path.iterdir()))
    assert (len(log.steps), log.restarts, log.steps[-1].life) == (40, 1, 1)


def test_more_steps_than_are_kept_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalewright.diagnose.logs.steps.MOST", 5)
    steps = Steps()
    for step in range(9):
        steps.add({"step": step, "loss": 1.0})
    assert (len(steps.all), steps.left_out) == (5, 4)
