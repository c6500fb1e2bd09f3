"""`scalewright bench WHAT`: what this hardware really does, and a cluster profile of it for `plan`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import Device, Force, Json, argument, check_device, choice, flag, option
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.spec.errors import UserError

Processes = Annotated[int, flag("Processes, unless torchrun or srun started them.", min=1)]


def collectives(
    processes: Processes = 2,
    kinds: Annotated[str, option("NAME,...", "Collectives; default all six.")] = "",
    min_bytes: Annotated[int, flag("The smallest message; sizes double from it.", min=4)] = 1024,
    max_bytes: Annotated[int, flag("The largest message.", min=4)] = 4 << 20,
    iterations: Annotated[int, flag("Timed repetitions of each.", min=3)] = 20,
    warmup: Annotated[int, flag("Repetitions before those.", min=0)] = 5,
    group: Annotated[int | None, flag("Ranks of a group; default all.", min=2)] = None,
    stride: Annotated[int, flag("Ranks between neighbours of a group.", min=1)] = 1,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Messages between processes, as nccl-tests do.

    Times and bandwidths in its conventions. Every buffer's numbers are compared with what they should be;
    exit code 1 when one is wrong.

    \b
    scalewright bench collectives --processes 4
    scalewright bench collectives --processes 4 --kinds all_reduce --group 2 --stride 2
    torchrun --nproc-per-node 8 -m scalewright bench collectives --device cuda
    """
    from scalewright.bench.collectives import CollectivesJob
    from scalewright.cli.bench import run_collectives, show_collectives

    names = tuple(name.strip().replace("-", "_") for name in kinds.split(",") if name.strip())
    job = CollectivesJob(
        **({"kinds": names} if names else {}), least_bytes=min_bytes, most_bytes=max_bytes,
        iterations=iterations, warmup=warmup, device=device, group=group, stride=stride,
    )  # fmt: skip
    with only_answer(json):
        answer = run_collectives(job, processes)
    if answer is None:  # another rank prints
        return
    print_json(answer) if json else show_collectives(answer)
    if any(row["wrong"] for row in answer["rows"]):
        raise typer.Exit(1)


