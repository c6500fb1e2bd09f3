"""Why a worker ended, and which one's end is told: a failure explains the broken connections of its peers.

    raise    an error in words of its own, for the user       told before all others
    died     no answer: a signal, an exit code                next
    crash    any other exception, with its traceback          last, and a peer's broken connection last of these

Whether the kernel ended one for lack of memory is known by its counters before and after (Linux): oom_kill of
/proc/vmstat and of the cgroup's memory.events.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

from scalewright.spec.errors import RunError, Stopped

BROKEN = ("onnection closed by peer", "onnection reset by peer", "roken pipe")  # Gloo's words for it
ADVICE = "use fewer processes, layout.micro_batch=1, layout.recompute=full or a shorter data.seq_len"
STOPPED = "; the others were stopped (the last checkpoint is kept)"
Failure = tuple[int, tuple[str, Any]]  # of a rank: raise, died or crash, and what is known of it


class Died(RunError):
    """A worker that left without an answer; `code` as multiprocessing has it, -9 for SIGKILL."""

    def __init__(self, text: str, code: int | None, begun: bool) -> None:
        super().__init__(text)
        self.number = -min(0, code or 0)  # of the signal that killed it, or 0
        self.importing = code == 1 and not begun  # Python's own code where a Ctrl-C ends it in its imports


def _cause_of_death(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"left with exit code {code}"


def blame(failures: list[Failure]) -> Exception:
    """The one error to show: a worker's own failure explains its peers' broken connections."""
    order = {"died": 0, "raise": 1, "crash": 2}
    reported = [f for f in failures if f[1][0] == "raise" and not isinstance(f[1][1], Stopped)]
    first = min(failures, key=lambda f: (order[f[1][0]], follows(f)))
    rank, (kind, detail) = reported[0] if reported else first
    if kind == "raise":
        return detail if isinstance(detail, Exception) else RunError(str(detail))
    if kind == "died":
        cause = f"worker {rank} {_cause_of_death(detail[0])}"
        return Died(f"{cause}{STOPPED}", *detail)
    short, full = detail
    error = RunError(f"worker {rank} failed: {short}")
    error.__notes__ = [full]
    return error


def aborted(failure: Failure) -> bool:
    """Whether a worker was ended by native code, as Gloo does for a message of another size than expected.

    The others then find out whose message differed (`train/hangs`).
    """
    return failure[1][0] == "died" and failure[1][1][0] == -signal.SIGABRT


def follows(failure: Failure) -> bool:
    """Whether a worker failed because another one had left."""
    kind, detail = failure[1]
    return kind == "crash" and any(text in detail[0] for text in BROKEN)


def culprits(failures: list[Failure], world: int) -> tuple[int, ...]:
    """The ranks that died by themselves, or that the others waited for; none where all did, or an exception says why.

    Native code aborts in ranks that miss another one (`aborted`, and NCCL's watchdog): those are no culprits.
    """
    named = {rank for _, (kind, detail) in failures if kind == "raise" for rank in getattr(detail, "ranks", ())}
    died = {rank for rank, (kind, _) in failures if kind == "died"} - {f[0] for f in failures if aborted(f)}
    ranks = named or died
    return tuple(sorted(ranks)) if len(ranks) < world else ()


def likeness(error: Exception, traceback: str = "") -> str:
    """A failure in words that another one of its kind has, too: the exception and where it was raised, the cause of
    a death, or a sentence without its numbers."""
    if places := re.findall(r'File "([^"]+)", line (\d+), in (\S+)', traceback):
        path, line, function = places[-1]
        kind = traceback.strip().splitlines()[-1].partition(":")[0]
        return f"{kind} in {function} ({Path(path).name}:{line})"
    return re.sub(r"\d+(\.\d+)?", "#", str(error).partition(";")[0])[:200]


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
