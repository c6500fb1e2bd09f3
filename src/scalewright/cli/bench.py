"""The benchmarks' work behind their verbs, and their tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewright.cli.options import check_device
from scalewright.cli.output import print, progress, working
from scalewright.cli.terminal import print_table
from scalewright.spec.common.formatting import against, count, counted, metric, share, short_time
from scalewright.spec.errors import UserError

FEWEST_LOGS = 4  # two to fit, two to score
Row = Mapping[str, Any]
PATIENCE_S = 480.0  # of a probe that was asked for outright: on a busy machine it takes minutes

if TYPE_CHECKING:
    from scalewright.bench.collectives import CollectivesJob
    from scalewright.bench.pairs import PairsJob
    from scalewright.spec.hardware.cluster import ClusterSpec


def run_collectives(job: CollectivesJob, processes: int, at: Callable[[str], None] | None = None) -> Row | None:
    """The answer of a started world's rank 0 or of local processes; None on the other ranks. `at`: a `working`'s."""
    from scalewright.bench.collectives import measure
    from scalewright.bench.world import PRELOAD
    from scalewright.launch.local import run_local
    from scalewright.launch.rank import find_context
    from scalewright.launch.rendezvous import with_address

    context = with_address(find_context())
    world = processes if context.alone else context.world
    job.check(world)
    check_device(job.device)
    if not context.alone:
        with working("messages", context.rank == 0):
            answer = measure(context, job)
        return answer if context.rank == 0 else None
    total, done = len(job.kinds) * len(job.sizes(job.group or world)), itertools.count(1)
    within = progress("messages") if at is None else nullcontext(lambda done, of: at(f"messages, {done} of {of}"))
    with within as tell:

        def advance(kind: str, row: Row) -> bool:
            tell(next(done), total)
            return False

        local: Row = run_local(measure, (job,), world, preload=PRELOAD, on_row=advance, import_main=False)
    return local


def run_pairs(job: PairsJob, processes: int) -> Row | None:
    """The answer of a started world's rank 0 or of local processes; None on the other ranks."""
    from scalewright.bench.pairs import measure
    from scalewright.bench.world import PRELOAD
    from scalewright.launch.local import run_local
    from scalewright.launch.rank import find_context
    from scalewright.launch.rendezvous import with_address

    context = with_address(find_context())
    check_device(job.device)
    if not context.alone:
        with working("pairs", context.rank == 0):
            answer = measure(context, job)
        return answer if context.rank == 0 else None
    with working("pairs"):
        local: Row = run_local(measure, (job,), processes, preload=PRELOAD, import_main=False)
    return local


def show_pairs(answer: Mapping[str, Any]) -> None:
    hosts = "" if answer["hosts"] == 1 else f" of {answer['hosts']} hosts"
    size = metric(answer["bytes"], "B")
    print(f"{answer['ranks']} processes{hosts} on {answer['device']}, {size} both ways\n")
    lines = [
        (line["where"], line["pairs"], _rate(line["slowest"]), _rate(line["usual"]), _rate(line["fastest"]))
        for line in answer["summary"]
    ]
    print_table(("where", "pairs", "slowest", "usual", "fastest"), lines)
    wrong = sum(row["wrong"] for row in answer["rows"])
    print(f"\n{wrong:,} wrong numbers" if wrong else "\nevery number arrived")
    print("\n".join(line["words"] for line in answer["slow"]) or "no rank, host or link is slower than the rest")


def show_collectives(answer: Mapping[str, Any]) -> None:
    groups = "" if answer["group"] == answer["ranks"] else f", groups of {answer['group']}"
    apart = f", {answer['stride']} apart" if answer["stride"] > 1 else ""
    print(f"{answer['ranks']} processes on {answer['device']} over {answer['backend']}{groups}{apart}\n")
    rows = []
    for row in answer["rows"]:
        rates = (metric(row[f"{kind}_bytes_per_s"], "B/s") for kind in ("algbw", "busbw"))
        rows.append((row["kind"], row["bytes"], short_time(row["time_s"]), *rates, row["wrong"]))
    print_table(("collective", "bytes", "time", "algorithm", "bus", "wrong"), rows)
    if not answer["fits"]:
        return
    print("\ntime = start + bus bytes / rate, each with its 90% interval")
    lines = []
    for fit in answer["fits"]:
        start, rate = short_time(fit["start_s"]), _rate(fit["bytes_per_s"])
        start_interval = " to ".join(map(short_time, fit["start_interval_s"]))
        interval = " to ".join(map(_rate, fit["interval_bytes_per_s"]))
        lines.append((fit["kind"], start, start_interval, rate, interval, f"{fit['error']:.0%}"))
    print_table(("collective", "start", "interval", "rate", "interval", "median error"), lines)


