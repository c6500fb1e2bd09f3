"""Run by the Python that has torchtitan, a process a rank: its model, sharded, trained and saved by it.

    python make_torchtitan.py FOLDER RANK WORLD PORT FAMILY

FOLDER/checkpoint/step-2 is written by torchtitan's CheckpointManager; FOLDER/expected.pt has the weights and
the logits of that model under torchtitan's own conversion to Hugging Face's names, and FOLDER/config.json its
sizes.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

TOKENS = [[1, 7, 42, 3, 255, 9, 100, 11]]
SIZES = {"dim": 48, "layers": 2, "heads": 6, "kv_heads": 2, "head": 8, "vocabulary": 256, "hidden": 72}


class Optimizers:
    """What torchtitan's OptimizersContainer saves, by the function that it calls."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def init_cache_state_dict(self) -> None:
        """Nothing to do."""

    def state_dict(self) -> dict[str, Any]:
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        return get_optimizer_state_dict(self.model, self.optimizer, options=options)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class Step:
    """A state that isn't a tensor, as torchtitan's trainer has one."""

    def state_dict(self) -> dict[str, Any]:
        return {"step": torch.tensor(2), "ntokens_seen": 64}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def build_02(family: str) -> tuple[Any, Any]:
    """The model and the adapter of torchtitan 0.2."""
    s = SIZES
    if family == "llama":
        from torchtitan.models.llama3.model.args import TransformerModelArgs
        from torchtitan.models.llama3.model.model import Transformer
        from torchtitan.models.llama3.model.state_dict_adapter import Llama3StateDictAdapter

        # hidden = 2/3 of 4 dim, rounded up to `multiple_of`
        args = TransformerModelArgs(
            dim=s["dim"], n_layers=s["layers"], n_heads=s["heads"], n_kv_heads=s["kv_heads"],
            vocab_size=s["vocabulary"], multiple_of=72, max_seq_len=64, rope_theta=10000.0,
        )  # fmt: skip
        args.rope_scaling_args.scaling_factor = 1.0
        return Transformer(args), Llama3StateDictAdapter(args, None)
    from torchtitan.models.qwen3.model.args import Qwen3ModelArgs
    from torchtitan.models.qwen3.model.model import Qwen3Model
    from torchtitan.models.qwen3.model.state_dict_adapter import Qwen3StateDictAdapter

    args = Qwen3ModelArgs(
        dim=s["dim"], n_layers=s["layers"], n_heads=s["heads"], n_kv_heads=s["kv_heads"], head_dim=s["head"],
        vocab_size=s["vocabulary"], hidden_dim=s["hidden"], max_seq_len=64, rope_theta=10000.0, qk_norm=True,
    )  # fmt: skip
    return Qwen3Model(args), Qwen3StateDictAdapter(args, None)


def build_03(family: str) -> tuple[Any, Any]:
    """The model and the adapter of torchtitan 0.3, by the functions that make its presets."""
    s = SIZES
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm

    assert family == "llama"
    from torchtitan.models import llama3
    from torchtitan.models.llama3 import Llama3Model, Llama3StateDictAdapter

    config = Llama3Model.Config(
        dim=s["dim"],
        vocab_size=s["vocabulary"],
        tok_embeddings=Embedding.Config(
            num_embeddings=s["vocabulary"], embedding_dim=s["dim"], param_init=llama3._EMBEDDING_INIT
        ),
        norm=RMSNorm.Config(normalized_shape=s["dim"], param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(
            in_features=s["dim"], out_features=s["vocabulary"], param_init=llama3._output_linear_init(s["dim"])
        ),
        layers=llama3._build_llama3_layers(
            fuse_qkv=True,
            n_layers=s["layers"],
            dim=s["dim"],
            n_heads=s["heads"],
            n_kv_heads=s["kv_heads"],
            hidden_dim=s["hidden"],
            rope=ComplexRoPE.Config(dim=s["head"], max_seq_len=64, theta=10000, scaling="none"),
            attn_backend="flex",
        ),
    )
    return config.build(), Llama3StateDictAdapter(config, None)


def save(version: str, folder: Path, model: Any, optimizers: Optimizers) -> None:
    """By torchtitan's CheckpointManager."""
    from torchtitan.components.checkpoint import CheckpointManager

    states = {"train_state": Step()}
    if version.startswith("0.2"):
        from torchtitan.config.job_config import Checkpoint

        manager = CheckpointManager(
            None, [model], optimizers, Step(), states,
            Checkpoint(enable=True, interval=1, keep_latest_k=0, last_save_model_only=False), None,
            str(folder),
        )  # fmt: skip
    else:
        config = CheckpointManager.Config(enable=True, interval=1, keep_latest_k=0, last_save_model_only=False)
        manager = config.build(
            dataloader=None, model_parts=[model], optimizers=optimizers, lr_schedulers=Step(), states=states,
            sd_adapter=None, base_folder=str(folder),
        )  # fmt: skip
    manager.save(2, last_step=True)


def main() -> None:
    folder, rank, world, port, family = Path(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5]
    version = importlib.metadata.version("torchtitan")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(world)}
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model, adapter = (build_02 if version.startswith("0.2") else build_03)(family)
    init = model.init_weights if hasattr(model, "init_weights") else model.init_states
    with torch.no_grad():
        init(buffer_device=torch.device("cpu"))
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))  # norms aren't ones
    mesh = init_device_mesh("cpu", (world,))
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.tensor(TOKENS)
    runs = version.startswith("0.2")  # 0.3 has no attention left that runs without compilation
    for _ in range(2):
        if runs:
            logits = model(tokens)
            torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
        else:
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    save(version, folder, model, Optimizers(model, optimizer))
    whole = {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in model.state_dict().items()}
    with torch.no_grad():
        outcome = {"logits": model(tokens)} if runs else {}
    if rank == 0:
        torch.save({"weights": adapter.to_hf(whole), **outcome}, folder / "expected.pt")
        s = SIZES
        config = {
            "model_type": "llama" if family == "llama" else "qwen3", "hidden_size": s["dim"],
            "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"], "head_dim": s["head"],
            "num_key_value_heads": s["kv_heads"], "vocab_size": s["vocabulary"], "hidden_act": "silu",
            "intermediate_size": whole["layers.0.feed_forward.w1.weight"].shape[0],
            "rms_norm_eps": 1e-5 if family == "llama" else 1e-6,
            "rope_theta": 10000.0, "max_position_embeddings": 64, "tie_word_embeddings": False,
        }  # fmt: skip
        (folder / "model.json").write_text(json.dumps(config))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
