"""Other trainers' names of tensors, as tables: ours -> theirs, and which rows of theirs are ours.

    ours                        torchtitan                     Megatron-LM
    layers.3.attention.q        layers.3.attention.wq          decoder.layers.3.self_attention.linear_qkv
                                rows of a head in pairs        of each group of heads: its q heads, k, v
    layers.3.mlp.up             layers.3.feed_forward.w3       decoder.layers.3.mlp.linear_fc1, second half
    layers.3.mlp.experts.up     layers.3.moe.experts.w3        ...mlp.experts.experts.linear_fc1, of each

A line has every name that versions of the trainer gave it. Sources: torchtitan 0.1 to 0.3 `models/*/model.py` and
`state_dict_adapter.py`; Megatron Core 0.19 `models/gpt`, `transformer/attention.py` (`get_query_key_value_tensors`);
nanotron 0.4 `models/llama.py`. What their checkpoints have under Hugging Face's names is in `model/names.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scalewright.model.names import FusedRows, Location
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import tensors

RowsOf = Callable[[ModelSpec, str, tuple[int, ...]], FusedRows]  # (model, module, shape)

# {n}: layer; {k}: weight or bias. A parameter that isn't called `weight` has its whole name.
_TORCHTITAN = {
    "embed": ["tok_embeddings.{k}"],
    "norm": ["norm.{k}"],
    "head": ["lm_head.{k}", "output.{k}"],
    "attention_norm": ["layers.{n}.attention_norm.{k}"],
    "attention.q": ["layers.{n}.attention.qkv_linear.wq.{k}", "layers.{n}.attention.wq.{k}"],
    "attention.k": ["layers.{n}.attention.qkv_linear.wk.{k}", "layers.{n}.attention.wk.{k}"],
    "attention.v": ["layers.{n}.attention.qkv_linear.wv.{k}", "layers.{n}.attention.wv.{k}"],
    "attention.q_norm": ["layers.{n}.attention.q_norm.{k}"],
    "attention.k_norm": ["layers.{n}.attention.k_norm.{k}"],
    "attention.o": ["layers.{n}.attention.wo.{k}"],
    "mlp_norm": ["layers.{n}.ffn_norm.{k}"],
    "mlp.gate": ["layers.{n}.feed_forward.w1.{k}"],
    "mlp.up": ["layers.{n}.feed_forward.w3.{k}"],
    "mlp.down": ["layers.{n}.feed_forward.w2.{k}"],
    "mlp.router": ["layers.{n}.moe.router.gate.{k}"],
    "mlp.experts.gate": ["layers.{n}.moe.routed_experts.inner_experts.w1_EFD", "layers.{n}.moe.experts.w1"],
    "mlp.experts.up": ["layers.{n}.moe.routed_experts.inner_experts.w3_EFD", "layers.{n}.moe.experts.w3"],
    "mlp.experts.down": ["layers.{n}.moe.routed_experts.inner_experts.w2_EDF", "layers.{n}.moe.experts.w2"],
}
_LAYER = "decoder.layers.{n}."
_MEGATRON = {
    "embed": ["embedding.word_embeddings.{k}"],
    "positions": ["embedding.position_embeddings.{k}"],
    "norm": ["decoder.final_layernorm.{k}"],
    "head": ["output_layer.{k}"],
    "attention_norm": [
        _LAYER + "input_layernorm.{k}",
        _LAYER + "self_attention.linear_qkv.layer_norm_{k}",  # Transformer Engine's fused norm
    ],
    "attention.q": [_LAYER + "self_attention.linear_qkv.{k}"],
    "attention.k": [_LAYER + "self_attention.linear_qkv.{k}"],
    "attention.v": [_LAYER + "self_attention.linear_qkv.{k}"],
    "attention.q_norm": [_LAYER + "self_attention.q_layernorm.{k}"],
    "attention.k_norm": [_LAYER + "self_attention.k_layernorm.{k}"],
    "attention.o": [_LAYER + "self_attention.linear_proj.{k}"],
    "mlp_norm": [_LAYER + "pre_mlp_layernorm.{k}", _LAYER + "mlp.linear_fc1.layer_norm_{k}"],
    "mlp.gate": [_LAYER + "mlp.linear_fc1.{k}"],
    "mlp.up": [_LAYER + "mlp.linear_fc1.{k}"],
    "mlp.down": [_LAYER + "mlp.linear_fc2.{k}"],
    "mlp.router": [_LAYER + "mlp.router.{k}"],
    "mlp.experts.gate": [_LAYER + "mlp.experts.experts.linear_fc1.{k}"],
    "mlp.experts.up": [_LAYER + "mlp.experts.experts.linear_fc1.{k}"],
    "mlp.experts.down": [_LAYER + "mlp.experts.experts.linear_fc2.{k}"],
}
_BLOCK = "decoder.{n}.pp_block."
_NANOTRON = {
    "embed": ["token_position_embeddings.pp_block.token_embedding.{k}"],
    "norm": ["final_layer_norm.pp_block.{k}"],
    "head": ["lm_head.pp_block.{k}"],
    "attention_norm": [_BLOCK + "input_layernorm.{k}"],
    "attention.q": [_BLOCK + "attn.qkv_proj.{k}"],
    "attention.k": [_BLOCK + "attn.qkv_proj.{k}"],
    "attention.v": [_BLOCK + "attn.qkv_proj.{k}"],
    "attention.o": [_BLOCK + "attn.o_proj.{k}"],
    "mlp_norm": [_BLOCK + "post_attention_layernorm.{k}"],
    "mlp.gate": [_BLOCK + "mlp.gate_up_proj.{k}"],
    "mlp.up": [_BLOCK + "mlp.gate_up_proj.{k}"],
    "mlp.down": [_BLOCK + "mlp.down_proj.{k}"],
}


def _plain(spec: ModelSpec, module: str, shape: tuple[int, ...]) -> FusedRows:
    return FusedRows(0, shape[0], shape[0], shape[0])


def _halves(spec: ModelSpec, module: str, shape: tuple[int, ...]) -> FusedRows:
    """Gate's rows, then up's; a model without a gate has up alone."""
    if not spec.gated:
        return _plain(spec, module, shape)
    return FusedRows(shape[0] if module.endswith(".up") else 0, shape[0], shape[0], 2 * shape[0])


def _by_group(spec: ModelSpec, module: str, shape: tuple[int, ...]) -> FusedRows:
    """Megatron: each group of heads that share k and v has its q heads, then k, then v."""
    if module in ("mlp.gate", "mlp.up", "mlp.experts.gate", "mlp.experts.up"):
        return _halves(spec, module, shape)
    if module not in ("attention.q", "attention.k", "attention.v"):
        return _plain(spec, module, shape)
    head, groups = spec.dim_per_head, spec.kv_heads
    heads = spec.num_attention_heads // groups
    start = {"attention.q": 0, "attention.k": heads, "attention.v": heads + 1}[module] * head
    size, stride = (heads if module == "attention.q" else 1) * head, (heads + 2) * head
    return FusedRows(start, size, stride, stride * groups)


def _one_after_another(spec: ModelSpec, module: str, shape: tuple[int, ...]) -> FusedRows:
    """nanotron: all of q, all of k, all of v."""
    if module in ("mlp.gate", "mlp.up"):
        return _halves(spec, module, shape)
    if module not in ("attention.q", "attention.k", "attention.v"):
        return _plain(spec, module, shape)
    head = spec.dim_per_head
    q, k = spec.num_attention_heads * head, spec.kv_heads * head
    start = {"attention.q": 0, "attention.k": q, "attention.v": q + k}[module]
    return FusedRows(start, shape[0], shape[0], q + 2 * k)


@dataclass(frozen=True)
class Naming:
    """A trainer's names. `pairs`: families whose q and k have the rows of each head in pairs for RoPE."""

    title: str
    modules: dict[str, list[str]]
    families: frozenset[str]
    rows: RowsOf = _plain
    pairs: frozenset[str] = field(default_factory=frozenset)
    padded: bool = False  # embedding and head may have rows behind the vocabulary

    def locations(self, spec: ModelSpec) -> dict[str, Location]:
        """Where every tensor of the model lies; raises UserError for a part that has no name there."""
        if spec.family not in self.families:
            known = ", ".join(sorted(self.families))
            what = f"{self.title} checkpoints of the family '{spec.family}' aren't read"
            raise UserError(what, f"model '{spec.name}'", f"save it in Hugging Face's format there (read: {known})")
        by_name = {t.name: self._location(spec, t.name, t.shape) for t in tensors(spec)}
        return by_name | {t.tied_to: by_name[t.name] for t in tensors(spec) if t.tied_to is not None}

    def _location(self, spec: ModelSpec, name: str, shape: tuple[int, ...]) -> Location:
        names = self.names(name)
        module = name.rsplit(".", 1)[0].split(".", 2)[-1] if name.startswith("layers.") else name.rsplit(".", 1)[0]
        if not names:
            how = "check --model"
            raise UserError(f"'{name}' has no name in {self.title} checkpoints", f"model '{spec.name}'", how)
        stacked = len(shape) == 3  # experts, on both sides
        experts, matrix = (shape[:1], shape[1:]) if stacked else ((), shape)
        rows = self.rows(spec, module, matrix)
        stored = (*experts, rows.total, *matrix[1:])
        return Location(names[0], shape, stored, rows, False, tuple(names[1:]), stacked=stacked)

    def names(self, name: str) -> list[str]:
        """Their names for one of ours, of every version; none: it has no such part."""
        module, kind = name.rsplit(".", 1)
        layer = ""
        if module.startswith("layers."):
            _, layer, module = module.split(".", 2)
        return [n.replace("{n}", layer).replace("{k}", kind) for n in self.modules.get(module, [])]


_LLAMA_LIKE = frozenset(("llama", "mistral"))
_IN_MEGATRON = _LLAMA_LIKE | {"qwen2", "qwen3", "gpt2", "mixtral", "qwen3_moe"}
NAMINGS = {
    "torchtitan": Naming("torchtitan", _TORCHTITAN, _LLAMA_LIKE | {"qwen3", "qwen3_moe"}, pairs=_LLAMA_LIKE),
    "megatron": Naming("Megatron-LM", _MEGATRON, _IN_MEGATRON, _by_group, padded=True),
    "nanotron": Naming("nanotron", _NANOTRON, frozenset({"llama"}), _one_after_another),
}
