"""Versions of what a run uses, and whether what it needs is there."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from collections.abc import Sequence
from typing import Any

from scalewright.spec.errors import Finding, install

GROUP = "software"
PACKAGES = (
    "scalewright",
    "numpy",
    "pydantic",
    "torch",
    "safetensors",
    "tokenizers",
    "pyarrow",
    "transformers",
    "mlflow",
)
OLDEST_TORCH = (2, 11)
TRAINING = ("torch", "safetensors", "tokenizers", "pyarrow")


def installed(names: Sequence[str]) -> dict[str, str | None]:
    """The installed versions of packages, none of which is imported for it; None for what isn't there."""
    by_name: dict[str, str | None] = dict.fromkeys(names)
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            by_name[name] = importlib.metadata.version(name)
    return by_name


def versions(torch: Any | None) -> dict[str, str | None]:
    """Every version that a bug report needs; None for what isn't there."""
    known: dict[str, str | None] = {"python": platform.python_version(), "system": platform.platform()}
    known |= installed(PACKAGES) | {"cuda": None, "cudnn": None, "nccl": None, "hip": None}
    if torch is not None:
        known["torch"] = torch.__version__
        known["cuda"], known["hip"] = torch.version.cuda, torch.version.hip
        if torch.cuda.is_available():
            known["cudnn"] = str(torch.backends.cudnn.version())
            known["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return known


def python() -> Finding:
    """Python itself; the package refuses to install on one that is too old."""
    version = platform.python_version()
    return Finding(GROUP, "python", "ok", f"Python {version} on {platform.system()} {platform.machine()}")


def training(installed: dict[str, str | None]) -> Finding:
    """The packages that training needs beyond planning."""
    missing = [name for name in TRAINING if installed.get(name) is None]
    if missing:
        what = f"planning only: {', '.join(missing)} not installed"
        return Finding(GROUP, "training", "note", what, install("train"))
    version = installed["torch"] or ""
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < OLDEST_TORCH:
        what = f"torch {version} is older than {'.'.join(map(str, OLDEST_TORCH))}"
        return Finding(GROUP, "training", "problem", what, install("train"))
    return Finding(GROUP, "training", "ok", f"torch {version}, numpy {installed['numpy']}")


def broken_torch(torch: Any | None, installed: dict[str, str | None]) -> Finding | None:
    if torch is None and installed.get("torch") is not None:
        what = f"torch {installed['torch']} is installed but doesn't import"
        return Finding(GROUP, "torch", "problem", what, "python -c 'import torch' shows why; install it anew")
    return None


def backends(torch: Any | None) -> Finding | None:
    if torch is None:
        return None
    distributed = torch.distributed
    if not distributed.is_available():
        what = "this torch has no distributed package"
        return Finding(GROUP, "distributed", "warn", what, "install another build of torch")
    there = {name: getattr(distributed, f"is_{name}_available")() for name in ("gloo", "nccl", "mpi")}
    names = ", ".join(name for name, present in there.items() if present) or "none"
    if not there["gloo"]:
        fix = "install a build of torch with Gloo: control messages use it"
        return Finding(GROUP, "distributed", "problem", f"backends: {names}; Gloo is missing", fix, there)
    if torch.cuda.is_available() and not there["nccl"]:
        what = f"backends: {names}; GPUs without NCCL"
        return Finding(GROUP, "distributed", "warn", what, "install a build of torch with NCCL (Linux)", there)
    return Finding(GROUP, "distributed", "ok", f"backends: {names}", data=there)
