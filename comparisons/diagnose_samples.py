"""What `diagnose` makes of real traces, beside exact counts and the answers of other tools.

    python comparisons/diagnose_samples.py FOLDER [--nccl-logs FOLDER] [--logs FOLDER]      a minute

FOLDER holds a folder for each set of traces with a reference beside it: `hta_reference.json` (an exact count
in whole nanoseconds, HTA, TraceLens), `fr_trace_reference.json` (who a hang began with),
`memory_viz_reference.json`, `wia_reference.json` (what-ifs of pipelines). These samples are other people's
and aren't part of this repository.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.facts import facts
from harness.memory_samples import snapshots, traced
from harness.result import Result, facts_text, table
from harness.training_logs import training_logs
from harness.what_ifs import what_ifs

from scalewright.diagnose.breakdown import activity, breakdown
from scalewright.diagnose.diagnose import diagnose
from scalewright.diagnose.ranks import read_ranks
from scalewright.diagnose.traces.kineto import read_kineto
from scalewright.spec.errors import UserError

PARTS = {
    "compute": "compute_ns",
    "exposed_communication": "exposed_comm_ns",
    "exposed_copy": "exposed_memcpy_ns(not under compute or comm)",
}
NEAR = 0.01  # points of percent: the reference of one set rounds its nanoseconds


def main() -> None:
    """Compares everything in the folder and writes the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="where the result goes")
    parser.add_argument("--nccl-logs", type=Path, help="a folder of NCCL's logs with truths beside them")
    parser.add_argument("--logs", type=Path, help="a folder of trainers' logs, likewise")
    options = parser.parse_args()
    result = Result("diagnose-samples", "What `diagnose` makes of real traces", facts(), options.out)
    result.say(facts_text(result.data["facts"]))
    rows = [*partitions(options.folder)]
    result.put("partitions", rows)
    worst = max(row["worst_points"] for row in rows)
    result.say(
        f"**{len(rows)} traces against the exact count**: the worst part of any is {worst:.5f} points of "
        f"percent off; {sum(row['equal'] for row in rows)} are equal to the nanosecond. Parts in percent of "
        "the window.",
        table(
            ["trace", "idle", "compute", "exposed comm.", "exposed copies", "worst, points", "CPU s"],
            [
                [row["trace"], *(f"{row[part]:.2f}" for part in ("idle", *PARTS)),
                 f"{row['worst_points']:.5f}", f"{row['cpu_s']:.2f}"]
                for row in rows
            ],
        ),
    )  # fmt: skip
    tensor_parallel(options.folder / "megatron_tp8_a100", result)
    loading(options.folder / "resnet50_dataloader_v100", result)
    hangs(options.folder / "flight_recorder", result)
    snapshots(options.folder / "memory_snapshots", result)
    traced(options.folder, result)
    what_ifs(options.folder / "straggler_bytedance", result)
    edges(options.folder / "edge_cases", result)
    if options.nccl_logs:
        nccl_logs(options.nccl_logs, result)
    if options.logs:
        training_logs(options.logs, result)
    assert worst <= NEAR
    result.close()


def partitions(folder: Path) -> Iterator[dict[str, Any]]:
    """Each trace's parts in percent, and how far they are from the exact count."""
    for path in sorted(folder.glob("*/hta_reference.json")):
        for run, reference in json.loads(path.read_text())["runs"].items():
            exact = reference.get("exact_interval_check_full_trace") or {}
            for rank, counted in exact.items():
                file = path.parent / reference["files"][rank]
                if counted.get("gpu_events"):
                    yield _partition(f"{path.parent.name} {run} {rank}", file, counted)


def _partition(name: str, file: Path, counted: Mapping[str, Any]) -> dict[str, Any]:
    begun = time.process_time()
    what = activity(read_kineto(file))
    assert what is not None
    parts = breakdown(what)
    spent = time.process_time() - begun
    window = counted["window_ns"]
    pairs = {part: (getattr(parts, part), counted["broad_comm_regex"][key]) for part, key in PARTS.items()}
    pairs["idle"] = (parts.idle, counted["idle_ns"])
    return {
        "trace": name,
        **parts.percent(),
        "equal": parts.window == window and all(ours == theirs for ours, theirs in pairs.values()),
        "worst_points": max(abs(100 * ours / parts.window - 100 * theirs / window) for ours, theirs in pairs.values()),
        "cpu_s": spent,
    }


