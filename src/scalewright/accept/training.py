"""Does the run compute what one device computes, train as fast as planned, and survive a kill?

    loss       `scalewright parity` on this host
    resume     train ─ save ─ SIGKILL of the last rank ─ the others end ─ train again from the checkpoint
                                                                             ║ equal, step by step?
    training   train without a kill up to the same step ═════════════════════╝ its step beside the prediction

The run is the user's own: model, data, layout. It writes to folders of its own, and doesn't validate. The processes of
an acceptance all do the same checks in the same order:

    alone            this process; it starts local ones to measure, and `train` starts its own
    torchrun, srun   every rank; a Gloo group between them carries answers, and waits while children train
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from scalewright.accept.hardware import HardwareJob, checked, measured, take
from scalewright.bench.world import PRELOAD, joined
from scalewright.launch.in_every_rank import Child, run_alone
from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.launch.rendezvous import free_port
from scalewright.spec.base import write_yaml
from scalewright.spec.common.formatting import against, short_time
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.errors import Finding
from scalewright.spec.run import RunSpec

EVERY = 4  # steps between saves
BEYOND = 2  # steps after a save, before the kill
AFTER = 6  # steps of the resumed run
STEPS = 2000  # at least: a tiny model takes hundreds of steps before it is killed
COLD = 3  # steps that set up memory and kernels
POLL_S = 0.02
GRACE_S = 20.0  # for the other ranks to end by themselves, once one is gone
PATIENCE_S = 1800.0  # of one call of `train` or `parity`
CLOSE = 1e-3  # of the loss after a resume, where a GPU's sums change order


@dataclass(frozen=True)
class AcceptanceFolder:
    """An acceptance's folder, which every rank sees, and the files in it."""

    folder: Path

    @property
    def killed(self) -> Path:
        return self.folder / "killed"

    @property
    def whole(self) -> Path:
        return self.folder / "whole"

    def run_file(self, run: RunSpec, out: Path, every: int = 0) -> Path:
        """Writes the run as it is trained here, saved `every` so many steps; returns its file."""
        data = run.dump()
        if isinstance(data["data"], dict) and "valid" in data["data"]:
            data["data"]["valid"] = None
        steps = max(run.train.steps or 0, STEPS)
        changed = {
            **data, "out_dir": str(out), "resume": "auto", "track": {}, "profile": {}, "environment": None,
            "train": {**data["train"], "steps": steps, "tokens": None, "valid_every": 0},
            "checkpoint": {**data["checkpoint"], "every": every, "keep": 2, "at_end": False, "store": None},
        }  # fmt: skip
        path = out.with_suffix(".yaml")
        write_yaml(path, changed)
        return path


def loss(ranks: Ranks, run: RunSpec, place: AcceptanceFolder) -> Finding:
    """The layout against one device, by rank 0's host alone: layouts that don't fit there are shrunk."""
    answer = None
    if ranks.lead:
        device = "cuda" if ranks.device == "cuda" else "cpu"
        file = str(place.run_file(run, place.folder / "parity"))
        command = ["parity", file, "--device", device, "--steps", "5", "--json"]
        answer = run_alone(ranks.context, command, PATIENCE_S)
    code, text, errors = ranks.share(answer)
    try:
        answered = json.loads(text)
    except ValueError:
        return checked("loss", "problem", _last_line(errors) or "parity gave no answer", "run `scalewright parity`")
    figures = {key: answered[key] for key in ("layout", "control", "worst", "tolerance", "shrunk")}
    words = f"equal to one device: {answered['worst']:.1e} apart at most, {answered['tolerance']:.0e} is allowed"
    if answered["shrunk"]:
        words += f" (shrunk to this host: {', '.join(answered['shrunk'][:3])})"
    if code == 0:
        return checked("loss", "ok", words, "", figures)
    words = f"{answered['worst']:.1e} from one device, {answered['tolerance']:.0e} is allowed"
    return checked("loss", "problem", words, "`scalewright parity` on one host after the other", figures)


