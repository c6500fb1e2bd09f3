"""Trains on two machines that are two network namespaces of this one, and compares losses with one device.

    python comparisons/two_machines.py             as root, on Linux with `ip`; a minute or two
    python comparisons/two_machines.py --quick     one layout

    namespace a, 10.77.0.1 ── veth ── namespace b, 10.77.0.2
    torchrun --node-rank 0             torchrun --node-rank 1          the lines of docs/launch/torchrun.md

Neither has another interface but its own loopback, so that what ranks exchange crosses the cable between
them; its bytes are in the result. Exit code 1 when a loss differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from harness.facts import ROOT, facts
from harness.result import Result, facts_text, table

NETWORK, PORT = "10.77.0", 29500
TOLERANCE = 1e-5  # fp32 sums in another order, over ten updates (tests/runs.py)
STEPS = 10
CASES: dict[str, dict[str, Any]] = {
    "ZeRO-3 over both": {"devices": 4, "zero_stage": 3},
    "sharded inside, copied across": {"devices": 4, "zero_stage": 3, "dp_replicate": 2},
    "pipeline across, tensor inside": {"devices": 4, "tp": 2, "pp": 2},
}
QUICK = {"ZeRO-3 over both, one rank each": {"devices": 2, "zero_stage": 3}}
MODEL = {
    "vocab_size": 67, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "context": 64,
}  # fmt: skip


def main() -> int:
    """Runs one device, then each layout on both machines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one layout of one rank each")
    parser.add_argument("--out", type=Path, default=None, help="folder of the result")
    options = parser.parse_args()
    result = Result("two-machines", "Two machines beside one device", facts(), options.out)
    result.say(facts_text(result.data["facts"]))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="scalewright-machines-") as place, two_machines() as machines:
        folder = Path(place)
        np.save(folder / "tokens.npy", np.random.default_rng(0).integers(0, 67, 20_000).astype(np.uint16))
        control = losses(alone(folder))
        for name, layout in (QUICK if options.quick else CASES).items():
            before = sent(machines)
            mine = losses(together(folder, layout, machines))
            worst = max(abs(a - b) / abs(b) for a, b in zip(mine, control, strict=True))
            crossed = sent(machines) - before
            found[name] = {"layout": layout, "losses": mine, "worst": worst, "bytes_a_step": crossed / STEPS}
            result.put("cases", found)
    result.put("control", control)
    rows = [
        [name, str(case["layout"]["devices"] // 2), f"{case['worst']:.1e}", f"{case['bytes_a_step'] / 1e3:,.0f}"]
        for name, case in found.items()
    ]
    result.say(
        f"{STEPS} steps, fp32; the largest relative difference of a step's loss from one device, and what "
        "crossed the cable (torchrun's own messages included).",
        "",
        table(["layout", "ranks a machine", "loss differs by", "kB a step"], rows),
    )
    kept = all(case["worst"] < TOLERANCE for case in found.values())
    result.put("tolerance", {"loss": TOLERANCE, "kept": kept})
    result.close()
    return int(not kept)


@contextmanager
def two_machines() -> Iterator[list[str]]:
    """Two namespaces with a cable between them; gone afterwards."""
    names = [f"machine-{side}-{os.getpid()}" for side in "ab"]
    cable = [f"sw{side}{os.getpid() % 10**6}" for side in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        for number, (name, end) in enumerate(zip(names, cable, strict=True)):
            ip("link", "set", end, "netns", name, "name", "cable0")
            ip("-n", name, "addr", "add", f"{NETWORK}.{number + 1}/24", "dev", "cable0")
            ip("-n", name, "link", "set", "cable0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def ip(*words: str) -> None:
    """`ip ...`; ends the script where it may not or can't."""
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit("error: `ip` isn't here (Linux, package iproute2)") from None
    if done.returncode:
        raise SystemExit(f"error: ip {' '.join(words)}: {done.stderr.strip()} (root is needed)")


def sent(machines: list[str]) -> int:
    """Bytes that have come out of the cable on either side."""
    total = 0
    for name in machines:
        lines = subprocess.check_output(["ip", "netns", "exec", name, "cat", "/proc/net/dev"], text=True)
        (line,) = (line for line in lines.splitlines() if "cable0:" in line)
        total += int(line.split(":")[1].split()[0])
    return total


def run_file(folder: Path, name: str, layout: dict[str, Any]) -> Path:
    """A run of a few steps under SGD."""
    run = {
        "name": name,
        "out_dir": str(folder / name),
        "device": "cpu",
        "model": MODEL,
        "layout": {"global_batch": 8, "precision": "fp32", **layout},
        "data": {"train": [{"path": str(folder / "tokens.npy"), "eod": 0}], "seq_len": 32},
        "optimizer": {"name": "sgd", "lr": 0.5, "weight_decay": 0.0},
        "lr_schedule": {"kind": "constant"},
        "train": {"steps": STEPS},
        "checkpoint": {"at_end": False},
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(run))
    return file


def alone(folder: Path) -> Path:
    """One device, in this machine's own network."""
    file = run_file(folder, "alone", {"micro_batch": 4})
    subprocess.run(
        [sys.executable, "-m", "scalewright", "train", str(file), "--json"],
        env=environment(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return folder / "alone"


def together(folder: Path, layout: dict[str, Any], machines: list[str]) -> Path:
    """torchrun in both namespaces; the answer is in the folder that they share."""
    name = "-".join(f"{key}{value}" for key, value in layout.items())
    file = run_file(folder, name, layout)
    each = layout["devices"] // len(machines)
    started = [
        subprocess.Popen(
            ["ip", "netns", "exec", machine, sys.executable, "-m", "torch.distributed.run",
             "--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", str(each),
             "--master-addr", f"{NETWORK}.1", "--master-port", str(PORT),
             "-m", "scalewright", "train", str(file)],
            env={**environment(), "GLOO_SOCKET_IFNAME": "cable0"},
            stdout=subprocess.DEVNULL,
        )
        for rank, machine in enumerate(machines)
    ]  # fmt: skip
    try:
        codes = [process.wait(timeout=600) for process in started]
    finally:
        for process in started:
            process.kill()
    if any(codes):
        raise SystemExit(f"error: {name} ended with exit codes {codes}")
    return folder / name


def environment() -> dict[str, str]:
    """One thread a rank, and the package of this checkout."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def losses(folder: Path) -> list[float]:
    """A run's losses, step by step."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if row["kind"] == "train"]


if __name__ == "__main__":
    sys.exit(main())
