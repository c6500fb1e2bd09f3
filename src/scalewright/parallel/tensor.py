"""Tensor and sequence parallelism: every block's matrices are cut over the ranks of `tp`.

    module (`*`: of every block)    cut of the weight      input       output
    embed                           rows (vocabulary)                  leave; other ranks' tokens give 0
    positions                                              slice
    * attention                                            enter
    * attention.q, k, v             rows (heads)
    * attention.sinks               rows (heads)
    * attention.q_norm, k_norm      rows (heads)                       means over all ranks' heads
    * attention.o                   columns (heads)                    leave, then the bias
    * attention, latent                                    nothing
    * attention.q, q_up             rows (heads)           enter
    * attention.latents                                    enter
    * attention.kv_up               rows (heads)
    * mlp                                                  enter
    * mlp.gate, up                  rows (units)
    * mlp.down                      columns (units)                    leave, then the bias
    * mlp of experts                                                   (each rank routes T/tp tokens)
    * mlp.shared                                           enter, as an MLP's
    head, or the embedding's weight rows (vocabulary)      enter       logits of the rank's part

                              enter                       leave                       slice
    sp off    x [B,T,D]       copy_to                     sum_over                    nothing
    sp on     x [B,T/tp,D]    gather_sum -> [B,T,D]       sum_scatter -> [B,T/tp,D]   the rank's T/tp tokens

(Shoeybi et al. 2019, arXiv 1909.08053 §3; with sequence parallelism, Korthikanti et al. 2022, 2205.05198 §4.) Weights
are [out, in]: column-parallel layers keep rows of them, row-parallel ones columns. With sp the residual stream, and
with it every norm, has T/tp tokens of each row on a rank; without, the same T on all. A block keeps its part of an
entered input alone, and gathers it again in the backward (`Regather`). A norm of single heads (`qk_norm: head`) stays
whole. Latent attention's projections down stay whole too: with sp they take T/tp tokens, and their small outputs are
gathered in place of x. Of a prediction module only its block is cut (`*`).

The model stays plain: `cut_parameters` replaces parameters by smaller ones, as `spec/placement.py` places them, and
`apply_tensor` wraps the `forward` of the modules in PLAN. Attention counts its heads from the shapes. Where tp exceeds
the KV heads, neighbouring ranks hold copies of one head, each with the part of the gradient that its own queries give.

    forward     part [B,T/tp,D] --all-gather--> whole [B,T,D] --> q, k, v          whole is freed,
                  '--- kept                                                        its part stays
    backward    part --all-gather--> whole --> the weights' gradients of q, k, v   one more all-gather

(Korthikanti et al. 2022 §4.2.2.) Without it the inputs of q, k, v and of gate and up would be the only activations that
sequence parallelism doesn't divide by tp: at tp 8 about as much as all the rest. Layers that share an input share the
gathered tensor; it dies with the last of them, also in a backward of two parts. Where a block is recomputed nothing is
kept, and its gather runs again anyway. A compiled block keeps the tensors that its compiler chooses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from scalewright.model.decoder import Decoder
from scalewright.model.moe import MoE
from scalewright.model.norm import LayerNorm, RMSNorm
from scalewright.parallel.functions import (
    AxisGroup,
    axis_group,
    copy_to,
    gather_slice,
    gather_sum,
    gathered,
    local_part,
    sum_both,
    sum_over,
    sum_scatter,
)
from scalewright.parallel.mesh import Mesh
from scalewright.spec.layout import Layout
from scalewright.spec.placement import Placement, local_shape
from scalewright.spec.volumes import regathers

Change = Callable[[Tensor], Tensor]
SEQUENCE = 1  # the dim of [B, T, D] that sp cuts


class Rule(NamedTuple):
    """How tensor parallelism changes one module; see the table above."""

    cut: Literal["", "rows", "columns"] = ""
    input: Literal["", "enter", "slice"] = ""
    output: Literal["", "leave", "means"] = ""


PLAN = {
    "embed": Rule("rows", output="leave"),
    "positions": Rule(input="slice"),
    "layers.*.attention": Rule(input="enter"),
    "layers.*.attention.q": Rule("rows"),
    "layers.*.attention.k": Rule("rows"),
    "layers.*.attention.v": Rule("rows"),
    "layers.*.attention.q_norm": Rule("rows", output="means"),
    "layers.*.attention.k_norm": Rule("rows", output="means"),
    "layers.*.attention.o": Rule("columns", output="leave"),
    "layers.*.mlp": Rule(input="enter"),
    "layers.*.mlp.gate": Rule("rows"),
    "layers.*.mlp.up": Rule("rows"),
    "layers.*.mlp.down": Rule("columns", output="leave"),
    "layers.*.mlp.shared": Rule(input="enter"),
    "layers.*.mlp.shared.gate": Rule("rows"),
    "layers.*.mlp.shared.up": Rule("rows"),
    "layers.*.mlp.shared.down": Rule("columns", output="leave"),
    "head": Rule("rows"),  # the input enters in `decoder.logits`, since a tied head is no module
}


# In place of these, in a model with latent attention.
LATENT = {
    "layers.*.attention": Rule(),
    "layers.*.attention.q": Rule("rows", input="enter"),
    "layers.*.attention.q_up": Rule("rows", input="enter"),
    "layers.*.attention.latents": Rule(input="enter"),
    "layers.*.attention.kv_up": Rule("rows"),
}


def rule_of(name: str, latent: bool = False) -> Rule:
    """The rule of a module, by its name in the decoder; an empty one for modules that stay as they are.

    `latent`: the model has latent attention.
    """
    key = re.sub(r"^(layers\.\d+|mtp\.\d+\.block)(?=\.|$)", "layers.*", name)
    return LATENT[key] if latent and key in LATENT else PLAN.get(key, Rule())


def apply_tensor(decoder: Decoder, layout: Layout, mesh: Mesh) -> None:
    """Makes a decoder, or a pipeline's cut of one, compute with its tp-local parameters, in place.

    Logits are then this rank's part of the vocabulary (see `parallel/cross_entropy.py`). Hidden states that
    enter and leave a cut are [B, T, D], or [B, T/tp, D] with sp.
    """
    if mesh.size("tp") == 1:
        return
    group = axis_group(mesh, "tp")
    enter, leave = boundaries(group, sequence=layout.sp)
    heads = decoder.spec.num_attention_heads // group.size
    decoder.heads = range(group.index * heads, (group.index + 1) * heads)
    decoder.sequence_parts = group.size if layout.sp else 1
    for name, module in decoder.named_modules():
        if isinstance(module, MoE):
            if not layout.sp:
                _route_part(module, group)
            continue
        rule = rule_of(name, latent=decoder.spec.mla is not None)
        match rule.input:
            case "enter" if regathers(layout) and (takers := _column_parallel(name, module)):
                regather = Regather(takers, SEQUENCE, group)
                _change_input(module, regather.enter, regather.leave)
            case "enter":
                _change_input(module, enter)
            case "slice" if layout.sp:
                _change_input(module, partial(local_part, dim=SEQUENCE, group=group))
        match rule.cut, rule.output:
            case "rows", "leave":
                _look_up_rows(module, leave, group)
            case "rows", "means" if decoder.spec.qk_norm == "full":
                _norm_over_ranks(module, group)
            case "columns", "leave":
                _sum_columns(module, leave)
    if decoder.last:
        whole = decoder.logits
        decoder.logits = lambda hidden, product=None: whole(enter(hidden), product)  # type: ignore[method-assign]


def _route_part(moe: MoE, group: AxisGroup) -> None:
    """Without sp all ranks have the same tokens: each routes its part of them, and gets what others did."""
    routed = moe.routed

    def run(x: Tensor) -> Tensor:
        return gather_slice(routed(local_part(copy_to(x, group), SEQUENCE, group)), SEQUENCE, group)

    moe.routed = run  # type: ignore[method-assign]


def boundaries(group: AxisGroup, *, sequence: bool) -> tuple[Change, Change]:
    """`enter` and `leave`: applied where a tensor-parallel part begins, and where it ends."""
    if sequence:
        return partial(gather_sum, dim=SEQUENCE, group=group), partial(sum_scatter, dim=SEQUENCE, group=group)
    return partial(copy_to, group=group), partial(sum_over, group=group)


def _column_parallel(name: str, module: nn.Module) -> list[nn.Linear]:
    """The linear layers that take a module's gathered input: its children, or itself; perhaps none."""
    if isinstance(module, nn.Linear):
        return [module]
    return [
        child
        for key, child in module.named_children()
        if isinstance(child, nn.Linear) and rule_of(f"{name}.{key}").cut == "rows"
    ]


