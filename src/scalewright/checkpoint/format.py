"""A checkpoint on disk, and when it exists.

    checkpoints/step-00000010/
      manifest.json                     every tensor as boxes: which part of it lies in which file
      state.json                        step, samples, tokens, the optimizer's scalars: what isn't a tensor
      model-00000-000.safetensors       rank 0's boxes of the weights (fp32), at most 2 GiB a file
      optimizer-00000-000.safetensors   its boxes of the optimizer's state
      COMMIT                            written last: checksums of the two .json files; without it the
                                        folder does not exist for anyone

Boxes are parts of true tensors, so any layout reads what any other wrote. Nothing here is a pickle.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scalewright.spec.errors import UserError

MANIFEST, STATE, COMMIT = "manifest.json", "state.json", "COMMIT"
VERSION = 1
STEP_FOLDER = re.compile(r"^step-(\d{8,})$")


@dataclass(frozen=True)
class StoredBox:
    """A part of a tensor, and the file and key that hold it."""

    file: str
    key: str
    offset: tuple[int, ...]
    size: tuple[int, ...]


@dataclass(frozen=True)
class StoredTensor:
    """A whole tensor as the boxes that cover it."""

    shape: tuple[int, ...]
    dtype: str
    boxes: tuple[StoredBox, ...]


@dataclass(frozen=True)
class StoredFile:
    """What a file must be to be believed."""

    bytes: int
    checksum: str  # "crc32:89abcdef"


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds. Optimizer states are tensors named `optimizer/<state>/<name>`."""

    step: int
    samples: int
    run_id: str
    model: dict[str, Any]
    layout: dict[str, Any]
    tensors: dict[str, StoredTensor]
    files: dict[str, StoredFile]
    version: int = VERSION
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The manifest as text."""
        return json.dumps(asdict(self), indent=1)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a committed checkpoint; raises UserError when it isn't one, or can't be read."""
    if not (folder / COMMIT).exists():
        raise UserError(
            "not a finished checkpoint: it has no COMMIT", str(folder), "give a step-* folder that has one"
        )
    try:
        data = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version = int(data["version"])
        if version != VERSION:
            raise UserError(
                f"checkpoint version {version} is not {VERSION}",
                str(folder),
                "read it with the release that wrote it",
            )
        return Manifest(
            step=int(data["step"]),
            samples=int(data["samples"]),
            run_id=str(data["run_id"]),
            model=data["model"],
            layout=data["layout"],
            tensors={name: _stored(entry) for name, entry in data["tensors"].items()},
            files={
                name: StoredFile(int(f["bytes"]), str(f["checksum"])) for name, f in data["files"].items()
            },
            extra=data.get("extra", {}),
        )
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # whatever garbage gives
        raise UserError(
            f"damaged manifest: {type(error).__name__} {error}",
            str(folder / MANIFEST),
            "use an older checkpoint",
        ) from None


def _stored(entry: dict[str, Any]) -> StoredTensor:
    boxes = tuple(
        StoredBox(b["file"], b["key"], tuple(b["offset"]), tuple(b["size"])) for b in entry["boxes"]
    )
    return StoredTensor(tuple(entry["shape"]), entry["dtype"], boxes)


def read_state(folder: Path) -> dict[str, Any]:
    """What isn't a tensor: step, samples, tokens and the optimizer's scalars."""
    try:
        data: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"damaged {STATE}: {error}", str(folder), "use an older checkpoint") from None
    return data


def step_folder(root: Path, step: int) -> Path:
    """Where a step's checkpoint lies under `checkpoints/`."""
    return root / f"step-{step:08d}"


def committed(root: Path) -> list[Path]:
    """The finished checkpoints under `checkpoints/`, newest first."""
    if not root.is_dir():
        return []
    found = [p for p in root.iterdir() if STEP_FOLDER.match(p.name) and (p / COMMIT).exists()]
    return sorted(found, key=lambda p: int(p.name.split("-")[1]), reverse=True)


def checksum(path: Path) -> str:
    """CRC-32 of a file, read in pieces: it finds damage, and costs less than reading from most disks."""
    value = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            value = zlib.crc32(piece, value)
    return f"crc32:{value:08x}"


def describe_file(path: Path) -> StoredFile:
    """Size and checksum of a file as it lies there."""
    return StoredFile(path.stat().st_size, checksum(path))


def commit_text(folder: Path, step: int) -> str:
    """What COMMIT says: what the manifest and the state must be. The manifest answers for all other files."""
    files = {name: asdict(describe_file(folder / name)) for name in (MANIFEST, STATE)}
    return json.dumps({"step": step, "files": files}, indent=1)


def check_file(folder: Path, name: str, want: StoredFile) -> str | None:
    """What is wrong with one file of a checkpoint, or None."""
    path = folder / name
    try:
        size = path.stat().st_size
        if size != want.bytes:
            return f"{name} has {size} bytes instead of {want.bytes}"
        if checksum(path) != want.checksum:
            return f"{name} is damaged (its checksum differs)"
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return None


def verify(folder: Path, part: int = 0, parts: int = 1) -> list[str]:
    """What is wrong with a checkpoint; `part` of `parts` ranks checks every parts-th file.

    Raises UserError when it isn't a finished checkpoint.
    """
    problems = _verify_heads(folder)
    if problems:
        return problems
    manifest = read_manifest(folder)
    names = sorted(manifest.files)[part::parts]
    return [problem for name in names if (problem := check_file(folder, name, manifest.files[name]))]


def _verify_heads(folder: Path) -> list[str]:
    """What is wrong with the manifest and the state, by what COMMIT says of them."""
    if not (folder / COMMIT).exists():
        return [f"it has no {COMMIT}"]
    try:
        wanted = json.loads((folder / COMMIT).read_text(encoding="utf-8"))["files"]
        files = {name: StoredFile(**wanted[name]) for name in (MANIFEST, STATE)}
    except (OSError, ValueError, KeyError, TypeError):
        return [f"{COMMIT} is damaged"]
    return [problem for name, want in files.items() if (problem := check_file(folder, name, want))]
