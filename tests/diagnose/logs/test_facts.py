"""What logs state of the model, the layout and the devices, in lines as trainers print them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scalewright.diagnose.logs.log import read_logs

CASES: list[tuple[str, dict[str, Any]]] = [
    ("using world size: 64, data-parallel-size: 1, tensor-model-parallel size: 4, "
     "pipeline-model-parallel size: 16",
     {"devices": 64, "dp": 1, "tp": 4, "pp": 16}),
    ("[rank0]:using world size: 8, data-parallel size: 4, context-parallel size: 2, hierarchical "
     "context-parallel "
     "sizes: None, tensor-model-parallel size: 1, pipeline-model-parallel size: 1",
     {"devices": 8, "dp": 4, "cp": 2}),
    ("  tensor_model_parallel_size ...................... 8", {"tp": 8}),
    ("0:   bf16 ............................................ True", {"precision": "bf16"}),
    ("  virtual_pipeline_model_parallel_size ............ None", {}),
    ("  recompute_granularity ........................... full", {"recompute": "full"}),
    ("  checkpoint_activations .......................... False", {}),
    ("torchrun pretrain_gpt.py --tensor-model-parallel-size 8 --num-layers 80 --bf16 --seq-length 4096",
     {"tp": 8, "layers": 80, "seq_len": 4096}),
    ("cmd = deepspeed main.py --model_name_or_path facebook/opt-1.3b --zero_stage 2 --max_seq_len 512",
     {"model": "facebook/opt-1.3b", "zero_stage": 2, "seq_len": 512}),
    ("setting number of micro-batches to constant 256", {"grad_accum": 256}),
    ("> initialized tensor model parallel with size 8", {"tp": 8}),
    ("[NeMo I] All tensor model parallel group ranks: [[0, 1], [2, 3]]", {"tp": 2}),
    ("[default3]:Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/8", {"devices": 8}),
    ("[titan] Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]",
     {"devices": 8, "dp_shard": 4, "tp": 2}),
    ("[titan] Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=2, "
     "ep=1, etp=1",
     {"pp": 2, "dp_shard": 4, "dp_replicate": 1, "tp": 2}),
    ("[titan] Building llama3 8B with TransformerModelArgs(dim=4096)", {"model": "llama3 8B"}),
    ("[titan] CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory", {"device": "NVIDIA H100 80GB "
                                                                                     "HBM3"}),
    ("[titan] Training starts at step 1, with local batch size 5, global batch size 20, sequence length "
     "8192, total",
     {"micro_batch": 5, "global_batch": 20, "seq_len": 8192}),
    ("[titan] Training starts at step 1, with local batch size: 1, global batch size: 8, gradient "
     "accumulation steps: "
     "1, sequence length: 2048", {"micro_batch": 1, "global_batch": 8, "seq_len": 2048}),
    ("[titan] Applied selective activation checkpointing to the model", {"recompute": "selective"}),
    ("[INFO] >>   Instantaneous batch size per device = 4", {"micro_batch": 4}),
    ("[INFO] >>   Total train batch size (w. parallel, distributed & accumulation) = 1,024",
     {"global_batch": 1024}),
    ('  "hidden_size": 3072,', {"hidden": 3072}),
    ("using world size: 64, data-parallel-size: 16, tensor-model-parallel size: 4, pipeline-model-parallel size: 1\n"
     "[INFO] [config.py:1003:print]   world_size ................... 16", {"devices": 64, "dp": 16, "tp": 4}),
    ("[INFO] [config.py:1003:print]   world_size ................... 16", {"devices": 16, "dp": 16}),
    ("  world_size ...................................... 64\n"
     "[INFO] [config.py:787:print]   world_size ................... 8", {"devices": 64, "dp": 8}),
    ("> initialized tensor model parallel with size 4\n[INFO] [config.py:787:print]   world_size ........... 8",
     {"devices": 32, "tp": 4}),
    ("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 187.421", {"bus_gb_per_s": 187.421}),
    ("using world size: 32 and model-parallel size: 4", {"devices": 32, "tp": 4}),
    ("    train_micro_batch_size_per_gpu    4", {"micro_batch": 4}),
    ('  "train_micro_batch_size_per_gpu": 8,', {"micro_batch": 8}),
    ("Unified tuning params for model are: {'per_device_batch_size': 12, 'ici_fsdp_parallelism': -1, "
     "'remat_policy': 'full', 'max_target_length': 4096}", {"micro_batch": 12, "recompute": "full", "seq_len": 4096}),
    ("tensorboard in /logs/gpt-7b-tp4-pp2-dp8-mbs1-gbs512-seq4096_bf16/run",
     {"tp": 4, "pp": 2, "dp": 8, "devices": 64, "micro_batch": 1, "global_batch": 512, "seq_len": 4096,
      "precision": "bf16"}),
    ("saving checkpoint to ckpt/llama_tp2_pp4_mbs2\n> initialized tensor model parallel with size 8",
     {"tp": 8, "pp": 4, "micro_batch": 2}),
    ("loading checkpoint ckpt/step-100-rank0-v2", {}),
    ("[titan] Trainer is initialized with local batch size 1, global batch size 2, gradient accumulation steps 4, "
     "sequence length 8192, total steps 1000 (warmup 200)",
     {"micro_batch": 1, "global_batch": 2, "grad_accum": 4, "seq_len": 8192}),
    ("[titan] Building llama3 8B_flex_attn with TransformerModelArgs(dim=4096)", {"model": "llama3 8B"}),
    ("[titan] Building llama4 17bx16e with TransformerModelArgs(dim=5120)", {"model": "llama4 17bx16e"}),
    ("[titan] Building qwen3 30B-A3B with Qwen3ModelArgs(dim=2048)", {"model": "qwen3 30B-A3B"}),
    ("[titan] Model gpt_oss 20b size: 20,914,757,184 total parameters", {"model": "gpt_oss 20b"}),
    ("[titan] Model qwen3 30B-A3B_x size: 30,532,122,624 total parameters", {"model": "qwen3 30B-A3B"}),
    ("[titan] torchtitan version: 0.2.0 (0.0.0 means __version__ is not defined correctly).", {"version": "0.2.0"}),
    ("[titan] Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=2, cp=2, tp=1, ep=4, etp=1",
     {"devices": 8}),
    *((f"| 0  {name}   On | 0MiB", {"device": name}) for name in (
        "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA RTX A6000", "NVIDIA RTX 6000 Ada Generation",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe",
        "NVIDIA GH200 480GB", "NVIDIA H20-3e", "NVIDIA L40S", "Tesla V100-SXM2-32GB", "NVIDIA TITAN RTX",
        "AMD Instinct MI300X", "NVIDIA GeForce GTX 1080 Ti", "NVIDIA GeForce RTX 4070 Laptop GPU")),
    *((name, {}) for name in ("NVIDIA Resiliency Extension", "NVIDIA Corporation", "NVIDIA NeMo", "NVIDIA GPU")),
    ("Config param per_device_batch_size: 4.0", {"micro_batch": 4}),
    ("Config param model_name: llama2-7b", {"model": "llama2-7b"}),
    ("\tUsing (GB) 44.63 / 95.74 (46.615835%) on TPU_3(process=0,(1,1,0,0))", {"devices": 4}),
    ("saving to checkpoints/ds_stage2_nl32_hs4096_mb8_seq4096_gb768_pp1_tp2_fp16",
     {"zero_stage": 2, "layers": 32, "micro_batch": 8, "global_batch": 768, "tp": 2, "precision": "fp16"}),
    ("Saving LoRA weights to 'out/finetune/lora-phi-2/final/lit_model.pth.lora'", {"model": "phi-2 (LoRA)"}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "facts"), CASES, ids=[line[:40] for line, _ in CASES])
def test_a_line_states(tmp_path: Path, line: str, facts: dict[str, Any]) -> None:
    path = tmp_path / "log"
    path.write_text(f"noise\n{line}\nnoise\n")
    stated = read_logs([path]).facts
    assert {key: stated.get(key) for key in facts} == facts
    if not facts:
        assert stated == {}
