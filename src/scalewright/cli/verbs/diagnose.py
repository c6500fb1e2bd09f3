"""`scalewright diagnose PATH...`: where the time of a run went, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import Json


def diagnose(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Traces of PyTorch's profiler or Nsight Systems, one a rank, or their folder; flight "
            "recorder dumps; memory snapshots; a log of training, a run's folder; `example`, "
            "`example-log`.",
        ),
    ],
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The model, where a log doesn't state it.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", "-c", metavar="CLUSTER", help="Likewise, the cluster or device."),
    ] = None,
    layout: Annotated[
        str | None, typer.Option(metavar="KEY=VALUE,...", help="Likewise, of the layout: devices=64,tp=8.")
    ] = None,
    seq_len: Annotated[int | None, typer.Option(help="Likewise, tokens of a sequence.")] = None,
    json: Json = False,
) -> None:
    """Where the time of a run went, what bounds it, and what would help.

    Traces of several ranks are matched, so that waiting for a slow rank is told from transfer. From flight
    recorder dumps: the rank that a hang began with. From a memory snapshot: the peak and its owners. Needs no
    torch, and runs nothing that is in a file.

    \b
    scalewright diagnose example            # four ranks, made up
    scalewright diagnose trace.json.gz
    scalewright diagnose traces/            # a file a rank
    scalewright diagnose nccl.log           # of a run with NCCL_DEBUG=INFO
    scalewright diagnose train.log --cluster dgx-h100       # of Megatron-LM, torchtitan, NeMo, ...
    """
    from scalewright.api import diagnose as ask
    from scalewright.cli.output import only_answer, print_json, working
    from scalewright.cli.verbs.predict import layout_keys

    with only_answer(json), working("reading"):
        answer = ask(*paths, model=model, cluster=cluster, layout=layout_keys({}, layout), seq_len=seq_len)
    if json:
        print_json(answer)
        return
    from scalewright.cli.diagnosis import show

    show(answer)
