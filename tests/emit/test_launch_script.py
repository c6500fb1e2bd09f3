"""Launch scripts as people write them, read as the runs that they start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scalewright.emit.question import question, question_of
from scalewright.emit.read import read_file, read_text
from scalewright.spec.errors import UserError
from scalewright.spec.tensors import count

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
    "a text in quotes": f'srun bash -c "{AGENT} pretrain_gpt.py {FLAGS}"',
    "ranks of sh": f'srun --ntasks-per-node=8 sh -c "cd x && python -u pretrain_gpt.py {FLAGS}"',
    "arguments of a function": f'set_all() {{ A="{FLAGS}"; }}\nstart() {{ {AGENT} "$@"; }}\n'
    "set_all; start pretrain_gpt.py $A",
    "a list that grows": f'A=()\nfor f in {FLAGS}; do A+=($f); done\n{AGENT} pretrain_gpt.py "${{A[@]}}"',
    "flags in one word": f'A="{FLAGS}"\nB=("--seed 1" "--log-interval 10")\n{AGENT} pretrain_gpt.py $A ${{B[@]}}',
    "exec with a log": f"exec {AGENT} pretrain_gpt.py {FLAGS} 2>&1 | tee -a log",
    "in the background": f"nohup env NCCL_DEBUG=INFO {AGENT} pretrain_gpt.py {FLAGS} > log 2>&1 &\nwait",
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


NAMES = [
    ("ds_$SLURM_JOBID.json", "ds_$SLURM_JOBID.json"),
    ("./ds.${SLURM_JOB_ID}.json", "ds.${SLURM_JOB_ID}.json"),
    ("/tmp/${USER}_$PBS_JOBID/ds.json", "/tmp/${USER}_$PBS_JOBID/ds.json"),
    ("$TMPDIR/ds.json", "$TMPDIR/ds.json"),
    ("ds.json", "./ds.json"),
]


@pytest.mark.parametrize(("written", "named"), NAMES)
def test_a_file_that_the_script_writes_under_the_jobs_number(written: str, named: str) -> None:
    text = f"""#!/bin/bash
cat <<EOT > {written}
{{"zero_optimization": {{"stage": 2}}, "train_micro_batch_size_per_gpu": 2}}
EOT
deepspeed --num_nodes 4 --num_gpus 8 run_clm.py --model_name_or_path Qwen/Qwen2.5-7B --deepspeed {named} \\
  --block_size 4096 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 --output_dir out
"""
    layout = read_text(text, ".sh", "run.sh").run["layout"]
    assert (layout["zero_stage"], layout["devices"], layout["global_batch"]) == (2, 32, 256)
    with pytest.raises(UserError, match="it is no JSON"):
        read_text(text.replace('{"stage": 2}', ","), ".sh", "run.sh")


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


SFT = {"model_name_or_path": "x", "stage": "sft", "finetuning_type": "full", "cutoff_len": 1024, "max_steps": 9,
       "per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "output_dir": "o",
       "learning_rate": 1e-4}  # fmt: skip
AXOLOTL = {"base_model": "meta-llama/Llama-3.1-8B", "sequence_len": 4096, "micro_batch_size": 1, "max_steps": 9,
           "gradient_accumulation_steps": 4, "learning_rate": 2e-4, "datasets": [{"path": "x"}]}  # fmt: skip
NEOX = {"pipe_parallel_size": 1, "model_parallel_size": 2, "num_layers": 12, "hidden_size": 768, "seq_length": 2048,
        "num_attention_heads": 12, "max_position_embeddings": 2048, "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2, "optimizer": {"type": "Adam", "params": {"lr": 6e-4}}}  # fmt: skip
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[optimizer]
lr = 3e-4
"""
LITGPT = {"model_name": "pythia-14m", "devices": 8,
          "train": {"micro_batch_size": 4, "global_batch_size": 512, "max_seq_length": 2048,
                    "max_tokens": 10**9}}  # fmt: skip
TRL = {key: SFT[key] for key in SFT if key not in ("stage", "finetuning_type", "cutoff_len")}
FILES = {
    "sft.yaml": json.dumps(SFT), "ax.yaml": json.dumps(AXOLOTL), "job.toml": TITAN, "lit.yaml": json.dumps(LITGPT),
    "neox.yml": json.dumps(NEOX), "local.yml": '{"train_micro_batch_size_per_gpu": 8, "vocab_file": "x"}',
    "trl.yaml": json.dumps(TRL), "hosts": "# nodes\nworker-1 slots=8\nworker-2  slots = 8 # new\n\nworker-3:4\n",
    "acc.yaml": "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\nnum_machines: 2\nnum_processes: 16\n",
}  # fmt: skip