def rows_of(rows: Iterable[Row], what: str, at: Callable[[str], None] | None = None) -> list[Row]:
    """The rows, while a terminal shows which is the latest; `at`: of the `working` that does."""
    done = []
    with working(what) if at is None else nullcontext(at) as tell:
        for row in rows:
            done.append(row)
            tell(f"{what}: {row['what']} done")
    return done


def show_rates(rows: Sequence[Row]) -> None:
    """A table of rates; columns that no row has are left out."""
    columns: dict[str, Callable[[Row], str | None]] = {
        "what": lambda row: str(row["what"]),
        "precision": lambda row: row.get("precision"),
        "shape": lambda row: " x ".join(map(str, row["shape"])) if "shape" in row else None,
        "bytes": lambda row: metric(row["bytes"], "B") if "bytes" in row else None,
        "time": lambda row: short_time(row["time_s"]) if "time_s" in row else None,
        "rate": lambda row: _rate_of(row, ""),
        "best": lambda row: _rate_of(row, "best_"),
        "of the roof": lambda row: share(row["share_of_roof"]) if "share_of_roof" in row else None,
    }
    kept = [name for name, cell in columns.items() if any(cell(row) is not None for row in rows)]
    print_table(kept, [[columns[name](row) for name in kept] for row in rows])


def _rate_of(row: Mapping[str, Any], prefix: str) -> str | None:
    units = ((f"{prefix}flops_per_s", "FLOP/s"), (f"{prefix}bytes_per_s", "B/s"))
    return next((metric(row[key], unit) for key, unit in units if key in row), None)


def run_step(source: str, overrides: tuple[str, ...], steps: int) -> Mapping[str, Any] | None:
    """The answer of `bench.step`; None on ranks other than 0 of a started world."""
    from scalewright.api import train
    from scalewright.bench.step import step

    with working("training"):
        return step(train, source, overrides, steps)


def show_step(answer: Mapping[str, Any]) -> None:
    time, expected = answer["step_time_s"], answer["predicted_step_time_s"]
    band = f"{short_time(time['p10'])} to {short_time(time['p90'])}"
    print(f"a step takes {short_time(time['p50'])} ({band}, {counted(answer['steps'], 'steps')})", end="")
    print(f", predicted {short_time(expected)} ({against(time['p50'], expected)})" if expected else "")
    mfu = "" if answer["mfu"] is None else f", MFU {share(answer['mfu'])}"
    print(f"{metric(answer['tokens_per_s'], 'tokens/s')}{mfu}\n")
    parts = sorted(answer["breakdown_s"].items(), key=lambda part: -part[1])
    lines = [(name, short_time(seconds), share(seconds / time["p50"])) for name, seconds in parts if seconds]
    print_table(("part", "time", "share of the step"), lines)


