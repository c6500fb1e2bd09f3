"""Emitted files on disk: none replaces a file that was edited, or that isn't ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scalewright.spec.common.files import check_replaceable, write_signed, write_whole
from scalewright.spec.errors import UserError

UNSIGNED = (".json",)  # forms without comments, and so without a place for a checksum


def save(files: Mapping[str, str], folder: Path, force: bool = False) -> list[Path]:
    """Writes all files into a folder, or none of them; raises UserError.

    A form without comments is replaced where its text is the same, or with `force`.
    """
    paths = {folder / name: text for name, text in files.items()}
    for path, text in paths.items():
        if path.suffix not in UNSIGNED:
            check_replaceable(path, force)
        elif path.exists() and not force and not (path.is_file() and path.read_bytes() == text.encode()):
            how = "give another folder (--out), or --force to replace it"
            raise UserError("the file is there already, with another text", str(path), how)
    for path, text in paths.items():
        if path.suffix not in UNSIGNED:
            write_signed(path, text, force)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
    return list(paths)