def pairs(
    processes: Processes = 2,
    bytes: Annotated[int, flag("The message that two ranks exchange.", min=4)] = 1 << 20,
    iterations: Annotated[int, flag("Timed repetitions of each.", min=3)] = 5,
    rounds: Annotated[int, flag("At most; every rank has one pair in each.", min=1)] = 64,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Every pair of ranks: the slow rank, host or link.

    Exit code 1 when a number arrived wrong or something is slow.

    \b
    scalewright bench pairs --processes 4
    torchrun --nproc-per-node 8 -m scalewright bench pairs --device cuda --bytes 67108864
    """
    from scalewright.bench.pairs import PairsJob
    from scalewright.cli.bench import run_pairs, show_pairs

    job = PairsJob(bytes=bytes, iterations=iterations, rounds=rounds, device=device)
    with only_answer(json):
        answer = run_pairs(job, processes)
    if answer is None:  # another rank prints
        return
    print_json(answer) if json else show_pairs(answer)
    if answer["slow"] or any(row["wrong"] for row in answer["rows"]):
        raise typer.Exit(1)


def matmul(
    model: Annotated[str, option("MODEL", "The shapes of a model's products; default squares.")] = "",
    tokens: Annotated[int, flag("Rows of a product, with --model.", min=1)] = 1024,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Rates of matrix products in every precision.

    \b
    scalewright bench matmul
    scalewright bench matmul --model tiny --tokens 512
    """
    from scalewright.bench.device import model_shapes, products, squares
    from scalewright.spec.presets import load_model_spec

    shapes = model_shapes(load_model_spec(model), tokens) if model else {}
    check_device(device)
    _answer(lambda: products(shapes, device) if model else squares(device), "products", device, json)


def memory(device: Device = "cpu", json: Json = False) -> None:
    """Bandwidth of copies and triads, in and beyond caches.

    \b
    scalewright bench memory
    """
    from scalewright.bench.device import memory as measure

    check_device(device)
    _answer(lambda: measure(device), "memory", device, json)


def storage(
    folder: Annotated[Path, option("DIR", "Where checkpoints would go.")] = Path(),
    size: Annotated[int, flag("Size of the file, then removed.", "--bytes", min=1)] = 1 << 28,
    json: Json = False,
) -> None:
    """Write and read a file of a checkpoint's size.

    From the page cache, and beyond it.

    \b
    scalewright bench storage --folder runs
    """
    from scalewright.bench.storage import storage as measure

    _answer(lambda: measure(folder, size), "storage", "storage", json)


def kernels(
    precision: Annotated[str, choice("precision", ("fp32", "bf16"), "What they compute in.")] = "fp32",
    json: Json = False,
) -> None:
    """A step's operators beside this CPU's roofs.

    \b
    scalewright bench kernels
    """
    from scalewright.bench.device import kernels as measure

    _answer(lambda: measure(precision), "kernels", "cpu", json)


def step(
    source: Annotated[str, argument("RUN.yaml|MODEL", "A run file, or a model's name.")],
    overrides: Annotated[list[str] | None, argument("KEY=VALUE", "Keys to set, such as layout.tp=2.")] = None,
    steps: Annotated[int, flag("Steps to train; the first three aren't timed.", min=4)] = 13,
    json: Json = False,
) -> None:
    """A real training step, beside its prediction.

    The trainer itself on a run file, or on a model with random tokens.

    \b
    scalewright bench step tiny
    scalewright bench step run.yaml layout.devices=2 layout.tp=2
    """
    from scalewright.cli.bench import run_step, show_step

    with only_answer(json):
        answer = run_step(source, tuple(overrides or ()), steps)
    if answer is None:  # another rank prints
        return
    print_json(answer) if json else show_step(answer)


def serve(
    source: Annotated[str, argument("MODEL", "A run's folder, a checkpoint or a Hugging Face folder.")],
    out: Annotated[
        Path | None, option("FILE", "Write what was measured there: `inference --measured` takes it.")
    ] = None,
    seconds: Annotated[float, flag("Of its steps.", min=1.0)] = 20.0,
    kv_memory: Annotated[
        float | None, option("GIB", "Memory for keys and values, as of `serve`.", "--kv-memory", min=0.0)
    ] = None,
    max_concurrency: Annotated[int, flag("Requests that run at once.", min=1, max=96)] = 32,
    force: Force = False,
    json: Json = False,
) -> None:
    """What steps of our own server take, for inference.

    Random requests run in an engine of `serve`; each part of a step gets its seconds by a fit.

    \b
    scalewright bench serve runs/mine --out served.yaml
    scalewright inference runs/mine --cluster local --measured served.yaml --rate 2
    """
    from scalewright.cli.bench import measure_server, show_server

    with only_answer(json):
        answer = measure_server(source, out, seconds, kv_memory, max_concurrency, force)
    print_json(answer) if json else show_server(answer, out)


def everything(
    out: Annotated[Path, option("FILE", "The cluster profile to write.")],
    processes: Processes = 2,
    iterations: Annotated[int, flag("Timed repetitions of each message.", min=3)] = 20,
    force: Force = False,
    json: Json = False,
) -> None:
    """A cluster profile of this machine, for plan.

    \b
    scalewright bench all --processes 2 --out here.yaml
    scalewright plan tiny --cluster here.yaml --devices 2 --seq-len 128 --global-batch 8
    """
    from scalewright.cli.bench import profile_machine, show_collectives, show_rates

    with only_answer(json):
        answer = profile_machine(processes, out, iterations, force)
    if json:
        print_json(answer)
        return
    show_rates(answer["device"])
    if answer["messages"]:
        print()
        show_collectives(answer["messages"])
    print(f"\nthe profile is {answer['profile']}: plan and predict take it as --cluster {answer['profile']}")


def calibrate(
    runs: Annotated[
        list[Path], argument("RUN_DIR|LOG...", "Folders that train wrote; with --fit other trainers' logs.")
    ],
    cluster: Annotated[str, option("CLUSTER", "The profile to correct; with --fit any cluster.")],
    out: Annotated[Path | None, option("FILE", "Where to write the corrected one.")] = None,
    fit: Annotated[
        bool, flag("Fit the planner's constants to the logs of a trainer on this cluster.", "--fit")
    ] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Correct a cluster profile by runs or logs, and score it on those left out.

    \b
    scalewright calibrate runs/* --cluster here.yaml --out better.yaml
    scalewright calibrate logs/*.log --cluster dgx-h100 --fit --out ours.yaml
    """
    from scalewright.cli.bench import calibrate_by_logs, calibrate_profile, show_calibration, show_fit
    from scalewright.spec.common.files import check_replaceable

    if out is not None:
        check_replaceable(out, force)
    files = [str(path) for path in runs if path.is_file()]
    if files and not fit:
        raise UserError("this is a log, not a run's folder", files[0], "add --fit to learn from logs")
    if fit and len(files) < len(runs):
        raise UserError("--fit learns from logs, and this isn't a file", str(runs[0]), "give log files alone")
    with only_answer(json), working("predicting"):
        answer = (calibrate_by_logs if fit else calibrate_profile)(runs, cluster, out, force)
    if json:
        print_json(answer)
    else:
        show_fit(answer) if fit else show_calibration(answer)


def _answer(measure: Callable[[], Iterator[dict[str, object]]], what: str, device: str, json: bool) -> None:
    from scalewright.cli.bench import rows_of, show_rates

    with only_answer(json):
        rows = rows_of(measure(), what)
    print_json({"device": device, "rows": rows}) if json else show_rates(rows)