def resume(ranks: Ranks, run: RunSpec, place: AcceptanceFolder) -> tuple[Finding, Finding]:
    """The checks `resume` and `training`."""
    files = None
    if ranks.lead:
        files = place.run_file(run, place.killed, EVERY), place.run_file(run, place.whole)
    first, second = ranks.share(files)
    killed = _kill(ranks, ranks.start(["train", str(first)], place.folder / "killed.log"), place)
    if isinstance(killed, Finding):
        return killed, checked("training", "note", "the run didn't get as far")
    saved = int(ranks.share(_commits(place.killed)[-1] if ranks.lead else None))  # from which a resume starts
    if code := _until(ranks, first, saved + AFTER, place.folder / "resumed.log"):
        return _broken("resume", code, place.folder / "resumed.log"), checked("training", "note", "no resume")
    last = ranks.share(_last(place.killed) if ranks.lead else None)
    if code := _until(ranks, second, last, place.folder / "whole.log"):
        broken = _broken("training", code, place.folder / "whole.log")
        return checked("resume", "note", "no run to compare with"), broken
    checks: tuple[Finding, Finding] = ranks.share((_compared(place, killed), _pace(place)) if ranks.lead else None)
    return checks


def _kill(ranks: Ranks, child: Child, place: AcceptanceFolder) -> Finding | dict[str, float]:
    """Ends the last rank's child after a save, and waits for the rest: seconds that they took to see it."""
    sign, end = place.folder / "killed.sign", time.monotonic() + PATIENCE_S
    struck = False
    while child.poll() is None and time.monotonic() < end:
        if ranks.last and _behind_save(place.killed):
            child.kill()
            sign.touch()
            struck = True
            break
        if sign.exists():
            break
        time.sleep(POLL_S if ranks.last else 10 * POLL_S)
    start = time.monotonic()
    waited = child.wait(GRACE_S)
    child.kill()
    ended = {"struck": struck, "noticed_s": time.monotonic() - start if waited is not None else None}
    answers = ranks.gather(ended)
    if not any(answer["struck"] for answer in answers):
        return _broken("resume", 1, place.folder / "killed.log")
    others = answers[:-1]
    seen = [answer["noticed_s"] for answer in others if answer["noticed_s"] is not None]
    return {"others": len(others), "late": len(others) - len(seen), "noticed_s": max(seen, default=0.0)}


def _behind_save(folder: Path) -> bool:
    """Whether a checkpoint is whole and some steps lie behind it."""
    saved = _commits(folder)
    return bool(saved) and _last(folder) >= saved[-1] + BEYOND


def _commits(folder: Path) -> list[int]:
    return sorted(int(path.parent.name.split("-")[1]) for path in folder.glob("checkpoints/step-????????/COMMIT"))


def _rows(folder: Path) -> dict[int, Mapping[str, Any]]:
    path = folder / "metrics.jsonl"
    rows = read_jsonl(path) if path.exists() else []
    return {int(row["step"]): row for row in rows if row.get("kind") == "train"}


def _events(folder: Path, kind: str) -> list[Mapping[str, Any]]:
    return [event for event in read_jsonl(folder / "events.jsonl") if event.get("kind") == kind]


def _last(folder: Path) -> int:
    return max(_rows(folder), default=0)


def _until(ranks: Ranks, file: Path, step: int, log: Path) -> int:
    """Trains up to a step; the first exit code that isn't 0, of any rank (124: no end in time)."""
    child = ranks.start(["train", str(file), "--steps", str(step)], log)
    code = child.wait(PATIENCE_S)
    child.kill()
    codes = ranks.gather(124 if code is None else code)
    return next((code for code in codes if code), 0)


def _compared(place: AcceptanceFolder, killed: Mapping[str, float]) -> Finding:
    """The steps after the resume, beside those of the run that wasn't killed."""
    if not (resumed := _events(place.killed, "resume")):
        words = "it began again from step 0: no checkpoint was taken"
        return checked("resume", "problem", words, "see checkpoint.every")
    began = int(resumed[-1]["step"])
    mine, whole = _rows(place.killed), _rows(place.whole)
    steps = [step for step in sorted(mine.keys() & whole.keys()) if step > began]
    pairs = [(mine[step]["loss"], whole[step]["loss"]) for step in steps]
    apart = max((_apart(a, b) for a, b in pairs), default=math.inf)
    figures = {"resumed_from": began, "steps": len(steps), "worst": apart, **killed}
    words = f"killed, and resumed from step {began}: "
    if apart > CLOSE:
        words += f"the loss of {len(steps)} steps is up to {apart:.1e} from the run that wasn't killed"
        return checked("resume", "problem", words, "`scalewright checkpoint verify` on the newest save", figures)
    words += f"{len(steps)} steps " + ("bitwise equal" if apart == 0 else f"within {apart:.1e}")
    words += " to a run that wasn't killed"
    if killed["others"]:
        words += f"; the other ranks ended within {short_time(killed['noticed_s'])}"
    if killed["late"]:
        words += f", {killed['late']} only when they were killed, too"
        return checked("resume", "warn", words, "lower train.timeouts, or start with torchrun", figures)
    return checked("resume", "ok", words, "", figures)


