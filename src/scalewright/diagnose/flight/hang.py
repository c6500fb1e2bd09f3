"""Which rank a hang began with: who waits in which collective, for whom, and who waits for nobody.

    rank 0  ... dp #3 ✓   dp #4 waits ───► for rank 2, whose last of dp is #3
    rank 2  ... dp #3 ✓   tp #7 ✓           waits for nobody: the root, it left dp #4 out

    mismatch     ranks called different things at one number of a group: the minority is the root
    absent       a rank left no dump: it died, or wrote none
    missing      a rank never came to a collective that the others wait in, and waits in none itself
    crossed      ranks wait for each other in a circle: they call two groups' collectives in different orders

A dump has the last collectives that one rank enqueued, and how far each came:

    nccl_trace_rank_0 ──► Dump(rank 0, groups {3: dp, ranks 0 and 2}, entries [... dp #4 started])

`TORCH_NCCL_DEBUG_INFO_TEMP_FILE` (or `TORCH_FR_DUMP_TEMP_FILE`) and the rank make the name. The buffer is a ring, so
that ranks may begin at different numbers, which count from each group's start. NCCL's entries are scheduled, started,
completed; Gloo's stay scheduled and are `retired` when they are done, and its groups are listed without their ranks.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalewright.diagnose.traces.unpack import read_each
from scalewright.diagnose.verdict import Verdict, named_ranks
from scalewright.spec.common.pickles import NotPlainData, read_pickle

DEFAULT_GROUP = "default_pg"
EXCHANGES = ("all_to_all", "alltoall")  # each rank sends to each other one
UNEVEN = (*EXCHANGES, "scatter", "gather", "broadcast", "send", "recv")  # sizes differ by rank
FIX = {
    "mismatch": "make every rank of the group call the same collective with the same shapes: look for a "
    "branch on the rank, or on data that differs",
    "missing": "look at what this rank did instead: a branch that skips the call, an exception that was "
    "caught, a loader that ended earlier",
    "absent": "look at this rank's log: it died or was killed, or couldn't write its dump",
    "crossed": "call the collectives of both groups in one order on all ranks",
}
KEYS = ("cause", "ranks", "waiting", "group", "number", "evidence", "frames", "fix")  # of a verdict


@dataclass(frozen=True)
class GroupFault:
    """One thing that is wrong in one group: `kind`, the ranks that did it, and those that wait for them."""

    kind: str
    group: str
    about: str
    number: int
    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    what: str
    frames: tuple[str, ...]


@dataclass(frozen=True)
class Hang:
    """The findings, the root's first, the ranks they name, and lines about what the dumps don't tell."""

    findings: list[GroupFault]
    root: tuple[int, ...]
    warnings: list[str]


def find_hang(dumps: Sequence[Dump]) -> Hang:
    """What the ranks' dumps show; no findings where every collective is done or on its way everywhere."""
    by_rank = {dump.rank: dump for dump in dumps}
    members = _members(dumps)
    faults = (_group(group, ranks, by_rank) for group, ranks in sorted(members.items()))
    findings = [fault for fault in faults if fault is not None]
    waits = {rank for finding in findings for rank in finding.waiting}
    mismatched = [finding for finding in findings if finding.kind == "mismatch"]
    named = mismatched or findings
    free = [finding for finding in named if waits.isdisjoint(finding.culprits)]
    root = tuple(sorted({rank for finding in free or named for rank in finding.culprits}))
    if not free and not mismatched:
        findings = [replace(finding, kind="crossed") for finding in findings]
    findings.sort(key=lambda finding: (not set(finding.culprits) & set(root), finding.group, finding.number))
    gone = sorted({rank for ranks in members.values() for rank in ranks} - set(by_rank))
    warnings = [f"no dump of rank {', '.join(map(str, gone))}"] if gone else []
    if not findings and (stuck := _all_in(members, by_rank)):
        warnings.append(f"every rank with a dump is in {stuck}: it was under way, or a rank without a dump never came")
    return Hang(findings, root, warnings)


def _members(dumps: Sequence[Dump]) -> dict[str, list[int]]:
    """Ranks of every group: as a dump lists them; else those that used it, and of the default group all."""
    members: dict[str, set[int]] = defaultdict(set)
    ranks = {dump.rank for dump in dumps}
    listed = {name for dump in dumps for name in dump.members}
    for dump in dumps:
        for name, its_ranks in dump.members.items():
            members[name].update(its_ranks)
        for entry in dump.entries:
            if entry.group not in listed:
                everyone = dump.about.get(entry.group) == DEFAULT_GROUP
                members[entry.group] |= ranks if everyone else {dump.rank}
    return {name: sorted(its_ranks) for name, its_ranks in members.items()}


