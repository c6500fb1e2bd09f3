"""A safetensors file with the permissions that any other new file gets.

safetensors writes a temporary file that only its owner may read, and renames it: weights that a team can't
read, beside a config.json that it can.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file as save_privately
from torch import Tensor


def save_file(tensors: Mapping[str, Tensor], path: str | Path, metadata: dict[str, str] | None = None) -> None:
    """Writes tensors (contiguous, on the CPU) as a safetensors file whose mode follows the umask."""
    with open(path, "wb"):
        pass
    mode = os.stat(path).st_mode & 0o777
    save_privately(dict(tensors), path, metadata=metadata)
    os.chmod(path, mode)
