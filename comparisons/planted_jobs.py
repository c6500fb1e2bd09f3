"""Plants faults in generated jobs of several ranks; compares verdicts with what the job without them takes.

    python comparisons/planted_jobs.py              25 jobs of each kind; a minute or two
    python comparisons/planted_jobs.py --jobs 100

    job with a fault ──► Kineto traces ──► scalewright diagnose ──► first cause, promised gain
    job without it ──► its simulated length ─────────────────────► true gain, in percent of the first

Jobs are drawn at random: ranks, layers, lengths of kernels, launches and collectives, clocks that differ, and
noise on every one of them. The promise is the verdict's p90, the gain with the cause gone, which is what the
job without the fault is; for stragglers and links its p50, a rank or a link like the others. Exit code 1 when
an aim is missed: the cause first in 95%, its gain within 10%, clean jobs without a verdict.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.facts import ROOT, facts
from harness.result import Result, facts_text, table

sys.path.insert(0, str(ROOT))
from tests.diagnose.job import Job, simulate, write
from tests.diagnose.pipeline_job import PipelineJob, simulate_pipeline, write_pipeline

from scalewright.diagnose.answer import answer
from scalewright.diagnose.ranks import read_ranks

AnyJob = Job | PipelineJob
NEAR = 0.1
FIRST = 0.95


def base(draw: random.Random) -> Job:
    """A job whose collectives are hidden, and whose host is ahead of its device."""
    ranks = draw.randint(2, 8)
    kernel = draw.uniform(60, 250)
    kernels = draw.randint(4, 8)
    collective = draw.uniform(0.3, 0.7) * kernel * kernels
    return Job(
        ranks=ranks, steps=draw.randint(3, 5), layers=draw.randint(8, 24), kernels=kernels, kernel=kernel,
        host=draw.uniform(8, min(30, kernel / 2)), collective=collective, overlap=True, jitter=0.04,
        elements=int(0.55 * 300e9 * collective * 1e-6 / (2 * (ranks - 1) / ranks) / 2),
        skew=tuple(draw.uniform(-500, 500) for _ in range(ranks)),
    )  # fmt: skip


def slow_rank(draw: random.Random) -> tuple[AnyJob, AnyJob]:
    """One rank's kernels take longer."""
    job = base(draw)
    return job.without(compute_of={draw.randrange(job.ranks): draw.uniform(1.2, 2)}), job


def slow_host(draw: random.Random) -> tuple[AnyJob, AnyJob]:
    """One rank's host launches late."""
    job = base(draw)
    late = draw.uniform(1.5, 3) * job.kernel / job.host
    return job.without(host_of={draw.randrange(job.ranks): late}), job


def data_stall(draw: random.Random) -> tuple[AnyJob, AnyJob]:
    """Every step waits for the loader, beyond what the device has queued."""
    job = base(draw)
    step = job.layers * job.kernels * job.kernel
    return job.without(data=draw.uniform(1.1, 1.6) * step), job


def sync(draw: random.Random) -> tuple[AnyJob, AnyJob]:
    """The host waits for the device in every layer."""
    job = base(draw).without(host=draw.uniform(20, 30))
    return job.without(sync=True), job


def tiny(draw: random.Random) -> tuple[AnyJob, AnyJob]:
    """Kernels shorter than their launches; without the fault, a graph launches them."""
    job = base(draw).without(kernel=draw.uniform(3, 7), kernels=30, host=draw.uniform(15, 35), collective=40.0)
    return job, job.without(host=0.5)


def slow_link(draw: random.Random) -> tuple[AnyJob, AnyJob]:
    """Collectives take many times what their link allows."""
    job = base(draw)
    return job.without(collective=draw.uniform(6, 20) * job.collective), job


def lost_overlap(draw: random.Random) -> tuple[AnyJob, AnyJob]:
    """Collectives that could hide behind the next layer's kernels hold them up."""
    job = base(draw)
    return job.without(overlap=False), job


def stages(draw: random.Random) -> tuple[AnyJob, AnyJob]:
    """One stage of a pipeline has more work than the others."""
    count, each, more = draw.randint(2, 6), draw.randint(6, 12), draw.randint(1, 2)
    kernels = [each] * count
    kernels[draw.randrange(count)] += more * count
    equal = PipelineJob(
        kernels_of=(each + more,) * count,
        micro_batches=draw.randint(4, 8) * count, kernel=draw.uniform(60, 250), jitter=0.04,
    )  # fmt: skip
    return PipelineJob(tuple(kernels), equal.micro_batches, kernel=equal.kernel, jitter=0.04), equal


