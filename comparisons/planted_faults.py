"""Trains on CPU processes with and without a planted fault, diagnoses the trace, and compares the gain.

    python comparisons/planted_faults.py                 five faults and a clean run, on two ranks; minutes
    python comparisons/planted_faults.py --only slow_rank --ranks 3

    run with the fault ──► traces of 4 steps ──► scalewright diagnose ──► first cause, promised gain
    run without it ──► median step ──────────────────────────────────► measured gain, in percent of the first

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
from pathlib import Path
from typing import Any

from harness.facts import ROOT, facts
from harness.result import Result, facts_text, table

CAUSES = {
    "slow_rank": "straggler", "sleepy_rank": "straggler", "data_stall": "data", "slow_link": "communication",
    "tiny": "host",
}  # fmt: skip
STEPS, FIRST, TRACED = 72, 12, (66, 67, 68, 69)  # steps from FIRST to the traced ones give the median
WAIT_S = 0.3  # of a document, in a data stall
NEAR = 0.25
PARTS = ROOT / "comparisons" / "harness" / "faults"  # a folder alone: workers import from where they start


def main() -> int:
    """Runs the clean one, then each fault."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=CAUSES, default=None, help="one fault")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None, help="folder of the result")
    options = parser.parse_args()
    result = Result("planted-faults", "Faults planted in our own runs", facts(), options.out)
    result.say(facts_text(result.data["facts"]))
    cases: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="scalewright-faults-") as folder:
        cases["clean"] = case("", Path(folder) / "clean", options.ranks)
        for fault in [options.only] if options.only else CAUSES:
            cases[fault] = case(fault, Path(folder) / fault, options.ranks)
            again = case(
                "", Path(folder) / f"clean-{fault}", options.ranks
            )  # beside it: others use this machine
            cases[fault]["clean_step_s"] = again["step_s"]
            judge(fault, cases[fault])
            result.put("cases", cases)
    result.say(text(cases, options.ranks))
    result.close()
    return 0 if all(case.get("right", True) for case in cases.values()) else 1


def case(fault: str, out: Path, ranks: int) -> dict[str, Any]:
    """Trains once; the median step in seconds, and the verdicts of the trace."""
    wait = WAIT_S if fault == "data_stall" else 0.0
    run = {
        "out_dir": str(out),
        "device": "cpu",
        "model": {"python": "planted:Network", "fault": fault},
        "data": {"python": "planted:documents", "wait_s": wait, "seq_len": 32},
        "layout": {"devices": ranks, "zero_stage": 0, "micro_batch": 2, "global_batch": 2 * ranks,
                   "precision": "fp32"},
        "train": {"steps": STEPS},
        "checkpoint": {"at_end": False},
        "profile": {"steps": [*TRACED]},
    }  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    file = out.with_suffix(".yaml")
    file.write_text(json.dumps(run), encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "scalewright"]
    train = [*command, "train", str(file)]
    subprocess.run(train, cwd=PARTS, env=environ, check=True, timeout=300,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    times = [row["step_time_s"] for row in rows if FIRST <= row["step"] < TRACED[0]]
    traces = [*command, "diagnose", str(out / "traces"), "--json"]
    answer = json.loads(subprocess.run(traces, env=environ, check=True, capture_output=True).stdout)
    kept = {key: answer[key] for key in ("verdicts", "window_s", "breakdown_pct")}
    return {"step_s": statistics.median(times), **kept}


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
        f"{ranks} CPU processes over Gloo, {len(TRACED)} traced steps each; measured: the median of "
        f"{TRACED[0] - FIRST} steps that weren't traced, with the fault and in a run without it right after.",
        "", table(heads, rows),
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
