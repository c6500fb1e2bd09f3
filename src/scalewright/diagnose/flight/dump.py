"""A flight recorder's dump: the last collectives that one rank enqueued, and how far each came.

    nccl_trace_rank_0 ──► Dump(rank 0, groups {3: dp, ranks 0 and 2}, entries [... dp #4 started])

`TORCH_NCCL_DEBUG_INFO_TEMP_FILE` (or `TORCH_FR_DUMP_TEMP_FILE`) and the rank make the name. The buffer is a
ring: ranks may begin at different numbers. NCCL's entries are scheduled, started, completed; Gloo's stay
scheduled and are `retired` when they are done, and its groups are listed without their ranks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.spec.common.pickles import NotPlainData, read_pickle

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
    started: bool
    point_to_point: bool
    created_ns: int
    frame: str

    @property
    def what(self) -> str:
        """`all_reduce [[1024, 64]] Float`."""
        return f"{self.name} {self.shapes} {self.dtypes}".strip()


@dataclass(frozen=True)
class Dump:
    """What one rank recorded. `members`: ranks by group, where the dump lists them; `about`: descriptions."""

    rank: int
    path: Path
    entries: list[Entry]
    members: dict[str, list[int]]
    about: dict[str, str]


def read_dump(path: Path) -> Dump:
    """A dump, pickled or as JSON; raises NotPlainData where it is neither or has no entries."""
    data = _load(path)
    if not isinstance(data, Mapping) or not isinstance(data.get("entries"), list):
        raise NotPlainData("it has no list of entries")
    match = RANK.search(path.name)
    rank = data.get("rank")
    if not isinstance(rank, int):
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
    return Dump(rank, path, entries, _members(data.get("pg_config")), about)


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
    group = item.get("process_group")
    name = str(item.get("profiling_name", ""))
    messages = bool(item.get("is_p2p"))
    number = item.get("p2p_seq_id" if messages else "collective_seq_id", item.get("seq_id"))
    if not isinstance(number, int):
        return None
    created = item.get("time_created_ns")
    return Entry(
        group=str(group[0]) if isinstance(group, (list, tuple)) and group else str(item.get("pg_id", "")),
        number=number,
        name=name.partition(":")[2] or name,
        shapes=str(item.get("input_sizes", "")),
        dtypes=" ".join(map(str, dict.fromkeys(item.get("input_dtypes") or []))),
        done=bool(item.get("retired")) or item.get("state") == "completed",
        started=item.get("state") in ("started", "completed"),
        point_to_point=messages,
        created_ns=created if isinstance(created, int) else 0,
        frame=_frame(item.get("frames")),
    )


def _frame(frames: object) -> str:
    """The innermost frame that is the user's own: `step (train.py:31)`."""
    if not isinstance(frames, (list, tuple)):
        return ""
    for frame in frames:
        if isinstance(frame, Mapping) and not LIBRARY.search(str(frame.get("filename", ""))):
            file = Path(str(frame.get("filename", "?"))).name
            return f"{frame.get('name', '?')} ({file}:{frame.get('line', '?')})"
    return ""


def _members(config: object) -> dict[str, list[int]]:
    """Ranks by group; groups that are listed without ranks are left out."""
    members = {}
    for name, group in config.items() if isinstance(config, Mapping) else ():
        ranks = group.get("ranks") if isinstance(group, Mapping) else None
        numbers = [int(word) for word in re.findall(r"\d+", str(ranks))]
        if numbers and "..." not in str(ranks):
            members[str(name)] = numbers
    return members