def clean(draw: random.Random) -> tuple[AnyJob, AnyJob]:
    """Nothing planted."""
    job = base(draw)
    return job, job


FAULTS: dict[str, tuple[Callable[[random.Random], tuple[AnyJob, AnyJob]], tuple[str, ...], str]] = {
    "clean": (clean, (), "p50"),
    "slow rank": (slow_rank, ("straggler",), "p50"),
    "slow host of a rank": (slow_host, ("straggler",), "p50"),
    "data stall": (data_stall, ("data",), "p90"),
    "host sync every layer": (sync, ("sync",), "p90"),
    "tiny kernels": (tiny, ("short kernels", "host"), "p90"),
    "unbalanced stages": (stages, ("stages",), "p50"),
    "slow link": (slow_link, ("link",), "p50"),
    "lost overlap": (lost_overlap, ("communication",), "p90"),
}


def main() -> int:
    """All kinds, a table, and whether the aims are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=25, help="of each kind")
    parser.add_argument("--only", choices=FAULTS, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="folder of the result")
    options = parser.parse_args()
    result = Result("planted-jobs", "Faults planted in generated jobs", facts(), options.out)
    result.say(facts_text(result.data["facts"]))
    cases: dict[str, list[dict[str, Any]]] = {}
    for kind in [options.only] if options.only else FAULTS:
        cases[kind] = [case(kind, f"{options.seed} {kind} {number}") for number in range(options.jobs)]
        result.put("cases", cases)
    result.say(text(cases))
    result.close()
    return 0 if all(met(kind, some) for kind, some in cases.items()) else 1


def case(kind: str, seed: str) -> dict[str, Any]:
    """One job: its first cause, what it promised, and the truth, in percent."""
    make, causes, promise = FAULTS[kind]
    broken, fixed = make(random.Random(seed))
    with tempfile.TemporaryDirectory(prefix="scalewright-jobs-") as folder:
        took = length_of(broken, Path(folder))
        verdicts = answer(read_ranks(sorted(Path(folder).iterdir())))["verdicts"]
    first = verdicts[0] if verdicts else None
    true = 100 * (1 - length_of(fixed) / took)
    promised = first["gain_pct"][promise] if first else None
    right = (first["cause"] if first else "") in causes if causes else first is None
    near = promised is not None and abs(promised - true) <= NEAR * abs(true)
    causes_found = [verdict["cause"] for verdict in verdicts]
    return {"seed": seed, "causes": causes_found, "promised": promised, "true": true, "right": right, "near": near}


def length_of(job: AnyJob, folder: Path | None = None) -> float:
    """Its microseconds; writes its traces where a folder is given."""
    if isinstance(job, PipelineJob):
        return write_pipeline(job, folder) if folder else simulate_pipeline(job)[1]
    return write(job, folder) if folder else simulate(job)[1]


def met(kind: str, cases: list[dict[str, Any]]) -> bool:
    """Whether a kind's aims are met."""
    right = sum(entry["right"] for entry in cases) / len(cases)
    return right >= FIRST and (kind == "clean" or statistics.median(errors(cases)) <= NEAR)


def errors(cases: list[dict[str, Any]]) -> list[float]:
    """Of the promise, as a part of the truth, where the cause was right."""
    return [abs(entry["promised"] / entry["true"] - 1) for entry in cases if entry["right"] and entry["true"]] or [1.0]


def text(cases: dict[str, list[dict[str, Any]]]) -> str:
    """A row for each kind."""
    rows = []
    for kind, some in cases.items():
        off = errors(some) if kind != "clean" else []
        rows.append([
            kind, " or ".join(FAULTS[kind][1]) or "no verdict",
            f"{sum(x['right'] for x in some)} of {len(some)}",
            FAULTS[kind][2] if off else "",
            f"{sum(x['near'] for x in some)} of {len(some)}" if off else "",
            f"{100 * statistics.median(off):.1f}" if off else "", f"{100 * max(off):.1f}" if off else "",
        ])  # fmt: skip
    right = sum(x["right"] for group in cases.values() for x in group)
    near = sum(x["near"] for kind, some in cases.items() for x in some if kind != "clean")
    count = sum(len(group) for group in cases.values())
    faulty = count - len(cases.get("clean", []))
    heads = ["planted", "first cause", "right", "promise", "gain within 10%", "median error, %", "largest, %"]
    return "\n".join([
        f"The cause first in {right} of {count}, the promised gain within 10% of the true one in {near} of "
        f"{faulty}.", "", table(heads, rows),
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