def read_beside(line: str, folder: Path) -> Any:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "run.sh").write_text(f"#!/bin/bash\n{line}\n")
    return read_file(folder / "run.sh")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("NPROC_PER_NODE=8 llamafactory-cli train sft.yaml learning_rate=1e-5 per_device_train_batch_size=4",
         {"micro_batch": 4, "global_batch": 64, "lr": 1e-5, "devices": 8}),
        ("llamafactory-cli train sft.yaml cutoff_len=4096", {"micro_batch": 1, "seq_len": 4096}),
        ("LR=3e-5; llamafactory-cli train sft.yaml learning_rate=${LR}", {"lr": 3e-5}),
        ("accelerate launch --num_processes 8 -m axolotl.cli.train ax.yaml --micro_batch_size 2",
         {"micro_batch": 2, "global_batch": 64, "lr": 2e-4}),
        ("axolotl train ax.yaml --micro-batch-size=2 --learning-rate 1e-5", {"micro_batch": 2, "lr": 1e-5}),
        ("torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file job.toml --training.seq_len 4096 "
         "--parallelism.tensor_parallel_degree=2", {"seq_len": 4096, "tp": 2, "devices": 8}),
        ("torchrun --nproc_per_node 8 train.py --job.config-file=job.toml --training.local-batch-size 2",
         {"seq_len": 8192, "micro_batch": 2}),
        ("litgpt pretrain --config lit.yaml --train.micro_batch_size 2 --devices=4", {"micro_batch": 2, "devices": 4}),
        ("python ./deepy.py train.py -d . neox.yml local.yml", {"micro_batch": 8, "tp": 2}),
        ("deepy.py train.py neox local", {}),
        ("python deepy.py train.py neox local.yml", {"micro_batch": 8, "seq_len": 2048}),
        ("accelerate launch --config_file acc.yaml sft.py --config trl.yaml --per_device_train_batch_size 8",
         {"micro_batch": 8, "zero_stage": 3, "devices": 16}),
        ("accelerate launch --config_file acc.yaml --num_processes 4 sft.py trl.yaml", {"zero_stage": 3, "devices": 4}),
        ("llamafactory-cli train --bf16 sft.yaml", {"precision": "bf16", "micro_batch": 1}),
        ("llamafactory-cli train --bf16 sft.yaml --learning_rate 1e-5", {"precision": "bf16", "lr": 1e-5}),
        ("axolotl train --bf16 ax.yaml --micro-batch-size 2", {"precision": "bf16", "micro_batch": 2}),
        ("accelerate launch sft.py --gradient_checkpointing trl.yaml", {"recompute": "full"}),
        ("accelerate launch sft.py --config trl.yaml --bf16", {"precision": "bf16"}),
    ],
)  # fmt: skip
def test_words_go_before_the_file(line: str, wanted: dict[str, Any], tmp_path: Path) -> None:
    if not wanted:  # a program that Python doesn't start
        with pytest.raises(UserError, match="no command line"):
            read_beside(line, tmp_path)
        return
    run = read_beside(line, tmp_path).run
    values = {**run["layout"], **run.get("data", {}), **run.get("optimizer", {})}
    assert {key: values[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("line", "unread"),
    [
        ("llamafactory-cli train sft.yaml again", "the command line again"),
        ("llamafactory-cli train sft.yaml no_such.key=3", "no_such.key 3"),
        ('llamafactory-cli train sft.yaml "$@"', "script $@: an argument"),
        ("axolotl train ax.yaml --no-such-key 3", "no_such_key 3"),
        ("axolotl train --no-such-key ax.yaml", "no_such_key True"),
        ("torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file job.toml --no.such 1", "no.such 1"),
    ],
)
def test_words_that_are_not_applied_are_named(line: str, unread: str, tmp_path: Path) -> None:
    assert any(str(item).startswith(unread) for item in read_beside(line, tmp_path).unread)


def test_a_word_that_the_script_does_not_tell(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"learning_rate \(\$LR: set outside of the script\)"):
        read_beside("llamafactory-cli train sft.yaml learning_rate=$LR", tmp_path)


@pytest.mark.parametrize(
    ("launcher", "devices"),
    [
        ("deepspeed --hostfile hosts", 20),
        ("deepspeed --hostfile=hosts --num_nodes 2", 16),
        ("deepspeed -H hosts --num_nodes 2", 16),
        ("deepspeed --hostfile hosts --num_nodes 2 --num_gpus 4", 8),
        ("deepspeed --hostfile hosts --include worker-1:0,1@worker-3", 6),
        ("deepspeed --hostfile hosts --exclude worker-1@worker-2:0,1,2", 9),
        ("deepspeed --include localhost:0,1,2", 3),
        ("mpirun -np 16 -hostfile hosts python", 16),
        ("mpirun --hostfile hosts python", 20),
        ("printf 'a slots=4\\nb slots=4\\n' > h; deepspeed --hostfile h", 8),
        ("accelerate launch --config_file acc.yaml", 16),
        ("accelerate launch --config_file acc.yaml --num_processes 4", 4),
    ],
)
def test_devices_of_hosts(launcher: str, devices: int, tmp_path: Path) -> None:
    words = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 --output_dir o --max_steps 9"
    reading = read_beside(f"{launcher} run_clm.py {words}", tmp_path)
    layout = reading.run["layout"]
    assert (layout["devices"], layout["global_batch"]) == (devices, devices * 8)
    assert layout["zero_stage"] == (3 if "acc.yaml" in launcher else 0)


def test_a_host_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    line = "deepspeed --hostfile /job/hosts run_clm.py --per_device_train_batch_size 2 --output_dir o --max_steps 9"
    assert "/job/hosts isn't beside the script" in str(read_beside(line, tmp_path).unread)


@pytest.mark.parametrize(
    ("words", "model"),
    [
        ("--load Qwen3-30B-A3B-mcore", "Qwen3-30B-A3B"), ("--load /data/Qwen2.5-7B-Instruct-mcore/", "Qwen2.5-7B"),
        ("--model Qwen/Qwen3-8B --load out/iter_10", "Qwen3-8B"), ("--load my-own-mcore", None),
        ("--load run.json", None),
    ],
)  # fmt: skip
def test_the_model_that_swift_loads(words: str, model: str | None) -> None:
    text = (
        f"NPROC_PER_NODE=8 megatron sft {words} --tensor_model_parallel_size 2 --micro_batch_size 1 --max_length 4096"
    )
    reading = read_text(f"{text} --global_batch_size 8\n", ".sh", "run.sh")
    assert reading.run.get("model") == model
    assert (reading.run["layout"]["precision"], reading.run["layout"]["zero_stage"]) == ("bf16", 1)  # its defaults
    assert any("which it loads" in text for text in reading.assumed) is (model is not None)


def test_experts_of_a_model_that_is_loaded() -> None:
    text = "NPROC_PER_NODE=8 megatron sft --load Qwen3-30B-A3B-mcore --expert_model_parallel_size 8 --max_length 4096\n"
    assert question_of(read_text(text, ".sh", "run.sh"), "run.sh").layout.ep == 8


def test_nemos_llama_script_has_llamas_defaults() -> None:
    words = "model.num_layers=40 model.hidden_size=5120 model.ffn_hidden_size=13824 model.num_attention_heads=40"
    more = "model.micro_batch_size=1 model.global_batch_size=32 model.encoder_seq_length=4096 trainer.devices=8"
    lines = {name: f"torchrun --nproc_per_node=8 x/{name}.py {words} {more}\n"
             for name in ("megatron_llama_pretraining", "megatron_gpt_pretraining")}  # fmt: skip
    llama, gpt = (question_of(read_text(text, ".sh", "run.sh"), "run.sh").model for text in lines.values())
    assert round(count(llama).total / 1e9, 1) == 13.0  # Llama 2 13B
    assert (gpt.norm_type, llama.norm_type, llama.vocab_size) == ("layernorm", "rmsnorm", 32000)


def test_swift_s_own_words(tmp_path: Path) -> None:
    line = (
        "NPROC_PER_NODE=8 swift pt --model Qwen/Qwen2.5-7B --train_type full --torch_dtype bfloat16 --max_length 8192 "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps 4 --deepspeed zero3_offload --learning_rate 1e-5"
    )
    reading = read_text(line, ".sh", "run.sh")
    layout = reading.run["layout"]
    assert (reading.run["model"], reading.run["data"]["seq_len"]) == ("Qwen/Qwen2.5-7B", 8192)
    assert (layout["devices"], layout["zero_stage"], layout["offload"], layout["recompute"]) == (
        8,
        3,
        "parameters",
        "full",
    )
    assert (layout["precision"], layout["global_batch"]) == ("bf16", 32)
    with pytest.raises(UserError, match="LoRA"):
        question_of(read_text(line.replace("--train_type full ", ""), ".sh", "run.sh"), "run.sh")  # its default


def test_litgpt_s_flags(tmp_path: Path) -> None:
    line = (
        "litgpt pretrain pythia-1b --devices 4 --train.global_batch_size 512 --train.micro_batch_size 4 "
        "--train.max_seq_length 2048 --train.max_tokens 1000000000"
    )
    reading = read_text(line, ".sh", "run.sh")
    layout = reading.run["layout"]
    assert (reading.trainer, reading.run["model"], layout["devices"]) == ("litgpt", "pythia-1b", 4)
    assert (layout["global_batch"], layout["micro_batch"], reading.run["data"]["seq_len"]) == (512, 4, 2048)


@pytest.mark.parametrize(
    ("name", "model"),
    [("llama2-7b", "llama-2-7b"), ("llama3.1-70b", "llama-3.1-70b"), ("gemma2-9b", "gemma-2-9b"),
     ("mistral-7b", "mistral-7b-v0.1")],
)  # fmt: skip
def test_maxtext_s_models_by_their_names(name: str, model: str) -> None:
    line = f"python3 -m MaxText.train base.yml model_name={name} per_device_batch_size=4 ici_fsdp_parallelism=8"
    assert read_text(line, ".sh", "run.sh").run["model"] == model


def test_files_that_count_from_where_the_trainer_starts(tmp_path: Path) -> None:
    """LLaMA-Factory's examples name DeepSpeed's file from the repository's folder; a here-document's stands nowhere."""
    (tmp_path / "examples/full").mkdir(parents=True)
    (tmp_path / "examples/z3.json").write_text('{"zero_optimization": {"stage": 3}}')
    keys = {"model_name_or_path": "Qwen/Qwen2.5-7B", "stage": "sft", "finetuning_type": "full", "template": "qwen",
            "deepspeed": "examples/z3.json"}  # fmt: skip
    (tmp_path / "examples/full/sft.yaml").write_text(json.dumps(keys))
    script = tmp_path / "run.sh"
    script.write_text("FORCE_TORCHRUN=1 NNODES=2 llamafactory-cli train examples/full/sft.yaml\n")
    reading = read_file(script)
    assert reading.run["layout"]["zero_stage"] == 3
    assert any("how many GPUs each of its 2 nodes has" in str(unread) for unread in reading.unread)
    written = (
        f"cat > /tmp/x.yaml <<EOF\n{json.dumps(keys)}\nEOF\ntorchrun --nproc-per-node 8 src/train.py /tmp/x.yaml\n"
    )
    script.write_text(written)
    layout = read_file(script).run["layout"]
    assert (layout["zero_stage"], layout["devices"]) == (3, 8)


@pytest.mark.parametrize("launcher", ["composer -n 8", "colossalai run --nproc_per_node 8"])
def test_other_launchers(launcher: str) -> None:
    reading = read_text(f"SEQ=2048 TP=2 GBS=32\n{launcher} pretrain_gpt.py {FLAGS}", ".sh", "run.sh")
    assert reading.run["layout"]["devices"] == 8


# -- met in scripts that people published -------------------------------------------------------------------

GPT = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --lr 3e-4 --train-iters 100"
)
ENGINE = '{"train_batch_size": 64, "zero_optimization": {"stage": %d, "offload_optimizer": {"device": "cpu"}}}'


