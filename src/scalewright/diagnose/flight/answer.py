"""The answer of `diagnose` for flight recorder dumps: the root of a hang first, then who waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalewright.diagnose.flight.dump import read_dump
from scalewright.diagnose.flight.hang import GroupFault, find_hang
from scalewright.diagnose.verdict import Verdict
from scalewright.spec.common.pickles import NotPlainData

FIX = {
    "mismatch": "make every rank of the group call the same collective with the same shapes: look for a "
    "branch on the rank, or on data that differs",
    "missing": "look at what this rank did instead: a branch that skips the call, an exception that was "
    "caught, a loader that ended earlier",
    "absent": "look at this rank's log: it died or was killed, or couldn't write its dump",
    "crossed": "call the collectives of both groups in one order on all ranks",
}
KEYS = ("cause", "ranks", "waiting", "group", "number", "evidence", "frames", "fix")  # of a verdict


def flight_answer(files: Sequence[Path]) -> dict[str, Any]:
    """What the dumps of all ranks show; raises NotPlainData where none can be read."""
    dumps, warnings = [], []
    for file in files:
        try:
            dumps.append(read_dump(file))
        except NotPlainData as error:
            warnings.append(f"{file.name}: {error}: left out")
    if not dumps:
        raise NotPlainData(warnings[0])
    hang = find_hang(dumps)
    return {
        "kind": "flight_recorder",
        "ranks": sorted(dump.rank for dump in dumps),
        "entries": sum(len(dump.entries) for dump in dumps),
        "root_ranks": list(hang.root),
        "verdicts": [{key: verdict(finding).dump()[key] for key in KEYS} for finding in hang.findings],
        "warnings": warnings + hang.warnings,
    }


def verdict(finding: GroupFault) -> Verdict:
    """A finding as a cause, with the ranks that it names."""
    ranks = {"ranks": list(finding.culprits), "waiting": list(finding.waiting)}
    place = {"group": finding.about or finding.group, "number": finding.number}
    more = {**ranks, **place, "frames": list(finding.frames)}
    return Verdict(finding.kind, [sentence(finding)], FIX[finding.kind], more=more)


def sentence(finding: GroupFault) -> str:
    """`rank 2 never came to dp #4 (all_reduce [[1024, 64]] Float), in which rank 0 waits`."""
    who, others = _ranks(finding.culprits), _ranks(finding.waiting)
    place = f"{finding.about or 'group ' + finding.group} #{finding.number}"
    if finding.kind == "mismatch":
        return f"{who} called {finding.what}, in {place}"
    left = " and left no dump" if finding.kind == "absent" else ""
    waits = "waits" if len(finding.waiting) == 1 else "wait"
    return f"{who} never came to {place} ({finding.what}), in which {others} {waits}{left}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))
