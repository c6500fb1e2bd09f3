"""The loop on a real network: hosts that are namespaces joined by slow links.

    python comparisons/hosts.py                          as root, on Linux; 2 hosts of 2, then 4 of 1
    python comparisons/hosts.py --hosts 2 --most 1000    every layout that `train` takes
    python comparisons/hosts.py --quick                  a tiny model, three layouts, nothing kept
    python comparisons/hosts.py --again RESULT.json      the layouts of a result, priced by today's planner

    bench: kernels of all processes at once, collectives between the hosts ──► profile
    plan on the profile ──► every layout's predicted step ──► torchrun in each namespace ──► measured step
                                                               half of them: calibrate ──► the other half

Each process has a constant share of a core, in the probe of kernels as in the runs (harness/share.py).
Layouts run in an order of their own, and each is predicted before it runs. Without namespaces, or control
groups, it ends with what it lacks.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # one thread a process, here and below; read by import torch

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from harness.fabric import everywhere, finish, hosts, start
from harness.facts import facts, load_average
from harness.result import Result, facts_text, table
from harness.share import measured_share, shares
from loop import SEQ_LEN, TINY, Case, figures, name_of, spread

from scalewright.bench.collectives import Line, fit_line
from scalewright.bench.correct import calibrate, measured_step
from scalewright.machine.local import timed_cluster
from scalewright.machine.timings import probe
from scalewright.plan.predict import predict
from scalewright.spec.errors import UserError
from scalewright.spec.groups import COLLECTIVES
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.model import ModelSpec

MODEL: dict[str, Any] = {
    "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip
MODEL_OF_A_RUN = {"name": "hosts", "context": SEQ_LEN, **MODEL}
PROCESSES, BATCH = 4, 8
RATE, DELAY = 400e6 / 8, 1e-3  # bytes/s of a host's uplink, seconds
PROBE_S = 900.0
TOGETHER = 8  # layouts that the same processes train
KINDS = ("all_reduce", "all_gather")


@dataclass(frozen=True)
class Place:
    """Hosts, the words that start Python on one, and the part of a core that each process has."""

    names: list[str]
    python: list[str]
    share: float

    @property
    def each(self) -> int:
        """Processes of a host."""
        return PROCESSES // len(self.names)

    def everywhere(self, *command: str) -> str:
        """torchrun of such a command on all hosts; what its first process printed."""
        return everywhere(self.names, self.each, self.python, command, PROBE_S)


@dataclass(frozen=True)
class Timed:
    """A collective over a ring of `group` ranks that was timed; `sharing`: rings on a host's link at once."""

    kind: str
    group: int
    sharing: int
    bytes: float
    seconds: float

    @property
    def messages(self) -> int:
        """One after the other, of every rank."""
        return COLLECTIVES[self.kind].hops(self.group)

    @property
    def message(self) -> float:
        """Bytes on a host's link for each of them."""
        return self.bytes / self.group * self.sharing


def layouts(model: ModelSpec) -> Iterator[Layout]:
    """Every layout of these axes that `train` takes."""
    sizes = (1, 2, 4)
    for tp, pp, zero, micro_batch, schedule in product(sizes, sizes, range(4), (1, 2, 4, 8), ("1f1b", "zb-h1")):
        keys = {"devices": PROCESSES, "global_batch": BATCH, "precision": "fp32", "tp": tp, "pp": pp,
                "zero_stage": zero, "micro_batch": micro_batch, "schedule": schedule}  # fmt: skip
        if tp * pp > PROCESSES or (tp * pp == PROCESSES and zero) or (pp == 1 and schedule != "1f1b"):
            continue
        try:
            layout = Layout.parse(keys)
            check_layout(layout, model, SEQ_LEN, train=True)
        except UserError:
            continue
        yield layout


