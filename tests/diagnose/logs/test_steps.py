"""Ranks that print the same step are one; a number that goes back, or a new block of arguments, is a "
"restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.logs.write import factory_time, megatron_2021, titan, trainer

from scalewright.diagnose.logs.log import Log, read_log, read_logs
from scalewright.diagnose.logs.steps import Steps
from scalewright.diagnose.logs.times import usual

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


LINE = "{{'loss': {}, 'grad_norm': 1.4, 'learning_rate': {}e-06, 'epoch': {}}}\n"


@pytest.mark.parametrize(
    ("lines", "losses"),
    [
        ([(3.5, 1, 0.01), (0.0, 2, 0.01)], ["3.5", "0.0"]),
        ([(3.5, 1, 0.01), (3.5, 1, 0.01), (3.4, 2, 0.01)], ["3.5", "3.4"]),  # two nodes print the same
        ([(2.0, 1, 0.0), (2.0, 2, 0.0), ("nan", 3, 0.0), (90.0, 4, 0.0)], ["2.0", "2.0", "nan", "90.0"]),
        ([("nan", 1, 0.5), ("nan", 2, 0.5), ("nan", 2, 0.5)], ["nan", "nan"]),
        ([(2.0, 1, 1.0), (2.1, 2, 1.0), (2.2, 3, 0.5)], ["2.0", "2.1", "2.2"]),  # the last after a restart
    ],
)  # fmt: skip
def test_a_rounded_epoch_is_that_of_many_steps(
    tmp_path: Path, lines: list[tuple[object, int, float]], losses: list[str]
) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(LINE.format(*values) for values in lines))
    assert [str(step.loss) for step in read_log(path).steps] == losses


@pytest.mark.parametrize("behind", ["Killed", "[rank0]: OSError: [Errno 28] No space left on device"])
def test_what_stands_behind_a_progress_bar_is_read(tmp_path: Path, behind: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        f"  1%|  | 24/1752 [01:04<1:22:08,  2.88s/it]\r  1%|  | 25/1752 [01:04<1:22:08,  2.88s/it]\r{behind}\n"
    )
    log = read_log(path)
    assert len(log.events) == 1
    assert log.facts["mean_step_s"] == 2.88


def nanotron(date: str, step: int, loss: float = 2.0) -> str:
    return (
        f"{date} [INFO|DP=0|PP=0|TP=0]: iteration: {step} / 378950 | consumed_tokens: 85.8G | "
        f"time_per_iteration_ms: 11.5K | tokens_per_sec: 22.8K | global_batch_size: 64 | lm_loss: {loss}"
    )


@pytest.mark.parametrize(
    ("inserted", "older", "restarts"),
    [
        (["10/05/2025 20:32:24", "10/05/2025 20:32:36"], 2, 0),
        (["10/17/2024 16:31:56"], 1, 0),
        (["10/17/2025 16:31:50"], 0, 1),  # a rank's clock differs by seconds: steps that go back are a restart's
        (["10/18/2025 09:00:00"], 0, 1),
        ([], 0, 0),
    ],
)
def test_dates_that_go_back_are_an_older_run(tmp_path: Path, inserted: list[str], older: int, restarts: int) -> None:
    lines = [nanotron(f"10/17/2025 16:3{n}:56", 100 + n, 2 - n / 10) for n in range(1, 5)]
    after = [nanotron(f"10/{18 if restarts else 17}/2025 16:4{n}:56", 100 + n, 1 - n / 10) for n in range(5, 9)]
    log = log_of(tmp_path / "log", *lines, *(nanotron(date, 7 + n, 2.5) for n, date in enumerate(inserted)), *after)
    assert (len(log.steps), log.restarts) == (8 + len(inserted) - older, restarts)
    assert len(log.notes) == (older > 0)
    assert not older or log.notes[0].startswith(f"the dates go back: {older} line")


def test_time_elapsed_is_a_clock(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log", *(factory_time(step, 1.5, 3.0) for step in range(1, 13)))
    assert usual(log.steps).step_time_s == 1.5


def test_the_largest_memory_of_all_ranks_counts(tmp_path: Path) -> None:
    lines = [titan(step, 1.0, 3.0).replace("30.89", gib) for step in (10, 20) for gib in ("30.89", "44.50", "31.00")]
    log = log_of(tmp_path / "log", *(f"{n % 3}: {line}" for n, line in enumerate(lines)))
    assert [step.memory_gib for step in log.steps] == [44.5, 44.5]
    report = "[Rank {}] (after 5 iterations) memory (MB) | allocated: 1.0 | max allocated: {} | reserved: 1.0"
    lines = [megatron_2021(5, 1.0, 3.0), report.format(0, 2048.0), report.format(1, 4096.0), report.format(2, 1024.0)]
    log = log_of(tmp_path / "log", *lines)
    assert log.steps[0].memory_gib == 4.0
