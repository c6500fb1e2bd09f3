"""`scalewright train RUN.yaml [key=value ...]`: trains, or goes on training, what a run file describes.

A dry run shows the memory of each pipeline stage's fullest rank, what is sent, and whether it fits:

    ranks        held   states  activations  buffers  other  peak      like stages share a row
    axis         collective   of ranks   count   bytes          like collectives share a row, least to most
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from scalewright.cli.options import Force, Json, Overrides, RunFile, flag
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.cli.terminal import print_table
from scalewright.spec.common.formatting import count, counted
from scalewright.spec.errors import RunError, Stopped, UserError, nearest


def train(
    run: RunFile,
    overrides: Overrides = None,
    steps: Annotated[int | None, flag("Stop at this step; a later call goes on.", min=0)] = None,
    simulate: Annotated[bool, flag("Take CPU processes for devices that aren't here.", "--simulate")] = False,
    dry_run: Annotated[
        bool, flag("Show what each rank would hold, send and compute; needs no devices.", "--dry-run")
    ] = False,
    force: Force = False,
    memory_check: Annotated[
        bool, flag("Refuse a run that needs more memory than is free here.", "--memory-check/--no-memory-check")
    ] = True,
    json: Json = False,
) -> None:
    """Train what a run file describes, or go on with it.

    \b
    scalewright train run.yaml
    scalewright train run.yaml layout.devices=4 optimizer.lr=3e-4
    scalewright train run.yaml layout.devices=512 layout.tp=8 --dry-run
    """
    if not run.is_file():
        raise missing_run(run)
    if dry_run:
        rehearse(run, overrides or [], json)
        return
    from scalewright.api import train as train_run
    from scalewright.launch.rank import find_context
    from scalewright.spec.run import load_run

    with only_answer(json):
        try:
            result = train_run(
                run, tuple(overrides or ()), steps=steps, simulate=simulate, quiet=json, memory_check=memory_check,
                force=force,
            )  # fmt: skip
        except Stopped:
            if find_context().rank:  # all ranks stop alike, and rank 0 prints it
                raise typer.Exit(Stopped.exit_code) from None
            raise
        except RunError:
            folder = load_run(run, overrides or []).folder if find_context().rank == 0 else None
            if folder is not None and (folder / "metrics.jsonl").exists():  # its report shows what went wrong
                write_page(folder)
            raise
        if find_context().rank == 0:
            write_page(Path(result.out_dir), force)
    if json and find_context().rank == 0:  # under torchrun every rank is here; one answers
        print_json(result.dump())


def rehearse(run: Path, overrides: list[str], json: bool) -> None:
    with only_answer(json), working("playing one rank of every kind"):
        from scalewright.dry_run.dry_run import dry_run

        document = dry_run(run, overrides).dump()
    print_json(document) if json else show_dry_run(document)


def write_page(folder: Path, force: bool = False) -> None:
    """The run's report.html, and a copy for MLflow; a run that trained well doesn't fail for its report."""
    from scalewright.launch.settings import tracking_variables
    from scalewright.report.run import write_report
    from scalewright.track.attach import attach

    try:
        with working("writing the report"):
            page = write_report(folder, force=force)
    except (UserError, RunError) as error:
        print(f"no report: {error}", file=sys.stderr)
        return
    attach(folder, [page], tracking_variables())


def missing_run(run: Path) -> UserError:
    """The error for a run file that isn't there, with the files beside it that have nearly its name."""
    if "=" in run.name:
        return UserError("RUN.yaml is missing", "scalewright train", f"write `scalewright train RUN.yaml {run}`")
    if run.is_dir():
        return UserError("this is a folder, not a run file", str(run), f"name a file, such as {run / 'run.yaml'}")
    places = (run.parent if run.parent.is_dir() else Path(), Path())
    files = {str(path) for place in places for path in place.glob("*.y*ml") if path.suffix in (".yaml", ".yml")}
    near = nearest(str(run), files) or sorted(files)[:3]
    meant = "did you mean " + " or ".join(f"'{name}'" for name in near) + "?"
    how = meant if near else "check the path; `scalewright demo` writes a run file to start from"
    return UserError("no such file", str(run), how)


STATES = ("parameters", "gradients", "optimizer")
KINDS = ("activations", "buffers", "other", "peak")
Group = Mapping[str, Any]