def main() -> None:
    """Both networks, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, choices=(2, 4), default=None, help="one of them alone")
    parser.add_argument("--most", type=int, default=24, help="layouts to run on each")
    parser.add_argument("--steps", type=int, default=8, help="of each run; the first three aren't timed")
    parser.add_argument("--mbit", type=float, default=RATE * 8e-6, help="of a host's uplink")
    parser.add_argument("--delay-ms", type=float, default=DELAY * 1e3, help="between any two hosts")
    parser.add_argument("--again", type=Path, metavar="RESULT.json", help="price what was measured again")
    parser.add_argument("--quick", action="store_true", help="little of everything, nothing kept")
    parser.add_argument("--out", type=Path, help="a folder for the result, instead of results/")
    options = parser.parse_args()
    if options.again:
        price_again(options.again, options.out)
        return
    if options.quick:
        options.hosts, options.most, options.steps = 2, 3, 6
    for count in [options.hosts] if options.hosts else (2, 4):
        with tempfile.TemporaryDirectory(prefix="scalewright-hosts-") as scratch:
            out = options.out or (Path(scratch) if options.quick else None)
            shape = f"{count}x{PROCESSES // count}"
            name = f"hosts-{shape}" + f"-{options.mbit:g}-mbit" * (options.mbit != RATE * 8e-6)
            result = Result(name, f"{count} hosts of {PROCESSES // count}", facts(), out)
            result.say("Hardware and versions:", "", facts_text(result.data["facts"]))
            fabric = hosts(count, options.mbit * 1e6 / 8, options.delay_ms / 1e3)
            with fabric as names, shares(PROCESSES) as python:
                place = Place(names, python, measured_share(python, PROCESSES))
                go_round(result, options, place, Path(scratch))
            result.close()


def price_again(path: Path, out: Path | None) -> None:
    """Predicts the layouts of a result on its own profile, and compares with what they took there."""
    before = json.loads(path.read_text())
    name = path.stem.split("-", 3)[3]  # without its date
    result = Result(f"{name}-priced-again", f"{before['title']}, priced again", facts(), out)
    result.say(
        f"Layouts, profile and measured steps are those of `{path.name}`, measured at commit "
        f"{before['facts']['source']['commit'][:8]}; the predictions are of this commit. Priced on:",
        "",
        facts_text(result.data["facts"]),
    )
    model, cluster = ModelSpec.parse(MODEL_OF_A_RUN), ClusterSpec.parse(before["cluster"])
    cases = {}
    for case, (keys, _) in before["cases"].items():
        layout = Layout.parse(keys)
        cases[case] = Case(case, layout, predict(model, cluster, layout, SEQ_LEN).step_time_s)
    measured = {name: before["measured"][name] for name in cases}
    for key in ("share", "link", "cluster"):
        result.put(key, before[key])
    result.put("measured", measured)
    result.put("cases", {name: [case.layout.dump(), case.predicted_s] for name, case in cases.items()})
    result.put("before", before["summary"])
    compare(result, cases)
    picture(result, cases)
    result.close()


def go_round(result: Result, options: argparse.Namespace, place: Place, folder: Path) -> None:
    """Bench, plan, run and compare."""
    shape = TINY if options.quick else MODEL
    model = ModelSpec.parse({**MODEL_OF_A_RUN, **shape})
    words = np.random.default_rng(0).integers(0, shape["vocab_size"], 100_000, dtype=np.uint16)
    np.save(folder / "tokens.npy", words)
    loads = [load_average()]
    line = link(bench(place, folder))
    cluster = profile(line, place)
    result.put("share", place.share)
    result.put("link", asdict(line))
    result.put("cluster", cluster.dump())

    def price(layout: Layout, on: ClusterSpec) -> float:
        return predict(model, on, layout, SEQ_LEN).step_time_s

    every = [Case(name_of(layout), layout, price(layout, cluster)) for layout in layouts(model)]
    cases = {case.name: case for case in spread(every, options.most)}
    folders: list[Path] = []
    for batch in batched(list(cases.values()), TOGETHER):
        folders += run(batch, model, folder, options.steps, place)
        result.put("measured", {path.name: measured_step(path) for path in folders})
        for case in batch:
            took = result.data["measured"][case.name]
            print(f"{case.name}: predicted {case.predicted_s:.3f} s, took {took:.3f} s", flush=True)
    loads.append(load_average())
    result.put("load_averages", loads)
    result.put("cases", {name: [case.layout.dump(), case.predicted_s] for name, case in cases.items()})
    show(result, cases, len(every), options, line)
    if len(folders) >= 8:
        answer, _ = calibrate(folders, cluster, lambda path, on: price(cases[path.name].layout, on))
        show_calibrated(result, answer)
    picture(result, cases)


def bench(place: Place, folder: Path) -> list[Timed]:
    """Collectives among kernels of all processes at once, and alone: of all, and of pairs between hosts."""
    words = [str(PROCESSES), "1", str(folder / "store"), "0.02", "fp32"]
    command = [*place.python, "-m", "scalewright.machine.ranks"]
    started = [
        start(place.names[rank // place.each], [*command, str(rank), *words], keep=rank == 0)
        for rank in range(PROCESSES)
    ]
    curves: list[dict[str, Any]] = json.loads(finish(started, PROBE_S).strip().splitlines()[-1])
    among = [
        Timed(curve["what"], PROCESSES, 1, size, seconds)
        for curve in curves
        if curve["what"] in KINDS
        for size, seconds in zip(curve["sizes"], curve["seconds"], strict=True)
    ]
    return among + alone(place, PROCESSES, 1, 1) + alone(place, 2, 2, place.each)


def alone(place: Place, group: int, stride: int, sharing: int) -> list[Timed]:
    """`scalewright bench collectives` of such groups, `sharing` of which cross each host's link at once."""
    command = ["-m", "scalewright", "bench", "collectives", "--kinds", ",".join(KINDS), "--min-bytes", "4096",
               "--group", str(group), "--stride", str(stride), "--iterations", "10", "--json"]  # fmt: skip
    rows = json.loads(place.everywhere(*command))["rows"]
    return [Timed(row["kind"], group, sharing, row["bytes"], row["time_s"]) for row in rows]


