"""`scalewright bench WHAT`: what this hardware really does, and a cluster profile of it for `plan`."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.options import Device, Json

Processes = Annotated[int, typer.Option(min=1, help="Processes, unless torchrun or srun started them.")]


def collectives(
    processes: Processes = 2,
    kinds: Annotated[str, typer.Option(metavar="NAME,...", help="Collectives; default all six.")] = "",
    min_bytes: Annotated[int, typer.Option(min=4, help="The smallest message; sizes double from it.")] = 1024,
    max_bytes: Annotated[int, typer.Option(min=4, help="The largest message.")] = 4 << 20,
    iterations: Annotated[int, typer.Option(min=3, help="Timed repetitions of each.")] = 20,
    warmup: Annotated[int, typer.Option(min=0, help="Repetitions before those.")] = 5,
    group: Annotated[int | None, typer.Option(min=2, help="Ranks of a group; default all.")] = None,
    stride: Annotated[int, typer.Option(min=1, help="Ranks between neighbours of a group.")] = 1,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Times and bandwidths of messages between processes, in nccl-tests' conventions.

    Every buffer's numbers are compared with what they should be; exit code 1 when one is wrong.

    \b
    scalewright bench collectives --processes 4
    scalewright bench collectives --processes 4 --kinds all_reduce --group 2 --stride 2
    torchrun --nproc-per-node 8 -m scalewright bench collectives --device cuda
    """
    from scalewright.bench.collectives import Job
    from scalewright.cli.bench import run_collectives, show_collectives
    from scalewright.cli.output import only_answer, print_json

    names = tuple(name.strip().replace("-", "_") for name in kinds.split(",") if name.strip())
    job = Job(
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
