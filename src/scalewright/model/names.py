"""Where each tensor of ours lies in a Hugging Face file: the name, the rows, and whether it is transposed.

    ours                          theirs                                  rows of theirs
    layers.3.attention.q.weight   model.layers.3.self_attn.q_proj.weight  all
    layers.3.attention.k.weight   transformer.h.3.attn.c_attn.weight      D..2D, transposed  (GPT-2)
    layers.3.attention.v.weight   ...attention.query_key_value.weight     2K..3K of each 3K  (NeoX, BLOOM)
    layers.3.mlp.experts.gate...  model.layers.3.mlp.experts.gate_up_proj 0, 2, 4 .., transposed  (gpt-oss)

No parameter of ours is fused, so every fused one of theirs is a union of ours: row r of ours is row
start + (r // block) * stride + r % block of theirs. Experts are one stacked tensor here, and mostly one for
each there: ours is a stack of theirs. Where theirs are stacked too, rows are those of every expert. A
prediction module is a layer behind the last of theirs; its copies of embedding and head (`COPIES`) are
the model's own here. One table a family; both directions read it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import tensors


class Run(NamedTuple):
    """Rows of ours, and of the fused tensor: as many, perhaps every n-th (`theirs.step`)."""

    ours: slice
    theirs: slice


@dataclass(frozen=True)
class FusedRows:
    """The rows of a fused tensor of `total` rows that are one of ours."""

    start: int
    block: int  # rows of ours that lie together
    stride: int  # from one such block to the next
    total: int

    def runs(self, first: int, last: int) -> list[Run]:
        """Our rows first..last (last excluded) as runs."""
        runs, row = [], first
        step = self.stride if self.block == 1 else 1  # single rows are one run, with gaps
        while row < last:
            count = last - row if self.block == 1 else min(self.block - row % self.block, last - row)
            start = self.start + row // self.block * self.stride + row % self.block
            stop = start + (count - 1) * step + 1
            runs.append(Run(slice(row, row + count), slice(start, stop, step)))
            row += count
        return runs


@dataclass(frozen=True)
class Location:
    """Where one tensor of ours lies: theirs[rows], transposed if they store [in, out].

    `stacked`: in both the first dim counts experts, and rows are counted along the second of ours.
    """

    name: str
    our_shape: tuple[int, ...]
    shape: tuple[int, ...]  # of the whole tensor of theirs, as stored
    rows: FusedRows  # counted along their output dimension
    transposed: bool = False
    other_names: tuple[str, ...] = ()  # in other versions of the same family's files
    experts: int = 0  # where ours stacks so many of theirs, whose names have the expert's number for {e}
    expert: int | None = None  # of which this is the part
    copies: tuple[str, ...] = ()  # other tensors of theirs that hold the same
    stacked: bool = False

    @property
    def rows_dim(self) -> int:
        """The dim of ours along which rows are counted."""
        return 1 if self.stacked else 0

    @property
    def parts(self) -> list[Location]:
        """Where each expert's matrix of a stack lies; itself where ours is no stack."""
        return [self.of_expert(expert) for expert in range(self.experts)] if self.experts else [self]

    def of_expert(self, expert: int) -> Location:
        """Where one expert's part of a stacked tensor lies."""
        name = self.name.replace("{e}", str(expert))
        others = tuple(other.replace("{e}", str(expert)) for other in self.other_names)
        shape = self.our_shape[1:]
        return replace(self, name=name, our_shape=shape, other_names=others, experts=0, expert=expert)


# Module names: ours -> theirs. {n} is the layer. A module missing here doesn't exist in the family.
_LAYER = "model.layers.{n}"
_LLAMA = {
    "embed": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attention_norm": f"{_LAYER}.input_layernorm",
    **{f"attention.{part}": f"{_LAYER}.self_attn.{part}_proj" for part in "qkvo"},
    **{f"attention.{part}_norm": f"{_LAYER}.self_attn.{part}_norm" for part in "qk"},
    "mlp_norm": f"{_LAYER}.post_attention_layernorm",
    **{f"mlp.{part}": f"{_LAYER}.mlp.{part}_proj" for part in ("gate", "up", "down")},
}