def link(timed: Sequence[Timed]) -> Line:
    """The start and rate of a message between hosts, by all rings whose messages they are."""
    line = fit_line([timing.message for timing in timed], [[timing.seconds / timing.messages] for timing in timed])
    assert line is not None  # more than two sizes
    return line


def profile(line: Line, place: Place) -> ClusterSpec:
    """The processes' kernels and messages, timed by all of them at once, and the links between hosts."""
    timings = probe(PROCESSES, 1, patience=PROBE_S, python=place.python)
    timings = timings.replace(share=place.share, cores=PROCESSES)
    machine = timed_cluster(PROCESSES, timings)
    device, *inner = (level.dump() for level in machine.levels)
    inside = [{**level, "size": place.each} for level in inner] if place.each > 1 else []
    fabric = {"name": "fabric", "kind": "ethernet", "size": None, "bytes_per_s": line.bytes_per_s,
              "latency_s": line.start_s, "source": "measured"}  # fmt: skip
    keys = {"devices_per_node": place.each, "nodes": len(place.names), "levels": [device, *inside, fabric]}
    return machine.replace(name="hosts", **keys)


def run(cases: Sequence[Case], model: ModelSpec, folder: Path, steps: int, place: Place) -> list[Path]:
    """Trains layouts for some steps on all hosts, one after the other; their run folders."""
    files = []
    for case in cases:
        keys = {
            "model": model.dump(), "out_dir": str(folder / case.name), "device": "cpu",
            "layout": case.layout.dump(), "data": {"train": str(folder / "tokens.npy"), "seq_len": SEQ_LEN},
            "train": {"steps": steps}, "checkpoint": {"every": 0, "at_end": False},
        }  # fmt: skip
        files.append(folder / f"{case.name}.json")
        files[-1].write_text(json.dumps(keys))
    place.everywhere("-m", "harness.in_turn", *map(str, files))
    return [folder / case.name for case in cases]


