"""config.json in and out: defaults, counts and round trips are compared with transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scalewright.spec.errors import UserError
from scalewright.spec.families import FAMILIES
from scalewright.spec.huggingface import RUNS, read_huggingface, to_huggingface, why_not_running
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import count

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": None,  # the classes' own ids are beyond 96 words
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 24}
MLA = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "q_lora_rank": 12}
EXPERTS = {"n_routed_experts": 8, "moe_intermediate_size": 24, "num_experts_per_tok": 2, "n_shared_experts": 2}
NEOX = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
FALCON = {key: value for key, value in NEOX.items() if key != "intermediate_size"}
DBRX = {
    "vocab_size": 96,
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": 64,
    "attn_config": {"kv_n_heads": 2, "rope_theta": 5e5},
    "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 6},
}
WINDOWS = ["full_attention", "sliding_attention", "full_attention"]
MAMBA = {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 12, "n_groups": 2}
EXPERTS_OF_H = {"n_routed_experts": 6, "moe_intermediate_size": 20, "moe_shared_expert_intermediate_size": 28}
DELTANET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
}
GEMMA4 = {**SMALL, "num_hidden_layers": 7, "head_dim": 16, "hidden_size_per_layer_input": 0}

TIED, BIAS, TOP, EXPERT = ("tie_word_embeddings", "attention_bias", "num_experts_per_tok", "moe_intermediate_size")
KV = "num_key_value_heads"

GRANITE: dict[str, Any] = {
    "num_hidden_layers": 2, "shared_intermediate_size": 28, "mamba_n_heads": 4, "mamba_d_state": 6,
}  # fmt: skip
CASES: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", GPT2),
    ("gpt2", {**GPT2, "n_inner": 40, TIED: False, "activation_function": "gelu"}),
    ("gpt_neox", NEOX),
    ("gpt_neox", {**NEOX, BIAS: False, "use_parallel_residual": False, TIED: True}),
    ("bloom", {"vocab_size": 96, "hidden_size": 32, "n_layer": 3, "n_head": 4}),
    ("bloom", {"vocab_size": 96, "n_embed": 48, "num_hidden_layers": 2, "num_attention_heads": 6}),
    ("llama", SMALL),
    ("llama", {**SMALL, BIAS: True, "mlp_bias": True, "head_dim": 12, TIED: True}),
    ("llama", {**SMALL, "num_key_value_heads": None}),
    ("mistral", SMALL),
    ("mistral", {**SMALL, "head_dim": 16, "num_key_value_heads": 1, "sliding_window": None}),
    ("qwen2", SMALL),
    ("qwen2", {**SMALL, TIED: True, "use_sliding_window": True, "max_window_layers": 1}),
    ("qwen3", {**SMALL, "head_dim": 12}),
    ("qwen3", {**SMALL, BIAS: True, "layer_types": WINDOWS, "use_sliding_window": True}),
    ("gemma", {**SMALL, "head_dim": 16}),
    ("gemma", {**SMALL, "head_dim": 16, BIAS: True, TIED: False}),
    ("gemma2", {**SMALL, "head_dim": 16, "query_pre_attn_scalar": 20}),
    ("gemma3_text", {**SMALL, "head_dim": 16, "num_hidden_layers": 7, "sliding_window_pattern": 3}),
    ("gemma3_text", {**SMALL, "head_dim": 16, "layer_types": WINDOWS}),
    ("olmo2", SMALL),
    ("olmo2", {**SMALL, BIAS: True, "num_key_value_heads": None}),
    ("starcoder2", SMALL),
    ("starcoder2", {**SMALL, "use_bias": False, TIED: False, "sliding_window": 8}),
    ("olmo", {**SMALL, BIAS: True}),
    ("olmo", {**SMALL, "clip_qkv": 2.0, TIED: True}),
    ("phi3", SMALL),
    ("smollm3", SMALL),
    ("smollm3", {**SMALL, "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 4}),
    ("falcon", {**FALCON, "num_kv_heads": 4}),
    ("falcon", {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True, "bias": True}),
    ("falcon", {**FALCON, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}),
    ("falcon", {**FALCON, "multi_query": False, "parallel_attn": False, "alibi": True}),
    ("falcon", {**FALCON, "ffn_hidden_size": 40, "tie_word_embeddings": False}),
    ("mixtral", {**SMALL, "num_local_experts": 4}),
    ("qwen2_moe", {**SMALL, "num_experts": 6, TOP: 2, EXPERT: 20, "shared_expert_intermediate_size": 28}),
    ("qwen2_moe", {**SMALL, "num_experts": 6, TOP: 2, "decoder_sparse_step": 2, "mlp_only_layers": [1]}),
    ("qwen3_moe", {**SMALL, "num_experts": 6, TOP: 2, EXPERT: 20, "mlp_only_layers": [0]}),
    ("olmoe", {**SMALL, "num_experts": 6, TOP: 2}),
    ("dbrx", DBRX),
    ("deepseek_v2", {**SMALL, **MLA, **EXPERTS, "first_k_dense_replace": 1, KV: 4}),
    ("deepseek_v2", {**SMALL, **MLA, **EXPERTS, "q_lora_rank": None, KV: 4, "n_group": 1}),
    ("deepseek_v3", {**SMALL, **MLA, **EXPERTS, "first_k_dense_replace": 1, KV: 4}),
    ("deepseek_v3", {**SMALL, **MLA, **EXPERTS, BIAS: True, KV: 4}),
    ("glm4_moe", {**SMALL, **EXPERTS, "head_dim": 16, BIAS: True, "use_qk_norm": True}),
    ("minimax_m2", {**SMALL, "num_local_experts": 6, TOP: 2, "head_dim": 16}),
    ("gpt_oss", {**SMALL, "num_local_experts": 6, "head_dim": 16}),
    ("gpt_oss", {**SMALL, BIAS: False, "layer_types": WINDOWS, "rope_parameters": {"rope_type": "default"}}),
    ("llama4_text", {**SMALL, "head_dim": 8, "intermediate_size_mlp": 40}),
    ("llama4_text", {**SMALL, "attn_temperature_tuning": False, "layer_types": ["full_attention"] * 3}),
    ("llama4_text", {**SMALL, "head_dim": 8, "interleave_moe_layer_step": 2, "use_qk_norm": False}),
    ("llama4_text", {**SMALL, "head_dim": 8, "moe_layers": [0], "attention_chunk_size": None, BIAS: True}),
    ("nemotron", SMALL),
    ("nemotron", {**SMALL, BIAS: True, "mlp_bias": True, "head_dim": 16, TIED: True}),
    ("nemotron_h", {**SMALL, **MAMBA, **EXPERTS_OF_H}),
    ("nemotron_h", {**SMALL, **MAMBA, "hybrid_override_pattern": "M-M*-", "use_conv_bias": False}),
    ("nemotron_h", {**SMALL, **MAMBA, **EXPERTS_OF_H, "hybrid_override_pattern": "ME*E-"}),
    ("nemotron_h", {**SMALL, **MAMBA, **EXPERTS_OF_H, "moe_latent_size": 10, "conv_kernel": 3}),
    ("qwen3_next", {**SMALL, **DELTANET, "num_hidden_layers": 5, "num_experts": 6, TOP: 2, "head_dim": 16}),
    ("qwen3_next", {**SMALL, **DELTANET, "num_experts": 6, TOP: 2, "mlp_only_layers": [1], BIAS: True}),
    ("mistral4", {**SMALL, **MLA, **EXPERTS, "first_k_dense_replace": 1, KV: 4, "n_shared_experts": 1}),
    ("qwen3_5_text", {**SMALL, **DELTANET, "num_hidden_layers": 5, "head_dim": 16, BIAS: True}),
    ("qwen3_5_moe_text", {**SMALL, **DELTANET, "num_experts": 6, TOP: 2, EXPERT: 20, "head_dim": 16, TIED: True}),
    ("olmo3", {**SMALL, "layer_types": WINDOWS, "sliding_window": 8}),
    ("olmo3", {**SMALL, "num_hidden_layers": 5, "num_key_value_heads": None}),
    ("apertus", {**SMALL, BIAS: True}),
    ("granitemoehybrid", {**SMALL, **GRANITE, "num_local_experts": 6, TOP: 2, "layer_types": ["mamba", "attention"]}),
    ("granitemoehybrid", {**SMALL, **GRANITE, "num_local_experts": 0, TOP: 0, "layer_types": ["mamba"] * 2}),
    (
        "granitemoehybrid",
        {
            **SMALL,
            **GRANITE,
            "num_local_experts": 0,
            TOP: 0,
            "position_embedding_type": "rope",
            "layer_types": ["attention"] * 2,
        },
    ),
    ("gemma4_text", {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}),
    ("gemma4_text", {**GEMMA4, "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, EXPERT: 20}),
    ("gemma4_unified_text", {**GEMMA4, "global_head_dim": 32, "layer_types": [*WINDOWS[:2] * 3, WINDOWS[0]]}),
]
IDS = [f"{family}-{index}" for index, (family, _) in enumerate(CASES)]


def transformers_size(config: Any) -> int:
    """Elements of the model that transformers builds, in which the router's correction is a buffer."""
    build = transformers.AutoModelForCausalLM.from_config
    if config.model_type == "mistral4":  # the Auto class knows it only inside a model with images
        build = transformers.Mistral4ForCausalLM
    with torch.device("meta"):
        model = build(config)
    corrections = [b for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")]
    return sum(p.numel() for p in model.parameters()) + sum(b.numel() for b in corrections)


@pytest.mark.parametrize(("family", "keys"), CASES, ids=IDS)
def test_counts_equal_transformers(family: str, keys: dict[str, Any]) -> None:
    config = transformers.CONFIG_MAPPING[family](**keys)
    counted = count(read_huggingface({"model_type": family, **keys}))
    assert counted.total == transformers_size(config)
    assert count(read_huggingface(config.to_dict())).total == counted.total


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"kimi_k2", "deepseek_v2", "grok-1"}))
def test_missing_keys_have_the_family_s_defaults(family: str) -> None:
    keys = {
        "glm4_moe": {"head_dim": 128},  # its default, 4096 // 96 = 42, half of it turned, is odd
        "gemma4_text": {"hidden_size_per_layer_input": 0},  # its default isn't supported
    }.get(family, {})
    theirs = transformers.CONFIG_MAPPING[family](**keys).to_dict()
    assert read_huggingface({"model_type": family, **keys}, name="x") == read_huggingface(theirs, name="x")


