"""Small folders in other trainers' formats, written here from known weights, by torch's own writers.

The fusing and cutting are written out as those trainers do it, so that the tables under test have another
source.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import Tensor

from scalewright.model.load import FreshWeights
from scalewright.spec.huggingface import read_huggingface
from scalewright.spec.tensors import tensors

HEADS, GROUPS, HEAD, HIDDEN, FFN, VOCABULARY, LAYERS = 6, 2, 8, 48, 75, 251, 2
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS, "head_dim": HEAD, "vocab_size": VOCABULARY, "intermediate_size": FFN,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "hidden_act": "silu",
}  # fmt: skip
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {**CONFIG, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        **CONFIG, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
    },
}  # fmt: skip
Weights = dict[str, Tensor]


def weights(config: dict[str, Any] = CONFIG) -> Weights:
    """Ours, by canonical name; norms aren't ones."""
    spec = read_huggingface(config)
    fresh = FreshWeights(spec)
    generator = torch.Generator().manual_seed(1)
    return {t.name: fresh.read(t.name) + 0.1 * torch.randn(t.shape, generator=generator) for t in tensors(spec)}


def write_config(folder: Path, config: dict[str, Any] = CONFIG) -> str:
    """A config.json beside, for --model."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.json"
    path.write_text(json.dumps(config))
    return str(path)


def in_pairs(tensor: Tensor) -> Tensor:
    """Rows of each head as Meta's RoPE has them: 0 and 4, 1 and 5, ... side by side."""
    return tensor.unflatten(0, (-1, HEAD))[:, [0, 4, 1, 5, 2, 6, 3, 7]].flatten(0, 1)


def titan(ours: Weights) -> Weights:
    """torchtitan's names."""
    theirs = {
        "tok_embeddings.weight": ours["embed.weight"],
        "norm.weight": ours["norm.weight"],
        "output.weight": ours["head.weight"],
    }
    parts = {
        "attention_norm": "attention_norm", "attention.wv": "attention.v", "attention.wo": "attention.o",
        "ffn_norm": "mlp_norm", "feed_forward.w1": "mlp.gate", "feed_forward.w2": "mlp.down",
        "feed_forward.w3": "mlp.up",
    }  # fmt: skip
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        theirs |= {f"{at}{name}.weight": ours[f"{at}{own}.weight"] for name, own in parts.items()}
        theirs[f"{at}attention.wq.weight"] = in_pairs(ours[f"{at}attention.q.weight"])
        theirs[f"{at}attention.wk.weight"] = in_pairs(ours[f"{at}attention.k.weight"])
    return theirs


def hugging_face(ours: Weights) -> Weights:
    """transformers' names of a Llama."""
    theirs = {
        "model.embed_tokens.weight": ours["embed.weight"],
        "model.norm.weight": ours["norm.weight"],
        "lm_head.weight": ours.get("head.weight", ours["embed.weight"]),
    }
    parts = {
        "input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm",
        "mlp.gate_proj": "mlp.gate", "mlp.up_proj": "mlp.up", "mlp.down_proj": "mlp.down",
    }  # fmt: skip
    parts |= {f"self_attn.{kind}_proj": f"attention.{kind}" for kind in "qkvo"}
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        theirs |= {f"model.{at}{name}.weight": ours[f"{at}{own}.weight"] for name, own in parts.items()}
    return theirs


