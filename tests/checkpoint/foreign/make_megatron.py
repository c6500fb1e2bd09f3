"""Run by a Python that has Megatron Core, one process a rank: its GPTModel, saved by its dist_checkpointing.

    python make_megatron.py FOLDER RANK WORLD PORT {llama,qwen3,qwen2,mixtral,qwen3_moe}

FOLDER/iter_0000002 is written in `torch_dist` as Megatron-LM's training does: sharded weights, and `args` in
common.pt. FOLDER/expected.pt has the whole weights by Hugging Face's names, cut out here by the model's own
function that splits qkv, and the logits where one rank has the model.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TOKENS = [[1, 7, 42, 3, 249, 9, 100, 11]]
LAYERS, HIDDEN, HEADS, GROUPS, HEAD, FFN, VOCABULARY, PADDED = 2, 48, 6, 2, 8, 72, 250, 256
EXPERTS, TOP = 4, 2


def build(kind: str, world: int) -> Any:
    """Megatron's model of its local (plain torch) layers; ranks split experts where it has them, else tp."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    experts = kind in ("mixtral", "qwen3_moe")
    tensor_parallel, expert_parallel = (1, world) if experts else (world, 1)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tensor_parallel, expert_model_parallel_size=expert_parallel
    )
    mixture: dict[str, Any] = {}
    if experts:
        mixture = {
            "num_moe_experts": EXPERTS,
            "moe_router_topk": TOP,
            "moe_token_dispatcher_type": "allgather",
            "moe_ffn_hidden_size": FFN,
            "expert_model_parallel_size": expert_parallel,
        }
    config = TransformerConfig(
        num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, num_query_groups=GROUPS,
        kv_channels=HEAD, ffn_hidden_size=FFN, gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, normalization="RMSNorm", add_bias_linear=False,
        use_cpu_initialization=True, layernorm_epsilon=1e-6,
        qk_layernorm=kind.startswith("qwen3"), add_qkv_bias=kind == "qwen2",
        tensor_model_parallel_size=tensor_parallel,
        bias_activation_fusion=False, apply_rope_fusion=False, masked_softmax_fusion=False,
        gradient_accumulation_fusion=False, hidden_dropout=0.0, attention_dropout=0.0,
        hetereogenous_dist_checkpoint=kind == "qwen2", **mixture,
    )  # fmt: skip
    layers = get_gpt_layer_local_spec(
        num_experts=EXPERTS if experts else None, qk_layernorm=kind.startswith("qwen3"), normalization="RMSNorm"
    )
    return GPTModel(
        config, layers, PADDED, 64, position_embedding_type="rope", rotary_base=10000,
        share_embeddings_and_output_weights=False,
    ).eval()  # fmt: skip


def main() -> None:
    folder, rank, world, port, kind = Path(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(rank)
    torch.cuda.synchronize = lambda *_: None  # its writer waits for a GPU, and names it as a device
    torch.cuda.current_device = lambda: "cpu"
    from megatron.core import dist_checkpointing, tensor_parallel

    model = build(kind, world)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = 0.05 * torch.randn_like(parameter)
            if not getattr(parameter, "tensor_model_parallel", False) and getattr(parameter, "allreduce", True):
                dist.broadcast(noise, 0)
            parameter.add_(noise)
    arguments = argparse.Namespace(
        num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, num_query_groups=GROUPS,
        group_query_attention=True, kv_channels=HEAD, ffn_hidden_size=FFN, max_position_embeddings=64,
        padded_vocab_size=PADDED, swiglu=True, normalization="RMSNorm", norm_epsilon=1e-6, rotary_base=10000,
        position_embedding_type="rope", untie_embeddings_and_output_weights=True, add_bias_linear=False,
        add_qkv_bias=kind == "qwen2", qk_layernorm=kind.startswith("qwen3"), rotary_interleaved=False,
        num_experts=EXPERTS if kind in ("mixtral", "qwen3_moe") else None, moe_router_topk=TOP,
        moe_ffn_hidden_size=FFN, moe_layer_freq=1, moe_router_pre_softmax=False,
        params_dtype=torch.float32,
    )  # fmt: skip
    state = {"args": arguments, "checkpoint_version": 3.0, "iteration": 2, **model.sharded_state_dict()}
    target = folder / "iter_0000002"
    target.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    dist_checkpointing.save(state, str(target))
    pieces: list[Any] = [None] * world
    dist.all_gather_object(pieces, {k: v for k, v in model.state_dict().items() if torch.is_tensor(v)})
    if rank == 0:
        (folder / "latest_checkpointed_iteration.txt").write_text("2")
        outcome: dict[str, Any] = {"pieces": pieces}
        if world == 1:
            tokens = torch.tensor(TOKENS)
            positions = torch.arange(tokens.shape[1])[None]
            mask = torch.triu(torch.ones(8, 8, dtype=torch.bool), 1)[None, None]
            tensor_parallel.random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
            with torch.no_grad():
                outcome["logits"] = model(tokens, positions, mask)
        torch.save(outcome, folder / "expected.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
