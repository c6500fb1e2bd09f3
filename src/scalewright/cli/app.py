"""The list of verbs: shown under headings, and forgiving about a misspelt one.

typer's own list is one long column, and its own message for a wrong verb doesn't name the right one.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from scalewright.spec.errors import unknown


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
            raise unknown("command", name, self.list_commands(ctx), parent, f"(`{parent} --help` lists them all)")
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> Any:
        """The group's own flags; off is False, as newer typer imports pydantic to turn None into that."""
        parameters = super().get_params(ctx)
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.default is None:
                parameter.default = False
        return parameters
