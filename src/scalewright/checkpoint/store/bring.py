"""A model's place as a folder of this node: a path as it is, a URL fetched into the node's cache.

    s3://bucket/run                       the newest finite checkpoint, and what lies beside checkpoints/
    s3://bucket/run/checkpoints/step-…    that one                 s3://bucket/model      a Hugging Face folder

Of a checkpoint the optimizer's files are left out, unless `states` are wanted. Sizes are compared as they are fetched,
checksums by whoever opens the files (checkpoint/read.py), or as ranges of them come (ranges.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from scalewright.checkpoint.format import COMMIT, STATE, STEP_FOLDER, StoredFile
from scalewright.checkpoint.store.ranges import PREFIX, Ranges
from scalewright.checkpoint.verify import is_finite
from scalewright.spec.common.heartbeat import Heartbeat
from scalewright.spec.common.urls import Url, is_url, parse_url
from scalewright.spec.ends import ORIGIN
from scalewright.spec.errors import RunError, UserError
from scalewright.storage.mirror import drop, fetch, is_there, mirror_folder, shown
from scalewright.storage.objects import Entry, Store, open_store

BESIDE_BYTES = 1 << 30  # of a file beside checkpoints/: a tokenizer, a run's lines
SAVES = "checkpoints"
TENSORS = ".safetensors"
STATES = "optimizer-"  # how the files begin that only a run needs


@dataclass(frozen=True)
class Place:
    """A run's folder, or one that holds step folders, in a store; and the step that its URL named."""

    store: Store
    under: str  # where the step folders lie: "checkpoints/" or ""
    step: str | None  # "step-00000400"

    @property
    def mirror(self) -> Path:
        """Its copy on this node."""
        return mirror_folder(self.store.url)

    def folder(self, step: str) -> Path:
        """The copy of a checkpoint."""
        return self.mirror / self.under / step

    def steps(self) -> dict[str, list[Entry]]:
        """The objects of every step folder, finished or not, newest first."""
        steps: dict[str, list[Entry]] = {}
        for entry in self.store.list(f"{self.under}{self.step or ''}"):
            if (step := step_of(entry.name)) is not None:
                steps.setdefault(step, []).append(entry)
        return dict(sorted(steps.items(), key=lambda item: step_number(item[0]), reverse=True))

    def committed(self) -> dict[str, list[Entry]]:
        """The finished ones, newest first."""
        return {name: entries for name, entries in self.steps().items() if is_committed(name, entries)}


def step_of(name: str) -> str | None:
    """The step folder that an object's name has in it."""
    return next((part for part in name.split("/") if STEP_FOLDER.match(part)), None)


def step_number(folder: str) -> int:
    """The step of step-00000400."""
    return int(folder.split("-")[1])


def forget(place: Place, steps: Mapping[str, Sequence[Entry]]) -> None:
    """What a run has removed from its checkpoints in the store goes from their copies, too."""
    names = {entry.name for entries in steps.values() for entry in entries}
    for part in place.mirror.glob(f"{place.under}step-*/{PREFIX}*"):
        if part.parent.name not in steps:
            part.unlink(missing_ok=True)
    drop(place.mirror, lambda name: step_of(name) is None or name in names)


def is_committed(step: str, entries: Sequence[Entry]) -> bool:
    """Whether a step folder has its COMMIT."""
    return any(entry.name.endswith(f"{step}/{COMMIT}") for entry in entries)


def find_place(url: Url) -> Place:
    """Where the checkpoints of a URL lie: of a run, of its checkpoints/, or one checkpoint. Raises UserError."""
    step = url.name if STEP_FOLDER.match(url.name) else None
    above = url.parent if step else url
    if above.name == SAVES:
        return Place(open_store(above.parent), f"{SAVES}/", step)
    return Place(open_store(above), "" if step else f"{SAVES}/", step)


def run_place(url: str, *, create: bool = False) -> Place:
    """The place of a run that trains. Raises UserError."""
    return Place(open_store(url, create=create), f"{SAVES}/", None)