def cut_parameters(decoder: nn.Module, placements: Iterable[Placement], mesh: Mesh) -> None:
    """Replaces every parameter by an empty one of its local shape in tp, ep and etp, padding included.

    In place, before anything is allocated: parameters are on the meta device. Dimensions that FSDP will cut
    stay whole. Raises ValueError for a parameter that holds numbers already.
    """
    shapes = {}
    for placement in placements:
        inner = replace(placement, splits=tuple(s for s in placement.splits if s.axis in ("tp", "ep", "etp")))
        shape = local_shape(inner, mesh.coords, mesh.grid.size_of)
        shapes[placement.tensor.name] = shape
        if placement.tensor.tied_to is not None:
            shapes[placement.tensor.tied_to] = shape
    for name, parameter in list(decoder.named_parameters()):
        if tuple(parameter.shape) == shapes[name]:
            continue
        if not parameter.is_meta:
            raise ValueError(f"parameter '{name}' is allocated: cut it on the meta device")
        path, _, key = name.rpartition(".")
        smaller = torch.empty(shapes[name], dtype=parameter.dtype, device="meta")
        module = decoder.get_submodule(path)
        setattr(module, key, nn.Parameter(smaller, requires_grad=parameter.requires_grad))
        if isinstance(module, nn.Linear) and key == "weight":
            module.out_features, module.in_features = shapes[name]  # for `print(model)`


