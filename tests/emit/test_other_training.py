"""Training that isn't of all weights of a decoder is named, by keys and by programs, and never priced as that."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.emit.other_training import other_program, other_training
from scalewright.emit.question import question
from scalewright.spec.errors import UserError


@pytest.mark.parametrize(
    ("values", "trains"),
    [
        ({"adapter": "qlora", "load_in_4bit": True}, "QLoRA adapters (adapter: qlora)"),
        ({"finetuning_type": "lora"}, "LoRA adapters (finetuning_type: lora)"),
        ({"finetuning_type": "freeze"}, "a part of the weights (finetuning_type: freeze)"),
        ({"finetuning_type": "full", "quantization_bit": 4}, "adapters on quantized weights (quantization_bit: 4)"),
        ({"train-type": "lora"}, "LoRA adapters (train-type: lora)"),
        ({"model.peft.peft_scheme": "ia3"}, "ia3 adapters (model.peft.peft_scheme: ia3)"),
        ({"use_peft": True, "lora_r": 16}, "LoRA adapters (use_peft: true)"),
        ({"lora_r": 8, "lora_alpha": 16}, "LoRA adapters (lora_r: 8)"),
        ({"stage": "dpo"}, "preferences or rewards (stage: dpo)"),
        ({"rl": "kto"}, "preferences or rewards (rl: kto)"),
        ({"reward_model": True}, "another head than the next token's (reward_model: True)"),
        ({"model_type": "AutoModelForSequenceClassification"}, "another head"),
        ({"decoder-seq-length": 128, "encoder-seq-length": 512}, "an encoder and a decoder (decoder-seq-length: 128)"),
        ({"model.data.masked_lm_prob": 0.15}, "an encoder of masked words"),
        ({"bert-no-binary-head": True}, "an encoder of masked words"),
        ({"retro_add_retriever": True}, "a decoder beside a retriever"),
        ({"name": "megatron_t5", "model.optim.name": "adam"}, "an encoder and a decoder (megatron_t5)"),
        ({"model.name": "flux", "model.flavor": "flux-dev"}, "a diffusion or image model (flux)"),
        ({"decoder_seq_length": None, "decoder_num_layers": "None", "retro_add_retriever": False}, ""),
        ({"name": "bert_against_gpt", "model.name": "deepseek_v3"}, ""),
        ({"name": "megatron_gpt", "model.optim.name": "adam"}, ""),
        ({"adapter": None, "lora_r": 32, "load_in_4bit": False}, ""),
        ({"finetuning_type": "full", "lora_rank": 8, "stage": "sft"}, ""),
        ({"zero_optimization.stage": 3, "rl": None}, ""),
        ({"q-lora-rank": 1536, "kv_lora_rank": 512}, ""),  # of latent attention
        ({"model_type": "LlamaForCausalLM", "use_peft": "false", "peft": {}}, ""),
    ],
)
def test_keys(values: dict[str, object], trains: str) -> None:
    named = other_training(values)
    assert named.startswith(trains)
    assert bool(named) == bool(trains)


@pytest.mark.parametrize(
    ("program", "trains"),
    [
        ("pretrain_bert.py", "BERT"), ("/opt/megatron/pretrain_t5.py", "an encoder and a decoder"),
        ("examples/run_mlm.py", "a masked language model"), ("run_glue.py", "a classifier"),
        ("train_text_to_image.py", "a diffusion or image model"), ("openrlhf.cli.train_dpo", "preferences or rewards"),
        ("verl.trainer.main_ppo", "preferences or rewards"), ("trl/scripts/grpo.py", "preferences or rewards"),
        ("pretrain_vlm.py", "a multimodal model"), ("finetune_lora.py", "adapters"), ("pretrain_mamba.py", "a state"),
        ("pretrain_retro.py", "a decoder beside a retriever"),
        ("pretrain_gpt.py", ""), ("run_clm.py", ""), ("sft.py", ""), ("torchtitan.train", ""), ("train.py", ""),
        ("albertine/train_gpt2.py", ""), ("megatron sft", ""), ("finetune_llama.py", ""),
    ],
)  # fmt: skip
def test_programs(program: str, trains: str) -> None:
    named = other_program(program)
    assert named.startswith(trains)
    assert bool(named) == bool(trains)


FILES = {
    "lora.yaml": "model_name_or_path: llama\nstage: sft\nfinetuning_type: lora\ntemplate: llama3\ncutoff_len: 2048\n"
    "per_device_train_batch_size: 1\noutput_dir: out\n",
    "default.yaml": "model_name_or_path: llama\nstage: sft\ntemplate: llama3\ncutoff_len: 2048\nlora_target: all\n"
    "per_device_train_batch_size: 1\noutput_dir: out\n",
    "qlora.yml": "base_model: llama\nadapter: qlora\nsequence_len: 4096\nmicro_batch_size: 2\n"
    "gradient_accumulation_steps: 4\nlearning_rate: 0.0002\ndatasets: []\n",
    "bert.sh": "torchrun --nproc_per_node 8 pretrain_bert.py --num-layers 24 --hidden-size 1024"
    " --num-attention-heads 16 --seq-length 512 --max-position-embeddings 512 --micro-batch-size 4\n",
    "dpo.sh": "deepspeed dpo.py --model_name_or_path llama --per_device_train_batch_size 1"
    " --gradient_accumulation_steps 8\n",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_other_training_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(FILES[name])
    with pytest.raises(UserError, match=r"it trains .*; priced here are all weights of a decoder"):
        question(str(path), "llama-3.1-8b")
