"""Trains on CPU processes with and without a planted fault, diagnoses the trace, and compares the gain.

    python comparisons/planted_faults.py                 all faults and a clean run, on two ranks; minutes
    python comparisons/planted_faults.py --only slow_rank --ranks 3

    run with the fault ──► traces of 4 steps ──► scalewright diagnose ──► first cause, promised gain
    run without it ──► median step ──────────────────────────────────► measured gain, in percent of the first

Most faults are in the network and the data (harness/faults). `stages` is a pipeline whose first stage has six
layers of eight. `slow_link` is two hosts whose link has a quarter of the rate at which the benchmark measured
it: namespaces, for which root is needed on Linux, and it is left out where they aren't allowed.

A cause is right when it is the planted one; a gain when it is within 25% of the measured one, or the
measured one lies between the promised p10 and p90. Exit code 1 when a cause is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.fabric import everywhere, hosts
from harness.facts import ROOT, facts
from harness.result import Result, facts_text, table

from scalewright.machine.local import find_cluster
from scalewright.spec.base import write_yaml

CAUSES = {
    "slow_rank": "straggler", "sleepy_rank": "straggler", "data_stall": "data", "tiny": "short kernels",
    "stages": "stages", "slow_link": "link",
}  # fmt: skip
STEPS, FIRST, TRACED = 72, 12, (66, 67, 68, 69)  # steps from FIRST to the traced ones give the median
WAIT_S = 0.3  # of a document, in a data stall
NEAR = 0.25
PARTS = ROOT / "comparisons" / "harness" / "faults"  # a folder alone: workers import from where they start
RATE, SLOW, DELAY = 400e6 / 8, 100e6 / 8, 1e-3  # bytes/s of a link, seconds
PATIENCE = 300.0  # seconds of a run
MODEL: dict[str, Any] = {
    "name": "planted", "context": 128, "vocab_size": 64, "hidden_size": 256, "intermediate_size": 688,
    "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 4,
}  # fmt: skip


def main() -> int:
    """Runs the clean one, then each fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CAUSES, default=None, help="one fault")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, default=None, help="folder of the result")
    options = parser.parse_args()
    result = Result("planted-faults", "Faults planted in our own runs", facts(), options.out)
    result.say(facts_text(result.data["facts"]))
    cases: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="scalewright-faults-") as folder:
        cases["clean"] = case("", Path(folder) / "clean", options, planted=False)
        for fault in [options.only] if options.only else CAUSES:
            try:
                cases[fault] = case(fault, Path(folder) / fault, options, planted=True)
            except SystemExit as refused:  # no namespaces here
                print(f"{fault} is left out: {refused}", file=sys.stderr)
                continue
            # right after it: others use this machine
            again = case(fault, Path(folder) / f"clean-{fault}", options, planted=False)
            cases[fault]["clean_step_s"] = again["step_s"]
            judge(fault, cases[fault])
            result.put("cases", cases)
    result.say(text(cases, options.ranks))
    result.close()
    return 0 if all(case.get("right", True) for case in cases.values()) else 1


def case(fault: str, out: Path, options: argparse.Namespace, planted: bool) -> dict[str, Any]:
    """Trains once; the median step in seconds, and the verdicts of the trace."""
    out.parent.mkdir(parents=True, exist_ok=True)
    file = out.with_suffix(".yaml")
    keys = {"out_dir": str(out), "device": options.device, **settings(fault, options.ranks, planted)}
    file.write_text(json.dumps(keys), encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "scalewright"]
    link: list[str] = []
    if fault == "slow_link":
        link = ["--cluster", str(trained_on_hosts(file, options.ranks, SLOW if planted else RATE))]
    else:
        subprocess.run([*command, "train", str(file)], cwd=PARTS, env=environ, check=True,
                       timeout=PATIENCE, stdout=subprocess.DEVNULL)  # fmt: skip
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    times = [row["step_time_s"] for row in rows if FIRST <= row["step"] < TRACED[0]]
    traces = [*command, "diagnose", str(out / "traces"), "--json", *link]
    answer = json.loads(subprocess.run(traces, env=environ, check=True, capture_output=True).stdout)
    kept = {key: answer[key] for key in ("verdicts", "window_s", "breakdown_pct", "recording")}
    return {"step_s": statistics.median(times), **kept}


