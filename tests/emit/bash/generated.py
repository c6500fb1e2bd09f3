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
SUBMITTER = """#!/usr/bin/python3 -S
import os, sys
words = sys.argv[1:]
wrapped = [word[7:] for word in words if word.startswith("--wrap=")]
place = next((place for place, word in enumerate(words) if word.endswith(".sh")), 0)
os.execvp("bash", ["bash", "-c", wrapped[0]] if wrapped else ["bash", *words[place:]])
"""
BESIDE = 'export SEEN=1\nexec torchrun train.py --seen $SEEN "$@"\n'  # inner.sh, which launchers start
ENVIRONMENT = "export LAYERS=40\nHIDDEN=5120\nset_heads() { HEADS=$1; }\n"  # env.sh, which scripts source


def stubs(folder: Path) -> Path:
    """A folder with the programs."""
    folder.mkdir()
    texts = {**dict.fromkeys(PROGRAMS, STUB), "srun": LAUNCHER, "mpirun": LAUNCHER, "sbatch": SUBMITTER}
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def started(text: str, folder: Path, programs: Path) -> list[list[str]]:
    """What bash starts, in order, without any variable set from outside."""
    folder.mkdir()
    (folder / "env.sh").write_text(ENVIRONMENT)
    (folder / "run.sh").write_text(text)
    (folder / "inner.sh").write_text(f"#!/bin/bash\n{BESIDE}")
    (folder / "inner.sh").chmod(0o755)
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


def cut_at(w: Writer) -> None:
    a, b, c = w.name(), w.name(), w.name()
    form = w.chance.choice([
        "IFS=, read -r %a %b <<< '4,x y'", "IFS=, read -ra %c <<< '4,5'; %a=${%c[0]} %b=${#%c[@]}",
        "%c=a:b; OLD=$IFS; IFS=:; set -- $%c; IFS=$OLD; %a=$1 %b=$2", "%a=a,b; %b=${%a//,/ }; %c=($%b); %a=${%c[1]}",
        "%c=(1 2 3); %a=$(IFS=,; echo \"${%c[*]}\"); %b=${%a%%,*}", "IFS== read %a %b <<< 'k=v=w'",
    ])  # fmt: skip
    w.add(form.replace("%a", a).replace("%b", b).replace("%c", c), f"${a}", f'"${b}"')


def lines(w: Writer) -> None:
    a = w.name()
    body = f'read -r x y; do {a}="${a} $y$x"; done'
    w.add(
        w.chance.choice(
            [f"{a}=\nwhile {body} <<EOF\na 1\nb 2 3\nEOF", f"{a}=; while {body} < <(printf 'a 1\\n\\nb 2\\n')",
             f"{a}=; while {body} <<< $'a 1\\nb 2'", f"mapfile -t M{a} <<< $'a b\\nc'; {a}=${{M{a}[1]}}${{#M{a}[@]}}",
             f"{a}=$(printf 'a\\nb\\n' | while read x; do echo -n $x-; done)"]
        ),
        f"${a}",
    )  # fmt: skip


def through(w: Writer) -> None:
    a, b = w.name(), w.name()
    size = w.chance.choice(["7b", "13b", "x"])
    w.add(
        f"case {size} in 7b) {a}=1;& 13b) {b}=2;;& *b) {b}=$(({b} + 1));; *) {a}=4;; esac", f"${a}", f"${{{b}:-none}}"
    )


def other_name(w: Writer) -> None:
    a, b = w.name(), w.name()
    forms = [
        f"{b}=(1); declare -n {a}={b}; {a}+=(2)",
        f"add{a}() {{ local -n r=$1; r+=(2); }}\n{b}=(1); add{a} {b}",
        f"declare -A M{a}; M{a}[a]=1; M{a}[b-c]=2; {a}=b-c; {b}=(${{M{a}[${a}]}} ${{M{a}[a]}})",
    ]
    w.add(w.chance.choice(forms), f'"${{{b}[@]}}"')


