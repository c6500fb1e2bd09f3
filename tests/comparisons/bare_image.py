"""An environment that has what a common CUDA image of torch has, and nothing else that is installed here.

`sitecustomize` for processes that a test starts: modules of other distributions can't be found, but in the
folder `site` into which the GPU kit unpacks its wheels.
"""

from __future__ import annotations

import re
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("bare_image.txt")
# What the image was looked through for, and lacks.
ABSENT = {"pydantic", "pydantic-core", "annotated-types", "typing-inspection", "msgspec", "liger-kernel"}


def blocked() -> set[str]:
    """Top-level modules of what is installed here and neither there nor needed by what is."""
    installed = {str(found.metadata["Name"]).replace("_", "-").lower(): found for found in distributions()}
    there = set(LIST.read_text(encoding="utf-8").partition("\n")[2].split())
    new = there
    while new:
        needed = {need for name in new & installed.keys() for need in _needs(installed[name])}
        new = needed - there - ABSENT
        there |= new
    modules = {name: _modules(found) for name, found in installed.items()}
    present = {module for name in there & modules.keys() for module in modules[name]}
    return {module for names in modules.values() for module in names} - present - {"scalewright"}


def _needs(distribution: Distribution) -> set[str]:
    lines = [line for line in distribution.requires or [] if "extra ==" not in line]
    return {re.split(r"[\[<>=!~; (]", line, maxsplit=1)[0].replace("_", "-").lower() for line in lines}


def _modules(distribution: Distribution) -> set[str]:
    names = {str(file).split("/")[0].removesuffix(".py") for file in distribution.files or []}
    return {name for name in names if name.isidentifier()}


class Bare(PathFinder):
    """Finds what such an image has."""

    names: frozenset[str] = frozenset()

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # type: ignore[override]
        """The module, where the image would have it."""
        if name.partition(".")[0] in cls.names and path is None:
            path = [entry for entry in sys.path if Path(entry).name == "site"]
        return PathFinder.find_spec(name, path, target)


def block() -> None:
    """From now on in this process."""
    Bare.names = frozenset(blocked())
    sys.meta_path[sys.meta_path.index(PathFinder)] = Bare