def _change_input(module: nn.Module, change: Change, after: Callable[[], None] | None = None) -> None:
    forward = module.forward

    def run(x: Tensor, *rest: object) -> Tensor:
        out: Tensor = forward(change(x), *rest)
        if after is not None:
            after()
        return out

    _replace_forward(module, run)


def _sum_columns(linear: nn.Module, leave: Change) -> None:
    """Row-parallel: each rank's columns give a part of every output; the bias is added once, to the sum."""
    assert isinstance(linear, nn.Linear)

    def run(x: Tensor) -> Tensor:
        out = leave(F.linear(x, linear.weight))
        return out if linear.bias is None else out + linear.bias

    _replace_forward(linear, run)


def _look_up_rows(embed: nn.Module, leave: Change, group: AxisGroup) -> None:
    """Each rank looks up the tokens whose rows it has; the others are zero there, so the sum is exact."""
    assert isinstance(embed, nn.Embedding)

    def run(tokens: Tensor) -> Tensor:
        rows = embed.weight.shape[0]
        local = tokens - group.index * rows
        elsewhere = (local < 0) | (local >= rows)
        hidden = F.embedding(local.masked_fill(elsewhere, 0), embed.weight)
        return leave(hidden.masked_fill(elsewhere[..., None], 0.0))

    _replace_forward(embed, run)


def _norm_over_ranks(norm: nn.Module, group: AxisGroup) -> None:
    """A norm over all heads when each rank has some: its statistics are means over the group. Copies of KV heads need
    nothing more: each head is in the mean equally often, and each copy gets its share of the gradient."""
    assert isinstance(norm, RMSNorm | LayerNorm)

    def mean(x: Tensor) -> Tensor:
        return sum_both(x.sum(dim=-1, keepdim=True), group) / (x.shape[-1] * group.size)

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


class _Input:
    """One forward's gathered input; the saved tensors that hold it keep this object alive."""

    def __init__(self, part: Tensor, whole: Tensor, dim: int, group: AxisGroup) -> None:
        self.part, self.dim, self.group = part.detach(), dim, group
        self.storage = whole.untyped_storage()._cdata  # whose saved views are to be replaced
        self.again: Tensor | None = None

    def pack(self, saved: Tensor) -> Any:
        if saved.untyped_storage()._cdata != self.storage:
            return saved
        return saved.shape, saved.stride(), saved.storage_offset()

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if self.again is None:
            self.again = gathered(self.part, self.dim, self.group)
        return self.again.as_strided(*packed)


class Regather:
    """Gathers the input of some linear layers, which then keep its part alone."""

    def __init__(self, linears: Iterable[nn.Linear], dim: int, group: AxisGroup) -> None:
        self.dim, self.group = dim, group
        self._input: _Input | None = None
        for linear in linears:
            linear.forward = partial(self._run, linear)  # type: ignore[method-assign]

    def enter(self, part: Tensor) -> Tensor:
        """The whole input; the linears that take it must come before `leave`."""
        whole = gather_sum(part, self.dim, self.group)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._input = _Input(part, whole, self.dim, self.group)
        return whole

    def leave(self) -> None:
        """Forgets the input: from here on only the graph refers to it."""
        if not torch.compiler.is_compiling():
            self._input = None

    def _run(self, linear: nn.Linear, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or self._input is None:
            return F.linear(x, linear.weight, linear.bias)
        with saved_tensors_hooks(self._input.pack, self._input.unpack):
            return F.linear(x, linear.weight, linear.bias)