@pytest.mark.parametrize(("family", "keys"), [c for c in CASES if c[0] in RUNS])
def test_round_trip(family: str, keys: dict[str, Any]) -> None:
    spec = read_huggingface({"model_type": family, **keys}, name="x")
    written = to_huggingface(spec)
    assert read_huggingface(written, name="x") == spec
    theirs = transformers.AutoConfig.for_model(**written)
    assert read_huggingface(theirs.to_dict(), name="x") == spec
    assert theirs.architectures == [type(_meta(theirs)).__name__]


def _meta(config: Any) -> Any:
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


ROPES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"rope_type": "linear", "factor": 4.0}, {"kind": "linear", "factor": 4.0}),
    ({"type": "dynamic", "factor": 2.0}, {"kind": "dynamic", "factor": 2.0}),
    (
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 32},
        {"kind": "llama3", "factor": 8.0, "original_context": 32},
    ),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0,
         "mscale": 0.7, "mscale_all_dim": 0.8, "attention_factor": 1.1},
        {"kind": "yarn", "beta_fast": 16.0, "mscale": 0.7, "mscale_all_dim": 0.8, "attention_factor": 1.1},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), ROPES, ids=[r[1]["kind"] for r in ROPES])
def test_rope_scaling_in_both_styles(given: dict[str, Any], expected: dict[str, Any]) -> None:
    base = {"model_type": "llama", **SMALL, "max_position_embeddings": 256}
    old = read_huggingface({**base, "rope_theta": 5e5, "rope_scaling": given}, name="x")
    new = read_huggingface({**base, "rope_parameters": {**given, "rope_theta": 5e5}}, name="x")
    assert old == new
    assert old.rope.theta == 5e5
    assert old.rope.scaling is not None
    assert old.rope.scaling.dump().items() >= expected.items()
    assert read_huggingface(to_huggingface(old), name="x") == old
    theirs = transformers.AutoConfig.for_model(**to_huggingface(old))
    assert read_huggingface(theirs.to_dict(), name="x") == old