def batched(cases: list[Case], count: int) -> Iterator[list[Case]]:
    """So many at a time."""
    return (cases[start : start + count] for start in range(0, len(cases), count))


def show(result: Result, cases: dict[str, Case], every: int, options: argparse.Namespace, line: Line) -> None:
    """The table of all that ran, and how far off the predictions were."""
    result.say(
        f"Each process has {result.data['share']:.1%} of a core at all times. "
        f"Links of {options.mbit:g} Mbit/s and {options.delay_ms:g} ms, "
        "without TCP's slow start after idle; messages of all-reduces and all-gathers have "
        f"{(line.bytes_per_s or 0) * 8e-6:.0f} Mbit/s and {line.start_s * 1e3:.2f} ms a hop. "
        f"{len(cases)} of {every} layouts were run; milliseconds a step."
    )
    compare(result, cases)


def compare(result: Result, cases: dict[str, Case]) -> None:
    """A row a layout, predicted fastest first, and the three figures that have aims."""
    measured: dict[str, float] = result.data["measured"]
    rows = [
        [f"`{name}`", f"{case.predicted_s * 1e3:.0f}", f"{measured[name] * 1e3:.0f}",
         f"{case.predicted_s / measured[name] - 1:+.0%}"]
        for name, case in sorted(cases.items(), key=lambda pair: pair[1].predicted_s)
    ]  # fmt: skip
    result.say(table(["layout", "predicted", "measured", "error"], rows))
    summary = figures([case.predicted_s for case in cases.values()], list(measured.values()))
    result.put("summary", summary)
    result.say(
        f"Median error {summary['median_error']:.0%} (aim 10%), Kendall tau {summary['tau']:.2f} (aim 0.8); "
        f"the layout predicted fastest takes {summary['regret']:.1%} longer than the fastest (aim 5%)."
    )


def show_calibrated(result: Result, answer: dict[str, Any]) -> None:
    """The left-out half before and after."""
    left_out = answer["scored_on"]
    truth = [row["measured_s"] for row in left_out]
    before, after = (figures([row[key] for row in left_out], truth) for key in ("before_s", "after_s"))
    result.put("calibrated", {"before": before, "after": after, "factors": answer["factors"]})
    result.say(
        f"Calibrated on {len(answer['fitted_to'])} of them, the other {len(left_out)} are predicted with a "
        f"median error of {after['median_error']:.0%} instead of {before['median_error']:.0%} "
        f"(tau {after['tau']:.2f} instead of {before['tau']:.2f})."
    )


def picture(result: Result, cases: dict[str, Case]) -> None:
    """Predicted over measured; left out where there is no matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    measured: dict[str, float] = result.data["measured"]
    figure, axes = pyplot.subplots(figsize=(5.5, 5))
    both = np.array([[measured[name], case.predicted_s] for name, case in cases.items()])
    ends = [both.min() * 0.8, both.max() * 1.25]
    axes.fill_between(ends, [0.9 * e for e in ends], [1.1 * e for e in ends], alpha=0.15, label="within 10%")
    for axis, marker in (("tp", "s"), ("pp", "^"), ("dp", "o")):
        some = [name for name, case in cases.items() if kind(case.layout) == axis]
        axes.scatter([measured[n] for n in some], [cases[n].predicted_s for n in some], marker=marker, label=axis)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured, s", ylabel="predicted, s")
    for line in (axes.xaxis, axes.yaxis):
        line.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        line.set_major_formatter("{x:g}")
        line.set_minor_formatter(ticker.NullFormatter())
    axes.set_title(result.data["title"])
    axes.legend()
    figure.tight_layout()
    figure.savefig(result.json.with_suffix(".png"), dpi=110)


def kind(layout: Layout) -> str:
    """The axis that a layout is known by."""
    return "tp" if layout.tp > 1 else "pp" if layout.pp > 1 else "dp"


if __name__ == "__main__":
    main()
