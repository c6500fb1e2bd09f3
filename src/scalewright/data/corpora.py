"""Texts that are there without a network: `shakespeare`, `wikitext-2`, `python-stdlib`.

    shakespeare     1.1 MB of plays, public domain; the last tenth validates
    wikitext-2      2.4 MB of Wikipedia articles, CC BY-SA 3.0 (Merity et al. 2016);
                    its validation split trains, its test split validates
    python-stdlib   the source of this machine's own Python (some 12 MB); a tenth of the files validates

The first two lie in bundled/, each with its source and license.
"""

from __future__ import annotations

import platform
import sysconfig
from collections import Counter
from pathlib import Path

from scalewright.data.inputs import InputFile, describe, files_below
from scalewright.spec.errors import UserError

FOLDER = Path(__file__).parent / "bundled"
# The files of each bundled text: name, kind (inputs.py), and split; no split: it is cut as any input is.
BUNDLED: dict[str, tuple[tuple[str, str, str | None], ...]] = {
    "shakespeare": (("input.txt", "text", None),),
    "wikitext-2": (("valid.txt", "wikitext", "train"), ("test.txt", "wikitext", "valid")),
}
CORPORA = (*BUNDLED, "python-stdlib")


def corpus(name: str, skipped: Counter[str]) -> list[InputFile]:
    """The files of a named corpus; raises UserError when this installation lacks them."""
    if name == "python-stdlib":
        return _standard_library(skipped)
    try:
        return [
            describe(FOLDER / name / file, f"{name}/{file}", "bundled", kind, split)
            for file, kind, split in BUNDLED[name]
        ]
    except FileNotFoundError as error:
        raise UserError(
            f"the bundled text {name} is missing", str(error.filename), "install scalewright again"
        ) from None


def _standard_library(skipped: Counter[str]) -> list[InputFile]:
    """Every .py file of the running Python's library, without installed packages and without tests."""
    root = Path(sysconfig.get_path("stdlib"))
    stamp = f"Python {platform.python_version()}"
    others = ("site-packages", "dist-packages", "test", "tests", "idle_test")
    paths = [path for path in files_below(root, Counter(), others) if path.suffix == ".py"] if root.is_dir() else []
    if not paths:
        raise UserError("this Python has no library source", str(root), "give a folder of source files instead")
    files = [describe(path, f"python-stdlib/{path.relative_to(root)}", stamp) for path in paths]
    skipped["empty files"] += sum(file.size == 0 for file in files)
    return [file for file in files if file.size]