def show_dry_run(document: Group) -> None:
    """Prints what `DryRun.dump()` gives as tables that fit 80 columns."""
    layout, groups = document["layout"], document["groups"]
    axes = [f"{key} {layout[key]}" for key in ("pp", "dp_replicate", "tp", "cp", "ep") if layout[key] > 1]
    split = ", ".join([counted(document["world"], "ranks"), *axes, f"zero_stage {layout['zero_stage']}"])
    print(f"{split}; one rank's step:\n")
    size, unit = _unit(max(group["memory_bytes"]["peak"] for group in groups))
    columns = ("ranks", "held", "FLOPs", "states", *KINDS)
    print_table(columns, _memory_rows(groups, size), f"{unit} at the moment of the peak")
    print()
    if traffic := _traffic_rows(groups):
        print_table(("axis", "collective", "of ranks", "count", "bytes"), traffic)
    else:
        print("nothing is sent")
    if diloco := document.get("diloco"):
        print(f"\nand every {counted(diloco['inner_steps'], 'steps').removeprefix('1 ')}, between islands:\n")
        outer = _traffic_rows(groups, "outer_collectives")
        print_table(("axis", "collective", "of ranks", "count", "bytes"), outer)
    if line := _joined(document["process_groups"]):
        print(line)
    for note in document["notes"]:
        print(f"note: {note}")
    print(f"\n{document['verdict']['words']}")


def _joined(groups: dict[str, int]) -> str:
    """What joining the ranks takes; nothing for one rank."""
    if not groups["groups"]:
        return ""
    parts = [f"process groups: {groups['groups']:,} ({groups['most']} a rank)"]
    parts += [f"{counted(groups['splits'], 'splits')} of NCCL"] if groups["splits"] else []
    return "; ".join([*parts, f"{counted(groups['sockets'], 'files')} of Gloo a rank"])


def _memory_rows(groups: Sequence[Group], size: int) -> list[tuple[str, ...]]:
    """The fullest rank of every pipeline stage; stages whose numbers read the same share a row."""
    rows: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for stage in sorted({group["coords"]["pp"] for group in groups}):
        members = [group for group in groups if group["coords"]["pp"] == stage]
        fullest = max(members, key=lambda group: group["memory_bytes"]["peak"])
        rows[_numbers(fullest, size)].append(stage)
    return [("all" if len(rows) == 1 else _stages(numbers), *cells) for cells, numbers in rows.items()]


def _numbers(group: Group, size: int) -> tuple[str, ...]:
    memory = {**group["memory_at_peak_bytes"], "peak": group["memory_bytes"]["peak"]}
    states = sum(memory[kind] for kind in STATES)
    flops = f"{group['flops']:.3g}".replace("e+", "e")
    held = (states, *(memory[kind] for kind in KINDS))
    return (count(group["params_local"]), flops, *(f"{part / size:.2f}" for part in held))


def _stages(numbers: Sequence[int]) -> str:
    """`pp 0`, `pp 1-6`, `pp 1 3 5`."""
    first, last = numbers[0], numbers[-1]
    in_a_row = last > first and last - first + 1 == len(numbers)
    return f"pp {first}-{last}" if in_a_row else "pp " + " ".join(map(str, numbers))


def _traffic_rows(groups: Sequence[Group], of: str = "collectives") -> list[tuple[str, ...]]:
    """Every kind of collective once, with the least and the most that a rank has of it."""
    sent: defaultdict[tuple[str, str, int], list[Group]] = defaultdict(list)
    for group in groups:
        for collective in group.get(of, []):
            sent[collective["axis"], collective["kind"], collective["group_size"]].append(collective)
    rows: list[tuple[str, ...]] = []
    for (axis, kind, ranks), collectives in sent.items():
        counts, sizes = ([collective[name] for collective in collectives] for name in ("count", "bytes"))
        rows.append((axis, kind, str(ranks), _range(counts, str), _range(sizes, _bytes)))
    return rows


def _range(numbers: Sequence[int], words: Callable[[int], str]) -> str:
    low, high = words(min(numbers)), words(max(numbers))
    return low if low == high else f"{low} to {high}"


def _bytes(count: int) -> str:
    size, unit = _unit(count)
    return f"{count / size:.4g} {unit}"


def _unit(count: int) -> tuple[int, str]:
    """The largest unit of which this is at least one."""
    units = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
    return next(((size, unit) for size, unit in units if count >= size), (1, "B"))
