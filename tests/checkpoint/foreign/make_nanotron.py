"""Run by a Python that has nanotron, a process a rank: its parallel layers in its Llama's tree, saved by it.

    python make_nanotron.py FOLDER RANK WORLD PORT

nanotron 0.4 can't be imported whole without flash-attn and NCCL, so the tree of modules is built here of its
TensorParallelColumnLinear, RowLinear and Embedding with the arguments of its `models/llama.py`; which part a
rank holds, and the files in FOLDER/2, are nanotron's own (`save_weights`, `save_meta`). FOLDER/expected.pt
has each rank's parts.
"""

from __future__ import annotations

import json
import os
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

LAYERS, HIDDEN, HEADS, GROUPS, HEAD, FFN, VOCABULARY = 2, 48, 6, 2, 8, 72, 256


def without_config() -> None:
    """Its configuration and models import the engine, which imports the parameters: names are enough."""

    def anything(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})

    for name in ("nanotron.config", "nanotron.config.config", "nanotron.models"):
        names = types.ModuleType(name)
        names.__getattr__, names.__path__ = anything, []
        sys.modules[name] = names
    for name in ("nanotron.serialize", "nanotron.optim"):  # their __init__ import the optimizers, and these the rest
        bare = types.ModuleType(name)
        bare.__path__ = [str(Path(find_spec("nanotron").origin).parent / name.partition(".")[2])]
        sys.modules[name] = bare


class Context:
    """What of nanotron's ParallelContext, which takes NCCL alone, the saving asks for."""

    def __init__(self, rank: int, world: int) -> None:
        alone = [dist.new_group([r]) for r in range(world)]
        self.tp_pg = self.world_pg = dist.new_group(list(range(world)))
        self.dp_pg = self.pp_pg = alone[rank]
        self.world_ranks_to_pg = {tuple(range(world)): self.tp_pg, **{(r,): alone[r] for r in range(world)}}

    def get_3d_ranks(self, world_rank: int) -> tuple[int, int, int]:
        return 0, 0, world_rank


def block(**modules: nn.Module) -> nn.Module:
    """A module of these."""
    module = nn.Module()
    for name, part in modules.items():
        module.add_module(name, part)
    return module


def main() -> None:
    folder, rank, world, port = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    dist.init_process_group("gloo", rank=rank, world_size=world)
    without_config()
    import nanotron.logging  # first: it closes a circle of imports  # noqa: F401
    from nanotron.parallel.parameters import NanotronParameter
    from nanotron.parallel.tensor_parallel.enum import TensorParallelLinearMode
    from nanotron.parallel.tensor_parallel.nn import (
        TensorParallelColumnLinear,
        TensorParallelEmbedding,
        TensorParallelRowLinear,
    )
    from nanotron.serialize.metadata import save_meta
    from nanotron.serialize.weights import save_weights

    torch.manual_seed(rank)
    context = Context(rank, world)
    keys: dict[str, Any] = {"pg": context.tp_pg, "mode": TensorParallelLinearMode.ALL_REDUCE}
    q, k = HEADS * HEAD, GROUPS * HEAD

    def norm() -> nn.Module:
        return nn.RMSNorm(HIDDEN)

    def layer() -> nn.Module:
        qkv = TensorParallelColumnLinear(HIDDEN, q + 2 * k, bias=False, contiguous_chunks=(q, k, k), **keys)
        up = TensorParallelColumnLinear(HIDDEN, 2 * FFN, bias=False, contiguous_chunks=(FFN, FFN), **keys)
        return block(
            input_layernorm=norm(),
            attn=block(qkv_proj=qkv, o_proj=TensorParallelRowLinear(q, HIDDEN, bias=False, **keys)),
            post_attention_layernorm=norm(),
            mlp=block(gate_up_proj=up, down_proj=TensorParallelRowLinear(FFN, HIDDEN, bias=False, **keys)),
        )

    embedding = TensorParallelEmbedding(VOCABULARY, HIDDEN, **keys)
    model = block(
        model=block(
            token_position_embeddings=block(pp_block=block(token_embedding=embedding)),
            decoder=nn.ModuleList([block(pp_block=layer()) for _ in range(LAYERS)]),
            final_layer_norm=block(pp_block=norm()),
            lm_head=block(pp_block=TensorParallelColumnLinear(HIDDEN, VOCABULARY, bias=False, **keys)),
        )
    ).bfloat16()
    for name, module in model.named_modules():
        for kind, parameter in list(module.named_parameters(recurse=False)):
            if not isinstance(parameter, NanotronParameter):  # norms: alike on every rank
                same = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(len(name))).bfloat16()
                setattr(module, kind, NanotronParameter(tensor=same))
    save_weights(model, context, folder / "2")
    save_meta(context, folder / "2", {"consumed_train_samples": 8, "last_train_step": 2})
    pieces: list[Any] = [None] * world
    dist.all_gather_object(pieces, {name: tensor.data for name, tensor in model.state_dict().items()})
    if rank == 0:
        (folder / "latest.txt").write_text("2")
        settings = {
            "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
            "hidden_act": "silu",
            "num_key_value_heads": GROUPS, "vocab_size": VOCABULARY, "intermediate_size": FFN,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "is_llama_config": True,
            "tie_word_embeddings": False, "rope_scaling": None, "pad_token_id": None,
        }  # fmt: skip
        (folder / "2" / "model_config.json").write_text(json.dumps(settings))
        torch.save({"pieces": pieces}, folder / "expected.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
