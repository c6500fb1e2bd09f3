"""Whether a checkpoint is what was saved: checksums of its files, and that its parts belong together.

COMMIT ──► size and checksum of manifest.json and state.json ──► of every .safetensors file
           all tensors covered, the same step everywhere

The small files are checked whenever a checkpoint is opened (`verify_heads`, and as they are read); the others
by `checkpoint verify`, and before a resume, each rank every parts-th file.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict
from pathlib import Path

from scalewright.checkpoint.format import MANIFEST, STATE, STEP_FOLDER, StoredFile, read_manifest, read_state, uncovered
from scalewright.spec.common.untrusted import inside
from scalewright.spec.errors import UserError


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
    """COMMIT's content: size and checksum of manifest and state. The manifest has those of all others."""
    files = {name: asdict(describe_file(folder / name)) for name in (MANIFEST, STATE)}
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
    problem = check_size(folder, name, expected)
    try:
        if problem is None and checksum(folder / name) != expected.checksum:
            problem = f"{name} is damaged (its checksum differs)"
    except OSError as error:
        problem = f"{name} cannot be read ({error.strerror})"
    return problem


def verify(folder: Path, part: int = 0, parts: int = 1) -> list[str]:
    """The problems of a checkpoint; `part` of `parts` ranks checks every parts-th file."""
    problems = verify_heads(folder)
    if problems:
        return problems
    manifest = read_manifest(folder)
    names = sorted(manifest.files)[part::parts]
    return [problem for name in names if (problem := check_file(folder, name, manifest.files[name]))]


def verify_heads(folder: Path) -> list[str]:
    """The problems of COMMIT, the manifest and the state: small files, so this is quick."""
    problems: list[str] = []
    try:
        manifest = read_manifest(folder)
        problems += uncovered(manifest)
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
