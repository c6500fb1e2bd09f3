"""Opens rank 0's record of a run: files, console and trackers, and says what is about to run."""

from __future__ import annotations

import os

import torch

from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import flops_per_token
from scalewright.spec.run import RunSpec
from scalewright.track.console import Console
from scalewright.track.environment import environment
from scalewright.track.events import EventsFile
from scalewright.track.fanout import Fanout
from scalewright.track.metrics import MetricsFile
from scalewright.track.tracker import open_trackers
from scalewright.train.batches import Place
from scalewright.train.network import Network
from scalewright.train.precision import Peak
from scalewright.train.record import Record
from scalewright.train.resolve import Resolved


def open_record(
    resolved: Resolved,
    run: RunSpec,
    peak: Peak,
    network: Network,
    place: Place,
    run_id: str,
    resumed_from: str | None,
    notes: list[str],
    *,
    quiet: bool,
) -> Record:
    """Rank 0's writers, opened to go on from `place`; `notes` and then start or resume become events."""
    folder, done = run.folder, place.step
    parameters = sum(w.placement.tensor.size for w in network.parallel.weights)
    flops = _flops_per_token(resolved, parameters)
    events = EventsFile(folder / "events.jsonl")
    metrics = MetricsFile(folder / "metrics.jsonl", resume_step=done, events=events)
    trackers = Fanout(open_trackers(run, folder, environment=environment(), resume_step=done), events)
    console = Console(
        resolved.steps, run.name, _description(run, parameters, peak), enabled=not quiet, start_step=done
    )
    record = Record(
        metrics,
        events,
        console,
        trackers,
        layout=run.layout,
        seq_len=resolved.seq_len,
        flops_per_token=flops,
        peak=peak,
        device=torch.device(run.device if run.device != "auto" else "cpu"),
        place=place,
    )
    console.start()
    for note in notes:
        record.event("fault", note, step=done)
    record.event(
        "resume" if resumed_from else "start",
        f"resumed from step {done}" if resumed_from else "",
        step=done,
        **({"path": resumed_from} if resumed_from else {}),
        run_id=run_id,
        world=run.layout.devices,
        precision=run.layout.precision,
        parameters=parameters,
        flops_per_token=flops,
        peak_flops=peak.flops,
        peak_source=peak.source,
        peak_device=peak.device,
        peak_how=peak.how,
        pid=os.getpid(),
    )
    return record


def _flops_per_token(resolved: Resolved, parameters: int) -> float:
    """Training FLOPs per token; for a user's module 6 per parameter, since its operators are not known."""
    if isinstance(resolved.model, ModelSpec):
        return flops_per_token(resolved.model, resolved.seq_len)
    return 6.0 * parameters


def _description(run: RunSpec, parameters: int, peak: Peak) -> list[str]:
    name = run.model.name if isinstance(run.model, ModelSpec) else "your model"
    layout = run.layout
    split = f"{layout.devices} x {run.device}" if layout.devices > 1 else run.device
    kind = f"zero {layout.zero_stage}" if layout.devices > 1 else ""
    best = f"peak {peak.flops / 1e12:.3g} TFLOP/s a device ({peak.source})" if peak.flops else "peak unknown"
    parts = [
        f"{name} {_short(parameters)}",
        split,
        str(layout.precision),
        kind,
        f"batch {layout.batch}",
        best,
    ]
    return [part for part in parts if part]


def _short(number: float) -> str:
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return str(int(number))