@pytest.mark.parametrize("name", ["ds.json", "conf/ds.$SLURM_JOB_ID.json", "ds_$$.json", "$PWD/ds.json", "$(mktemp)"])
def test_megatron_deepspeed_s_file_decides_how_it_shards(name: str) -> None:
    text = f"C={name}\ncat <<EOT > $C\n{ENGINE % 2}\nEOT\ndeepspeed --num_gpus 8 pretrain_gpt.py {GPT} --deepspeed "
    layout = read_text(text + "--deepspeed_config $C --zero-stage 1", ".sh", "run.sh").run["layout"]
    assert (layout["zero_stage"], layout["offload"], layout["devices"]) == (2, "optimizer", 8)


def test_two_files_of_one_shown_name_are_none() -> None:
    text = f"A=$(mktemp)\nB=$(mktemp)\necho '{ENGINE % 3}' > $A\necho '{ENGINE % 2}' > $B\n"
    reading = read_text(f"{text}deepspeed --num_gpus 8 pretrain_gpt.py {GPT} --deepspeed_config $B", ".sh", "run.sh")
    assert ("deepspeed-config", "$(mktemp)") in [(item.key, item.value) for item in reading.unread]


def test_a_number_of_nodes_that_the_script_does_not_tell() -> None:
    one = read_text(f"torchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py {GPT}", ".sh", "run.sh")
    assert one.run["layout"]["devices"] == 8
    assert "one node: $NNODES isn't known (give --devices)" in one.assumed
    sizes = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4"
    many = read_text(f"torchrun --nproc_per_node 8 --nnodes $1 pretrain_gpt.py {GPT} {sizes}", ".sh", "run.sh")
    assert many.run["layout"]["devices"] == 32
    assert "devices" in many.guessed
    none = read_text(f"torchrun --nproc_per_node $N pretrain_gpt.py {GPT}", ".sh", "run.sh")
    assert "how many GPUs it runs on: $N isn't known (give --devices)" in [item.value for item in none.unread]