def _experts(layer: str, router: str, expert: str, gate: str, up: str, down: str) -> dict[str, str]:
    """Names of a mixture's router and experts, under `layer`."""
    return {
        "mlp.router": f"{layer}.{router}",
        "mlp.experts.gate": f"{layer}.{expert}.{{e}}.{gate}",
        "mlp.experts.up": f"{layer}.{expert}.{{e}}.{up}",
        "mlp.experts.down": f"{layer}.{expert}.{{e}}.{down}",
    }


def _stacks(experts: str) -> dict[str, str]:
    """Names of stacked experts, whose gate and up are one tensor; their parameters have no modules."""
    names = {"gate": "gate_up_proj", "up": "gate_up_proj", "down": "down_proj"}
    weights = {f"mlp.experts.{part}.weight": f"{experts}.{name}" for part, name in names.items()}
    return weights | {f"mlp.experts.{part}.bias": f"{experts}.{name}_bias" for part, name in names.items()}


def _shared(layer: str, name: str) -> dict[str, str]:
    return {f"mlp.shared.{part}": f"{layer}.{name}.{part}_proj" for part in ("gate", "up", "down")}


_MOE = {**_LLAMA, **_experts(f"{_LAYER}.mlp", "gate", "experts", "gate_proj", "up_proj", "down_proj")}
_MIXTRAL = {**_LLAMA, **_experts(f"{_LAYER}.block_sparse_moe", "gate", "experts", "w1", "w3", "w2")}
_SHARED_GATE = {"mlp.shared_gate": f"{_LAYER}.mlp.shared_expert_gate"}
_QWEN_2_MOE = {**_MOE, **_shared(f"{_LAYER}.mlp", "shared_expert"), **_SHARED_GATE}
# A prediction module: layer {n} goes on from the last. GLM-4.5 has DeepSeek-V3's names.
_PREDICTION = {
    "mtp.embed_norm": f"{_LAYER}.enorm",
    "mtp.hidden_norm": f"{_LAYER}.hnorm",
    "mtp.join": f"{_LAYER}.eh_proj",
    "mtp.norm": f"{_LAYER}.shared_head.norm",
}
COPIES = {"embed": f"{_LAYER}.embed_tokens", "head": f"{_LAYER}.shared_head.head"}
_GLM_4_MOE = {
    **_MOE,
    **_PREDICTION,
    **_shared(f"{_LAYER}.mlp", "shared_experts"),
    "mlp.router.bias": f"{_LAYER}.mlp.gate.e_score_correction_bias",
}
_DEEPSEEK = {
    **_GLM_4_MOE,
    "attention.q_down": f"{_LAYER}.self_attn.q_a_proj",
    "attention.q_down_norm": f"{_LAYER}.self_attn.q_a_layernorm",
    "attention.q_up": f"{_LAYER}.self_attn.q_b_proj",
    "attention.kv_down": f"{_LAYER}.self_attn.kv_a_proj_with_mqa",
    "attention.kv_down_norm": f"{_LAYER}.self_attn.kv_a_layernorm",
    "attention.kv_up": f"{_LAYER}.self_attn.kv_b_proj",
}
_GEMMA_2 = {
    **_LLAMA,
    "attention_post_norm": f"{_LAYER}.post_attention_layernorm",
    "mlp_norm": f"{_LAYER}.pre_feedforward_layernorm",
    "mlp_post_norm": f"{_LAYER}.post_feedforward_layernorm",
}
_GPT_OSS = {
    **_LLAMA,
    "attention.sinks": f"{_LAYER}.self_attn.sinks",
    "mlp.router": f"{_LAYER}.mlp.router",
    **_stacks(f"{_LAYER}.mlp.experts"),
}
_LLAMA_4 = {
    **_LLAMA,
    **{f"mlp.{part}": f"{_LAYER}.feed_forward.{part}_proj" for part in ("gate", "up", "down")},
    "mlp.router": f"{_LAYER}.feed_forward.router",
    **_shared(f"{_LAYER}.feed_forward", "shared_expert"),
    **_stacks(f"{_LAYER}.feed_forward.experts"),
}
_STARCODER_2 = {**_LLAMA, "mlp.up": "model.layers.{n}.mlp.c_fc", "mlp.down": "model.layers.{n}.mlp.c_proj"}
_GPT_2 = {
    "embed": "transformer.wte",
    "positions": "transformer.wpe",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    "attention_norm": "transformer.h.{n}.ln_1",
    **dict.fromkeys(("attention.q", "attention.k", "attention.v"), "transformer.h.{n}.attn.c_attn"),
    "attention.o": "transformer.h.{n}.attn.c_proj",
    "mlp_norm": "transformer.h.{n}.ln_2",
    "mlp.up": "transformer.h.{n}.mlp.c_fc",
    "mlp.down": "transformer.h.{n}.mlp.c_proj",
}