def megatron(ours: Weights, padded: int) -> Weights:
    """Megatron's names: all layers in one tensor, qkv by group, gate over up, the vocabulary padded."""
    padding = torch.full((padded - VOCABULARY, HIDDEN), 7.0)
    theirs = {
        "embedding.word_embeddings.weight": torch.cat([ours["embed.weight"], padding]),
        "output_layer.weight": torch.cat([ours["head.weight"], padding]),
        "decoder.final_layernorm.weight": ours["norm.weight"],
    }

    def stack(name: str) -> Tensor:
        return torch.stack([ours[f"layers.{layer}.{name}.weight"] for layer in range(LAYERS)])

    q = stack("attention.q").unflatten(1, (GROUPS, HEADS // GROUPS, HEAD))
    k, v = (stack(f"attention.{kind}").unflatten(1, (GROUPS, 1, HEAD)) for kind in "kv")
    at = "decoder.layers."
    theirs[f"{at}self_attention.linear_qkv.weight"] = torch.cat([q, k, v], 2).flatten(1, 3)
    theirs[f"{at}self_attention.linear_qkv.layer_norm_weight"] = stack("attention_norm")
    theirs[f"{at}self_attention.linear_proj.weight"] = stack("attention.o")
    theirs[f"{at}mlp.linear_fc1.layer_norm_weight"] = stack("mlp_norm")
    kind, more, dim = ("mlp", "", 1)
    if "layers.0.mlp.router.weight" in ours:  # [layers, experts, ...]
        theirs[f"{at}mlp.router.weight"] = stack("mlp.router")
        kind, more, dim = ("mlp.experts", "experts.", 2)
    theirs[f"{at}{kind}.{more}linear_fc1.weight"] = torch.cat([stack(f"{kind}.gate"), stack(f"{kind}.up")], dim)
    theirs[f"{at}{kind}.{more}linear_fc2.weight"] = stack(f"{kind}.down")
    if "layers.0.attention.q_norm.weight" in ours:
        theirs |= {f"{at}self_attention.{entry}_layernorm.weight": stack(f"attention.{entry}_norm") for entry in "qk"}
    return theirs


def arguments(padded: int, **more: Any) -> argparse.Namespace:
    """Megatron's arguments of the same model."""
    return argparse.Namespace(
        num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, num_query_groups=GROUPS,
        group_query_attention=True, kv_channels=HEAD, ffn_hidden_size=FFN, max_position_embeddings=64,
        padded_vocab_size=padded, swiglu=True, normalization="RMSNorm", norm_epsilon=1e-6, rotary_base=10000,
        position_embedding_type="rope", untie_embeddings_and_output_weights=True, add_bias_linear=False,
        params_dtype=torch.bfloat16, **more,
    )  # fmt: skip


def save_dcp(folder: Path, state: dict[str, Any]) -> None:
    """By torch.distributed.checkpoint, in this process alone."""
    with warnings.catch_warnings(), contextlib.suppress(FileExistsError):
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=folder, no_dist=True)


def save_zero(folder: Path, theirs: Weights, stage: int, ranks: int) -> None:
    """DeepSpeed's files: one vector cut by rank (ZeRO 1, 2), or each parameter cut by rank (3)."""
    folder.mkdir(parents=True, exist_ok=True)
    names = list(theirs)
    groups = [names[:3], names[3:]]
    shapes = [{name: theirs[name].shape for name in group} for group in groups]
    model = {"module": {}, "buffer_names": [], "param_shapes": shapes, "shared_params": {}}
    first = "zero_pp_rank_0_mp_rank_00" if stage == 3 else "mp_rank_00"
    torch.save(model, folder / f"{first}_model_states.pt")
    key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
    for rank in range(ranks):
        rows = []
        for group in groups:
            flat = [_padded(theirs[name].flatten(), ranks) for name in group]
            if stage == 3:
                rows.append(torch.cat([part.chunk(ranks)[rank] for part in flat]))
            else:
                vector = torch.cat([theirs[name].flatten() for name in group])
                rows.append(_padded(vector, 2 * ranks).chunk(ranks)[rank].clone())
        states = {"zero_stage": stage, "partition_count": ranks, key: rows}
        path = folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": states}, path)


def _padded(row: Tensor, multiple: int) -> Tensor:
    return torch.cat([row, torch.zeros(-row.numel() % multiple)])


def save_nanotron(folder: Path, ours: Weights, ranks: int) -> None:
    """nanotron's files: q, k, v fused and each cut by rank, with its slices as metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "checkpoint_metadata.json").write_text(json.dumps({"version": "1.4", "tp": ranks, "dp": 1}))
    (folder / "model_config.json").write_text(json.dumps({**CONFIG, "is_llama_config": True}))

    def write(name: str, parts: list[Tensor], dim: int) -> None:
        whole = torch.cat(parts, dim)
        for rank in range(ranks):
            pairs, here, there = [], 0, 0
            for part in parts:
                size = part.shape[dim] // ranks
                cut = [f"{first},{first + size},None" for first in (here, there + rank * size)]
                sides = ["|".join(c if d == dim else "None,None,None" for d in range(part.dim())) for c in cut]
                pairs.append("#".join(sides))
                here, there = here + size, there + part.shape[dim]
            data = torch.cat([part.chunk(ranks, dim)[rank] for part in parts], dim).contiguous()
            metadata = {
                "version": "1.4",
                "unsharded_shape": str(tuple(whole.shape)),
                "local_global_slices_pairs": ";".join(pairs),
            }
            *path, kind = name.split(".")
            file = folder.joinpath("model", *path, f"model_{kind}_pp-rank-0-of-1_tp-rank-{rank}-of-{ranks}.safetensors")
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file({"data": data}, file, metadata)

    def write_whole(name: str, data: Tensor) -> None:
        *path, kind = name.split(".")
        file = folder.joinpath("model", *path, f"model_{kind}.safetensors")
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({"data": data}, file, {})

    write_whole("model.token_position_embeddings.pp_block.token_embedding.weight", ours["embed.weight"])
    write_whole("model.lm_head.pp_block.weight", ours["head.weight"])
    write_whole("model.final_layer_norm.pp_block.weight", ours["norm.weight"])
    for layer in range(LAYERS):
        at, to = f"layers.{layer}.", f"model.decoder.{layer}.pp_block."
        q, k, v, o = (ours[f"{at}attention.{kind}.weight"] for kind in "qkvo")
        write(f"{to}attn.qkv_proj.weight", [in_pairs(q), in_pairs(k), v], 0)
        write(f"{to}attn.o_proj.weight", [o], 1)
        gate, up, down = (ours[f"{at}mlp.{kind}.weight"] for kind in ("gate", "up", "down"))
        write_whole(f"{to}mlp.gate_up_proj.weight", torch.cat([gate, up]))  # 75 rows can't be halved
        write_whole(f"{to}mlp.down_proj.weight", down)
        write_whole(f"{to}input_layernorm.weight", ours[f"{at}attention_norm.weight"])
        write_whole(f"{to}post_attention_layernorm.weight", ours[f"{at}mlp_norm.weight"])
