"""A user's own `nn.Module`: `model: {python: package.module:build, …arguments}` imports `build` and calls it.

The working directory is importable, so `model: {python: mine:build}` finds ./mine.py. Its first weights are
whatever `build` makes after `torch.manual_seed(seed)`. Its forward takes tokens [B, T] and returns logits:

    a tensor [B, T, V]              a tuple or list: its first item
    a dict: its item "logits"       an object with `.logits` (a ModelOutput of transformers)

A model of transformers is taken as it is: without its key-value cache, which training has no use for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from scalewright.spec.errors import UserError
from scalewright.spec.user_code import import_object


def build_python_model(ref: str, arguments: Mapping[str, Any], seed: int) -> nn.Module:
    """The user's module, built after `torch.manual_seed(seed)`, giving logits; raises UserError naming `ref`.

    A module in evaluation mode (as `from_pretrained` returns it) is set to train.
    """
    build = import_object(ref)
    torch.manual_seed(seed)
    try:
        module = build(**arguments)
    except TypeError as error:
        raise UserError(f"building the model failed: {error}", f"python: {ref}", "check its arguments") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"'{ref}' gave {type(module).__name__}", "python", "return a torch.nn.Module")
    if not module.training:
        module.train()
    config: Any = getattr(module, "config", None)
    if config is not None and getattr(config, "use_cache", False) is True:
        config.use_cache = False
    module.register_forward_hook(_give_logits)
    return module


def _give_logits(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor:
    tokens = inputs[0] if inputs else None
    return find_logits(output, tuple(tokens.shape) if isinstance(tokens, Tensor) else None)


def find_logits(output: Any, shape: tuple[int, ...] | None = None) -> Tensor:
    """The logits in a model's output, for tokens of a `shape` (B, T) if known; UserError for none of [B, T, V]."""
    logits: Any = output
    if isinstance(output, Mapping):
        logits = output.get("logits")
    elif hasattr(output, "logits"):
        logits = output.logits
    elif isinstance(output, (tuple, list)) and output:
        logits = output[0]
    if not isinstance(logits, Tensor):
        how = "return logits [B, T, V], a tuple that begins with them, a dict or an object that has 'logits'"
        keys = f" of {', '.join(map(str, list(output)[:4])) or 'nothing'}" if isinstance(output, Mapping) else ""
        raise UserError(f"the model's forward gave a {type(output).__name__}{keys}", "model", how)
    if not logits.is_floating_point() or logits.dim() != 3 or (shape and tuple(logits.shape[:2]) != shape):
        expected = f"[{shape[0]}, {shape[1]}, V]" if shape and len(shape) == 2 else "[B, T, V]"
        problem = f"the model's logits are {str(logits.dtype).removeprefix('torch.')} {list(logits.shape)}"
        how = f"give real numbers of shape {expected}: one row of V for every token of the input"
        raise UserError(problem, "model", how)
    return logits
