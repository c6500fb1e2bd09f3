"""Tiny runs and their data: what the tests of training, checkpoints and launching are made of.

The sizes are odd on purpose: 67 words, hidden 24, 3 layers and documents of 3 to 40 tokens are cut unevenly
over 2 and 4 ranks, and rows of several documents give every rank another number of counted tokens.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.api import train
from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.train.run import PRELOAD, Result

TESTS = Path(__file__).resolve().parent
TIMING = ("step_time_s", "tokens_per_s", "mfu", "memory_gib", "breakdown_s")  # what two equal runs may differ in
EOD = 0
MICRO_BATCH = 4

MODEL: dict[str, Any] = {
    "vocab_size": 67,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "context": 64,
}
STEPS = 10
# Differences of fp32 sums in another order are about 1e-7 a step; the updates carry them on, and 1e-5 leaves
# a factor of ten after 20 of them (measured worst: below 1e-6).
TOLERANCE = 1e-5


def make_data(folder: Path, documents: int = 400, seed: int = 0) -> Path:
    """A token stream of many short documents; a word depends on the one before it, so there is something
    to learn. Returns the file."""
    random = np.random.default_rng(seed)
    stream: list[int] = []
    for _ in range(documents):
        word = int(random.integers(1, 67))
        for _ in range(int(random.integers(2, 40))):
            stream.append(word)
            word = (word * 5 + int(random.integers(0, 3))) % 66 + 1
        stream.append(EOD)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"tokens-{seed}.npy"
    np.save(path, np.array(stream, dtype=np.uint16))
    return path


def run_data(folder: Path, **changes: Any) -> dict[str, Any]:
    """A run as plain data, out_dir below `folder`; `changes` are merged into it, dictionaries key by key.

    SGD keeps weights comparable between layouts: AdamW magnifies the sign of near-zero gradients. One device takes
    two micro-batches a step, if nothing else is asked for: eight would cost three times as much.
    """
    data = folder / "data" / "tokens-0.npy"
    if folder != Path() and not data.exists():
        make_data(data.parent)
    source = {"path": str(data), "eod": EOD}
    run: dict[str, Any] = {
        "name": "tiny",
        "out_dir": str(folder / "out"),
        "seed": 3,
        "device": "cpu",
        "model": MODEL,
        "layout": {"devices": 1, "global_batch": 8, "precision": "fp32"},
        "data": {"train": [source], "valid": [source], "seq_len": 16},
        "optimizer": {"name": "sgd", "lr": 0.5, "clip_norm": 1.0, "weight_decay": 0.0},
        "lr_schedule": {"kind": "constant"},
        "train": {"steps": STEPS},
        "checkpoint": {"every": 0, "at_end": False},
    }
    merged = merge(run, changes)
    layout = merged["layout"]
    if folder != Path() and layout.get("devices", 1) == 1 and layout["global_batch"] % MICRO_BATCH == 0:
        layout.setdefault("micro_batch", MICRO_BATCH)
    return merged


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it; nested dictionaries are merged, all else is replaced."""
    out = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, dict) and isinstance(out.get(key), dict) and "python" not in value
        out[key] = merge(out[key], value) if nested else value
    return out


def run(data: dict[str, Any], overrides: Sequence[str] = (), **keywords: Any) -> Result:
    """Trains in this process, or in local workers that it starts."""
    return train(data, overrides, quiet=True, **keywords)


def run_apart(data: dict[str, Any]) -> None:
    """Trains in processes that may be killed, also on one device."""
    if data["layout"]["devices"] > 1:
        run(data)
    else:
        run_local(_train_alone, (data,), 1, preload=PRELOAD, threads=1)


def _train_alone(context: RankContext, data: dict[str, Any]) -> None:
    run(data)


def rows(out: str | Path, kind: str = "train") -> list[dict[str, Any]]:
    """The lines of one kind in a run's metrics.jsonl."""
    lines = (Path(out) / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def events(out: str | Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of events.jsonl, or those of one kind."""
    lines = map(json.loads, (Path(out) / "events.jsonl").read_text().splitlines())
    return [row for row in lines if kind is None or row["kind"] == kind]


def bits(out: str | Path) -> list[str]:
    """metrics.jsonl without the timing fields, line by line: equal text means equal bits."""
    lines = (Path(out) / "metrics.jsonl").read_text().splitlines()
    found = (json.loads(line) for line in lines)
    return [json.dumps({k: v for k, v in row.items() if k not in TIMING}) for row in found]


def worst(mine: Iterable[dict[str, Any]], control: Iterable[dict[str, Any]], key: str) -> float:
    """The largest relative difference of a number between two runs, step by step."""
    pairs = list(zip(mine, control, strict=True))
    assert pairs, "nothing to compare"
    return max(abs(a[key] - b[key]) / abs(b[key]) for a, b in pairs)


def assert_same_run(mine: str | Path, control: str | Path, tolerance: float = TOLERANCE) -> None:
    """Same samples, counted tokens, losses and gradient norms, step by step."""
    a, b = rows(mine), rows(control)
    assert [r["step"] for r in a] == [r["step"] for r in b]
    for key in ("sample_ids_hash", "loss_tokens", "samples", "tokens", "lr"):
        assert [r[key] for r in a] == [r[key] for r in b], key
    assert worst(a, b, "loss") < tolerance
    assert worst(a, b, "grad_norm") < tolerance
    if any(r["aux_loss"] for r in b):
        assert worst(a, b, "aux_loss") < tolerance


def weights(out: str | Path, optimizer: bool = False) -> dict[str, Any]:
    """Every tensor of the newest checkpoint, whole, by name."""
    from scalewright.checkpoint.read import CheckpointReader, find_checkpoint

    reader = CheckpointReader(find_checkpoint(out))
    names = [n for n in reader.manifest.tensors if optimizer or not n.startswith("optimizer/")]
    return {name: reader.read(name) for name in names}


def assert_same_bits(mine: dict[str, Any], other: dict[str, Any]) -> None:
    """Two sets of tensors, bit for bit."""
    import torch

    assert mine.keys() == other.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, other[name]), name


def start_cli(folder: Path, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    """`scalewright ...` in a process of its own (and a session of its own), not waited for."""
    return subprocess.Popen(
        [sys.executable, "-m", "scalewright", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent / 'src'}",
            "OMP_NUM_THREADS": "1",
            **environ,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def small_disk(folder: Path) -> bool:
    """A file system of 1 MiB at `folder`; False where that isn't allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    except OSError:
        return False


def write_run(folder: Path, data: dict[str, Any]) -> Path:
    """A run file (JSON is YAML)."""
    path = folder / "run.yaml"
    path.write_text(json.dumps(data))
    return path


def wait_for(condition: Any, seconds: float = 60.0, what: str = "") -> None:
    """Polls until `condition()` is true; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what or condition}"
        time.sleep(0.02)


def steps_done(out: Path) -> int:
    """The last whole training line of a run that may be running."""
    try:
        lines = (out / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return 0
    found = 0
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found = max(found, row["step"] if row["kind"] == "train" else 0)
    return found


def descendants(pid: int) -> list[int]:
    """Every process below this one."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def alive(pids: Iterable[int]) -> list[int]:
    """Those that still run (a zombie doesn't)."""
    import psutil

    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def end(process: Any) -> None:
    """Ends a process that a test started, and its children."""
    for pid in [*descendants(process.pid), process.pid]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.communicate()