def _interleaved(root: str, attention: str) -> dict[str, str]:
    """Names of GPT-NeoX and BLOOM, whose q, k and v lie head by head in one tensor."""
    layer = root + "{n}."
    return {
        "attention_norm": layer + "input_layernorm",
        **dict.fromkeys(("attention.q", "attention.k", "attention.v"), f"{layer}{attention}.query_key_value"),
        "attention.o": layer + attention + ".dense",
        "mlp_norm": layer + "post_attention_layernorm",
        "mlp.up": layer + "mlp.dense_h_to_4h",
        "mlp.down": layer + "mlp.dense_4h_to_h",
    }


_NEOX_OUTSIDE = {"embed": "gpt_neox.embed_in", "norm": "gpt_neox.final_layer_norm", "head": "embed_out"}
_NEOX = {**_NEOX_OUTSIDE, **_interleaved("gpt_neox.layers.", "attention")}
_BLOOM = {
    "embed": "transformer.word_embeddings",
    "embed_norm": "transformer.word_embeddings_layernorm",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    **_interleaved("transformer.h.", "self_attention"),
}


@dataclass(frozen=True)
class FamilyNames:
    """A family's module names, how it fuses, and the prefixes that some of its files lack or have instead."""

    modules: dict[str, str]
    fused: str = "none"  # none | concatenated | interleaved
    transposed: bool = False  # GPT-2's Conv1D stores [in, out]
    stacks: Literal["none", "halves", "alternating"] = "none"  # how gate and up share a stack [E, in, 2 F]
    prefixes: tuple[tuple[str, str], ...] = (("model.", ""),)


_WITHIN_VISION = (("model.", ""), ("model.", "language_model.model."), ("model.", "model.language_model."))
_LLAMA_4_PREFIXES = (*_WITHIN_VISION, ("lm_head.", "language_model.lm_head."))

FAMILIES: dict[str, FamilyNames] = {
    **{f: FamilyNames(_LLAMA) for f in ("llama", "mistral", "qwen2", "qwen3", "gemma", "smollm3", "olmo")},
    **{f: FamilyNames(_MOE) for f in ("qwen3_moe", "olmoe")},
    **{f: FamilyNames(_DEEPSEEK) for f in ("deepseek_v2", "deepseek_v3")},
    **{f: FamilyNames(_GEMMA_2) for f in ("gemma2", "olmo2")},
    **{f: FamilyNames(_GEMMA_2, prefixes=_WITHIN_VISION) for f in ("gemma3", "gemma3_text")},
    **{f: FamilyNames(_LLAMA_4, stacks="halves", prefixes=_LLAMA_4_PREFIXES) for f in ("llama4", "llama4_text")},
    "mixtral": FamilyNames(_MIXTRAL),
    "qwen2_moe": FamilyNames(_QWEN_2_MOE),
    "glm4_moe": FamilyNames(_GLM_4_MOE),
    "gpt_oss": FamilyNames(_GPT_OSS, stacks="alternating"),
    "starcoder2": FamilyNames(_STARCODER_2),
    "gpt2": FamilyNames(_GPT_2, fused="concatenated", transposed=True, prefixes=(("transformer.", ""),)),
    "gpt_neox": FamilyNames(_NEOX, fused="interleaved", prefixes=(("gpt_neox.", ""), ("embed_out", "lm_head"))),
    "bloom": FamilyNames(_BLOOM, fused="interleaved", prefixes=(("transformer.", ""),)),
}


