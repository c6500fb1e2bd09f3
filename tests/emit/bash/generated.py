"""Launch scripts in the forms that people write, made by chance, and what bash itself starts by them.

script(seed)           text of a script, of 3 to 7 idioms and one or two launch lines
started(text, folder)  the words of each program that bash started: stubs of torchrun, python, ... write them down
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("torchrun", "python", "deepspeed", "accelerate", "megatron", "llamafactory-cli", "axolotl")
STUB = """#!/usr/bin/python3 -S
import json, os, sys
with open(os.environ["STARTED"], "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
"""
LAUNCHER = """#!/usr/bin/python3 -S
import os, sys
words = sys.argv[1:]
while words and words[0].startswith("-"):
    if "=" not in words.pop(0):
        words.pop(0)
os.execvp(words[0], words)
"""
ENVIRONMENT = "export LAYERS=40\nHIDDEN=5120\nset_heads() { HEADS=$1; }\n"  # env.sh, which scripts source


def stubs(folder: Path) -> Path:
    """A folder with the programs."""
    folder.mkdir()
    texts = {**dict.fromkeys(PROGRAMS, STUB), "srun": LAUNCHER, "mpirun": LAUNCHER}
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def started(text: str, folder: Path, programs: Path) -> list[list[str]]:
    """What bash starts, in order, without any variable set from outside."""
    folder.mkdir()
    (folder / "env.sh").write_text(ENVIRONMENT)
    (folder / "run.sh").write_text(text)
    log = folder / "started"
    log.touch()
    environ = {"PATH": f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin", "STARTED": str(log)}
    subprocess.run(
        ["bash", "run.sh"], cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    return [json.loads(line) for line in log.read_text().splitlines()]


class Writer:
    """Lines so far, and words that a launch line may have."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.lines, self.words, self.count = chance, [], [], 0

    def name(self) -> str:
        self.count += 1
        return self.chance.choice(["TP", "PP", "SIZE", "Opts", "args", "_n"]) + str(self.count)

    def number(self) -> int:
        return self.chance.choice([1, 2, 4, 8, 16, 3])

    def flag(self) -> str:
        return self.chance.choice(
            ["--lr 1e-4", "--bf16", "--tp=2", "--name 'a b'", '--path "/data/x y"', "model.x=3", "--seq-length 4096"]
        )

    def add(self, text: str, *words: str) -> None:
        self.lines.append(text)
        self.words += words


def variable(w: Writer) -> None:
    a = w.name()
    w.add(f"{w.chance.choice(['', 'export ', 'readonly ', 'declare '])}{a}={w.number()}", f"--a ${a}", f"--b=${{{a}}}")


def several(w: Writer) -> None:
    a, b = w.name(), w.name()
    w.add(w.chance.choice([f"{a}={w.number()}; {b}=$(({a}*2))", f"{a}={w.number()} {b}=x"]), f"${a}", f'"${b}"')


def default(w: Writer) -> None:
    a, b = w.name(), w.name()
    sign = w.chance.choice([":-", "-", ":="])
    w.add(f"{a}=${{{b}{sign}{w.number()}}}", f"--n ${a}", f"${{{w.name()}:-dflt}}", f"${{{a}:+--set}}")


def number(w: Writer) -> None:
    a, b = w.name(), w.name()
    x, y = w.number(), w.number()
    form = w.chance.choice(["$(({a} * {y} + 1))", "$(( ${a} / {y} ))", "$(({a} % 3))", "$((({a}+{y})**2))",
                            "`expr ${a} + {y}`",
                            "$(echo ${a}*{y} | bc)", "$(({a} > {y} ? {a} : {y}))", "$[ {a} + {y} ]"])  # fmt: skip
    w.add(f"{a}={x}\n{b}=" + form.replace("{a}", a).replace("{y}", str(y)), f"--world ${b}")


def string(w: Writer) -> None:
    a = w.name()
    w.add(f'{a}="{w.flag().replace(chr(34), "")}"\n{a}="${a} --more 1"\n{a}+=" --last"', f"${a}")


def continued(w: Writer) -> None:
    a = w.name()
    w.add(f'{a}=" \\\n    --num-layers {w.number()} \\\n    --hidden-size 4096 \\\n"', f"${a}")


def array(w: Writer) -> None:
    a = w.name()
    w.add(
        f"{a}=(\n    {w.flag()}  # why\n    {w.flag()}\n)\n{a}+=({w.flag()})",
        f'"${{{a}[@]}}"',
        f"${{{a}[@]}}",
        f'"${{{a}[0]}}"',
    )


def array_of_itself(w: Writer) -> None:
    a = w.name()
    w.add(f'{a}=({w.flag()})\n{a}=("${{{a}[@]}}" {w.flag()})\n{a}[${{#{a}[@]}}]=end', f'"${{{a}[@]}}"')


def table(w: Writer) -> None:
    a, b = w.name(), w.name()
    w.add(f"declare -A {a}=([7b]=32 [13b]=40 [70b]=80)\n{b}=13b", f"--layers ${{{a}[${b}]}}", f"${{#{a}[@]}}")


def if_(w: Writer) -> None:
    a, b = w.name(), w.name()
    test = w.chance.choice(["[ ${a} = 7b ]", "[[ ${a} == 7b ]]", '[ "${a}" == "13b" ]', 
                            "[[ ${a} == *b && ${a} != 1* ]]",
                            "[[ ${a} =~ ^[0-9]+b$ ]]",
                            "test ${a} = 70b -o ${a} = 7b", "! [ ${a} = 7b ]"])  # fmt: skip
    size, again = (w.chance.choice(["7b", "13b", "70b"]) for _ in range(2))
    w.add(
        f"{a}={size}\nif {test.replace('{a}', a)}; then\n  {b}=1; X{b}=yes\n"
        f"elif [[ ${a} = {again} ]]; then {b}=2\nelse\n  {b}=3\nfi",
        f"--n ${b}", f"$X{b}",
    )  # fmt: skip


def number_test(w: Writer) -> None:
    a, b = w.name(), w.name()
    test = w.chance.choice(
        ["[ ${a} -gt 4 ]", "(( {a} >= 8 ))", "[[ ${a} -eq 2 || ${a} -lt 2 ]]", "[ ${a} -ne 8 -a ${a} -le 4 ]"]
    ).replace("{a}", a)
    w.add(f"{a}={w.number()}\n{test} && {b}=--large || {b}=--small", f"${b}")


def unset_test(w: Writer) -> None:
    a = w.name()
    w.add(
        w.chance.choice(
            [f'if [ -z "${a}" ]; then {a}={w.number()}; fi', f'[[ -n "${a}" ]] || {a}=5', f': "${{{a}:={w.number()}}}"']
        ),
        f"--k ${a}",
    )


def case(w: Writer) -> None:
    a, b = w.name(), w.name()
    size = w.chance.choice(["llama3-8b", "qwen-72b", "gpt2"])
    w.add(
        f'{a}={size}\ncase "${a}" in\n  llama*|Llama*) {b}=32 ;;\n  *-7[0-9]b) {b}=80 ;;\n  *) {b}=12 ;;\nesac',
        f"--layers ${b}",
    )


def function(w: Writer) -> None:
    a, b = w.name(), w.name()
    w.add(
        f'f{a}() {{\n  local x=$1 y=${{2:-7}}\n  {b}=$((x + y))\n  L{b}="$x:$#"\n}}\n'
        f"f{a} {w.number()} {w.chance.choice(['', '5'])}",
        f"${b}",
        f"$L{b}",
    )


def printing_function(w: Writer) -> None:
    a, b = w.name(), w.name()
    w.add(f"function g{a} {{ echo --got $(($1 * 2)); }}\n{b}=$(g{a} {w.number()})", f"${b}", f"$(g{a} 3)")


def text_changes(w: Writer) -> None:
    a = w.name()
    w.add(
        f"{a}=meta/Llama-3.1-8B.json",
        w.chance.choice(
            ["${%a%.json}", "${%a##*/}", "${%a%%/*}", "${%a/Llama/Qwen}", "${%a//-/_}", "${%a,,}", "${%a^^}",
             "${%a:5:5}",
             "${#%a}", "${%a#*-}"]
        ).replace("%a", a),
        w.chance.choice(
            [f"$(basename ${a})", f"$(basename ${a} .json)", f"$(dirname ${a})", f"$(echo ${a} | cut -d/ -f1)",
             f"$(echo ${a} | tr A-Z a-z)"]
        ),
    )  # fmt: skip


def devices(w: Writer) -> None:
    a, b = w.name(), w.name()
    count = w.chance.choice(["$(echo $%a | tr ',' '\\n' | wc -l)", "$(awk -F, '{print NF}' <<< \"$%a\")"]).replace(
        "%a", a
    )
    w.add(f"export {a}=0,1,2,3\n{b}={count}", f"--nproc_per_node ${b}")


def loop(w: Writer) -> None:
    a, b = w.name(), w.name()
    heads = ["for i in a b c", "for i in {1..3}", "for ((i=0; i<3; i++))", "for i in $(seq 2 4)"]
    w.add(
        f'{a}=\n{w.chance.choice(heads)}; do\n  {a}="${a} --x $i"\ndone\n'
        f"{b}=1; while [ ${b} -lt 20 ]; do {b}=$(({b} * 3)); done",
        f"${a}",
        f"${b}",
    )


def read_(w: Writer) -> None:
    a, b = w.name(), w.name()
    w.add(f'read -r {a} {b} <<< "4 2 1"', f"${a}", f'"${b}"')


def document(w: Writer) -> None:
    a = w.name()
    w.add(
        f'{a}={w.number()}\ncat > ds_{a}.json <<EOF\n{{"stage": ${a}}}\nEOF',
        f"--deepspeed ds_{a}.json",
        f"$(cat ds_{a}.json | tr -d ' ')",
    )


def sourced(w: Writer) -> None:
    w.add(
        w.chance.choice(["source env.sh", ". ./env.sh", 'source "$(dirname "$0")/env.sh"']) + "\nset_heads 32",
        "--layers $LAYERS",
        "$HIDDEN",
        "${HEADS}",
    )


def arguments(w: Writer) -> None:
    w.add(f'set -- {w.number()} "p q" --end', "$1", '"$2"', "$#", '"$@"', "$*", '"${@:2}"')


def parsed(w: Writer) -> None:
    a = w.name()
    w.add(
        f"{a}=9\nset -- --tp 4 --other\nwhile [[ $# -gt 0 ]]; do\n  case $1 in\n"
        f"    --tp) {a}=$2; shift 2 ;;\n    *) shift ;;\n  esac\ndone",
        f"--tp ${a}",
    )


def indirect(w: Writer) -> None:
    a, b = w.name(), w.name()
    w.add(f"{a}={w.number()}; {b}={a}", f"${{!{b}}}")


IDIOMS: tuple[Callable[[Writer], None], ...] = (
    variable, several, default, number, string, continued, array, array_of_itself, table, if_, number_test, unset_test,
    case, function, printing_function, text_changes, devices, loop, read_, document, sourced, arguments, parsed,
    indirect,
)  # fmt: skip
LAUNCHES: dict[str, str] = {
    "plain": "%c",
    "continued": "%C",
    "torchrun by module": "python -m torch.distributed.run --nproc_per_node 8 train.py %w",
    "teed": "%c 2>&1 | tee log.txt",
    "quoted and evaluated": 'CMD="%q"\neval "$CMD"\neval $CMD --more',
    "in a variable": 'CMD="torchrun train.py"\n$CMD %w',
    "array as a command": 'CMD=(torchrun --nnodes 1 train.py)\n"${CMD[@]}" %w',
    "function": 'launch() {\n  local n=$1\n  shift\n  torchrun --nproc_per_node $n "$@"\n}\nlaunch 8 train.py %w',
    "function by srun": 'run() { srun --nodes 2 torchrun "$@"; }\nrun train.py %w',
    "srun bash -c": 'srun -N 2 bash -c "%q"',
    "srun bash -c, exported": "export OUT=7\nsrun -N 2 bash -c 'torchrun train.py --out $OUT'",
    "bash here-document": "bash <<EOF\n%q\nEOF",
    "bash -c with words": "bash -c 'torchrun train.py \"$@\"' name %w",
    "mpirun": "mpirun -np 8 python train.py %w",
    "with an environment": "OMP_NUM_THREADS=1 NCCL_DEBUG=INFO torchrun train.py %w",
    "env": "env OMP_NUM_THREADS=1 torchrun train.py %w",
    "after others": "mkdir -p out && cd out && %c",
    "if it works": "if %c; then echo done; else exit 1; fi",
    "or": "%c || exit 1",
    "in a loop": "for lr in 1e-4 3e-4; do\n  python train.py --lr $lr %w\ndone",
    "in brackets": "( export SEED=1; %c --seed $SEED )",
    "in the background": "%c &\nwait",
    "exec": "exec %c",
    "after usage": "if [ 1 -gt 2 ]; then\n  echo usage; exit 1\nfi\n%c",
    "accelerate": "accelerate launch --num_processes 8 train.py %w",
    "deepspeed": "deepspeed --num_gpus 8 train.py %w",
    "llamafactory": "FORCE_TORCHRUN=1 llamafactory-cli train sft.yaml %w",
    "megatron sft": "megatron sft --load x %w",
}


def script(seed: int) -> str:
    """A script by this seed."""
    writer = Writer(random.Random(seed))
    chance = writer.chance
    for idiom in chance.sample(IDIOMS, chance.randint(3, 7)):
        idiom(writer)
        if chance.random() < 0.2:
            writer.lines.append(
                chance.choice(["set -e", "# a comment: $X", "", "echo starting", "export NCCL_DEBUG=WARN"])
            )
    launches = chance.sample(sorted(LAUNCHES), chance.randint(1, 2))
    for name in sorted(launches, key=lambda launch: launch == "exec"):
        words = chance.sample(writer.words, min(len(writer.words), chance.randint(1, 5)))
        line = " ".join(words)
        command = f"torchrun --nproc_per_node 8 train.py {line} --end"
        pieces = {"%c": command, "%C": " \\\n    ".join(["torchrun", "train.py", *words, "--end"]), "%w": line}
        pieces["%q"] = "torchrun train.py " + " ".join(word for word in words if not set(word) & set("\"'`@*"))
        text = LAUNCHES[name]
        for key, value in pieces.items():
            text = text.replace(key, value)
        writer.lines.append(text)
    return "#!/bin/bash\n" + "\n".join(writer.lines) + "\n"