def _apart(a: float | None, b: float | None) -> float:
    """The relative distance of two losses; infinite where one isn't a number."""
    if a is None or b is None or not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(b), 1e-12)


def _pace(place: AcceptanceFolder) -> Finding:
    """The usual step beside its prediction."""
    rows = [row for step, row in sorted(_rows(place.whole).items()) if step > COLD]
    losses = [row["loss"] for row in rows]
    if not rows or any(value is None or not math.isfinite(value) for value in losses):
        how = "look at its report, and try a lower learning rate"
        return checked("training", "problem", "the loss isn't a number", how)
    usual = statistics.median(row["step_time_s"] for row in rows)
    saves = [event["seconds"] for event in _events(place.killed, "save")]
    predicted: Mapping[str, Any] = next(iter(_events(place.whole, "predicted")), {})
    figures = {"step_time_s": usual, "tokens_per_s": statistics.median(row["tokens_per_s"] for row in rows),
               "predicted_s": predicted.get("p50"), "p10": predicted.get("p10"), "p90": predicted.get("p90"),
               "save_s": statistics.median(saves) if saves else None}  # fmt: skip
    words = f"a step takes {short_time(usual)}"
    words += f", a save {short_time(figures['save_s'])}" if saves else ""
    if not predicted.get("p50"):
        return checked("training", "ok", f"{words}; no prediction here: {predicted.get('note', '')}", "", figures)
    band = f"{short_time(predicted['p10'])} to {short_time(predicted['p90'])}"
    words += f"; {short_time(predicted['p50'])} predicted ({band}): {against(usual, predicted['p50'])}"
    if usual > predicted["p90"]:
        how = "trace it: `scalewright train ... profile.steps=[8,9,10]`, then `scalewright diagnose`"
        return checked("training", "warn", words, how, figures)
    return checked("training", "ok", words, "", figures)


def _broken(name: str, code: int, log: Path) -> Finding:
    """A failure of `train` itself, with the last line that rank 0 printed."""
    path = log.with_name(f"{log.stem}-0.log")
    line = _last_line(path.read_text(encoding="utf-8", errors="replace")) if path.exists() else ""
    return checked(name, "problem", f"train ended with {code}: {line}", f"read {path}")


def remove_checkpoints(folder: Path) -> None:
    """Frees what the runs saved; their metrics and logs stay."""
    for path in folder.glob("*/checkpoints"):
        shutil.rmtree(path, ignore_errors=True)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


PATIENCE = timedelta(hours=2)  # of ranks that wait for another one's check


class Ranks:
    """All of them, seen from one."""

    def __init__(self, context: RankContext, device: str, processes: int) -> None:
        self.context, self.device = context, device
        self.processes = processes if context.alone else context.world
        self._stack = ExitStack()
        self._place: Any = None
        self._control: Any = None
        if not context.alone:
            import torch.distributed as dist

            self._place = self._stack.enter_context(joined(context, device))
            self._control = dist.new_group(backend="gloo", timeout=PATIENCE)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def lead(self) -> bool:
        """Whether this is the rank that decides and writes."""
        return self.context.rank == 0

    @property
    def last(self) -> bool:
        """Whether this is the rank whose child is killed."""
        return self.context.rank == self.context.world - 1

    def measure(self, job: HardwareJob) -> Mapping[str, Any]:
        """The figures of every device, pair and axis; the same on each rank."""
        if not self.context.alone:
            return take(self.context, job, self._place)
        figures: Mapping[str, Any] = run_local(measured, (job,), self.processes, preload=PRELOAD, import_main=False)
        return figures

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on each of them."""
        if self.context.alone:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.context.world
        dist.all_gather_object(values, value, group=self._control)
        return values

    def share(self, value: Any) -> Any:
        """Rank 0's value."""
        return self.gather(value)[0]

    def start(self, arguments: Sequence[str], log: Path) -> Child:
        """`scalewright ARGUMENTS` on every rank, together a world at a free port of rank 0's host."""
        port = self.share(free_port() if self.lead else None)
        return Child(self.context, port, arguments, log.with_name(f"{log.stem}-{self.context.rank}.log"))
