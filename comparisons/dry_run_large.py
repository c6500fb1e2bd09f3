"""What a dry run of a large model on 512 ranks takes: seconds, CPU seconds and memory of its one process.

    python comparisons/dry_run_large.py                          all of them, minutes
    python comparisons/dry_run_large.py --cases "1f1b" "hsdp"    some, by name
    python comparisons/dry_run_large.py --quick                  a small model on eight ranks

Each is the command that a user types, `scalewright train run.json --dry-run --json`, in a process of its own
with one thread. Whoever judges should look at CPU seconds: others on the machine disturb them less. Exit
code 1 when one takes more than the 120 CPU seconds or 8 GB that we promise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.facts import ROOT, facts, load_average
from harness.result import Result, facts_text, table

CPU_SECONDS, BYTES = 120, 8e9  # the promise
MODEL, SEQ_LEN, DEVICES, BATCH = "llama-3.1-70b", 8192, 512, 512
CASES: dict[str, dict[str, Any]] = {
    "1f1b": {"tp": 8, "pp": 8, "schedule": "1f1b"},
    "interleaved": {"tp": 8, "pp": 8, "schedule": "interleaved"},
    "zero3": {"tp": 8, "zero_stage": 3},
    "hsdp": {"dp_replicate": 8, "zero_stage": 3},
    "dualpipev": {"tp": 8, "pp": 8, "dp_replicate": 2, "zero_stage": 3, "schedule": "dualpipev"},
}
QUICK: dict[str, Any] = {"tp": 2, "pp": 2, "dp_replicate": 2, "zero_stage": 3, "schedule": "dualpipev"}
TINY: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "context": 64,
}  # fmt: skip

# Runs in between, in a process too small to matter: on Linux a child begins with its parent's highest
# memory, and ours has torch loaded.
METER = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE)
seconds, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
unit = 1 if sys.platform == "darwin" else 1024
found = {"s": seconds, "cpu_s": used.ru_utime + used.ru_stime, "max_rss_bytes": used.ru_maxrss * unit}
print(json.dumps({"code": done.returncode, "found": found, "answer": done.stdout.decode()}))
"""


def main() -> int:
    """Runs the cases one after another, writes the result, and says whether the promise was kept."""
    options = arguments()
    result = Result("dry-run-large", "What a dry run of a large model takes", facts(), options.out)
    result.say(facts_text(result.data["facts"]))
    asked = {"quick": QUICK} if options.quick else {name: CASES[name] for name in options.cases}
    measured: dict[str, Any] = {}
    for name, keys in asked.items():
        measured[name] = measure(run_of(keys, quick=options.quick))
        result.put("cases", measured)
    result.put("load_average_at_the_end", load_average())
    result.say(table(["layout", "kinds of rank", "s", "CPU s", "memory, GB"], list(map(row, measured.values()))))
    kept = all(case["cpu_s"] < CPU_SECONDS and case["max_rss_bytes"] < BYTES for case in measured.values())
    result.put("promise", {"cpu_s": CPU_SECONDS, "max_rss_bytes": BYTES, "kept": kept})
    result.close()
    return int(not kept)


def arguments() -> argparse.Namespace:
    """The command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), help="some, by name")
    parser.add_argument("--quick", action="store_true", help="a small model on eight ranks")
    parser.add_argument("--out", type=Path, default=None, help="folder of the result")
    return parser.parse_args()


def run_of(keys: dict[str, Any], *, quick: bool) -> dict[str, Any]:
    """The run's file: 512 sequences a step, masked between documents, as a user gets it by default."""
    model, seq_len = (TINY, 64) if quick else (MODEL, SEQ_LEN)
    devices, batch = (8, 32) if quick else (DEVICES, BATCH)
    layout = {"devices": devices, "global_batch": batch, "precision": "bf16", **keys}
    return {"model": model, "layout": layout, "data": {"train": "nowhere", "seq_len": seq_len}}


def measure(run: dict[str, Any]) -> dict[str, Any]:
    """Seconds, CPU seconds and highest memory of one dry run, and the layout and ranks that it answered."""
    with tempfile.TemporaryDirectory(prefix="scalewright-dry-run-") as folder:
        file = Path(folder) / "run.json"
        file.write_text(json.dumps(run))
        command = [sys.executable, "-m", "scalewright", "train", str(file), "--dry-run", "--json"]
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, "-c", METER, *command],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    said = json.loads(done.stdout)
    if said["code"] != 0:
        raise SystemExit(f"error: the dry run of {run['layout']} ended with exit code {said['code']}")
    answer = json.loads(said["answer"])
    held = [len(group["ranks"]) for group in answer["groups"]]
    return {**said["found"], "layout": answer["layout"], "world": answer["world"], "ranks_of_a_kind": held}


def row(found: dict[str, Any]) -> list[str]:
    """A line of the table."""
    kinds, memory = len(found["ranks_of_a_kind"]), found["max_rss_bytes"] / 1e9
    return [words(found["layout"]), str(kinds), f"{found['s']:.0f}", f"{found['cpu_s']:.0f}", f"{memory:.2f}"]


def words(layout: dict[str, Any]) -> str:
    """A layout as a reader says it."""
    axes = {name: layout[name] for name in ("tp", "pp", "dp_replicate") if layout[name] > 1}
    per = layout["tp"] * layout["pp"] * layout["dp_replicate"]
    axes["dp_shard"] = layout["devices"] // per
    micros = layout["global_batch"] // (axes["dp_shard"] * layout["dp_replicate"] * layout["micro_batch"])
    said = [f"{name} {size}" for name, size in axes.items()]
    schedule = [f"`{layout['schedule']}`"] if layout["pp"] > 1 else []
    return ", ".join([*said, *schedule, f"ZeRO-{layout['zero_stage']}", f"micro-batches: {micros}"])


if __name__ == "__main__":
    sys.exit(main())
