"""The older shapes, with LayerNorm and biases: GPT-2, GPT-NeoX (Pythia), BLOOM, Falcon.

GPT-2     learned positions, tied head              BLOOM   ALiBi, a norm on the embeddings, tied head
GPT-NeoX  partial RoPE, attention beside the MLP    Falcon  few KV heads, attention beside the MLP
"""

from __future__ import annotations

from scalewright.spec.families import common
from scalewright.spec.families.common import Config, Keys, ModelFamily
from scalewright.spec.model import ModelSpec

BIASES: Keys = {"qkv_bias": True, "o_bias": True, "mlp_bias": True, "norm_type": "layernorm"}


def _read_gpt2(c: Config) -> Keys:
    return {
        **BIASES,
        **common.shape({**c, "intermediate_size": c["intermediate_size"] or 4 * c["hidden_size"]}),
        "mlp_type": common.mlp_type(c["activation_function"], gated=False),
        "norm_eps": c["layer_norm_epsilon"],
        "positions": "learned",
        "learned_positions": c["max_position_embeddings"],
        "query_scale": None if c["scale_attn_weights"] else 1.0,
    }


def _write_gpt2(m: ModelSpec) -> Keys:
    return {
        "vocab_size": m.vocab_size,
        "n_embd": m.hidden_size,
        "n_inner": None if m.intermediate_size == 4 * m.hidden_size else m.intermediate_size,
        "n_layer": m.num_hidden_layers,
        "n_head": m.num_attention_heads,
        "n_positions": m.learned_positions,
        "n_ctx": m.learned_positions,  # its older name, which llama.cpp's converter reads
        "activation_function": "gelu_new" if m.mlp_type == "gelu_tanh" else m.mlp_type,
        "layer_norm_epsilon": m.norm_eps,
        "tie_word_embeddings": m.tie_word_embeddings,
        "scale_attn_weights": m.query_scale is None,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),  # its class has dropout of 0.1
    }


def _read_neox(c: Config) -> Keys:
    return {
        **common.shape({**c, "num_key_value_heads": None, "head_dim": None}),
        **BIASES,
        **common.biases(c),
        "mlp_type": common.mlp_type(c["hidden_act"], gated=False),
        "norm_eps": c["layer_norm_eps"],
        "residual": "parallel" if c["use_parallel_residual"] else "sequential",
        "rope": common.rope(c, 10000.0, c["rotary_pct"], "rotary_emb_base"),
    }


def _write_neox(m: ModelSpec) -> Keys:
    return common.write_shape(
        m,
        without=("num_key_value_heads", "head_dim", "rms_norm_eps"),
        layer_norm_eps=m.norm_eps,
        attention_bias=m.qkv_bias,
        use_parallel_residual=m.residual == "parallel",
        **common.write_rope(m, "rotary_emb_base", "rotary_pct"),
    )


def _read_bloom(c: Config) -> Keys:
    return {
        **BIASES,
        **common.shape({**c, "intermediate_size": 4 * c["hidden_size"]}),
        "mlp_type": "gelu_tanh",
        "norm_eps": c["layer_norm_epsilon"],
        "positions": "alibi",
        "embedding_norm": True,
    }


def _write_bloom(m: ModelSpec) -> Keys:
    return {
        "vocab_size": m.vocab_size,
        "hidden_size": m.hidden_size,
        "n_layer": m.num_hidden_layers,
        "n_head": m.num_attention_heads,
        "seq_length": m.context,
        "layer_norm_epsilon": m.norm_eps,
        "tie_word_embeddings": m.tie_word_embeddings,
    }


def _read_falcon(c: Config) -> Keys:
    grouped, heads = c["new_decoder_architecture"], c["num_attention_heads"]
    mlp = c["intermediate_size"] or 4 * c["hidden_size"]
    kv_heads = (c["num_key_value_heads"] or heads) if grouped else 1 if c["multi_query"] else heads
    norms = c["num_ln_in_parallel_attn"] or (2 if grouped else 1)
    parallel = "parallel" if norms == 2 else "parallel_shared"
    return {
        **common.shape({**c, "intermediate_size": mlp, "num_key_value_heads": kv_heads}),
        "mlp_type": common.mlp_type(c["activation"], gated=False),
        "norm_type": "layernorm",
        "norm_eps": c["layer_norm_epsilon"],
        "residual": parallel if c["parallel_attn"] else "sequential",
        **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), c["bias"]),
        "positions": "alibi" if c["alibi"] else "rope",
        "rope": common.rope(c),
    }


LAYERS = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
GPT2_NAMES = LAYERS | {"n_embd": "hidden_size", "n_inner": "intermediate_size"}
GPT2_NAMES |= {"n_positions": "max_position_embeddings"}
GPT2_ONLY: Keys = {"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
BLOOM_NAMES = LAYERS | {"n_embed": "hidden_size", "seq_length": "max_position_embeddings"}
BLOOM_ONLY: Keys = {"apply_residual_connection_post_layernorm": False}
FALCON_NAMES = {"n_embed": "hidden_size", "ffn_hidden_size": "intermediate_size", "num_kv_heads": "num_key_value_heads"}
FAMILIES = (
    ModelFamily("gpt2", _read_gpt2, "GPT2LMHeadModel", _write_gpt2, aliases=GPT2_NAMES, refused=GPT2_ONLY),
    ModelFamily("gpt_neox", _read_neox, "GPTNeoXForCausalLM", _write_neox, partial_rotary=True),
    ModelFamily("bloom", _read_bloom, "BloomForCausalLM", _write_bloom, aliases=BLOOM_NAMES, refused=BLOOM_ONLY),
    ModelFamily("falcon", _read_falcon, aliases=FALCON_NAMES),
)
