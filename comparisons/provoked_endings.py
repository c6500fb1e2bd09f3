"""Jobs of two ranks that are really ended in every way, under every launcher, and what `diagnose` says first.

    job.py under torchrun | accelerate | deepspeed | mpirun | scalewright train
       └─ rank 1 raises, is killed, runs out of memory, stops, calls another collective, meets a full disk ...
    all that was printed ──► scalewright diagnose ──► its first cause ──► the one that was provoked?

    python comparisons/provoked_endings.py [--only killed raises] [--launchers torchrun]

Memory ends by a limit of the process's own (RLIMIT_AS), a disk by /dev/full and by a limit of a file's size: nothing of
the machine is filled. A launcher that isn't installed is left out, and the result says so. Exit code 1 where the cause
isn't first.
"""

from __future__ import annotations

import argparse
import base64
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness.cases import case_result, conclude
from harness.facts import ROOT

JOB = '''"""A training loop of two ranks over Gloo, whose rank 1 ends as the last word says."""
import os, resource, signal, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist

HOW = sys.argv[-1]
if "OMPI_COMM_WORLD_RANK" in os.environ:
    os.environ |= {"RANK": os.environ["OMPI_COMM_WORLD_RANK"], "WORLD_SIZE": os.environ["OMPI_COMM_WORLD_SIZE"]}
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=timedelta(seconds=8))
LIMIT = 8 << 30


def end(step):
    if HOW == "raises":
        raise ValueError(f"a batch of step {step} is empty")
    elif HOW == "assertion":
        assert step < 0, "the loss isn't finite"
    elif HOW == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif HOW == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif HOW == "aborts":
        os.abort()
    elif HOW == "exits":
        os._exit(3)
    elif HOW == "tensor memory":
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
        torch.zeros(3 << 30)
    elif HOW == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
        bytearray(20 << 30)
    elif HOW == "stops":
        time.sleep(40)
    elif HOW == "differs":
        dist.all_reduce(torch.zeros(999))
        time.sleep(40)
    elif HOW == "full disk":
        with open("/dev/full", "w") as file:
            file.write("x" * 10)
    elif HOW == "missing file":
        open("/nowhere/tokens.bin")


weights = torch.zeros(4)
for step in range(1, 401):
    if rank == 0 and step % 20 == 0:
        print(f"step: {step:2}  loss: {8 / step + 2:7.4f}  grad_norm: 0.5", flush=True)
    if step == 60 and rank == 1:
        end(step)
    if HOW == "goes on":  # until a signal comes
        time.sleep(0.3)
    dist.all_reduce(weights)
    time.sleep(0.003)
print("Training finished", flush=True)
dist.destroy_process_group()
'''
PARTS = '''"""A loss whose rank 1 ends as ENDS says, at its 40th call."""
import os
import torch.distributed as dist
import torch.nn.functional as F

CALLS = [0]
SOURCE = open("job.py").read()
NAMES = {"HOW": os.environ["ENDS"]}
exec(SOURCE[: SOURCE.index("HOW =")] + SOURCE[SOURCE.index("LIMIT ="): SOURCE.index("weights =")], NAMES)


def loss(logits, targets):
    CALLS[0] += 1
    if CALLS[0] == 40 and dist.get_rank() == 1:
        NAMES["end"](40)
    if NAMES["HOW"] == "goes on":
        NAMES["time"].sleep(0.3)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def documents(split):
    for number in range(1000):
        yield [(number + 3 * place) % 64 for place in range(5 + number % 40)]
'''
RUN = """name: ends
model: {vocab_size: 64, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2}
data: {python: parts:documents, seq_len: 64}
loss: {python: parts:loss, reduction: mean}
layout: {devices: 2, global_batch: 4, micro_batch: 2}
train: {steps: 400, timeouts: {start_s: 60, steady_s: 8}}
"""
# How a job ends -> the first cause, as a regular expression. A rank is asked for wherever some line has it.
ENDS: dict[str, str] = {
    "finishes": r"^$",
    "raises": r"rank 1: .*ValueError: a batch of step \d+ is empty",
    "assertion": r"rank 1: .*AssertionError: the loss isn't finite",
    "killed": r"rank 1\b.*: killed by SIGKILL",
    "segfault": r"rank 1\b.*: ended by SIGSEGV",
    "aborts": r"rank 1\b.*: ended by SIGABRT",
    "exits": r"rank 1\b.*: ended with code 3",
    "tensor memory": r"rank 1: host out of memory",
    "memory": r"rank 1: host out of memory",
    "stops": r"rank 1\b|timed out",  # Gloo's timeout names no other rank
    "differs": r"rank 1 began all_reduce .* where rank 0 began|called different collectives",
    "full disk": r"disk full",
    "missing file": r"rank 1: .*FileNotFoundError: .*/nowhere/tokens.bin",
    "terminated": r"the launcher was sent SIGTERM|stopped when it was asked to",
}
# What a launcher's output doesn't always have: DeepSpeed's names the code of the process whose end it sees first, which
# may be that of the rank that noticed the other's.
NOTICED = "noticed that another one was gone"
SILENT = {("deepspeed", how): f"{ENDS[how]}|{NOTICED}" for how in ("killed", "segfault", "aborts", "exits")}
SILENT["mpirun", "terminated"] = r"^$"  # it prints nothing, and the answer is that no line tells of an end


