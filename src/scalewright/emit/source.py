"""What is emitted: a run file, or the best layout of a plan that `plan --json` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalewright.emit.settings import Settings, settings_of
from scalewright.spec.base import parse_yaml, read_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec, apply_override

DATA = "data"  # a plan has none: a name to be replaced


def load_settings(path: str | Path, overrides: Sequence[str] = ()) -> Settings:
    """The settings of a run file or a plan, with `key=value` overrides; raises UserError."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise UserError(
            "it holds no keys and values", str(path), "give a run file, or what `plan --json` printed"
        )
    assumed: list[str] = []
    if "best" in data and "evaluated" in data:
        data, assumed = _of_plan(data, str(path))
    for override in overrides:
        apply_override(data, override)
    run = RunSpec.parse(data, where=str(path))
    settings = settings_of(run)
    settings.assumed += assumed
    return settings


def _of_plan(plan: dict[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    """The best layout of a plan as a run."""
    if not plan["best"]:
        raise UserError("no layout of this plan fits", where, "plan with more devices, or a smaller batch")
    written = parse_yaml(plan["run_yaml"], where) if plan.get("run_yaml") else {}
    layout = {key: value for key, value in plan["best"][0]["layout"].items() if key != "dp"}
    run = {
        "name": written.get("name", "plan"),
        "model": written.get("model", plan["model"]),
        "layout": layout,
        "data": {"train": DATA, "seq_len": plan["seq_len"]},
    }
    return run, ["data, optimizer and steps are defaults, as a plan has none: set them with key=value"]
