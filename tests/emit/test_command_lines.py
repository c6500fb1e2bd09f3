"""Command lines as keys and values, and the ranks that they start."""

from __future__ import annotations

import pytest

from scalewright.emit.command_lines import flags, ranks, split_launch


@pytest.mark.parametrize(
    ("launch", "count"),
    [
        ("torchrun --nnodes 4 --nproc-per-node 8", 32),
        ("torchrun --nproc_per_node=2", 2),
        ("srun -n 16 python", 16),
        ("mpirun -np 12 python", 12),
        ("python -m torch.distributed.run --nproc-per-node 4 --nnodes 1:2", 8),
        ("accelerate launch --num_processes 6", 6),
        ("python", None),
    ],
)
def test_ranks_of_a_launch_line(launch, count):
    before, program, after = split_launch([*launch.split(), "train.py", "--x", "1"])
    assert program == "train.py"
    assert after == ["--x", "1"]
    assert ranks(before) == count


def test_flags():
    assert flags(["--a", "1", "--b", "--c_d", "x", "y", "--e=f"]) == {"a": "1", "b": True, "c-d": ["x", "y"], "e": "f"}
