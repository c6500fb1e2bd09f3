"""A user's own `nn.Module`: `model: {python: package.module:build, …arguments}` imports `build` and calls it.

The working directory is importable, so `model: {python: mine:build}` finds ./mine.py. Its first weights are
whatever `build` makes after `torch.manual_seed(seed)`. Its forward: tokens [B, T] -> logits [B, T, V].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from scalewright.spec.errors import UserError
from scalewright.spec.user_code import import_object


def build_python_model(ref: str, arguments: dict[str, Any], seed: int) -> nn.Module:
    """The user's module, built after `torch.manual_seed(seed)`; raises UserError naming `ref`."""
    build = import_object(ref)
    torch.manual_seed(seed)
    try:
        module = build(**arguments)
    except TypeError as error:
        raise UserError(
            f"building the model failed: {error}", f"python: {ref}", "check its arguments"
        ) from error
    if not isinstance(module, nn.Module):
        raise UserError(f"'{ref}' gave {type(module).__name__}", "python", "return a torch.nn.Module")
    return module
