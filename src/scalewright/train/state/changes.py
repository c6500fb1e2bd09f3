"""The differences between a run and the checkpoint that it resumes from, and which are allowed.

    meant to change     lr, steps, layout, batch, mixture weights, settings    one `changed` event, one line
    breaks the promise  data, tokenizer, seed, model                           an error without allow_changes

Data are compared by what they hold: a folder that was moved is the same data (`data/dataset.py`). The choices of a
run's first start are kept when it resumes: `auto` and null then mean "as before".

    first start    precision: auto --measured--> fp32          saved with every checkpoint (state.json: run)
    resume         precision: auto --kept------> fp32          also if a measurement would now give bf16
                   precision: bf16 ------------> bf16          set by the user: a change, which is noted

A derived layout (sp, virtual_stages, zero_stage) is kept while the sizes that it is derived from stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scalewright.checkpoint.format import checkpoints_at, committed, read_state
from scalewright.checkpoint.store.bring import bring, newest_heads
from scalewright.data.dataset import Dataset, TokenDataset, file_identity
from scalewright.spec.base import read_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.run import DataSpec, RunSpec

PROMISES = ("data", "tokenizer", "seed", "model")
# Keys that name a run or locate its state; they are no part of it.
_UNCOMPARED = frozenset(
    {"version", "name", "out_dir", "resume", "init", "environment", "allow_changes", "launch", "elastic"}
)
_SHOWN = 6  # changes on the console; events.jsonl has all


@dataclass(frozen=True)
class Changes:
    """Old and new value by dotted key; and of the promises that don't hold, in words."""

    values: dict[str, list[Any]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def line(self, step: int) -> str:
        """All in one line."""
        shown = [f"{key} {_short(old)} -> {_short(new)}" for key, (old, new) in self.values.items()]
        more = [f"{len(shown) - _SHOWN} more (events.jsonl)"] if len(shown) > _SHOWN else []
        return f"changed since step {step}: " + ", ".join([*shown[:_SHOWN], *more])


def run_settings(run: RunSpec, tokens: float | None) -> dict[str, object]:
    """A resolved run as a checkpoint keeps it for the next comparison; `tokens` as they were asked for."""
    data = run.dump()
    if tokens is not None:
        data["train"] = {**data["train"], "tokens": tokens, "steps": None}
    return {key: value for key, value in data.items() if key not in ("environment", "allow_changes")}


def data_settings(dataset: Dataset, run: RunSpec, samples: int) -> dict[str, object]:
    """The data's part of a checkpoint: sources' fingerprints and places, the mixture, the tokenizer."""
    path = dataset.tokenizer_path
    state: dict[str, object] = {"tokenizer": file_identity(path) if path is not None else None}
    state.update(asdict(dataset.ends))
    inner = getattr(dataset, "inner", dataset)
    if isinstance(inner, TokenDataset) and isinstance(run.data, DataSpec):
        paths = zip(inner.numbers, (source.path for source in run.data.train), strict=True)
        state.update(inner.positions.dump())
        state.update(paths={str(number): path for number, path in paths}, samples=inner.given(samples))
    return state


def find_changes(
    state: Mapping[str, Any], settings: Mapping[str, Any], data: Mapping[str, Any], model: Mapping[str, Any]
) -> Changes:
    """The differences of a checkpoint (`state`, its manifest's `model`) and a run (`settings`, `data`)."""
    changes = Changes()
    before = state.get("run", {})
    _compare_model(changes, model, settings["model"])
    if (seed := state.get("seed", settings["seed"])) != settings["seed"]:
        changes.values["seed"] = [seed, settings["seed"]]
        changes.broken["seed"] = f"it was saved with seed {seed}, and has {settings['seed']} now"
    if before:
        _compare_data(changes, before["data"], settings["data"])
        skipped = _UNCOMPARED | {"model", "seed", "data"}
        for key in settings:
            if key in before and key not in skipped:
                changes.values.update(_differences(key, before[key], settings[key]))
    _compare_sources(changes, state.get("data", {}), data)
    return changes


def check_promises(changes: Changes, allowed: tuple[str, ...], where: Path) -> None:
    """Raises UserError for a broken promise that isn't allowed; nothing has been written yet."""
    broken = [key for key in PROMISES if key in changes.broken]
    if refused := [changes.broken[key] for key in broken if key not in allowed]:
        keep = f"give what it was saved with, or go on all the same with allow_changes=[{', '.join(broken)}]"
        how = f"{keep}; another name= or resume=never begins anew"
        raise UserError(f"this isn't the run that was saved: {'; '.join(refused)}", str(where), how)


def _compare_model(changes: Changes, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    from_python = "python" in before or "python" in now  # else a key that one lacks is another release's
    keys = {**before, **now} if from_python else {key: None for key in now if key in before}
    different = [k for k in keys if k not in ("name", "version") and before.get(k) != now.get(k)]
    changes.values.update({f"model.{key}": [before.get(key), now.get(key)] for key in different})
    if different:
        old, new = before.get(different[0]), now.get(different[0])
        changes.broken["model"] = f"the checkpoint's model has {different[0]} {old!r} but the run's has {new!r}"


def _compare_data(changes: Changes, before: Any, now: Any) -> None:
    """The keys of `data`; its sources are compared by what they hold (`_compare_sources`)."""
    from_python = "python" in before
    if from_python != ("python" in now):
        old, new = _named(before), _named(now)
        changes.values["data"] = [old, new]
        changes.broken["data"] = f"its data were {old}, and are {new} now"
        return
    for key in {**before, **now}:
        old, new = before.get(key), now.get(key)
        if old == new or (key == "train" and not from_python):
            continue
        changes.values[f"data.{key}"] = [old, new]
        if key == "packing" or (from_python and key != "seq_len"):
            changes.broken.setdefault("data", f"data.{key} was {_short(old)}, and is {_short(new)} now")


def _compare_sources(changes: Changes, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    old, new = before.get("tokenizer"), now.get("tokenizer")
    if old and new and old != new:
        changes.values["tokenizer"] = [old, new]
        changes.broken["tokenizer"] = "its data were made with another tokenizer"
    if "segments" not in before or "segments" not in now:
        return
    old_weights, new_weights = before["segments"][-1]["weights"], now["segments"][-1]["weights"]
    gone = [_path(before, number) for number in old_weights if number not in new_weights]
    added = [_path(now, number) for number in new_weights if number not in old_weights]
    if gone or added:
        words = [f"{path} holds other tokens" for path in sorted(set(gone) & set(added))]
        words = words or [*(f"{path} is gone" for path in gone), *(f"{path} is new" for path in added)]
        changes.values["data.train"] = [list(before["paths"].values()), list(now["paths"].values())]
        changes.broken["data"] = f"its data differ: {', '.join(words)}"
    elif old_weights != new_weights:
        weights = [[of_side[number] for number in old_weights] for of_side in (old_weights, new_weights)]
        changes.values["data.train.weight"] = weights


def _named(data: Mapping[str, Any]) -> str:
    """A run's data in a few words."""
    return str(data.get("python") or ", ".join(source["path"] for source in data["train"]))


def _path(data: Mapping[str, Any], number: str) -> str:
    return str(data.get("paths", {}).get(number, f"source {number}"))


def _differences(key: str, old: Any, new: Any) -> dict[str, list[Any]]:
    """{dotted key: [old, new]} of two values. A key that one release lacks is no change of the user's."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return {} if old == new else {key: [old, new]}
    # Arguments of a user's own code are the user's: one that is new is a change.
    from_python = "python" in old or "python" in new
    keys = {**old, **new} if from_python else {k: None for k in old if k in new}
    parts = (_differences(f"{key}.{inner}", old.get(inner), new.get(inner)) for inner in keys)
    return {name: values for part in parts for name, values in part.items()}


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."


_DERIVED = ("sp", "virtual_stages", "zero_stage")
_SIZES = ("devices", "tp", "pp", "cp", "ep", "etp", "dp_replicate", "schedule", "offload")


def keep_choices(run: RunSpec) -> RunSpec:
    """The run with what its checkpoint's run had chosen, wherever the user leaves the choice open."""
    if not (before := _earlier(run)):
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
    if not folders and run.checkpoint.store:
        folders = newest_heads(run.checkpoint.store)
    if not folders and run.resume != "auto":
        folders = checkpoints_at(bring(run.resume, states=True, later=True))
    for folder in folders:
        with suppress(UserError):  # a damaged save, which `find_origin` will pass, too
            settings = read_state(folder).get("run")
            if settings is None:  # an older release kept them in the run's folder alone
                settings = read_yaml(folder.parent.parent / "run.yaml")
            return settings if isinstance(settings, dict) else {}
    return {}
