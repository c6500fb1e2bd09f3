"""A network with one thing changed, for every trainer: it is written, or what differs is listed.

EXACT is what each trainer has by its sources (Megatron-LM, Megatron-Bridge, torchtitan, litgpt and MaxText:
the releases in docs/your-trainer.md). Everything else must be listed, so that `--strict` fails.
"""

from __future__ import annotations

from typing import Any

import pytest

from emit.limited import run_of
from emit.random_runs import DENSE, MIXTURE
from model.variants import VARIANTS, varied
from scalewright.emit.emitted import Emitted
from scalewright.emit.read import read_argv
from scalewright.emit.settings import Settings
from scalewright.emit.trainers import TRAINERS, module_of
from scalewright.emit.write import checked, emit
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec

LATENT: dict[str, Any] = {
    **MIXTURE, "name": "latent", "family": "deepseek_v3", "num_key_value_heads": 16, "norm_eps": 1e-5,
    "rope": {"theta": 10000.0, "interleaved": True},
    "mla": {"q_lora_rank": 256, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
            "v_head_dim": 64},
    "moe": {"num_experts": 8, "top_k": 4, "moe_intermediate_size": 256, "num_shared_experts": 1,
            "router_bias": True, "score": "sigmoid"},
}  # fmt: skip
MODELS = {"dense": DENSE, "mixture": MIXTURE, "latent": LATENT}
SIZES = {"plain", "eps", "kv heads", "kv heads of all"}
SHAPES = SIZES | {"tied", "wide heads", "narrow heads"}
WINDOWS = {"windows", "every other layer", "late windows"}
MEGATRON = SHAPES | WINDOWS | {
    "half of the dimensions turn", "neighbours turn", "no positions", "norms of heads", "qkv biases",
    "biases", "layernorm", "plus one", "relu2", "gelu", "experts",
}  # fmt: skip
SPARSE = {"another top k", "dense first", "every other sparse", "a dense layer"}
SHARED = {"shared expert", "two shared experts", "wide shared expert"}
GPU = {"dense": MEGATRON, "mixture": (MEGATRON - {"experts"}) | SPARSE | SHARED | {
    "dense", "top 1", "weights as they are", "experts scaled", "shared expert behind a gate",
    "sigmoid scores",
}, "latent": WINDOWS | SPARSE | (SHARED - {"shared expert"}) | {
    "plain", "eps", "tied", "half of the dimensions turn", "yarn, half", "qkv biases", "biases", "gelu",
    "relu2", "dense", "experts scaled", "no shared expert", "shared expert behind a gate", "no router's bias",
    "latent of queries 9", "latent of queries None",
}}  # fmt: skip
EXACT: dict[str, dict[str, set[str]]] = {
    "megatron": GPU,
    "megatron-bridge": {**GPU, "latent": GPU["latent"] | {"yarn", "yarn, no length"}},
    "torchtitan": {
        "dense": SHAPES | {"theta", "llama3", "norms of heads", "experts"},
        "mixture": SHAPES | SPARSE | SHARED | {
            "theta", "llama3", "norms of heads", "dense", "top 1", "weights as they are", "experts scaled",
            "sigmoid scores",
        },
        "latent": {"plain", "theta", "another top k", "top 1", "weights as they are", "experts scaled",
                   "no shared expert", "two shared experts", "no router's bias", "groups", "dense first",
                    "latent of queries 9", "latent of queries None"},
    },
    "nanotron": {"dense": SIZES | {
        "theta", "tied", "neighbours turn", "no position in every third layer", "windows", "qkv biases",
        "geglu", "geglu_tanh", "experts",
    }},
    "litgpt": {"dense": SHAPES | WINDOWS | {
        "half of the dimensions turn", "llama3", "llama3, no length", "scores capped", "logits capped",
        "norms of heads", "norm of all heads", "qkv biases", "biases", "head's bias", "layernorm",
        "norms after", "norms on both sides", "parallel", "parallel, one norm", "geglu", "geglu_tanh", "gelu",
        "gelu_tanh", "experts",
    }},
    "levanter": {"dense": SHAPES | {
        "theta", "llama3", "llama3, no length", "qkv biases", "geglu", "geglu_tanh", "experts",
    }},
    "maxtext": {"dense": SHAPES | {
        "scores capped", "logits capped", "norms of heads", "qkv biases", "geglu_tanh", "gelu_tanh", "relu",
        "experts",
    }},
    "gpt-neox": {"dense": SIZES | {
        "half of the dimensions turn", "no positions", "alibi", "windows", "attention biases", "mlp biases",
        "biases", "layernorm", "parallel", "parallel, one norm", "geglu", "gelu", "relu", "tied",
    }},
}  # fmt: skip
CONFIGS = [name for name in TRAINERS if name not in EXACT]  # those that take a config.json


def run_with(model: ModelSpec) -> Settings:
    layout = {"devices": 8, "global_batch": 8, "zero_stage": 3, "precision": "bf16"}
    return run_of(model=model.dump(), layout=layout, data={"train": "corpus", "seq_len": 4096})


def listed(emitted: Emitted) -> set[str]:
    items = (*emitted.dropped, *emitted.changed)
    return {item.key for item in items if item.key.startswith("model")}


@pytest.mark.parametrize(("trainer", "kind"), [(name, kind) for name in EXACT for kind in EXACT[name]])
def test_a_network_is_written_or_what_differs_is_listed(trainer: str, kind: str) -> None:
    base = ModelSpec.parse(MODELS[kind])
    usual = listed(emit(trainer, run_with(base)))  # a tokenizer's vocabulary, in two of them
    exact = set()
    for name in VARIANTS:
        spec = varied(base, name)
        if spec is None or (name != "plain" and spec == base):
            continue
        try:
            lost = listed(emit(trainer, run_with(spec)))
        except UserError:
            continue
        if lost <= usual:
            exact.add(name)
    assert exact == EXACT[trainer][kind]


