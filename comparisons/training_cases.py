"""Bug reports about training, data and checkpoints, tried: `python comparisons/training_cases.py DIR`.

DIR has a folder a case, `train-NN-name`, with scripts of our own writing in the form of a public report. Each
is copied, run by bash as it stands, and judged by what the report established:

    01 the end of a text in exports     02 BOS in prepared data       03 BOS in a rolling likelihood
    04 RoPE scaling that Megatron fixes 06, 20 ids of cut texts       07 windows and RoPE by transformers
    09 a mixture's balancing loss       11 order and rate after a resume 12 partial rotary in exports
    14 killed in a save                 17 weight decay                  18 a separator across a cut
    19 DiLoCo's moments after a resume

Exit code 1 when one is wrong. The folder stays outside the repository; the dated result is kept.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness.cases import case_options, case_result, conclude
from harness.facts import ROOT

WINDOW = 32  # tokens of the script's
NEAR = 1e-4  # of a log-likelihood, and of logits in fp32 after an export
# A script that asked inner parts: what joins fragments is another one now.
FRAGMENTS = "np.concatenate([enc([f.text])[0] for f in whole(text)])"
SEAMS = "__import__('scalewright.data.seams').data.seams.Seams(enc, __import__('collections').Counter())"
SEAMS = f"np.concatenate({SEAMS}(list(whole(text))))"
RENEWED = {"siblings.py": (FRAGMENTS, SEAMS)}
Judge = Callable[[Path, str], str]  # a case's folder and its output -> what is wrong, or nothing


def main() -> int:
    """Runs every case that is there."""
    options = case_options(__doc__, CASES)
    result = case_result("training-cases", "Bug reports about training, tried", options)
    rows = []
    with tempfile.TemporaryDirectory(prefix="scalewright-cases-") as name:
        for source in sorted(options.folder.glob("train-*")):
            shutil.copytree(source, Path(name) / source.name.removeprefix("train-"))
        for number in options.only:
            folder = next((path for path in Path(name).iterdir() if path.name.startswith(number)), None)
            if folder is None:
                continue
            scripts, judge = CASES[number]
            output = "".join(run(folder, script) for script in scripts)
            wrong = judge(folder, output)
            rows.append([folder.name, wrong or "right"])
            result.put(folder.name, {"wrong": wrong, "output": [] if not wrong else output[-3000:].splitlines()})
            print(f"{folder.name}: {wrong or 'right'}", flush=True)
    return conclude(result, ["case", "verdict"], rows)


def run(folder: Path, script: str) -> str:
    """Its output, both streams; a script that fails is judged by what it printed."""
    for name, (before, now) in RENEWED.items():
        if (path := folder / name).exists():
            path.write_text(path.read_text().replace(before, now))
    command = ["bash", script] if script.endswith(".sh") else [sys.executable, script]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=900, errors="replace",
    )  # fmt: skip
    return done.stdout


def load(folder: Path, name: str) -> dict[str, object]:
    """A JSON file of the case's; empty where there is none."""
    path = folder / name
    return dict(json.loads(path.read_text())) if path.exists() else {}


def ends(folder: Path, output: str) -> str:
    eod = load(folder, "data/metadata.json").get("eod")
    config, generation = load(folder, "hf/config.json"), load(folder, "hf/generation_config.json")
    named = [config.get("eos_token_id"), generation.get("eos_token_id")]
    first = [value[0] if isinstance(value, list) else value for value in named]
    if first != [eod, eod] or load(folder, "hf/tokenizer_config.json").get("eos_token") != "<|im_end|>":
        return f"documents end with {eod}, the export's ends are {named}"
    return "" if '"stopped_by": "length"' not in output else "generate goes on after the end"


def begins(folder: Path, output: str) -> str:
    counts = re.search(r"count of <bos>=0: (\d+) <eos>=1: (\d+)", output)
    return "" if counts and counts[1] == counts[2] != "0" else f"BOS and ends: {counts and counts.groups()}"


