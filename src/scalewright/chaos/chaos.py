"""A run file under faults: an undisturbed run first, then disturbed ones that are started again, and the comparison.

    control      ├──────────────────────────────┤ final weights
    lineage 1    ├─────✕ ├────✕├──────✕  ├──────┤ the same?       ✕ a fault; then `train` again, as a scheduler would
    lineage 2    ├──✕ ├─────────✕  ├────────────┤ the same?

Faults come so many steps and parts of a second after the one before has been got over, at any moment of a step or a
save. A run that has ended is started again at once, by the same command and by nobody's hand. A fault is got over when
the run has done a step that it hadn't done, or the step after the one that it went on from; `seconds` are those from
the fault until then. Weights, optimizer states and each step's numbers are compared with the undisturbed run's, bit for
bit.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalewright.chaos.faults import KINDS, Fault, choose, draw, namespace, saves
from scalewright.chaos.job import Job, begun, steps_done
from scalewright.spec.base import write_yaml
from scalewright.spec.common.formatting import counted
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.run import RunSpec

STEPS = 60  # of a run under faults, where the run file has more
SAVES = 10  # of such a run, where it doesn't save itself that often
PATIENCE_S = 20.0  # after which ranks give up one that doesn't come
LIMIT_S = 240.0  # of one recovery: longer is none
TRIES = 4  # starts without a step, after which a run isn't started again
LEAST = 3  # steps of a run that a fault finds time in
UNTOUCHED = 5  # runs in a row that end before their fault
LOOK_S = 0.02
NUMBERS = ("loss", "grad_norm", "lr", "loss_tokens", "sample_ids_hash")  # of a step that have to be the same


@dataclass
class Lineage:
    """A run with all its attempts."""

    number: int
    folder: Path  # its out_dir
    begun: float
    faults: list[dict[str, Any]] = field(default_factory=list)
    orphans: int = 0
    equal: bool | None = None  # None: it didn't come to its end
    differs: list[str] = field(default_factory=list)


class GaveUpError(Exception):
    """A run that doesn't come back."""


