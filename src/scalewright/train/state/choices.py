"""The choices of a run's first start are kept when it resumes: `auto` and null then mean "as before".

    first start    precision: auto --measured--> fp32          saved with every checkpoint (state.json: run)
    resume         precision: auto --kept------> fp32          also if a measurement would now give bf16
                   precision: bf16 ------------> bf16          set by the user: a change, which is noted

A derived layout (sp, virtual_stages, zero_stage) is kept while the sizes that it is derived from stay.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from scalewright.checkpoint.format import checkpoints_at, committed, read_state
from scalewright.spec.base import read_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec

_DERIVED = ("sp", "virtual_stages", "zero_stage")
_SIZES = ("devices", "tp", "pp", "cp", "ep", "etp", "dp_replicate", "schedule", "offload")


def keep_choices(run: RunSpec) -> RunSpec:
    """The run with what its checkpoint's run had chosen, wherever the user leaves the choice open."""
    before = _earlier(run)
    if not before:
        return run
    layout, train = run.layout.dump(), run.train.dump()
    old_layout, old_train = before.get("layout", {}), before.get("train", {})
    if layout["precision"] == "auto":
        layout["precision"] = old_layout.get("precision", "auto")
    if all(layout[key] == old_layout.get(key, layout[key]) for key in _SIZES):
        for key in _DERIVED:
            if key not in run.layout.model_fields_set and old_layout.get(key) is not None:
                layout[key] = old_layout[key]
    if train["compile"] == "auto":
        train["compile"] = old_train.get("compile", "auto")
    device = before.get("device", "auto") if run.device == "auto" else run.device
    return run.replace(layout=layout, train=train, device=device)


def _earlier(run: RunSpec) -> dict[str, Any]:
    """The settings of the run that this one goes on from; {} for one that begins."""
    if run.resume == "never":
        return {}
    folders = committed(run.folder / "checkpoints")
    if not folders and run.resume != "auto":
        folders = checkpoints_at(Path(run.resume))
    for folder in folders:
        with suppress(UserError):  # a damaged save, which `find_origin` will pass, too
            settings = read_state(folder).get("run")
            if settings is None:  # an older release kept them in the run's folder alone
                settings = read_yaml(folder.parent.parent / "run.yaml")
            return settings if isinstance(settings, dict) else {}
    return {}