def test_phi3_longrope_is_counted_but_not_run() -> None:
    factors = [1.0] * 4
    scaling = {"type": "su", "short_factor": factors, "long_factor": factors}
    keys = {**SMALL, "max_position_embeddings": 256, "original_max_position_embeddings": 64, "rope_scaling": scaling}
    spec = read_huggingface({"model_type": "phi3", **keys})
    assert spec.rope.scaling is not None
    assert spec.rope.scaling.kind == "longrope"
    assert spec.rope.scaling.factor == 4.0
    assert "longrope" in (why_not_running(spec) or "")


def test_gemma_3_has_another_rope_base_in_windows() -> None:
    keys = {"model_type": "gemma3_text", **SMALL, "head_dim": 16, "rope_scaling": {"type": "linear", "factor": 8}}
    old = read_huggingface({**keys, "rope_local_base_freq": 5000.0}, name="x")
    assert (old.rope.theta, old.rope.local_theta) == (1e6, 5000.0)
    assert old.rope.scaling is not None
    assert old.embedding_scale == math.sqrt(32)
    theirs = transformers.AutoConfig.for_model(**to_huggingface(old)).to_dict()
    assert theirs["rope_parameters"]["sliding_attention"]["rope_theta"] == 5000.0
    assert read_huggingface(theirs, name="x") == old
    wrapped = {"model_type": "gemma3", "text_config": {k: v for k, v in keys.items() if k != "model_type"}}
    assert count(read_huggingface(wrapped)) == count(old)