def chaos(
    run: RunSpec,
    *,
    faults: int = 10,
    seed: int = 0,
    kinds: Sequence[str] = (),
    steps: int | None = None,
    keep: Path | None = None,
    seconds: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The keys of `chaos --json`. `steps` of each run (default: at most 60), `keep`: a folder for the runs, else they
    are removed; `seconds`: after which no further fault is begun. Raises UserError; RunError where the undisturbed run
    fails."""
    if faults < 1:
        raise UserError(f"{faults} faults are none", "--faults", "give 1 or more")
    ranks = run.layout.devices
    if keep is not None and keep.is_dir() and any(keep.iterdir()):  # runs that are there would be gone on with
        raise UserError("there is something in that folder already", str(keep), "give a new one")
    chosen, missing = choose(kinds, ranks)
    run, assumed = _shortened(run, steps)
    last = run.train.steps or 0
    ahead = draw(seed, faults, chosen, max(2, last // 6))
    with tempfile.TemporaryDirectory(prefix="scalewright-chaos-", ignore_cleanup_errors=True) as scratch:
        work = keep if keep is not None else Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        tell("the undisturbed run")
        started = time.time()
        control = _control(run, work)
        control_s = time.time() - started
        begun_at, lineages, untouched = time.time(), list[Lineage](), 0
        while ahead and (seconds is None or time.time() - begun_at < seconds):
            number = len(lineages) + 1
            lineage = Lineage(number, work / f"run-{number}" / "out", begun_at)
            lineages.append(lineage)
            _disturb(run, lineage, ahead, seed, seconds, tell)
            untouched = 0 if lineage.faults else untouched + 1
            if untouched == UNTOUCHED:
                problem = f"{UNTOUCHED} runs of {last} steps ended before a fault came: {KINDS[ahead[0].kind].words}"
                raise RunError(f"{problem}; give the run more steps (--steps), or leave that kind out (--kinds)")
            if lineage.equal is None and not (lineage.faults and not lineage.faults[-1]["recovered"]):
                lineage.differs = differences(control, lineage.folder)
                lineage.equal = not lineage.differs
            if keep is None:
                shutil.rmtree(lineage.folder.parent, ignore_errors=True)
        return _answer(run, seed, chosen, missing, assumed, lineages, control_s, time.time() - begun_at)


def _shortened(run: RunSpec, steps: int | None) -> tuple[RunSpec, list[str]]:
    """The run as it is disturbed: short, saved often, with ranks that give each other up soon, and no tracker."""
    if run.train.steps is None:
        raise UserError("the run's length is in tokens", "train.tokens", "add train.steps=60 after the file")
    last = min(steps or STEPS, run.train.steps)
    if last < LEAST:
        how = f"give {LEAST} or more (--steps, train.steps)"
        raise UserError(f"a run of {counted(last, 'steps')} ends before a fault comes", "train.steps", how)
    every = run.checkpoint.every
    if not every or every > max(last // 4, 1):
        every = max(last // SAVES, 1)
    timeouts = {"start_s": 120.0, "steady_s": min(PATIENCE_S, run.train.timeouts.steady_s)}
    train = {**run.train.dump(), "steps": last, "timeouts": timeouts}
    checkpoint = {**run.checkpoint.dump(), "every": every, "at_end": True, "keep": max(run.checkpoint.keep, 2)}
    checkpoint["store"] = None  # it holds the run's own saves, and a run that begins there would go on from them
    assumed = [
        f"train.steps={last} (the file has {run.train.steps})", f"checkpoint.every={every}",
        f"train.timeouts.steady_s={timeouts['steady_s']:g}", *(["no checkpoint.store"] if run.checkpoint.store else []),
    ]  # fmt: skip
    return run.replace(train=train, checkpoint=checkpoint, track={}, resume="auto", environment=None), assumed


def _write(run: RunSpec, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "run.yaml"
    write_yaml(file, run.replace(out_dir=str(folder / "out")).dump())
    return file


def _control(run: RunSpec, work: Path) -> Path:
    """The undisturbed run's folder; raises RunError where it fails."""
    file = _write(run, work / "control")
    job = Job(file, file.parent / "out", run.layout.devices, PATIENCE_S)
    try:
        code = job.wait(3600.0)
    finally:
        job.kill_all()
    if code != 0:
        last = (job.log.read_text(errors="replace").strip().splitlines() or ["it wrote nothing"])[-1]
        raise RunError(f"the undisturbed run failed (exit code {code}): {last}")
    return job.folder


def _disturb(
    run: RunSpec, lineage: Lineage, ahead: list[Fault], seed: int, seconds: float | None, tell: Callable[[str], None]
) -> None:
    """One run to its end, under the faults that lie ahead; those that were done are taken off the list."""
    file, last = _write(run, lineage.folder.parent), run.train.steps or 0
    before = namespace() if any(fault.kind == "network" for fault in ahead) else ()

    def start() -> Job:
        return Job(file, lineage.folder, run.layout.devices, PATIENCE_S, before)

    job = start()
    try:
        while ahead and job.code() is None and (seconds is None or time.time() - lineage.begun < seconds):
            fault = ahead[0]
            target = steps_done(lineage.folder) + fault.after_steps
            if target >= last or not _reached(job, target, KINDS[fault.kind].least_saves):
                break
            time.sleep(fault.delay_s)
            if job.code() is not None:
                break
            ahead.pop(0)
            tell(f"fault {fault.number}: {KINDS[fault.kind].words}")
            job = _one(fault, job, start, lineage, seed)
            if not lineage.faults[-1]["recovered"]:
                return
        for _ in range(TRIES):  # to its end; a signal that was still on its way may have ended it
            code = job.wait(3600.0)
            lineage.orphans += len(job.orphans())
            if code == 0:
                return
            job = start()
        lineage.equal, lineage.differs = False, ["it didn't come to its end"]
    finally:
        job.kill_all()


def _reached(job: Job, step: int, least: int) -> bool:
    """Waits until the run is at a step and has so many saves; false where it ended before."""
    while job.code() is None:
        if steps_done(job.folder) >= step and saves(job.folder) >= least:
            return True
        time.sleep(LOOK_S)
    return False


def _one(fault: Fault, job: Job, start: Callable[[], Job], lineage: Lineage, seed: int) -> Job:
    """Does one fault, and waits until the run is over it; the job that then trains."""
    kind, step = KINDS[fault.kind], steps_done(lineage.folder)
    opened, _ = begun(lineage.folder)
    at = time.time()
    kind.do(job, fault.random(seed))
    ended: list[int] = []
    orphans, recovered = 0, True
    try:
        while not _is_over(job, kind.then, opened, step, at):
            if (code := job.code()) is not None and code != 0:
                ended.append(code)
                orphans += len(job.orphans())
                if len(ended) >= TRIES:
                    raise GaveUpError
                job = start()
            elif time.time() - at > LIMIT_S:
                raise GaveUpError
            time.sleep(LOOK_S)
    except GaveUpError:
        recovered = False
    lineage.orphans += orphans
    events = read_jsonl(lineage.folder / "events.jsonl")
    again = [event for event in events if event.get("kind") == "lost" and float(event.get("time", 0)) >= at]
    lineage.faults.append({
        "kind": fault.kind, "at": round(at - lineage.begun, 3), "recovered": recovered,
        "seconds": round(time.time() - at, 3), "run": lineage.number, "step": step, "ended": ended,
        "lost_steps": sum(int(event.get("steps", 0)) for event in again),
        "lost_s": round(sum(float(event.get("seconds", 0)) for event in again), 3), "orphans": orphans,
    })  # fmt: skip
    return job


def _is_over(job: Job, then: str, opened: int, step: int, at: float) -> bool:
    """Whether the run is past a fault: it has done a new step since it was opened anew, or without that."""
    if job.code() == 0:
        return True
    times, first = begun(job.folder)
    done = steps_done(job.folder)
    if times > opened:
        return done > first
    harmless = then != "ends" or time.time() - at > 3 * PATIENCE_S  # what was to end it has missed it
    return harmless and job.code() is None and done > step


def differences(control: Path, mine: Path) -> list[str]:
    """How a run's end differs from the undisturbed run's: tensors and steps, in words; empty where nothing does."""
    from scalewright.checkpoint.compare import tensors
    from scalewright.checkpoint.read import find_checkpoint

    try:
        folders = find_checkpoint(control), find_checkpoint(mine)
    except UserError as error:
        return [str(error)]
    words = [f"step {folders[1].name} and not {folders[0].name}"] if folders[0].name != folders[1].name else []
    words += [f"tensor {row['name']}" for row in tensors(*folders) if not row["equal"]]
    rows = [_numbers(read_jsonl(folder / "metrics.jsonl")) for folder in (control, mine)]
    words += [f"step {step}" for step in sorted({**rows[0], **rows[1]}) if rows[0].get(step) != rows[1].get(step)]
    return words


def _numbers(rows: Iterable[dict[str, Any]]) -> dict[int, list[Any]]:
    return {row["step"]: [row.get(key) for key in NUMBERS] for row in rows if row.get("kind") == "train"}


def _answer(
    run: RunSpec, seed: int, kinds: list[str], missing: dict[str, str], assumed: list[str], lineages: list[Lineage],
    control_s: float, seconds: float,
) -> dict[str, Any]:  # fmt: skip
    faults = [fault for lineage in lineages for fault in lineage.faults]
    lost = {"steps": sum(fault["lost_steps"] for fault in faults), "seconds": sum(fault["lost_s"] for fault in faults)}
    return {
        "faults": faults, "equal": bool(lineages) and all(lineage.equal is True for lineage in lineages), "lost": lost,
        "recovered": sum(fault["recovered"] for fault in faults), "orphans": sum(each.orphans for each in lineages),
        "runs": [
            {"number": each.number, "equal": each.equal, "differs": each.differs[:20], "faults": len(each.faults)}
            for each in lineages
        ],
        "kinds": kinds, "left_out": [{"kind": name, "why": why} for name, why in missing.items()], "seed": seed,
        "layout": run.layout.dump(), "steps": run.train.steps, "assumed": assumed,
        "control_s": round(control_s, 3), "seconds": round(seconds, 3),
    }  # fmt: skip
