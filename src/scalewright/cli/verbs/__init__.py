"""Every verb, under its heading in the help. A verb's file holds its flags; the work is done elsewhere.

typer's own list is one long column, and its own message for a misspelt verb doesn't name the right one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from scalewright.cli.verbs import bench, budget, presets
from scalewright.cli.verbs.accept import accept
from scalewright.cli.verbs.chat import chat
from scalewright.cli.verbs.checkpoint import diff_checkpoints, list_checkpoints, prune_checkpoints, verify_checkpoints
from scalewright.cli.verbs.compare import compare
from scalewright.cli.verbs.convert import convert
from scalewright.cli.verbs.demo import demo
from scalewright.cli.verbs.diagnose import diagnose
from scalewright.cli.verbs.doctor import doctor
from scalewright.cli.verbs.emit import emit
from scalewright.cli.verbs.evaluate import evaluate
from scalewright.cli.verbs.explain import explain
from scalewright.cli.verbs.explore import explore
from scalewright.cli.verbs.generate import generate
from scalewright.cli.verbs.goodput import goodput
from scalewright.cli.verbs.inference import inference
from scalewright.cli.verbs.launch import launch
from scalewright.cli.verbs.parity import parity
from scalewright.cli.verbs.plan import plan
from scalewright.cli.verbs.predict import predict
from scalewright.cli.verbs.prepare import prepare
from scalewright.cli.verbs.read import read
from scalewright.cli.verbs.record import record
from scalewright.cli.verbs.report import report
from scalewright.cli.verbs.score import score
from scalewright.cli.verbs.serve import serve
from scalewright.cli.verbs.sweep import sweep
from scalewright.cli.verbs.train import train
from scalewright.cli.words import LIKE, table
from scalewright.spec.errors import UserError, unknown

Verb = Callable[..., None]
Group = tuple[str | Verb, dict[str, Verb]]  # its help, or what it does alone; and its verbs
VERBS: dict[str, dict[str, Verb | Group]] = {  # by heading, in the order in which a newcomer meets them
    "Start here": {
        "demo": demo,
        "explain": explain,
        "doctor": doctor,
        "presets": (
            "The models and clusters known by name.",
            {"models": presets.models, "clusters": presets.clusters, "new": presets.new},
        ),
    },
    "Plan": {
        "plan": plan, "predict": predict, "explore": explore,
        "budget": (budget.budget, {"ladder": budget.ladder, "fit": budget.fit}),
        "goodput": goodput, "inference": inference, "score": score,
    },
    "Measure": {
        "bench": ("The speed that this hardware really reaches.", {
            "matmul": bench.matmul, "memory": bench.memory, "collectives": bench.collectives, "pairs": bench.pairs,
            "storage": bench.storage, "kernels": bench.kernels, "step": bench.step, "all": bench.everything,
        }),
        "accept": accept,
        "calibrate": bench.calibrate,
    },
    "Diagnose": {"diagnose": diagnose, "record": record},
    "Train": {
        "prepare": prepare, "train": train, "sweep": sweep, "launch": launch,
        "checkpoint": ("What a run has saved, and whether it is sound.", {
            "ls": list_checkpoints, "verify": verify_checkpoints, "diff": diff_checkpoints, "prune": prune_checkpoints,
        }),
        "parity": parity,
    },
    "Other trainers": {"emit": emit, "read": read},
    "Use what was trained": {
        "compare": compare, "report": report, "evaluate": evaluate, "generate": generate, "chat": chat, "serve": serve,
        "convert": convert,
    },
}  # fmt: skip


class Verbs(TyperGroup):
    """A group of commands whose help has one heading per `rich_help_panel`, in order of registration."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the verbs of each heading with the first sentence of their help."""
        headings: dict[str, list[tuple[str, Any]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                panel = getattr(command, "rich_help_panel", None)
                headings.setdefault(panel if isinstance(panel, str) else "Commands", []).append((name, command))
        longest = max((len(name) for verbs in headings.values() for name, _ in verbs), default=0)
        for heading, verbs in headings.items():
            with formatter.section(heading):
                room = max(20, formatter.width - 6 - longest)
                formatter.write_dl(
                    [(f"{name:<{longest}}", command.get_short_help_str(room)) for name, command in verbs]
                )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names; raises UserError with the nearest names."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            parent = ctx.command_path
            if ctx.parent is None and (here := table("commands").get(name.lower())):
                raise UserError(f"no command '{name}'", parent, here)
            see = f"`{parent} --help` lists them all"
            raise unknown("command", name, self.list_commands(ctx), parent, see, LIKE)
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> Any:
        """The group's own flags; off is False, as newer typer imports pydantic to turn None into that."""
        parameters = super().get_params(ctx)
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.default is None:
                parameter.default = False
        return parameters


def register(app: typer.Typer) -> None:
    """Adds every verb to the application."""
    for panel, verbs in VERBS.items():
        for name, verb in verbs.items():
            if not isinstance(verb, tuple):
                app.command(name, rich_help_panel=panel)(verb)
                continue
            own = verb[0] if callable(verb[0]) else None
            keys = {"invoke_without_command": True, "callback": own} if own else {"help": verb[0]}
            group = typer.Typer(cls=Verbs, rich_markup_mode=None, no_args_is_help=own is None, **keys)
            for member, function in verb[1].items():
                group.command(member)(function)
            app.add_typer(group, name=name, rich_help_panel=panel)