def newest_heads(url: str) -> list[Path]:
    """A folder with the COMMIT and the state of a run's newest checkpoint in its store; none where there is none, or
    where the store can't be read now."""
    with suppress(UserError, RunError):
        place = run_place(url)
        for step, entries in list(place.committed().items())[:1]:
            fetch(place.store, heads(entries), place.mirror)
            return [place.folder(step)]
    return []


def heads(entries: Sequence[Entry]) -> list[Entry]:
    """COMMIT and the state of one checkpoint."""
    return [entry for entry in entries if entry.name.split("/")[-1] in (COMMIT, STATE)]


def bring(source: str | Path, *, states: bool = False, later: bool = False) -> Path:
    """The folder of a model or a checkpoint: the path given, or a copy of what a URL names. Raises UserError where it
    names none, StoreError where the store fails. `later`: of a checkpoint's files of tensors come the parts that are
    read (`ranges_of`), so that a node fetches what its own ranks hold."""
    return _brought(str(parse_url(source)), states, later) if is_url(source) else Path(source)


_LATER: dict[Path, tuple[Place, list[Entry]]] = {}  # by checkpoint: its files of tensors


def comes_later(folder: Path) -> bool:
    """Whether a checkpoint's files of tensors aren't all there yet: each is verified when it has come."""
    return folder in _LATER


def ranges_of(folder: Path, name: str, expected: StoredFile) -> Ranges | None:
    """A file of a checkpoint that was brought without it; None where it is there, as in any other folder."""
    if (left := _LATER.get(folder)) is None:
        return None
    place, entries = left
    entry = next((entry for entry in entries if entry.name.endswith(f"/{name}")), None)
    if entry is None or is_there(place.mirror, entry):
        return None
    return Ranges(place.store, entry, folder / name, expected)


@lru_cache(maxsize=8)  # one answer a process: what it opened doesn't change under it
def _brought(text: str, states: bool, later: bool) -> Path:
    url = parse_url(text)
    place = find_place(url)
    with Heartbeat(f"looking into {text}") as heart:
        steps = place.committed()
        if not steps and place.step is None and place.under:  # a folder of step folders, or no checkpoint at all
            flat = Place(place.store, "", None)
            steps, place = (found, flat) if (found := flat.committed()) else (steps, place)
        if not steps:
            return _model(place, text)
        if place.step is None:
            forget(place, steps)
        step = _newest_finite(place, steps)
        wanted = [e for e in steps[step] if states or not e.name.split("/")[-1].startswith(STATES)]
        if later:
            _LATER[place.folder(step)] = place, wanted
            wanted = [entry for entry in wanted if not entry.name.endswith(TENSORS)]
        fetch(place.store, [*beside(place), *wanted], place.mirror, shown(heart, text))
    return place.folder(step)


def _newest_finite(place: Place, steps: dict[str, list[Entry]]) -> str:
    """The newest checkpoint whose numbers are finite; the newest of all where none is."""
    for step, entries in steps.items():
        fetch(place.store, heads(entries), place.mirror)
        if is_finite(place.folder(step)):
            return step
    return next(iter(steps))


def beside(place: Place) -> list[Entry]:
    """The files of a run's folder that models need: tokenizer, run.yaml, those of the model that it began from."""
    flat = [entry for entry in place.store.list(deep=False) if entry.bytes <= BESIDE_BYTES]
    return [*flat, *place.store.list(ORIGIN)]


def _model(place: Place, text: str) -> Path:
    """A Hugging Face folder's copy."""
    entries = [entry for entry in place.store.list(deep=False) if not entry.name.startswith(".")]
    if place.step is not None or not any(entry.name == "config.json" for entry in entries):
        how = "give a run's place in the store, one of its checkpoints/step-*, or a Hugging Face folder's"
        raise UserError("no finished checkpoint there, and no config.json", text, how)
    with Heartbeat(f"fetching {text}") as heart:
        fetch(place.store, entries, place.mirror, shown(heart, text))
    return place.mirror
