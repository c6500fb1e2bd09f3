"""A checkpoint on disk: its files, the form of its manifest and state, and when it exists.

    checkpoints/step-00000010/
      manifest.json                     every file: its checksum, and which parts of which tensors it holds
      state.json                        step, samples, tokens, the optimizer's numbers, each source's place in
                                        the data, the run file as it was resolved: all but tensors
      model-00000-000.safetensors       rank 0's boxes of the weights (fp32), at most 2 GiB a file; buffers of
                                        a user's own module, whole and in their own dtype
      optimizer-00000-000.safetensors   its boxes of the optimizer's state, and what it has alone
      COMMIT                            written last: checksums of the two .json files; without it the
                                        folder does not exist for anyone

Boxes are parts of true tensors, so any layout reads any other's checkpoint. Nothing here is a pickle. Checksums find
what a disk did to a file; the form of the keys that readers rely on is checked, too, and finds what an edit did. So
is whether a tensor's boxes overlap, or leave a hole (boxes.py).

    version 2   files: {name: bytes, checksum (pieces.py), boxes (boxes.py)}
    version 1   files: {name: bytes, checksum}   tensors: {name: shape, dtype, boxes [{file, key, offset, size}]}
"""

from __future__ import annotations

import re
import shutil
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, GetCoreSchemaHandler

from scalewright.checkpoint.boxes import StoredBox, StoredTensor, check_bounds, sizes, unpack, whole
from scalewright.spec.base import Spec
from scalewright.spec.common.untrusted import inside, parse_json, read_bytes
from scalewright.spec.errors import UserError, reason, shortened

MANIFEST, STATE, COMMIT = "manifest.json", "state.json", "COMMIT"
VERSION = 2
HEAD_BYTES = 1 << 30  # one of version 1, 512 ranks and 70B parameters has 213 MB; of version 2, 1 MB
KEPT_BYTES = 1 << 26
COMMIT_BYTES = 1 << 16
COMPLEX = "complex_buffers"  # in state.json: the buffers whose last dimension is (real, imaginary)
# Prefixes of names in a manifest; parameters have none. RANK: a tensor that one rank has, rank/00003/NAME.
OPTIMIZER, BUFFER, RANK = "optimizer/", "buffer/", "rank/"
OUTER, ISLAND = "outer/", "island/"  # of runs with islands: outer/<kind>/<name>, island/<i>/<kind>/<name>
BESIDE_MODEL = (OPTIMIZER, RANK, OUTER, ISLAND)
BESIDE_PARAMETERS = (*BESIDE_MODEL, BUFFER)
PARTIAL = ".tmp"  # at the end of a folder's name: it is being written, or removed
STEP_FOLDER = re.compile(r"^step-([0-9]{8,})\Z")


@dataclass(frozen=True)
class StoredFile:
    """Size and checksum that a file must have."""

    bytes: int
    checksum: str  # "crc32:89abcdef", or of each piece (pieces.py)


@dataclass(frozen=True)
class Manifest:
    """A checkpoint's content. Tensors: parameters by name, `optimizer/<state>/<name>`, `buffer/<name>`,
    those of islands, and `rank/<rank>/<name>` of what one rank has alone."""

    step: int
    samples: int
    run_id: str
    model: dict[str, object]
    layout: dict[str, object]
    tensors: dict[str, StoredTensor]
    files: dict[str, StoredFile]
    version: int = VERSION


def rank_name(name: str, rank: int) -> str:
    """The name in a manifest of a tensor that only one rank has."""
    return f"{RANK}{rank:05d}/{name}"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a committed checkpoint, as COMMIT describes it, its numbers and file names checked. Raises
    UserError when the folder isn't a finished checkpoint, or its manifest is damaged."""
    content = _read_head(folder, MANIFEST)
    try:
        manifest = (parse_manifest if len(content) < KEPT_BYTES else parse_manifest.__wrapped__)(content)
        if isinstance(manifest, Manifest):
            return manifest
        how = "read it with the release that wrote it"
        raise UserError(f"checkpoint version {manifest} is not {VERSION}", str(folder), how)
    except UserError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # from any damage
        raise damaged(f"damaged manifest: {_in_words(error)}", folder / MANIFEST) from None


@lru_cache(maxsize=1)  # a resume verifies and reads the same one
def parse_manifest(content: bytes) -> Manifest | int:
    """A manifest; of an unknown version only its number. Raises what damage makes of it."""
    data = parse_json(content)
    if (version := whole(data["version"], "version")) not in (1, VERSION):
        return version
    files = {n: StoredFile(whole(f["bytes"], "bytes"), str(f["checksum"])) for n, f in data["files"].items()}
    if version == 1:
        tensors = {name: _stored_tensor(entry) for name, entry in data["tensors"].items()}
        check_bounds(tensors, {name: file.bytes for name, file in files.items()})
    else:
        tensors = unpack(data["files"])
    return Manifest(
        step=whole(data["step"], "step"),
        samples=whole(data["samples"], "samples"),
        run_id=str(data["run_id"]),
        model=dict(data["model"]),
        layout=dict(data["layout"]),
        tensors=tensors,
        files=files,
        version=version,
    )


def damaged(problem: str, place: Path) -> UserError:
    """The error for a checkpoint that can't be read: a damaged one, or one that a run removed meanwhile."""
    folder = place.parent if place.name == MANIFEST else place
    if committed_at(folder) is None:
        how = "read a newer one; a run keeps as many as its checkpoint.keep"
        return UserError("the checkpoint is gone: it was removed while it was read", str(folder), how)
    return UserError(problem, str(place), "use an older checkpoint")


