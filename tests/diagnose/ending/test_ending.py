"""How a job ended, of texts as trainers, launchers, schedulers and kernels write them: the cause, not what follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.diagnose.ending.ending import Ending, ending
from scalewright.diagnose.ending.events import events

OUT_OF_MEMORY = (
    "[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "/work/train.py", line 12, in step\n'
    "[rank3]:     loss.backward()\n"
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of "
    "79.11 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.90 GiB memory in use. Of "
    "the allocated memory 70.01 GiB is allocated by PyTorch, and {unused} GiB is reserved by PyTorch but unallocated.\n"
)
FOLLOWS = (
    "[rank0]: Traceback (most recent call last):\n"
    "[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317, remote process exited or there was "
    "a network error, NCCL version 2.21.5\n"
    "W0816 01:45:41.000000 99 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 100 closing signal "
    "SIGTERM\n"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
)
SUMMARY = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-02_10:00:00\n  host      : node7\n"
    "  rank      : {rank} (local_rank: 1)\n  exitcode  : {code} (pid: 4711)\n  error_file: <N/A>\n"
)


def watchdog(rank: int, number: int, operation: str, elements: int = 64, enqueued: int | None = None) -> str:
    return (
        f"[rank{rank}]:[E816 01:45:40.18{rank} ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn={elements}, NumelOut={elements}, Timeout(ms)=600000) "
        f"ran for 600026 milliseconds before timing out.\n"
        f"[rank{rank}]:[E816 01:45:40.19{rank} ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank {rank}] Exception detected "
        f"by watchdog at work: {number}, last enqueued NCCL work: {enqueued or number}, last completed NCCL work: {number - 1}.\n"
    )


# name: (text, kind, words of what, words of the fix)
CASES = {
    "device memory": (OUT_OF_MEMORY.format(unused="0.30") + FOLLOWS, "device memory", "rank 3", "scalewright plan"),
    "fragmented": (OUT_OF_MEMORY.format(unused="5.20"), "device memory", "rank 3", "expandable_segments"),
    "old form": (
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 31.75 GiB total capacity; 29.60 GiB already "
        "allocated; 11.75 MiB free; 30.10 GiB reserved in total by PyTorch)\n", "device memory", "out of memory", "expandable",
    ),
    "ROCm": ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.00 GiB.\n", "device memory", "memory", "plan"),
    "the kernel": (
        FOLLOWS + "[98765.43] Out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:530000000kB, file-rss:0kB\n",
        "host memory", "host out of memory", "--mem",
    ),
    "a cgroup": ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n", "host memory", "memory", "--mem"),
    "-9 of torchrun": (SUMMARY.format(rank=5, code=-9) + FOLLOWS, "killed", "rank 5 on node7: killed by SIGKILL", "host's memory"),
    "-9 of DeepSpeed": ("[2026-01-02 10:00:00,1] [ERROR] [launch.py:325:sigkill_handler] ['python', 'x.py'] exits with return code = -9\n", "killed", "SIGKILL", "memory"),
    "137 of srun": ("srun: error: node3: task 12: Exited with exit code 137\n", "killed", "rank 12 on node3: killed by SIGKILL", "memory"),
    "abort": (SUMMARY.format(rank=0, code=-6), "killed", "SIGABRT", "watchdog"),
    "time limit": ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T10:00:00 DUE TO TIME LIMIT ***\n" + FOLLOWS, "stopped", "time limit", "--signal"),
    "preempted": ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-02T10:00:00 DUE TO PREEMPTION ***\n", "stopped", "preempted", "resume"),
    "scancel": ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-02T10:00:00 ***\n", "stopped", "cancelled", "sacct"),
    "PBS": ("=>> PBS: job killed: walltime 3612 exceeded limit 3600\n", "stopped", "time limit", "resume"),
    "LSF": ("TERM_RUNLIMIT: job killed after reaching LSF run time limit.\n", "stopped", "time limit", "resume"),
    "node": ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T10:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***\n", "hardware", "node failed", "node out"),
    "Xid 79": (
        FOLLOWS + "[ 123.4] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n",
        "hardware", "Xid 79", "node out",
    ),
    "Xid 31 of a program": (
        "[rank1]: Traceback (most recent call last):\n[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
        "[ 123.4] NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python, Ch 00000008, intr 00000000\n", "raised", "rank 1: RuntimeError: CUDA error", "mend",
    ),
    "first exception": (
        '[rank2]: Traceback (most recent call last):\n[rank2]:   File "loader.py", line 7, in next\n[rank2]: ValueError: a batch is empty\n' + FOLLOWS,
        "raised", "rank 2: ValueError: a batch is empty", "mend",
    ),
    "exit without a word": (SUMMARY.format(rank=1, code=3) + FOLLOWS, "killed", "rank 1 on node7: ended with code 3", "before its end"),
    "different collectives": (
        watchdog(7, 80, "BROADCAST", 5056) + watchdog(1, 80, "ALLREDUCE", 2106881) + watchdog(3, 80, "ALLREDUCE", 2106881),
        "hung", "different collectives: look at rank 7", "control flow",
    ),
    "one is behind": (watchdog(0, 31, "ALLREDUCE") + watchdog(1, 31, "ALLREDUCE") + watchdog(2, 30, "ALLGATHER"), "hung", "look at rank 2", "py-spy"),
    "flight recorder": (
        watchdog(0, 31, "ALLREDUCE") + "[rank0]:[E816 01:45:40.2 x.cpp:1] Dumping flight recorder to file /tmp/nccl_trace_rank_0\n",
        "hung", "collective timed out", "diagnose /tmp/ reads",
    ),
    "who never joined": (
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.\n", "hung", "1 of 4 processes never came", "",
    ),
    "Gloo": ("RuntimeError: [unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete\n", "hung", "timed out", ""),
    "memory, then timeouts": (OUT_OF_MEMORY.format(unused="0.30") + watchdog(0, 31, "ALLREDUCE"), "device memory", "rank 3", "plan"),
    "a hang, then the limit": (
        watchdog(0, 31, "ALLREDUCE") + "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T10:00:00 DUE TO TIME LIMIT ***\n", "hung", "timed out", "",
    ),
    "disk": ("[rank0]: Traceback (most recent call last):\n[rank0]: OSError: [Errno 28] No space left on device\n" + FOLLOWS, "storage", "rank 0: disk full", "free"),
    "mount": ("OSError: [Errno 116] Stale file handle: '/data/x.bin'\n", "storage", "file system", "mount"),
    "loader": ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.\n", "data", "loader", "shm"),
    "followers alone": (FOLLOWS, "killed", "noticed that another one was gone", "first"),
    "finished": ("[after training is done] datetime: 2026-01-02 10:00:00\n", "finished", "finished", ""),
    "finished, with a warning": ("UserWarning: an Error may occur\nTraining completed\n", "finished", "finished", ""),
}  # fmt: skip


def end_of(text: str, folder: Path, **more: int) -> Ending | None:
    path = folder / "job.out"
    path.write_text(text)
    return ending(events([path]), **more)


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named(name: str, tmp_path: Path) -> None:
    text, kind, what, fix = CASES[name]
    end = end_of(text, tmp_path)
    assert end is not None
    assert (end.kind, what in end.what, fix in end.fix) == (kind, True, True), end


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][1] != "finished"])
def test_the_cause_comes_before_what_follows_wherever_that_stands(name: str, tmp_path: Path) -> None:
    text, kind, what, _ = CASES[name]
    end = end_of(FOLLOWS + text + FOLLOWS, tmp_path)
    assert end is not None
    assert (end.kind, what in end.what) == (kind, True), end


def test_a_line_of_memory_is_taken_apart(tmp_path: Path) -> None:
    end = end_of(OUT_OF_MEMORY.format(unused="5.20"), tmp_path)
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
    assert end_of(CASES["first exception"][0], tmp_path, steps=100) is None


@pytest.mark.parametrize(
    "text",
    ["", "step 1 loss 2.0\n", "WARNING: Error bars are off\n", "KeyError handling is on\n", "UserWarning: CUDA is old\n",
     "Killed time by waiting\n", "INFO oom_score_adj is 0\n", "exits with return code = 0\n"],
)  # fmt: skip
def test_other_lines_tell_of_no_end(text: str, tmp_path: Path) -> None:
    end = end_of(text, tmp_path)
    assert end is None or end.kind == "finished"
