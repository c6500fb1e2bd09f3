"""Traces of our own runs, with and without a planted fault, and what `diagnose` makes of them.

train, eager, three traced steps ──► traces/ ──► scalewright diagnose --json ──► first cause, its gain
a cache in pieces ──► torch's memory snapshot ──► scalewright diagnose --json ──► what it makes of it
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from harness.gpu.budget import Check
from harness.gpu.peaks import command
from harness.gpu.runs import run_of

STEPS, TRACED = 16, (12, 13, 14)
# A fault, and words of the causes that are right for it.
FAULTS = {"clean": (), "host_sync": ("sync", "host"), "tiny": ("short kernels", "launch", "host")}
PIECES = 64  # of 32 MiB, every second of which is given back


def traces(check: Check) -> None:
    """The first causes of each, the median step, and whether the cause is the planted one."""
    for fault, causes in FAULTS.items():
        if not check.want(fault, 8.0):
            continue
        with check.trying(fault), tempfile.TemporaryDirectory() as folder:
            check.note(fault, _diagnosed(check, Path(folder), fault, causes))
    if check.device.type == "cpu":
        check.note("fragmentation", {"skipped": "a CPU has no allocator with a history"})
    elif check.want("fragmentation"):
        with check.trying("fragmentation"), tempfile.TemporaryDirectory() as folder:
            check.note("fragmentation", _in_pieces(check, Path(folder)))


def _in_pieces(check: Check, folder: Path) -> dict[str, Any]:
    """Reserved memory of which half is free, none of it in one piece of the size that comes next."""
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    pieces = [torch.empty(32 << 20, dtype=torch.uint8, device=check.device) for _ in range(PIECES)]
    kept = pieces[::2]
    del pieces
    large = torch.empty(256 << 20, dtype=torch.uint8, device=check.device)
    path = folder / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(path))
    torch.cuda.memory._record_memory_history(enabled=None)
    answer = json.loads(command(check, folder, "diagnose", str(path), "--json"))
    held = {"kept_gib": sum(x.numel() for x in kept) / 2**30, "large_gib": large.numel() / 2**30}
    reserved = torch.cuda.memory_reserved(check.device) / 2**30
    return {**held, "reserved_gib": reserved, "answer": {k: v for k, v in answer.items() if not isinstance(v, list)}}


def _diagnosed(check: Check, folder: Path, fault: str, causes: tuple[str, ...]) -> dict[str, Any]:
    shutil.copyfile(Path(__file__).parents[1] / "faults" / "planted.py", folder / "planted.py")
    sizes = {"width": 32, "blocks": 2} if check.quick else {"width": 1024, "blocks": 8}
    model = {"python": "planted:Network", "fault": "" if fault == "clean" else fault, **sizes}
    run = run_of(
        check, folder, STEPS, model=model, train={"compile": False}, profile={"steps": [*TRACED]},
        layout={"precision": "fp32"},
    )  # fmt: skip
    run["data"]["train"] = [{"path": str(_small_ids(folder)), "eod": 0}]
    file = folder / "run.yaml"
    file.write_text(json.dumps(run), encoding="utf-8")
    command(check, folder, "train", str(file))
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    answer = json.loads(command(check, folder, "diagnose", str(folder / "run/traces"), "--json"))
    verdicts = [
        {"cause": verdict["cause"], "gain_pct": verdict.get("gain_pct")} for verdict in answer.get("verdicts", [])[:3]
    ]
    first = verdicts[0]["cause"] if verdicts else "none"
    return {
        "step_s": statistics.median(row["step_time_s"] for row in rows[4 : TRACED[0] - 1]),
        "verdicts": verdicts,
        "breakdown_pct": answer.get("breakdown_pct"),
        "first_cause": first,
        "right": any(word in first for word in causes) if causes and check.device.type == "cuda" else None,
    }


def _small_ids(folder: Path) -> Path:
    """The tokens, below the planted network's vocabulary."""
    import numpy as np

    path = folder / "small.npy"
    np.save(path, np.load(folder / "tokens.npy") % 64)
    return path
