"""Functions for emitted files that make a decoder of torchtitan's parts, for models without a flavor.

0.3   decoder(...)           GQA, dense or experts        (parts of models/qwen3)
0.3   latent_decoder(...)    MLA                          (parts of models/deepseek_v3)
0.2   own_model.py           arguments of the same classes, registered under a name of their own

Calls of them have literals alone, so that the file is read back without being run.
"""

from __future__ import annotations

import re

DECODER = '''\
WEIGHT = {"weight": partial(nn.init.normal_, std=0.02), "bias": nn.init.zeros_}
EXPERTS = {name: WEIGHT["weight"] for name in ("w1_EFD", "w2_EDF", "w3_EFD")}


def decoder(
    *, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, vocab_size, context, norm_eps, rope_theta,
    rope_scaling=None, qk_norm=False, tied=False, moe=None, dense_layers=(), converters=(),
):
    """A decoder of these sizes, of torchtitan's parts."""

    def norm(size):
        return RMSNorm.Config(normalized_shape=size, eps=norm_eps, param_init={"weight": nn.init.ones_})

    def ffn(size):
        return make_ffn_config(dim=dim, hidden_dim=size, w1_param_init=WEIGHT, w2w3_param_init=WEIGHT)

    def experts():
        sizes = {"dim": dim, "num_experts": moe["num_experts"], "top_k": moe["top_k"]}
        return make_moe_config(
            num_experts=moe["num_experts"],
            router=make_router_config(
                **sizes, gate_param_init=WEIGHT, score_func=moe["score"], route_norm=moe["normalize"],
                route_scale=moe["scale"], num_expert_groups=moe["groups"],
                num_limited_groups=moe["top_groups"],
            ),
            routed_experts=make_routed_experts_config(
                **sizes, hidden_dim=moe["hidden_dim"], param_init=EXPERTS, comm_backend="standard"
            ),
            shared_experts=ffn(moe["shared_dim"]) if moe["shared_dim"] else None,
            load_balance_coeff=moe["bias_rate"],
        )

    rope = {"dim": head_dim, "max_seq_len": context, "theta": rope_theta}
    layers = []
    for index in range(n_layers):
        sparse = moe is not None and index not in dense_layers
        layers.append(Qwen3TransformerBlock.Config(
            attention_norm=norm(dim),
            ffn_norm=norm(dim),
            attention=make_gqa_config(
                dim=dim, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, wqkv_param_init=WEIGHT,
                wo_param_init=WEIGHT, inner_attention=get_attention_config("flex"), fuse_qkv=True,
                rope=ComplexRoPE.Config(**rope, scaling="llama", **rope_scaling) if rope_scaling
                else CosSinRoPE.Config(**rope),
                qk_norm=norm(head_dim) if qk_norm else None,
            ),
            feed_forward=None if sparse else ffn(hidden_dim),
            moe=experts() if sparse else None,
        ))
    config = Qwen3Model.Config(
        dim=dim, vocab_size=vocab_size, norm=norm(dim), enable_weight_tying=tied, layers=layers,
        tok_embeddings=Embedding.Config(
            num_embeddings=vocab_size, embedding_dim=dim,
            param_init={"weight": skip_param_init if tied else WEIGHT["weight"]},
        ),
        lm_head=Linear.Config(in_features=dim, out_features=vocab_size, param_init=WEIGHT),
    )
    for converter in converters:
        config = converter.build().convert(config)
    return ModelSpec(
        name="qwen3", flavor="own", model=config, parallelize_fn=parallelize_qwen3,
        pipelining_fn=pipeline_llm, post_optimizer_build_fn=register_moe_load_balancing_hook,
        state_dict_adapter=None,
    )
'''
LATENT = '''\
WEIGHT = {"weight": partial(nn.init.normal_, std=0.02), "bias": nn.init.zeros_}
EXPERTS = {name: WEIGHT["weight"] for name in ("w1_EFD", "w2_EDF", "w3_EFD")}
ONES = {"weight": nn.init.ones_}


def latent_decoder(
    *, dim, n_layers, n_heads, hidden_dim, vocab_size, context, rope_theta, latent, moe, dense_layers,
    rope_scaling=None, converters=(),
):
    """A decoder with multi-head latent attention and experts of these sizes, of torchtitan's parts."""
    yarn = {"scaling": "yarn", **rope_scaling} if rope_scaling else {}
    layers = build_mla_moe_layers(
        n_layers=n_layers, n_dense_layers=len(dense_layers), dim=dim, n_heads=n_heads, **latent,
        dense_hidden_dim=hidden_dim, moe_hidden_dim=moe["hidden_dim"], num_experts=moe["num_experts"],
        num_shared_experts=moe["shared_dim"] // moe["hidden_dim"], router_top_k=moe["top_k"],
        router_score_func=moe["score"], router_num_expert_groups=moe["groups"],
        router_num_limited_groups=moe["top_groups"], router_route_scale=moe["scale"],
        router_route_norm=moe["normalize"], attn_backend="flex", moe_comm_backend="standard",
        non_blocking_capacity_factor=None, linear_init=WEIGHT, norm_init=ONES,
        depth_init=lambda index: WEIGHT, depth_experts_init=lambda index: EXPERTS,
        rope=ComplexRoPE.Config(
            dim=latent["qk_rope_head_dim"], max_seq_len=context, theta=rope_theta, **yarn
        ),
    )
    for layer in layers:
        if layer.moe is not None:
            layer.moe.load_balance_coeff = moe["bias_rate"]
    config = DeepSeekV3Model.Config(
        dim=dim, vocab_size=vocab_size, layers=layers, mtp_layers=[],
        norm=RMSNorm.Config(normalized_shape=dim, param_init=ONES),
        tok_embeddings=Embedding.Config(
            num_embeddings=vocab_size, embedding_dim=dim, param_init={"weight": WEIGHT["weight"]}
        ),
        lm_head=Linear.Config(in_features=dim, out_features=vocab_size, param_init=WEIGHT),
    )
    for converter in converters:
        config = converter.build().convert(config)
    return ModelSpec(
        name="deepseek_v3", flavor="own", model=config, parallelize_fn=parallelize_deepseekv3,
        pipelining_fn=pipeline_llm, post_optimizer_build_fn=register_moe_load_balancing_hook,
        state_dict_adapter=None,
    )
'''
# Where emitted files import the names from that they use
IMPORTS = {
    "functools": ("partial",), "torch": ("nn",),
    "torchtitan.components.checkpoint": ("CheckpointManager",),
    "torchtitan.components.loss": ("ChunkedLossWrapper", "CrossEntropyLoss"),
    "torchtitan.components.metrics": ("MetricsProcessor",),
    "torchtitan.components.optimizer": (
        "LRSchedulersContainer", "OptimizersContainer", "ParamGroupConfig", "default_adamw",
        "register_moe_load_balancing_hook",
    ),
    "torchtitan.components.quantization": (
        "Float8LinearConverter", "MXFP8LinearConverter", "NVFP4LinearConverter",
    ),
    "torchtitan.components.validate": ("Validator",),
    "torchtitan.config": ("CompileConfig", "DebugConfig", "ParallelismConfig", "TrainingConfig"),
    "torchtitan.distributed.activation_checkpoint": ("FullAC", "MemoryBudgetAC", "SelectiveAC"),
    "torchtitan.distributed.pipeline_parallel": ("pipeline_llm",),
    "torchtitan.hf_datasets.text_datasets": ("HuggingFaceTextDataLoader",),
    "torchtitan.models.common": ("ComplexRoPE", "CosSinRoPE", "Embedding", "Linear", "RMSNorm"),
    "torchtitan.models.common.config_utils": (
        "get_attention_config", "make_ffn_config", "make_gqa_config", "make_moe_config",
        "make_routed_experts_config", "make_router_config",
    ),
    "torchtitan.models.common.param_init": ("skip_param_init",),
    "torchtitan.models.deepseek_v3": ("build_mla_moe_layers",),
    "torchtitan.models.deepseek_v3.model": ("DeepSeekV3Model",),
    "torchtitan.models.deepseek_v3.parallelize": ("parallelize_deepseekv3",),
    "torchtitan.models.qwen3.model": ("Qwen3Model", "Qwen3TransformerBlock"),
    "torchtitan.models.qwen3.parallelize": ("parallelize_qwen3",),
    "torchtitan.protocols.model_spec": ("ModelSpec",),
    "torchtitan.trainer": ("Trainer",),
}  # fmt: skip
OWN = '''\
"""{title}.

Sizes of a model that torchtitan has no flavor of; `custom_import` in the TOML loads this file.
"""

from dataclasses import replace

from torchtitan.models.{module} import get_train_spec
from torchtitan.models.{module}.model.args import {classes}
{more}from torchtitan.protocols.train_spec import register_train_spec

ARGS = {args}

register_train_spec("own", replace(get_train_spec(), model_args={{"own": ARGS}}))
'''


def imports(text: str) -> list[str]:
    """The import lines for all names that an emitted text uses."""
    lines = []
    for module, names in IMPORTS.items():
        used = [name for name in names if re.search(rf"\b{name}\b", text)]
        line = f"from {module} import {', '.join(used)}"
        if len(line) > 100:
            line = f"from {module} import (\n" + "".join(f"    {name},\n" for name in used) + ")"
        lines += [line] if used else []
    return lines
