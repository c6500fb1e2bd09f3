"""A model's parts: the stages of one pipeline rank, each a cut of the decoder, and the blocks of a stage.

    pp 2, 1f1b            rank 0: stage 0 [embed, layers 0-3]      rank 1: stage 1 [layers 4-7, norm, head]
    pp 2, zbv (a V)       rank 0: stages 0 and 3                   rank 1: stages 1 and 2

The last stage uses the embedding, too, where the head is tied to it or prediction modules look tokens up.
Where both ends are on one rank (a V), there is one parameter: the last stage borrows it. Elsewhere each end
holds a copy, and their gradients are summed over `tie` (weights.py).

Blocks are the repeated units that are sharded, recomputed, compiled and offloaded:

    GPT                          instances of a class in lists of equal modules      memory freed
      blocks: 6 x Block          6 Blocks       98% of the parameters                98% - 16%  <- chosen
        heads: 8 x Head          48 Heads       30%                                  30% - 1%

A sharded unit is gathered whole while it runs, so a choice of units saves the parameters of all of them but
the largest. Counting modules instead would take the 8 heads of the first block.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from torch import Tensor, nn

from scalewright.model.decoder import Decoder
from scalewright.model.gpu_rows import Packing
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import stage_layers
from scalewright.spec.schedule import stage_ranks


class Stages(nn.Module):
    """The stages of one pipeline rank; called by the pipeline, never whole."""

    def __init__(self, stages: dict[int, Decoder]) -> None:
        super().__init__()
        self.cuts = nn.ModuleDict({str(stage): cut for stage, cut in sorted(stages.items())})

    @property
    def stages(self) -> dict[int, nn.Module]:
        """The cuts by stage number, in model order."""
        return {int(stage): cut for stage, cut in self.cuts.items()}

    def forward(
        self, tokens: Tensor, positions: Tensor | None = None, documents: Tensor | None = None,
        packing: Packing | None = None, ahead: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Raises; the signature is that of each stage."""
        raise RuntimeError("a pipeline runs its stages one by one")


def stages_of(model: nn.Module) -> dict[int, nn.Module]:
    """The stages that a module stands for: its own, or itself as stage 0."""
    return model.stages if isinstance(model, Stages) else {0: model}


def cut_stages(model: ModelSpec, layout: Layout, rank: int) -> Decoder | Stages:
    """A pipeline rank's stages, on torch's default device; without a pipeline the whole decoder."""
    if layout.pp == 1:
        return Decoder(model)
    owners = stage_ranks(layout.schedule, layout.pp, layout.virtual_stages)
    ends = list(accumulate(stage_layers(model, layout), initial=0))
    last = len(owners) - 1
    used = model.tie_word_embeddings or model.mtp_layers > 0
    borrowed = used and owners[0] == owners[last]
    cuts = {}
    for stage in (stage for stage, owner in enumerate(owners) if owner == rank):
        layers, is_last = range(ends[stage], ends[stage + 1]), stage == last
        cuts[stage] = Decoder(model, layers, first=stage == 0, last=is_last, borrows=is_last and borrowed)
    if borrowed and rank == owners[0]:
        lender = cuts[0]
        cuts[last].lender = lambda: _embedding(lender)
    return Stages(cuts)


def _embedding(lender: Decoder) -> nn.Module:
    assert lender.embed is not None
    return lender.embed


def tied_stages(stages: Mapping[int, nn.Module]) -> frozenset[int]:
    """The stages of a rank that share one embedding (both ends of a V), its holder first; mostly none."""
    borrowers = [number for number, stage in stages.items() if getattr(stage, "lender", None) is not None]
    return frozenset({min(stages), *borrowers}) if borrowers else frozenset()


def add_auxiliary(stage: nn.Module, loss: Tensor) -> None:
    """Adds to the auxiliary loss of a stage's running forward."""
    before: Tensor | None = getattr(stage, "auxiliary", None)
    stage.__dict__["auxiliary"] = loss if before is None else before + loss


def take_auxiliary(module: nn.Module) -> Tensor | None:
    """The auxiliary loss that a stage left in `module.auxiliary`, taken once; None when it has none."""
    auxiliary: Tensor | None = getattr(module, "auxiliary", None)
    if auxiliary is not None:
        module.__dict__["auxiliary"] = None
    return auxiliary


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
