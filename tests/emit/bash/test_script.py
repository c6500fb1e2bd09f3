"""What can't be known of a script is named, never guessed; nothing of it is run, and it always comes to an end."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.emit.bash.script import Script, read_script
from scalewright.spec.errors import UserError


def words(script: Script) -> list[list[str]]:
    return [script.shown(command.words) for command in script.commands]


def why(text: str) -> str:
    script = read_script(text)
    (mark,) = script.unknown(script.commands[-1].words)
    return f"{mark.text}: {mark.why}"


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
def test_words(script: str, words: list[str]) -> None:
    read = read_script(script)
    assert [read.shown(command.words) for command in read.commands] == [words]


def test_a_branch_by_a_value_from_outside_is_not_the_last_one() -> None:
    text = 'if [ "$SLURM_JOB_PARTITION" = h100 ]; then TP=8; else TP=4; fi\npython x.py --tp $TP'
    assert why(text) == '$TP: it depends on `[ "$SLURM_JOB_PARTITION" = h100 ]`: 8 or 4'


def test_what_both_branches_give_is_known() -> None:
    text = 'A=(--x)\nif [ "$HOSTNAME" = a ]; then A+=(--y); TP=4; else TP=4; fi\npython x.py --tp $TP "${A[@]}"'
    assert words(read_script(text)) == [["python", "x.py", "--tp", "4", "--x", "$A"]]


def test_a_case_by_an_argument_names_all_values() -> None:
    text = "case $1 in 7b) L=32;; 70b) L=80;; *) L=12;; esac\npython x.py --layers $L"
    assert why(text) == "$L: it depends on `case $1`: 32 or 80 or 12"


def test_usage_of_a_script_without_its_arguments_is_not_its_end() -> None:
    text = 'if [ $# -lt 1 ]; then echo "usage: $0 SIZE"; exit 1; fi\npython x.py --size $1'
    assert why(text) == "$1: an argument that the script is started with"


def test_outputs_of_programs_are_unknown() -> None:
    assert why("python x.py --host $(scontrol show hostnames | head -n 1)").startswith("$(scontrol show hostnames")


def test_a_command_that_may_start_says_when() -> None:
    (command,) = read_script('if [ -f "/data/x" ]; then python x.py; fi').commands
    assert command.when == ('[ -f "/data/x" ]',)


def test_default_values_are_taken_and_named() -> None:
    script = read_script("python x.py --n ${NODES:-2}")
    assert words(script) == [["python", "x.py", "--n", "2"]]
    assert script.result.assumed == ["NODES"]


def test_a_sourced_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    script = read_script("source conf/env.sh\npython x.py --a $A", "run.sh", tmp_path)
    assert script.result.notes == ["conf/env.sh is sourced, and isn't beside the script: what it sets isn't known"]
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/env.sh").write_text("A=3\n")
    assert words(read_script("source conf/env.sh\npython x.py --a $A", "run.sh", tmp_path)) == [
        ["python", "x.py", "--a", "3"]
    ]


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret.sh"])
def test_no_file_outside_of_the_scripts_folder_is_read(path: str, tmp_path: Path) -> None:
    (tmp_path / "secret.sh").write_text("A=3\n")
    folder = tmp_path / "inner"
    folder.mkdir()
    assert len(read_script(f"source {path}", "run.sh", folder).result.notes) == 1


def test_nothing_is_run(tmp_path: Path) -> None:
    read_script(f"touch {tmp_path}/a; echo x > {tmp_path}/b; $(touch {tmp_path}/c); eval 'touch {tmp_path}/d'")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    ["while true; do X=$X-; done", "f() { f; }; f", "f() { f | f; }; f", "for ((;;)); do :; done",
     "X=ab; for i in {1..100}; do X=$X$X; done", "eval 'eval \"$0\"'; A='eval \"$A\"'; eval \"$A\""],
)  # fmt: skip
def test_a_script_without_an_end_is_left(text: str) -> None:
    assert words(read_script(f"python before.py; {text}; python after.py"))[0] == ["python", "before.py"]


def test_what_bash_would_refuse_is_one_line() -> None:
    with pytest.raises(UserError, match="line 1"):
        read_script("if [ a ]; then python x.py", "run.sh")


def test_a_header_sets_slurms_variables() -> None:
    text = "#SBATCH -N 4\n#SBATCH --gres=gpu:a100:8 --ntasks-per-node 1\npython x.py $SLURM_NNODES $SLURM_GPUS_ON_NODE"
    script = read_script(text.replace("--gres=gpu:a100:8", "--gpus-per-node=a100:8"))
    assert words(script) == [["python", "x.py", "4", "8"]]
    assert read_script(text).header["gpus-per-node"] == "8"
