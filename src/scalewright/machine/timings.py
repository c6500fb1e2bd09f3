"""Timings of this machine's kernels and messages: probed by as many processes as are to train, and kept.

    cpu_timings(2) ──► in ~/.cache/scalewright? ──► yes: read
                              │ no
                              ▼
        kernels.py, ranks.py: processes that time at once ──► Timings ──► written there

What is kept is for one processor, thread count, torch and version of this probe; what was probed on a busy
machine is believed for minutes only, a quiet one's for a month.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalewright.machine.probe import load_torch
from scalewright.machine.processor import Processor, read_processor
from scalewright.spec.common.files import scratch_folder
from scalewright.spec.common.untrusted import read_json
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.hardware.timings import Timings

VERSION = 4  # of the probe: a change in what it times makes what is remembered worthless
SECONDS = 0.02  # of a kernel at one size
PRECISIONS = ("fp32", "bf16")
QUIET_DAYS, BUSY_MINUTES = 30.0, 10.0
PATIENCE = 120.0  # seconds that a probe may take; it takes a few


def cpu_timings(
    processes: int = 1, folder: Path | None = None, fresh: bool = False, patience: float = PATIENCE
) -> Timings:
    """The seconds of kernels and messages in each of `processes` processes that share this machine's CPU.

    Read where it was probed before, unless `fresh`. `folder`: where that is kept (null: the user's cache).
    `patience`: seconds that a probe may take.
    """
    processor = read_processor()
    threads = _threads(processor, processes)
    place = _file(folder or _cache(), processor, processes, threads)
    if not fresh and (known := _remembered(place, processor)) is not None:
        return known
    timings = probe(processes, threads, patience=patience)
    with suppress(OSError):  # a home that can't be written to: probed again next time
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_suffix(f".{os.getpid()}.part")
        partial.write_text(json.dumps(timings.dump()), encoding="utf-8")
        os.replace(partial, place)
    return timings


def known_timings(processes: int = 1) -> Timings | None:
    """The timings of an earlier probe that are still recent enough, in milliseconds; None without them."""
    processor = read_processor()
    return _remembered(_file(_cache(), processor, processes, _threads(processor, processes)), processor)


def _cache() -> Path:
    try:
        return Path.home() / ".cache" / "scalewright"
    except RuntimeError:  # a container's user without a name and HOME: nothing is remembered
        return Path(os.devnull, "scalewright")


def probe(
    processes: int,
    threads: int,
    seconds: float = SECONDS,
    patience: float = PATIENCE,
    python: Sequence[str] = (sys.executable,),
) -> Timings:
    """Starts the processes by the words of `python`, and waits for their curves; raises RunError when one fails."""
    load = _load()
    with scratch_folder("probe") as folder:
        command = [*python, "-m", "scalewright.machine.ranks"]
        rest = [str(processes), str(threads), str(folder / "store"), str(seconds), *PRECISIONS]
        workers = [
            subprocess.Popen([*command, str(rank), *rest], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank in range(processes)
        ]
        try:
            answers = [worker.communicate(timeout=patience) for worker in workers]
        except subprocess.TimeoutExpired:
            now = _load()
            busy = f" (load {now:.1f} on {read_processor().usable_cores} cores)" if now is not None else ""
            raise RunError(
                f"timing this machine's kernels and messages took more than {patience:.0f} s{busy}: "
                "try again when less other work runs on it"
            ) from None
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
                    worker.wait()
    for rank, (worker, (_, complaint)) in enumerate(zip(workers, answers, strict=True)):
        if worker.returncode:
            last = (complaint.strip().splitlines() or ["no word"])[-1]
            raise RunError(f"the probe of this machine failed in process {rank}: {last}")
    curves = json.loads(answers[0][0].strip().splitlines()[-1])
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    keys = {"processes": processes, "threads": threads, "curves": curves, "how": _how(), "when": when}
    return Timings.parse({**keys, "cores": read_processor().usable_cores, "load": load}, "probe")


def _how() -> str:
    if (torch := load_torch()) is None:
        return f"probe {VERSION}, numpy alone (no torch here): backwards are taken for twice their forwards"
    return f"probe {VERSION}, torch {torch.__version__}"


def _threads(processor: Processor, processes: int) -> int:
    """Threads of each process, as the launcher gives them: a share of the cores, or torch's if fewer."""
    torch = load_torch()
    share = max(1, processor.usable_cores // processes)
    return min(share, torch.get_num_threads()) if torch is not None else share


def _load() -> float | None:
    """Processes that are ready to run now; None where the system doesn't report it."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _file(folder: Path, processor: Processor, processes: int, threads: int) -> Path:
    torch = load_torch()
    key: list[Any] = [VERSION, processor.model, processor.flags, processor.usable_cores, processes, threads]
    key += [str(torch.__version__) if torch is not None else "numpy", sys.version_info[:2]]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]
    return folder / f"timings-{processes}x{threads}-{digest}.json"


def _remembered(place: Path, processor: Processor) -> Timings | None:
    try:
        age = time.time() - place.stat().st_mtime
        timings = Timings.parse(read_json(place), str(place))
    except (OSError, ValueError, UserError):
        return None
    busy = timings.load is not None and timings.load > 0.5 * processor.usable_cores
    return timings if age < (BUSY_MINUTES * 60 if busy else QUIET_DAYS * 86400) else None