def parts(w: Writer) -> None:
    a = w.name()
    w.add(
        f"{a}=(a.py 'b c.py' d.sh e)\nunset '{a}[3]'",
        w.chance.choice(
            ['"${%a[@]:1:2}"', '"${%a[@]%.py}"', "${%a[-1]}", '"${%a[@]/#/-}"', "${!%a[@]}", "${#%a[1]}",
             '"${%a[*]:1}"', "${%a[@]: -2}"]
        ).replace("%a", a),
    )  # fmt: skip


def options(w: Writer) -> None:
    a, b = w.name(), w.name()
    w.add(f"OPTIND=1; set -- -n {w.number()} -vx rest\nwhile getopts 'n:vx' o; do\n"
          f"  case $o in n) {a}=$OPTARG;; v) {b}=1;; esac\ndone\nshift $((OPTIND - 1))\n{b}=${b}$1",
          f"${a}", f"${b}")  # fmt: skip


def status(w: Writer) -> None:
    a, b = w.name(), w.name()
    test = w.chance.choice(["false", "[ a = b ]", "(exit 1)", f"r{a}", "! true", "true", "((0))", f"{b}=$(false)"])
    w.add(f"set +e\nr{a}() {{ return 3; }}\n{b}=\n{test}; {a}=$?\n{test} && {b}=yes || {b}=no", f"${a}", f"${b}")


def shaped(w: Writer) -> None:
    a = w.name()
    w.add(w.chance.choice([f"printf -v {a} '%03d' {w.number()}", f"declare -i {a}={w.number()}*3; {a}+=1",
                           f"declare -u {a}=abc", f"{a}=$(printf '%s,' x y); {a}=${{{a}%,}}",
                           f"((X{a}={w.number()}, {a}=X{a}<<2, {a}|=1))", f"{a}=2+1; {a}=$((${a}*2))$(({a}*2))",
                           f"{a}=$((0x1F % 010))"]), f"${a}")  # fmt: skip


def braced(w: Writer) -> None:
    forms = ["{a,b{1..3}}x", "{01..3}", "{c..a}", "{1..9..4}{x,}", '{"a b",c}', "{a}", "{a,b", "x{,y}z"]
    w.add(":", *w.chance.sample(forms, 2))


# -- met in scripts that people published -------------------------------------------------------------------


def empty_argument(w: Writer) -> None:
    a = w.name()
    test = w.chance.choice(['[ "$%a" == "" ]', '[ -z "$%a" ]', '[[ "$%a" = "" ]]', "[[ -z $%a ]]", '! [ "$%a" != "" ]'])
    test = test.replace("%a", a)
    w.add(f"{a}=$7\nif {test}; then\n  {a}={w.number()}\nfi\n[ ${a} -gt 2 ] && {a}=more", f"--stage ${a}")


def declared_array(w: Writer) -> None:
    a = w.name()
    w.add(f"declare -a {a}=(\n    # how many\n    --layers={w.number()} # 7b: 32\n\n    {w.flag()} \\\n"
          f'    --end "two words" \\\n)\n{a}+=(\n    "--format hybrid"\n    # "--not"\n)',
          f'"${{{a}[@]}}"', f"${{{a}[@]}}")  # fmt: skip


def searched_words(w: Writer) -> None:
    a, b = w.name(), w.name()
    w.add(f"{a}='--x=1 --steps={w.number()} --y=2'; {b}=0\nIFS=' ' read -ra R{a} <<< \"${a}\"\n"
          f'for arg in "${{R{a}[@]}}"; do\n  if [[ "$arg" == "--steps="* ]]; then\n    {b}="${{arg#*=}}"\n    break\n'
          "  fi\ndone", f"--accumulation ${b}")  # fmt: skip


def keys_and_values(w: Writer) -> None:
    a, b = w.name(), w.name()
    w.add(f"set -- {a}={w.number()} {b}=x=y\nfor ARGUMENT in \"$@\"; do\n    IFS='=' read -r KEY VALUE <<< "
          '"$ARGUMENT"\n    export "$KEY"="$VALUE"\ndone', f"run=${a}", f"${{{b}}}")  # fmt: skip