def _group(group: str, ranks: list[int], by_rank: dict[int, Dump]) -> GroupFault | None:
    """A mismatch or missing ranks of one group, at the first number where something is wrong."""
    entries: dict[int, dict[int, Entry]] = defaultdict(dict)
    last: Counter[int] = Counter()
    dumps = [by_rank[rank] for rank in ranks if rank in by_rank]
    for dump in dumps:
        for entry in dump.entries:
            if entry.group == group and not entry.point_to_point:
                entries[entry.number][dump.rank] = entry
                last[dump.rank] = max(last[dump.rank], entry.number)
    about = next((dump.about[group] for dump in dumps if group in dump.about), "")
    for number, here in sorted(entries.items()):
        exchanges = (entry for entry in here.values() if entry.name.strip("_").startswith(EXCHANGES) and not entry.done)
        exchanged = [entry.surplus for entry in exchanges if entry.surplus is not None]
        # Equal parts, or more elements sent than are received: in both the sizes of all ranks must agree.
        strict = len(exchanged) == len(ranks) and (not any(exchanged) or sum(exchanged) != 0)
        signatures = {rank: _signature(entry, strict) for rank, entry in here.items()}
        kinds = Counter(signatures.values())
        if len(kinds) > 1:
            usual = kinds.most_common(1)[0][0]
            odd = tuple(rank for rank in here if signatures[rank] != usual)
            others = tuple(rank for rank in here if rank not in odd)
            what = f"{here[odd[0]].what} where the others call {here[others[0]].what}"
            return GroupFault("mismatch", group, about, number, odd, others, what, _frames(by_rank, odd))
        waiting = tuple(rank for rank, entry in here.items() if not entry.done)
        missing = tuple(rank for rank in ranks if last[rank] < number)
        if waiting and missing:
            absent = tuple(rank for rank in missing if rank not in by_rank)
            kind, culprits = ("absent", absent) if absent else ("missing", missing)
            what = here[waiting[0]].what
            return GroupFault(kind, group, about, number, culprits, waiting, what, _frames(by_rank, culprits))
    return None


def _all_in(members: dict[str, list[int]], by_rank: dict[int, Dump]) -> str:
    """The collective that every rank of a group is in, with no rank missing; empty where there is none."""
    for group, ranks in members.items():
        pending = [
            [e for e in by_rank[rank].entries if e.group == group and not e.done] for rank in ranks if rank in by_rank
        ]
        if len(pending) > 1 and all(pending):
            return f"{pending[0][0].name} #{pending[0][0].number} of group {group}"
    return ""


def _signature(entry: Entry, strict: bool) -> tuple[object, ...]:
    """What ranks must agree on: the operation and its type, and sizes where they are the same on all, or `strict`."""
    name = entry.name.strip("_").removesuffix("_base")
    sizes = (entry.shapes, entry.surplus) if strict or not name.startswith(UNEVEN) else ()
    return (name, entry.dtypes, *(sizes if strict else sizes[:1]))


def _frames(by_rank: dict[int, Dump], ranks: tuple[int, ...]) -> tuple[str, ...]:
    """Where each rank's last entry was called from."""
    entries = [by_rank[rank].entries for rank in ranks if rank in by_rank and by_rank[rank].entries]
    return tuple(max(of_rank, key=lambda entry: entry.created_ns).frame for of_rank in entries)


def flight_answer(files: Sequence[Path]) -> dict[str, object]:
    """What the dumps of all ranks show; raises NotPlainData where none can be read."""
    dumps, warnings = read_each(files, read_dump, NotPlainData)
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
    more = {
        "ranks": list(finding.culprits), "waiting": list(finding.waiting), "group": finding.about or finding.group,
        "number": finding.number, "frames": list(finding.frames),
    }  # fmt: skip
    return Verdict(finding.kind, [sentence(finding)], FIX[finding.kind], more=more)


def sentence(finding: GroupFault) -> str:
    """`rank 2 never came to dp #4 (all_reduce [[1024, 64]] Float), in which rank 0 waits`."""
    who, others = named_ranks(finding.culprits), named_ranks(finding.waiting)
    place = f"{finding.about or 'group ' + finding.group} #{finding.number}"
    if finding.kind == "mismatch":
        return f"{who} called {finding.what}, in {place}"
    left = "left no dump and " if finding.kind == "absent" else ""
    waits = "waits" if len(finding.waiting) == 1 else "wait"
    return f"{who} {left}never came to {place} ({finding.what}), in which {others} {waits}"


