"""Every verb, under its heading in the help. A verb's file holds its flags; the work is done elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import typer

from scalewright.cli.app import Verbs
from scalewright.cli.verbs import bench, presets
from scalewright.cli.verbs.accept import accept
from scalewright.cli.verbs.checkpoint import diff_checkpoints, list_checkpoints, prune_checkpoints, verify_checkpoints
from scalewright.cli.verbs.compare import compare
from scalewright.cli.verbs.convert import convert
from scalewright.cli.verbs.demo import demo
from scalewright.cli.verbs.diagnose import diagnose
from scalewright.cli.verbs.doctor import doctor
from scalewright.cli.verbs.emit import emit
from scalewright.cli.verbs.evaluate import evaluate
from scalewright.cli.verbs.generate import generate
from scalewright.cli.verbs.launch import launch
from scalewright.cli.verbs.parity import parity
from scalewright.cli.verbs.plan import plan
from scalewright.cli.verbs.predict import predict
from scalewright.cli.verbs.prepare import prepare
from scalewright.cli.verbs.read import read
from scalewright.cli.verbs.record import record
from scalewright.cli.verbs.report import report
from scalewright.cli.verbs.score import score
from scalewright.cli.verbs.sweep import sweep
from scalewright.cli.verbs.train import train

Verb = Callable[..., None]


def register(app: typer.Typer) -> None:
    """Adds every verb to the application, in the order in which a newcomer meets them."""
    app.command("demo", rich_help_panel="Start here")(demo)
    app.command("doctor", rich_help_panel="Start here")(doctor)
    known: dict[str, Verb] = {"models": presets.models, "clusters": presets.clusters, "new": presets.new}
    group = _group("The models and clusters known by name.", known)
    app.add_typer(group, name="presets", rich_help_panel="Start here")
    app.command("plan", rich_help_panel="Plan")(plan)
    app.command("predict", rich_help_panel="Plan")(predict)
    app.command("score", rich_help_panel="Plan")(score)
    timed: dict[str, Verb] = {
        "matmul": bench.matmul, "memory": bench.memory, "collectives": bench.collectives, "pairs": bench.pairs,
        "storage": bench.storage, "kernels": bench.kernels, "step": bench.step, "all": bench.everything,
    }  # fmt: skip
    group = _group("The speed that this hardware really reaches.", timed)
    app.add_typer(group, name="bench", rich_help_panel="Measure")
    app.command("accept", rich_help_panel="Measure")(accept)
    app.command("calibrate", rich_help_panel="Measure")(bench.calibrate)
    app.command("diagnose", rich_help_panel="Diagnose")(diagnose)
    app.command("record", rich_help_panel="Diagnose")(record)
    app.command("prepare", rich_help_panel="Train")(prepare)
    app.command("train", rich_help_panel="Train")(train)
    app.command("sweep", rich_help_panel="Train")(sweep)
    app.command("launch", rich_help_panel="Train")(launch)
    saved: dict[str, Verb] = {
        "ls": list_checkpoints,
        "verify": verify_checkpoints,
        "diff": diff_checkpoints,
        "prune": prune_checkpoints,
    }
    group = _group("What a run has saved, and whether it is sound.", saved)
    app.add_typer(group, name="checkpoint", rich_help_panel="Train")
    app.command("parity", rich_help_panel="Train")(parity)
    app.command("emit", rich_help_panel="Other trainers")(emit)
    app.command("read", rich_help_panel="Other trainers")(read)
    app.command("compare", rich_help_panel="Use what was trained")(compare)
    app.command("report", rich_help_panel="Use what was trained")(report)
    app.command("evaluate", rich_help_panel="Use what was trained")(evaluate)
    app.command("generate", rich_help_panel="Use what was trained")(generate)
    app.command("convert", rich_help_panel="Use what was trained")(convert)


def _group(help: str, verbs: dict[str, Verb]) -> typer.Typer:
    group = typer.Typer(cls=Verbs, rich_markup_mode=None, no_args_is_help=True, help=help)
    for name, verb in verbs.items():
        group.command(name)(verb)
    return group
