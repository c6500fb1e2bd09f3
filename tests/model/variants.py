"""Models of every family with one thing changed, each of which a config.json expresses or is refused.

VARIANTS   name -> the keys of ModelSpec that differ (dotted), of a spec, or None where it makes no sense
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import transformers

from model.tiny_families import CASES
from scalewright.spec.errors import UserError
from scalewright.spec.huggingface import read_huggingface
from scalewright.spec.model import MlpType, ModelSpec

Keys = dict[str, Any]


def spec_of(case: str) -> ModelSpec:
    """The spec of a case of `tiny_families`, without its prediction modules."""
    kind, arguments = CASES[case]
    config = getattr(transformers, kind)(**arguments, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    return read_huggingface(config.to_dict(), name=case).replace(mtp_layers=0)


def scaled(kind: str, **numbers: Any) -> Callable[[ModelSpec], Keys]:
    """RoPE scaling, with numbers that no default has."""
    return lambda spec: {"rope": {**spec.rope.dump(), "scaling": {"kind": kind, **numbers}}}


def turned(**keys: Any) -> Callable[[ModelSpec], Keys]:
    """Other keys of RoPE."""
    return lambda spec: {"rope": {**spec.rope.dump(), **keys}}


def routed(**keys: Any) -> Callable[[ModelSpec], Keys | None]:
    """Other keys of a mixture."""
    return lambda spec: {"moe": {**spec.moe.dump(), **keys}} if spec.moe else None


def latent(**keys: Any) -> Callable[[ModelSpec], Keys | None]:
    """Other keys of latent attention."""
    return lambda spec: {"mla": {**spec.mla.dump(), **keys}} if spec.mla else None


def fixed(**keys: Any) -> Callable[[ModelSpec], Keys]:
    """The same keys for every model."""
    return lambda spec: keys


VARIANTS: dict[str, Callable[[ModelSpec], Keys | None]] = {
    "plain": fixed(),
    "half of the dimensions turn": turned(fraction=0.5),
    "theta": turned(theta=777.5),
    "neighbours turn": turned(interleaved=True),
    "halves turn": turned(interleaved=False),
    "local theta": turned(local_theta=333.0),
    "no local theta": turned(local_theta=None),
    "unscaled": turned(scaling=None),
    "linear": scaled("linear", factor=3.5),
    "linear, half": lambda spec: {
        "rope": {**spec.rope.dump(), "fraction": 0.5, "scaling": {"kind": "linear", "factor": 3.5}}
    },
    "dynamic": scaled("dynamic", factor=2.5),
    "dynamic, other length": scaled("dynamic", factor=2.5, original_context=9),
    "llama3": scaled("llama3", factor=5.0, low_freq_factor=2.0, high_freq_factor=6.0, original_context=11),
    "llama3, no length": scaled("llama3", factor=5.0, low_freq_factor=2.0, high_freq_factor=6.0),
    "yarn": scaled("yarn", factor=3.0, beta_fast=16.0, beta_slow=2.0, original_context=40),
    "yarn, no length": scaled("yarn", factor=3.0, beta_fast=16.0),
    "yarn, mscale": scaled("yarn", factor=3.0, original_context=40, mscale=0.8, mscale_all_dim=0.6),
    "yarn, mscale alone": scaled("yarn", factor=3.0, original_context=40, mscale=0.8),
    "yarn, attention": scaled("yarn", factor=3.0, original_context=40, attention_factor=1.7),
    "yarn, not rounded": scaled("yarn", factor=3.0, original_context=40, truncate=False),
    "yarn, half": lambda spec: {
        "rope": {**spec.rope.dump(), "fraction": 0.5, "scaling": {"kind": "yarn", "factor": 3.0}}
    },
    "no position in every third layer": fixed(rope_every_not=3),
    "no positions": fixed(positions="none"),
    "learned positions": fixed(positions="learned", learned_positions=64),
    "alibi": fixed(positions="alibi"),
    "temperature": fixed(attention_temperature={"floor_scale": 3, "attn_scale": 0.7}),
    "windows": fixed(sliding_window=4, window_pattern=(True,), window_chunks=False),
    "every other layer": fixed(sliding_window=4, window_pattern=(True, False), window_chunks=False),
    "late windows": fixed(sliding_window=4, window_pattern=(False, False, True), window_chunks=False),
    "no windows": fixed(sliding_window=None, window_pattern=(False,), window_chunks=False),
    "chunks": fixed(sliding_window=4, window_pattern=(True,), window_chunks=True),
    "scores capped": fixed(attention_softcap=0.7),
    "scores not capped": fixed(attention_softcap=None),
    "logits capped": fixed(logit_softcap=0.7),
    "logits not capped": fixed(logit_softcap=None),
    "query scale": fixed(query_scale=0.17),
    "query scale of a whole number": fixed(query_scale=7**-0.5),
    "usual query scale": fixed(query_scale=None),
    "clipped": fixed(clip_qkv=0.3),
    "sinks": lambda spec: None if spec.mla else {"attention_sinks": True},
    "no sinks": fixed(attention_sinks=False),
    "norms of heads": lambda spec: None if spec.mla else {"qk_norm": "head"},
    "norm of all heads": lambda spec: None if spec.mla else {"qk_norm": "full"},
    "l2 norms": lambda spec: None if spec.mla else {"qk_norm": "l2"},
    "no norms of heads": fixed(qk_norm=None),
    "qkv biases": fixed(qkv_bias=True, o_bias=False, mlp_bias=False),
    "attention biases": fixed(qkv_bias=True, o_bias=True, mlp_bias=False),
    "mlp biases": fixed(qkv_bias=False, o_bias=False, mlp_bias=True),
    "biases": fixed(qkv_bias=True, o_bias=True, mlp_bias=True),
    "no biases": fixed(qkv_bias=False, o_bias=False, mlp_bias=False),
    "head's bias": fixed(head_bias=True),
    "eps": fixed(norm_eps=0.03),
    "layernorm": lambda spec: None if spec.mla else {"norm_type": "layernorm"},
    "plus one": lambda spec: None if spec.mla else {"norm_type": "rmsnorm_plus_one"},
    "rmsnorm": fixed(norm_type="rmsnorm"),
    "norms without weights": lambda spec: None if spec.mla else {"norm_type": "nonparametric"},
    "norms after": fixed(norm_position="post"),
    "norms on both sides": fixed(norm_position="both"),
    "norms before": fixed(norm_position="pre"),
    "parallel": fixed(residual="parallel"),
    "parallel, one norm": fixed(residual="parallel_shared"),
    "sequential": fixed(residual="sequential"),
    "no last norm": fixed(final_norm=False),
    "embedding's norm": fixed(embedding_norm=True),
    "embedding scaled": fixed(embedding_scale=2.5),
    "embedding not scaled": fixed(embedding_scale=None),
    **{mlp: fixed(mlp_type=mlp) for mlp in get_args(MlpType)},
    "tied": fixed(tie_word_embeddings=True),
    "untied": fixed(tie_word_embeddings=False),
    "wide heads": lambda spec: None if spec.mla else {"head_dim": 2 * spec.dim_per_head},
    "narrow heads": lambda spec: None if spec.mla else {"head_dim": 4},
    "kv heads": lambda spec: None if spec.mla else {"num_key_value_heads": 1},
    "kv heads of all": fixed(num_key_value_heads=4),
    "dense": fixed(moe=None),
    "experts": lambda spec: (
        None if spec.moe else {"moe": {"num_experts": 4, "top_k": 2, "moe_intermediate_size": spec.intermediate_size}}
    ),
    "another top k": routed(top_k=3),
    "top 1": routed(top_k=1),
    "weights sum to one": routed(normalize_top_k=True),
    "weights as they are": routed(normalize_top_k=False),
    "experts scaled": routed(routed_scale=1.7),
    "no shared expert": routed(num_shared_experts=0, shared_gate=False),
    "shared expert": routed(num_shared_experts=1, shared_intermediate_size=None, shared_gate=False),
    "two shared experts": routed(num_shared_experts=2, shared_intermediate_size=None, shared_gate=False),
    "wide shared expert": routed(num_shared_experts=1, shared_intermediate_size=40, shared_gate=False),
    "shared expert behind a gate": routed(num_shared_experts=1, shared_gate=True),
    "router's bias": routed(router_bias=True),
    "no router's bias": routed(router_bias=False),
    "sigmoid scores": routed(score="sigmoid"),
    "softmax scores": routed(score="softmax"),
    "groups": lambda spec: routed(groups=2, top_groups=1)(spec) if spec.moe else None,
    "no groups": routed(groups=1, top_groups=1),
    "input weighed": routed(weigh_input=True),
    "dense first": routed(first_k_dense=1, every=1, dense_layers=()),
    "every other sparse": routed(first_k_dense=0, every=2, dense_layers=()),
    "a dense layer": routed(first_k_dense=0, every=1, dense_layers=(1,)),
    "all sparse": routed(first_k_dense=0, every=1, dense_layers=()),
    **{f"latent of queries {rank}": latent(q_lora_rank=rank) for rank in (9, None)},
}


def varied(spec: ModelSpec, name: str) -> ModelSpec | None:
    """The variant of a spec; None where it is none, or no valid model."""
    keys = VARIANTS[name](spec)
    if keys is None:
        return None
    if "num_key_value_heads" in keys and spec.mla:
        return None
    try:
        return ModelSpec.parse({**spec.dump(), **keys})
    except UserError:
        return None
