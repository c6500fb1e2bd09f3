"""Tensor and sequence parallelism: every block's matrices are cut over the ranks of `tp`, by hand.

               x --enter--> column-parallel --> own heads or units --> row-parallel --leave--> + bias
    sp off     [B,T,D]      copy_to                                                 sum_over
    sp on      [B,T/tp,D]   gather_sum                                              sum_scatter

(Shoeybi et al. 2019, arXiv 1909.08053 §3; with sequence parallelism, Korthikanti et al. 2022, 2205.05198 §4.)
Column-parallel weights keep some of their rows (q, k, v, gate, up, head, embedding), row-parallel ones some
of their columns (o, down). With sp the residual stream, and with it every norm, has T/tp tokens of each row
on a rank; without, the same T on all.

The model stays plain: parameters are replaced by smaller ones, as `spec/placement.py` says, and some modules'
`forward` is wrapped. Attention counts its heads from the shapes. Where tp exceeds the KV heads, neighbouring
ranks hold copies of one head, each with the part of the gradient that its own queries give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scalewright.model.attention import Attention
from scalewright.model.block import Block
from scalewright.model.decoder import Decoder
from scalewright.model.mlp import MLP
from scalewright.model.norm import LayerNorm, RMSNorm
from scalewright.parallel.functions import (
    Team,
    copy_to,
    gather_sum,
    make_team,
    own_part,
    sum_both,
    sum_over,
    sum_scatter,
)
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.regather import Regather
from scalewright.spec.layout import Layout
from scalewright.spec.placement import Placement, local_shape
from scalewright.spec.traffic import regathers

Change = Callable[[Tensor], Tensor]
SEQUENCE = 1  # the dim of [B, T, D] that sp cuts


def cut_parameters(decoder: nn.Module, placements: Iterable[Placement], mesh: Mesh) -> None:
    """Replaces every parameter by an empty one of its tp-local shape, padding of even cuts included.

    In place, before anything is allocated: parameters are on the meta device. What FSDP will cut stays whole.
    Raises ValueError for a parameter that holds numbers already.
    """
    shapes = {}
    for placement in placements:
        inner = replace(placement, splits=tuple(s for s in placement.splits if s.axis == "tp"))
        shape = local_shape(inner, mesh.coords, mesh.grid.size_of)
        shapes[placement.tensor.name] = shape
        if placement.tensor.tied_to is not None:
            shapes[placement.tensor.tied_to] = shape
    for name, parameter in list(decoder.named_parameters()):
        if tuple(parameter.shape) == shapes[name]:
            continue
        if not parameter.is_meta:
            raise ValueError(f"parameter '{name}' is allocated: cut it on the meta device")
        path, _, own = name.rpartition(".")
        smaller = torch.empty(shapes[name], dtype=parameter.dtype, device="meta")
        module = decoder.get_submodule(path)
        setattr(module, own, nn.Parameter(smaller, requires_grad=parameter.requires_grad))
        if isinstance(module, nn.Linear) and own == "weight":
            module.out_features, module.in_features = shapes[name]  # what `print(model)` shows


def apply_tensor(decoder: Decoder, layout: Layout, mesh: Mesh) -> None:
    """Makes a decoder, or a pipeline's cut of one, compute with its tp-local parameters, in place.

    Logits are then this rank's part of the vocabulary (see `parallel/vocabulary.py`). Hidden states that
    enter and leave a cut are [B, T, D], or [B, T/tp, D] with sp.
    """
    if mesh.size("tp") == 1:
        return
    team = make_team(mesh, "tp")
    enter, leave = boundaries(team, sequence=layout.sp)
    own = decoder.spec.num_attention_heads // team.size
    decoder.heads = range(team.index * own, (team.index + 1) * own)
    decoder.sequence_parts = team.size if layout.sp else 1
    if decoder.embed is not None:
        _cut_vocabulary(decoder.embed, leave, team)
    if decoder.positions is not None and layout.sp:
        _change_input(decoder.positions, partial(own_part, dim=SEQUENCE, team=team))
    for block in decoder.layers.values():
        assert isinstance(block, Block)
        _cut_block(block, enter, leave, team, regather=regathers(layout))
    if decoder.last:
        whole = decoder.logits
        decoder.logits = lambda hidden: whole(enter(hidden))  # type: ignore[method-assign]


def boundaries(team: Team, *, sequence: bool) -> tuple[Change, Change]:
    """What happens where a tensor-parallel part begins, and where it ends."""
    if sequence:
        return partial(gather_sum, dim=SEQUENCE, team=team), partial(sum_scatter, dim=SEQUENCE, team=team)
    return partial(copy_to, team=team), partial(sum_over, team=team)


def _cut_block(block: Block, enter: Change, leave: Change, team: Team, *, regather: bool) -> None:
    """Attention and MLP each begin with their columns and end with their rows."""
    attention, mlp = block.attention, block.mlp
    assert isinstance(attention, Attention)
    assert isinstance(mlp, MLP)
    if regather:
        _regather_input(attention, Regather([attention.q, attention.k, attention.v], SEQUENCE, team))
        _regather_input(mlp, Regather([mlp.gate, mlp.up], SEQUENCE, team))
    else:
        _change_input(attention, enter)
        _change_input(mlp, enter)
    _sum_rows(attention.o, leave)
    _sum_rows(mlp.down, leave)
    if attention.q_norm is not None and attention.k_norm is not None and not attention.norm_per_head:
        _norm_over_ranks(attention.q_norm, team)
        _norm_over_ranks(attention.k_norm, team)


def _regather_input(module: nn.Module, regather: Regather) -> None:
    forward = module.forward

    def run(x: Tensor, *rest: object) -> Tensor:
        out: Tensor = forward(regather.enter(x), *rest)
        regather.leave()
        return out

    _replace_forward(module, run)


def _change_input(module: nn.Module, change: Change) -> None:
    forward = module.forward

    def run(x: Tensor, *rest: object) -> Tensor:
        out: Tensor = forward(change(x), *rest)
        return out

    _replace_forward(module, run)


def _sum_rows(linear: nn.Linear, leave: Change) -> None:
    """Row-parallel: each rank's columns give a part of every output; the bias is added once, to the sum."""

    def run(x: Tensor) -> Tensor:
        out = leave(F.linear(x, linear.weight))
        return out if linear.bias is None else out + linear.bias

    _replace_forward(linear, run)


