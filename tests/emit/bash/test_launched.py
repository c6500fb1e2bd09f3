"""Launch lines in the forms that people write: the program, its words, the devices."""

from __future__ import annotations

import pytest

from scalewright.emit.bash.launched import launched
from scalewright.emit.bash.script import read_script

# script: (program, first words, devices)
CASES = {
    "torchrun --nnodes=2 --nproc-per-node=8 train.py --a 1": ("train.py", ["--a", "1"], 16),
    "torchrun --standalone --nproc_per_node 4 -m pkg.train --a": ("pkg.train", ["--a"], 4),
    "python -m torch.distributed.run --nproc_per_node=8 train.py x": ("train.py", ["x"], 8),
    "python3 -u -m torch.distributed.launch --nproc_per_node=8 --nnodes 2 --use_env train.py x": ("train.py", ["x"], 16),
    "python -W ignore -u train.py --a": ("train.py", ["--a"], None),
    "accelerate launch --num_processes 8 --mixed_precision bf16 --multi_gpu train.py --a": ("train.py", ["--a"], 8),
    "accelerate launch --config_file fsdp.yaml train.py --a": ("train.py", ["--a"], None),
    "deepspeed --num_nodes 2 --num_gpus 8 train.py --deepspeed ds.json": ("train.py", ["--deepspeed", "ds.json"], 16),
    "deepspeed --include localhost:0,1 --module pkg.train --a": ("pkg.train", ["--a"], None),
    "srun -N 4 --ntasks-per-node=8 python -u train.py --a": ("train.py", ["--a"], 32),
    "srun --nodes=4 --ntasks-per-node 1 torchrun --nnodes 4 --nproc_per_node 8 train.py": ("train.py", [], 32),
    "mpirun -np 16 --hostfile h python train.py": ("train.py", [], 16),
    "#SBATCH --nodes=16 --gpus-per-node=8\nsrun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE train.py": ("train.py", [], 128),
    "#SBATCH -N 4\n#SBATCH --gres=gpu:h100:8\nsrun --ntasks-per-node=1 torchrun --nnodes=$SLURM_JOB_NUM_NODES --nproc_per_node=gpu train.py": ("train.py", [], 32),
    "#SBATCH --nodes 2\n#SBATCH --ntasks-per-node=8\nsrun python train.py": ("train.py", [], 16),
    "#PBS -l select=4:ngpus=8\nmpiexec -n 32 python train.py": ("train.py", [], 32),
    "FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train sft.yaml": ("llamafactory-cli train", ["sft.yaml"], 8),
    "NPROC_PER_NODE=8 megatron sft --load x": ("megatron sft", ["--load", "x"], 8),
    "axolotl train config.yml": ("axolotl train", ["config.yml"], None),
    "CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun train.py": ("train.py", [], 4),
    'srun bash -c "cd x && python -u pretrain_gpt.py --num-layers 2"': ("pretrain_gpt.py", ["--num-layers", "2"], None),
    "singularity exec --nv image.sif torchrun --nproc_per_node 8 train.py a=b": ("train.py", ["a=b"], 8),
    "torchrun --nproc_per_node 8 --nnodes $NNODES train.py --rank $RANK": ("train.py", ["--rank", "$RANK"], 8),
}  # fmt: skip


@pytest.mark.parametrize("text", CASES)
def test_a_launch_line_is_taken_apart(text: str) -> None:
    script = read_script(text)
    (start,) = launched(script)
    assert (start.program, script.shown(start.words), start.devices) == CASES[text]


def test_what_is_not_known_is_named() -> None:
    script = read_script("torchrun train.py --lr $LR --path $1 --x ${X:-3}")
    (start,) = launched(script)
    assert [(mark.text, mark.why) for mark in start.unknown] == [
        ("$LR", "set outside of the script"),
        ("$1", "an argument that the script is started with"),
    ]
    assert script.result.assumed == ["X"]
