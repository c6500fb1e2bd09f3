"""What experiments measure with: processes that meet, runs of the trainer, clocks; and whether the machine was quiet.

bench.part("ring, 1 MB", lambda: ...)     measured once; after Ctrl-C the lab goes on behind it
bench.ranks(target, 4, job)               target(context, job) in four processes: the first one's answer
bench.run("tp", {"layout": {"tp": 2}})    a training run: its rows and what it held and sent

others' work is looked at while nothing of the lab runs: before and after each part that is timed
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from scalewright import __version__
from scalewright.spec.common.files import write_whole
from scalewright.spec.common.jsonl import read_jsonl

PRELOAD = ("torch", "torch.distributed", "scalewright.parallel.mesh")
K = TypeVar("K")
LOOK_S = 0.4  # that others' work is watched for
VOCABULARY = 512
TRAINER: dict[str, Any] = {
    "model": {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4,
              "num_attention_heads": 4, "num_key_value_heads": 4},
    "device": "cpu", "checkpoint": {"at_end": False}, "train": {"steps": 6},
}  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """What a run left: its steps' rows, and the bytes that its largest rank held and sent in a step."""

    rows: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]
    folder: Path

    def seconds(self, skip: int = 2) -> float:
        """The median of the steps, without the first ones."""
        return float(statistics.median(row["step_time_s"] for row in self.rows[skip:]))

    @property
    def held(self) -> Mapping[str, float]:
        """Bytes of each kind: parameters, gradients, optimizer."""
        return {kind: gib * 2**30 for kind, gib in self._measured["memory_gib"].items()}

    @property
    def sent(self) -> Mapping[str, float]:
        """Bytes of the collectives of a step, by axis."""
        return self._measured["comm_bytes"] or {}

    @cached_property
    def _measured(self) -> Mapping[str, Any]:
        return next(event for event in self.events if event["kind"] == "measured")


class Bench:
    """Of one lab. `train`: the API's; `short`: the form of tests, with less of everything; `seed` draws all chance."""

    def __init__(
        self, name: str, work: Path, kept: Path, *, train: Callable[..., Any], short: bool = False, seed: int = 0,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.short, self.seed, self.work, self._train = short, seed, work, train
        self.busy = 0.0  # the most cores that others kept busy
        self._tell, self._file = tell, kept / f"{name}{'-short' if short else ''}-{seed}-{__version__}.json"
        self._parts: dict[str, Any] = self._read()

    def part(self, name: str, work: Callable[[], Any]) -> Any:
        """What `work` returned, plain data: measured now, or in an earlier call of this lab that was stopped."""
        if name not in self._parts:
            self._tell(name)
            self._parts[name] = json.loads(json.dumps(work()))
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, json.dumps(self._parts))
        return self._parts[name]

    def timed(self, name: str, work: Callable[[], Any]) -> Any:
        """A part whose answer depends on who else uses the machine; how busy they are is noted with it."""

        def watched() -> dict[str, Any]:
            before = self._others()
            answer = work()
            return {"answer": answer, "busy": max(before, self._others())}

        kept = self.part(name, watched)
        self.busy = max(self.busy, kept["busy"])
        return kept["answer"]

    def each(self, keys: Iterable[K], work: Callable[[K], Any], *, timed: bool = False) -> dict[K, Any]:
        """A part, `timed` or not, for each key."""

        def measure(key: K) -> Any:
            name = ", ".join(map(str, key)) if isinstance(key, tuple) else str(key)
            return (self.timed if timed else self.part)(name, lambda: work(key))

        return {key: measure(key) for key in keys}

    def ranks(self, target: Callable[..., Any], world: int, *arguments: Any) -> Any:
        """The first process's answer of `target(context, *arguments)`, a top-level function, one thread in each."""
        from scalewright.launch.local import run_local

        return run_local(target, arguments, world, preload=PRELOAD, threads=1, import_main=False)

    def run(self, name: str, changes: Mapping[str, Any], on_step: Callable[[Any], None] | None = None) -> Trained:
        """A training run on Shakespeare, of TRAINER with changes two levels deep; one of the same name goes on."""
        keys: dict[str, Any] = {**TRAINER, "data": {"train": str(self.data), "seq_len": 64}, "name": name}
        for key, value in changes.items():
            keys[key] = {**keys.get(key, {}), **value} if isinstance(value, Mapping) else value
        folder = self.work / "runs" / name
        self._train({**keys, "out_dir": str(folder)}, quiet=True, simulate=True, on_step=on_step)
        rows = [row for row in read_jsonl(folder / "metrics.jsonl") if row.get("kind", "train") == "train"]
        return Trained(rows, read_jsonl(folder / "events.jsonl"), folder)

    @cached_property
    def data(self) -> Path:
        """Shakespeare's plays as tokens."""
        from scalewright.data.prepare import prepare

        folder = self.work / "data"
        prepare("shakespeare", folder, vocab_size=VOCABULARY, progress=None)
        return folder

    @cached_property
    def text(self) -> bytes:
        """Shakespeare's plays as bytes."""
        from collections import Counter

        from scalewright.data.prepare import corpus

        return b"".join(Path(file.path).read_bytes() for file in corpus("shakespeare", Counter()))

    def finished(self) -> None:
        """The next call measures anew."""
        self._file.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._file.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def _others(self) -> float:
        from scalewright.machine.load import mark, others_busy

        before = mark()
        time.sleep(LOOK_S)
        return others_busy(before) or 0.0


def clock(work: Callable[[], Any], repeats: int, warm: int = 1) -> float:
    """Seconds of a call: the median of `repeats`, after `warm` ones."""
    for _ in range(warm):
        work()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def clock_in_turn(works: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Medians of several, one call of each in turn, so that a slow moment meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(repeats):
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - begun)
    return {name: statistics.median(values) for name, values in times.items()}