def growing_text(w: Writer) -> None:
    a = w.name()
    test = f'[ "yes" = "{w.chance.choice(["yes", "no"])}" ]'
    w.add(f'{a}=" \\\n    --layers {w.number()} \\\n\n    --last \\\n    "\nif {test}; then'
          f'\n{a}="${{{a}}} \\\n\t\t--more"\nfi', f"${a}")  # fmt: skip


def least(w: Writer) -> None:
    a, b = w.name(), w.name()
    w.add(f"{a}={w.number()}\n{b}=$((${{{a}}}<8?${{{a}}}:8))\n{b}=$(( (${b} > 1) ? {b} * 2 : 0 ))", f"--gpus ${b}")


def counted(w: Writer) -> None:
    a, b = w.name(), w.name()
    w.add(f"{a}=(n1 n2 n3); {b}=\nfor (( r=1; r<${{#{a}[@]}}; r++ ))\ndo\n    {b}+=\"${{{a}[$r]}}:$r,\"\ndone",
          f"--hosts ${b}", f'"${{{a}[-1]}}"', f'"${{{a}[@]:0:$((3 - 1))}}"')  # fmt: skip


def own_file(w: Writer) -> None:
    a = w.name()
    w.add(f'{a}=ds_$$.json\nmkdir -p conf\ncat <<EOT > "conf/${a}"\n{{"stage": {w.number()}}}\nEOT',
          f"$(cat conf/${a} | tr -d ' {{}}')")  # fmt: skip


def required(w: Writer) -> None:
    a, b = w.name(), w.name()
    w.add(f': "${{{a}:={w.number()}}}"\n: "${{{b}:=$(echo {a}):${a}}}"\n: "${{{a}:?Set {a}}}"', f"${a}", f"${b}")


IDIOMS: tuple[Callable[[Writer], None], ...] = (
    variable, several, default, number, string, continued, array, array_of_itself, table, if_, number_test, unset_test,
    case, function, printing_function, text_changes, devices, loop, read_, document, sourced, arguments, parsed,
    indirect, cut_at, lines, through, other_name, parts, options, status, shaped, braced,
    empty_argument, declared_array, searched_words, keys_and_values, growing_text, least, counted, own_file, required,
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
    "shown and evaluated": 'CMD="%q &> log.txt"\necho ${CMD}\neval ${CMD}\nset +x',
    "launcher and program": 'L="torchrun \\\n  --nproc_per_node 8 "\nP="train.py"\nexport CMD="$L $P"\n'
    'srun -N 2 bash -c "RANK=\\$SLURM_PROCID $CMD %q"',
    "put in by the inner shell": "export K=3\n"
    'srun -N 2 bash -c "torchrun train.py --n \\$((K + 1)) --k \\$(echo $K | tr 3 4)"',
    "inner shell alone": "export L='torchrun --n 8' C=' train.py %w'\nbash -c '$L $C' 2>&1 | tee $(dirname $0)/log.txt",
    "a script beside": "srun -N 2 ./inner.sh %w",
    "a script of its folder": "./inner.sh %w",
    "submitted": "export SIZE=70b\nsbatch -N 4 --gpus-per-node=8 inner.sh %w",
    "submitted text": 'sbatch --nodes=4 --wrap="srun -N 4 torchrun train.py --x 1"',
    "submitted in a loop": "for lr in 1e-4 3e-4; do sbatch -J lr$lr inner.sh --lr $lr %w; done",
    "xargs in place": "printf 'h1\\nh2\\n' | xargs -I {} torchrun train.py --host {} --end",
    "xargs, one each": "echo h1 h2 | xargs -n 1 torchrun train.py --host",
    "unset beforehand": "unset OMP_NUM_THREADS; umask 22; torchrun train.py %w 2>&1",
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