@pytest.mark.parametrize("started", [
    "sbatch -N 4 --gpus-per-node=8 inner.slurm --bf16", "sbatch --nodes=4 --wrap='srun bash inner.slurm --bf16'",
    "export OPTS=x\nsbatch --exclusive --nodes 4 $EXTRA inner.slurm --bf16", "srun -N 4 ./inner.sh --bf16",
    "for i in 1; do sbatch -N4 -p gpu inner.slurm --bf16; done",
])  # fmt: skip
def test_a_script_that_is_submitted_or_started_beside(started: str, tmp_path: Path) -> None:
    text = f'#!/bin/bash\n#SBATCH --gpus-per-node=8\nsrun torchrun --nproc_per_node 8 pretrain_gpt.py {GPT} "$@"\n'
    for name in ("inner.slurm", "inner.sh"):
        (tmp_path / name).write_text(text)
    (tmp_path / "run.sh").write_text(started)
    layout = read_file(tmp_path / "run.sh").run["layout"]
    assert (layout["devices"], layout["precision"]) == (32, "bf16")


def test_a_script_that_submits_itself_goes_on(tmp_path: Path) -> None:
    head = '#!/bin/bash\n#SBATCH --nodes=2\nif [ -z $SLURM_JOB_ID ]; then\n  sbatch "$0"\n  exit\nfi\n'
    (tmp_path / "run.sh").write_text(f"{head}torchrun --nproc_per_node 8 pretrain_gpt.py {GPT}")
    assert read_file(tmp_path / "run.sh").run["layout"]["devices"] == 16


