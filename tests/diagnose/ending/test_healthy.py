"""Texts of runs in which nothing went wrong: words of an end in data, arguments, counts, names and conditions."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.diagnose.ending.ending import ending
from scalewright.diagnose.logs.log import read_logs

HEALTHY = (
    "loading /data/room/zoom/bloom-7b1/part-3.bin: matching light samples of the closed set\n",
    "  exit_signal_handler ............................. SIGTERM\n  nccl_timeout ........................... 600\n",
    "torchrun train.py --exit-signal-handler --exit-signal SIGKILL --on-error 'CUDA out of memory'\n",
    "Namespace(retry_on='torch.OutOfMemoryError: CUDA out of memory', nccl_timeout=600)\n",
    "sample 3: \"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\" -> label 1\n",
    "{'text': 'My job says: slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02 DUE TO TIME LIMIT ***'}\n",
    "prompt: 'What does Xid (PCI:0000:3b:00): 79 mean?'\n",
    "nvidia-smi: Volatile ECC errors: 0, uncorrectable ECC errors: 0\n",
    "GPU 3: no uncorrectable ECC error, NVLink errors: 0, nvlink error count: 0\n",
    "dcgm: NVLink error counters are read every 10 s; NVLink 3: ok\n",
    "the script resumes by itself if the job is preempted; Preempted jobs are requeued\n",
    "auto_find_batch_size halves the batch in case of CUDA out of memory. It is off\n",
    "E cuda_driver.cc:266] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected\n",
    "wandb: Network error (ConnectionError), entering retry loop: Connection reset by peer\n",
    "urllib3 WARNING Retrying after connection broken by 'ConnectionResetError(104, 'Connection reset by peer')'\n",
    "tokenizer: message truncated to 2,048 tokens; 3 more messages truncated\n",
    '"State": {"Running": true, "OOMKilled": false, "ExitCode": 0}\n',
    "docker: OOMKilled=false\n",
    "checks: handling of ENOSPC and EDQUOT is on; the aborted counter is 0; Killed time is 3 s\n",
    "[2026-01-02 10:00:00,1] [INFO] [launch.py:351:main] Process 4711 exits successfully.\n",
    "subprocess exits with return code = 0\n",
    "UserWarning: ran out of light; the socket closed flag is not read\n",
    "the watchdog's timeout is 600 s; TORCH_NCCL_ENABLE_MONITORING=1, heartbeat timeout 480 s\n",
    "[rank0]:[W102 ProcessGroupNCCL.cpp:1250] WARNING: process group has NOT been destroyed before we destruct\n",
    "Traceback (most recent call last):\n  File \"wandb.py\", line 3, in send\nTimeoutError: no answer\n"
    "Training completed. Do not forget to share your model on huggingface.co/models =)\n",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\nthe batch is halved\n"
    "{'train_runtime': 100.1, 'train_loss': 2.1}\n",
    "ulimit -n 65536, to avoid: Too many open files\n",
    "Shared memory: /dev/shm has 512G, no spacer is needed\n",
    "model.layers.3.Error_gate.weight: Exception to the rule, NotFound head\n",
    "eval: how does one prevent 'No space left on device'?\n",
    "WARNING: ConnectionError: tried once more, and went on\n",
    "INFO 10 kubelet: 12/12 nodes are available: none is tainted\n",
    "usage: train.py [-h] [--on-error {argument,raise}]\n",
    "Exception hooks are set; Unsupported: none; Invalid: 0 rows; Failed: 0\n",
    "pulled image nvcr.io/nvidia/pytorch:24.07-py3 in 3 s; ImagePullPolicy: IfNotPresent\n",
    "urllib3 WARNING Retrying (total=4): Max retries exceeded is raised after 5\n",
    "the data's key 'x' is not in structured form\n",
    "srun: error codes are in sacct; sbatch: errors are mailed\n",
    "checks: no driver/library version mismatch\n",
    "(WorkerDict pid=42) INFO: the watchdog got stuck in none of 8 ranks\n",
    "tokenizer: 1,024 Exceptions and Errors are words of the vocabulary\n",
    "prompt: 'RuntimeError: CUDA error: device-side assert triggered' -> what is it?\n",
)  # fmt: skip


@pytest.mark.parametrize("text", HEALTHY)
def test_a_healthy_run_has_no_cause(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    path.write_text(text)
    end = ending(read_logs([path]).events)
    assert end is None or end.kind == "finished"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("{'train_runtime': 1.1}\nslurmstepd: *** JOB 7 ON n1 CANCELLED AT 2026 DUE TO TIME LIMIT ***\n", "stopped"),
        ("ERROR when 'x.bin' was saved: OSError: [Errno 28] No space left on device\n", "storage"),
        ("it doesn't fit: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", "device memory"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered\n", "hardware"),
        ("[n1:7] mpirun: MPI_ERR_TRUNCATE: message truncated\n", "raised"),
    ],
)  # fmt: skip
def test_the_same_words_of_an_end_are_one(text: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    path.write_text(text)
    end = ending(read_logs([path]).events)
    assert end is not None
    assert end.kind == kind