@pytest.mark.parametrize("trainer", CONFIGS)
def test_a_config_that_its_class_computes_otherwise_is_refused(trainer: str) -> None:
    pytest.importorskip("torch")
    layout = {"devices": 1}
    half = ModelSpec.parse({**DENSE, "family": "llama", "rope": {"theta": 10000.0, "fraction": 0.5}})
    with pytest.raises(UserError, match=r"llama config\.json can't express rope\.fraction 0\.5"):
        emit(trainer, run_of(model=half.dump(), layout=layout))
    assert not listed(emit(trainer, run_of(model=DENSE, layout=layout)))


def test_numbers_that_megatron_has_fixed_are_listed() -> None:
    """rotary_pos_embedding.py: 1, 4, 8192; MLATransformerConfig: 4096, 32, 1, without arguments for them."""
    scaling = {"kind": "llama3", "factor": 8.0, "low_freq_factor": 2.0, "high_freq_factor": 6.0,
               "original_context": 2048}  # fmt: skip
    model = ModelSpec.parse({**DENSE, "rope": {"theta": 500000.0, "scaling": scaling}})
    for trainer, title in (("megatron", "Megatron-LM"), ("megatron-bridge", "Megatron-Bridge")):
        changed = {item.key: item for item in emit(trainer, run_with(model)).changed}
        numbers = {key.rpartition(".")[2]: item.written for key, item in changed.items() if "scaling" in key}
        assert numbers == {"original_context": "8192", "low_freq_factor": "1.0", "high_freq_factor": "4.0"}
        assert changed["model.rope.scaling.original_context"].why == f"{title} computes this in its place"
    assert not listed(emit("megatron", run_with(load_model_spec("llama-3.1-8b"))))
    yarn = {"kind": "yarn", "factor": 4.0, "original_context": 1024, "beta_fast": 16.0, "beta_slow": 2.0}
    latent = ModelSpec.parse({**LATENT, "rope": {**LATENT["rope"], "scaling": yarn}})
    lost = {key.rpartition(".")[2] for key in listed(emit("megatron", run_with(latent)))}
    assert lost == {"original_context", "beta_fast", "beta_slow"}
    text = emit("megatron-bridge", run_with(latent)).files["recipe.py"]
    assert "original_max_position_embeddings=1024" in text
    assert "beta_fast=16.0" in text


def test_latent_attention_keeps_its_norms_and_isn_t_stretched() -> None:
    """Its layer specs norm the latents by qk_layernorm; MLATransformerConfig's own factor is 40."""
    script = " ".join(emit("megatron", run_with(ModelSpec.parse(LATENT))).files["pretrain.sh"].split())
    assert "--qk-layernorm" in script
    assert "--rope-type yarn --rotary-scaling-factor 1" in script
    recipe = emit("megatron-bridge", run_with(ModelSpec.parse(LATENT))).files["recipe.py"]
    assert "rotary_scaling_factor=1.0" in recipe
    for preset, lost in (("deepseek-v3", set()), ("kimi-k2", {"model.rope.scaling.beta_fast"})):
        assert listed(emit("megatron", run_with(load_model_spec(preset)))) == lost


def test_windows_are_marked_for_every_layer_of_megatron() -> None:
    """Its list is indexed by the layer; 3 means that every third has none (transformer/utils.py)."""
    model = ModelSpec.parse({**DENSE, "num_hidden_layers": 4, "sliding_window": 512, "window_pattern": [True, False]})
    script = emit("megatron", run_with(model)).files["pretrain.sh"]
    assert "--window-attn-skip-freq '[1,0,1,0]'" in script
    line = "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4"
    line += " --window-size 511,0 --window-attn-skip-freq 3"
    assert read_argv(line).run["model"]["window_pattern"] == [True, True, False]


@pytest.mark.parametrize(
    ("flags", "mlp"), [("", "gelu_tanh"), ("--disable-bias-linear", "gelu"), ("--no-bias-gelu-fusion", "gelu")]
)
def test_megatron_s_gelu_is_the_tanh_form_where_it_is_fused(flags: str, mlp: str) -> None:
    """fusions/fused_bias_gelu.py; arguments.py turns the fusion off without biases."""
    line = f"torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 {flags}"
    assert read_argv(line).run["model"]["mlp_type"] == mlp


def test_neox_counts_tokens_before_the_query() -> None:
    """megatron/model/transformer.py: window_size=(sliding_window_width, -1) of flash attention."""
    model = ModelSpec.parse({**DENSE, "sliding_window": 512, "window_pattern": [True]})
    assert "sliding_window_width: 511\n" in emit("gpt-neox", run_with(model)).files["neox.yml"]


def test_maxtext_s_qwen3_has_its_norms_by_a_switch() -> None:
    model = ModelSpec.parse({**DENSE, "qk_norm": "head"})
    assert "use_qk_norm: true\n" in emit("maxtext", run_with(model)).files["maxtext.yml"]


def test_what_can_t_be_read_back_is_listed() -> None:
    settings = run_with(ModelSpec.parse(DENSE))
    emitted = module_of("litgpt").write(settings)
    damaged = Emitted("litgpt", "", {"pretrain.yaml": "model_config: {n_layer: many}\n"}, "")
    assert listed(checked(settings, damaged)) == {"model"}
    assert not listed(checked(settings, emitted))
