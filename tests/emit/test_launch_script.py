"""Launch scripts as people write them, read as the runs that they start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scalewright.emit.question import question
from scalewright.emit.read import read_file, read_text
from scalewright.spec.errors import UserError

FLAGS = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length $SEQ --max-position-embeddings $SEQ "
    "--micro-batch-size 1 --global-batch-size $GBS --tensor-model-parallel-size $TP --pipeline-model-parallel-size 1 "
    "--bf16 --lr 3e-4 --train-iters 100 --vocab-size 32000"
)
HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\nSEQ=${SEQ:-2048}; TP=2; GBS=$((TP * 16))\n"
AGENT = "torchrun --nnodes $SLURM_NNODES --nproc_per_node 8"
# How the same run is started.
FORMS = {
    "plain": f"{AGENT} pretrain_gpt.py {FLAGS}",
    "by srun": f"srun {AGENT} pretrain_gpt.py {FLAGS}",
    "a text": f'CMD="{AGENT} pretrain_gpt.py {FLAGS}"\nsrun bash -c "$CMD"',
    "evaluated": f'CMD="{AGENT} pretrain_gpt.py {FLAGS}"\neval "$CMD"',
    "a function": f'launch() {{ {AGENT} "$@"; }}\nlaunch pretrain_gpt.py {FLAGS}',
    "a growing text": f'A="{FLAGS}"\nA="$A --seed 1"\n{AGENT} pretrain_gpt.py $A',
    "an array of itself": f'A=({FLAGS})\nA=("${{A[@]}}" --seed 1)\n{AGENT} pretrain_gpt.py "${{A[@]}}"',
    "a condition": f'A="{FLAGS}"\nif [ "$TP" -gt 1 ]; then A="$A --sequence-parallel"; fi\n{AGENT} pretrain_gpt.py $A',
    "ranks of srun": f"srun --ntasks-per-node 8 python -u pretrain_gpt.py {FLAGS}",
    "an old agent": f"python -m torch.distributed.launch --nproc_per_node=8 --nnodes=2 pretrain_gpt.py {FLAGS}",
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_run_in_every_form(form: str) -> None:
    reading = read_text(HEAD + FORMS[form], ".sh", "run.sh")
    layout = reading.run["layout"]
    assert reading.trainer == "megatron"
    assert (layout["devices"], layout["tp"], layout["global_batch"], reading.run["data"]["seq_len"]) == (
        16,
        2,
        32,
        2048,
    )
    assert any(text.startswith("$SEQ isn't set outside of the script") for text in reading.assumed)


def test_a_value_that_the_script_does_not_tell_is_named() -> None:
    text = HEAD + f"case $1 in a) TP=4;; b) TP=8;; esac\n{FORMS['plain']}"
    with pytest.raises(
        UserError, match=r"--tensor-model-parallel-size \(\$TP: it depends on `case \$1`: 4 or 8 or 2\)"
    ):
        read_text(text, ".sh", "run.sh")


def test_a_hugging_face_script_with_its_deepspeed_file(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3}, "train_batch_size": "auto"}))
    words = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --block_size 4096 --bf16 --output_dir out"
    file = tmp_path / "run.sh"
    file.write_text(
        f"accelerate launch --num_processes 8 run_clm.py {words} --output_dir out --max_steps 9 --deepspeed ds.json\n"
    )
    asked = question(str(file), model="llama-3.1-8b")
    layout = asked.layout
    assert (layout.devices, layout.micro_batch, layout.global_batch, layout.zero_stage) == (8, 2, 64, 3)
    assert asked.run.data.seq_len == 4096  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "trainer", "layout"),
    [
        ("torchrun --nproc_per_node=8 x/megatron_llama_pretraining.py trainer.devices=8 trainer.num_nodes=1 "
         "model.num_layers=4 model.hidden_size=64 model.num_attention_heads=4 model.micro_batch_size=1 "
         "model.global_batch_size=32 model.tensor_model_parallel_size=4 model.encoder_seq_length=128 "
         "model.ffn_hidden_size=128 model.max_position_embeddings=128", "megatron-bridge", {"devices": 8, "tp": 4}),
        ("NPROC_PER_NODE=8 megatron sft --load x --tensor_model_parallel_size 2 --micro_batch_size 1 --max_length 4096 "
         "--global_batch_size 8 --recompute_granularity full --recompute_method uniform --recompute_num_layers 1",
         "megatron", {"devices": 8, "tp": 2}),
    ],
    ids=["Hydra", "ms-swift"],
)  # fmt: skip
def test_other_words(text: str, trainer: str, layout: dict[str, Any]) -> None:
    reading = read_text(text, ".sh", "run.sh")
    assert reading.trainer == trainer
    assert {key: reading.run["layout"][key] for key in layout} == layout


def test_the_file_that_a_script_names(tmp_path: Path) -> None:
    config = {"model_name_or_path": "x", "stage": "sft", "finetuning_type": "full", "cutoff_len": 1024, "max_steps": 9}
    config |= {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "output_dir": "o"}
    (tmp_path / "sft.yaml").write_text(json.dumps(config))
    (tmp_path / "run.sh").write_text("FORCE_TORCHRUN=1 NPROC_PER_NODE=4 llamafactory-cli train sft.yaml\n")
    reading = read_file(tmp_path / "run.sh")
    assert (reading.trainer, reading.run["layout"]["devices"]) == ("llama-factory", 4)
    (tmp_path / "sft.yaml").unlink()
    with pytest.raises(UserError, match=r"llamafactory-cli train with sft.yaml, which isn't beside it"):
        read_file(tmp_path / "run.sh")


def test_a_program_without_known_words_is_named() -> None:
    with pytest.raises(UserError, match=r"it starts my_train.py, with no trainer's words"):
        read_text("torchrun my_train.py --alpha 1\n", ".sh", "run.sh")
