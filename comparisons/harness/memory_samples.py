"""Memory snapshots beside PyTorch's viewer, their peaks by category, and memory that traces follow."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from harness.result import Result, table
from scalewright.diagnose.diagnose import diagnose
from scalewright.diagnose.memory.snapshot import read_snapshot

GIB = 1 << 30
KEYS = {
    "reserved": "reserved_bytes", "allocated": "allocated_bytes", "inactive": "inactive_block_bytes",
    "peak": "trace_window_peak_bytes_abs(final_allocated-net+peak)",
}  # fmt: skip


def snapshots(folder: Path, result: Result) -> None:
    """Bytes of each snapshot, its peak by category (they add up to it) and what would save most."""
    reference = json.loads((folder / "memory_viz_reference.json").read_text())["files"]
    rows, parts = [], []
    for path in sorted(folder.glob("*.pickle.gz")):
        [snapshot] = read_snapshot(path)
        equal = all(getattr(snapshot, ours) == reference[path.name][theirs] for ours, theirs in KEYS.items())
        owner, size = snapshot.owners[0]
        rows.append([path.name, f"{snapshot.peak:,}", "yes" if equal else "no", f"{owner}: {size / GIB:.2f} GiB"])
        memory = diagnose([path])["memory"]
        assert sum(memory["by_category"].values()) == snapshot.peak
        saving = memory["savings"][0]
        parts.append([path.name, memory["peak_phase"],
                      *(f"{size / GIB:.2f}" for size in memory["by_category"].values()),
                      f"{saving['how']}: {saving['saves_bytes'] / GIB:.2f}"])  # fmt: skip
    result.put("snapshots", rows)
    heads = ["snapshot", "peak, bytes", "all bytes equal", "most of the peak"]
    result.say("**Memory snapshots** beside PyTorch's viewer.", table(heads, rows))
    result.put("snapshot_categories", parts)
    heads = ["snapshot", "peak in", *memory["by_category"], "saves most, GiB"]
    result.say("Their peaks in GiB by what memory was for, a judgement; they add up.", table(heads, parts))


def traced(folder: Path, result: Result) -> None:
    """Peaks of memory in traces beside the largest `Total Allocated` of any of their instants."""
    rows = []
    for path in sorted(folder.glob("*/*.json.gz")):
        events = json.loads(gzip.decompress(path.read_bytes()).decode("utf-8", "replace"), strict=False)
        rows_of_file = events["traceEvents"] if isinstance(events, dict) else events
        instants = [event["args"] for event in rows_of_file
                    if isinstance(event, dict) and event.get("name") == "[memory]"]  # fmt: skip
        most = max((args["Total Allocated"] for args in instants
                    if args.get("Device Type") and "Total Allocated" in args), default=None)  # fmt: skip
        if most is not None:
            memory = diagnose([path])["memory"]
            held = ", ".join(f"{stack['owner']} {stack['bytes'] / GIB:.2f}" for stack in memory["top_stacks"][:3])
            rows.append([f"{path.parent.name}/{path.name}", f"{memory['peak_bytes']:,}", f"{most:,}", held])
            assert memory["peak_bytes"] == most
    result.put("traced_memory", rows)
    heads = ["trace", "peak, bytes", "largest Total Allocated", "held by, GiB"]
    result.say("**Memory in traces** recorded with profile_memory=True.", table(heads, rows))
