"""Opens rank 0's record of a run: its folder, files, console and trackers; writes the start event."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from scalewright.checkpoint.memory import root_of
from scalewright.launch.settings import present_environment
from scalewright.launch.starters import attempt_facts
from scalewright.spec.base import write_yaml
from scalewright.spec.common.files import write_whole
from scalewright.spec.common.formatting import count, counted
from scalewright.spec.common.jsonl import begins_after, read_jsonl
from scalewright.spec.common.untrusted import inside
from scalewright.spec.ends import COMPANIONS
from scalewright.spec.errors import UserError
from scalewright.spec.flops import flops_per_token
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import RunSpec
from scalewright.spec.tensors import count as count_parameters
from scalewright.track.console import Console
from scalewright.track.environment import environment
from scalewright.track.events import EventsFile
from scalewright.track.fanout import Fanout, open_trackers
from scalewright.track.metrics import MetricsFile
from scalewright.track.saved import read_saved
from scalewright.train.initial import keep_origin
from scalewright.train.metrics.expectation import expect
from scalewright.train.metrics.record import Record, Tell
from scalewright.train.network import Network
from scalewright.train.precision import Peak
from scalewright.train.resolve import Resolved
from scalewright.train.session import Session
from scalewright.train.state.changes import Changes
from scalewright.train.state.live import LiveReader
from scalewright.train.state.resume import Origin

METRICS, EVENTS = "metrics.jsonl", "events.jsonl"


def write_folder(session: Session, changes: Changes) -> None:
    """The resolved run file, an engine's own files and the tokenizer, so that the folder stands alone. A run that goes
    on keeps its tokenizer.json; one that was allowed to change it has the old one beside it. Raises UserError."""
    run, resumed = session.run, session.resumed
    folder = run.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        seen = environment(environ=present_environment())
        write_yaml(folder / "run.yaml", run.model_copy(update={"environment": seen}).dump())
        for name, text in session.engine.files.items():
            write_whole(folder / name, text)
        if resumed is None:
            keep_origin(run)
        tokenizer: Path | None = session.dataset.tokenizer_path
        if tokenizer is not None and tokenizer.exists():
            kept = folder / "tokenizer.json"
            if resumed is not None and kept.exists():
                if "tokenizer" not in changes.values:
                    return
                os.replace(kept, folder / f"tokenizer.until-step-{resumed}.json")
            for name in (tokenizer.name, *COMPANIONS):
                if inside(tokenizer.parent, name).is_file():
                    shutil.copyfile(tokenizer.parent / name, folder / (name if name in COMPANIONS else kept.name))
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", str(folder), "free space, or set out_dir") from None


def open_record(
    session: Session, origin: Origin, peak: Peak, notes: list[str], times: Mapping[str, float | None], *,
    quiet: bool, tell: Tell | None = None,
) -> Record:  # fmt: skip
    """Rank 0's writers, opened to go on from where the run stands; `notes` and then start or resume become events.
    `times`: when its command began, seconds of reading the checkpoint."""
    resolved, run, place = session.resolved, session.run, session.place
    folder, done, live = run.folder, place.step, isinstance(origin.reader, LiveReader)
    parameters, flops = _counts(resolved, session.engine.network)
    before = origin.reader.folder if origin.reader else folder
    ours = before.resolve().parent in ((folder / "checkpoints").resolve(), root_of(folder).resolve())
    lines = {name: read_saved(before, name, done) if ours else None for name in (EVENTS, METRICS)}
    events = EventsFile(folder / EVENTS)
    lost_events = events.bring_back(lines[EVENTS])
    first = begins_after(read_jsonl(folder / EVENTS)) if ours else done
    metrics = MetricsFile(folder / METRICS, done, events, lines[METRICS], first + 1)
    console = Console(resolved.steps, run.name, _description(run, parameters, peak), enabled=not quiet, start_step=done)
    tracked = run.track.mlflow or run.track.tensorboard or run.track.wandb
    seen = environment(environ=present_environment()) if tracked else None
    copies = open_trackers(run, folder, environment=seen, resume_step=done, variables=resolved.variables)
    trackers = Fanout(copies, events, tell=console.message)
    writers = metrics, events, console, trackers
    record = Record(*writers, run.layout, resolved.seq_len, flops, peak=peak, place=place, tell=tell)
    console.start()
    for note in [*notes, *filter(None, [lost_events])]:
        record.event("fault", note, step=done)
    if metrics.note:
        record.event("fault", metrics.note, step=done, lost=metrics.lost)
    facts = {
        "run_id": session.run_id, "parameters": parameters, "flops_per_token": flops,
        "world": run.layout.devices, "precision": run.layout.precision,
        **{f"peak_{key}": getattr(peak, key) for key in ("flops", "source", "device", "how")},
        "pid": os.getpid(), **times, **attempt_facts(),
    }  # fmt: skip
    if origin.reader:
        message = (
            f"{counted(run.layout.devices, 'ranks')} go on after step {done}" if live else f"resumed from step {done}"
        )
        how = {"in_process": True} if live else {"path": str(before)}
        record.event("resume", message, step=done, **how, **facts)
    else:
        record.event("start", step=done, **facts)
    record.lost(done, opened=True)
    session.state.lines = record
    record.expectation = expect(resolved)
    record.event("predicted", record.expectation.promise(), step=done, **record.expectation.dump())
    return record


def _counts(resolved: Resolved, network: Network) -> tuple[int, float]:
    """Parameters of the whole model, of which a pipeline's rank holds some, and training FLOPs a token. A user's own
    module is whole on every rank; its operators aren't known, and 6 FLOPs a parameter are taken."""
    if isinstance(resolved.model, ModelSpec):
        per_token = flops_per_token(resolved.model, resolved.seq_len, mtp=True)
        counted = count_parameters(resolved.model)
        return counted.total + counted.mtp, per_token
    parameters = sum(weight.placement.tensor.size for weight in network.parallel.weights)
    return parameters, 6.0 * parameters


def _description(run: RunSpec, parameters: int, peak: Peak) -> list[str]:
    name = run.model.name if isinstance(run.model, ModelSpec) else "your model"
    name = "" if name == run.name else name  # which stands before all this
    layout = run.layout
    split = f"{layout.devices} x {run.device}" if layout.devices > 1 else run.device
    sizes = [f"{key} {getattr(layout, key)}" for key in ("pp", "tp") if getattr(layout, key) > 1]
    kind = ", ".join([*sizes, f"zero {layout.zero_stage}"]) if layout.devices > 1 else ""
    best = f"peak {peak.flops / 1e12:.3g} TFLOP/s a device ({peak.source})" if peak.flops else "peak unknown"
    size, batch = f"{name} {count(parameters)}".strip(), f"batch {layout.global_batch}"
    return [part for part in (size, split, str(layout.precision), kind, batch, best) if part]