@pytest.mark.parametrize("test", ['[ "$Z" == "" ]', '[ -z "$Z" ]', "[[ -z $Z ]]", '[[ "$Z" = "" ]]', '! [ -n "$Z" ]'])
def test_a_default_by_an_argument_that_is_empty(test: str) -> None:
    words = (
        "--model_name_or_path x --per_device_train_batch_size 4 --output_dir o --zero_stage $Z --dtype bf16 --offload"
    )
    reading = read_text(f"Z=$2\nif {test}; then Z=3; fi\ndeepspeed --num_gpus 8 main.py {words}", ".sh", "run.sh")
    layout = reading.run["layout"]
    assert (layout["zero_stage"], layout["offload"], layout["precision"]) == (3, "parameters", "bf16")
    assert "$2 isn't set outside of the script" in reading.assumed


def test_why_a_script_starts_nothing() -> None:
    text = 'case $# in 0) echo usage;; esac\nif [ "a" = "b" ]; then echo; else\n  exit 1\nfi\ntorchrun train.py'
    with pytest.raises(UserError, match=r"it ends before it starts anything: `exit 1` of line 3"):
        read_text(text, ".sh", "run.sh")
    with pytest.raises(UserError, match=r"a name of its own and no file"):
        read_text("torchrun -m torchtitan.train --module llama3 --config llama3_8b", ".sh", "run.sh")
    with pytest.raises(UserError, match=r"the arguments of its training aren't in the script"):
        read_text("torchrun pretrain_gpt.py $MEGATRON_PARAMS", ".sh", "run.sh")


def test_a_helper_s_unknown_values_do_not_hide_the_training() -> None:
    helper = (
        "python make_config.py --a 1 --b 2 --c 3 --d 4 --e 5 --processes $N --rank $R --x 1 --y 2 --z 3" + " --q 1" * 40
    )
    assert read_text(f"{helper}\ntorchrun --nproc_per_node 8 pretrain_gpt.py {GPT}", ".sh", "run.sh").run["model"]


