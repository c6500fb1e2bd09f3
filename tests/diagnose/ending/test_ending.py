"""How a job ended, of texts as trainers, launchers, schedulers and kernels write them: the cause, not what follows."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from scalewright.diagnose.ending.ending import Ending, ending
from scalewright.diagnose.ending.hang import hang
from scalewright.diagnose.ending.out_of_memory import fix, sizes_of
from scalewright.diagnose.logs.answer import log_answer
from scalewright.diagnose.logs.given import Given
from scalewright.diagnose.logs.log import read_logs

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
    return ending(read_logs([path]).events, **more)


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    end = end_of(whole(case), tmp_path)
    assert end is not None
    assert (end.kind, case["what"] in end.what, case["fix"] in end.fix) == (case["kind"], True, True), end


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in CASES
        if "sent SIG" not in CASES[name]["what"] and CASES[name]["kind"] != "finished" and "alone" not in name
    ],
)
def test_the_cause_comes_before_what_follows_wherever_that_stands(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    end = end_of(FOLLOWS + case["text"] + FOLLOWS, tmp_path)
    assert end is not None
    assert (end.kind, case["what"] in end.what) == (case["kind"], True), end


def test_a_signal_to_the_launcher_after_a_rank_was_gone_is_no_cause(tmp_path: Path) -> None:
    """A scheduler ends a job of which one node failed: what that node printed isn't here."""
    end = end_of(FOLLOWS + CASES["SIGTERM to torchrun"]["text"], tmp_path)
    assert end is not None
    assert end.what == "rank 0 noticed that another one was gone"


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
    assert end.evidence[-1] == "raised in /home/me/train.py:12, in step"


def watchdog(rank: int, seq: int, group: str = "", op: str = "ALLREDUCE", enqueued: int = 0, at: int = 0) -> str:
    """As PyTorch 2.5 prints it; `at`: the rank's number in the group."""
    name = f"PG ID 1 PG GUID {group} Rank {at}" if group else f"Rank {rank}"
    return (
        f"[rank{rank}]:[E816 01:45:40.1 ProcessGroupNCCL.cpp:607] [{name}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600026 ms\n"
        f"[rank{rank}]:[E816 01:45:40.2 ProcessGroupNCCL.cpp:1664] [{'' if group else 'PG 0 (default_pg) '}{name}] "
        f"Exception detected by watchdog at work: {seq}, last enqueued NCCL work: {enqueued or seq}, "
        f"last completed NCCL work: {seq - 1}.\n"
    )


@pytest.mark.parametrize(
    ("text", "world", "different", "ranks"),
    [
        # two groups' numbers: nothing differs, and nobody is behind
        (watchdog(0, 31, "5(tp)") + watchdog(1, 31, "5(tp)", at=1) + watchdog(2, 80, "7(dp)", "SEND"), 4, False, []),
        (watchdog(0, 31, "5(tp)") + watchdog(2, 31, "7(dp)", "BROADCAST"), 4, False, []),
        (watchdog(0, 31, "5(tp)") + watchdog(1, 31, "5(tp)", "BROADCAST", at=1), 4, True, None),
        (watchdog(0, 31, "5(tp)") + watchdog(1, 30, "5(tp)", at=1) + watchdog(2, 9, "7(dp)"), 4, False, [1]),
        # one rank's log alone says nothing of the others
        (watchdog(5, 411), 8, False, []),
        (watchdog(0, 411) + watchdog(1, 411) + watchdog(3, 411), 4, False, [2]),
        (watchdog(0, 31, "5(tp)") + watchdog(1, 31, "5(tp)", at=1), 8, False, []),  # six others aren't in this group
    ],
)  # fmt: skip
def test_numbers_are_compared_within_a_group(
    tmp_path: Path, text: str, world: int, different: bool, ranks: list[int] | None
) -> None:
    path = tmp_path / "job.out"
    path.write_text(text)
    result = hang(read_logs([path]).events, world)
    assert result.different == different
    assert ranks is None or result.ranks == ranks


@pytest.mark.parametrize(
    ("name", "rank"),
    [("slurm-12345.out", None), ("job-7.out", None), ("rank3.err", 3), ("train-3.log", 3), ("run_4711.log", None),
     ("3/stderr.log", 3), ("task_12.out", 12)],
)  # fmt: skip
def test_a_file_of_one_rank_is_known_by_its_name(tmp_path: Path, name: str, rank: int | None) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert read_logs([path]).events[0].rank == rank


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


def test_an_interrupt_at_the_terminal(tmp_path: Path) -> None:
    end = end_of('Traceback (most recent call last):\n  File "a.py", line 3, in main\nKeyboardInterrupt\n', tmp_path)
    assert end is not None
    assert (end.kind, end.what) == ("stopped", "interrupted at its terminal (SIGINT)")


def test_an_exception_without_its_traceback(tmp_path: Path) -> None:
    """As a launcher shows the last line alone."""
    end = end_of("[rank2]: RuntimeError: The size of tensor a (4) must match the size of tensor b (3)\n", tmp_path)
    assert end is not None
    assert (end.kind, end.rank) == ("raised", 2)


@pytest.mark.parametrize(
    ("others", "gib"),
    [
        (["77.90 GiB"], 0.0),  # in a container: this process, by the host's number
        (["20.00 GiB", "57.90 GiB"], 20.0),
        (["10.00 GiB"], 10.0),  # another one: both fit the device
        (["57.00 GiB"], None),
        ([], None),
    ],
)
def test_this_process_is_not_another_one(others: list[str], gib: float | None) -> None:
    held = 75.0 if others == ["77.90 GiB"] else 50.0
    listed = "".join(f"Process {n} has {size} memory in use. " for n, size in enumerate(others, 1))
    if gib is None and others:  # it names itself, so that what is listed are others
        listed, gib = "Including non-PyTorch memory, this process has 21.00 GiB memory in use. " + listed, 57.0
    line = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.20 GiB "
        f"is free. {listed}Of the allocated memory {held - 5:.2f} GiB is allocated by PyTorch, and 5.00 GiB is "
        "reserved by PyTorch but unallocated."
    )
    sizes = sizes_of(line)
    assert sizes.get("others", 0.0) == pytest.approx((gib or 0.0) * 2**30)
    assert ("end the other processes" in fix(sizes)) == bool(gib)


@pytest.mark.parametrize("code", ["0", "1", "143", "15"])
def test_an_exit_code_that_is_no_death_is_no_cause(code: str, tmp_path: Path) -> None:
    end = end_of(f"trainer-1 exited with code {code}\n", tmp_path)
    assert end is None


def test_the_ends_that_restarts_followed_are_counted(tmp_path: Path) -> None:
    def life(first: int, last: int) -> str:
        return "".join(f"step: {n}  loss: {3 + 1 / n:.4f}  grad_norm: 0.5  tps: 7,000\n" for n in range(first, last))

    preempted = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-03T02:11:20 DUE TO PREEMPTION ***\n"
    killed = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
    )
    path = tmp_path / "job.out"
    path.write_text(life(1, 40) + preempted + life(30, 70) + killed + life(60, 90) + preempted + life(80, 120))
    log = log_answer([path], Given())["log"]
    assert log["restarts"] == 3
    assert log["ended_before"] == {"preempted": 2, "host out of memory": 1}