def test_windows_follow_the_family() -> None:
    def windows(family: str, **keys: Any) -> list[int | None]:
        spec = read_huggingface({"model_type": family, **SMALL, "head_dim": 16, **keys})
        return [spec.window(layer) for layer in range(spec.num_hidden_layers)]

    assert windows("mistral") == [4096] * 3  # an absent key is the class's default, null is none
    assert windows("mistral", sliding_window=None) == [None] * 3
    assert windows("gemma2") == [4096, None, 4096]
    assert windows("gemma3_text", num_hidden_layers=7, sliding_window=8) == [8, 8, 8, 8, 8, None, 8]
    assert windows("qwen2", sliding_window=8) == [None] * 3
    assert windows("qwen2", sliding_window=8, use_sliding_window=True, max_window_layers=2) == [None, None, 8]
    assert windows("gpt_oss", sliding_window=8) == [8, None, 8]


def test_nemotron_h_has_a_letter_for_every_layer() -> None:
    keys = {**SMALL, **MAMBA, **EXPERTS_OF_H, "hybrid_override_pattern": "ME*-ME*-"}
    spec = read_huggingface({"model_type": "nemotron_h", **keys})
    assert spec.num_hidden_layers == 8
    assert spec.layer_pattern == ("mamba", "mlp", "attention", "mlp")
    assert [spec.parts(i) for i in range(4)] == [
        ("mamba", None), (None, "experts"), ("attention", None), (None, "dense"),
    ]  # fmt: skip
    words = ["mamba", "moe", "attention", "mlp"] * 2
    listed = {**keys, "hybrid_override_pattern": None, "layers_block_type": words}
    assert read_huggingface({"model_type": "nemotron_h", **listed}) == spec


