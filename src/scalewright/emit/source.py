"""What is emitted: a run file, or the best layout of a plan that `plan --json` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalewright.emit.settings import Settings, settings_of
from scalewright.spec.base import parse_yaml, read_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.question import DATA
from scalewright.spec.run import RunSpec, apply_override

DEFAULTS = "data, optimizer and steps are defaults, as a plan has none: set them with key=value"


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
    """The run of a plan in its best layout."""
    if not plan["best"]:
        raise UserError("no layout of this plan fits", where, "plan with more devices, or a smaller batch")
    layout = {key: value for key, value in plan["best"][0]["layout"].items() if key != "dp"}
    if "run" not in plan:  # of a release before 0.2
        written = parse_yaml(plan["run_yaml"], where) if plan.get("run_yaml") else {}
        data = {"train": DATA, "seq_len": plan["seq_len"]}
        run = {
            "name": written.get("name", "plan"),
            "model": written.get("model", plan["model"]),
            "data": data,
        }
        return {**run, "layout": layout}, [DEFAULTS]
    run = {**plan["run"], "layout": layout}
    named = run["data"].get("train") != DATA
    if run.keys() <= {"version", "name", "model", "cluster", "layout", "data"} and not named:
        return run, [DEFAULTS]
    return run, [] if named else ["data.train is a placeholder: set it with data.train=FOLDER"]
