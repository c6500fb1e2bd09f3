"""What is emitted: a run file, or the best layout of a plan that `plan --json` wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalewright.emit.emitted import Emitted
from scalewright.emit.in_place import rewrite
from scalewright.emit.question import question
from scalewright.emit.serving.deployment import is_served
from scalewright.emit.serving.write import TARGETS
from scalewright.emit.settings import Settings, settings_of
from scalewright.emit.trainers import ALIASES
from scalewright.spec.base import parse_yaml, read_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.question import DATA
from scalewright.spec.run import RunSpec, apply_override

DEFAULTS = "data, optimizer and steps are defaults, as a plan has none: set them with key=value"


def load_settings(path: str | Path, overrides: Sequence[str] = ()) -> Settings:
    """The settings of a run file or a plan, with `key=value` overrides; raises UserError."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        how = "give a run file, what `plan --json` printed, or what `scalewright read FILE --out run.yaml` makes of it"
        raise UserError("it holds no keys and values", str(path), how)
    if is_served(data):
        raise UserError(
            "it is an answer of `inference`: a model that is served", str(path), f"emit {' or '.join(TARGETS)}"
        )
    if "step_time_s" in data and "layout" in data:
        how = "give what `plan --json` printed: it has the whole run; --near and --fix hold a layout"
        raise UserError("it is the answer of `predict`, which has no run", str(path), how)
    assumed: list[str] = []
    if "best" in data and "evaluated" in data:
        data, assumed = _of_plan(data, str(path))
    for override in overrides:
        apply_override(data, override)
    run = RunSpec.parse(data, where=str(path))
    settings = settings_of(run)
    settings.assumed += assumed
    return settings


def in_own_file(path: str | Path, trainer: str, emitted: Emitted) -> Emitted:
    """A plan's run in the file that it was asked of, where that is of the same trainer.

    The whole file of the emitter, with the reason, where that file has gone or can't be edited in place.
    """
    plan = read_yaml(path)
    asked = plan.get("from") if isinstance(plan, dict) else None
    if not asked or asked["trainer"] != ALIASES.get(trainer, trainer):
        return emitted
    model = plan["run"]["model"]
    try:
        source = question(asked["source"], model if isinstance(model, str) else None)
        rewritten = rewrite(source, Layout.parse(_layout(plan)))
    except UserError as error:
        return _anew(emitted, asked["source"], str(error))
    if rewritten.why is not None:
        return _anew(emitted, asked["source"], rewritten.why)
    return replace(emitted, files=rewritten.files, assumed=rewritten.notes)


def _anew(emitted: Emitted, source: str, why: str) -> Emitted:
    return replace(emitted, assumed=(*emitted.assumed, f"the whole file, in place of {source}: {why}"))


def _layout(plan: Mapping[str, Any]) -> dict[str, object]:
    return {key: value for key, value in plan["best"][0]["layout"].items() if key != "dp"}


def _of_plan(plan: Mapping[str, Any], where: str) -> tuple[dict[str, object], list[str]]:
    if not plan["best"]:
        raise UserError("no layout of this plan fits", where, "plan with more devices, or a smaller batch")
    layout = _layout(plan)
    if "run" not in plan:  # of a release before 0.2
        written = parse_yaml(plan["run_yaml"], where) if plan.get("run_yaml") else {}
        data = {"train": DATA, "seq_len": plan["seq_len"]}
        run = {"name": written.get("name", "plan"), "model": written.get("model", plan["model"]), "data": data}
        return {**run, "layout": layout}, [DEFAULTS]
    run = {**plan["run"], "layout": layout}
    named = run["data"].get("train") != DATA
    if run.keys() <= {"version", "name", "model", "cluster", "layout", "data"} and not named:
        return run, [DEFAULTS]
    return run, [] if named else ["data.train is a placeholder: set it with data.train=FOLDER"]
