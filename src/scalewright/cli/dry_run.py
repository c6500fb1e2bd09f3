"""A dry run for people: one line a group of like ranks, its memory by kind, and what it sends."""

from __future__ import annotations

from typing import Any

from scalewright.cli.output import print_table, short

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "other", "peak")


def show_dry_run(document: dict[str, Any]) -> None:
    """Prints what `DryRun.dump()` gives as tables."""
    layout = document["layout"]
    axes = [f"{key} {layout[key]}" for key in ("pp", "dp_replicate", "tp", "cp", "ep") if layout[key] > 1]
    split = ", ".join([f"{document['world']} ranks", *axes, f"zero_stage {layout['zero_stage']}"])
    print(f"{split}; one rank's step:\n")
    size, unit = _unit(max(group["memory_bytes"]["peak"] for group in document["groups"]))
    columns = ("ranks", "first is", "parameters held", "FLOPs", *(f"{kind} {unit}" for kind in KINDS))
    rows = [
        (
            _ranks(group["ranks"]),
            _coords(group["coords"]),
            short(group["params_local"]),
            f"{group['flops']:.4g}",
            *(f"{group['memory_bytes'][kind] / size:.3f}" for kind in KINDS),
        )
        for group in document["groups"]
    ]
    print_table(columns, rows, "memory: each kind at its highest, and the highest sum")
    sent = [
        (_ranks(group["ranks"]), c["axis"], c["kind"], c["group_size"], c["count"], _bytes(c["bytes"]))
        for group in document["groups"]
        for c in group["collectives"]
    ]
    print()
    print_table(("ranks", "axis", "collective", "of ranks", "count", "bytes"), sent)
    for note in document["notes"]:
        print(f"note: {note}")


def _ranks(ranks: list[int]) -> str:
    """How many ranks, and which: `64: 0-63`, `4: 3 7 11 15`, `64: 7 15 23 ...`."""
    if len(ranks) == 1:
        return str(ranks[0])
    if ranks[-1] - ranks[0] + 1 == len(ranks):
        return f"{len(ranks)}: {ranks[0]}-{ranks[-1]}"
    shown = " ".join(str(rank) for rank in ranks[:4])
    return f"{len(ranks)}: {shown}{' ...' if len(ranks) > 4 else ''}"


def _coords(coords: dict[str, int]) -> str:
    return " ".join(f"{axis} {index}" for axis, index in coords.items() if index) or "the first"


def _bytes(count: int) -> str:
    size, unit = _unit(count)
    return f"{count / size:.4g} {unit}"


def _unit(count: int) -> tuple[int, str]:
    """The largest unit of which this is at least one."""
    for size, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= size:
            return size, unit
    return 1, "B"