def committed_at(folder: Path) -> tuple[int, int] | None:
    """What changes when a checkpoint is replaced by another of its step; None: there is none (any more)."""
    try:
        commit = (folder / COMMIT).stat()
    except OSError:
        return None
    return commit.st_ino, commit.st_mtime_ns


def remove(folder: Path) -> None:
    """Removes a checkpoint, its name first: for readers it is then gone, not damaged, and what a kill leaves of it goes
    with the next save. Raises OSError."""
    if folder.is_symlink():  # what it leads to isn't the run's
        folder.unlink()
        return
    gone = folder.with_name(f"{folder.name}.gone{PARTIAL}")
    shutil.rmtree(gone, ignore_errors=True)
    shutil.rmtree(folder.rename(gone))


def finish_commits(root: Path) -> None:
    """Gives checkpoints under `checkpoints/` their names that a kill kept from it: whole ones, with COMMIT."""
    for partial in root.glob(f"step-*{PARTIAL}"):
        final = partial.with_suffix("")
        if STEP_FOLDER.match(final.name) and (partial / COMMIT).exists() and not final.exists():
            partial.rename(final)


def _in_words(error: Exception) -> str:
    """The problem of a manifest, from the error of the code that reads it."""
    if isinstance(error, KeyError):
        return f"'{error.args[0]}' is missing"
    if isinstance(error, ValueError):
        return str(error)
    return "an entry has another type than it should (a list instead of an object, say)"


def _stored_tensor(entry: Any) -> StoredTensor:
    """A tensor from its entry in a manifest of version 1."""
    boxes = (StoredBox(str(b["file"]), sizes(b["offset"]), sizes(b["size"]), str(b["key"])) for b in entry["boxes"])
    return StoredTensor(sizes(entry["shape"]), str(entry["dtype"]), tuple(boxes))


def read_state(folder: Path) -> dict[str, Any]:
    """The state without tensors: step, samples, tokens and the optimizer's scalars."""
    text = _read_head(folder, STATE)
    try:
        State.parse(state := parse_json(text))
        return dict(state)
    except (ValueError, UserError) as error:
        raise damaged(f"damaged {STATE}: {shortened(reason(error))}", folder) from None


def _read_head(folder: Path, name: str) -> bytes:
    """The manifest's or the state's bytes, compared with COMMIT; raises UserError."""
    expected = _committed_heads(folder)[name]
    try:
        content = read_bytes(inside(folder, name), HEAD_BYTES)
    except FileNotFoundError:
        raise damaged(f"{name} is missing", folder) from None
    except (OSError, ValueError) as error:
        raise damaged(f"{name} cannot be read ({error})", folder) from None
    if len(content) != expected.bytes:
        raise damaged(f"{name} has {len(content)} bytes instead of {expected.bytes}", folder)
    if f"crc32:{zlib.crc32(content):08x}" != expected.checksum:
        raise damaged(f"{name} is damaged (its checksum differs)", folder)
    return content


def _committed_heads(folder: Path) -> dict[str, StoredFile]:
    """Size and checksum of the manifest and the state by COMMIT; raises UserError."""
    if folder.is_dir() and committed_at(folder) is None:
        how = "give a step-* folder that has one"
        raise UserError(f"not a finished checkpoint: it has no {COMMIT}", str(folder), how)
    try:
        files = parse_json(read_bytes(inside(folder, COMMIT), COMMIT_BYTES))["files"]
        return {name: StoredFile(**files[name]) for name in (MANIFEST, STATE)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, UserError):
            raise
        raise damaged(f"{COMMIT} is damaged", folder) from None


def step_folder(root: Path, step: int) -> Path:
    """Where a step's checkpoint lies under `checkpoints/`."""
    return root / f"step-{step:08d}"


def committed(root: Path) -> list[Path]:
    """The finished checkpoints under `checkpoints/`, newest first."""
    if not root.is_dir():
        return []
    folders = [p for p in root.iterdir() if STEP_FOLDER.match(p.name) and (p / COMMIT).exists()]
    return sorted(folders, key=lambda p: int(p.name.split("-")[1]), reverse=True)


def checkpoints_at(path: Path) -> list[Path]:
    """A checkpoint itself, or the finished ones of a run's folder, or of `checkpoints/`."""
    return [path] if (path / MANIFEST).exists() else committed(path / "checkpoints") or committed(path)


def free_name(folder: Path, suffix: str) -> Path:
    """A name beside a folder, to keep it under: `folder.suffix-1`, or the first of these that is free."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.{suffix}-{number}")).exists():
        number += 1
    return aside


Count = Annotated[int, Field(ge=0, le=1 << 62)]
Keys = Annotated[dict[str, object], Field(default_factory=dict)]
Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]
Number = float | dict[str, object]  # of an optimizer (train/state/group_state.py)


class _Form(Spec):
    """Any number and any text, as a state has them: a product that underflows, the inf of a schedule."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Without the rules of `spec/scalars.py`, which are for what a person writes."""
        return handler(source)


class _Data(_Form):
    segments: Annotated[list[dict[str, object]], Field(min_length=1)] | None = None
    paths: dict[str, str] = Field(default_factory=dict)


class _Run(_Form):
    layout: Keys
    train: Keys
    data: Keys


class State(_Form):
    """All of it. A key may be missing, and others, as those of a newer release, may be anything."""

    step: Count = 0
    samples: Count = 0
    tokens: Count = 0
    optimizer: dict[str, dict[str, Number]] = Field(default_factory=dict)
    run: _Run | None = None
    data: _Data = _Data()
    guard: Keys
    left_out: list[Pair] = Field(default_factory=list)
    schedule_unit: Annotated[float, Field(gt=0)] | None = None
    valid_loss: float | None = None