def settings(fault: str, ranks: int, planted: bool) -> dict[str, Any]:
    """The run's keys, but for its folder and device."""
    layout: dict[str, Any] = {"devices": ranks, "micro_batch": 2, "precision": "fp32"}
    model: dict[str, Any] = {"python": "planted:Network", "fault": fault if planted else ""}
    wait = WAIT_S if planted and fault == "data_stall" else 0.0
    if fault == "stages":
        model, layers = MODEL, MODEL["num_hidden_layers"]
        last = layers // 4 if planted else layers // 2
        layout |= {"pp": 2, "devices": 2, "stage_layers": [layers - last, last], "global_batch": 16}
    else:
        layout |= {"zero_stage": 0, "global_batch": 2 * ranks}
    return {
        "model": model,
        "data": {"python": "planted:documents", "wait_s": wait, "seq_len": 32},
        "layout": layout,
        "train": {"steps": STEPS},
        "checkpoint": {"at_end": False},
        "profile": {"steps": [*TRACED]},
    }


def trained_on_hosts(file: Path, ranks: int, rate: float) -> Path:
    """Trains with a host for each process; a cluster file of the link at its full rate, by the benchmark."""
    profile = file.with_suffix(".cluster.yaml")
    bench = ["-m", "scalewright", "bench", "collectives", "--kinds", "all_reduce", "--json"]
    with hosts(ranks, RATE, DELAY) as names:
        fit = json.loads(everywhere(names, 1, [sys.executable], bench, PATIENCE))["fits"][0]
    device, *_ = (level.dump() for level in find_cluster("local").levels)
    fabric = {"name": "fabric", "kind": "ethernet", "size": None, "bytes_per_s": fit["bytes_per_s"],
              "latency_s": fit["hop_s"], "source": "measured"}  # fmt: skip
    keys = {"devices_per_node": 1, "nodes": ranks, "levels": [device, fabric]}
    write_yaml(profile, find_cluster("local").replace(name="hosts", **keys).dump())
    with hosts(ranks, rate, DELAY) as names, inside(PARTS):
        everywhere(names, 1, [sys.executable], ["-m", "scalewright", "train", str(file)], PATIENCE)
    return profile


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Started processes find their modules there."""
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), before]))
    try:
        yield
    finally:
        os.environ["PYTHONPATH"] = before


def judge(fault: str, case: dict[str, Any]) -> None:
    """Adds the measured gain in percent, whether the first cause is the planted one, and the gain near."""
    case["measured_pct"] = 100 * (1 - case["clean_step_s"] / case["step_s"])
    first = case["verdicts"][0] if case["verdicts"] else None
    case["right"] = first is not None and first["cause"] == CAUSES[fault]
    if first is not None:
        gain, measured = first["gain_pct"], case["measured_pct"]
        near = abs(gain["p50"] - measured) <= NEAR * abs(measured)
        case["near"] = near or gain["p10"] <= measured <= gain["p90"]


def text(cases: dict[str, Any], ranks: int) -> str:
    """The table, and what the clean run was told."""
    rows = []
    for fault, case in cases.items():
        first = case["verdicts"][0] if case["verdicts"] else None
        gain = first["gain_pct"] if first else {}
        rows.append([
            fault,
            first["cause"] if first else "none",
            f"{gain['p50']:.0f} ({gain['p10']:.0f} to {gain['p90']:.0f})" if first else "",
            f"{case['measured_pct']:.0f}" if "measured_pct" in case else "",
            f"{1e3 * case['step_s']:.0f}",
            ("yes" if case["right"] else "no") if "right" in case else "",
            ("yes" if case.get("near") else "no") if "right" in case else "",
        ])  # fmt: skip
    heads = ["planted", "first cause", "promised, %", "measured, %", "step, ms", "cause right", "gain right"]
    return "\n".join([
        f"{ranks} processes, {len(TRACED)} traced steps each; measured: the median of "
        f"{TRACED[0] - FIRST} steps that weren't traced, with the fault and in a run without it right after.",
        "", table(heads, rows),
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