def locations(spec: ModelSpec) -> dict[str, Location]:
    """Where every tensor lies, by canonical name in the model's order, a tied head's too; raises UserError."""
    if (table := FAMILIES.get(spec.family)) is None:
        known = ", ".join(sorted(FAMILIES))
        raise UserError(f"family '{spec.family}' has no table of Hugging Face names yet", spec.name, f"use {known}")
    by_name = {t.name: _location(spec, table, t.name, t.shape) for t in tensors(spec, mtp=True)}
    for t in tensors(spec):
        if t.tied_to is not None:
            by_name[t.tied_to] = by_name[t.name]
    return by_name


def _copies(spec: ModelSpec, module: str) -> tuple[str, ...]:
    """The copies of the embedding, or of the head, that prediction modules have in their files."""
    both = spec.tie_word_embeddings and module == "embed"
    names = list(COPIES.values()) if both else [COPIES[module]] if module in COPIES else []
    behind = range(spec.num_hidden_layers, spec.num_hidden_layers + spec.mtp_layers)
    return tuple(name.replace("{n}", str(layer)) + ".weight" for layer in behind for name in names)


def _location(spec: ModelSpec, table: FamilyNames, name: str, shape: tuple[int, ...]) -> Location:
    module, kind = name.rsplit(".", 1)
    layer = ""
    if module.startswith("layers."):
        _, layer, module = module.split(".", 2)
    elif module.startswith("mtp."):
        _, index, module = module.split(".", 2)
        layer = str(spec.num_hidden_layers + int(index))
        module = module.removeprefix("block.") if module.startswith("block.") else f"mtp.{module}"
    whole = table.modules.get(f"{module}.{kind}")  # a parameter with a name of its own
    theirs = whole or table.modules.get(module)
    if theirs is None:
        how = "set `family` to one whose models have this part"
        raise UserError(f"family '{spec.family}' has no Hugging Face name for '{module}'", spec.name, how)
    full = theirs.replace("{n}", layer) + ("" if whole else f".{kind}")
    others = tuple(new + full[len(old) :] for old, new in table.prefixes if full.startswith(old))
    if table.stacks != "none" and module.startswith("mlp.experts."):
        return _stack(full, others, module, shape, table.stacks)
    sharing = [m for m, t in table.modules.items() if t == theirs]
    rows = _rows(spec, module, sharing, table.fused, shape[0])
    flip, stored = table.transposed and len(shape) == 2 and bool(layer), (rows.total, *shape[1:])
    if experts := shape[0] if "{e}" in full else 0:
        stored, rows = shape[1:], FusedRows(0, shape[1], shape[1], shape[1])
    copies = _copies(spec, module) if kind == "weight" else ()
    return Location(full, shape, stored[::-1] if flip else stored, rows, flip, others, experts, copies=copies)


def _stack(name: str, others: tuple[str, ...], module: str, shape: tuple[int, ...], way: str) -> Location:
    """Experts that are stacked there too: [E, in, out] for our [E, out, in], biases [E, out]."""
    size, number = shape[1], {"mlp.experts.gate": 0, "mlp.experts.up": 1}.get(module)
    if number is None:
        rows = FusedRows(0, size, size, size)
    elif way == "halves":
        rows = FusedRows(number * size, size, size, 2 * size)
    else:
        rows = FusedRows(number, 1, 2, 2 * size)
    return Location(name, shape, (shape[0], *shape[2:], rows.total), rows, len(shape) == 3, others, stacked=True)


def _rows(spec: ModelSpec, module: str, sharing: list[str], fused: str, size: int) -> FusedRows:
    """The rows of `module` in the tensor that the modules `sharing` are fused into."""
    if len(sharing) == 1:
        return FusedRows(0, size, size, size)
    k = spec.dim_per_head
    sizes = [(spec.num_attention_heads if part == "attention.q" else spec.kv_heads) * k for part in sharing]
    index, total = sharing.index(module), sum(sizes)
    if fused == "interleaved":
        return FusedRows(index * k, k, 3 * k, total)
    return FusedRows(sum(sizes[:index]), size, size, total)
