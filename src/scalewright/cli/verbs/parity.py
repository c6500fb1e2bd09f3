"""`scalewright parity RUN.yaml [key=value ...]`: does this layout compute what one device computes?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.options import Json, Overrides, RunFile, choice, flag
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.cli.terminal import print_table
from scalewright.cli.verbs.train import missing_run

if TYPE_CHECKING:
    from scalewright.parity.result import Parity


def parity(
    run: RunFile,
    overrides: Overrides = None,
    steps: Annotated[int, flag("Steps to compare.", min=1)] = 10,
    device: Annotated[str, choice("device", ("cpu", "cuda"), "CPU processes, or the GPUs here.")] = "cpu",
    tolerance: Annotated[float | None, flag("Largest relative deviation; default 1e-5 in fp32.", min=0)] = None,
    json: Json = False,
) -> None:
    """Compare a layout with one device, step by step, in fp32.

    \b
    scalewright parity run.yaml layout.devices=8 layout.tp=2 layout.pp=2
    scalewright parity run.yaml layout.precision=bf16 --device cuda
    """
    if not run.is_file():
        raise missing_run(run)
    with only_answer(json), working("loading PyTorch") as tell:
        from scalewright.parity.compare import parity as compare
        from scalewright.spec.run import load_run

        spec = load_run(run, overrides or [])
        tell("comparing")
        result = compare(spec, steps=steps, device=device, tolerance=tolerance, tell=tell)
    print_json(result) if json else show(result)
    if not result.ok:
        raise typer.Exit(1)


def show(result: Parity) -> None:
    print(f"layout     {axes(result.layout)}")
    print(f"control    {axes(result.control)}")
    for change in result.shrunk:
        print(f"shrunk     {change}")
    for note in result.notes:
        print(f"note       {note}")
    print()
    rows = [
        (number, f"{step.loss_rel:.1e}", f"{step.grad_norm_rel:.1e}")
        for number, step in enumerate(result.deviation.steps, 1)
    ]
    print_table(("step", "loss", "gradient norm"), rows)
    weights = result.deviation
    print(f"\nweights    {weights.weights_rel:.1e} (under SGD; most in {weights.worst_tensor or 'none'})")
    print(f"worst      {result.worst:.1e}")
    print(f"tolerance  {result.tolerance:.0e} ({result.reason})")
    if result.noise is not None:
        print(f"rounding   {result.noise.worst:.1e}: one device against itself, micro-batches cut otherwise")
        print("           (ten times that is allowed in the steps where it is seen)")
    print("equal" if result.ok else "NOT EQUAL: this layout doesn't compute what one device computes")


def axes(layout: dict[str, object]) -> str:
    """A layout in a line: its keys that differ from the default."""
    from scalewright.spec.layout import Layout

    plain = Layout().dump()
    kept = ("devices", "micro_batch", "global_batch", "precision")
    parts = [f"{key} {value}" for key, value in layout.items() if value != plain[key] or key in kept]
    return ", ".join(parts)