def main() -> int:
    """Ends every job in every way under every launcher."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(ENDS), choices=list(ENDS))
    parser.add_argument("--launchers", nargs="+", default=list(LAUNCHERS), choices=list(LAUNCHERS))
    parser.add_argument("--out", type=Path, default=None, help="folder of the result")
    parser.add_argument("--keep", type=Path, default=None, help="folder for what the jobs printed")
    options = parser.parse_args()
    result = case_result("provoked-endings", "Jobs that were really ended, diagnosed", options)
    rows, missing = [], []
    with tempfile.TemporaryDirectory(prefix="scalewright-ends-") as name:
        folder = Path(name)
        for text, file in ((JOB, "job.py"), (PARTS, "parts.py"), (RUN, "run.yaml")):
            (folder / file).write_text(text)
        for launcher in options.launchers:
            command = LAUNCHERS[launcher]()
            if not command:
                missing.append(launcher)
                continue
            for how in options.only:
                printed = run(folder, command, how, ours=launcher == "scalewright")
                if options.keep is not None:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    (options.keep / f"{launcher}-{how.replace(' ', '-')}.log").write_text(printed)
                first = without_places(diagnosed(folder, printed), folder)
                right = re.search(SILENT.get((launcher, how), ENDS[how]), first) is not None
                rows.append([launcher, how, first or "no cause", "right" if right else "wrong"])
                kept = [] if right else without_places(printed, folder).splitlines()[-60:]
                result.put(f"{launcher}: {how}", {"first": first, "right": right, "printed": kept})
                print(f"{launcher}: {how}: {'right' if right else 'WRONG'}: {first}", flush=True)
    if missing:
        result.say(f"Not here: {', '.join(missing)}.", "")
    return conclude(result, ["launcher", "end", "first cause", "verdict"], rows)


def without_places(text: str, folder: Path) -> str:
    """A text without the folders of this machine."""
    for path, name in ((str(folder), "JOB"), (sys.prefix, "PYTHON"), (sys.base_prefix, "PYTHON"), (str(ROOT), "HERE")):
        text = text.replace(path, name)
    return text


def run(folder: Path, command: list[str], how: str, ours: bool) -> str:
    """All that a job printed; a job that is to be terminated gets its signal after some seconds."""
    shutil.rmtree(folder / "runs", ignore_errors=True)
    terminated = how == "terminated"
    environ = {
        **os.environ,
        "ENDS": "goes on" if terminated else how,
        "OMP_NUM_THREADS": "1",
        "TORCH_SHOW_CPP_STACKTRACES": "0",
    }
    words = command if ours else [*command, "goes on" if terminated else how]
    words = [word.replace("<port>", str(_port())) for word in words]
    process = subprocess.Popen(
        words, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,
    )  # fmt: skip
    try:
        if terminated:
            try:
                return process.communicate(timeout=20)[0]
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGTERM)
        return process.communicate(timeout=100)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def diagnosed(folder: Path, printed: str) -> str:
    """The first cause that `scalewright diagnose` names in a job's output."""
    (folder / "job.log").write_text(printed)
    done = subprocess.run(
        [sys.executable, "-m", "scalewright", "diagnose", "job.log", "--json"], cwd=folder, capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, timeout=100, check=False,
    )  # fmt: skip
    if not done.stdout.strip():
        return done.stderr.strip()
    answer = json.loads(done.stdout)
    ended = answer.get("ended") or {}
    return "" if ended.get("how") == "finished" else next((v["cause"] for v in answer["verdicts"]), "")


def _port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
    return port


def _torchrun() -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "<port>", "job.py"]


def _accelerate() -> list[str]:
    if importlib.util.find_spec("accelerate") is None:
        return []
    flags = "--num_processes 2 --num_machines 1 --multi_gpu --mixed_precision no --dynamo_backend no"
    return [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        *flags.split(),
        "--main_process_port",
        "<port>",
        "job.py",
    ]


def _deepspeed() -> list[str]:
    if importlib.util.find_spec("deepspeed") is None:
        return []
    world = base64.urlsafe_b64encode(json.dumps({"localhost": [0, 1]}).encode()).decode()
    flags = [f"--world_info={world}", "--master_addr=127.0.0.1", "--master_port=<port>"]
    return [sys.executable, "-m", "deepspeed.launcher.launch", *flags, "job.py"]


def _mpirun() -> list[str]:
    if shutil.which("mpirun") is None:
        return []
    variables = ["-x", "MASTER_ADDR=127.0.0.1", "-x", "MASTER_PORT=<port>"]
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", *variables, sys.executable, "job.py"]


def _ours() -> list[str]:
    return [sys.executable, "-m", "scalewright", "train", "run.yaml"]


LAUNCHERS: dict[str, Callable[[], list[str]]] = {
    "torchrun": _torchrun, "accelerate": _accelerate, "deepspeed": _deepspeed, "mpirun": _mpirun, "scalewright": _ours,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
