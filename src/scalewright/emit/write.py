"""Writes a run for a trainer and reads it back: a key of the network is expressed where its value comes back.

run --write--> files --read--> the network that the target computes       differs, and not reported: changed

So numbers that a trainer has fixed are reported wherever its reader has them. A config.json was compared when
it was written (spec/huggingface.py).

On disk no file replaces one that was edited, or that isn't ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath

from scalewright.emit.emitted import Changed, Emitted
from scalewright.emit.read import read_own
from scalewright.emit.settings import Settings
from scalewright.emit.trainers import ALIASES, TRAINERS, module_of
from scalewright.spec.capabilities import find_capabilities
from scalewright.spec.common.files import check_replaceable, write_signed, write_whole
from scalewright.spec.common.formatting import below
from scalewright.spec.errors import UserError, unknown
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import is_preset, load_model_spec
from scalewright.spec.same import differences

UNSIGNED = (".json",)  # forms without comments, and so without a place for a checksum


def emit(name: str, settings: Settings) -> Emitted:
    """A run in a trainer's words; what the target computes otherwise is among the changes.

    Raises UserError for a trainer that isn't here, or a layout that it can't run.
    """
    name = ALIASES.get(name, name)
    if name not in TRAINERS:
        raise unknown("trainer", name, TRAINERS, "emit")
    settings.lacks = find_capabilities(name).why
    return checked(settings, module_of(name).write(settings))


def checked(settings: Settings, emitted: Emitted) -> Emitted:
    """The same files, with what the target computes otherwise and nothing has reported."""
    title = TRAINERS[emitted.trainer].title
    try:
        back = settings.network or _read(emitted)
    except UserError as error:
        lost = Changed("model", settings.model.name, "unknown", f"it can't be read back: {error}")
        return replace(emitted, changed=(*emitted.changed, lost))
    if back is None:
        return emitted
    reported = [*(item.key for item in emitted.dropped), *(item.key for item in emitted.changed)]
    losses = [
        Changed(f"model.{key}", value, str(other), f"{title} computes this in its place")
        for key, value, other in differences(settings.model, back)
        if not below(f"model.{key}", reported) and not any(below(item, [f"model.{key}"]) for item in reported)
    ]
    return replace(emitted, changed=(*emitted.changed, *losses))


def _read(emitted: Emitted) -> ModelSpec | None:
    """The network of the files; None where a config.json beside them has it, or there is no reader."""
    if not TRAINERS[emitted.trainer].reads:
        return None
    name, text = next(iter(emitted.files.items()))
    model = read_own(emitted.trainer, text, PurePath(name).suffix, name).run.get("model")
    if isinstance(model, str):
        return load_model_spec(model) if is_preset(model) else None
    return ModelSpec.parse(dict(model), name) if isinstance(model, Mapping) else None


def save(files: Mapping[str, str], folder: Path, force: bool = False, signed: bool = True) -> list[Path]:
    """Writes all files into a folder, or none of them; raises UserError.

    A form without comments (any, where not `signed`) is replaced where its text is the same, or with `force`.
    """
    paths = {folder / name: text for name, text in files.items()}
    for path, text in paths.items():
        if signed and path.suffix not in UNSIGNED:
            check_replaceable(path, force)
        elif path.exists() and not force and not (path.is_file() and path.read_bytes() == text.encode()):
            how = "give another folder (--out), or --force to replace it"
            raise UserError("the file is there already, with another text", str(path), how)
    for path, text in paths.items():
        if signed and path.suffix not in UNSIGNED:
            write_signed(path, text, force)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
    return list(paths)