def test_multimodal_configs_are_read_for_their_language_model() -> None:
    for outer, inner in (("llama4", "llama4_text"), ("gemma4_unified", "gemma4_unified_text")):
        text = {**SMALL, "head_dim": 16}
        wrapped = read_huggingface({"model_type": outer, "text_config": {"model_type": inner, **text}}, name="x")
        assert wrapped == read_huggingface({"model_type": inner, **text}, name="x")


def test_grok_1_as_its_repository_has_it() -> None:
    spec = read_huggingface({"model_type": "grok-1"})
    assert (spec.tie_word_embeddings, spec.norm_position, spec.attention_softcap) == (True, "both", 30.0)
    # xai-org/grok-1, model.py: ffn_size(6144, 8) = 8 * 6144 * 2 // 3
    assert spec.moe is not None
    assert spec.moe.moe_intermediate_size == 8 * 6144 * 2 // 3


def test_smollm3_skips_positions_every_fourth_layer() -> None:
    spec = read_huggingface({"model_type": "smollm3", "num_hidden_layers": 8})
    assert [spec.has_rope(i) for i in range(8)] == [True, True, True, False] * 2
    listed = read_huggingface({"model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0]})
    assert [listed.has_rope(i) for i in range(4)] == [True, False, True, False]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "lama"}, "unknown model family 'lama' (config.json): did you mean 'llama'"),
        ({"hidden_size": 3}, "names no model_type"),
        ({"model_type": "llama", "hidden_act": "quick_gelu"}, "unknown activation 'quick_gelu'"),
        ({"model_type": "llama", "rope_scaling": {"type": "yarrn"}}, "unknown RoPE scaling 'yarrn'"),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True"),
        ({"model_type": "bloom", "apply_residual_connection_post_layernorm": True}, "is not supported for bloom"),
        ({"model_type": "llama", "hidden_size": "big"}, "hidden_size"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0, 0, 1] * 9}, "not every n-th layer"),
        ({"model_type": "gemma4_text"}, "embeddings for each layer"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-X"}, "unknown kind of layer 'X'"),
        ({"model_type": "gpt_oss", "swiglu_limit": 5.0}, "only 7.0 is"),
        ({"model_type": "nemotron_h", "use_bias": True}, "use_bias True is not supported"),
    ],
)
def test_unreadable_configs_are_errors_of_one_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        read_huggingface(config)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_key_that_the_family_can_t_express_is_refused() -> None:
    spec = ModelSpec(family="llama", vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                     num_attention_heads=4, qk_norm="head")  # fmt: skip
    with pytest.raises(UserError, match="can't express qk_norm 'head'"):
        to_huggingface(spec)
    with pytest.raises(UserError, match="family 'kimi_k2' is counted"):
        to_huggingface(read_huggingface({"model_type": "kimi_k2", TOP: 2}))
    with pytest.raises(UserError, match="can't express mtp_layers 1"):
        to_huggingface(spec.replace(qk_norm=None, mtp_layers=1))


def test_families_that_run_and_that_do_not() -> None:
    promised = "gpt2 gpt_neox bloom llama mistral qwen2 qwen3 gemma2 gemma3_text olmo2 starcoder2"
    assert set(promised.split()) <= RUNS
    for family in FAMILIES:
        keys = {"head_dim": 128, TOP: 2, "hidden_size_per_layer_input": 0, "num_nextn_predict_layers": 0}
        reason = why_not_running(read_huggingface({"model_type": family, **keys}))
        assert (reason is None) == (family in RUNS), family
        assert reason is None or "\n" not in reason
