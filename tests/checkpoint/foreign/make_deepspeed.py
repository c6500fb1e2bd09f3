"""Run by the Python that has DeepSpeed, a process a rank: a Llama of transformers, trained and saved by it.

    python make_deepspeed.py FOLDER RANK WORLD PORT STAGE {fp32,bf16}

FOLDER/save is written by `engine.save_checkpoint`, FOLDER/universal by DeepSpeed's own ds_to_universal from
it. FOLDER/expected.pt has the master weights as DeepSpeed's zero_to_fp32 puts them together, and the logits
of the model in transformers with those weights; FOLDER/model.json is its config.json.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch

TOKENS = [[1, 7, 42, 3, 250, 9, 100, 11]]


def main() -> None:
    folder, rank, world, port, stage, dtype = Path(sys.argv[1]), *map(int, sys.argv[2:6]), sys.argv[6]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "DS_ACCELERATOR": "cpu"}
    import deepspeed
    from transformers import LlamaConfig, LlamaForCausalLM

    deepspeed.ops.__compatible_ops__.clear()  # no operator is compiled for this
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=8,
        vocab_size=251, intermediate_size=75, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "bf16": {"enabled": dtype == "bf16"},
        "zero_allow_untested_optimizer": True,
    }
    if stage == 3:
        with deepspeed.zero.Init(config_dict_or_path=settings):
            model = LlamaForCausalLM(config)
    else:
        model = LlamaForCausalLM(config)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    tokens = torch.tensor(TOKENS)
    for _ in range(2):
        engine.backward(engine(tokens, labels=tokens).loss)
        engine.step()
    engine.save_checkpoint(str(folder / "save"))
    torch.distributed.barrier()
    if rank == 0:
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        if stage:
            weights = get_fp32_state_dict_from_zero_checkpoint(str(folder / "save"))
            weights = {name: tensor.clone() for name, tensor in weights.items()}
        else:
            weights = {name: tensor.clone() for name, tensor in engine.module.state_dict().items()}
        whole = LlamaForCausalLM(config)
        whole.load_state_dict(weights)
        with torch.no_grad():
            logits = whole.eval()(tokens).logits
        torch.save({"weights": weights, "logits": logits}, folder / "expected.pt")
        (folder / "model.json").write_text(config.to_json_string())
        if stage:
            to_universal(folder / "save", folder / "universal")
    torch.distributed.barrier()


def to_universal(save: Path, out: Path) -> None:
    """DeepSpeed's own conversion."""
    from deepspeed.checkpoint.ds_to_universal import main as convert

    tag = (save / "latest").read_text()
    arguments = argparse.Namespace(
        input_folder=str(save / tag), output_folder=str(out / tag), num_extract_workers=1,
        num_merge_workers=1, keep_temp_folder=False, strict=True, inject_missing_state=True,
    )  # fmt: skip
    convert(arguments)


if __name__ == "__main__":
    main()