def tensor_parallel(folder: Path, result: Result) -> None:
    """Eight ranks: who is late, and how much of the collectives is transfer."""
    ranks = read_ranks(sorted(folder.glob("rank*.json.gz")))
    transfer = sum(int(group.transfer.sum()) for group in ranks.matched) / 1e6
    late = {str(straggler.rank): straggler.cause for straggler in ranks.stragglers}
    result.put("tensor_parallel", {"transfer_ms": transfer, "late": late})
    named = " and ".join(f"rank {rank} ({cause})" for rank, cause in late.items())
    result.say(
        f"**Tensor parallelism over 8 A100**: {transfer:.1f} ms of transfer in "
        f"{sum(map(len, ranks.matched))} collectives (exact: 50.1 of 84); late are {named} (known: 0 and 6, "
        "their hosts)."
    )


def loading(folder: Path, result: Result) -> None:
    """The same job with and without worker processes."""
    found = {name: diagnose([folder / f"{name}.json.gz"]) for name in ("workers0", "workers4")}
    shares = {name: answer["per_rank"][0]["data_pct_of_steps"] for name, answer in found.items()}
    first = found["workers0"]["verdicts"][0]
    result.put("loading", {"data_pct_of_steps": shares, "first": first})
    gain = first["gain_pct"]
    result.say(
        f"**ResNet-50 without and with 4 workers**: loading holds up {shares['workers0']:.1f}% and "
        f"{shares['workers4']:.1f}% of the steps (tb_plugin: 22.9 and 0.8); first cause: {first['cause']}, "
        f"expected gain {gain['p50']:.1f}% ({gain['p10']:.1f} to {gain['p90']:.1f}); measured between the "
        "two runs: 8.9% of the mean step, 17% of the median one (two of six steps with workers stall)."
    )


def hangs(folder: Path, result: Result) -> None:
    """The rank that each hang began with."""
    rows = []
    for path in sorted(folder.glob("*/*/")):
        truth = json.loads((path.parent / "fr_trace_reference.json").read_text())["ground_truth"]
        root = diagnose([path])["root_ranks"]
        rows.append([f"{path.parent.name}, {path.name}", ", ".join(map(str, root)) or "none", truth])
    result.put("hangs", rows)
    result.say("**Hangs** in flight recorder dumps.", table(["dumps", "root rank", "what was planted"], rows))


def edges(folder: Path, result: Result) -> None:
    """Traces that break other tools: each is read, or refused in a line."""
    rows = []
    for path in sorted(folder.glob("*.json.gz")):
        try:
            answer = diagnose([path])
            rows.append([path.name, answer["bound_by"], "; ".join(answer["warnings"])])
        except UserError as error:
            rows.append([path.name, "refused", str(error.what)])
    result.put("edge_cases", rows)
    result.say("**Traces that break parsers.**", table(["trace", "bound by", "notes"], rows))


# Where a truth has what its sample doesn't: the sample was thinned out after the truth was written.
NCCL_TRUTHS_ERRORS = {
    ("2.27.7-2xa100-pcie-direct", "gdr"): "the sample has no line about GPUDirect",
    ("2.27.7-2xa100-pcie-direct", "intra"): "the sample prints /read behind it, which the other truths keep",
}


def nccl_logs(folder: Path, result: Result) -> None:
    """Every field of the truths that were written by hand beside logs of NCCL."""
    rows = []
    for path in sorted(folder.glob("*.log")):
        truth = json.loads(path.with_name(f"{path.stem}.truth.json").read_text())
        answer = diagnose([path])
        nccl = answer["nccl"]
        ours = {
            "nccl_version": nccl["version"], "net": nccl["transports"]["net"],
            "intra": nccl["transports"]["intra"], "problems": sorted(nccl["problems"]),
            **{key: nccl[key] for key in ("ranks", "nodes", "gdr", "channels")},
        }  # fmt: skip
        theirs = truth | truth["transports"] | {"problems": sorted(truth["problems"])}
        for key, value in ours.items():
            equal = value == theirs[key]
            why = "equal" if equal else NCCL_TRUTHS_ERRORS.get((path.stem, key), "DIFFERENT")
            rows.append([path.stem, key, _cell(value), _cell(theirs[key]), why])
    different = [row for row in rows if row[-1] != "equal"]
    result.put("nccl_logs", rows)
    result.say(
        f"**NCCL's logs**: {len(rows) - len(different)} of {len(rows)} fields as written by hand; others:",
        table(["log", "field", "here", "by hand", "why"], different),
    )
    assert not any(row[-1] == "DIFFERENT" for row in rows)


def _cell(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


if __name__ == "__main__":
    main()