def rolling(folder: Path, output: str) -> str:
    """Texts beyond a window aren't compared with the script: its last window sees less than lm-eval's."""
    found = dict(re.findall(r"^(ours|lm-eval \{'add_bos_token': False\}) +rolling \[(\S+)\]", output, re.M))
    pairs = re.findall(r" (\d+) tokens: ours (\S+), without the second <bos> (\S+);", output)
    values = [tuple(found.values()), *((ours, theirs) for count, ours, theirs in pairs if int(count) <= WINDOW)]
    far = [pair for pair in values if len(pair) != 2 or abs(float(pair[0]) / float(pair[1]) - 1) > NEAR]
    return "" if not far and len(values) == 2 else f"likelihoods differ: {values}"


def megatron(folder: Path, output: str) -> str:
    wrong = []
    for name in ("l3x", "mla", "lin"):
        words = [sys.executable, "-m", "scalewright", "emit", "megatron", f"run-{name}.yaml", "--out", f"strict-{name}"]
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            [*words, "--json", "--strict"], cwd=folder, env=environ, capture_output=True, text=True, timeout=200
        )
        if done.returncode == 0 and "rope" not in done.stdout:
            wrong.append(name)
    return f"{', '.join(wrong)}: numbers that Megatron fixes are emitted in silence" if wrong else ""


def no_difference(folder: Path, output: str) -> str:
    wrong = [
        line for line in output.splitlines() if "differs" in line or re.search(r"(?:ids|wrong)(?:: | at )[1-9]", line)
    ]
    return wrong[0][:200] if wrong else ("" if output.strip() else "no output")


def oracle(folder: Path, output: str) -> str:
    rows = re.findall(r"^(.*?) +read (\S+)  round trip (\S+)", output, re.M)
    far = [name for name, read, again in rows if float(read) > NEAR or float(again) > 0]
    return "" if len(rows) >= 20 and not far else f"{len(rows)} models; other logits: {', '.join(far)}"


def one_loss(folder: Path, output: str) -> str:
    rows = dict(re.findall(r"^(one|acc|ep2|pp2) (\[.*\])", output, re.M))
    values = [[float(x) for x in re.findall(r"\d+\.\d+", row)] for row in rows.values()]
    equal = all(abs(a - b) < 3e-6 for row in values[1:] for a, b in zip(row, values[0], strict=True))
    return "" if len(values) == 4 and equal else f"losses differ: {rows}"


def same_resume(folder: Path, output: str) -> str:
    line = next((line for line in output.splitlines() if "hash equal" in line), "no rows")
    loss = re.search(r"max loss diff (\S+)", line)
    same = "hash equal: True lr equal: True" in line and loss is not None and float(loss[1]) < 1e-5
    return "" if same else line


def partial_rotary(folder: Path, output: str) -> str:
    far = re.findall(r"^(\w+) +exported; logits differ by (\S+)", output, re.M)
    wrong = [name for name, away in far if float(away) > NEAR]
    return f"exported with other logits: {', '.join(wrong)}" if wrong else ""


def killed_saves(folder: Path, output: str) -> str:
    whole = "hash equal True no gap True" in output and "rc after two SIGTERMs 75" in output
    return "" if whole else output.strip().splitlines()[-1]


def no_decay(folder: Path, output: str) -> str:
    rows = re.findall(r"decayed and suspicious: (\[.*?\])", output)
    return "" if len(rows) >= 7 and set(rows) == {"[]"} else f"decayed: {rows}"


def bitwise(folder: Path, output: str) -> str:
    line = next((line for line in output.splitlines() if "grad norm" in line), "no rows")
    return "" if "max loss diff 0.0 grad norm 0.0" in output else line


CASES: dict[str, tuple[list[str], Judge]] = {
    "11": (["run.sh"], same_resume),  # makes data for others
    "01": (["run.sh"], ends),
    "02": (["run.sh"], begins),
    "03": (["try.py", "siblings.py"], rolling),
    "04": (["run.sh", "siblings.sh"], megatron),
    "06": (["try.py", "siblings.py"], no_difference),
    "07": (["try.py"], oracle),
    "09": (["run.sh"], one_loss),
    "12": (["try.py"], partial_rotary),
    "14": (["run.sh", "run2.sh"], killed_saves),
    "17": (["try.py"], no_decay),
    "18": (["try.py"], no_difference),
    "19": (["run.sh", "run2.sh"], bitwise),
    "20": (["try.py"], no_difference),
}

if __name__ == "__main__":
    sys.exit(main())