def profile_machine(processes: int, out: Path, iterations: int, force: bool) -> dict[str, Any]:
    """Times everything that a profile holds, and writes it to `out`."""
    import os

    from scalewright.bench.collectives import CollectivesJob
    from scalewright.bench.device import memory, need_torch, squares
    from scalewright.bench.profile import make_profile, provenance
    from scalewright.machine.local import find_cluster, timed_cluster
    from scalewright.machine.timings import cpu_timings
    from scalewright.spec.base import to_yaml
    from scalewright.spec.common.files import check_replaceable, write_signed
    from scalewright.track.environment import environment

    check_replaceable(out, force)
    with working("loading PyTorch") as at:  # one for all, so that nothing between two is silent
        torch = need_torch()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        seen = environment()
        if device == "cuda":
            at("this machine's devices")
            cluster = find_cluster("local")
        else:
            at("kernels and messages of every process")
            cluster = timed_cluster(processes, cpu_timings(processes, fresh=True, patience=PATIENCE_S))
        timed = cluster.measured is not None  # in all processes at once: a device alone would be faster
        products = [] if timed else rows_of(squares(device), "products", at)
        passes = [] if timed else rows_of(memory(device), "memory", at)
        job = CollectivesJob(kinds=("all_reduce",), iterations=iterations, device=device)
        messages = run_collectives(job, processes, at) if processes > 1 else None
    profile = make_profile(
        cluster, messages=messages, products=products, memory=passes, when=seen["time"], software=provenance(seen, load)
    )
    write_signed(out, to_yaml(profile.dump()), force)
    measured = profile.measured.matmul_flops if profile.measured else {}
    peaks = measured or {name: profile.device.peak(name) or 0.0 for name in profile.device.precisions}
    rates = [
        *({"what": "product", "precision": name, "flops_per_s": rate} for name, rate in peaks.items() if rate),
        {"what": "memory", "bytes_per_s": profile.effective_levels()[0].bytes_per_s},
    ]
    return {"profile": str(out), "processes": processes, "device": rates, "messages": messages}


def measure_server(
    source: str, out: Path | None, seconds: float, kv_memory: float | None, rows: int, force: bool
) -> dict[str, Any]:
    """The measured steps of a model's engine, written to `out` where one is given."""
    import os

    from scalewright.bench.profile import provenance
    from scalewright.serve.measure import measure
    from scalewright.serve.open import open_engine
    from scalewright.spec.base import to_yaml
    from scalewright.spec.common.files import check_replaceable, write_signed
    from scalewright.track.environment import environment

    if out is not None:
        check_replaceable(out, force)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    with working("loading the model") as at:
        engine = open_engine(source, kv_memory_gib=kv_memory, max_concurrency=rows)
        seen = environment()
        measured = measure(engine, seconds, at)
    answer = measured.replace(when=seen["time"], software=provenance(seen, load)).dump()
    if out is not None:
        write_signed(out, to_yaml(answer), force)
    return answer


def show_server(answer: Mapping[str, Any], out: Path | None) -> None:
    print(f"{answer['model']}, {count(answer['params'])} parameters, {counted(answer['threads'], 'threads')}\n")
    print_table(
        ("a step's", "takes"), [(name, short_time(value)) for name, value in answer["seconds"].items() if value]
    )
    print(f"\n{answer['steps']:,} steps, of which those that the fit didn't see are {answer['error']:.0%} off (median)")
    if out is not None:
        print(f"scalewright inference MODEL --cluster local --measured {out} --rate 1")


def calibrate_profile(folders: Sequence[Path], source: str, out: Path | None, force: bool) -> dict[str, Any]:
    """Corrects the profile at `source` by run folders; writes it to `out` where one is given."""
    from scalewright.bench.correct import calibrate
    from scalewright.plan.predict import price as price_question
    from scalewright.spec.base import to_yaml
    from scalewright.spec.common.files import write_signed
    from scalewright.spec.hardware.cluster import load_cluster
    from scalewright.spec.model import ModelSpec
    from scalewright.spec.question import Question
    from scalewright.spec.run import DataSpec, load_run

    cluster = load_cluster(source)

    def price(folder: Path, place: ClusterSpec) -> float:
        run = load_run(folder / "run.yaml", [])
        if not isinstance(run.model, (str, ModelSpec)) or not isinstance(run.data, DataSpec):
            raise UserError("the model or data is the user's own", str(folder), "leave this run out")
        timings = place.measured.timings if place.measured else None
        if timings and timings.processes != run.layout.devices:
            here = f"{counted(run.layout.devices, 'processes')}, and the profile was timed with {timings.processes}"
            how = f"leave it out, or `scalewright bench all --processes {run.layout.devices} --out FILE`"
            raise UserError(f"this run has {here}", str(folder), how)
        return price_question(Question(run, place)).step_time_s

    answer, corrected = calibrate(folders, cluster, price)
    if out is not None:
        write_signed(out, to_yaml(corrected.dump()), force)
        answer["profile"] = str(out)
    return answer


