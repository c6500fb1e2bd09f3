"""What differs between a run and the checkpoint that it goes on from, and whether it may.

    meant to change     lr, steps, layout, batch, mixture weights, settings    one `changed` event, one line
    breaks the promise  data, tokenizer, seed, model                           an error without allow_changes

Data are compared by what they hold: a folder that was moved is the same data (`data/identity.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalewright.data.dataset import Dataset, TokenDataset
from scalewright.data.identity import file_identity
from scalewright.data.positions import Positions
from scalewright.spec.errors import UserError
from scalewright.spec.run import DataSpec, RunSpec

PROMISES = ("data", "tokenizer", "seed", "model")
# What names a run, or says how to find its state, is no part of it.
_UNCOMPARED = frozenset({"version", "name", "out_dir", "resume", "init", "environment", "allow_changes"})
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


def run_settings(run: RunSpec, tokens: float | None) -> dict[str, Any]:
    """A resolved run as a checkpoint keeps it for the next comparison; `tokens` as they were asked for."""
    data = run.dump()
    if tokens is not None:
        data["train"] = {**data["train"], "tokens": tokens, "steps": None}
    return {key: value for key, value in data.items() if key not in ("environment", "allow_changes")}


def data_settings(dataset: Dataset, run: RunSpec, samples: int) -> dict[str, Any]:
    """What a checkpoint keeps of the data: sources' fingerprints and places, the mixture, the tokenizer."""
    path = dataset.tokenizer_path
    kept: dict[str, Any] = {"tokenizer": file_identity(path) if path is not None else None}
    inner = getattr(dataset, "inner", dataset)
    if isinstance(inner, TokenDataset) and isinstance(run.data, DataSpec):
        paths = zip(inner.numbers, (source.path for source in run.data.train), strict=True)
        kept.update(inner.positions.dump())
        kept.update(paths={str(number): path for number, path in paths}, samples=inner.given(samples))
    return kept


def earlier_positions(state: Mapping[str, Any]) -> Positions | None:
    """Where the sources of a checkpoint's run stood; None of an older release's, or of a user's own data."""
    data = state.get("data", {})
    return Positions.parse(data) if "segments" in data else None


def find_changes(
    state: Mapping[str, Any], settings: Mapping[str, Any], data: Mapping[str, Any], model: Mapping[str, Any]
) -> Changes:
    """What differs between a checkpoint (`state`, its manifest's `model`) and a run (`settings`, `data`)."""
    found = Changes()
    before = state.get("run", {})
    _compare_model(found, model, settings["model"])
    if (seed := state.get("seed", settings["seed"])) != settings["seed"]:
        found.values["seed"] = [seed, settings["seed"]]
        found.broken["seed"] = f"it was saved with seed {seed}, and has {settings['seed']} now"
    if before:
        _compare_data(found, before["data"], settings["data"])
        skipped = _UNCOMPARED | {"model", "seed", "data"}
        for key in settings:
            if key in before and key not in skipped:
                found.values.update(_differences(key, before[key], settings[key]))
    _compare_sources(found, state.get("data", {}), data)
    return found


def check_promises(changes: Changes, allowed: tuple[str, ...], where: Path) -> None:
    """Raises UserError for a broken promise that isn't allowed; nothing has been written yet."""
    refused = [key for key in PROMISES if key in changes.broken and key not in allowed]
    if refused:
        needed = [key for key in PROMISES if key in changes.broken]
        raise UserError(
            "this isn't the run that was saved: " + "; ".join(changes.broken[key] for key in refused),
            str(where),
            f"give what it was saved with, or go on all the same with allow_changes=[{', '.join(needed)}]; "
            "another name= or resume=never begins anew",
        )


def _compare_model(found: Changes, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    own = "python" in before or "python" in now  # else a key that one lacks is another release's
    keys = {**before, **now} if own else {key: None for key in now if key in before}
    different = [k for k in keys if k not in ("name", "version") and before.get(k) != now.get(k)]
    for key in different:
        found.values[f"model.{key}"] = [before.get(key), now.get(key)]
    if different:
        key = different[0]
        found.broken["model"] = (
            f"the checkpoint's model has {key} {before.get(key)!r} but the run's has {now.get(key)!r}"
        )


def _compare_data(found: Changes, before: Any, now: Any) -> None:
    """The keys of `data`; its sources are compared by what they hold (`_compare_sources`)."""
    own = "python" in before
    if own != ("python" in now):
        old, new = _named(before), _named(now)
        found.values["data"] = [old, new]
        found.broken["data"] = f"its data were {old}, and are {new} now"
        return
    for key in {**before, **now}:
        old, new = before.get(key), now.get(key)
        if old == new or (key == "train" and not own):
            continue
        found.values[f"data.{key}"] = [old, new]
        if key == "packing" or (own and key != "seq_len"):
            found.broken.setdefault("data", f"data.{key} was {_short(old)}, and is {_short(new)} now")


def _compare_sources(found: Changes, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    old, new = before.get("tokenizer"), now.get("tokenizer")
    if old and new and old != new:
        found.values["tokenizer"] = [old, new]
        found.broken["tokenizer"] = "its data were made with another tokenizer"
    if "segments" not in before or "segments" not in now:
        return
    was, is_ = before["segments"][-1]["weights"], now["segments"][-1]["weights"]
    gone = [_path(before, number) for number in was if number not in is_]
    added = [_path(now, number) for number in is_ if number not in was]
    if gone or added:
        words = [f"{path} {what}" for paths, what in ((gone, "is gone"), (added, "is new")) for path in paths]
        same = set(gone) & set(added)
        found.values["data.train"] = [list(before["paths"].values()), list(now["paths"].values())]
        found.broken["data"] = "its data differ: " + (
            ", ".join(f"{path} holds other tokens" for path in sorted(same)) if same else ", ".join(words)
        )
    elif was != is_:
        found.values["data.train.weight"] = [list(was.values()), [is_[number] for number in was]]


def _named(data: Mapping[str, Any]) -> str:
    """A run's data in a few words."""
    return str(data.get("python") or ", ".join(source["path"] for source in data["train"]))


def _path(data: Mapping[str, Any], number: str) -> str:
    return str(data.get("paths", {}).get(number, f"source {number}"))


def _differences(key: str, old: Any, new: Any) -> dict[str, list[Any]]:
    """{dotted key: [old, new]} of two values. A key that one release lacks is no change of the user's."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return {} if old == new else {key: [old, new]}
    own = "python" in old or "python" in new  # whose arguments are the user's: one that is new is a change
    keys = {**old, **new} if own else {k: None for k in old if k in new}
    found = {}
    for inner in keys:
        found.update(_differences(f"{key}.{inner}", old.get(inner), new.get(inner)))
    return found


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
