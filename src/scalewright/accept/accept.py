"""The checks of a new cluster, in order: what is cheap first, what needs the run last.

doctor ─► devices ─► pairs ─► links ─► loss ─► resume, training      (when one fails, the next is made all the same)
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from scalewright.accept import hardware, training
from scalewright.accept.hardware import Acceptance, checked, timed
from scalewright.accept.training import Ranks
from scalewright.launch.rank import RankContext
from scalewright.machine.doctor import examine
from scalewright.spec.errors import Finding, UserError
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.run import RunSpec

Tell = Callable[[str], None]


def accept(
    run: RunSpec,
    cluster: ClusterSpec,
    context: RankContext,
    *,
    device: str,
    folder: Path,
    environ: Mapping[str, str],
    tell: Tell = lambda text: None,
) -> Acceptance:
    """Every check, called on each rank of a started world, or alone; the same answer on all. `folder` is new, and seen
    by every rank. `device`: cpu or cuda. Raises UserError for a world of another size than the layout's, and for a
    folder that isn't new or shared."""
    if not context.alone and context.world != run.layout.devices:
        how = f"start {run.layout.devices} processes, or set layout.devices={context.world}"
        raise UserError(f"the layout has {run.layout.devices} devices, and {context.world} are here", "layout", how)
    check_folder(context, folder)
    with Ranks(context, device, run.layout.devices) as ranks:
        if ranks.lead:
            folder.mkdir(parents=True)
        ranks.share(None)
        blind = [host for host, there in ranks.gather((socket.gethostname(), folder.is_dir())) if not there]
        if blind:
            problem = f"{folder} isn't there on {blind[0]}"
            raise UserError(problem, "--out", "give a folder on storage that all hosts share")
        place = training.AcceptanceFolder(folder)
        checks = [_timed(lambda: _doctor(ranks, folder, environ), tell, "this machine")]
        checks += _measured(ranks, run, cluster, tell)
        checks.append(_timed(lambda: training.loss(ranks, run, place), tell, "the loss against one device"))
        tell("a kill, and a resume")
        start = time.perf_counter()
        resumed, pace = training.resume(ranks, run, place)
        checks += [pace, timed(resumed, start)]
        hosts = sorted(set(ranks.gather(socket.gethostname())))
        about = {"layout": run.layout.dump(), "device": device, "world": ranks.processes, "hosts": hosts,
                 "cluster": cluster.name, "folder": str(folder)}  # fmt: skip
        return Acceptance(run.name, about, checks)


def check_folder(context: RankContext, folder: Path) -> None:
    """Raises UserError on rank 0 for a folder that is there already."""
    if context.rank == 0 and folder.exists():
        raise UserError("this folder is there already", str(folder), "name a new one with --out")


def _timed(check: Callable[[], Finding], tell: Tell, what: str) -> Finding:
    tell(what)
    start = time.perf_counter()
    return timed(check(), start)


def _doctor(ranks: Ranks, folder: Path, environ: Mapping[str, str]) -> Finding:
    """What `scalewright doctor` has to say on each host."""
    host = socket.gethostname()
    first = ranks.context.local_rank == 0
    mine = [(host, finding) for finding in examine(folder, environ, measure=False).findings] if first else []
    looks: list[tuple[str, Finding]] = [row for rows in ranks.gather(mine) for row in rows]
    bad = [row for row in looks if row[1].severity == "problem"] or [row for row in looks if row[1].severity == "warn"]
    figures = {"findings": [{"host": h, "severity": f.severity, "what": f.what, "fix": f.how} for h, f in bad]}
    if not bad:
        hosts = len({host for host, _ in looks})
        words = f"{len(looks)} looks at {hosts} host{'s' if hosts > 1 else ''}: nothing to fix"
        return checked("doctor", "ok", words, "", figures)
    what = "; ".join(dict.fromkeys(finding.what for _, finding in bad[:3]))
    return checked("doctor", bad[0][1].severity, what, bad[0][1].how, figures)


def _measured(ranks: Ranks, run: RunSpec, cluster: ClusterSpec, tell: Tell) -> list[Finding]:
    """The hardware's three checks, from one measurement."""
    tell("devices, pairs and messages")
    start = time.perf_counter()
    job = hardware.job_of(run.layout, ranks.device)
    figures = ranks.measure(job)
    first = hardware.devices(figures["devices"], cluster, job.precision)
    return [timed(first, start), hardware.meetings(figures["pairs"]), hardware.links(figures["axes"], cluster)]