def calibrate_by_logs(logs: Sequence[Path], source: str, out: Path | None, force: bool) -> dict[str, Any]:
    """Fits the planner's constants to other trainers' logs on the cluster `source`; writes it to `out`."""
    from scalewright.diagnose.logs.expected import table_row
    from scalewright.diagnose.logs.given import Given
    from scalewright.diagnose.logs.log import read_logs
    from scalewright.diagnose.logs.times import usual
    from scalewright.plan.fitting.calibrate import changed, held_out_error, profile
    from scalewright.plan.fitting.runs import runs_of
    from scalewright.spec.base import to_yaml
    from scalewright.spec.common.files import write_signed
    from scalewright.spec.hardware.cluster import load_cluster

    cluster, rows, left_out = load_cluster(source), [], []
    for path in logs:
        try:
            log = read_logs([path])
        except OSError as error:
            raise UserError(f"it can't be read: {error.strerror}", str(path), "give a log file") from None
        row, why = table_row(log, usual(log.steps, log.facts.get("mean_step_s")), Given(cluster=source))
        if row is None:
            left_out.append({"log": str(path), "why": why})
        else:
            rows.append(row | {"id": str(path), "source": log.framework or "logs"})
    runs = runs_of(rows)
    left_out += [{"log": refusal["id"], "why": refusal["error"]} for refusal in runs.refused]
    if int(runs.plain.sum()) < FEWEST_LOGS:
        reasons = "".join(f"\n  {entry['log']}: {entry['why']}" for entry in left_out)
        how = f"give {FEWEST_LOGS} or more that state model, layout and batch: half of them score the fit"
        raise UserError(f"{counted(int(runs.plain.sum()), 'logs')} to learn from{reasons}", "LOG", how)
    fitted = changed(profile(runs))
    answer = {
        "logs": [str(row["id"]) for row in runs.rows],
        "left_out": left_out,
        "held_out": held_out_error(runs, int(runs.plain.sum()) // 2),
        "constants": fitted,
    }
    if out is not None:
        measured = {**(cluster.measured.dump() if cluster.measured else {}), "constants": fitted}
        words = f"constants fitted to {counted(len(runs), 'logs')} of {', '.join(sorted(set(runs.source.tolist())))}"
        fitted_cluster = cluster.replace(measured=measured, notes=[*cluster.notes, words])
        write_signed(out, to_yaml(fitted_cluster.dump()), force)
        answer["profile"] = str(out)
    return answer


def show_fit(answer: Mapping[str, Any]) -> None:
    from scalewright.plan.constants import facts

    shipped = {fact.name: fact for fact in facts()}
    constants = answer["constants"].items()
    rows = [(name, f"{shipped[name].value:.4g}", f"{value:.4g}", shipped[name].unit) for name, value in constants]
    print_table(("constant", "shipped", "fitted", "unit"), rows) if rows else print("no constant changed")
    held = answer["held_out"]
    if held["rows"]:
        before, after = held["before_median_error_pct"], held["median_error_pct"]
        print(f"\nmedian error of {counted(held['rows'], 'logs')} left out, by a fit to the other "
              f"{held['fitted_on']}: {before:.0f}% before, {after:.0f}% after")  # fmt: skip
    for entry in answer["left_out"]:
        print(f"not used: {entry['log']}: {entry['why']}")
    if "profile" in answer:
        print(f"the corrected cluster is {answer['profile']}: plan and predict take it as --cluster")


def show_calibration(answer: Mapping[str, Any]) -> None:
    rows = []
    for row in answer["scored_on"]:
        measured, before, after = (row[f"{key}_s"] for key in ("measured", "before", "after"))
        errors = [(short_time(seconds), against(seconds, measured)) for seconds in (before, after)]
        rows.append((Path(row["run"]).name, short_time(measured), *errors[0], *errors[1]))
    print_table(("left out", "measured", "before", "error", "after", "error"), rows)
    fitted = len(answer["fitted_to"])
    before, after = answer["median_error_before"], answer["median_error_after"]
    print(f"\nmedian error of these, corrected by the other {fitted}: {before:.0%} before, {after:.0%} after")
    for name, factor in answer["factors"].items():
        low, high = answer["interval"][name]
        print(f"{name} take {factor:.2f} times what the profile has ({low:.2f} to {high:.2f}, by all runs)")
    if "profile" in answer:
        print(f"the corrected profile is {answer['profile']}")


def _rate(value: float | None) -> str:
    return "–" if value is None else metric(value, "B/s")
