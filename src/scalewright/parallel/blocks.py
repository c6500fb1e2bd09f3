"""The repeated blocks of a model: the units that are sharded, recomputed, compiled and offloaded.

    GPT                          instances of a class in lists of equal modules      memory freed
      blocks: 6 x Block          6 Blocks       98% of the parameters                98% - 16%  <- chosen
        heads: 8 x Head          48 Heads       30%                                  30% - 1%

A sharded unit is gathered whole while it runs, so a choice of units saves the parameters of all of them but
the largest. Counting modules instead would take the 8 heads of the first block.
"""

from __future__ import annotations

from torch import nn

from scalewright.model.decoder import Decoder


def blocks_of(stage: nn.Module) -> list[nn.Module]:
    """The blocks of a model of ours, or of one stage of it, as it lists them; a user's are searched for."""
    return stage.blocks if isinstance(stage, Decoder) else find_blocks(stage)


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The model's repeated blocks in order: the modules of one class, in lists of equal siblings, that save
    the most memory as units of sharding.

    An instance inside of another of its class is part of that one. A model without such a list has no blocks.
    """
    by_class: dict[type[nn.Module], list[nn.Module]] = {}
    inside: dict[type[nn.Module], set[int]] = {}  # ids of all modules within the instances of a class
    for module in model.modules():
        if not isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            continue
        siblings = list(module.children())
        if len({type(sibling) for sibling in siblings}) != 1:
            continue
        kind = type(siblings[0])
        nested = inside.setdefault(kind, set())
        for sibling in siblings:
            if id(sibling) not in nested:
                by_class.setdefault(kind, []).append(sibling)
                nested.update(id(part) for part in sibling.modules())
    blocks = max(by_class.values(), key=_saved, default=[])
    return [block for block in blocks if any(True for _ in block.parameters())]


def _saved(blocks: list[nn.Module]) -> tuple[int, int]:
    """Parameters that need not be gathered while one of the blocks runs; all that they hold breaks a tie."""
    sizes = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks]
    return sum(sizes) - max(sizes), sum(sizes)
