"""`scalewright record -- COMMAND`: traces of some steps of any training on PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import argument, option
from scalewright.cli.output import print
from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import UserError


def record(
    command: Annotated[list[str], argument("COMMAND...", "The training, as you start it: torchrun train.py ...")],
    steps: Annotated[int, option("K", "Optimizer steps to trace.", min=1)] = 3,
    after: Annotated[int, option("N", "Optimizer steps before them.", min=1)] = 10,
    ranks: Annotated[str | None, option("R,R,...", "The ranks to trace; default: all.")] = None,
    out: Annotated[Path, option("DIR", "The folder for the traces.")] = Path("traces"),
) -> None:
    """Trace some steps of any training on PyTorch, without a change of its code.

    Works with python, torchrun, accelerate and deepspeed, for optimizers of torch.optim and all that are made
    from them. The command's own exit code is passed on.

    \b
    scalewright record -- python train.py
    scalewright record --steps 3 --after 20 -- torchrun --nproc-per-node 8 train.py --lr 3e-4
    scalewright record --ranks 0,7 --out traces/slow -- torchrun --nproc-per-node 8 train.py
    """
    from scalewright.launch.capture.command import capture as run

    result = run(command, steps, after, _ranks(ranks), out)
    if result.files:
        traces = counted(len(result.files), "traces") if len(result.files) > 1 else "a trace"
        print(f"{traces} of steps {after + 1} to {after + steps}: scalewright diagnose {out}", file=sys.stderr)
    if result.code:
        raise typer.Exit(result.code if result.code > 0 else 128 - result.code)


def _ranks(text: str | None) -> list[int] | None:
    if text is None:
        return None
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() for word in words):
        raise UserError(f"it is {text!r}", "--ranks", "give numbers with commas between them: --ranks 0,7")
    return [int(word) for word in words]
