"""Whether the kernel ended a process for lack of memory, from its counters before and after (Linux).

/proc/vmstat: oom_kill N        memory.events of this process's cgroup: oom_kill N
"""

from __future__ import annotations

from pathlib import Path

ADVICE = "use fewer processes, layout.micro_batch=1, layout.recompute=full or a shorter data.seq_len"


def oom_kills(root: Path = Path("/")) -> int | None:
    """Processes that the kernel has ended for lack of memory since it started; None without a counter."""
    counts = [_count(root / "proc/vmstat"), *(_count(path) for path in _events(root))]
    readable = [count for count in counts if count is not None]
    return max(readable) if readable else None


def _events(root: Path) -> list[Path]:
    """The event counters of this process's own cgroup (version 2)."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    groups = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    return [root / "sys/fs/cgroup" / group.lstrip("/") / "memory.events" for group in groups]


def _count(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    kills = [line.split()[1] for line in text.splitlines() if line.startswith("oom_kill ")]
    return int(kills[0]) if kills else None