LIBRARY = re.compile(r"(?:^|/)(?:torch|typing_extensions|contextlib|functools|threading)(?:/|\.py$)")
RANK = re.compile(r"(\d+)(?:\.(?:json|pickle|pkl|gz))*$")


@dataclass(frozen=True)
class Entry:
    """One collective or message of a rank. `number`: its place in the group's order."""

    group: str
    number: int
    name: str
    shapes: str
    dtypes: str
    done: bool
    point_to_point: bool
    created_ns: int
    frame: str
    surplus: int | None  # elements that it sends more than it receives; None where that isn't recorded

    @property
    def what(self) -> str:
        """`all_reduce [[1024, 64]] Float`."""
        return f"{self.name} {self.shapes} {self.dtypes}".strip()


@dataclass(frozen=True)
class Dump:
    """What one rank recorded. `members`: ranks by group, where the dump lists them; `about`: descriptions."""

    rank: int
    entries: list[Entry]
    members: dict[str, list[int]]
    about: dict[str, str]


def read_dump(path: Path) -> Dump:
    """A dump, pickled or as JSON; raises NotPlainData where it is neither or has no entries."""
    data = _load(path)
    data = {"entries": data} if isinstance(data, list) else data  # as a run of ours writes it into hangs/
    if not isinstance(data, Mapping) or not isinstance(data.get("entries"), list):
        raise NotPlainData("it has no list of entries")
    rank = data.get("rank")
    if not isinstance(rank, int):
        match = RANK.search(path.name)
        if match is None:
            raise NotPlainData("its name ends without a rank")
        rank = int(match[1])
    entries, about = [], {}
    for item in data["entries"]:
        if isinstance(item, Mapping) and (entry := _entry(item)) is not None:
            entries.append(entry)
            group = item.get("process_group")
            if isinstance(group, (list, tuple)) and len(group) > 1:
                about[str(group[0])] = str(group[1])
    return Dump(rank, entries, _members_dump(data.get("pg_config")), about)


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        first = file.read(1)
    if first in (b"{", b"["):
        try:
            return json.loads(path.read_text(encoding="utf-8", errors="replace"))
        except (ValueError, RecursionError):
            raise NotPlainData("it is damaged JSON") from None
    return read_pickle(path)


def _entry(item: Mapping[Any, Any]) -> Entry | None:
    group, created = item.get("process_group"), item.get("time_created_ns")
    name, messages = str(item.get("profiling_name", "")), bool(item.get("is_p2p"))
    number = item.get("p2p_seq_id" if messages else "collective_seq_id", item.get("seq_id"))
    outputs = item.get("output_sizes")
    if not isinstance(number, int):
        return None
    return Entry(
        group=str(group[0]) if isinstance(group, (list, tuple)) and group else str(item.get("pg_id", "")),
        number=number,
        name=name.partition(":")[2] or name,
        shapes=str(item.get("input_sizes", "")),
        dtypes=" ".join(map(str, dict.fromkeys(item.get("input_dtypes") or []))),
        done=bool(item.get("retired")) or item.get("state") == "completed",
        point_to_point=messages,
        created_ns=created if isinstance(created, int) else 0,
        frame=_frame(item.get("frames")),
        surplus=_elements(item.get("input_sizes")) - _elements(outputs) if outputs else None,
    )


def _elements(sizes: object) -> int:
    """Of all tensors of a list of shapes; 0 for what is none."""
    shapes = [shape for shape in sizes if isinstance(shape, (list, tuple))] if isinstance(sizes, (list, tuple)) else []
    return sum(math.prod(size for size in shape if isinstance(size, int)) for shape in shapes)


def _frame(frames: object) -> str:
    """The innermost frame that is the user's own: `step (train.py:31)`."""
    for frame in frames if isinstance(frames, (list, tuple)) else ():
        if isinstance(frame, Mapping) and not LIBRARY.search(str(frame.get("filename", ""))):
            file = Path(str(frame.get("filename", "?"))).name
            return f"{frame.get('name', '?')} ({file}:{frame.get('line', '?')})"
    return ""


def _members_dump(config: object) -> dict[str, list[int]]:
    """Ranks by group; groups that are listed without ranks are left out."""
    members = {}
    for name, group in config.items() if isinstance(config, Mapping) else ():
        ranks = group.get("ranks") if isinstance(group, Mapping) else None
        numbers = [int(word) for word in re.findall(r"\d+", str(ranks))]
        if numbers and "..." not in str(ranks):
            members[str(name)] = numbers
    return members
