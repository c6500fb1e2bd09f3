"""Every verb, under its heading in the help. A verb's file holds its flags; the work is done elsewhere.

typer's own list is one long column, its own message for a misspelt verb doesn't name the right one, and it takes every
verb's annotations apart before it runs one of them: here that is done for the verb that is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from inspect import cleandoc
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from scalewright.cli.verbs import bench, budget, presets
from scalewright.cli.verbs.accept import accept
from scalewright.cli.verbs.chaos import chaos
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
from scalewright.cli.verbs.lab import lab
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
        "lab": lab,
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
            "storage": bench.storage, "kernels": bench.kernels, "step": bench.step, "serve": bench.serve,
            "all": bench.everything,
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
        "parity": parity, "chaos": chaos,
    },
    "Other trainers": {"emit": emit, "read": read},
    "Use what was trained": {
        "compare": compare, "report": report, "evaluate": evaluate, "generate": generate, "chat": chat, "serve": serve,
        "convert": convert,
    },
}  # fmt: skip


class Verbs(TyperGroup):
    """A group of commands with the nearest name for a misspelt one."""

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


class Built(Mapping[str, Any]):
    """The commands of VERBS by name, each built when it is asked for."""

    def __init__(self) -> None:
        self.verbs = {name: verb for verbs in VERBS.values() for name, verb in verbs.items()}
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = typer.main.get_command(_typer(name, self.verbs[name]))
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        return name in self.verbs

    def __iter__(self) -> Iterator[str]:
        return iter(self.verbs)

    def __len__(self) -> int:
        return len(self.verbs)


class Root(Verbs):
    """The command of all verbs; its help has one heading for each of VERBS'."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)
        self.commands: Any = Built()

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names in order, none of them built."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the verbs of each heading with the first sentence of their help."""
        longest = max(len(name) for name in self.commands)
        room = max(20, formatter.width - 6 - longest)
        for heading, verbs in VERBS.items():
            with formatter.section(heading):
                formatter.write_dl([
                    (f"{name:<{longest}}", TyperCommand(name, help=_help(verb)).get_short_help_str(room))
                    for name, verb in verbs.items()
                ])  # fmt: skip


def _help(verb: Verb | Group) -> str:
    text = verb[0] if isinstance(verb, tuple) else verb
    return text if isinstance(text, str) else cleandoc(text.__doc__ or "")


def _typer(name: str, verb: Verb | Group) -> typer.Typer:
    plain: dict[str, Any] = {"rich_markup_mode": None, "add_completion": False}
    if not isinstance(verb, tuple):
        app = typer.Typer(**plain)
        app.command(name)(verb)
        return app
    own = verb[0] if callable(verb[0]) else None
    keys = {"invoke_without_command": True, "callback": own} if own else {"help": verb[0]}
    app = typer.Typer(cls=Verbs, name=name, no_args_is_help=own is None, **plain, **keys)
    for member, function in verb[1].items():
        app.command(member)(function)
    return app
