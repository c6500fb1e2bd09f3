"""Whether a checkpoint is what was saved, and whether its numbers are ones that a run can go on from.

    COMMIT ──► size and checksum of manifest.json and state.json ──► of every .safetensors file
               all tensors covered, the same step everywhere

The small files are checked whenever a checkpoint is opened (`verify_heads`, and as they are read); the others by
`checkpoint verify`, and before a resume, each rank every parts-th file. `state.json` holds `finite`: the loss and the
gradient norm of its step were, and so is every number of the files (looked at as they are written); `nonfinite` names
the first tensors that aren't. A checkpoint from before this was recorded counts as finite.

    keep 2         steps 400 and 600 finite, 800 not      400 and 600 stay; so does 800, as the newest, for a look
                   1000 finite                            600 and 1000 stay
    keep_every n   beside these all multiples of n        keep_best k    the k with the lowest held-out loss
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from scalewright.checkpoint.boxes import uncovered
from scalewright.checkpoint.format import MANIFEST, STATE, STEP_FOLDER, StoredFile, read_manifest, read_state
from scalewright.checkpoint.pieces import first_damage
from scalewright.spec.common.untrusted import inside
from scalewright.spec.errors import UserError

if TYPE_CHECKING:  # files are verified without torch
    from torch import Tensor


def commit_text(folder: Path, step: int) -> str:
    """COMMIT's content: size and checksum of manifest and state. The manifest has those of all others."""
    contents = {name: (folder / name).read_bytes() for name in (MANIFEST, STATE)}
    files = {n: {"bytes": len(text), "checksum": f"crc32:{zlib.crc32(text):08x}"} for n, text in contents.items()}
    return json.dumps({"step": step, "files": files}, indent=1)


def check_size(folder: Path, name: str, expected: StoredFile) -> str | None:
    """The problem of one file of a checkpoint, by its path and size alone; None: nothing."""
    try:
        size = inside(folder, name).stat().st_size
    except UserError as error:
        return error.what
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return None if size == expected.bytes else f"{name} has {size} bytes instead of {expected.bytes}"


def check_file(folder: Path, name: str, expected: StoredFile) -> str | None:
    """The same, every byte of it read."""
    if problem := check_size(folder, name, expected):
        return problem
    try:
        damage = first_damage(folder / name, expected)
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    if damage is None:
        return None
    place = "" if damage == (0, expected.bytes) else f" in bytes {damage[0]:,} to {damage[1]:,}"
    return f"{name} is damaged{place} (its checksum differs)"


def verify(folder: Path, part: int = 0, parts: int = 1) -> list[str]:
    """The problems of a checkpoint; `part` of `parts` ranks checks every parts-th file."""
    if problems := verify_heads(folder):
        return problems
    files = sorted(read_manifest(folder).files.items())[part::parts]
    return [problem for name, expected in files if (problem := check_file(folder, name, expected))]


def verify_heads(folder: Path) -> list[str]:
    """The problems of COMMIT, the manifest and the state: small files, so this is quick."""
    problems: list[str] = []
    try:
        manifest = read_manifest(folder)
        problems += uncovered(manifest.tensors)
        if (name := STEP_FOLDER.match(folder.name)) and int(name[1]) != manifest.step:
            problems.append(f"{folder.name} holds step {manifest.step}")
    except UserError as error:
        problems.append(error.what)
    try:
        state = read_state(folder)
        counted = [] if problems else [("step", manifest.step), ("samples", manifest.samples)]
        if any(state.get(key, number) != number for key, number in counted):
            problems.append(f"{STATE} is of another step than {MANIFEST}")
    except UserError as error:
        problems.append(error.what)
    return list(dict.fromkeys(problems))


NAMED = 5  # tensors named in state.json


def is_finite(folder: Path) -> bool:
    """Whether a finished checkpoint is finite; one whose state can't be read counts as such."""
    with suppress(UserError, AttributeError):
        return bool(read_state(folder).get("finite", True))
    return True


def finite_first(folders: Sequence[Path]) -> list[Path]:
    """The finite ones, then the others, each in the order given."""
    return sorted(folders, key=lambda folder: not is_finite(folder))


@dataclass(frozen=True)
class Retention:
    """Which finished checkpoints of a run stay."""

    last: int = 2  # finite ones, the newest
    every: int = 0  # those of steps that are multiples of it, for ever; 0: none
    best: int = 0  # those with the lowest held-out loss, of steps that were validated


def superfluous(folders: Sequence[Path], kept: Retention) -> list[Path]:
    """The finished checkpoints (newest first) that may go: all but those kept, and the newest of all."""
    stay = {*islice(filter(is_finite, folders), kept.last), *folders[:1]}
    stay |= {folder for folder in folders if kept.every and int(folder.name.split("-")[1]) % kept.every == 0}
    if kept.best:
        losses = [(loss, folder) for folder in folders if (loss := held_out_loss(folder)) is not None]
        stay |= {folder for _, folder in sorted(losses, key=lambda entry: entry[0])[: kept.best]}
    return [folder for folder in folders if folder not in stay]


def held_out_loss(folder: Path) -> float | None:
    """The held-out loss of a finite checkpoint's step; None: it wasn't validated."""
    with suppress(UserError, AttributeError):
        state = read_state(folder)
        loss = state.get("valid_loss")
        return loss if state.get("finite", True) and isinstance(loss, float) and isfinite(loss) else None
    return None


def all_finite(tensor: Tensor) -> bool:
    """Whether every number is finite: one pass, no copy (smallest and largest of a NaN are NaN)."""
    import torch

    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return all(bool(torch.isfinite(end)) for end in torch.aminmax(tensor))


def finite_entry(of_step: bool, nonfinite: Iterable[str]) -> dict[str, object]:
    """The entries of `state.json`; `nonfinite`: the names that ranks met as they wrote."""
    names = sorted(set(nonfinite))
    return {"finite": of_step and not names, **({"nonfinite": names[:NAMED]} if names else {})}
