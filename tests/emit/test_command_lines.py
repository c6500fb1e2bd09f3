"""Scripts and command lines as words: variables, arrays, arithmetic, and what must not run."""

from __future__ import annotations

import pytest

from scalewright.emit.command_lines import expand, flags, ranks, read_script, split_launch


def only(text):
    (command,) = read_script(text).commands
    return command


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("A=4\npython x.py --n $A", ["python", "x.py", "--n", "4"]),
        ("A=4\npython x.py --n ${A}0", ["python", "x.py", "--n", "40"]),
        ("python x.py --n ${A:-7}", ["python", "x.py", "--n", "7"]),
        ("A=(--x 1\n  --y 2 # why\n)\npython x.py ${A[@]}", ["python", "x.py", "--x", "1", "--y", "2"]),
        ('A=(--x 1)\nA+=(--y "a b")\npython x.py "${A[@]}"', ["python", "x.py", "--x", "1", "--y", "a b"]),
        ('A="--x 1 \\\n --y 2"\npython x.py $A', ["python", "x.py", "--x", "1", "--y", "2"]),
        ("N=2\nW=$((8*$N))\npython x.py $W", ["python", "x.py", "16"]),
        ("python x.py --d $DATA", ["python", "x.py", "--d", "$DATA"]),
        ("export A=3\npython x.py $A", ["python", "x.py", "3"]),
        ("A=${A:-3}\npython x.py $A", ["python", "x.py", "3"]),
        ("A=1; B=2\npython x.py $A $B", ["python", "x.py", "1", "2"]),
        ("A='1; B=2'\npython x.py \"$A\"", ["python", "x.py", "1; B=2"]),
    ],
)
def test_words(script, words):
    assert only(script) == words


def test_variables_within_themselves_and_deep_ones_end():
    assert expand("$A", {"A": "$A x"}) == "$A"
    deep = {f"V{i}": f"$V{i + 1}$V{i + 1}" for i in range(60)}
    assert len(expand("$V0", deep)) < 1_100_000 * 2


def test_nothing_is_run(tmp_path):
    mark = tmp_path / "mark"
    command = only(f"A=$(touch {mark})\npython x.py `touch {mark}` $A; touch {mark}")
    assert command[0] == "python"
    assert not mark.exists()


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
    assert ranks(before, {}) == count


def test_flags():
    assert flags(["--a", "1", "--b", "--c_d", "x", "y", "--e=f"]) == {"a": "1", "b": True, "c-d": ["x", "y"], "e": "f"}