def _cut_vocabulary(embed: nn.Embedding, leave: Change, team: Team) -> None:
    """Each rank looks up the tokens whose rows it has; the others are zero there, so the sum is exact."""

    def run(tokens: Tensor) -> Tensor:
        rows = embed.weight.shape[0]
        local = tokens - team.index * rows
        elsewhere = (local < 0) | (local >= rows)
        found = F.embedding(local.masked_fill(elsewhere, 0), embed.weight)
        return leave(found.masked_fill(elsewhere[..., None], 0.0))

    _replace_forward(embed, run)


def _norm_over_ranks(norm: nn.Module, team: Team) -> None:
    """A norm over all heads when each rank has some: its statistics are means over the team.

    Copies of KV heads need nothing more: each head is in the mean equally often, and each copy gets its
    share of the gradient.
    """
    assert isinstance(norm, RMSNorm | LayerNorm)

    def mean(x: Tensor) -> Tensor:
        return sum_both(x.sum(dim=-1, keepdim=True), team) / (x.shape[-1] * team.size)

    def run(x: Tensor) -> Tensor:
        wide = x.float()
        if isinstance(norm, LayerNorm):
            wide = wide - mean(wide)
        wide = wide * torch.rsqrt(mean(wide.square()) + norm.eps)
        if norm.weight is not None:
            plus_one = isinstance(norm, RMSNorm) and norm.plus_one
            wide = wide * (norm.weight.float() + 1.0 if plus_one else norm.weight)
        if isinstance(norm, LayerNorm) and norm.bias is not None:
            wide = wide + norm.bias
        return wide.to(x.dtype)

    _replace_forward(norm, run)


def _replace_forward(module: nn.Module, run: Callable[..., Tensor]) -> None:
    module.forward = run