def test_a_launcher_s_words_after_two_dashes(tmp_path: Path) -> None:
    (tmp_path / "sft.yml").write_text("base_model: a/b\nsequence_len: 2048\nmicro_batch_size: 2\ndatasets: []\n")
    (tmp_path / "run.sh").write_text("axolotl train sft.yml --launcher torchrun -- --nproc_per_node=8 --nnodes=2\n")
    assert read_file(tmp_path / "run.sh").run["layout"]["devices"] == 16


def test_a_file_goes_before_words_that_look_like_a_trainer_s(tmp_path: Path) -> None:
    line = "python train.py configs/llama2_7b.yml run_name=x dcn_data_parallelism=2 ici_fsdp_parallelism=8"
    with pytest.raises(UserError, match=r"configs/llama2_7b.yml, which isn't beside it"):
        read_text(line, ".sh", "run.sh")
    scaled = line.replace("llama2_7b", "base") + " global_parameter_scale=64"
    model = read_text(scaled, ".sh", "run.sh").run["model"]
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    assert [model[key] for key in sizes] == [8192, 64, 64, 28672]


def test_a_deepspeed_file_of_a_script_s_own_words() -> None:
    text = (
        f"cat > $1.json <<EOF\n{ENGINE % 3}\nEOF\ndeepspeed --num_gpus 4 tune.py --deepspeed_config=$1.json --lr 1e-5"
    )
    reading = read_text(text, ".sh", "run.sh")
    assert reading.trainer == "deepspeed"
    assert reading.run["layout"]["zero_stage"] == 3
    assert "--lr 1e-5" in [item.value for item in reading.unread]


@pytest.mark.parametrize(
    "key", ["model", "model_name", "model-id", "model_path", "base_model", "pretrained_model_name_or_path"]
)
def test_a_script_s_own_word_for_the_model_is_read(key: str) -> None:
    words = f"--{key} Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --block_size 4096 --output_dir out"
    reading = read_text(f"torchrun --nproc_per_node 8 train.py {words}\n", ".sh", "")
    assert str(reading.run["model"]).lower().endswith("qwen2.5-7b")
    assert not [item for item in reading.unread if "model" in item.key]
    assert not [text for text in reading.assumed if text.startswith("model")]


@pytest.mark.parametrize(
    "words", ["--model Qwen/Qwen2.5-7B", "--load Qwen/Qwen2.5-7B-mcore", "--model Qwen/Qwen2.5-7B --load x"]
)
def test_a_model_that_was_read_is_not_called_unread(words: str) -> None:
    line = f"NPROC_PER_NODE=8 megatron sft {words} --micro_batch_size 1 --global_batch_size 16 --max_length 4096\n"
    reading = read_text(line, ".sh", "")
    assert reading.run["model"] == "Qwen2.5-7B"
    assert not [item for item in reading.unread if item.key == "model"]


TWO_NODES = f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {GPT}"
JOBS = {
    "kubernetes": {"kind": "PyTorchJob", "spec": {"replicas": [{"containers": [{"command": ["torchrun"], "args": [
        "--nproc_per_node=8", "--nnodes=2", "pretrain_gpt.py", *GPT.split()]}]}]}},
    "kubernetes by bash": {"spec": {"template": {"spec": {"containers": [{"command": ["bash", "-c"], "args": [
        f"export N=8\ntorchrun --nproc_per_node=$N --nnodes=2 pretrain_gpt.py {GPT}"]}]}}}},
    "skypilot": {"num_nodes": 2, "setup": "pip install torch", "run": f"{TWO_NODES}\n"},
    "azure ml": {"code": "src", "command": TWO_NODES},
    "a list of jobs": [{"name": "a"}, {"args": ["-c"], "command": TWO_NODES}],
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_the_command_of_a_job_s_description(name: str) -> None:
    reading = read_text(json.dumps(JOBS[name]), ".yaml", "job.yaml")
    assert (reading.trainer, reading.run["layout"]["devices"]) == ("megatron", 16)


def test_a_description_that_is_deep_or_starts_nothing_is_refused() -> None:
    for text in ('{"a":' * 90 + '{"run": "torchrun x.py"}' + "}" * 90, '{"run": "make", "args": [1], "command": [2]}'):
        with pytest.raises(UserError, match="no trainer's configuration"):
            read_text(text, ".json", "job.json")
